"""Many keys at once: in calls of 100, so that nobody else waits for them."""

import asyncio
from collections.abc import Sequence

import pytest

from ratebound import AsyncLimiter, Limiter, StorageError
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.testing import FakeClock
from tests.unit.faulty import AsyncFaulty, Prompt

KEYS = [f"k{i}" for i in range(250)]


class FailsLater(Prompt):
    """The second call and those after it are refused."""

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        self.error = StorageError("down", undone=True) if self.calls else None
        return super().evaluate(groups, mode)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_many_keys_are_asked_for_in_calls_of_a_hundred_and_answered_in_order(kind: str, clock: FakeClock) -> None:
    faulty = Prompt(clock)
    keys = [*KEYS, *KEYS]
    if kind == "threads":
        with Limiter("1/hour", storage=faulty) as limiter:
            answers = limiter.hit_many(keys)
    else:
        answers = asyncio.run(AsyncLimiter("1/hour", storage=AsyncFaulty(faulty)).hit_many(keys))
    assert [len(groups) for groups, _ in faulty.calls] == [100] * 5
    assert [bool(answer) for answer in answers] == [True] * 250 + [False] * 250


def test_a_failure_in_the_middle_leaves_what_was_decided_before_it(clock: FakeClock) -> None:
    with Limiter("1/hour", storage=GuardedStorage(FailsLater(clock), failure="closed")) as limiter:
        assert [bool(answer.degraded) for answer in limiter.hit_many(KEYS)] == [False] * 100 + [True] * 150


def test_a_failure_in_the_middle_that_is_raised_says_that_something_was_charged(clock: FakeClock) -> None:
    with Limiter("1/hour", storage=FailsLater(clock), failure="raise") as limiter:
        with pytest.raises(StorageError) as caught:
            limiter.hit_many(KEYS)
        assert not caught.value.undone
        with pytest.raises(StorageError) as caught:
            limiter.hit_many(KEYS)
        assert caught.value.undone, "nothing of this one was"


def test_a_failure_in_the_middle_says_so_to_tasks_too(clock: FakeClock) -> None:
    async def main() -> bool:
        limiter = AsyncLimiter("1/hour", storage=AsyncFaulty(FailsLater(clock)), failure="raise")
        with pytest.raises(StorageError) as caught:
            await limiter.hit_many(KEYS)
        return caught.value.undone

    assert not asyncio.run(main())


def test_other_tasks_run_between_two_calls_also_in_memory() -> None:
    async def main() -> list[str]:
        limiter = AsyncLimiter("1/hour")
        order: list[str] = []

        async def other() -> None:
            await limiter.hit("other")
            order.append("other")

        task = asyncio.create_task(other())
        await limiter.hit_many(KEYS)
        order.append("many")
        await task
        return order

    assert asyncio.run(main()) == ["other", "many"]
