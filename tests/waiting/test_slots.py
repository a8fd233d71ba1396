"""Slots: held while the work runs, released however it ends, and waited for."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from ratebound import AsyncLimiter, Check, Limiter, MemoryStorage, RateLimited, StorageError, parse_limit
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.testing import FakeClock, limiting_off, nothing_sleeps
from ratebound.waiting import FIRST_PAUSE, LONGEST_PAUSE, SlotWaiters, slot_waiters
from tests.limiters import limiter_of
from tests.servers import wait_until
from tests.waiting import virtual
from tests.waiting.virtual import run, seconds

TEXT = "2 concurrent for 30 seconds"


class Stop(BaseException):
    """An exception like KeyboardInterrupt, which nothing catches on its way."""


class Alarm(TimeoutError):
    """An exception as the handler of an alarm raises it."""


def free(limiter: Limiter, key: str = "k") -> int:
    return limiter.peek(key).remaining


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_a_slot_is_held_for_the_body_and_released_however_it_ends(
    error: type[BaseException] | None, clock: FakeClock
) -> None:
    limiter = limiter_of(TEXT, clock)

    def body() -> None:
        with limiter.acquire("k") as decision:
            assert decision.allowed
            assert free(limiter) == 1
            if error is not None:
                raise error

    if error is None:
        body()
    else:
        with pytest.raises(error):
            body()
    assert free(limiter) == 2
    assert limiter.holders("k") == []


def test_no_more_than_the_count_get_in_and_the_others_are_refused_at_their_timeout(clock: FakeClock) -> None:
    limiter = limiter_of(TEXT, clock)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(limiter.acquire("k", timeout=0))
        with pytest.raises(RateLimited, match=r"slots.*timeout=3"):
            limiter.wait("k", timeout=3)
        assert clock.now == FakeClock().now + 3_000_000, "a lease of 30 s is no reason to refuse it at once"
    limiter.wait("k", timeout=0)


def test_a_bare_hit_holds_one_lease_and_release_ends_it_at_any_time(clock: FakeClock) -> None:
    limiter = limiter_of(TEXT, clock)
    first, second = limiter.hit("k"), limiter.hit("k")
    assert not limiter.hit("k")
    limiter.release(first)
    limiter.release(first)
    assert free(limiter) == 1
    clock.advance(30)
    assert free(limiter) == 2
    limiter.release(second)
    assert free(limiter) == 2


def test_releasing_a_denied_decision_or_one_without_slots_does_nothing(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent; 5/minute", clock)
    limiter.hit("k")
    limiter.release(limiter.hit("k"))
    assert not limiter.hit("k")
    rate = limiter_of("1/minute", clock)
    rate.release(rate.hit("k"))
    assert not rate.hit("k")


def test_what_is_no_decision_cannot_be_released_or_settled(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent; 5/minute", clock)
    wrong: Any = "user:42"
    with pytest.raises(TypeError, match="expected a Decision, as `hit` returns it, not 'user:42'"):
        limiter.release(wrong)
    with pytest.raises(TypeError, match="expected a Decision, as `hit` returns it, not 'user:42'"):
        limiter.settle(wrong, cost=1)


def test_hit_many_takes_a_slot_for_each_key(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent", clock)
    decisions = limiter.hit_many(["a", "b", "a"])
    assert [decision.allowed for decision in decisions] == [True, True, False]
    for decision in decisions:
        limiter.release(decision)
    assert all(limiter.hit_many(["a", "b"]))


def test_releasing_one_slot_leaves_those_of_others(clock: FakeClock) -> None:
    limiter = limiter_of(TEXT, clock)
    with limiter.acquire("k"):
        with limiter.acquire("k"):
            assert free(limiter) == 0
        assert free(limiter) == 1


def test_a_decision_released_in_the_body_is_not_released_again(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent", clock)
    with limiter.acquire("k") as decision:
        limiter.release(decision)
        assert limiter.hit("k")
    assert free(limiter) == 0


def test_rates_are_charged_once_and_stay_charged(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent for 10 seconds; 5/hour", clock)
    held = limiter.hit("k")
    with pytest.raises(RateLimited):
        limiter.wait("k", timeout=2)
    limiter.release(held)
    with limiter.acquire("k") as decision:
        assert [outcome.remaining for outcome in decision.outcomes] == [0, 3]
    assert limiter.peek("k").remaining == 3


def test_a_waiter_that_the_rate_cannot_let_pass_in_time_is_refused_at_once(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent; 1/hour", clock)
    limiter.hit("k")
    with pytest.raises(RateLimited) as refused:
        limiter.wait("k", timeout=60)
    assert clock.now == FakeClock().now
    assert refused.value.decision.retry_after == 3600 - 60


def test_a_wait_ends_when_the_lease_of_another_does(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent for 10 seconds", clock)
    limiter.hit("k")
    assert limiter.wait("k", timeout=60)
    assert clock.now == FakeClock().now + 10_000_000


def test_pauses_grow_from_5_to_250_milliseconds() -> None:
    pauses: list[float] = []
    clock = FakeClock()

    def sleep(length: float) -> None:
        pauses.append(length)
        clock.advance(length)

    limiter = Limiter("1 concurrent", storage=MemoryStorage(clock=clock), sleep=sleep)
    limiter.hit("k")
    with pytest.raises(RateLimited):
        limiter.wait("k", timeout=5)
    assert FIRST_PAUSE / 2 <= pauses[0] <= FIRST_PAUSE
    assert FIRST_PAUSE <= pauses[1] <= 2 * FIRST_PAUSE
    assert all(LONGEST_PAUSE / 2 <= pause <= LONGEST_PAUSE for pause in pauses[7:-1])
    assert pauses[10] != pauses[11], "the same pause in all processes would make them try together"


def test_a_thread_is_woken_by_a_release_in_its_process() -> None:
    storage = MemoryStorage(clock=FakeClock())
    holder, waiter = (Limiter("1 concurrent", storage=storage) for _ in range(2))
    decision = holder.hit("k")
    came = threading.Event()

    def wait() -> None:
        waiter.wait("k", timeout=600)
        came.set()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: "k" in slot_waiters._waiting, 10, "a waiter")
    (ticket,) = slot_waiters._waiting["k"]
    wait_until(lambda: not ticket.is_set(), 10, "a try")  # type: ignore[attr-defined]
    holder.release(decision)
    thread.join(10)
    assert came.is_set()
    assert not slot_waiters._waiting


def test_a_task_is_woken_by_a_release_in_its_process() -> None:
    """In simulated time: a task that slept until its next try would come through later."""

    async def main() -> list[float]:
        limiter = virtual.limiter_of("1 concurrent for 30 seconds")
        came: list[float] = []

        async def work() -> None:
            async with limiter.acquire("k", timeout=1000):
                came.append(round(seconds(), 6))
                await asyncio.sleep(7)

        await asyncio.gather(*(work() for _ in range(5)))
        return came

    assert run(main()) == [0, 7, 14, 21, 28]


def test_tasks_get_slots_in_the_order_in_which_they_came() -> None:
    async def main() -> list[int]:
        limiter = virtual.limiter_of("3 concurrent for 30 seconds")
        order: list[int] = []

        async def work(number: int) -> None:
            async with limiter.acquire("k", timeout=1000):
                order.append(number)
                await asyncio.sleep(1 + number % 3)

        await asyncio.gather(*(work(number) for number in range(30)))
        return order

    assert run(main()) == list(range(30))


@pytest.mark.parametrize("text", ["1 concurrent", "1 concurrent; 1000/hour", "1 concurrent; 10/day burst 1000"])
def test_cancelled_and_late_waiters_leave_nothing_behind(text: str) -> None:
    async def main() -> None:
        limiter = virtual.limiter_of(text)
        held = await limiter.hit("k")
        before = await limiter.peek("k")
        tasks = [asyncio.ensure_future(limiter.wait("k", timeout=number)) for number in range(1, 20)]
        await asyncio.sleep(5.5)
        for task in tasks[10:]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [RateLimited] * 10 + [asyncio.CancelledError] * 9
        after = await limiter.peek("k")
        assert [row[:2] for row in after.rows] == [row[:2] for row in before.rows]
        assert not slot_waiters._waiting
        await limiter.release(held)
        assert await limiter.hit("k")

    run(main())


@pytest.mark.parametrize("number", range(6))
def test_a_task_cancelled_at_any_moment_of_its_body_releases_its_slot(number: int) -> None:
    async def main() -> None:
        limiter = virtual.limiter_of("1 concurrent")

        async def work() -> None:
            async with limiter.acquire("k"):
                for _ in range(3):
                    await asyncio.sleep(0)

        task = asyncio.ensure_future(work())
        for _ in range(number):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await limiter.hit("k")

    run(main())


class Slow:
    """A storage that has decided, and whose answers come a turn of the event loop later; or when `answers` is set."""

    deadline = 60.0

    def __init__(self) -> None:
        self.memory = MemoryStorage(clock=FakeClock())
        self.answers = asyncio.Event()
        self.asked: list[Mode] = []

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        self.asked.append(mode)
        await self.answers.wait()
        await asyncio.sleep(0)
        return self.memory.evaluate(groups, mode)

    async def reset(self, group: Group) -> None:
        self.memory.reset(group)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("turns", range(5))
def test_a_task_that_is_cancelled_again_and_again_releases_its_slot(turns: int) -> None:
    async def main() -> None:
        storage = Slow()
        storage.answers.set()
        async with AsyncLimiter("1 concurrent", storage=storage) as limiter:
            task = asyncio.ensure_future(work(limiter))
            while storage.memory.keys == 0:
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            storage.answers.clear()
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
            assert storage.memory.keys == 1, "it did not wait for the release"
            storage.answers.set()
        assert storage.memory.keys == 0

    async def work(limiter: AsyncLimiter) -> None:
        async with limiter.acquire("k"):
            await asyncio.sleep(60)

    asyncio.run(main())


class Broken:
    """A storage that decides and then loses its answers while `broken`."""

    deadline = 60.0

    def __init__(self) -> None:
        self.memory = MemoryStorage(clock=FakeClock())
        self.broken = False

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        rows = self.memory.evaluate(groups, mode)
        if self.broken:
            self.broken = False
            raise StorageError("the answer is lost")
        return rows

    def reset(self, group: Group) -> None:
        self.memory.reset(group)

    def close(self) -> None:
        pass


def test_a_waiter_whose_answer_is_lost_leaves_no_slot_behind() -> None:
    storage = Broken()
    limiter = Limiter("1 concurrent", storage=storage, failure="raise")
    storage.broken = True
    with pytest.raises(StorageError):
        limiter.wait("k")
    assert limiter.hit("k")


def test_a_release_that_fails_does_not_reach_the_body(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(MemoryStorage):
        broken = False

        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            if self.broken:
                self.broken = False
                raise RuntimeError("a mistake")
            return super().evaluate(groups, mode)

    storage = Failing(clock=FakeClock())
    limiter = Limiter("3 concurrent", storage=storage)
    with limiter.acquire("k"):
        storage.broken = True
    assert "end with their lease" in caplog.text

    def body() -> None:
        with limiter.acquire("k"):
            storage.broken = True
            raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        body()


def test_a_limiter_that_is_closed_in_the_body_does_not_raise_at_its_end(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent", clock)
    with limiter.acquire("k"):
        limiter.close()


@contextmanager
def signals(raised: list[int], kind: type[BaseException] = Stop) -> Iterator[None]:
    def handler(number: int, frame: Any) -> None:
        raised.append(number)
        raise kind

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", [Stop, Alarm])
def test_an_interruption_in_the_release_does_not_stop_it(kind: type[BaseException], clock: FakeClock) -> None:
    class Interrupting(MemoryStorage):
        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            if mode == "force" and not raised:
                os.kill(os.getpid(), signal.SIGUSR1)
            return super().evaluate(groups, mode)

    raised: list[int] = []
    limiter = Limiter("1 concurrent", storage=Interrupting(clock=clock))
    with signals(raised, kind), pytest.raises(kind), limiter.acquire("k"):
        pass
    assert raised
    assert limiter.hit("k")


def test_an_interruption_between_a_spend_and_its_answer_leaves_no_slot_taken(clock: FakeClock) -> None:
    class Interrupting(MemoryStorage):
        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            rows = super().evaluate(groups, mode)
            if mode == "spend" and not raised:
                os.kill(os.getpid(), signal.SIGUSR1)
            return rows

    raised: list[int] = []
    limiter = Limiter("1 concurrent", storage=Interrupting(clock=clock))
    with signals(raised), pytest.raises(Stop):
        limiter.wait("k")
    assert raised
    assert limiter.hit("k")


def test_a_decorated_function_holds_its_slot_until_it_returns(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent", clock)

    @limiter.limit(key="k", timeout=0, fallback="full")
    def export(depth: int) -> object:
        assert free(limiter) == 0
        if depth < 0:
            raise ValueError(depth)
        return depth if depth == 0 else export(depth - 1)

    assert export(0) == 0
    assert export(1) == "full"
    with pytest.raises(ValueError, match="-1"):
        export(-1)
    assert free(limiter) == 1


def test_a_generator_is_not_decorated_if_there_are_slots(clock: FakeClock) -> None:
    def rows() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"rows is a generator.*use acquire inside"):
        limiter_of("1 concurrent", clock).limit(rows)
    assert list(limiter_of("1/minute", clock).limit(rows)()) == [1]


def test_a_release_in_a_thread_wakes_tasks_of_event_loops_that_run_and_skips_closed_ones() -> None:
    async def main() -> None:
        ticket = asyncio.Event()
        waiters.enter((asyncio.get_running_loop(), "k"), ticket)
        await asyncio.to_thread(waiters.wake, [("k", (), 1, None, None)])
        await ticket.wait()

    waiters = SlotWaiters()
    for _ in range(2):
        asyncio.run(main())


def test_a_denial_inside_a_decorated_function_does_not_become_its_fallback(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent", clock)

    @limiter.limit(key="k", fallback="full")
    def export() -> str:
        raise RateLimited(limiter.peek("k"))

    with pytest.raises(RateLimited):
        export()


@pytest.mark.parametrize("make", [AsyncLimiter, Limiter])
def test_a_decorated_async_function_holds_its_slot_until_it_is_awaited_to_the_end(make: Callable[..., Any]) -> None:
    async def main() -> None:
        memory = MemoryStorage(clock=virtual.clock)
        limiter = make("2 concurrent for 10 seconds", storage=memory, max_delay=1000)
        most = now = 0

        @limiter.limit(key="k")  # type: ignore[untyped-decorator]
        async def export() -> None:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await asyncio.sleep(25)
            now -= 1

        begin = seconds()
        await asyncio.gather(*(export() for _ in range(6)))
        assert (most, round(seconds() - begin, 6)) == (2, 75)
        assert memory.keys == 0

    run(main())


def test_a_generator_that_is_dropped_releases_its_slot(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent", clock)

    def stream() -> Iterator[int]:
        with limiter.acquire("k"):
            yield from range(3)

    chunks = stream()
    next(chunks)
    assert free(limiter) == 0
    del chunks
    gc.collect()
    wait_until(lambda: free(limiter) == 1, 10, "a release")


def test_a_generator_that_the_collector_ends_in_the_middle_of_a_decision_does_not_block_it() -> None:
    """The states' lock is held while the clock is read."""
    chunks: list[Iterator[int]] = []

    def clock() -> int:
        chunks.clear()
        return FakeClock().now

    limiter = Limiter("1 concurrent", storage=MemoryStorage(clock=clock))

    def stream() -> Iterator[int]:
        with limiter.acquire("k"):
            yield from range(3)

    other = Limiter("5/minute", storage=limiter.storage)
    streams = [stream()]
    next(streams[0])
    chunks.append(streams.pop())
    assert other.hit("other")
    assert not chunks
    wait_until(lambda: free(limiter) == 1, 10, "a release")


def test_an_async_generator_that_is_closed_releases_its_slot() -> None:
    async def main() -> None:
        limiter = virtual.limiter_of("1 concurrent")

        async def stream() -> AsyncIterator[int]:
            async with limiter.acquire("k"):
                for number in range(3):
                    yield number

        chunks = stream()
        await anext(chunks)
        assert not await limiter.hit("k")
        await chunks.aclose()  # type: ignore[attr-defined]
        assert await limiter.hit("k")

    run(main())


def test_limiting_off_and_nothing_sleeps(clock: FakeClock) -> None:
    limiter = limiter_of("1 concurrent", clock)
    with limiting_off(), limiter.acquire("k"), limiter.acquire("k"):
        pass
    assert free(limiter) == 1
    with nothing_sleeps(), limiter.acquire("k"), limiter.acquire("k", timeout=60):
        assert len(limiter.holders("k")) == 2
    assert free(limiter) == 1


def test_checks_take_slots_of_several_keys_and_release_them(clock: FakeClock) -> None:
    limiter = limiter_of("5/minute", clock)
    slot = parse_limit("1 concurrent")
    decision = limiter.check([Check("a", slot), Check("b", slot)])
    assert decision
    assert not limiter.check(Check("a", slot))
    limiter.release(decision)
    assert limiter.check([Check("a", slot), Check("b", slot)])


def test_holders_are_listed_with_the_instants_at_which_they_expire(clock: FakeClock) -> None:
    limiter = limiter_of("3 concurrent for 10 seconds; 100/minute", clock)
    limiter.hit("k")
    clock.advance(4)
    limiter.hit("k")
    first, second = limiter.holders("k")
    assert first.id != second.id
    assert second.expires_at.timestamp() - first.expires_at.timestamp() == 4
    assert first.expires_at.timestamp() == clock.now / 1_000_000 + 6
    assert str(first.limit) == "3 concurrent for 10 seconds"
    assert limiter.holders("other") == []
    assert limiter_of("5/minute", clock).holders("k") == []


def test_async_holders() -> None:
    async def main() -> None:
        limiter = virtual.limiter_of("3 concurrent")
        async with limiter.acquire("k"), limiter.acquire("k"):
            assert len(await limiter.holders("k")) == 2
        assert await limiter.holders("k") == []

    run(main())
