"""WebSocket over ASGI: connections are limited like requests, and the messages that come through them, too."""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ratebound.policy import RequestView
from ratebound.web.answer import Passed, Refused
from ratebound.web.declared import Endpoint
from ratebound.web.gate import AsyncWebGate
from ratebound.web.sending import REFUSED, Message, Scope, Send, ours, started

Receive = Callable[[], Awaitable[Message]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

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
    record: MutableMapping[str, Any] | None = None,
) -> None:
    """Let a connection be opened, or refuse it before it is. What it has cost is settled when it ends. The record gets
    the answer, and may get a refusal while the application runs. The view reads a copy of the scope: messages are asked
    for later, when the application has changed the scope."""
    answer = await gate.before(view, endpoint)
    state: dict[str, Any] = scope.get("state") or {}
    around = state.get("ratebound")
    if isinstance(around, Passed):
        around.tells = False  # the gate that is nearest to the application tells the client
    scope["state"] = {**state, "ratebound": answer}
    record = {} if record is None else record
    record["ratebound"] = answer
    if isinstance(answer, Refused):
        await receive()  # websocket.connect
        await deny(answer, scope, send)
        return
    await gate.sleep(answer)
    connection = Connection(gate, answer, view, messages, receive, send, record)
    try:
        await app(scope, connection.receive, connection.send)
    except Exception:
        if not connection.is_over:
            raise  # as for a request: whoever makes the handler crash has paid
        await connection.settle()
        raise
    await connection.settle()


async def deny(refused: Refused, scope: Scope, send: Send) -> None:
    """With the whole response where the server can send one instead of the handshake; else the server says 403."""
    if "websocket.http.response" in scope.get("extensions", {}):
        headers = [*ours(refused.headers), (b"content-length", str(len(refused.body)).encode())]
        await send({"type": "websocket.http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": refused.body})
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "too many connections"})


class Connection:
    """One that was let through: our headers on its start, its messages held to their limits, what it has cost.

    The first message that is too many ends it; a leaky bucket holds messages back instead. A cost that is a function
    sees the message as the body of the view.
    """

    __slots__ = (
        "_answer",
        "_gate",
        "_held",
        "_is_closed",
        "_messages",
        "_receive",
        "_record",
        "_send",
        "_sent",
        "_status",
        "_turn",
        "_view",
        "is_over",
    )

    def __init__(
        self,
        gate: AsyncWebGate,
        answer: Passed,
        view: RequestView,
        messages: Endpoint | None,
        receive: Receive,
        send: Send,
        record: MutableMapping[str, Any],
    ) -> None:
        self._gate = gate
        self._answer = answer
        self._view = view
        self._messages = messages
        self._receive = receive
        self._send = send
        self._record = record
        self._held: Message | None = None  # a message that the application has not got yet
        self._turn: tuple[Passed, float] | None = None  # that it may pass, and when
        self._status = self._sent = 0
        self._is_closed = False  # by us
        self.is_over = False  # and the application was told

    async def receive(self) -> Message:
        if self._is_closed:
            return self._end()
        message = await self._receive() if self._held is None else self._held
        if message["type"] == "websocket.disconnect":
            self.is_over = True
        elif self._messages is not None and message["type"] == "websocket.receive":
            self._held = message  # whoever waits for it may be cancelled: then the next one goes on from here
            if not await self._is_let_in(message, self._messages):
                return self._end()
            self._held = self._turn = None
        return message

    async def _is_let_in(self, message: Message, messages: Endpoint) -> bool:
        """Whoever goes on with a message waits for the rest of its time. One whose question was cut off is asked for
        again, for nobody knows whether it was charged."""
        if self._turn is None:
            self._view.body = message.get("bytes") or (message.get("text") or "").encode()
            answer = await self._gate.alone(self._view, messages)
            if isinstance(answer, Refused):
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
        if self._is_closed:
            return  # the application may not have heard of it yet, and no server takes anything after a close
        kind = message["type"]
        if kind == "websocket.send":
            self._sent += len(message.get("bytes") or (message.get("text") or "").encode())
        elif kind == "websocket.http.response.body":
            self._sent += len(message.get("body", b""))
        elif kind in STARTS:
            self._status = message.get("status", ACCEPTED)
            refused: Refused | None = self._record.get(REFUSED)
            is_refused = refused is not None and refused.status == self._status
            message = started(message, refused if is_refused else self._answer)
        elif kind == "websocket.close":
            self._status = self._status or DENIED
        await self._send(message)

    async def settle(self) -> None:
        """The connection has ended. It was a success if it was one at all, whatever was said in it. One that was
        refused in the midst of its handshake costs nothing of what was asked before."""
        refused: Refused | None = self._record.get(REFUSED)
        if refused is not None and self._status in (DENIED, refused.status):
            await self._gate.give_back(self._answer)
        elif self._answer.settles:
            await self._gate.after(self._answer, self._status or BROKEN, self._sent)
        self._answer.end()
