"""Exactly so many values are admitted, and exactly one block begins, with many hands on one key."""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ratebound import AsyncLimiter, Decision, Limiter
from ratebound.kernels.penalty import BLOCKED, STRUCK
from tests.concurrency.test_grants import THREADS, together
from tests.servers import Server

COUNT = 100
VALUES = f"{COUNT} distinct account/day"
PENALTY = "1/day; 1 strike/hour block 1 hour then 1 day"
LONGEST = 120.0
runs = itertools.count()


@pytest.fixture(autouse=True)
def _switch_as_often_as_can_be() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def given(decision: Decision) -> int:
    return decision.rows[1][6]


def test_threads_with_different_values_are_granted_exactly_the_count() -> None:
    limiter = Limiter(VALUES)

    def work(i: int) -> int:
        return sum(limiter.hit("k", values={"account": f"{i}-{n}"}).allowed for n in range(50))

    assert sum(together(work)) == COUNT


def test_threads_with_the_same_values_are_all_granted() -> None:
    limiter = Limiter(VALUES)

    def work(_: int) -> int:
        return sum(limiter.hit("k", values={"account": n}).allowed for n in range(COUNT))

    assert together(work) == [COUNT] * THREADS
    assert not limiter.hit("k", values={"account": "one more"})


def test_values_that_threads_take_back_leave_room_for_exactly_as_many() -> None:
    limiter = Limiter(VALUES)

    def work(i: int) -> int:
        kept = 0
        for n in range(100):
            decision = limiter.hit("k", values={"account": f"{i}-{n}"})
            if decision and n % 2:
                limiter.settle(decision, cost=0)
            else:
                kept += decision.allowed
        return kept

    kept = sum(together(work))
    assert kept <= COUNT
    assert sum(limiter.hit("k", values={"account": n}).allowed for n in range(COUNT)) == COUNT - kept


def test_a_thousand_denials_at_once_begin_exactly_one_block() -> None:
    limiter = Limiter(PENALTY)
    assert limiter.hit("k")

    def work(_: int) -> int:
        found = [given(limiter.hit("k")) for _ in range(1_000 // THREADS)]
        assert STRUCK not in found
        return found.count(BLOCKED)

    assert sum(together(work)) == 1
    peeked = limiter.peek("k")
    assert peeked.blocked
    assert 0 < (peeked.rows[1][2] or 0) <= 3_600_000_000, "it is the first block, not the second"


def test_tasks_with_different_values_are_granted_exactly_the_count_and_blocked_once() -> None:
    async def main() -> None:
        values, penalty = AsyncLimiter(VALUES), AsyncLimiter(PENALTY)
        assert await penalty.hit("k")

        async def work(i: int) -> tuple[int, int]:
            granted = blocks = 0
            for n in range(10):
                granted += (await values.hit("k", values={"account": f"{i}-{n}"})).allowed
                await asyncio.sleep(0)
                blocks += given(await penalty.hit("k")) == BLOCKED
            return granted, blocks

        found = await asyncio.gather(*(work(i) for i in range(100)))
        assert [sum(each) for each in zip(*found, strict=True)] == [COUNT, 1]

    asyncio.run(main())


PROGRAM = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from ratebound import Limiter
url, name, values, penalty = sys.argv[1:]
with Limiter(values, storage=url, failure="raise") as first, Limiter(penalty, storage=url, failure="raise") as second:
    def work(number):
        return (
            first.hit("k", values={"account": f"{name}-{number}"}).allowed,
            second.hit("k").rows[1][6] == 2,
        )
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(100)))
print(json.dumps([sum(each) for each in zip(*found)]))
"""


@pytest.fixture(params=["redis", "shared memory"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "shared memory":
        return str(request.getfixturevalue("zone_url"))
    server: Server = request.getfixturevalue("redis_url_server")
    return f"{server.url}?prefix=values{next(runs)}-&timeout=10&connect_timeout=10"


def test_processes_are_granted_exactly_the_count_and_blocked_once(url: str) -> None:
    with Limiter(PENALTY, storage=url, failure="raise") as limiter:
        assert limiter.hit("k")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, str(i), VALUES, PENALTY], stdout=subprocess.PIPE, text=True
        )
        for i in range(4)
    ]
    try:
        found = [json.loads(each.communicate(timeout=LONGEST)[0]) for each in started]
    finally:
        for each in started:
            each.kill()
            each.communicate()
    assert [sum(each) for each in zip(*found, strict=True)] == [COUNT, 1]
