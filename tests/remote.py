"""A storage that looks like one on another machine: it has no way to answer at once, and notes each trip."""

from collections.abc import Callable, Sequence
from typing import Any

from ratebound import GuardedStorage, Limiter, MemoryStorage, StorageError
from ratebound.decider import AsyncDecider, Decider
from ratebound.limit import Group, Mode
from ratebound.local_states import LocalStates
from ratebound.outcome import Row
from ratebound.testing import FakeClock


class RemoteStorage:
    """A MemoryStorage behind trips that each take `delay_us`. `on_trip` is called in the middle of each of them.

    While `is_down` is True, each call raises StorageError.
    """

    deadline = 0.25  # it ends by itself, so a guard calls it directly

    def __init__(self, memory: MemoryStorage, clock: FakeClock, delay_us: int = 0) -> None:
        self.memory = memory
        self.clock = clock
        self.delay_us = delay_us
        self.is_down = False
        self.trips: list[tuple[Mode, list[Group]]] = []
        self.charges: list[tuple[int, str, str, int]] = []  # (instant, key, scope, units) of all that was charged
        self.on_trip: Callable[[], None] | None = None

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        self.trips.append((mode, list(groups)))
        self.clock.now += self.delay_us
        if self.is_down:
            raise StorageError("the storage is down", undone=True)
        answers = self.memory.evaluate(groups, mode)
        if mode != "peek":
            for group, rows in zip(groups, answers, strict=True):
                if mode == "force" or all(row[0] for row in rows):
                    for key, limits, cost, *_ in group:
                        self.charges += [(self.clock.now, key, limit.scope, cost) for limit in limits]
        if self.on_trip is not None:
            self.on_trip()
        self.clock.now += self.delay_us
        return answers

    def reset(self, group: Group) -> None:
        self.memory.reset(group)

    def close(self) -> None:
        pass

    def async_twin(self) -> "AsyncRemoteStorage":
        return AsyncRemoteStorage(self)


class AsyncRemoteStorage:
    """The same for tasks."""

    deadline = 0.25

    def __init__(self, remote: RemoteStorage) -> None:
        self.remote = remote

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        return self.remote.evaluate(groups, mode)

    async def reset(self, group: Group) -> None:
        self.remote.reset(group)

    async def close(self) -> None:
        pass


def sliced(limits: str, remote: RemoteStorage, **options: Any) -> Limiter:
    """Return a limiter on a remote storage, whose guard, slices and cached denials live by the storage's clock.

    It has slices unless the options say otherwise.
    """
    options = {"slice": True, "failure": "local", **options}
    # The breaker lives by another clock, so it never opens: every call gets to the storage.
    guard = GuardedStorage(remote, failure=options.pop("failure"), failures=10**9, clock=remote.clock)
    limiter = Limiter(limits, storage=guard, **options)
    by_clock(limiter._decider, remote.clock)
    return limiter


def by_clock(decider: Decider | AsyncDecider, clock: FakeClock) -> None:
    """Let the slices and the cached denials of a decider live by this clock."""
    decider.local = LocalStates(clock)
    decider._choose_path()
