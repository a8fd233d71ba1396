"""A client that speaks HTTP/2 frame by frame, right or wrong, to a connection whose transport keeps what is written."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from hpack import Encoder

from ratebound.service.connections import Bounds, Connections
from ratebound.service.http2 import HasToken, Http2Answer, Http2Connection, Http2Handle, Http2Request, Http2Response
from ratebound.service.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    TWO_NUMBERS,
    frame,
)
from ratebound.service.http2_headers import HeaderBlock

HEAD = HeaderBlock([(b":status", b"200")])
TRAILERS = HeaderBlock([(b"end", b"yes")])
HELLO = PREFACE + frame(SETTINGS, 0, 0)
ACKNOWLEDGED = frame(SETTINGS, ACK, 0)
FIELDS = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/echo"), (b":authority", b"localhost"))
Fields = Sequence[tuple[bytes, bytes]]


class Sent(NamedTuple):
    """A frame that the server has sent."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        return int.from_bytes(self.payload[:4] if self.kind == RST_STREAM else self.payload[4:8], "big")


def frames_of(data: bytes) -> list[Sent]:
    """Return the frames of what the server has written. It may not end within one."""
    found = []
    at = 0
    while at < len(data):
        high, low, kind, flags, stream = FRAME_HEAD.unpack_from(data, at)
        size = high << 8 | low
        assert size <= 16384
        assert at + 9 + size <= len(data)
        found.append(Sent(kind, flags, stream, data[at + 9 : at + 9 + size]))
        at += 9 + size
    return found


def block(fields: Fields = FIELDS, *more: tuple[bytes, bytes]) -> bytes:
    """Return a header block that uses no table. It begins by saying so, which is right before and after the ACK."""
    encoder = Encoder()
    return b"\x20" + encoder.encode([(name, value, True) for name, value in (*fields, *more)])


def with_path(path: bytes) -> Fields:
    return tuple((name, path if name == b":path" else value) for name, value in FIELDS)


def headers(stream: int, flags: int = END_HEADERS, fields: Fields = FIELDS) -> bytes:
    return frame(HEADERS, flags, stream, block(fields))


def request(stream: int, body: bytes = b"hello", fields: Fields = FIELDS) -> bytes:
    return headers(stream, fields=fields) + frame(DATA, END_STREAM, stream, body)


def echo(request: Http2Request) -> Http2Answer:
    """Answer with the body: at once, one second later (/later), or never (/never)."""
    response: Http2Response = (HEAD, request.body, TRAILERS)
    if request.head.path == b"/later":
        return later(1.0, response)
    if request.head.path == b"/never":
        return later(1e9, response)
    if request.head.path == b"/bare":
        return HEAD, b"", None
    if request.head.path == b"/wrong":
        raise RuntimeError("wrong")
    if request.head.path == b"/wrong-later":
        return wrong_later()
    return response


async def later(seconds: float, response: Http2Response) -> Http2Response:
    await asyncio.sleep(seconds)
    return response


async def wrong_later() -> Http2Response:
    raise RuntimeError("wrong")


class Wire:
    """A transport that keeps what is written. If `room` is given, it asks to pause when so much was not read."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.unread = 0
        self.written = b""
        self.writes = 0
        self.is_reading = True
        self.is_ended = False
        self.is_aborted = False
        self._protocol: Http2Connection | None = None

    def connect(self, protocol: Http2Connection) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        assert not self.is_ended, "written after the end"
        self.written += data
        self.writes += 1
        self.unread += len(data)
        if self.room is not None and self.unread > self.room and self._protocol is not None:
            self._protocol.pause_writing()

    def drain(self) -> None:
        """Read all that was written."""
        self.unread = 0
        assert self._protocol is not None
        self._protocol.resume_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def is_closing(self) -> bool:
        return self._protocol is None

    def close(self) -> None:
        if self._protocol is not None:
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)
            self._protocol = None

    def abort(self) -> None:
        self.is_aborted = True
        self.close()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class Peer:
    """The client's end. Needs a running event loop."""

    def __init__(
        self,
        handle: Http2Handle = echo,
        bounds: Bounds | None = None,
        connections: Connections | None = None,
        has_token: HasToken | None = None,
    ) -> None:
        self.connections = Connections(bounds or Bounds()) if connections is None else connections
        self.connection = Http2Connection(handle, self.connections, has_token)
        self.wire = Wire()
        self.wire.connect(self.connection)
        self._read = 0

    def send(self, *parts: bytes, size: int | None = None) -> "Peer":
        """Send bytes: in one piece, or in pieces of `size`."""
        data = b"".join(parts)
        step = size or len(data) or 1
        for at in range(0, len(data), step):
            self.connection.data_received(data[at : at + step])
        return self

    def begin(self) -> "Peer":
        """Shake hands, and forget what the server has said to that."""
        self.send(HELLO, ACKNOWLEDGED)
        self.frames()
        return self

    def frames(self) -> list[Sent]:
        """Return the frames that were sent since the last call."""
        found = frames_of(self.wire.written[self._read :])
        self._read = len(self.wire.written)
        return found

    def answers(self) -> dict[int, bytes]:
        """Return the bodies of complete answers that were sent since the last call, by stream."""
        bodies: dict[int, bytes] = {}
        done = {}
        for sent in self.frames():
            if sent.kind == DATA:
                bodies[sent.stream] = bodies.get(sent.stream, b"") + sent.payload
            if sent.kind in (DATA, HEADERS) and sent.flags & END_STREAM:
                done[sent.stream] = bodies.get(sent.stream, b"")
        return done

    def reset_with(self, stream: int) -> list[int]:
        """Return the codes of resets of a stream since the last call."""
        return [sent.code for sent in self.frames() if sent.kind == RST_STREAM and sent.stream == stream]

    def goaway(self) -> Sent | None:
        """Return the GOAWAY that was sent since the last call."""
        return next((sent for sent in self.frames() if sent.kind == GOAWAY), None)

    def is_open(self) -> bool:
        """Return True if the server still answers."""
        stream = max(self.connection._last_id, -1) + 2
        self.frames()
        self.send(request(stream, b"still there?"))
        return self.answers().get(stream) == b"still there?"

    def is_clean(self) -> bool:
        """Return True if nothing is left of a connection that has ended."""
        connection = self.connection
        return not (connection._streams or connection._tasks or connection._blocked or connection._held) and not len(
            self.connections
        )


def last_stream(sent: Sent) -> int:
    """Return the last stream that a GOAWAY names."""
    number: int = TWO_NUMBERS.unpack(sent.payload[:8])[0]
    return number


async def end(peer: Peer) -> None:
    """Lose the connection, and let its tasks end."""
    peer.wire.close()
    for _ in range(5):
        await asyncio.sleep(0)
