"""The load of a process, as its web adapter sees it: which requests find a place, and how long their answers take.

It stands around everything else: a request that finds no place costs no trip to the storage. Only requests are metered,
not WebSocket connections, which last.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ratebound.adaptive.in_flight import InFlight
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

        A request that the policy exempts is let in without a place: a health check must not fail because of load.
        """
        in_flight = self.in_flight
        if in_flight.enter():
            return MeteredRequest(in_flight)
        gate, request = self._gate, view()
        compiled = gate.current()
        if (gate.switch or compiled.policy.switch) != "on" or not switch.limiting or compiled.exempts(request):
            return MeteredRequest(None)
        verdict = Verdict(Grounds("shed", compiled.policy, "early"), None, False)
        listeners = gate._decider.listeners
        if listeners:
            tell(listeners, Judged(verdict, 0.0))
        return rejection_of(verdict, request, {})


class MeteredRequest:
    """A request that is in the process. `answered` and `leave` may be called again."""

    __slots__ = ("_begin", "_in_flight", "_is_answered")

    def __init__(self, in_flight: InFlight | None) -> None:
        self._in_flight = in_flight
        self._is_answered = False
        self._begin = time.monotonic()

    def answered(self) -> None:
        """Note that the answer begins."""
        if not self._is_answered and self._in_flight is not None:
            self._in_flight.note(time.monotonic() - self._begin)
        self._is_answered = True

    def leave(self) -> None:
        """Give the place back."""
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            in_flight.leave()


async def meter_asgi(request: MeteredRequest, app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an application as a metered request. It gives its place back with the last part of its response."""

    async def metered(message: Message) -> None:
        if message["type"] == "http.response.start":
            request.answered()
        await send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            request.leave()

    scope[METERED] = True
    try:
        await app(scope, receive, metered)
    finally:
        request.leave()


def meter_wsgi(
    request: MeteredRequest, app: Callable[..., Iterable[bytes]], environ: Any, start_response: Callable[..., Any]
) -> Iterable[bytes]:
    """Run an application as a metered request. It gives its place back when the server closes its response."""
    environ[METERED] = True
    try:
        body = app(environ, start_response)
    except BaseException:
        request.leave()
        raise
    request.answered()
    if isinstance(body, list | tuple):
        request.leave()
        return body
    return _MeteredBody(body, request)


class _MeteredBody:
    """A body that gives a place back when it is closed."""

    __slots__ = ("_body", "_request")

    def __init__(self, body: Iterable[bytes], request: MeteredRequest) -> None:
        self._body = body
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Close the body."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._request.leave()
