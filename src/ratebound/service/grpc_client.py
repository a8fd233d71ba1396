"""One unary gRPC call, for `ratebound ask grpc`. It is a client for one call and one answer, and for nothing else."""

import socket
import struct
from collections.abc import Iterator

import hpack

from ratebound.service.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    settings,
)

MOST = 4 * 1024 * 1024  # bytes of an answer


class GrpcFailure(Exception):
    """A call without an answer. `status` is the number of gRPC, None if the peer does not speak gRPC."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


def call_unary(
    connection: socket.socket, authority: str, path: str, message: bytes, token: str = "", *, tls: bool = False
) -> bytes:
    """Send a message over a new connection, and return the reply. Raises GrpcFailure, and OSError."""
    headers = [
        (":method", "POST"),
        (":scheme", "https" if tls else "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    if token:
        headers.append(hpack.NeverIndexedHeaderTuple("authorization", f"Bearer {token}"))  # type: ignore[arg-type]
    block = hpack.Encoder().encode(headers)
    body = struct.pack(">BI", 0, len(message)) + message
    connection.sendall(
        PREFACE + settings({}) + frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, body)
    )
    found: dict[str, str] = {}
    reply = bytearray()
    decoder = hpack.Decoder()
    gathered = b""
    for kind, flags, stream, payload in _frames(connection):
        if kind == SETTINGS and not flags & ACK:
            connection.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            connection.sendall(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            raise GrpcFailure(None, "the service closed the connection")
        elif stream != 1:
            continue
        elif kind == RST_STREAM:
            raise GrpcFailure(None, "the service reset the call")
        elif kind in (HEADERS, CONTINUATION):
            gathered += payload if kind == CONTINUATION else _unpadded(flags, payload)
            if flags & END_HEADERS:
                found |= {str(name): str(value) for name, value in decoder.decode(gathered)}
                gathered = b""
        elif kind == DATA:
            reply += _unpadded(flags & ~HAS_PRIORITY, payload)
            if len(reply) > MOST:
                raise GrpcFailure(None, "the answer is too long")
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            return _reply(found, bytes(reply))
    raise GrpcFailure(None, "the service closed the connection without an answer")


def _reply(headers: dict[str, str], reply: bytes) -> bytes:
    status = headers.get("grpc-status", "")
    if not status.isdecimal():
        raise GrpcFailure(None, f"the answer is not gRPC: HTTP status {headers.get(':status', 'unknown')}")
    if status != "0":
        raise GrpcFailure(int(status), headers.get("grpc-message", ""))
    if len(reply) < 5 or reply[0] or struct.unpack(">I", reply[1:5])[0] != len(reply) - 5:
        raise GrpcFailure(None, "the answer is not one plain message")
    return reply[5:]


def _frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    with connection.makefile("rb") as file:
        while len(head := file.read(9)) == 9:
            high, low, kind, flags, stream = FRAME_HEAD.unpack(head)
            length = high << 8 | low
            payload = file.read(length)
            if len(payload) < length:
                return
            yield kind, flags, stream & MAX_WINDOW, payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    if flags & PADDED:
        payload = payload[1 : len(payload) - payload[0]]
    return payload[5:] if flags & HAS_PRIORITY else payload
