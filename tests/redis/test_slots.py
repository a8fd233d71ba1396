"""Slots on every Redis and in shared memory: taken, listed, renewed for many keys in one call, lost, released."""

import asyncio
import itertools
from contextlib import AsyncExitStack, ExitStack

import pytest

from ratebound import AsyncLimiter, Limiter
from ratebound.events import SlotLost
from tests.servers import wait_until

TEXT = "2 concurrent for 2 seconds; 100/hour"
KEYS = [f"user:{number}" for number in range(5)]
KINDS = ["redis_url_server", "sentinels", "redis_cluster", "zone_url"]
runs = itertools.count()


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "zone_url":
        return str(request.getfixturevalue("zone_url"))
    found: str = request.getfixturevalue(request.param).url
    return f"{found}{'&' if '?' in found else '?'}prefix=held{next(runs)}-&timeout=10&connect_timeout=10"


def expiries(limiter: Limiter) -> list[float]:
    return [held.expires_at.timestamp() for key in KEYS for held in limiter.holders(key)]


def test_threads_hold_slots_of_many_keys(url: str) -> None:
    events: list[object] = []
    with Limiter(TEXT, storage=url, failure="raise", listeners=[events.append]) as limiter:
        with ExitStack() as stack:
            for key in KEYS:
                stack.enter_context(limiter.acquire(key))
            limiter.reset(KEYS[0])
            before = expiries(limiter)
            assert len(before) == len(KEYS) - 1
            wait_until(lambda: bool(limiter.holders(KEYS[0])), 30, "a slot that is held again")
            wait_until(lambda: min(expiries(limiter)) > max(before), 30, "renewals")
        assert expiries(limiter) == []
        assert sum(isinstance(event, SlotLost) for event in events) == 1
        assert [outcome.remaining for outcome in limiter.peek(KEYS[1]).outcomes] == [2, 99]


def test_tasks_hold_slots_of_many_keys(url: str) -> None:
    async def main() -> None:
        async with AsyncLimiter(TEXT, storage=url, failure="raise") as limiter:
            async with AsyncExitStack() as stack:
                for key in KEYS:
                    await stack.enter_async_context(limiter.acquire(key))
                (before,) = await limiter.holders(KEYS[0])
                while (await limiter.holders(KEYS[0]))[0].expires_at == before.expires_at:
                    await asyncio.sleep(0.05)
                assert [len(await limiter.holders(key)) for key in KEYS] == [1] * len(KEYS)
            assert [await limiter.holders(key) for key in KEYS] == [[]] * len(KEYS)

    asyncio.run(asyncio.wait_for(main(), 60))
