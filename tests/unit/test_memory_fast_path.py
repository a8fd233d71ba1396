"""The fast path decides plain calls on memory, and leaves everything else to the general path, untouched."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import pytest

from ratebound import Limiter, parse_limit
from ratebound.decision import Plan
from ratebound.events import Decided
from ratebound.hit_method import LimiterFields, hit
from ratebound.limit import MAX_COUNT, Group, Mode
from ratebound.memory_fast_path import MemoryFastPath
from ratebound.outcome import Row
from ratebound.storage import AtOnce
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage, states_of
from ratebound.testing import FakeClock, limiting_off

PLAN = Plan((parse_limit(f"{MAX_COUNT}/day"),))


class Asked(MemoryStorage):
    """A memory with an `evaluate` of its own."""

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        return super().evaluate(groups, mode)


class AskedAtOnce(MemoryStorage):
    """A memory with an `at_once` of its own."""

    def at_once(self, group: Group) -> Sequence[Row]:
        return super().at_once(group)


class Renamed(MemoryStorage):
    """A memory that decides as ours does."""


class AsyncAsked(AsyncMemoryStorage):
    """A memory for tasks with an `evaluate` of its own."""

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        return await super().evaluate(groups, mode)


class AsyncAskedAtOnce(AsyncMemoryStorage):
    """A memory for tasks with an `at_once` of its own."""

    @property
    def at_once(self) -> AtOnce | None:
        return super().at_once


def patched(name: str) -> MemoryStorage:
    """Return a memory of which one method was replaced."""
    storage = MemoryStorage()
    setattr(storage, name, getattr(storage, name))
    return storage


class Text(str):
    """Text of another class."""


class Number(int):
    """A number of another class."""


@pytest.fixture
def storage(clock: FakeClock) -> MemoryStorage:
    return MemoryStorage(clock=clock)


class Bare(LimiterFields):
    """The fields of a limiter, and a general path that only says what it was asked."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._plan = PLAN
        self._fast_path = MemoryFastPath()
        self._fast_path.states = self._fast_path.quick = storage.states
        self._fast_path.may_pause = False

    def _hit_in_general(self, key: Any, cost: Any, values: Any) -> Any:
        return "in general", key, cost


@pytest.fixture
def bare(storage: MemoryStorage) -> Bare:
    return Bare(storage)


@pytest.mark.parametrize("cost", [1, 2, MAX_COUNT])
@pytest.mark.parametrize("is_heard", [False, True])
def test_a_plain_hit_is_decided_and_told(bare: Bare, cost: int, is_heard: bool) -> None:
    heard: list[Any] = []
    if is_heard:
        bare._fast_path.listeners = (heard.append,)
    begin = perf_counter()
    decision = hit(bare, "k", cost=cost)
    end = perf_counter()
    assert decision.remaining == MAX_COUNT - cost
    assert [event.decision for event in heard] == [decision] * is_heard
    assert all(type(event) is Decided and 0 <= event.seconds <= end - begin for event in heard)


@pytest.mark.parametrize(
    ("key", "cost"),
    [("k", 0), ("k", -1), ("k", MAX_COUNT + 1), ("k", True), ("k", 1.0), ("k", Number(1)), (Text("k"), 1), (b"k", 1)],
)
def test_what_has_to_be_checked_is_left_to_the_general_path(
    bare: Bare, storage: MemoryStorage, key: Any, cost: Any
) -> None:
    assert hit(bare, key, cost=cost) == ("in general", key, cost)
    assert storage.keys == 0


def test_nothing_is_decided_while_tests_have_turned_limiting_off(bare: Bare, storage: MemoryStorage) -> None:
    with limiting_off():
        assert hit(bare, "k") == ("in general", "k", 1)
    assert storage.keys == 0


def test_limits_with_slots_take_the_general_path(bare: Bare, storage: MemoryStorage) -> None:
    bare._plan = Plan((parse_limit("5/day"), parse_limit("3 concurrent")))
    assert hit(bare, "k") == ("in general", "k", 1)
    assert storage.keys == 0


@pytest.mark.parametrize("memory", [MemoryStorage(), Renamed()], ids=["ours", "a subclass"])
def test_the_states_of_a_memory_are_spent_from_directly(memory: MemoryStorage) -> None:
    assert states_of(memory) is memory.states
    assert states_of(AsyncMemoryStorage(memory)) is memory.states


@pytest.mark.parametrize(
    "storage",
    [
        Asked(),
        AskedAtOnce(),
        patched("evaluate"),
        patched("at_once"),
        AsyncMemoryStorage(Asked()),
        AsyncMemoryStorage(AskedAtOnce()),
        AsyncMemoryStorage(patched("evaluate")),
        AsyncMemoryStorage(patched("at_once")),
        AsyncAsked(),
        AsyncAskedAtOnce(),
        object(),
    ],
    ids=lambda storage: type(storage).__name__,
)
def test_a_storage_that_decides_in_its_own_way_is_asked(storage: object) -> None:
    assert states_of(storage) is None


def test_a_limiter_has_a_fast_path_on_its_memory_until_it_is_closed(storage: MemoryStorage) -> None:
    limiter = Limiter("5/day", storage=storage)
    assert limiter._fast_path.states is storage.states
    limiter.close()
    assert limiter._fast_path.states is None
