"""Pure WSGI: any framework, no import of one."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, Unpack
from urllib.parse import quote

from ratebound.http.headers import Pairs
from ratebound.policy import RequestView
from ratebound.policy.match.reading import SAFE, Paths, configured_prefixes, is_configured, read_paths
from ratebound.policy.match.request import ANONYMOUS, Wire
from ratebound.web.body import wsgi_body
from ratebound.web.gate import WebGate
from ratebound.web.options import AnyPolicy, Options, checked_gate
from ratebound.web.passed import Passed, silence
from ratebound.web.rejected import Rejected
from ratebound.web.response_headers import NOTED, header_changes, with_headers
from ratebound.web.response_tracker import ResponseTracker
from ratebound.web.user import User, found_user_id, identified, user_is_given
from ratebound.web.visit import Visit, run

Environ = dict[str, Any]
Application = Callable[..., Iterable[bytes]]
Write = Callable[[bytes], Any]

PASSED = "ratebound.passed"  # the key of the decision in an environ
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
    """Return a request as rules see it."""
    return RequestView.on_demand(
        wire, environ, environ["REQUEST_METHOD"], environ.get("REMOTE_ADDR") or None, user, route
    )


class RateLimitMiddleware:
    """Limits for a WSGI application: `application = RateLimitMiddleware(application, "100/minute")`. `policy` and the
    options are those of `WebGate`.

    `user` is a function of the environ that returns who is authenticated. A handler sees the decision in
    `environ["ratebound.passed"]`.
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
        self.app = app
        self.gate = checked_gate(gate, policy, options) or WebGate(policy, **options)
        self.user = user if user is user_of else identified(user, "the environ")
        self._wire = WIRE if user is user_of else WIRE._replace(no_user=user_is_given)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        gate, around = self.gate, environ.get(PASSED)
        if around is not None and gate.owns(around):
            return self.app(environ, start_response)  # checked already, by one around this one
        view = request_view(environ, self.user(environ), None, self._wire)
        rules, visit = gate.rules_for(), Visit()
        if rules.is_plain:
            answer = visit.answer = rules.answer(view, [gate.decide_by(rules.compiled, view, rules.last_stage)])
            if isinstance(answer, Passed) and answer.delay:
                gate.sleep(answer)
        else:
            answer = run(visit.check(gate, rules, view, read_body=partial(wsgi_body, environ)))
        silence(around)
        if isinstance(answer, Rejected):
            return reject(answer, environ, start_response)
        environ[PASSED] = answer
        return track_response(gate, self.app, visit, environ, start_response)


def reject(rejected: Rejected, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer without the application."""
    reason = REASONS.get(rejected.status, "Rejected")
    headers: Pairs = [*rejected.headers, ("Content-Length", str(len(rejected.body)))]
    start_response(f"{rejected.status} {reason}", headers)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [rejected.body]


def track_response(
    gate: WebGate, app: Application, visit: Visit, environ: Environ, start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """Call the application, and return its response with the headers of the visit."""
    response: WsgiResponse | None = None
    is_done = False

    def start(status: str, headers: Pairs, *failure: Any) -> Write:
        nonlocal response, is_done
        answer = visit.answer
        if response is None and visit.part is None:
            if not isinstance(answer, Passed):
                is_done = True
                return start_response(status, _changed(answer, status, headers), *failure)  # type: ignore[no-any-return]
            if not answer.may_settle or not answer.settles:
                kinds = [kind_of(name) for name, _ in headers]
                if LENGTH in kinds:  # nothing that is still to come decides about the cost
                    is_done = True
                    answer.settle_at_once(gate, status)
                    is_plain = OURS not in kinds and status[0] != "3"
                    told = [*headers, *answer.headers] if is_plain else _changed(answer, status, headers)
                    return start_response(status, told, *failure)  # type: ignore[no-any-return]
        if response is None:
            response = WsgiResponse(gate, visit, environ, start_response)
        return response.start(status, headers, *failure)

    body = app(environ, start)
    if is_done:
        return body
    if response is None:
        response = WsgiResponse(gate, visit, environ, start_response)  # it starts with the first part
    return response.of(body, environ.get("wsgi.file_wrapper"))


class WsgiResponse:
    """A response whose end is awaited, because its cost may depend on it. Its start is held back until the first part
    of the body, if the result decides about the cost."""

    __slots__ = ("_body", "_gate", "_headers", "_start_response", "_status", "_tracker", "_write")

    def __init__(self, gate: WebGate, visit: Visit, environ: Environ, start_response: Callable[..., Any]) -> None:
        self._gate = gate
        self._tracker = ResponseTracker(visit, counts=environ["REQUEST_METHOD"] != "HEAD")
        self._start_response = start_response
        self._status = ""
        self._headers: tuple[Pairs, tuple[Any, ...]] | None = None  # of a start that is held back
        self._write: Write | None = None
        self._body: Iterable[bytes] = ()

    def of(self, body: Iterable[bytes], files: Any) -> Iterable[bytes]:
        """Return a body that settles this response at its end. A file is left to the server."""
        self._body = body
        if isinstance(body, list | tuple) and self._status:
            self._tracker.add(sum(map(len, body)))
            self._settle()
            self._release()
            return body
        is_file = isinstance(files, type) and isinstance(body, files)
        return body if is_file and self._status and self._headers is None else self

    def start(self, status: str, headers: Pairs, *failure: Any) -> Write:
        """Start the response, or hold it back."""
        self._status, tracker = status, self._tracker
        run(tracker.start(self._gate, int(status[:3]), (name for name, _ in headers), content_length(headers)))
        self._headers = headers, failure
        if self._write is not None or not tracker.is_held:
            self._release()
        return self._write_part

    def _write_part(self, part: bytes) -> None:
        """Send a part of the body in the old way."""
        self._release()
        assert self._write is not None
        self._tracker.add(len(part))
        self._write(part)

    def _release(self) -> None:
        """Send the start, if it was held back."""
        if self._headers is not None:
            (headers, failure), self._headers = self._headers, None
            told = _changed(self._tracker.visit.answer, self._status, headers)
            self._write = self._start_response(self._status, told, *failure)

    def _settle(self) -> None:
        if self._status:
            run(self._tracker.end(self._gate))

    def __iter__(self) -> Iterator[bytes]:
        for part in self._body:
            if self._tracker.add(len(part)):
                self._settle()
            self._release()
            yield part
        self._settle()
        self._release()

    def close(self) -> None:
        """Close the body: the server is done with it. An end that was not reached was not settled."""
        close, self._body = getattr(self._body, "close", None), ()
        if close is not None:
            close()


@lru_cache(maxsize=1024)
def kind_of(name: str) -> int:
    """Return OURS for a header of NOTED, LENGTH for the length of the body, and 0 for all others."""
    lowered = name.lower()
    return OURS if lowered in NOTED else LENGTH if lowered == "content-length" else 0


def _changed(answer: Passed | Rejected | None, status: str, headers: Pairs) -> Pairs:
    """Return the headers of a response with ours."""
    return with_headers(headers, *header_changes(answer, int(status[:3]), headers))


def content_length(headers: Pairs) -> int | None:
    """Return the Content-Length of a response, if it has one."""
    for name, value in headers:
        if len(name) == 14 and name.lower() == "content-length":
            return int(value) if value.isascii() and value.isdecimal() else None
    return None
