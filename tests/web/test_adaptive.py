"""Adaptive limits in every adapter: requests are shed with 503, and their results feed latency and errors."""

import asyncio
import gc
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.adaptive import Latency, Pressure
from ratebound.adaptive.signals import Finished
from ratebound.policy import RequestView
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.gate import WebGate
from ratebound.web.rejected import Rejected
from ratebound.web.route_limit import Endpoint, RouteLimit
from tests.adaptive.gauges import Gauge, lower, pressure_of
from tests.web.running_requests import POLICIES, Server, slot_policy

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators"),
]


class Results(Latency):
    """A latency that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.told: list[Finished] = []

    def add(self, finished: Sequence[Finished], now: float) -> None:
        self.told += finished


class Overload:
    """A pressure that a test drives, with a signal that keeps the results of requests."""

    def __init__(self, *, is_fed: bool) -> None:
        self.gauge, self.results = Gauge(), Results()
        signals = (self.gauge, self.results) if is_fed else (self.gauge,)
        self.pressure: Pressure = pressure_of(*signals, floor=0.5)

    def lower(self) -> None:
        lower(self.pressure, self.gauge)

    def failures(self) -> list[bool]:
        """Whether each request failed, of those that have ended since the last call."""
        self.pressure.sample()
        told, self.results.told = self.results.told, []
        assert all(0 <= one.seconds < 600 for one in told)
        return [one.failed for one in told]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)  # Django logs each 500
    yield
    logging.disable(logging.NOTSET)
    gc.collect()


@pytest.fixture(params=[True, False], ids=["fed by results", "not fed"])
def overload(request: pytest.FixtureRequest) -> Overload:
    return Overload(is_fed=request.param)


@pytest.fixture(params=POLICIES.values(), ids=list(POLICIES))
def server(request: pytest.FixtureRequest, overload: Overload) -> Iterator[Server]:
    policy = {**slot_policy("20/hour"), "adaptive": overload.pressure}
    with request.param(policy, MemoryStorage()) as made:
        yield made


def statuses(server: Server, count: int, path: str = "/work") -> list[int]:
    found = []
    for _ in range(count):
        answer = server.start(path).end()
        found.append(0 if answer is None else answer.status)
    return found


def test_what_exceeds_a_lowered_limit_is_a_503(server: Server, overload: Overload) -> None:
    assert statuses(server, 1) == [200]
    overload.lower()
    assert statuses(server, 10) == [200] * 9 + [503]
    rejected = server.start("/work").end()
    assert rejected is not None
    headers = {name.lower(): value for name, value in rejected.headers}
    assert 1 <= int(headers["retry-after"]) <= 5
    assert "ratelimit" not in headers


def test_results_are_told_once_and_rejections_never(server: Server, overload: Overload) -> None:
    is_fed = overload.pressure.measures_requests
    assert statuses(server, 2) == [200, 200]
    assert overload.failures() == ([False, False] if is_fed else [])
    assert statuses(server, 1, "/stream") == [200]
    assert overload.failures() == ([False] if is_fed else [])
    server.start("/fail").end()
    assert overload.failures() == ([True] if is_fed else [])
    overload.lower()
    assert statuses(server, 8)[-2:] == [503, 503]
    assert overload.failures() == ([False] * 6 if is_fed else [])


def test_a_stream_that_the_client_leaves_is_told_by_its_start(server: Server, overload: Overload) -> None:
    run = server.start("/stream")
    assert run.passed
    run.leave()
    told = overload.failures()
    assert told in ([], [False])


@pytest.mark.parametrize("serve", POLICIES.values(), ids=list(POLICIES))
def test_exempt_requests_are_not_measured(serve: Any) -> None:
    overload = Overload(is_fed=True)
    policy = {**slot_policy("20/hour"), "adaptive": overload.pressure, "exempt": [{"paths": ["/work"]}]}
    with serve(policy, MemoryStorage()) as server:
        assert statuses(server, 2) == [200, 200]
        assert overload.failures() == []
        assert statuses(server, 1, "/stream") == [200]
        assert overload.failures() == [False]


def test_a_websocket_connection_is_not_measured() -> None:
    overload = Overload(is_fed=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})

    async def main() -> list[Any]:
        sent: list[Any] = []
        limited = RateLimitMiddleware(app, {**slot_policy("20/hour"), "adaptive": overload.pressure})
        scope = {"type": "websocket", "path": "/work", "headers": [], "client": ("192.0.2.1", 1), "scheme": "ws"}

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await limited(scope, receive, send)
        return sent

    assert asyncio.run(main()) == ["websocket.accept", "websocket.close"]
    assert overload.failures() == []


def test_limits_as_text_take_the_option_and_endpoints_a_priority() -> None:
    overload = Overload(is_fed=False)
    gate = WebGate("20/hour", adaptive=overload.pressure, storage=MemoryStorage())
    low = Endpoint("low", [RouteLimit(limits="10/hour", priority="low")])
    view = RequestView("GET", "/", peer="192.0.2.1")
    assert gate.before(view, low)
    lower(overload.pressure, overload.gauge, 1)
    assert overload.pressure.factors == {"low": 0.5, "normal": 1.0, "high": 1.0, "critical": 1.0}
    answers = [gate.before(view, low) for _ in range(5)]
    assert [bool(answer) for answer in answers] == [True] * 4 + [False]
    assert isinstance(answers[-1], Rejected)
    assert answers[-1].status == 503
    assert [usage.quota for usage in gate.usage_after(answers[-1])] == [10]
    assert gate.before(view)
    with pytest.raises(ValueError, match="priority 'urgent'|'urgent'"):
        RouteLimit(limits="1/hour", priority="urgent")  # type: ignore[arg-type]
