"""The recipe "Survive overload": what is shed first, what stays, and how it recovers. The load is the test's own."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.adaptive import CpuUse, LoopLag
from ratebound.adaptive.in_flight import InFlight
from ratebound.policy import read_policy
from ratebound.testing import FakeClock
from ratebound.web.asgi import RateLimitMiddleware
from tests.adaptive.gauges import Gauge, pressure_of
from tests.recipes.pages import recipe
from tests.web.drivers import asgi_client
from tests.web.suite import Answer

PATHS = {"reports": "/reports/1", "search": "/search", "orders": "/orders/1"}
ALL = {"reports": 20, "search": 40, "orders": 100}
FEW_REPORTS = {**ALL, "reports": 2}
MOSTLY_ORDERS = {**FEW_REPORTS, "search": 4}


async def shop(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"sold"})


class Site:
    """A shop with the policy of the page. The load is what the test says."""

    def __init__(self) -> None:
        self.clock, self.gauge = FakeClock(), Gauge()
        self.pressure = pressure_of(self.gauge, clock=self.clock)
        policy = recipe("guides/overload.md", "Survive overload") | {
            "adaptive": self.pressure,
            "trusted": ["127.0.0.1"],
        }
        self.app = RateLimitMiddleware(shop, policy, storage=MemoryStorage(clock=self.clock))
        meter = self.app.gate.meter
        assert meter is not None, "the policy says concurrent: auto"
        self.places = meter.in_flight = InFlight(now=lambda: self.clock() / 1e6)
        self.send: Any = asgi_client(self.app)
        self.clients = 0

    def get(self, path: str) -> Answer:
        """Send a request of a client that was never seen before."""
        self.clients += 1
        answer: Answer = self.send("GET", path, {"x-forwarded-for": f"10.0.{self.clients // 250}.{self.clients % 250}"})
        return answer

    def second(self, load: float) -> dict[str, int]:
        """Send what a calm server answers in a second, at this load. Return how many of each kind were answered."""
        self.gauge.value = load
        answered = {}
        for kind, path in PATHS.items():
            statuses = [self.get(path).status for _ in range(ALL[kind])]
            assert set(statuses) <= {200, 503}
            answered[kind] = statuses.count(200)
        for _ in range(4):
            self.clock.advance(0.25)
            self.pressure.sample()
        return answered


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.send.close()


def test_the_policy_of_the_page_watches_the_machine_and_the_event_loop() -> None:
    pressure = read_policy(recipe("guides/overload.md", "Survive overload")).pressure
    assert pressure is not None
    assert [type(signal) for signal in pressure.signals] == [CpuUse, LoopLag]


def test_the_least_important_are_shed_first_and_critical_ones_never(site: Site) -> None:
    assert site.second(0.5) == ALL
    seen = [site.second(2.5) for _ in range(10)]
    reports, searches = [one["reports"] for one in seen], [one["search"] for one in seen]
    assert reports == sorted(reports, reverse=True)
    assert searches == sorted(searches, reverse=True)
    assert reports.index(2) <= 4
    assert all(one["search"] == 40 for one in seen if one["reports"] > 2), "searches fall when reports can no more"
    assert searches.index(4) <= 8
    assert all(one["orders"] == 100 for one in seen)
    assert seen[-1] == MOSTLY_ORDERS


def test_it_recovers_by_itself_in_the_opposite_order(site: Site) -> None:
    site.second(0.5)
    for _ in range(10):
        site.second(3.0)
    assert site.second(0.95) == MOSTLY_ORDERS, "between calm and overload nothing changes"
    seen = [site.second(0.5) for _ in range(22)]
    assert all(one["reports"] == 2 for one in seen if one["search"] < 40)
    assert seen[11]["search"] == 40
    assert seen[11]["reports"] < 20
    assert seen[-1] == ALL


def test_who_is_shed_is_told_to_come_back_soon(site: Site) -> None:
    site.second(0.5)
    for _ in range(4):
        site.second(3.0)
    for _ in range(2):
        site.get("/reports/1")
    answer = site.get("/reports/1")
    assert answer.status == 503
    headers = dict(answer.headers)
    assert 1 <= int(headers["retry-after"]) <= 5
    assert "ratelimit" not in headers
    assert json.loads(answer.body)["type"].endswith("#temporary-reduced-capacity")


def test_without_a_place_everything_is_shed_but_the_health_check(site: Site) -> None:
    while site.places.enter():
        pass
    assert [site.get(path).status for path in PATHS.values()] == [503] * 3
    assert site.get("/health").status == 200
    site.places.leave()
    assert site.get("/orders/1").status == 200


def test_places_follow_what_the_server_can_work_on(site: Site) -> None:
    """A server that works on 10 requests at once, and 200 clients that come at the same time, for a minute."""
    places = site.places
    for _ in range(600):
        came = sum(places.enter() for _ in range(200))
        seconds = 0.1 * max(1.0, came / 10)
        site.clock.advance(seconds)
        for _ in range(came):
            places.note(seconds)
            places.leave()
    assert 10 <= places.limit <= 30
    assert places.shed > 100_000
