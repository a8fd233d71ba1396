"""Reservations: an estimate is charged first, and what was used is committed."""

import asyncio
from collections.abc import Sequence

import pytest

from ratebound import AsyncLimiter, Check, InvalidCost, Limiter, MemoryStorage, RateLimited
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.waiting import virtual
from tests.waiting.virtual import run

TEXT = "10000/hour burst 10000"


@pytest.mark.parametrize(("used", "left"), [(700, 9_300), (2_000, 8_000), (0, 10_000), (5_000, 5_000)])
def test_what_was_used_is_charged_instead_of_what_was_reserved(used: int, left: int, clock: FakeClock) -> None:
    limiter = limiter_of(TEXT, clock)
    with limiter.reserve("org:7", 2_000) as reservation:
        assert limiter.peek("org:7").remaining == 8_000
        assert (reservation.decision.remaining, reservation.committed) == (8_000, False)
        decision = reservation.commit(used)
        assert reservation.committed
        assert decision is reservation.decision
        assert decision.remaining == left
    assert limiter.peek("org:7").remaining == left


def test_without_a_commit_the_estimate_stays_charged(clock: FakeClock) -> None:
    limiter = limiter_of(TEXT, clock)
    with limiter.reserve("org:7", 2_000):
        pass

    def body() -> None:
        with limiter.reserve("org:7", 2_000):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        body()
    assert limiter.peek("org:7").remaining == 6_000


def test_a_denied_reservation_raises_before_the_body_and_costs_nothing(clock: FakeClock) -> None:
    limiter = limiter_of(TEXT, clock)
    with pytest.raises(RateLimited) as denied, limiter.reserve("org:7", 10_001):
        pytest.fail("the body ran")
    assert denied.value.decision.retry_after is None
    assert limiter.peek("org:7").remaining == 10_000
    limiter.hit("org:7", cost=10_000)
    with pytest.raises(RateLimited, match="retry in"), limiter.reserve("org:7", 1):
        pytest.fail("the body ran")
    assert clock.now == FakeClock().now, "without a timeout it does not wait"


def test_with_a_timeout_a_reservation_waits(clock: FakeClock) -> None:
    limiter = limiter_of("10/second burst 10", clock)
    limiter.hit("org:7", cost=10)
    with limiter.reserve("org:7", 5, timeout=60) as reservation:
        assert clock.now == FakeClock().now + 500_000
        reservation.commit(1)
    with pytest.raises(RateLimited), limiter.reserve("org:7", 10, timeout=0.1):
        pytest.fail("the body ran")


def test_a_reservation_is_committed_once(clock: FakeClock) -> None:
    limiter = limiter_of(TEXT, clock)
    with limiter.reserve("org:7", 2_000) as reservation:
        with pytest.raises(InvalidCost):
            reservation.commit(-1)
        reservation.commit(100)
        with pytest.raises(ValueError, match="committed already"):
            reservation.commit(100)
    assert limiter.peek("org:7").remaining == 9_900


def test_a_commit_after_the_body_counts(clock: FakeClock) -> None:
    limiter = limiter_of(TEXT, clock)
    with limiter.reserve("org:7", 2_000) as reservation:
        pass
    reservation.commit(1)
    assert limiter.peek("org:7").remaining == 9_999


def test_slots_are_held_for_the_body_and_a_commit_leaves_them(clock: FakeClock) -> None:
    limiter = limiter_of(f"1 concurrent; {TEXT}", clock)
    with limiter.reserve("org:7", 2_000) as reservation:
        with pytest.raises(RateLimited, match="slots of '1 concurrent' are taken"), limiter.reserve("org:7", 1):
            pytest.fail("the body ran")
        reservation.commit(500)
        assert len(limiter.holders("org:7")) == 1
        assert not limiter.hit("org:7")
    assert limiter.holders("org:7") == []
    assert limiter.peek("org:7").remaining == 9_500


def test_a_release_by_the_settled_decision_stops_the_renewal(clock: FakeClock) -> None:
    limiter = limiter_of(f"1 concurrent; {TEXT}", clock)
    with limiter.reserve("org:7", 2_000) as reservation:
        limiter.release(reservation.commit(500))
        assert limiter.holders("org:7") == []
        assert limiter.hit("org:7")
    assert len(limiter.holders("org:7")) == 1


def test_async_reservations() -> None:
    async def main() -> None:
        limiter = virtual.limiter_of(f"1 concurrent; {TEXT}")
        async with limiter.reserve("org:7", 2_000) as reservation:
            assert not reservation.committed
            assert not await limiter.hit("org:7")
            decision = await reservation.commit(500)
            assert decision is reservation.decision
            with pytest.raises(ValueError, match="committed already"):
                await reservation.commit(500)
        assert (await limiter.peek("org:7")).remaining == 9_500
        with pytest.raises(RateLimited):
            async with limiter.reserve("org:7", 10_001):
                pytest.fail("the body ran")
        await limiter.hit("org:7")
        async with limiter.reserve("org:7", 1, timeout=100):  # when the lease of the hit has ended
            pass

    run(main())


class Slow:
    """A storage whose answers come when `answers` is set."""

    deadline = 60.0

    def __init__(self) -> None:
        self.memory = MemoryStorage(clock=FakeClock())
        self.answers = asyncio.Event()
        self.answers.set()

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        await self.answers.wait()
        return self.memory.evaluate(groups, mode)

    async def reset(self, group: Group) -> None:
        self.memory.reset(group)

    async def close(self) -> None:
        pass


def test_a_commit_goes_on_although_its_task_is_cancelled_again_and_again() -> None:
    async def main() -> None:
        storage = Slow()
        limiter = AsyncLimiter(f"1 concurrent; {TEXT}", storage=storage)

        async def stream() -> None:
            async with limiter.reserve("org:7", 2_000) as reservation:
                try:
                    await asyncio.sleep(60)
                finally:
                    storage.answers.clear()
                    await reservation.commit(300)

        task = asyncio.ensure_future(stream())
        while not storage.memory.keys:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        storage.answers.set()
        sync = Limiter(f"1 concurrent; {TEXT}", storage=storage.memory)
        while sync.holders("org:7") or sync.peek("org:7").remaining != 9_700:
            await asyncio.sleep(0)
        await limiter.close()

    asyncio.run(main())


class Late(Slow):
    """A storage that decides at once, and whose answers come when `answers` is set."""

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        rows = self.memory.evaluate(groups, mode)
        await self.answers.wait()
        return rows


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("call", ["reserve", "hit", "check", "hit_many"])
def test_a_call_that_is_cancelled_before_its_answer_leaves_no_slot_taken(call: str, turns: int) -> None:
    text = f"1 concurrent; {TEXT}"

    async def ask(limiter: AsyncLimiter) -> None:
        if call == "check":
            await limiter.check(Check("org:7", limiter.limits, 2_000))
        elif call == "hit_many":
            await limiter.hit_many(["org:7"], cost=2_000)
        elif call == "hit":
            await limiter.hit("org:7", cost=2_000)
        else:
            async with limiter.reserve("org:7", 2_000):
                pytest.fail("the body ran")

    async def main() -> None:
        storage = Late()
        storage.answers.clear()
        async with AsyncLimiter(text, storage=storage) as limiter:
            task = asyncio.ensure_future(ask(limiter))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            storage.answers.set()
        sync = Limiter(text, storage=storage.memory)
        assert not sync.holders("org:7")
        assert sync.peek("org:7").remaining == 10_000

    asyncio.run(main())


def test_a_reservation_without_slots_that_is_cancelled_before_its_answer_costs_nothing() -> None:
    async def reserve(limiter: AsyncLimiter) -> None:
        async with limiter.reserve("org:7", 2_000):
            pytest.fail("the body ran")

    async def main() -> None:
        storage = Late()
        storage.answers.clear()
        async with AsyncLimiter(TEXT, storage=storage) as limiter:
            task = asyncio.ensure_future(reserve(limiter))
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            storage.answers.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert Limiter(TEXT, storage=storage.memory).peek("org:7").remaining == 10_000

    asyncio.run(main())
