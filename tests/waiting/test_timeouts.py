"""A wait ends within its timeout, whatever happens meanwhile. In simulated time."""

import asyncio
from collections.abc import Sequence

import pytest

from ratebound import AsyncLimiter, AsyncMemoryStorage, RateLimited
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from tests.waiting.virtual import clock, run, seconds


def test_a_queue_that_grew_during_a_sleep_holds_nobody_back_beyond_the_timeout() -> None:
    queue = "1/second burst 9 leaky-bucket as queue"

    async def main() -> float:
        storage = AsyncMemoryStorage(clock=clock)
        both = AsyncLimiter(f"1/second as window; {queue}", storage=storage)
        others = AsyncLimiter(queue, storage=storage)
        await both.wait("k", timeout=2)
        waiter = asyncio.ensure_future(both.wait("k", timeout=2))
        await asyncio.sleep(0.5)
        for _ in range(3):
            await others.hit("k")
        with pytest.raises(RateLimited):
            await waiter
        return seconds()

    assert run(main()) <= 2


class Contended(AsyncMemoryStorage):
    """A storage in which another process always comes first."""

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        if mode == "spend":
            await super().evaluate(groups, mode)
        return await super().evaluate(groups, mode)


@pytest.mark.parametrize(("text", "late"), [("1 concurrent", 0.25), ("1/second", 1.0)])
def test_a_clock_that_steps_back_prolongs_a_wait_by_one_pause_at_most(text: str, late: float) -> None:
    async def main() -> float:
        back = 0
        kind = AsyncMemoryStorage if "concurrent" in text else Contended
        limiter = AsyncLimiter(text, storage=kind(clock=lambda: clock() - back))
        await limiter.hit("k")
        waiters = [asyncio.ensure_future(limiter.acquire("k", timeout=3).__aenter__()) for _ in range(2)]
        await asyncio.sleep(0.5)
        back = 3_600_000_000
        for waiter in waiters:
            with pytest.raises(RateLimited):
                await waiter
        return seconds()

    assert run(main()) <= 3 + late
