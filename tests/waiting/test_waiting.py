"""Waiting, in simulated time: fair, exact, and nobody in anybody else's way."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress

import pytest

from ratekeeper import (
    AsyncLimiter,
    AsyncMemoryStorage,
    Check,
    Decision,
    Limiter,
    MemoryStorage,
    RateLimited,
    StorageError,
)
from ratekeeper.clock import SECOND
from ratekeeper.decision import Row
from ratekeeper.limit import Group, Mode
from ratekeeper.testing import FakeClock
from tests.waiting.virtual import limiter_of, run, seconds

# One that takes places in the future, one that stands in line, one that does the latter with a queue in it.
KINDS = ["10/second burst 1", "1/100ms", "1/100ms; 10/second burst 100 leaky-bucket"]


async def finish_times(limiter: AsyncLimiter, *waits: tuple[str, int], timeout: float = math.inf) -> list[float]:
    """Start these waits one after the other, at one instant; when does each come through?"""

    async def one(key: str, cost: int) -> float:
        await limiter.wait(key, cost=cost, timeout=timeout)
        return round(seconds(), 6)

    return await asyncio.gather(*(one(key, cost) for key, cost in waits))


@pytest.mark.parametrize(
    ("text", "time"),
    [("100/second burst 1", 10.0), ("100/second burst 100", 9.01), ("1/10ms", 10.0), ("100/second", 10.0)],
)
def test_waiting_delivers_the_configured_rate(text: str, time: float) -> None:
    async def main() -> float:
        limiter = limiter_of(text)
        for _ in range(1_001):
            await limiter.wait("k", timeout=5)
        return seconds()

    assert run(main()) == pytest.approx(time)


@pytest.mark.parametrize("text", KINDS)
def test_waiters_on_one_key_come_through_in_the_order_they_came(text: str) -> None:
    times = run(finish_times(limiter_of(text), *[("k", 1)] * 50))
    assert times == [pytest.approx(i / 10) for i in range(50)]


@pytest.mark.parametrize("text", [*KINDS, "1/hour"])
def test_a_waiter_on_one_key_never_delays_another_key(text: str) -> None:
    async def main() -> list[float]:
        limiter = limiter_of(text)
        for _ in range(3):
            await limiter.hit("a")
        waiting = asyncio.create_task(limiter.wait("a", timeout=math.inf))
        await asyncio.sleep(0)
        times = await finish_times(limiter, *[(f"b{i}", 1) for i in range(100)])
        assert not waiting.done()
        waiting.cancel()
        return times

    assert set(run(main())) == {0.0}


@pytest.mark.parametrize("text", ["10/second burst 10", "10/second", "10/second fixed-window"])
def test_a_large_cost_is_not_starved_by_small_ones_that_come_later(text: str) -> None:
    async def main() -> list[float]:
        limiter = limiter_of(text)
        await limiter.hit("k", cost=10)
        return await finish_times(limiter, ("k", 8), *[("k", 1)] * 30)

    times = run(main())
    assert times[0] == min(times)
    assert times[1:] == sorted(times[1:])


@pytest.mark.parametrize("text", KINDS)
def test_a_cancelled_waiter_gives_its_place_back(text: str) -> None:
    async def main() -> tuple[list[float], int]:
        limiter = limiter_of(text)
        await limiter.hit("k")
        first = asyncio.create_task(limiter.wait("k", timeout=5))
        last = asyncio.create_task(limiter.wait("k", timeout=5))
        await asyncio.sleep(0.01)
        last.cancel()
        await asyncio.sleep(0)
        times = await finish_times(limiter, ("k", 1))
        await first
        return times, len(limiter._lines._lines)

    times, lines = run(main())
    assert times == [pytest.approx(0.2)]
    assert lines == 0


def test_a_cancelled_place_in_several_buckets_is_given_back_in_each() -> None:
    async def main() -> None:
        limiter = limiter_of("1/second burst 1; 20/second burst 1 gcra")
        slow, fast = limiter.limits
        await limiter.check([Check("k", slow)])
        before = (await limiter.peek("k")).outcomes
        waiting = asyncio.create_task(limiter.wait("k", timeout=5))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        after = (await limiter.peek("k")).outcomes
        assert [o.remaining for o in after] == [o.remaining for o in before] == [0, 1]
        assert after[0].retry_after == before[0].retry_after
        assert await limiter.check([Check("k", fast)])

    run(main())


def test_a_cancellation_is_never_lost_when_the_turn_comes_at_the_same_moment() -> None:
    for turns in range(6):

        async def main(turns: int = turns) -> bool:
            limiter = limiter_of("1/50ms")
            await limiter.hit("k")
            first = asyncio.create_task(limiter.wait("k", timeout=5))
            second = asyncio.create_task(limiter.wait("k", timeout=5))
            await asyncio.sleep(0)
            await first
            for _ in range(turns):
                await asyncio.sleep(0)
            second.cancel()
            with suppress(asyncio.CancelledError):
                await second
            return second.cancelled()

        assert run(main())


def test_a_storage_that_fails_at_the_refund_does_not_hide_the_cancellation() -> None:
    class Failing(AsyncMemoryStorage):
        async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            if mode == "force":
                raise StorageError("down")
            return await super().evaluate(groups, mode)

    async def main() -> None:
        limiter = AsyncLimiter("1/minute burst 1", storage=Failing())
        await limiter.hit("k")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await limiter.wait("k", timeout=100)

    asyncio.run(main())


def test_a_queue_behind_a_line_is_not_slept_for_beyond_the_timeout() -> None:
    async def main() -> None:
        limiter = limiter_of("20/second; 10/second burst 10 leaky-bucket")
        await limiter.hit("k")
        front = [asyncio.create_task(limiter.wait("k", timeout=5)) for _ in range(2)]
        await asyncio.sleep(0)
        with suppress(RateLimited):
            await limiter.wait("k", timeout=0.25)
        assert seconds() <= 0.25 + 1e-9
        await asyncio.gather(*front)

    run(main())


def test_a_place_in_the_middle_is_not_handed_out_on_top_of_those_behind_it() -> None:
    async def main() -> list[float]:
        limiter = limiter_of("10/second burst 1")
        await limiter.hit("k")
        tasks = [asyncio.create_task(limiter.wait("k", timeout=5)) for _ in range(3)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        await asyncio.sleep(0)
        return await finish_times(limiter, ("k", 1))

    assert run(main()) == [pytest.approx(0.4)]


def test_the_first_in_line_that_is_cancelled_lets_the_next_go() -> None:
    async def main() -> list[float]:
        limiter = limiter_of("10/second")
        await limiter.hit("k", cost=10)
        large = asyncio.create_task(limiter.wait("k", cost=10, timeout=5))
        await asyncio.sleep(0.5)
        small = asyncio.create_task(finish_times(limiter, ("k", 1)))
        await asyncio.sleep(0.1)
        large.cancel()
        return await small

    assert run(main()) == [pytest.approx(1.0)]


@pytest.mark.parametrize("text", KINDS)
def test_a_wait_that_cannot_be_in_time_is_refused_at_once_and_charged_nothing(text: str) -> None:
    async def main() -> None:
        limiter = limiter_of(text)
        await limiter.hit("k")
        before = (await limiter.peek("k")).outcomes
        with pytest.raises(RateLimited):
            await limiter.wait("k", timeout=0.099999)
        assert seconds() == 0
        assert (await limiter.peek("k")).outcomes == before
        await limiter.wait("k", timeout=0.1)
        assert seconds() == pytest.approx(0.1)

    run(main())


@pytest.mark.parametrize("text", ["20/second", "20/second fixed-window", "20/second; 1000/minute"])
@pytest.mark.parametrize("timeout", [None, 1.2])
def test_as_many_waiters_get_through_as_the_time_allows(text: str, timeout: float | None) -> None:
    """Also when the time is just what the limit needs, so that turns and timeouts come at one instant."""

    async def main() -> tuple[int, int]:
        limiter = limiter_of(text)
        tasks = [limiter.wait("k", timeout=timeout) for _ in range(50)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [result for result in results if isinstance(result, RateLimited)]
        assert not any(error.decision.allowed for error in refused)
        assert not limiter._lines._lines
        return sum(isinstance(result, Decision) for result in results), len(refused)

    assert run(main()) == (40, 10)


def test_one_who_waits_behind_others_leaves_as_soon_as_his_time_will_not_do() -> None:
    async def main() -> None:
        limiter = limiter_of("1/second")
        await limiter.hit("k")
        front = asyncio.create_task(limiter.wait("k", timeout=5))
        await asyncio.sleep(0)
        with pytest.raises(RateLimited) as caught:
            await limiter.wait("k", timeout=1.5)
        assert seconds() == pytest.approx(1.0)  # the turn has come, and the next second is too far away
        assert caught.value.decision.retry_after == pytest.approx(1.0)
        await front
        assert (await limiter.peek("k")).remaining == 0
        assert not limiter._lines._lines

    run(main())


def test_one_whose_turn_never_comes_leaves_the_line_at_his_timeout() -> None:
    async def main() -> None:
        limiter = limiter_of("2/second")
        await limiter.hit("k", cost=2)
        large = asyncio.create_task(limiter.wait("k", cost=2, timeout=5))
        await asyncio.sleep(0.5)
        await limiter.hit("k")  # denied: costs nothing
        with pytest.raises(RateLimited):
            await limiter.wait("k", timeout=0.4)
        assert seconds() == pytest.approx(0.5)  # known from a peek
        with pytest.raises(RateLimited):
            await limiter.wait("k", timeout=0.5)
        assert seconds() == pytest.approx(1.0)
        await large
        assert not limiter._lines._lines

    run(main())


def test_one_who_asks_for_more_than_there_ever_is_does_not_stand_in_line() -> None:
    async def main() -> None:
        limiter = limiter_of("5/second")
        await limiter.hit("k", cost=5)
        front = asyncio.create_task(limiter.wait("k", timeout=5))
        await asyncio.sleep(0)
        with pytest.raises(RateLimited, match="no wait can help"):
            await limiter.wait("k", cost=6, timeout=math.inf)
        assert seconds() == 0
        await front

    run(main())


def test_a_wait_is_no_longer_than_max_delay_unless_asked() -> None:
    async def main() -> None:
        limiter = limiter_of("1/2 seconds", max_delay=1.9)
        await limiter.hit("k")
        with pytest.raises(RateLimited):
            await limiter.wait("k")
        await limiter.wait("k", timeout=2)
        assert seconds() == pytest.approx(2)

    run(main())
    assert Limiter("1/second").max_delay == 1.0


def test_a_leaky_bucket_is_slept_for_and_never_beyond_the_timeout() -> None:
    for text in ("10/second burst 5 leaky-bucket", "10/second burst 5 leaky-bucket; 100/minute"):

        async def main(text: str = text) -> None:
            limiter = limiter_of(text)
            assert [round((await limiter.hit("k")).delay, 6) for _ in range(3)] == [0.0, 0.1, 0.2]
            with pytest.raises(RateLimited):
                await limiter.wait("k", timeout=0.25)
            decision = await limiter.wait("k", timeout=0.3)
            assert decision.delay == pytest.approx(0.3)
            assert seconds() == pytest.approx(0.3)

        run(main())


def test_hit_never_sleeps() -> None:
    async def main() -> None:
        limiter = limiter_of("1/hour; 1/hour burst 3 leaky-bucket")
        for _ in range(3):
            await limiter.hit("k")
        assert seconds() == 0

    run(main())


def test_several_buckets_are_waited_for_together() -> None:
    times = run(finish_times(limiter_of("10/second burst 2; 3/second burst 3 as slow"), *[("k", 1)] * 6))
    assert times == [0.0, 0.0, pytest.approx(0.1), pytest.approx(1 / 3), pytest.approx(2 / 3), pytest.approx(1)]


def test_infinity_is_a_timeout() -> None:
    async def main() -> float:
        limiter = limiter_of("1/day burst 1")
        for _ in range(4):
            await limiter.wait("k", timeout=math.inf)
        return seconds()

    assert run(main()) == pytest.approx(3 * 86_400)


def test_event_loops_may_come_and_go() -> None:
    limiter = AsyncLimiter("1/10ms")

    async def twice() -> list[Decision]:
        return [await limiter.wait("k") for _ in range(2)]

    for _ in range(3):
        assert all(asyncio.run(twice()))
    assert not limiter._lines._lines


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_a_sync_waiter_that_is_interrupted_gives_its_place_back(error: type[BaseException]) -> None:
    clock = FakeClock()

    def interrupted(seconds: float) -> None:
        clock.advance(seconds / 2)
        raise error

    storage = MemoryStorage(clock=clock)
    limiter = Limiter("1/second burst 1", storage=storage, sleep=interrupted)
    limiter.hit("k")
    with pytest.raises(error):
        limiter.wait("k")
    assert Limiter("1/second burst 1", storage=storage).peek("k").retry_after == 0.5

    in_line = Limiter("1/second", storage=storage, sleep=interrupted)
    in_line.hit("k")
    with pytest.raises(error):
        in_line.wait("k")
    assert not in_line._lines._lines
    assert in_line.peek("k").retry_after == 0.5


def test_acquire_waits_and_honours_its_cost() -> None:
    clock = FakeClock()
    limiter = Limiter("10/second", storage=MemoryStorage(clock=clock), sleep=clock.sleep)
    begin = clock.now
    for _ in range(3):
        with limiter.acquire("k", cost=5, timeout=1.0) as decision:
            assert decision.allowed
    assert clock.now - begin == SECOND
    with pytest.raises(RateLimited), limiter.acquire("k", cost=6, timeout=0.5):
        raise AssertionError("the body must not run")

    async def main() -> float:
        limiter = limiter_of("10/second")
        for _ in range(3):
            async with limiter.acquire("k", cost=5) as decision:
                assert decision
        return seconds()

    assert run(main()) == pytest.approx(1.0)
