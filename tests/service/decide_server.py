"""The HTTP API for tests of callers: POST /v1/decide on a loopback port, in a thread of its own."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from ratebound.policy import read_policy
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.connections import Bounds, Connections
from ratebound.service.engine import Engine
from ratebound.service.http1 import Answer, Http1Connection, HttpRequest
from ratebound.service.http_api import HttpApi
from ratebound.service.routes import ServiceRoutes
from tests.servers import HOST
from tests.service.http_calls import SECRET
from tests.service.resp_server import TOKEN


class DecideServer:
    """A running service. `hangs` makes it take requests and never answer. `asked` has the questions of callers."""

    def __init__(self, engine: Engine) -> None:
        self.port = 0
        self.engine = engine
        self._decide = HttpApi(engine, (SECRET,), Bounds()).routes[b"/v1/decide"]
        self.hangs = False
        self.asked: list[dict[str, Any]] = []

    def decide(self, request: HttpRequest) -> Answer:
        """Answer POST /v1/decide."""
        if self.hangs:
            return asyncio.sleep(60, b"")
        self.asked.append(json.loads(request.body))
        return self._decide(request)


@contextmanager
def decide_server(policy: dict[str, Any], port: int = 0) -> Iterator[DecideServer]:
    """Run a service that needs TOKEN until the context ends."""
    found: list[DecideServer] = []
    stops: list[Callable[[], object]] = []
    ready = threading.Event()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        service = DecideServer(Engine(read_policy(policy), storage="memory://"))
        routes = ServiceRoutes({b"/v1/decide": service.decide}, service.decide, BearerTokens([TOKEN]), lambda: True)
        connections = Connections(Bounds())
        server = await loop.create_server(lambda: Http1Connection(routes, connections), HOST, port)
        service.port = server.sockets[0].getsockname()[1]
        found.append(service)
        stops.append(lambda: loop.call_soon_threadsafe(stopping.set))
        ready.set()
        await stopping.wait()
        server.close()
        await connections.stop(0.1)
        await service.engine.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        stops[0]()
        thread.join(20)
