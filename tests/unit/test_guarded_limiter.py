"""Which guard a limiter puts around its storage, and what limiters do over one in an outage."""

import asyncio
from typing import Any

import pytest

from ratebound import AsyncLimiter, AsyncMemoryStorage, InvalidLimit, Limit, Limiter, MemoryStorage, RateLimited
from ratebound.clock import SECOND
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.testing import FakeClock
from tests.unit.faulty import UNKNOWN, Faulty, Prompt


def test_memory_has_no_guard_and_everything_else_has_one(clock: FakeClock) -> None:
    assert isinstance(Limiter("1/minute").storage, MemoryStorage)
    assert isinstance(AsyncLimiter("1/minute").storage, AsyncMemoryStorage)
    limiter = Limiter("1/minute", storage=Prompt(clock), failure="closed", deadline=0.5, workers=3)
    assert isinstance(limiter.storage, GuardedStorage)
    assert isinstance(limiter.storage.inner, Prompt)
    fallback = limiter.storage.guard.fallback
    assert (fallback.failure, fallback.workers, limiter.storage.guard.deadline) == ("closed", 3, 0.5)
    again = Limiter("1/minute", storage=limiter.storage)
    assert again.storage is limiter.storage
    with pytest.raises(ValueError, match="is already guarded"):
        Limiter("1/minute", storage=limiter.storage, failure="open")


def test_a_deadline_of_the_storages_own_is_the_default(clock: FakeClock) -> None:
    assert GuardedStorage(Prompt(clock)).guard.deadline == 5.0
    assert GuardedStorage(Faulty(clock)).guard.deadline == 0.25


def test_a_deadline_that_the_storage_does_not_promise_is_kept_by_threads(clock: FakeClock) -> None:
    with Limiter("5/minute", storage=Prompt(clock), deadline=1) as limiter:
        assert limiter.hit("a").degraded is None
        assert isinstance(limiter.storage, GuardedStorage)
        assert limiter.storage._threads.alive == 1


@pytest.mark.parametrize(
    "options",
    [
        {"failure": "never"},
        {"failure": ""},
        {"deadline": 0},
        {"deadline": -1.0},
        {"deadline": float("nan")},
        {"deadline": True},
        {"workers": 0},
        {"workers": 1.5},
    ],
)
def test_options_that_cannot_be_meant_are_refused_with_any_storage(clock: FakeClock, options: dict[str, Any]) -> None:
    for storage in (MemoryStorage(), Prompt(clock)):
        with pytest.raises(ValueError, match="must be"):
            Limiter("1/minute", storage=storage, **options)


def test_a_limit_with_an_unknown_failure_mode_is_refused() -> None:
    with pytest.raises(InvalidLimit, match="local, open, closed, raise"):
        Limit(1, SECOND, failure="never")  # type: ignore[arg-type]
    assert Limit(1, SECOND, failure="open") == Limit(1, SECOND)


def test_a_decorated_async_function_shares_the_guard_of_its_limiter(clock: FakeClock) -> None:
    """The twin for tasks has the same breaker and the same local share."""
    memory = MemoryStorage(clock=clock)
    storage = GuardedStorage(memory, clock=clock)
    limiter = Limiter("2/hour", storage=storage)
    storage.guard.breaker("").failed(1)
    for _ in range(2):
        storage.guard.breaker("").failed(storage.guard.breaker("").admit())

    @limiter.limit(key="a", timeout=0, fallback="refused")
    async def work() -> str:
        return "done"

    async def main() -> list[str]:
        return [await work() for _ in range(3)]

    assert limiter.hit("a").degraded
    assert asyncio.run(main()) == ["done", "refused", "refused"]
    assert memory.keys == 0


def test_a_wait_that_is_refused_for_an_outage_does_not_blame_the_limit(clock: FakeClock) -> None:
    storage = Prompt(clock)
    storage.error = UNKNOWN
    for text in ("5/minute", "5/minute burst 5"):
        with (
            Limiter(text, storage=storage, failure="closed", sleep=clock.sleep) as limiter,
            pytest.raises(RateLimited, match="^the storage is out of reach and failure is 'closed'") as caught,
        ):
            limiter.wait("a", timeout=0)
        assert caught.value.decision.unavailable
        assert "limit 5" not in str(caught.value)


def test_waiting_works_over_the_guard_in_an_outage(clock: FakeClock) -> None:
    faulty = Prompt(clock)
    faulty.error = UNKNOWN
    storage = GuardedStorage(faulty, clock=clock)
    for text in ("1/second burst 1", "1/second", "10/second burst 4 leaky-bucket"):
        limiter = Limiter(text, storage=storage, sleep=clock.sleep)
        decisions = [limiter.wait("a", timeout=5) for _ in range(3)]
        assert all(decision.degraded for decision in decisions)
    with pytest.raises(RateLimited):
        Limiter("1/hour", storage=storage).wait("b", cost=2, timeout=5)


def test_a_reserved_place_that_is_cancelled_in_an_outage_is_given_back_here(clock: FakeClock) -> None:
    faulty = Prompt(clock)
    faulty.error = UNKNOWN
    storage = GuardedStorage(faulty, clock=clock)

    def interrupted(seconds: float) -> None:
        faulty.error = None  # the storage is back, and must not be asked to refund what it has not seen
        faulty.calls.clear()
        raise KeyboardInterrupt

    limiter = Limiter("1/minute burst 1", storage=storage, sleep=interrupted)
    limiter.hit("a")
    with pytest.raises(KeyboardInterrupt):
        limiter.wait("a", timeout=100)
    assert faulty.calls == []
    assert storage.guard.fallback.memory.evaluate(((("a", limiter.limits, 1, None, None),),), "peek")[0][0][2] == (
        60 * SECOND
    )
