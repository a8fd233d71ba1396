"""A server of raw bytes on loopback, for answers that no well-behaved server sends. It runs in a thread of its own."""

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.servers import HOST, free_port

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Connected:
    """One connection of the server. It has the parts that an asyncio protocol needs."""

    def __init__(self, server: "ScriptedServer") -> None:
        self.server = server
        self.transport: Any = None
        self.peer = ""
        self.read = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else ""
        self.server.connections += 1

    def data_received(self, data: bytes) -> None:
        self.read += data
        while b"\r\n\r\n" in self.read:
            head, _, self.read = self.read.partition(b"\r\n\r\n")
            self.server.heads.append(head)
            self.server.peers.append(self.peer)
            self.server.answer(self, head)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def close(self) -> None:
        self.transport.close()

    def reset(self) -> None:
        """End the connection by RST."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(seconds, call)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.server.lost += 1

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class ScriptedServer:
    """`answer` is called with a connection and the head of a request; what it writes is sent."""

    def __init__(self, answer: Callable[[Connected, bytes], object]) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.peers: list[str] = []
        self.connections = 0
        self.lost = 0
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}/"


def always(*parts: bytes) -> Callable[[Connected, bytes], object]:
    """Return a script that writes the same bytes for every request."""
    return lambda connected, head: connected.write(b"".join(parts))


@contextmanager
def scripted(
    answer: Callable[[Connected, bytes], object] = always(OK),  # noqa: B008
    *,
    tls: ssl.SSLContext | None = None,
    unix: str | None = None,
) -> Iterator[ScriptedServer]:
    server = ScriptedServer(answer)
    with listening(lambda: Connected(server), server.port, tls=tls, unix=unix):
        yield server


@contextmanager
def listening(
    make: Callable[[], Any], port: int, *, tls: ssl.SSLContext | None = None, unix: str | None = None
) -> Iterator[None]:
    """Serve by protocols that `make` makes, in a thread."""
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    opened: list[asyncio.Transport] = []

    def protocol() -> Any:
        made = make()
        begin = made.connection_made

        def connection_made(transport: asyncio.Transport) -> None:
            opened.append(transport)
            begin(transport)

        made.connection_made = connection_made
        return made

    async def serve() -> None:
        if unix is not None:
            server: Any = await loop.create_unix_server(protocol, unix)
        else:
            server = await loop.create_server(protocol, HOST, port, ssl=tls, backlog=1024)
        ready.set()
        await stop.wait()
        server.close()
        for transport in opened:
            transport.abort()
        await asyncio.sleep(0.01)  # their connections are closed by the loop

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
