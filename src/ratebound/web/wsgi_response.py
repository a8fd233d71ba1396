"""Responses over WSGI: our headers on their start, exactly once, and their cost at their end."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from ratebound.flow import run
from ratebound.http.header_plan import Pairs
from ratebound.web.passed import Passed
from ratebound.web.passed_fields import PassedFields
from ratebound.web.rejected import Rejected
from ratebound.web.response_headers import NOTED, header_changes, with_headers
from ratebound.web.response_tracker import ResponseTracker
from ratebound.web.visit import Visit

Environ = dict[str, Any]
Application = Callable[..., Iterable[bytes]]
Write = Callable[[bytes], Any]

OURS: Final = 1
LENGTH: Final = 2


def track_response(gate: Any, app: Application, visit: Visit, environ: Any, start_response: Any) -> Iterable[bytes]:
    """Call the application, and return its response with the headers of the visit."""
    start = StartResponse(gate, visit, environ, start_response)
    try:
        body = app(environ, start)
        return body if start.is_done else start.response().of(body, environ.get("wsgi.file_wrapper"))
    except BaseException as error:
        start.response().break_off(raised=isinstance(error, Exception))
        raise


class StartResponse:
    """The `start_response` of an application. `is_done` is True once nothing of its response is waited for."""

    __slots__ = ("_environ", "_gate", "_response", "_start_response", "_visit", "is_done")

    def __init__(self, gate: Any, visit: Visit, environ: Any, start_response: Any) -> None:
        self._gate = gate
        self._visit = visit
        self._environ = environ
        self._start_response = start_response
        self._response: WsgiResponse | None = None
        self.is_done = False

    def __call__(self, status: str, headers: Any, *failure: Any) -> Any:
        visit = self._visit
        answer = visit.answer
        if self._response is None and visit.part is None:
            if not isinstance(answer, PassedFields):
                self.is_done = True
                return self._start_response(status, _changed(answer, status, headers), *failure)
            is_tracked = visit.measured_by is not None or bool(answer.terms.cost_headers)
            if not answer.may_settle or not (answer.settles or answer.slots or is_tracked):
                is_plain, has_length = status[0] != "3", False
                for name, _ in headers:
                    kind = kind_of(name)
                    if kind == LENGTH:
                        has_length = True
                    elif kind == OURS:
                        is_plain = False
                if has_length:  # nothing that is still to come decides about the cost
                    self.is_done = True
                    passed: PassedFields = answer
                    passed.settle_at_once(self._gate, status)
                    if not is_plain:
                        return self._start_response(status, _changed(answer, status, headers), *failure)
                    ours = passed.plain_headers()
                    if ours is None:
                        ours = answer.headers
                    return self._start_response(status, [*headers, *ours], *failure)
        return self.response().start(status, headers, *failure)

    def response(self) -> "WsgiResponse":
        """Return the response whose end is awaited. It starts with the first part, if it has not started."""
        if self._response is None:
            self._response = WsgiResponse(self._gate, self._visit, self._environ, self._start_response)
        return self._response


class WsgiResponse:
    """A response whose end is awaited, because its cost may depend on it. Its start is held back until the first part
    of the body, if the result decides about the cost."""

    __slots__ = ("_body", "_gate", "_headers", "_start_response", "_status", "_tracker", "_write")

    def __init__(self, gate: Any, visit: Visit, environ: Any, start_response: Callable[..., Any]) -> None:
        self._gate = gate
        self._tracker = ResponseTracker(visit, counts=environ["REQUEST_METHOD"] != "HEAD")
        self._start_response = start_response
        self._status = ""
        self._headers: tuple[Pairs, tuple[Any, ...]] | None = None  # of a start that is held back
        self._write: Write | None = None
        self._body: Iterable[bytes] = ()

    def of(self, body: Iterable[bytes], files: Any) -> Iterable[bytes]:
        """Return a body that settles this response at its end. A file is left to the server, unless its end matters and
        cannot be seen."""
        self._body = body
        if isinstance(body, list | tuple) and self._status:
            self._tracker.add(sum(map(len, body)))
            self._settle()
            self._release()
            self._leave()
            return body
        is_file = isinstance(files, type) and isinstance(body, files)
        return body if is_file and self._status and self._headers is None and self._leaves_at_close(body) else self

    def _leaves_at_close(self, file: Any) -> bool:
        """Release the slots when the server closes the file. Return False if that is not possible."""
        visit = self._tracker.visit
        if not visit.holds:
            return True
        try:
            file.close = _ClosedFile(getattr(file, "close", None), visit, self._gate)
        except AttributeError:
            return False
        return True

    def start(self, status: str, headers: Pairs, *failure: Any) -> Write:
        """Start the response, or hold it back."""
        self._status, tracker = status, self._tracker
        run(tracker.start(self._gate, int(status[:3]), headers, content_length(headers)))
        hidden = tracker.hidden
        if hidden:
            headers = [pair for pair in headers if pair[0].lower() not in hidden]
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

    def _leave(self) -> None:
        visit = self._tracker.visit
        if visit.holds:
            run(visit.leave(self._gate))

    def __iter__(self) -> Iterator[bytes]:
        try:
            for part in self._body:
                if self._tracker.add(len(part)):
                    self._settle()
                self._release()
                yield part
        except Exception:
            self.break_off(raised=True)
            raise
        self._settle()
        self._release()
        self._leave()

    def break_off(self, *, raised: bool = False) -> None:
        """Settle a response that will not be complete, and release the slots. `raised` means that the application has
        raised an exception: if nothing was sent before, the server answers with a 500."""
        is_begun = bool(self._status) and self._headers is None
        try:
            run(self._tracker.break_off(self._gate, raised=raised and not is_begun))
        finally:
            self._leave()

    def close(self) -> None:
        """Close the body: the server is done with it. If its end was not reached, it has broken off."""
        close, self._body = getattr(self._body, "close", None), ()
        try:
            if close is not None:
                close()
        finally:
            self.break_off()


class _ClosedFile:
    """The `close` of a file that the server sends by itself: it also releases the slots of the request."""

    __slots__ = ("_close", "_gate", "_visit")

    def __init__(self, close: Callable[[], Any] | None, visit: Visit, gate: Any) -> None:
        self._close = close
        self._visit = visit
        self._gate = gate

    def __call__(self) -> None:
        try:
            if self._close is not None:
                self._close()
        finally:
            run(self._visit.leave(self._gate))


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
