"""Bodies of requests, read once for rules and left whole for the application, in every framework.

A rule sees at most MAX_BODY + 1 bytes. A body that cannot be read any more counts as one that is too large: it exceeds
every limit that depends on it.
"""

import asyncio
import io
from typing import Any

from ratebound.policy.cost import MAX_BODY
from ratebound.web.asgi_types import Message, Receive

UNREADABLE = bytes(MAX_BODY + 1)


class KeptBody:
    """The body of an ASGI request, kept as it is received, as far as a rule may look at it; read ahead on demand.

    Only one reader at a time waits for the server: one that waits for the end of the connection would otherwise take
    the body from one that waits for the body, which would then wait for ever.
    """

    __slots__ = ("_ahead", "_body", "_is_complete", "_lock", "_receive")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: list[Message] = []
        self._body = bytearray()
        self._is_complete = False
        self._lock = asyncio.Lock()  # does not suspend a task that finds it free, which may only want to look

    async def receive(self) -> Message:
        """Return the next message for the application, beginning with those that were read ahead."""
        if self._ahead:
            return self._ahead.pop(0)
        async with self._lock:
            return self._ahead.pop(0) if self._ahead else await self._next()

    async def read(self) -> bytes:
        """Return the whole body, or more of it than a rule may look at."""
        while not self._has_enough():
            async with self._lock:
                if not self._has_enough():
                    self._ahead.append(await self._next())
        return bytes(self._body)

    def _has_enough(self) -> bool:
        return self._is_complete or len(self._body) > MAX_BODY

    async def _next(self) -> Message:
        message = await self._receive()
        if len(self._body) <= MAX_BODY:
            self._body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_complete = True
        return message


async def starlette_body(request: Any) -> bytes:
    """Return the body of Starlette's own request, in an application in which no limits are installed."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY:
        return UNREADABLE
    try:
        return bytes(await request.body())
    except RuntimeError:  # its form was read, and is not kept
        return UNREADABLE


def wsgi_body(environ: dict[str, Any]) -> bytes:
    """Return the body of a WSGI request. The application can read it again.

    Frameworks differ in whether a length that is stated counts if the server ends the body by itself, and in which
    numbers they read. So a body that is longer than stated, or whose length is no plain number, is unreadable.
    """
    stated = environ.get("CONTENT_LENGTH") or ""
    if stated and not (stated.isascii() and stated.isdecimal()):
        return UNREADABLE
    is_terminated = environ.get("wsgi.input_terminated")
    if not stated and not is_terminated:
        return b""  # there is none, or its end cannot be known
    length = None if is_terminated else int(stated)
    stream = environ["wsgi.input"]
    body: bytes = stream.read(MAX_BODY + 1 if length is None else min(length, MAX_BODY + 1))
    rest = None if length is None else length - len(body)
    environ["wsgi.input"] = io.BufferedReader(_ReplayedStream(body, stream, rest))
    return UNREADABLE if stated and len(body) > int(stated) else body


class _ReplayedStream:
    """A stream that begins with the bytes that were read of it, for a BufferedReader. `left` is the length of the rest,
    as not every server's stream ends by itself."""

    closed = False

    def __init__(self, read: bytes, rest: Any, left: int | None) -> None:
        self._read = memoryview(read)
        self._rest = rest
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part: Any = self._read[: len(buffer)]
        if part:
            self._read = self._read[len(part) :]
        elif self._left != 0:
            part = self._rest.read(len(buffer) if self._left is None else min(len(buffer), self._left))
            self._left = self._left if self._left is None else self._left - len(part)
        buffer[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        parts = bytearray()
        buffer = bytearray(65536)
        while size := self.readinto(buffer):
            parts += buffer[:size]
        return bytes(parts)

    def close(self) -> None:
        """Do nothing: the server closes its stream."""


def flask_body(request: Any) -> bytes:
    """Return the body of a Flask request. The application can read it again; a hook may have read it before."""
    known = getattr(request, "_cached_data", None)  # read by get_data and get_json
    if known is not None:
        return bytes(known)
    environ = request.environ
    if "stream" not in vars(request):  # set by the first reader
        return wsgi_body(environ)
    length = request.content_length
    if not length and not environ.get("wsgi.input_terminated"):
        return b""
    is_ended = request.stream is environ["wsgi.input"]  # by the server, as in gunicorn: its position cannot be known
    if (length or 0) > MAX_BODY or not (is_ended or _is_unread(request.stream)):
        return UNREADABLE
    try:
        body = wsgi_body(environ)
    except Exception:  # the client has gone
        return UNREADABLE
    request.__dict__.pop("stream")  # it is made anew, from the stream that replays the body
    is_missing = len(body) < length if length else not body and "HTTP_TRANSFER_ENCODING" in environ
    return UNREADABLE if is_missing else body


def _is_unread(stream: Any) -> bool:
    try:
        return bool(stream.tell() == 0 and stream.limit)  # a form that was parsed has left an empty stream
    except (AttributeError, OSError, ValueError):
        return False


def django_body(request: Any, errors: tuple[type[Exception], ...]) -> bytes:
    """Return the body of a Django request. `errors` are those that Django raises for one that cannot be read."""
    stated = request.META.get("CONTENT_LENGTH") or ""
    if len(stated) > 6 and stated.isdecimal() and int(stated) > MAX_BODY:
        return UNREADABLE  # before all of it is read
    try:
        return bytes(request.body[: MAX_BODY + 1])
    except errors:
        has_body = stated not in ("", "0") or "HTTP_TRANSFER_ENCODING" in request.META
        return UNREADABLE if has_body else b""
