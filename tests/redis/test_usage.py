"""Usage, grants and resets on a real Redis, on a Cluster and in shared memory."""

import asyncio
import itertools
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter, Usage
from ratebound.policy import Gate, Policy, RequestView, Rule
from tests.servers import Cluster, Server

runs = itertools.count()
SLOW = "timeout=5&connect_timeout=5"
LIMITS = "10/calendar-month as monthly; 5/calendar-year over allow; 20/hour; 40/day burst 40; 3 concurrent for 1 hour"


@pytest.fixture(params=["one server", "cluster", "shared memory"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "shared memory":
        return str(request.getfixturevalue("zone_url"))
    prefix = f"prefix=usage{next(runs)}-"
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("redis_cluster")
        return f"{cluster.url}?{SLOW}&{prefix}"
    server: Server = request.getfixturevalue("redis_url_server")
    return f"{server.url}?{SLOW}&{prefix}"


def numbers(usages: list[Usage]) -> list[tuple[int, int, int, int | None]]:
    return [(usage.quota, usage.used, usage.remaining, usage.previous) for usage in usages]


def test_usage_of_a_shared_storage_is_that_on_memory(url: str) -> None:
    with Limiter(LIMITS, storage=url) as shared, Limiter(LIMITS) as own:
        for limiter in (shared, own):
            assert limiter.hit("user:42", cost=7)
            assert limiter.grant("user:42", 4, name="monthly")[0].granted == 4
        assert numbers(shared.usage("user:42")) == numbers(own.usage("user:42"))
        assert numbers(shared.usage("user:42"))[:2] == [(14, 7, 7, 0), (5, 7, 0, 0)]
        assert [one.resets_at for one in shared.usage("new")[:2]] == [one.resets_at for one in own.usage("new")[:2]]
        shared.reset("user:42")
        assert numbers(shared.usage("user:42")) == numbers(own.usage("new"))


def test_tasks_grant_and_read(url: str) -> None:
    async def ask() -> None:
        async with AsyncLimiter(LIMITS, storage=url) as limiter:
            await limiter.hit("a", cost=2)
            granted = await limiter.grant("a", 5)
            assert numbers(granted)[:2] == [(15, 2, 13, 0), (10, 2, 8, 0)]
            assert [usage.degraded for usage in granted] == [None] * 5

    asyncio.run(ask())


def test_one_trip_reads_the_usage_of_all_limits(fresh_redis: Server) -> None:
    with Limiter(LIMITS, storage=f"{fresh_redis.url}?{SLOW}") as limiter:
        limiter.usage("warm")
        server = fresh_redis.client()
        server.config_resetstat()
        limiter.usage("a")
        stats: Any = server.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1


def test_a_gate_grants_and_resets_clients_whose_keys_are_on_several_nodes(url: str) -> None:
    rules = [
        Rule("monthly", "10/calendar-month", by="user"),
        Rule("daily", "10/calendar-day; 7/minute", by=["user", "address"]),
        Rule("net", "9/calendar-day", by="prefix"),
        Rule("wide", "9/calendar-day", by="prefix:16/32"),
    ]
    view = RequestView("GET", "/", peer="192.0.2.1", user="ann")
    with Gate(Policy(rules=rules), storage=url) as gate:
        assert gate.decide(view)
        gate.grant("user:ann", 5)
        gate.grant("prefix:192.0.2.1", 3)
        assert [(one.rule, one.quota, one.used) for one in gate.usage(view)] == [
            ("monthly", 15, 1),
            ("daily", 15, 1),
            ("daily", 7, 1),
            ("net", 12, 1),
            ("wide", 12, 1),
        ]
        gate.reset("user:ann")
        gate.reset("prefix:192.0.2.1")
        assert [(one.quota, one.used) for one in gate.usage(view)] == [(10, 0), (10, 0), (7, 0), (9, 0), (9, 0)]
