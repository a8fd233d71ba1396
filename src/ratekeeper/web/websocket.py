"""WebSocket over ASGI: connections are limited like requests, and the messages that come through them, too."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ratekeeper.policy import RequestView
from ratekeeper.web.answer import Refused
from ratekeeper.web.declared import Endpoint
from ratekeeper.web.gate import AsyncWebGate
from ratekeeper.web.sending import Message, Scope, Send, ours, started

Receive = Callable[[], Awaitable[Message]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY_VIOLATION = 1008


async def connect(
    app: App,
    gate: AsyncWebGate,
    view: RequestView,
    endpoint: Endpoint | None,
    messages: Endpoint | None,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Let a connection be opened, or refuse it before it is."""
    _ = view.path, view.headers  # read now: messages are asked for later, when the scope is the application's
    answer = await gate.before(view, endpoint)
    if isinstance(answer, Refused):
        await deny(answer, scope, receive, send)
        return
    await gate.sleep(answer)
    scope["state"] = {**scope.get("state", {}), "ratekeeper": answer}

    async def accepting(message: Message) -> None:
        if message["type"] in ("websocket.accept", "websocket.http.response.start"):
            message = started(message, answer.headers)
        await send(message)

    await app(scope, receive if messages is None else limited(gate, view, messages, receive, send), accepting)


async def deny(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    """With the whole response where the server can send one instead of the handshake; else the server says 403."""
    await receive()  # websocket.connect
    if "websocket.http.response" in scope.get("extensions", {}):
        headers = [*ours(refused.headers), (b"content-length", str(len(refused.body)).encode())]
        await send({"type": "websocket.http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": refused.body})
    else:
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "too many connections"})


def limited(gate: AsyncWebGate, view: RequestView, messages: Endpoint, receive: Receive, send: Send) -> Receive:
    """A `receive` that holds each message to the limits, and ends the connection at the first that is too many.

    A leaky bucket holds messages back instead. A cost that is a function sees the message as the body of the view.
    """
    closed = False

    async def limited_receive() -> MutableMapping[str, Any]:
        nonlocal closed
        if closed:
            return {"type": "websocket.disconnect", "code": POLICY_VIOLATION, "reason": "too many messages"}
        message = await receive()
        if message["type"] == "websocket.receive":
            view.body = message.get("bytes") or (message.get("text") or "").encode()
            answer = await gate.alone(view, messages)
            if isinstance(answer, Refused):
                closed = True
                reason = "too many messages"
                await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
                return {"type": "websocket.disconnect", "code": POLICY_VIOLATION, "reason": reason}
            await gate.sleep(answer)
        return message

    return limited_receive
