"""Pure WSGI: any framework, no import of one."""

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from ratekeeper.policy import RequestView
from ratekeeper.policy.cost import MAX_BODY
from ratekeeper.web.answer import Pairs, Passed, Refused, with_headers
from ratekeeper.web.gate import WebGate

Environ = dict[str, Any]
Application = Callable[..., Iterable[bytes]]

PASSED = "ratekeeper.passed"
REASONS = {429: "Too Many Requests", 403: "Forbidden", 503: "Service Unavailable"}


def user_of(environ: Environ) -> str | None:
    """Whom the server has authenticated."""
    return environ.get("REMOTE_USER") or None


def request_view(environ: Environ, user: str | int | None = None, route: str | None = None) -> RequestView:
    """The path as it came where the server tells it, else as it was decoded, encoded again."""
    headers = [
        (name[5:].replace("_", "-").lower(), value) for name, value in environ.items() if name.startswith("HTTP_")
    ]
    headers += [
        (name.replace("_", "-").lower(), environ[name])
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        if environ.get(name)
    ]
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if not raw:
        path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")) or "/"
        raw = quote(path.encode("latin-1"), safe="/:@!$&'()*+,;=~-._")
    return RequestView(
        environ["REQUEST_METHOD"],
        raw.partition("?")[0],
        query=environ.get("QUERY_STRING", ""),
        host=environ.get("HTTP_HOST", ""),
        headers=headers,
        peer=environ.get("REMOTE_ADDR") or None,
        scheme=environ.get("wsgi.url_scheme", "http"),
        user=user,
        route=route,
    )


class RateLimitMiddleware:
    """`application = RateLimitMiddleware(application, "100/minute")`. `policy` and the options are those of `WebGate`.

    `user` says who is authenticated, from the environ. A handler sees the decision in `environ["ratekeeper.passed"]`.
    """

    def __init__(
        self,
        app: Application,
        policy: Any = None,
        *,
        gate: WebGate | None = None,
        user: Callable[[Environ], Any] = user_of,
        **options: Any,
    ) -> None:
        if gate is not None and (policy is not None or options):
            raise TypeError("a gate has its policy and its options: give one or the other")
        if gate is None and policy is None:
            raise TypeError("expected a policy: limits like '100/minute', a Policy, or the path of a policy file")
        self.app = app
        self.gate = WebGate(policy, **options) if gate is None else gate
        self.user = user

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        around = environ.get(PASSED)
        if self.gate.owns(around):
            return self.app(environ, start_response)  # asked already, by one around this one
        view = request_view(environ, self.user(environ))
        if self.gate.reads_body():
            view.body = read_body(environ)
        answer = self.gate.before(view)
        if isinstance(around, Passed):
            around.tells = False  # the gate that is nearest to the application tells the client
        if isinstance(answer, Refused):
            return refuse(answer, environ, start_response)
        self.gate.sleep(answer)
        environ[PASSED] = answer
        return _Telling(self.gate, answer, start_response).run(self.app, environ)


def refuse(refused: Refused, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer without the application."""
    reason = REASONS.get(refused.status, "Refused")
    headers: Pairs = [*refused.headers, ("Content-Length", str(len(refused.body)))]
    start_response(f"{refused.status} {reason}", headers)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [refused.body]


def read_body(environ: Environ) -> bytes:
    """The body, as far as a rule may look at it; the application reads it again."""
    stated = environ.get("CONTENT_LENGTH") or ""
    length = int(stated) if stated.isdecimal() else None
    if length is None and not environ.get("wsgi.input_terminated"):
        return b""  # there is none, or no telling where it would end
    stream = environ["wsgi.input"]
    body: bytes = stream.read(MAX_BODY + 1 if length is None else min(length, MAX_BODY + 1))
    environ["wsgi.input"] = io.BufferedReader(_Again(body, stream, None if length is None else length - len(body)))
    return body


class _Again:
    """A stream that begins with what was read of it, as far as a BufferedReader asks. `left` is how much of the rest
    there is, as not every server's stream ends by itself."""

    closed = False

    def __init__(self, read: bytes, rest: Any, left: int | None) -> None:
        self._read = memoryview(read)
        self._rest = rest
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part: Any = self._read[: len(buffer)]
        if part:
            self._read = self._read[len(part) :]
        elif self._left != 0:
            part = self._rest.read(len(buffer) if self._left is None else min(len(buffer), self._left))
            self._left = self._left if self._left is None else self._left - len(part)
        buffer[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        parts = bytearray()
        buffer = bytearray(65536)
        while size := self.readinto(buffer):
            parts += buffer[:size]
        return bytes(parts)

    def close(self) -> None:
        """The stream is the server's to close."""


class _Telling:
    """One response: our headers on its start, and what it has cost at its end.

    Where the result decides about the cost, and the body is a list that is there already, it is settled before the
    start is sent; else when the last part of the body was handed over.
    """

    def __init__(self, gate: WebGate, passed: Passed, start_response: Callable[..., Any]) -> None:
        self.gate = gate
        self.passed = passed
        self.start_response = start_response
        self.started: tuple[str, Pairs, tuple[Any, ...]] | None = None
        self.write: Callable[[bytes], Any] | None = None
        self.sent = 0
        self.body: Iterable[bytes] = ()

    def run(self, app: Application, environ: Environ) -> Iterable[bytes]:
        body = self.body = app(environ, self.start)
        if isinstance(body, list | tuple) and self.started is not None:
            self.sent += sum(map(len, body))
            self.settle()
        elif not isinstance(body, environ.get("wsgi.file_wrapper", ())) or self.passed.settles:
            return self
        self.release()
        return body

    def start(self, status: str, headers: Pairs, *failure: Any) -> Callable[[bytes], Any]:
        if failure and failure[0] is not None and self.write is not None:
            return self.start_response(status, headers, *failure)  # type: ignore[no-any-return]
        self.started = status, headers, failure
        return self.writing

    def writing(self, part: bytes) -> None:
        """The old way to send a body."""
        self.release()
        assert self.write is not None
        self.sent += len(part)
        self.write(part)

    def release(self) -> None:
        """Send the start, if it was not sent yet."""
        if self.started is not None and self.write is None:
            status, headers, failure = self.started
            self.write = self.start_response(status, with_headers(headers, self.passed.headers), *failure)

    def settle(self) -> None:
        if self.started is not None and self.passed.settles:
            self.gate.after(self.passed, int(self.started[0][:3]), self.sent)
        self.passed.end()

    def __iter__(self) -> Iterator[bytes]:
        for part in self.body:
            self.release()
            self.sent += len(part)
            yield part
        self.settle()
        self.release()

    def close(self) -> None:
        """The server is done with the response: an end that was not reached was not settled."""
        close = getattr(self.body, "close", None)
        if close is not None:
            close()
