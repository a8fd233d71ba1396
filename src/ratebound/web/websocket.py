"""WebSocket over ASGI: connections are limited like requests, and so are the messages that come through them."""

import time
from typing import Any

from ratebound.flow import run_async
from ratebound.policy import RequestView
from ratebound.web.asgi_response import as_fields, leave, note_start, with_our_headers
from ratebound.web.asgi_types import STATE, App, Message, Receive, Scope, Send
from ratebound.web.gate import AsyncWebGate
from ratebound.web.passed import Passed, silence
from ratebound.web.rejected import Rejected
from ratebound.web.response_tracker import ResponseTracker
from ratebound.web.route_limit import Endpoint
from ratebound.web.visit import Visit

POLICY_VIOLATION = 1008
TOO_MANY = "too many messages"
STARTS = ("websocket.accept", "websocket.http.response.start")
ACCEPTED, DENIED, BROKEN = 101, 403, 500  # a server answers 403 for a close before the handshake, 500 for nothing


async def connect(
    app: App,
    gate: AsyncWebGate,
    view: RequestView,
    endpoint: Endpoint | None,
    messages: Endpoint | None,
    scope: Scope,
    receive: Receive,
    send: Send,
    visit: Visit,
) -> None:
    """Open a connection, or reject it before it is opened. Its cost is settled, and its slots are released, when it
    ends.

    The view reads a copy of the scope: messages are checked later, when the application has changed the scope.
    """
    answer = await run_async(visit.check(gate, gate.rules_for(endpoint), view))
    visit.measured_by = None  # a connection that lasts long is no sign of overload
    state: dict[str, Any] = scope.get("state") or {}
    silence(state.get(STATE))
    scope["state"] = {**state, STATE: answer}
    if isinstance(answer, Rejected):
        await receive()  # websocket.connect
        await deny(answer, scope, send)
        return
    connection = WebSocketConnection(gate, visit, view, messages, receive, send)
    try:
        await app(scope, connection.receive, connection.send)
    except BaseException as error:
        is_error = isinstance(error, Exception)
        if connection.is_over and is_error:
            await connection.settle()
        else:  # as for a request: a client that makes the handler crash stays charged
            await connection.break_off(raised=is_error)
        raise
    else:
        await connection.settle()
    finally:
        if visit.holds:
            await leave(gate, visit)


async def deny(rejected: Rejected, scope: Scope, send: Send) -> None:
    """Send the whole response where the server can send one instead of the handshake; else the server answers 403."""
    if "websocket.http.response" in scope.get("extensions", {}):
        headers = [*as_fields(rejected.headers), (b"content-length", str(len(rejected.body)).encode())]
        await send({"type": "websocket.http.response.start", "status": rejected.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": rejected.body})
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "too many connections"})


class WebSocketConnection:
    """A connection that was opened: our headers on its start, limits on its messages, its cost at its end.

    The first message above the limit ends it; a leaky bucket holds messages back instead. A cost that is a function
    sees the message as the body of the view.
    """

    def __init__(
        self,
        gate: AsyncWebGate,
        visit: Visit,
        view: RequestView,
        messages: Endpoint | None,
        receive: Receive,
        send: Send,
    ) -> None:
        self._gate = gate
        self._tracker = ResponseTracker(visit)
        self._view = view
        self._messages = messages
        self._receive = receive
        self._send = send
        self._held: Message | None = None  # a message that the application has not got yet
        self._turn: tuple[Passed, float] | None = None  # the decision that it may pass, and when
        self._is_closed = False  # by us
        self.is_over = False  # and the application was told

    async def receive(self) -> Message:
        """Return the next message for the application."""
        if self._is_closed:
            return self._end()
        message = await self._receive() if self._held is None else self._held
        if message["type"] == "websocket.disconnect":
            self.is_over = True
        elif self._messages is not None and message["type"] == "websocket.receive":
            self._held = message  # the task that waits for it may be cancelled: then the next one goes on from here
            if not await self._admit(message, self._messages):
                return self._end()
            self._held = self._turn = None
        return message

    async def _admit(self, message: Message, messages: Endpoint) -> bool:
        """Check a message, and return False if it ends the connection. A call that goes on with a message waits for the
        rest of its time. A check that was cancelled is repeated, as it is unknown whether it was charged."""
        if self._turn is None:
            self._view.body = message.get("bytes") or (message.get("text") or "").encode()
            answer = await self._gate.alone(self._view, messages)
            if isinstance(answer, Rejected):
                self._is_closed = True
                await self._send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": TOO_MANY})
                return False
            self._turn = answer, time.monotonic() + answer.delay
        else:
            answer, begin = self._turn
            answer.delay = max(begin - time.monotonic(), 0.0)
        await self._gate.sleep(answer)
        return True

    def _end(self) -> Message:
        self.is_over = True
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION, "reason": TOO_MANY}

    async def send(self, message: Message) -> None:
        """Send a message of the application."""
        if self._is_closed:
            return  # the application may not have heard of it yet, and no server takes anything after a close
        kind, tracker = message["type"], self._tracker
        if kind == "websocket.send":
            tracker.add(len(message.get("bytes") or (message.get("text") or "").encode()))
        elif kind == "websocket.http.response.body":
            tracker.add(len(message.get("body", b"")))
        elif kind in STARTS:
            message = await note_start(tracker, self._gate, message, message.get("status", ACCEPTED))
            message = with_our_headers(message, tracker.visit.answer)
        elif kind == "websocket.close":
            tracker.status = tracker.status or DENIED
        await self._send(message)

    async def break_off(self, *, raised: bool) -> None:
        """Settle a connection whose application has raised, or was cancelled, before it was closed. One that was not
        opened yet is answered with a 500 if its application has `raised` an error."""
        is_begun = self._tracker.status > 0
        await run_async(self._tracker.break_off(self._gate, raised=raised and not is_begun))

    async def settle(self) -> None:
        """Settle a connection that has ended. It succeeded if it was opened, whatever was sent through it. One that was
        rejected during its handshake costs nothing."""
        tracker = self._tracker
        visit, tracker.status = tracker.visit, tracker.status or BROKEN
        if visit.part is not None and tracker.status == DENIED:
            await run_async(visit.reject(self._gate, visit.part))
        await run_async(tracker.end(self._gate))
