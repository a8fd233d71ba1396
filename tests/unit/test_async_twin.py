"""A storage names its async twin itself, so that anybody's storage can have one."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from ratebound import AsyncLimiter, AsyncMemoryStorage, GuardedStorage, Limiter, MemoryStorage
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.policy import AsyncGate, Gate, RequestView, read_policy
from ratebound.testing import STORAGE_CONTRACT, Claim, FakeClock

POLICY = {"rules": [{"name": "all", "limits": "2/day"}]}


class Shelf:
    """A storage as somebody else may write it: it inherits nothing from ours."""

    deadline = 5.0

    def __init__(self, clock: FakeClock | None = None) -> None:
        self._memory = MemoryStorage(clock=clock)

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        return self._memory.evaluate(groups, mode)

    def reset(self, group: Group) -> None:
        self._memory.reset(group)

    def close(self) -> None: ...


class ShelfWithTwin(Shelf):
    def async_twin(self) -> "AsyncShelf":
        return AsyncShelf(self)


class AsyncShelf:
    deadline = 5.0

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        await asyncio.sleep(0)
        return self._shelf.evaluate(groups, mode)

    async def reset(self, group: Group) -> None:
        self._shelf.reset(group)

    async def close(self) -> None: ...


class ShelfWithBlockingTwin(Shelf):
    def async_twin(self) -> Shelf:
        return Shelf()


@pytest.mark.parametrize("claim", STORAGE_CONTRACT, ids=lambda claim: claim.__name__)
@pytest.mark.parametrize("kind", [Shelf, ShelfWithTwin])
def test_a_storage_of_somebody_else_keeps_the_contract(kind: type[Shelf], claim: Claim) -> None:
    clock = FakeClock()
    claim(kind(clock), clock)


@pytest.mark.parametrize("guarded", [False, True])
def test_tasks_and_threads_count_in_one_storage_of_somebody_else(guarded: bool) -> None:
    storage = GuardedStorage(ShelfWithTwin()) if guarded else ShelfWithTwin()
    assert Limiter("2/day", storage=storage).hit("a")
    assert asyncio.run(AsyncLimiter("2/day", storage=storage).hit("a")).remaining == 0
    assert not Limiter("2/day", storage=storage).hit("a")


def test_gates_of_tasks_and_threads_count_in_one_storage_of_somebody_else() -> None:
    storage, request = ShelfWithTwin(), RequestView("GET", "/", peer="192.0.2.1")
    assert Gate(read_policy(POLICY), storage=storage).decide(request)
    assert asyncio.run(AsyncGate(read_policy(POLICY), storage=storage).decide(request))
    assert not Gate(read_policy(POLICY), storage=storage).decide(request)


def test_an_async_function_is_decorated_with_a_limiter_on_a_storage_of_somebody_else() -> None:
    limiter = Limiter("2/day", storage=ShelfWithTwin(), max_delay=0)

    @limiter.limit(key="a", fallback="too many")
    async def work() -> str:
        return "done"

    async def main() -> list[str]:
        return [await work() for _ in range(3)]

    assert asyncio.run(main()) == ["done", "done", "too many"]
    assert not limiter.hit("a")


def test_a_storage_without_a_twin_is_refused_where_it_would_block() -> None:
    for storage in (Shelf(), GuardedStorage(Shelf())):
        with pytest.raises(TypeError, match="would block the event loop"):
            AsyncLimiter("2/day", storage=storage)
        with pytest.raises(TypeError, match="would block the event loop"):
            AsyncGate(read_policy(POLICY), storage=storage)
        with pytest.raises(TypeError, match="would block the event loop"):
            Limiter("2/day", storage=storage).limit(asyncio.sleep)


def test_a_twin_that_is_not_awaited_is_refused() -> None:
    for storage in (ShelfWithBlockingTwin(), GuardedStorage(ShelfWithBlockingTwin())):
        with pytest.raises(TypeError, match="would block the event loop"):
            AsyncLimiter("2/day", storage=storage)


def test_a_memory_with_an_evaluate_of_its_own_is_asked_by_tasks_through_that() -> None:
    class Counting(MemoryStorage):
        calls = 0

        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            self.calls += 1
            return super().evaluate(groups, mode)

    memory = Counting()
    asyncio.run(AsyncLimiter("2/day", storage=AsyncMemoryStorage(memory)).hit("a"))
    asyncio.run(AsyncLimiter("2/day", storage=memory).hit("a"))
    assert memory.calls == 2


def made(function: Callable[[], Any]) -> list[str]:
    """Return the classes of which `function` makes an object."""
    found: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "__init__":
            found.append(frame.f_code.co_qualname.removesuffix(".__init__"))

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


def test_a_guarded_twin_has_the_guard_of_its_storage_and_makes_no_other() -> None:
    storage = GuardedStorage(ShelfWithTwin())
    classes = made(storage.async_twin)
    twin = storage.async_twin()
    assert twin is not None
    assert twin.guard is storage.guard
    assert "Guard" not in classes


def test_a_policy_is_checked_without_opening_its_storage() -> None:
    classes = made(lambda: read_policy({**POLICY, "storage": "memory://?max_keys=5"}))
    assert "MemoryStorage" not in classes
    with pytest.raises(ValueError, match="max_keys"):
        read_policy({**POLICY, "storage": "memory://?max_keys=0"})
