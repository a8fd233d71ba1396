"""What goes back over ASGI: headers on the start of a response, exactly once; and what it has cost, at its end.

Nothing of a body is kept back. Only where the result decides about the cost, the start waits for the first part of the
body: if that is the whole of it, the headers can tell what is left after settling.
"""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any

from ratekeeper.web.answer import EXPOSE, Pairs, Passed, Refused
from ratekeeper.web.gate import AsyncWebGate

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]

START = "http.response.start"
BODY = "http.response.body"
EXPOSED = EXPOSE.encode()
PATH = "http.response.pathsend"  # a file, sent by the server: the whole body at once


def ours(pairs: Pairs) -> Fields:
    """Pairs as ASGI has them."""
    return [(field_name(name), value.encode("latin-1")) for name, value in pairs]


@lru_cache(maxsize=256)
def field_name(name: str) -> bytes:
    return name.lower().encode("latin-1")


def started(message: Message, pairs: Pairs) -> Message:
    """The start of a response with our headers: they stand in for the application's own of the same names."""
    fields = ours(pairs)
    taken = {name for name, _ in fields}
    kept = [field for field in message.get("headers", ()) if field[0].lower() not in taken or _is_other(field, fields)]
    return {**message, "headers": kept + fields}


def _is_other(field: tuple[bytes, bytes], fields: Fields) -> bool:
    """A list of exposed headers that is not ours is kept beside ours."""
    return field[0].lower() == EXPOSED and field not in fields


def content_length(message: Message) -> int | None:
    """What a response says of its body: some applications send the whole of it, and then that there is no more."""
    value = next((value for name, value in message.get("headers", ()) if name.lower() == b"content-length"), b"")
    return int(value) if value.isdigit() else None


def telling(gate: AsyncWebGate, scope: Scope, send: Send) -> Send:
    """A `send` that tells the client of the decision in `scope["state"]`, and settles it when the response is done."""
    state = scope["state"]  # this very one: those behind may go on with a copy of the scope
    held: Message | None = None
    status = sent = 0
    length: int | None = None

    async def telling_send(message: Message) -> None:
        nonlocal held, length, sent, status
        kind = message["type"]
        passed = state.get("ratekeeper")
        if kind == START:
            status = message["status"]
            if isinstance(passed, Passed) and passed.settles:
                held, length = message, content_length(message)
                return
            message = started(message, fields_of(state))
        elif kind in (BODY, PATH):
            sent += len(message.get("body", b"")) if kind == BODY else os.path.getsize(message["path"])
            if isinstance(passed, Passed) and (not message.get("more_body", False) or sent == length):
                if passed.settles:
                    await gate.after(passed, status, sent)
                passed.end()
            if held is not None:
                start, held = held, None
                await send(started(start, fields_of(state)))
        await send(message)

    return telling_send


def fields_of(state: MutableMapping[str, Any]) -> Pairs:
    """The headers for a response, whatever was decided for its request. Its content is not ours to describe."""
    answer: Passed | Refused | None = state.get("ratekeeper")
    if isinstance(answer, Refused):
        return [pair for pair in answer.headers if pair[0] != "Content-Type"]
    return [] if answer is None else answer.headers
