"""A real HTTP/1.1 server that plays a list of answers and records every request: its line, headers and whole body.

It runs in a thread of the test's process, on a free port of loopback. After the last answer of its list it answers 200.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tests.servers import HOST, free_port

DONE = b'{"done": true}'


class Received(NamedTuple):
    """One request as it came in. `connection` counts the connections of the server from 1."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    connection: int

    def header(self, name: str) -> str | None:
        """Return the first value of a header, or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class Play(NamedTuple):
    """An answer. With `parts` it is chunked, and each part waits until the test lets it go (`Scripted.let_go`).

    `cut` ends the connection by a reset: "before" the first byte, or in the "middle" of the body.
    """

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = DONE
    parts: tuple[bytes, ...] = ()
    cut: str = ""


class Scripted:
    """What a test sees of its server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self.received: list[Received] = []
        self.answers: list[Play] = []
        self.default = Play()
        self.connections = 0
        self._gates = asyncio.Queue[None]()
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()

    def plays(self, *answers: Play | int) -> "Scripted":
        """Answer with these first. A number is a status."""
        self.answers += [Play(answer) if isinstance(answer, int) else answer for answer in answers]
        return self

    def always(self, answer: Play | int) -> "Scripted":
        """Answer so when nothing else is left to play."""
        self.default = Play(answer) if isinstance(answer, int) else answer
        return self

    def let_go(self, parts: int = 1) -> None:
        """Send the next parts of chunked answers."""
        for _ in range(parts):
            self._loop.call_soon_threadsafe(self._gates.put_nowait, None)

    def bodies(self) -> list[bytes]:
        """Return the bodies of all requests."""
        return [request.body for request in self.received]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        self._writers.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer, connection):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> bool:
        """Receive one request and answer it. Return False if the connection is over."""
        line = (await reader.readline()).decode("latin-1").split()
        if len(line) != 3:
            return False
        headers = [header async for header in _headers(reader)]
        fields = {name.lower(): value for name, value in headers}
        if fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _body(reader, fields)
        self.received.append(Received(line[0], line[1], tuple(headers), body, connection))
        answer = self.answers.pop(0) if self.answers else self.default
        if answer.cut == "before":
            _reset(writer)
            return False
        await self._answer(writer, answer, bodiless=line[0] == "HEAD")
        return not answer.cut and fields.get("connection", "").lower() != "close"

    async def _answer(self, writer: asyncio.StreamWriter, answer: Play, *, bodiless: bool) -> None:
        lines = [f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in answer.headers.items())]
        length = "transfer-encoding: chunked" if answer.parts else f"content-length: {len(answer.body)}"
        head = "\r\n".join([*lines, length, "", ""]).encode("latin-1")
        if answer.cut:
            writer.write(head + answer.body[: len(answer.body) // 2])
            await writer.drain()
            _reset(writer)
            return
        writer.write(head if bodiless or answer.parts else head + answer.body)
        for part in answer.parts:
            await writer.drain()
            await self._gates.get()
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        if answer.parts:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the client sees a reset, not an orderly end."""
    transport_socket: socket.socket = writer.get_extra_info("socket")
    transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _headers(reader: asyncio.StreamReader):  # type: ignore[no-untyped-def]
    while line := (await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        yield name, value.strip()


async def _body(reader: asyncio.StreamReader, fields: Mapping[str, str]) -> bytes:
    if "chunked" not in fields.get("transfer-encoding", ""):
        return await reader.readexactly(int(fields.get("content-length", "0")))
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


@contextmanager
def scripted_server(*answers: Play | int, port: int | None = None) -> Iterator[Scripted]:
    """Start a server that plays these answers; stop it at the end, whatever happens."""
    server = Scripted(port or free_port()).plays(*answers)
    loop, started = server._loop, threading.Event()

    async def run() -> None:
        stop.append(asyncio.Event())
        listening = await asyncio.start_server(server._serve, HOST, server.port)
        started.set()
        await stop[0].wait()
        listening.close()
        for writer in list(server._writers):
            writer.transport.abort()
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    stop: list[asyncio.Event] = []
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    try:
        if not started.wait(20):
            raise TimeoutError(f"no server on port {server.port} within 20 s")
        yield server
    finally:
        if stop:
            loop.call_soon_threadsafe(stop[0].set)
        thread.join(20)
        loop.close()


def quota(limit: int, remaining: int, reset: int) -> dict[str, str]:
    """Return the headers by which a server reports one limit."""
    return {
        "RateLimit-Policy": f'"default";q={limit};w={reset}',
        "RateLimit": f'"default";r={remaining};t={reset}',
    }


def refusals(count: int, *, status: int = 429, headers: Mapping[str, str] | None = None) -> Iterable[Play]:
    """Return refusals with a wait of nothing, so that tests need not sleep."""
    return [Play(status, headers or {"Retry-After": "0"}, b"slow down")] * count
