"""Waiting, in simulated time: fair, exact, and nobody in anybody else's way."""

import asyncio
import gc
import math
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest

from ratebound import (
    AsyncLimiter,
    AsyncMemoryStorage,
    Check,
    Decision,
    Limiter,
    MemoryStorage,
    RateLimited,
    StorageError,
)
from ratebound.clock import SECOND
from ratebound.limit import ALGORITHMS, Group, Mode
from ratebound.outcome import Row
from ratebound.testing import FakeClock
from ratebound.waiting import Line, Lines
from tests.waiting.virtual import VirtualLoop, limiter_of, run, seconds

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


@pytest.mark.parametrize(("text", "second", "later"), [("10/second burst 1", 0.3, 0.2), ("1/100ms", 0.2, 0.3)])
def test_a_freed_place_goes_to_the_next_arrival_but_a_line_moves_up(text: str, second: float, later: float) -> None:
    async def main() -> list[float]:
        limiter = limiter_of(text)
        await limiter.wait("k")
        waiting = [asyncio.create_task(finish_times(limiter, ("k", 1))) for _ in range(3)]
        await asyncio.sleep(0.01)
        waiting[1].cancel()
        await asyncio.sleep(0)
        arrival = asyncio.create_task(finish_times(limiter, ("k", 1)))
        return [(await task)[0] for task in (waiting[0], waiting[2], arrival)]

    assert run(main()) == [pytest.approx(0.1), pytest.approx(second), pytest.approx(later)]


@pytest.mark.parametrize(
    ("text", "times"), [("20/second burst 1", [0, 0.3, 0.3, 0.3]), ("1/50ms", [0, 0.3, 0.35, 0.4])]
)
def test_waiters_that_wake_late_go_ahead_together_only_where_they_have_places(text: str, times: list[float]) -> None:
    async def main() -> list[float]:
        waiting = asyncio.ensure_future(finish_times(limiter_of(text), *[("k", 1)] * 4))
        await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.jumping.now = 0.3  # as if something had blocked the loop until then
        return await waiting

    assert run(main()) == [pytest.approx(time) for time in times]


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
        assert after[0].retry_after_us == before[0].retry_after_us
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


def test_a_place_in_the_middle_is_handed_out_first_and_not_on_top_of_those_behind_it() -> None:
    async def main() -> list[float]:
        limiter = limiter_of("10/second burst 1")
        await limiter.hit("k")
        tasks = [asyncio.create_task(limiter.wait("k", timeout=5)) for _ in range(3)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        await asyncio.sleep(0)
        return await finish_times(limiter, ("k", 1), ("k", 1))

    assert run(main()) == [pytest.approx(0.2), pytest.approx(0.4)]


@pytest.mark.parametrize(
    "text", ["10/second burst 1", "7/second burst 3", "10/second burst 5 leaky-bucket", *KINDS[1:]]
)
@pytest.mark.parametrize("order", ["first first", "last first", "at once", "shuffled"])
def test_waiters_that_are_all_cancelled_leave_nothing_behind(text: str, order: str) -> None:
    async def main() -> None:
        limiter, alone = limiter_of(text), limiter_of(text)
        for each in (limiter, alone):
            await each.hit("k")
        tasks = [asyncio.create_task(limiter.wait("k", timeout=100)) for _ in range(60 if order == "shuffled" else 200)]
        await asyncio.sleep(0.01)
        leaving = tasks[::-1] if order == "last first" else list(tasks)
        if order == "shuffled":
            Random(7).shuffle(leaving)
        for task in leaving:
            task.cancel()
            if order != "at once":
                await asyncio.gather(task, return_exceptions=True)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for _ in [result for result in results if isinstance(result, Decision)]:
            await alone.hit("k")  # some had no need to wait
        assert (await limiter.peek("k")).outcomes == (await alone.peek("k")).outcomes

    run(main())


def test_of_two_hundred_waiters_cancelled_in_any_order_a_hit_sees_nothing() -> None:
    """More holes than a state keeps: those that are forgotten are the latest, and nobody asks for them yet."""

    async def main() -> None:
        limiter = limiter_of("10/second burst 1")
        await limiter.hit("k")
        tasks = [asyncio.create_task(limiter.wait("k", timeout=100)) for _ in range(200)]
        await asyncio.sleep(0.01)
        for task in Random(7).sample(tasks, 200):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert (await limiter.hit("k")).retry_after == pytest.approx(0.09)

    run(main())


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


@pytest.mark.parametrize(
    "text", ["1/second", "1/second fixed-window", "1/second burst 1", "1/second burst 1; 9/second"]
)
def test_one_who_waits_behind_others_is_refused_at_once_if_his_time_will_not_do(text: str) -> None:
    async def main() -> None:
        limiter = limiter_of(text)
        await limiter.hit("k")
        front = asyncio.create_task(limiter.wait("k", timeout=5))
        await asyncio.sleep(0)
        with pytest.raises(RateLimited) as caught:
            await limiter.wait("k", timeout=1.5)
        assert seconds() == 0
        assert caught.value.decision.retry_after == pytest.approx(0.5)
        await asyncio.sleep(0.5)
        await limiter.wait("k", timeout=1.5)  # the same wait, when it was said to do
        assert seconds() == pytest.approx(2.0)
        await front
        assert not limiter._lines._lines

    run(main())


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        ("5/second burst 5", 15),
        ("5/second", 15),
        ("5/second fixed-window", 15),
        ("5/second burst 5 leaky-bucket", 11),
        ("5/second; 5/second burst 5 leaky-bucket", 11),
        ("5/second burst 5; 60/minute", 15),
        ("5/second burst 5; 8/minute", 8),
        ("5/second sliding-counter", 10),
    ],
)
def test_those_who_cannot_pass_in_time_are_refused_at_once_and_the_others_pass(text: str, passing: int) -> None:
    async def main() -> None:
        limiter = limiter_of(text)

        async def one() -> float | None:
            try:
                await limiter.wait("k", timeout=2.0)
            except RateLimited:
                assert seconds() == 0
                return None
            return seconds()

        times = await asyncio.gather(*(one() for _ in range(300)))
        assert sum(time is not None for time in times) == passing

    run(main())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("cost", [1, 2])
def test_the_same_wait_passes_after_retry_after_and_not_a_microsecond_before(algorithm: str, cost: int) -> None:
    clock = FakeClock()
    limiter = Limiter(f"3/10 seconds {algorithm}", storage=MemoryStorage(clock=clock), sleep=clock.sleep)
    for _ in range(3):
        limiter.hit("k")
        clock.advance(0.1)
    with pytest.raises(RateLimited) as caught:
        limiter.wait("k", cost=cost, timeout=1)
    said = caught.value.decision.retry_after
    assert said
    clock.now += round(said * SECOND) - 1
    with pytest.raises(RateLimited):
        limiter.wait("k", cost=cost, timeout=1)
    clock.now += 1
    assert limiter.wait("k", cost=cost, timeout=1).allowed


def test_a_leaky_bucket_and_a_window_agree_on_the_instant_of_going_ahead() -> None:
    async def main() -> None:
        limiter = limiter_of("10/second burst 20 leaky-bucket as flow; 5/second as cap")
        flow, _ = limiter.limits
        await limiter.check(Check("k", flow, cost=5))
        times = sorted(await finish_times(limiter, *[("k", 1)] * 10))
        assert all(later - earlier >= 1 - 1e-9 for earlier, later in zip(times, times[5:], strict=False))
        assert all(later - earlier >= 0.1 - 1e-9 for earlier, later in pairwise(times))

    run(main())


class Counting(int):
    """A number that counts how often it, and what is made of it, is added to another."""

    additions = 0

    def __add__(self, other: int) -> "Counting":
        Counting.additions += 1
        return Counting(int(self) + int(other))

    __radd__ = __add__

    def __rsub__(self, other: int) -> "Counting":
        Counting.additions += 1
        return Counting(int(other) - int(self))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_line_takes_logarithmic_time_to_enter_and_to_leave(backwards: bool) -> None:
    Counting.additions = 0
    count = 4096
    lines, tickets = Lines(), [threading.Event() for _ in range(count)]
    for i, ticket in enumerate(tickets):
        assert lines.enter((None, "k"), ticket, Counting(2)) == (i == 0)
        assert lines.in_front_of((None, "k"), ticket) == 2 * i
    for i, ticket in enumerate(tickets):
        if i % 2:
            lines.leave((None, "k"), ticket)
    assert [lines.in_front_of((None, "k"), ticket) for ticket in tickets[::2]] == list(range(0, count, 2))
    for ticket in tickets[-2::-2] if backwards else tickets[::2]:
        lines.leave((None, "k"), ticket)
    assert not lines._lines
    assert Counting.additions < 5 * count * 12


def test_a_line_that_is_never_empty_does_not_grow() -> None:
    line = Line()
    tickets = [threading.Event() for _ in range(1_000)]
    for i, ticket in enumerate(tickets):
        line.append(ticket, 3)
        if i >= 10:
            line.remove(tickets[i - 10])
            assert line.in_front_of(ticket) == 27
            assert line.first() is tickets[i - 9]
    assert len(line._sums) < 200


@pytest.mark.parametrize("text", KINDS)
def test_a_loop_that_is_closed_with_waiters_makes_no_noise(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noise: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    limiter, loop = AsyncLimiter(text, max_delay=1_000), asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # asyncio itself says that tasks were pending

    async def main() -> None:
        for _ in range(4):
            asyncio.get_running_loop().create_task(limiter.wait("k", timeout=1_000))
        await asyncio.sleep(0.01)

    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert not noise


def test_event_loops_that_are_closed_with_waiters_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    noise: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    limiter = AsyncLimiter("1/second sliding-log")
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        await limiter.hit("k")
        for _ in range(5):
            asyncio.ensure_future(limiter.wait("k", timeout=1_000))  # noqa: RUF006 - the line keeps it
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    for _ in range(20):
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)  # asyncio itself says that tasks were pending
        loop.run_until_complete(main())
        loop.close()
        loops.append(weakref.ref(loop))
        del loop
    gc.collect()
    assert sum(loop() is not None for loop in loops) <= 1
    assert len(limiter._lines._lines) <= 1
    assert not noise


@pytest.mark.parametrize(
    ("text", "costs", "passes"),
    [
        ("10/second fixed-window", (6, 6, 6), 3.0),  # each takes a window of its own, though two would hold them all
        ("10/second", (6, 6, 6), 3.0),
        ("10/second fixed-window; 3/2 seconds fixed-window as slow", (1, 1, 1, 1), 4.0),
    ],
)
def test_behind_costs_that_do_not_fit_nobody_is_refused_in_error_nor_later_than_his_timeout(
    text: str, costs: tuple[int, ...], passes: float
) -> None:
    async def last(timeout: float) -> tuple[bool, float]:
        limiter = limiter_of(text)
        await limiter.hit("k", cost=10 if costs[0] > 1 else 3)
        front = [asyncio.create_task(limiter.wait("k", cost=cost, timeout=100)) for cost in costs[:-1]]
        await asyncio.sleep(0)
        try:
            return (await limiter.wait("k", cost=costs[-1], timeout=timeout)).allowed, seconds()
        except RateLimited:
            return False, seconds()
        finally:
            await asyncio.gather(*front)
            assert not limiter._lines._lines

    allowed, when = run(last(passes))
    assert allowed
    assert when == pytest.approx(passes)
    allowed, when = run(last(passes - 0.1))
    assert not allowed
    assert when <= passes - 0.1


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
        assert seconds() == pytest.approx(0.5)  # the next after the large one passes at 2.0
        await large
        assert not limiter._lines._lines

    run(main())


def test_one_whose_turn_is_taken_by_others_leaves_the_line_at_his_timeout() -> None:
    async def main() -> None:
        limiter = limiter_of("2/second")
        await limiter.hit("k", cost=2)
        storage = limiter.storage
        assert isinstance(storage, AsyncMemoryStorage)
        elsewhere: Group = (("k", limiter.limits, 2, None, None),)
        asyncio.get_running_loop().call_later(1.0, storage.memory.at_once, elsewhere)
        front = asyncio.create_task(limiter.wait("k", timeout=5))
        await asyncio.sleep(0)
        with pytest.raises(RateLimited) as caught:
            await limiter.wait("k", timeout=1.2)
        assert seconds() == pytest.approx(1.2)
        assert caught.value.decision.retry_after == 0  # 0.8 s more would have done
        await front
        assert seconds() == pytest.approx(2.0)
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
            assert await limiter.wait("k", timeout=0.3)
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
