"""Responses over ASGI: our headers on their start, exactly once, and their cost at their end."""

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from ratebound.flow import run_async
from ratebound.http.header_plan import Pairs
from ratebound.web.asgi_types import Message, Send
from ratebound.web.passed import Passed
from ratebound.web.passed_fields import COMPLETE, PassedFields
from ratebound.web.rejected import Rejected
from ratebound.web.response_headers import EXPOSE, NOTED, header_changes, plain_fields
from ratebound.web.response_tracker import ResponseTracker
from ratebound.web.visit import Visit

Fields = list[tuple[bytes, bytes]]

START: Final = "http.response.start"
BODY: Final = "http.response.body"
EXPOSE_BYTES = EXPOSE.encode()
NOTED_BYTES = frozenset(name.encode() for name in NOTED)
# Messages that send a file, and the size of each.
FILES: dict[str, Callable[[Message], int]] = {
    "http.response.pathsend": lambda message: os.path.getsize(message["path"]),
    "http.response.zerocopysend": lambda message: message.get("count") or _rest_of_file(message),
}


def as_fields(pairs: Pairs) -> Fields:
    """Return headers as ASGI has them."""
    return [(field_name(name), value.encode("latin-1")) for name, value in pairs]


@lru_cache(maxsize=256)
def field_name(name: str) -> bytes:
    """Return the name of a header as ASGI has it."""
    return name.lower().encode("latin-1")


def with_our_headers(message: Message, answer: Passed | Rejected | None) -> Message:
    """Return the start of a response with our headers, which replace the application's own of the same names. Its list
    of exposed headers is kept beside ours."""
    headers = [*message.get("headers", ())]
    status = message.get("status", 0)  # the start of a WebSocket has none
    is_plain = not 300 <= status < 400
    for name, _ in headers:
        if name.lower() in NOTED_BYTES:
            is_plain = False
            break
    if is_plain:
        pairs = answer.plain_headers() if isinstance(answer, PassedFields) else None
        if pairs is None:
            pairs = plain_fields(answer, status)
        for name, value in pairs:  # no list comprehension: before Python 3.12 that is a call
            headers.append((field_name(name), value.encode("latin-1")))
        return {**message, "headers": headers}
    existing = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    pairs, dropped = header_changes(answer, status, existing)
    fields = as_fields(pairs)
    return {**message, "headers": [*_without(headers, fields, dropped), *fields]}


def _without(headers: Iterable[tuple[bytes, bytes]], fields: Fields, dropped: Iterable[str]) -> Fields:
    taken = {*(name for name, _ in fields), *(name.encode() for name in dropped)}
    return [
        field
        for field in headers
        if (name := field[0].lower()) not in taken or (name == EXPOSE_BYTES and field not in fields)
    ]


def _rest_of_file(message: Message) -> int:
    """Return the size of an open file from its position on."""
    descriptor = message["file"].fileno() if hasattr(message["file"], "fileno") else message["file"]
    begin = message.get("offset")
    return os.fstat(descriptor).st_size - (os.lseek(descriptor, 0, os.SEEK_CUR) if begin is None else begin)


def content_length(message: Message) -> int | None:
    """Return the Content-Length of a response, if it has one."""
    value = next((value for name, value in message.get("headers", ()) if name.lower() == b"content-length"), b"")
    return int(value) if value.isdigit() else None


class AsgiResponse:
    """Sends a response with the headers of its visit, and settles it when it is complete: the `send` of an application.

    It is no coroutine function, because it would only wait for another. `held` is a start that has to wait.
    """

    __slots__ = ("gate", "held", "send", "tracker")

    def __init__(self, gate: Any, visit: Visit, send: Send, is_head: bool = False) -> None:
        self.gate = gate
        self.tracker = ResponseTracker(visit, counts=not is_head)
        self.send = send
        self.held: Message | None = None

    def __call__(self, message: Message) -> Awaitable[None]:
        kind, tracker = message["type"], self.tracker
        visit = tracker.visit
        answer = visit.answer
        passed: PassedFields | None = answer if isinstance(answer, PassedFields) else None
        if kind == START:
            if visit.part is not None or (passed is not None and passed.may_settle):
                return send_start(self, message)
            tracker.status = message["status"]
            message = with_our_headers(message, answer)
        elif kind == BODY or kind in FILES:
            size = len(message.get("body", b"")) if kind == BODY else FILES[kind](message)
            is_last = tracker.add(size, is_last=not message.get("more_body", False))
            if self.held is not None or (is_last and passed is not None and passed.may_settle):
                return send_part(self, message, is_last)
            if is_last and passed is not None:
                passed.ended = passed.ended or COMPLETE
        return self.send(message)


async def send_start(response: AsgiResponse, message: Message) -> None:
    """Send the start of a response, or hold it back if the result decides about the cost."""
    tracker = response.tracker
    message = await note_start(tracker, response.gate, message, message["status"])
    if tracker.is_held:
        response.held = message
    else:
        await response.send(with_our_headers(message, tracker.visit.answer))


async def note_start(tracker: ResponseTracker, gate: Any, message: Message, status: int) -> Message:
    """Note the start of a response, and return it without the headers that no client gets."""
    headers = [(name, value) for name, value in message.get("headers", ())]
    message = {**message, "headers": headers}
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    await run_async(tracker.start(gate, status, pairs, content_length(message)))
    hidden = tracker.hidden
    if hidden:
        message["headers"] = [field for field in headers if field[0].lower().decode("latin-1") not in hidden]
    return message


async def send_part(response: AsgiResponse, message: Message, is_last: bool) -> None:
    """Send a part of the body, after a start that was held back. The response is settled before the last part, and its
    slots are released after it."""
    if is_last:
        await run_async(response.tracker.end(response.gate))
    start, response.held = response.held, None
    if start is not None:
        await response.send(with_our_headers(start, response.tracker.visit.answer))
    await response.send(message)
    if is_last and response.tracker.visit.holds:
        await leave(response.gate, response.tracker.visit)


async def break_off(response: AsgiResponse, raised: bool = False) -> None:
    """Settle a response that its application has left incomplete. `raised` means that it has raised an exception."""
    tracker = response.tracker
    passed = tracker.visit.passed
    if passed is not None and not passed.ended:
        is_begun = tracker.status > 0 and response.held is None
        await run_async(tracker.break_off(response.gate, raised=raised and not is_begun))


async def leave(gate: Any, visit: Visit) -> None:
    """Release the slots that a request still holds: its application has returned, or raised."""
    await run_async(visit.leave(gate))


async def send_nothing() -> None:
    """Stand in for a message that is not sent."""


# Some frameworks check before a call of `send` whether it is a coroutine function.
if sys.version_info >= (3, 12):
    inspect.markcoroutinefunction(AsgiResponse)
else:
    setattr(AsgiResponse, "_is_coroutine", asyncio.coroutines._is_coroutine)  # type: ignore[attr-defined]  # noqa: B010
