"""The HTTP service for tests of callers: the engine behind POST /v1/decide, on a loopback port, in its own thread."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from ratebound.policy import RequestView, Verdict, read_policy
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.connections import Bounds, Connections
from ratebound.service.engine import Engine
from ratebound.service.http1 import Answer, Http1Connection, HttpRequest, response
from ratebound.service.routes import ServiceRoutes
from ratebound.web.rejected import rejection_of
from tests.servers import HOST
from tests.service.resp_server import TOKEN


class DecideServer:
    """A running service. `hangs` makes it take requests and never answer. `asked` has the questions of callers."""

    def __init__(self, engine: Engine) -> None:
        self.port = 0
        self.engine = engine
        self.hangs = False
        self.asked: list[dict[str, Any]] = []

    def decide(self, request: HttpRequest) -> Answer:
        """Answer POST /v1/decide."""
        if self.hangs:
            return asyncio.sleep(60, b"")
        call = json.loads(request.body)
        self.asked.append(call)
        given = [(name.lower(), value) for name, value in call.get("headers", {}).items()]
        view = RequestView(
            call["method"],
            call["path"],
            query=call.get("query", ""),
            host=call.get("host", ""),
            headers=given,
            peer=call.get("address"),
            scheme=call.get("scheme", "http"),
            user=call.get("user"),
        )
        verdict = self.engine.decide_now(view)
        assert verdict is not None
        return response(200, [("content-type", "application/json")], json.dumps(_told(verdict, view)).encode())


def _told(verdict: Verdict, view: RequestView) -> dict[str, Any]:
    decision = verdict.decision
    answer: dict[str, Any] = {"allowed": verdict.allowed, "status": 200, "headers": {}, "decision": None}
    if decision is not None:
        answer["headers"] = {name.lower(): value for name, value in verdict.policy.response_headers.pairs(decision)}
        answer["decision"] = {"allowed": decision.allowed, "remaining": decision.remaining, "delay": decision.delay}
    if not verdict.allowed:
        rejected = rejection_of(verdict, view, {})
        answer["status"] = rejected.status
        answer["headers"] = {name.lower(): value for name, value in rejected.headers}
        answer["body"] = rejected.body.decode()
    return answer


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
