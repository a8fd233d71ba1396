"""Call the HTTP API in tests: without a connection, or over a real one to a server in the test's own event loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from ratebound.policy import Policy, Rule
from ratebound.service.connections import Bounds, Connections
from ratebound.service.engine import Engine
from ratebound.service.http1 import Handle, Http1Connection, HttpRequest
from ratebound.service.http_api import HttpApi

SECRET = b"a secret for the tests of tokens"
JSON = [(b"content-type", b"application/json")]
HOST = "127.0.0.1"


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def parsed(raw: bytes) -> Response:
    """One response, of which nothing is left over."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert int(headers["content-length"]) == len(body)
    return Response(int(first.split()[1]), headers, body)


def an_engine(storage: Any = "memory://", policy: Policy | None = None, **options: Any) -> Engine:
    return Engine(policy or Policy(rules=[Rule("all", "5/minute", by="address")]), storage=storage, **options)


@asynccontextmanager
async def apis(url: str, number: int = 1, **options: Any) -> AsyncIterator[list[HttpApi]]:
    """Instances of the service that share a storage."""
    engines = [an_engine(url, **options) for _ in range(number)]
    try:
        yield [an_api(engine) for engine in engines]
    finally:
        for engine in engines:
            await engine.close()


def an_api(engine: Engine | None = None, *secrets: bytes, bounds: Bounds | None = None) -> HttpApi:
    return HttpApi(engine or an_engine(), secrets or (SECRET,), bounds or Bounds())


async def called(api: HttpApi, path: str, body: Any, headers: list[tuple[bytes, bytes]] | None = None) -> Response:
    """What a call is answered. `body` is bytes, or what to send as JSON."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = HttpRequest("POST", path.encode(), JSON if headers is None else headers, sent, "127.0.0.1")
    answer = api.routes[path.encode()](request)
    return parsed(answer if isinstance(answer, bytes) else await answer)


def call(api: HttpApi, path: str, body: Any, headers: list[tuple[bytes, bytes]] | None = None) -> Response:
    """What a call is answered by an API on memory: at once."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = HttpRequest("POST", path.encode(), JSON if headers is None else headers, sent, "127.0.0.1")
    answer = api.routes[path.encode()](request)
    assert isinstance(answer, bytes), "memory must not pause"
    return parsed(answer)


class Running(NamedTuple):
    port: int
    connections: Connections


@asynccontextmanager
async def listening(handle: Handle, bounds: Bounds | None = None) -> AsyncIterator[Running]:
    """A server on a free port. At its end no task of it may be left."""
    connections = Connections(bounds or Bounds())
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    server = await loop.create_server(lambda: Http1Connection(handle, connections), HOST, 0)
    try:
        yield Running(server.sockets[0].getsockname()[1], connections)
    finally:
        server.close()
        await connections.stop(5)
        await server.wait_closed()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() - before == set()


async def exchanged(port: int, *parts: bytes, ends: bool = True) -> bytes:
    """All that a server answers to these parts, until it closes. Without `ends`, our side stays open until then."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            if len(parts) > 1:
                await asyncio.sleep(0)
        if ends:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


class Loops:
    """The kind of event loop that `run` uses: asyncio's, or uvloop as the service does."""

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    """Run an async test."""

    async def main() -> Any:
        return await asyncio.wait_for(test(), 60)

    with asyncio.Runner(loop_factory=Loops.factory) as runner:
        return runner.run(main())
