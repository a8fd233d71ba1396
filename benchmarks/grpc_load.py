"""A load of gRPC calls whose headers differ in each call, as a trace's do. Prints how many calls were answered.

h2load sends the same headers in every call. The calls are prepared before the clock starts, so most of the time goes to
the server.

python -m benchmarks.grpc_load PORT SECONDS same|traced
"""

import socket
import struct
import sys
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PATH = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
STREAMS = 32
CALLS = 4_000  # prepared; a connection that has made them is opened again


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return one header that enters no table."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def headers(number: int, traced: bool) -> bytes:
    """Return the block of headers of one call."""
    block = b"" if number else b"\x20"  # the server's table has no room: the first block has to say so
    block += b"\x83\x86" + b"\x04" + bytes((len(PATH),)) + PATH + b"\x01" + b"\x09" + b"127.0.0.1"
    block += literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")
    if traced:
        block += literal(b"traceparent", f"00-{number:032x}-{number:016x}-01".encode())
    return block


def rate_limit_request(number: int) -> bytes:
    """Return a RateLimitRequest with one descriptor, remote_address, behind the prefix of gRPC."""

    def field(tag: int, value: bytes) -> bytes:
        return bytes((tag << 3 | 2, len(value))) + value

    entry = field(1, b"remote_address") + field(2, f"10.0.0.{number % 100}".encode())
    message = field(1, b"bench") + field(2, field(1, entry))
    return b"\x00" + struct.pack(">I", len(message)) + message


def prepared(traced: bool) -> list[bytes]:
    """Return calls in groups of as many streams as are open at once."""
    groups = []
    for start in range(0, CALLS, STREAMS):
        parts = []
        for number in range(start, start + STREAMS):
            stream = 2 * number + 1
            parts.append(frame(1, 4, stream, headers(number, traced)))
            parts.append(frame(0, 1, stream, rate_limit_request(number)))
        groups.append(b"".join(parts))
    return groups


def answered(connection: socket.socket, left: bytes, wanted: int) -> bytes:
    """Read until so many streams have ended. Return what follows."""
    while wanted:
        data = connection.recv(1 << 16)
        if not data:
            raise SystemExit("the server closed the connection")
        left += data
        at = 0
        while len(left) - at >= 9:
            length = int.from_bytes(left[at : at + 3], "big")
            if len(left) - at < 9 + length:
                break
            kind, flags = left[at + 3], left[at + 4]
            if kind == 7:
                raise SystemExit("the server sent GOAWAY")
            if kind in (0, 1) and flags & 1:
                wanted -= 1
            at += 9 + length
        left = left[at:]
    return left


def main(port: int, seconds: float, traced: bool) -> None:
    """Send calls for some seconds on one connection after the other."""
    groups = prepared(traced)
    hello = PREFACE + frame(4, 0, 0) + frame(4, 1, 0) + frame(8, 0, 0, struct.pack(">I", 1 << 30))
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(hello)
            left = b""
            for group in groups:
                connection.sendall(group)
                left = answered(connection, left, STREAMS)
                count += STREAMS
                if time.monotonic() > end:
                    break
    print(count)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "traced")
