"""The load of a process, as its web adapter sees it: which requests find a place, and how long their answers take.

It stands around everything else: a request that finds no place costs no trip to the storage. A request has its place
until its response starts, and not while its client sends the body: a client that is slow to read or to write, or a
stream that lasts, would hold the place of somebody else. WebSocket connections have none.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ratebound.adaptive.in_flight import InFlight
from ratebound.events import RequestShed
from ratebound.policy import Judged, RequestView, Verdict
from ratebound.policy.runtime.verdict import Grounds
from ratebound.switch import switch
from ratebound.telling import tell
from ratebound.web.asgi_types import App, Message, Receive, Scope, Send
from ratebound.web.rejected import Rejected, rejection_of

METERED = "ratebound.metered"  # of a scope or an environ: one meter is around it already


class LoadMeter:
    """The meter of one gate."""

    def __init__(self, gate: Any, in_flight: InFlight) -> None:
        self._gate = gate
        self.in_flight = in_flight

    def enter(self, view: Callable[[], RequestView]) -> "MeteredRequest | Rejected":
        """Return the request that has found a place, or its rejection.

        A request that the policy exempts is let in without a place: a health check must not fail because of load, and
        what is exempt because it lasts must not take the places of others.
        """
        gate, in_flight = self._gate, self.in_flight
        compiled = gate.current()
        if compiled.policy.exempt and compiled.exempts(view()):
            return MeteredRequest(None)
        if in_flight.enter():
            return MeteredRequest(in_flight)
        if (gate.switch or compiled.policy.switch) != "on" or not switch.limiting:
            return MeteredRequest(None)
        verdict = Verdict(Grounds("shed", compiled.policy, "early"), None, False)
        listeners = gate._decider.listeners
        if listeners:
            tell(listeners, RequestShed(in_flight.limit))
            tell(listeners, Judged(verdict, 0.0))
        return rejection_of(verdict, view(), {})


class MeteredRequest:
    """A request that is in the process. Its place is given back once, however often it is said that it ends."""

    __slots__ = ("_begin", "_has_place", "_in_flight", "_paused_at")

    def __init__(self, in_flight: InFlight | None) -> None:
        self._in_flight = in_flight
        self._has_place = in_flight is not None
        self._begin = time.monotonic()
        self._paused_at = 0.0

    def answered(self) -> None:
        """Note that the response starts, or that there is none because of an error, and give the place back."""
        in_flight = self._in_flight
        if in_flight is not None:
            in_flight.note(time.monotonic() - self._begin)
            self.leave()

    def leave(self) -> None:
        """Give the place back."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None and self._has_place:
            in_flight.leave()

    def pause(self) -> None:
        """Give the place back for a while: the request waits for its client, who sends the body."""
        if self._in_flight is not None and self._has_place:
            self._has_place = False
            self._paused_at = time.monotonic()
            self._in_flight.leave()

    def resume(self) -> None:
        """Take a place again, even if there is none. The pause does not count as time that the request took."""
        if self._in_flight is not None and not self._has_place:
            self._has_place = True
            self._begin += time.monotonic() - self._paused_at
            self._in_flight.enter_again()


async def meter_asgi(request: MeteredRequest, app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an application as a metered request. It gives its place back when its response starts."""
    has_body = False  # it was received whole

    async def receiving() -> Message:
        nonlocal has_body
        if has_body:  # the application waits for a disconnect, and may work meanwhile
            return await receive()
        request.pause()
        try:
            message = await receive()
        finally:
            request.resume()
        has_body = not message.get("more_body", False)
        return message

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            request.answered()
        await send(message)

    scope[METERED] = True
    try:
        await app(scope, receiving, sending)
    except Exception:
        request.answered()
        raise
    finally:
        request.leave()


def meter_wsgi(
    request: MeteredRequest, app: Callable[..., Iterable[bytes]], environ: Any, start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """Run an application as a metered request. It gives its place back when it returns a response that has started, or
    with the first part of one that has not."""
    is_started = False

    def starting(*start: Any) -> Any:
        nonlocal is_started
        is_started = True
        return start_response(*start)

    environ[METERED] = True
    try:
        body = app(environ, starting)
    except Exception:
        request.answered()
        raise
    except BaseException:
        request.leave()
        raise
    if is_started:
        request.answered()
        return body  # as it is: the server may know a faster way to send it
    return _UnstartedBody(body, request)


class _UnstartedBody:
    """A body that gives a place back with its first part, or at its end if it has none.

    A generator is such a body: it has not begun to work when it is returned.
    """

    __slots__ = ("_body", "_request")

    def __init__(self, body: Iterable[bytes], request: MeteredRequest) -> None:
        self._body = body
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        parts = iter(self._body)
        try:
            for part in parts:
                self._request.answered()
                yield part
                yield from parts
        except Exception:
            self._request.answered()
            raise
        self._request.answered()

    def close(self) -> None:
        """Close the body."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._request.leave()

    def __del__(self) -> None:
        self._request.leave()  # not every middleware closes what it was given
