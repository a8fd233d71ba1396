"""A wait ends within its timeout, whatever happens meanwhile. In simulated time."""

import asyncio

import pytest

from ratebound import AsyncLimiter, AsyncMemoryStorage, RateLimited
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
