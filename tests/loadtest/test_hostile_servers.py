"""Servers that never stop sending: a load test ends by its own time, and every request has one end."""

import asyncio
import struct
import tracemalloc
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tests.loadtest.plans import ends, ran
from tests.loadtest.scripted_server import listening
from tests.servers import HOST, free_port

CHUNK = 64 * 1024
LONGEST = 30.0  # seconds: far more than the load and its time-out
MOST_MEMORY = 50_000_000


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack("!I", len(body))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + body


SETTINGS = frame(4, 0, 0)
STARTED = frame(1, 4, 1, b"\x88")  # :status 200 on the first stream

# What each server says first, and what it then repeats for ever. The numbers of the repetitions differ.
HTTP1: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "endless headers": (b"HTTP/1.1 200 OK\r\n", lambda i: b"X-%d: %b\r\n" % (i, b"x" * 100)),
    "one endless header": (b"HTTP/1.1 200 OK\r\nX: ", lambda _: b"x" * 1000),
    "an endless status line": (b"HTTP/1.1 200 ", lambda _: b"x" * 1000),
    "an endless body": (b"HTTP/1.1 200 OK\r\n\r\n", lambda _: b"x" * 1000),
    "endless chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", lambda _: b"1\r\nx\r\n"),
    "an endless size of a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", lambda _: b"0" * 1000),
    "endless informational answers": (b"", lambda _: b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
    "answers that nobody asked for": (b"", lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
}
HTTP2: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "pings": (SETTINGS, lambda i: frame(6, 0, 0, struct.pack("!Q", i))),
    "settings": (SETTINGS, lambda _: frame(4, 0, 0, struct.pack("!HI", 4, 65_535))),
    "an endless header block": (SETTINGS + frame(1, 0, 1, b"\x88"), lambda _: frame(9, 0, 1, b"\x00\x01a\x01b" * 200)),
    "empty continuations": (SETTINGS + frame(1, 0, 1, b"\x88"), lambda _: frame(9, 0, 1)),
    "an endless body": (SETTINGS + STARTED, lambda _: frame(0, 0, 1, b"x" * 1000)),
    "empty data": (SETTINGS + STARTED, lambda _: frame(0, 0, 1)),
    "window updates": (SETTINGS, lambda _: frame(8, 0, 0, struct.pack("!I", 2**31 - 1))),
    "priorities": (SETTINGS, lambda i: frame(2, 0, 2 * i % 2**20 + 1, struct.pack("!IB", 0, 1))),
    "unknown frames": (SETTINGS, lambda _: frame(200, 0, 0, b"x" * 100)),
    "resets": (SETTINGS, lambda i: frame(3, 0, 2 * i % 2**20 + 1, struct.pack("!I", 8))),
    "pushes": (SETTINGS, lambda i: frame(5, 4, 1, struct.pack("!I", 2 * i % 2**20 + 2) + b"\x82")),
    "no streams at all": (frame(4, 0, 0, struct.pack("!HI", 3, 0)), lambda _: b""),
}


class Flood(asyncio.Protocol):
    """Says something first, and then repeats something for ever, as fast as it is read."""

    def __init__(self, first: bytes, again: Callable[[int], bytes]) -> None:
        self._first, self._again = first, again
        self._numbers = count()
        self._began = self._paused = self._lost = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._began:
            self._began = True
            self._transport.write(self._first)
            self._go_on()

    def _go_on(self) -> None:
        if self._lost or self._paused:
            return
        said = b""
        while len(said) < CHUNK:
            part = self._again(next(self._numbers))
            if not part:
                return
            said += part
        self._transport.write(said)
        asyncio.get_running_loop().call_later(0.005, self._go_on)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True


@pytest.mark.parametrize(
    ("http2", "name"), [*((False, name) for name in HTTP1), *((True, name) for name in HTTP2)], ids=str
)
def test_a_load_test_ends_by_its_time_whatever_the_server_sends(http2: bool, name: str) -> None:
    first, again = (HTTP2 if http2 else HTTP1)[name]
    port = free_port()
    tracemalloc.start()
    try:
        with listening(lambda: Flood(first, again), port):
            run = ran(f"http://{HOST}:{port}/", "10/s", 0.5, http2=http2, timeout=0.5)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert run.elapsed < LONGEST
    assert sum(ends(run).values()) == run.sent == run.due
    assert most < MOST_MEMORY
