"""A RESP server for tests: the real protocol on a free loopback port, in a thread with an event loop of its own."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import hiredis
import uvloop

from ratebound.policy import read_policy
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.connections import Bounds, Connections
from ratebound.service.engine import Engine
from ratebound.service.resp import RespConnection
from ratebound.service.resp_commands import RespCommands
from tests.servers import HOST

T = TypeVar("T")
TOKEN = "a-token-of-the-tests"
POLICY = {
    "rules": [
        {"name": "orders", "match": {"paths": ["/orders"]}, "by": "address", "limits": "2/minute"},
        {"name": "closed", "match": {"paths": ["/closed"]}, "limits": "deny"},
    ]
}


class RespServer:
    """A running server. `connections` and `commands` belong to its event loop: use them through `call`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int, connections: Connections) -> None:
        self.loop = loop
        self.port = port
        self.connections = connections

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the event loop, and return its result."""

        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(10)

    def connect(self) -> "Peer":
        """Return a new connection."""
        return Peer(self.port)


class Peer:
    """A plain socket to a RESP server, which sends bytes as they are and reads answers."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), 10)
        self._reader = hiredis.Reader()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def answer(self) -> Any:
        """Return the next answer. Raises EOFError if the server has closed the connection."""
        while (found := self._reader.gets()) is False:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self._reader.feed(data)
        return found

    def ask(self, *words: bytes | str | int) -> Any:
        """Send a command, and return its answer."""
        self.send(wire(*words))
        return self.answer()

    def rest(self) -> bytes:
        """Return everything until the server closes the connection."""
        parts = []
        while data := self.socket.recv(65536):
            parts.append(data)
        return b"".join(parts)

    def end(self) -> None:
        """Say that nothing more will be sent."""
        self.socket.shutdown(socket.SHUT_WR)


def wire(*words: bytes | str | int) -> bytes:
    """Return the bytes of a command."""
    given = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n%b" % (len(given), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in given))


@contextmanager
def resp_server(
    storage: Any = "memory://",
    *,
    tokens: Sequence[str] = (),
    bounds: Bounds | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
    connection: type[RespConnection] = RespConnection,
    deadline: float | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[RespServer]:
    """Run a server until the context ends."""
    found: list[RespServer] = []
    errors: list[BaseException] = []
    ready = threading.Event()
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        engine = Engine(read_policy(POLICY), storage=storage, deadline=deadline)
        commands = RespCommands(engine, BearerTokens(tokens))
        connections = Connections(bounds or Bounds())
        server = await loop.create_server(lambda: connection(commands, connections), HOST, 0, ssl=tls)
        stop.append(lambda: loop.call_soon_threadsafe(stopping.set))
        found.append(RespServer(loop, server.sockets[0].getsockname()[1], connections))
        ready.set()
        await stopping.wait()
        server.close()
        await connections.stop(2)
        await engine.close()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(serve())
        except BaseException as error:
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(20)
    if errors:
        raise errors[0]
    try:
        yield found[0]
    finally:
        stop[0]()
        thread.join(20)
    if errors:
        raise errors[0]
