"""Pure WSGI: any framework, no import of one."""

import io
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Unpack
from urllib.parse import quote

from ratebound.policy import RequestView
from ratebound.policy.cost import MAX_BODY
from ratebound.policy.match.reading import SAFE, Paths, configured_prefixes, is_configured, read_paths
from ratebound.policy.match.request import ANONYMOUS, Wire
from ratebound.web.answer import NOTED, Pairs, Passed, Refused, changes, with_headers
from ratebound.web.gate import WebGate
from ratebound.web.options import AnyPolicy, Options
from ratebound.web.user import User, found_user_id, identified, user_is_told

Environ = dict[str, Any]
Application = Callable[..., Iterable[bytes]]
Write = Callable[[bytes], Any]

PASSED = "ratebound.passed"
OURS, LENGTH = 1, 2
REASONS = {429: "Too Many Requests", 403: "Forbidden", 503: "Service Unavailable"}


UNKNOWN_USER = (
    "neither the server nor a middleware around it has set REMOTE_USER: put it inside your authentication middleware,"
    " or give it user=, a function of the environ"
)


def user_of(environ: Environ) -> User:
    """Return the user whom the server, or a middleware around this one, has authenticated."""
    user = environ.get("REMOTE_USER")
    return None if user is None else found_user_id(user)


def _paths(environ: Environ) -> Paths:
    """Return the readings of the path: the target where the server tells it, and with and without SCRIPT_NAME."""
    raw: str | None = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    target = raw.partition("?")[0] if raw else None
    path: str = environ.get("PATH_INFO") or ""
    prefix: str = environ.get("SCRIPT_NAME") or ""
    if target == path and not prefix and not configured_prefixes():
        return path
    return paths_below(target, path, prefix, "latin-1")


def paths_below(target: str | None, path: str, prefix: str, encoding: str, known: str = "") -> Paths:
    """Return the readings of a path below a prefix. WSGI hands bytes over as if they were latin-1, Django decodes them.

    `known` is the prefix that the operator configured, if it is known.
    """
    full = prefix + path if path and path[0] != "/" else prefix.rstrip("/") + path
    below = path if path.startswith("/") else f"/{path}"  # as frameworks read it
    text = prefix.encode(encoding, "replace").decode("utf-8", "replace")
    is_known = is_configured(text) or text.strip("/") == known.strip("/")
    others = [(full.encode(encoding, "replace"), is_known)] if prefix else []
    if target is None:
        target = quote(full.encode(encoding, "replace") or b"/", safe=SAFE)
    prefixes = [one for one in (text, known) if one]
    return read_paths(target, below.encode(encoding, "replace"), others, prefixes, text if is_known else "")


def _headers(environ: Environ) -> Pairs:
    headers = [
        (name[5:].replace("_", "-").lower(), value) for name, value in environ.items() if name.startswith("HTTP_")
    ]
    return headers + [
        (name.replace("_", "-").lower(), environ[name])
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        if environ.get(name)
    ]


WIRE = Wire(
    paths=_paths,
    query=lambda environ: environ.get("QUERY_STRING", ""),
    host=lambda environ: environ.get("HTTP_HOST", ""),
    headers=_headers,
    scheme=lambda environ: environ.get("wsgi.url_scheme", "http"),
    is_scripted=lambda environ: "HTTP_ORIGIN" in environ,
    path_params=lambda environ: environ.get("wsgiorg.routing_args", ((), {}))[1],
    session=lambda environ: environ.get("beaker.session"),
    state=lambda environ: environ,
    request=lambda environ: environ,
    no_user=lambda environ: "" if "REMOTE_USER" in environ else UNKNOWN_USER,
    anonymous=ANONYMOUS,
)


def request_view(environ: Environ, user: User = None, route: str | None = None, wire: Wire = WIRE) -> RequestView:
    """A request as WSGI has it."""
    return RequestView.on_demand(
        wire, environ, environ["REQUEST_METHOD"], environ.get("REMOTE_ADDR") or None, user, route
    )


class RateLimitMiddleware:
    """`application = RateLimitMiddleware(application, "100/minute")`. `policy` and the options are those of `WebGate`.

    `user` says who is authenticated, from the environ. A handler sees the decision in `environ["ratebound.passed"]`.
    """

    def __init__(
        self,
        app: Application,
        policy: AnyPolicy | None = None,
        *,
        gate: WebGate | None = None,
        user: Callable[[Environ], Any] = user_of,
        **options: Unpack[Options],
    ) -> None:
        if gate is not None and (policy is not None or options):
            raise TypeError("a gate has its policy and its options: give one or the other")
        if gate is None and policy is None:
            raise TypeError("expected a policy: limits like '100/minute', a Policy, or the path of a policy file")
        self.app = app
        self.gate = WebGate(policy, **options) if gate is None else gate
        self._place = f"{PASSED} {id(self)}"  # its own, where another one may stand behind it
        self.user = user if user is user_of else identified(user, "the environ")
        self._wire = WIRE if user is user_of else WIRE._replace(no_user=user_is_told)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        around = environ.get(PASSED)
        if self.gate.owns(around):
            return self.app(environ, start_response)  # asked already, by one around this one
        view = request_view(environ, self.user(environ), None, self._wire)
        door = self.gate.door()
        if door.reads_body:
            view.body = read_body(environ)
        answer = self.gate.through(door, view)
        if isinstance(around, Passed):
            around.tells = False  # the gate that is nearest to the application tells the client
        if isinstance(answer, Refused):
            return refuse(answer, environ, start_response)
        if answer.delay:
            self.gate.sleep(answer)
        environ[PASSED] = environ[self._place] = answer
        return telling(self.gate, self.app, environ, self._place, start_response)


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


def telling(
    gate: WebGate, app: Application, environ: Environ, place: str, start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """The application's response with our headers. What was decided is in the environ by then, under `place`."""
    rest: _Rest | None = None
    is_told = False

    def start(status: str, headers: Pairs, *failure: Any) -> Write:
        nonlocal rest, is_told
        answer = environ.get(place)
        if rest is None:
            if not isinstance(answer, Passed):
                is_told = True
                return start_response(status, _told(answer, status, headers), *failure)  # type: ignore[no-any-return]
            if not answer.settles:
                places = [place_of(name) for name, _ in headers]
                if LENGTH in places:  # nothing that is still to come has a say in what it costs
                    is_told = True
                    answer.leave(gate, status)
                    is_plain = OURS not in places and status[0] != "3"
                    told = [*headers, *answer.headers] if is_plain else _told(answer, status, headers)
                    return start_response(status, told, *failure)  # type: ignore[no-any-return]
            rest = _Rest(gate, environ, place, start_response)
        return rest.start(status, headers, *failure)

    body = app(environ, start)
    if is_told:
        return body
    if rest is None:
        rest = _Rest(gate, environ, place, start_response)  # it starts with the first part
    return rest.of(body, environ.get("wsgi.file_wrapper"))


class _Rest:
    """A response whose end is to be seen: what it costs may depend on it.

    Where that is so already when it starts, the start is held back until the whole of the body is known, if that is
    with its first part; else it is settled when the last part was handed over.
    """

    __slots__ = (
        "_answer",
        "_body",
        "_environ",
        "_gate",
        "_held",
        "_length",
        "_place",
        "_sent",
        "_start_response",
        "_status",
        "_write",
    )

    def __init__(self, gate: WebGate, environ: Environ, place: str, start_response: Callable[..., Any]) -> None:
        self._gate = gate
        self._environ = environ
        self._place = place
        self._answer: Passed | Refused | None = None
        self._start_response = start_response
        self._status = ""
        self._held: tuple[Pairs, tuple[Any, ...]] | None = None
        self._write: Write | None = None
        self._length: int | None = None
        self._sent = 0
        self._body: Iterable[bytes] = ()

    def of(self, body: Iterable[bytes], files: Any) -> Iterable[bytes]:
        self._body = body
        if isinstance(body, list | tuple) and self._status:
            self._sent += sum(map(len, body))
            self._settle()
            self._release()
            return body
        is_file = isinstance(files, type) and isinstance(body, files)
        return body if is_file and self._status and self._held is None else self

    def start(self, status: str, headers: Pairs, *failure: Any) -> Write:
        self._status = status
        self._length = content_length(headers)
        answer = self._answer = self._environ.get(self._place)
        if self._write is None and isinstance(answer, Passed) and answer.settles:
            answer.start_response(int(status[:3]), (name for name, _ in headers))
            self._held = headers, failure
        else:
            self._write = self._start_response(status, _told(answer, status, headers), *failure)
        return self._writing

    def _writing(self, part: bytes) -> None:
        """The old way to send a body."""
        self._release()
        assert self._write is not None
        self._sent += len(part)
        self._write(part)

    def _release(self) -> None:
        """Send the start, if it was held back."""
        if self._held is not None:
            (headers, failure), self._held = self._held, None
            told = _told(self._answer, self._status, headers)
            self._write = self._start_response(self._status, told, *failure)

    def _settle(self) -> None:
        passed = self._answer
        if isinstance(passed, Passed) and self._status:
            if passed.settles:
                is_head = self._environ["REQUEST_METHOD"] == "HEAD"  # its body is not sent, whatever is handed over
                self._gate.after(passed, int(self._status[:3]), 0 if is_head else self._sent)
            passed.end()

    def __iter__(self) -> Iterator[bytes]:
        for part in self._body:
            self._sent += len(part)
            if self._sent == self._length:
                self._settle()
            self._release()
            yield part
        self._settle()
        self._release()

    def close(self) -> None:
        """The server is done with the response: an end that was not reached was not settled."""
        close, self._body, self._environ = getattr(self._body, "close", None), (), {}
        if close is not None:
            close()


@lru_cache(maxsize=1024)
def place_of(name: str) -> int:
    """What a header of the application is to us: one of NOTED; the length of the body; or nothing."""
    lowered = name.lower()
    return OURS if lowered in NOTED else LENGTH if lowered == "content-length" else 0


def _told(answer: Passed | Refused | None, status: str, headers: Pairs) -> Pairs:
    """Return the headers of a response with ours."""
    return with_headers(headers, *changes(answer, int(status[:3]), headers))


def content_length(headers: Pairs) -> int | None:
    """What a response says of its body."""
    for name, value in headers:
        if len(name) == 14 and name.lower() == "content-length":
            return int(value) if value.isascii() and value.isdecimal() else None
    return None
