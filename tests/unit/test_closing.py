"""A limiter that was closed says so, and connects to nothing behind its user's back."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from ratebound import AsyncLimiter, AsyncMemoryStorage, Check, Limiter, MemoryStorage, parse_limit
from ratebound.testing import FakeClock
from tests.servers import Server
from tests.unit.faulty import AsyncFaulty, Prompt

CLOSED = "this limiter is closed: make a new one"
CALLS: dict[str, Callable[[Any], Any]] = {
    "hit": lambda limiter: limiter.hit("k"),
    "hit with a cost": lambda limiter: limiter.hit("k", cost=2),
    "hit_many": lambda limiter: limiter.hit_many(["k", "l"]),
    "peek": lambda limiter: limiter.peek("k"),
    "check": lambda limiter: limiter.check(Check("k", parse_limit("5/minute"))),
    "wait": lambda limiter: limiter.wait("k"),
    "reset": lambda limiter: limiter.reset("k"),
}


def storages(clock: FakeClock) -> list[Any]:
    return ["memory://", Prompt(clock)]


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_limiter_raises(call: str, clock: FakeClock) -> None:
    for storage in storages(clock):
        limiter = Limiter("5/minute", storage=storage)
        decision = limiter.hit("k")
        limiter.close()
        limiter.close()
        with pytest.raises(RuntimeError, match=CLOSED):
            CALLS[call](limiter)
        with pytest.raises(RuntimeError, match=CLOSED):
            limiter.settle(decision, cost=0)


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_limiter_of_tasks_raises(call: str, clock: FakeClock) -> None:
    async def main(storage: Any) -> None:
        limiter = AsyncLimiter("5/minute", storage=storage)
        await limiter.hit("k")
        await limiter.close()
        with pytest.raises(RuntimeError, match=CLOSED):
            await CALLS[call](limiter)

    for storage in ("memory://", AsyncFaulty(Prompt(clock))):
        asyncio.run(main(storage))


def test_a_with_statement_opens_it_again_and_the_counts_are_kept(clock: FakeClock) -> None:
    for storage in storages(clock):
        limiter = Limiter("2/day", storage=storage)
        for left in (1, 0):
            with limiter:
                assert limiter.hit("k").remaining == left
            with pytest.raises(RuntimeError, match=CLOSED):
                limiter.hit("k")


def test_it_is_open_until_the_last_with_statement_has_ended(clock: FakeClock) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("5/minute")
        async with limiter:
            async with limiter:
                assert await limiter.hit("k")
            assert await limiter.hit("k")
        with pytest.raises(RuntimeError, match=CLOSED):
            await limiter.hit("k")

    with Limiter("5/minute", storage=Prompt(clock)) as limiter:
        with limiter:
            assert limiter.hit("k")
        assert limiter.hit("k")
    asyncio.run(main())


def test_functions_that_a_closed_limiter_decorates_raise() -> None:
    limiter = Limiter("5/minute")

    @limiter.limit
    def function() -> None: ...

    @limiter.limit
    async def coroutine() -> None: ...

    function()
    asyncio.run(coroutine())
    limiter.close()
    with pytest.raises(RuntimeError, match=CLOSED):
        function()
    with pytest.raises(RuntimeError, match=CLOSED):
        asyncio.run(coroutine())


def test_a_closed_limiter_does_not_connect_again(fresh_redis: Server) -> None:
    def clients() -> int:
        with fresh_redis.client() as admin:
            return len(admin.client_list())

    limiter = Limiter("5/minute", storage=f"{fresh_redis.url}?timeout=5&connect_timeout=5")
    limiter.hit("k")
    limiter.close()
    with pytest.raises(RuntimeError, match=CLOSED):
        limiter.hit("k")
    assert clients() == 1


def test_async_functions_that_threads_decorate_at_once_have_one_twin_and_are_closed_together() -> None:
    both = threading.Barrier(2)

    class Meeting(MemoryStorage):
        def async_twin(self) -> AsyncMemoryStorage:
            with suppress(threading.BrokenBarrierError):  # nobody else comes: one thread makes the twin
                both.wait(0.2)
            return super().async_twin()

    limiter = Limiter("5/minute", storage=Meeting())
    decorated: list[Callable[[], Any]] = []

    def decorate() -> None:
        @limiter.limit(key="k")
        async def function() -> None: ...

        decorated.append(function)

    threads = [threading.Thread(target=decorate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    limiter.close()
    assert len(decorated) == 2
    for function in decorated:
        with pytest.raises(RuntimeError, match=CLOSED):
            asyncio.run(function())
