"""What goes back over ASGI: headers on the start of a response, exactly once; and what it has cost, at its end.

Nothing of a body is kept back. Only where the result decides about the cost, the start waits for the first part of the
body: if that is the whole of it, the headers can tell what is left after settling.
"""

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import lru_cache
from typing import Any

from ratebound.web.answer import EXPOSE, NOTED, Pairs, Passed, Refused, changes, fields_of
from ratebound.web.gate import AsyncWebGate

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]

START, BODY = "http.response.start", "http.response.body"
REFUSED = "refused"  # under which a record has a refusal that was raised in the midst of its request
EXPOSED = EXPOSE.encode()
NOTED_BYTES = frozenset(name.encode() for name in NOTED)
# How much of a body a message is that is a file, which the server sends.
FILES: dict[str, Callable[[Message], int]] = {
    "http.response.pathsend": lambda message: os.path.getsize(message["path"]),
    "http.response.zerocopysend": lambda message: message.get("count") or _left(message),
}


def ours(pairs: Pairs) -> Fields:
    """Pairs as ASGI has them."""
    return [(field_name(name), value.encode("latin-1")) for name, value in pairs]


@lru_cache(maxsize=256)
def field_name(name: str) -> bytes:
    return name.lower().encode("latin-1")


def started(message: Message, answer: Passed | Refused | None) -> Message:
    """Return the start of a response with our headers: they stand in for the application's own of the same names. Its
    list of exposed headers is kept beside ours."""
    headers = [*message.get("headers", ())]
    status = message.get("status", 0)  # the start of a WebSocket has none
    is_plain = not 300 <= status < 400
    for name, _ in headers:
        if name.lower() in NOTED_BYTES:
            is_plain = False
            break
    if is_plain:
        return {**message, "headers": [*headers, *ours(fields_of(answer, status))]}
    existing = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    pairs, dropped = changes(answer, status, existing)
    fields = ours(pairs)
    return {**message, "headers": [*_without(headers, fields, dropped), *fields]}


def _without(headers: Iterable[tuple[bytes, bytes]], fields: Fields, dropped: Iterable[str]) -> Fields:
    taken = {*(name for name, _ in fields), *(name.encode() for name in dropped)}
    return [
        field
        for field in headers
        if (name := field[0].lower()) not in taken or (name == EXPOSED and field not in fields)
    ]


def _left(message: Message) -> int:
    """Of an open file, from where it stands."""
    descriptor = message["file"].fileno() if hasattr(message["file"], "fileno") else message["file"]
    begin = message.get("offset")
    return os.fstat(descriptor).st_size - (os.lseek(descriptor, 0, os.SEEK_CUR) if begin is None else begin)


def content_length(message: Message) -> int | None:
    """What a response says of its body: some applications send the whole of it, and then that there is no more."""
    value = next((value for name, value in message.get("headers", ()) if name.lower() == b"content-length"), b"")
    return int(value) if value.isdigit() else None


class Telling:
    """Tells the client of the decision in a request's record, and settles it when the response is done. The record may
    be the request's state; what another gate leaves there is not ours. Its `send` is no coroutine where that would only
    wait for another."""

    __slots__ = ("_first", "_gate", "_held", "_is_head", "_length", "_record", "_send", "_sent", "_status")

    def __init__(self, gate: AsyncWebGate, record: MutableMapping[str, Any], send: Send, is_head: bool = False) -> None:
        self._gate = gate
        self._record = record
        self._first: Passed | None = record.get("ratebound")
        self._send = send
        self._is_head = is_head  # its body is not sent, whatever the application says
        self._held: Message | None = None
        self._length: int | None = None
        self._sent = self._status = 0

    def send(self, message: Message) -> Awaitable[None]:
        kind = message["type"]
        answer: Passed | Refused | None = self._record.get("ratebound")
        passed = answer if isinstance(answer, Passed) else None
        if self._first is not None and passed is not None and passed is not self._first and not self._gate.owns(passed):
            answer = passed = self._first
        if kind == START:
            self._status = message["status"]
            refused: Refused | None = self._record.get(REFUSED)
            if refused is not None and refused.status == self._status and passed is not None:
                return self._refuse(passed, refused, message)
            if passed is not None and passed.settles:
                self._held = {**message, "headers": [*message.get("headers", ())]}
                passed.start_response(self._status, (name.decode("latin-1") for name, _ in self._held["headers"]))
                self._length = content_length(self._held)
                return nothing()
            message = started(message, answer)
        elif kind == BODY or kind in FILES:
            if not self._is_head:
                self._sent += len(message.get("body", b"")) if kind == BODY else FILES[kind](message)
            if passed is not None and (not message.get("more_body", False) or self._sent == self._length):
                if passed.settles:
                    return self._settle(passed, message)
                passed.end()
            if self._held is not None:
                return self._release(answer, message)
        return self._send(message)

    async def _refuse(self, passed: Passed, refused: Refused, message: Message) -> None:
        """The refusal was not caught: the request costs nothing of what was asked before."""
        self._record["ratebound"] = refused
        passed.tells = False
        passed.end()
        await self._gate.give_back(passed)
        await self._send(started(message, refused))

    async def _settle(self, passed: Passed, message: Message) -> None:
        await self._gate.after(passed, self._status, self._sent)
        passed.end()
        await self._release(passed, message)

    async def _release(self, answer: Passed | Refused | None, message: Message) -> None:
        start, self._held = self._held, None
        if start is not None:
            await self._send(started(start, answer))
        await self._send(message)


async def nothing() -> None:
    """A message that is not sent yet."""


# Some ask whether a `send` is to be awaited before they call it.
if sys.version_info >= (3, 12):
    inspect.markcoroutinefunction(Telling.send)
else:
    Telling.send._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
