"""A storage that fails on demand, with a guard around it, for calls made directly, in threads or in tasks."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ratebound import Decision, Limit, MemoryStorage, StorageError, parse_limit
from ratebound.limit import Ask, Failure, Group, Mode
from ratebound.outcome import Row
from ratebound.settling import settlement
from ratebound.storage.guard.guard import Guard
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.testing import Blocking, FakeClock

DOWN = StorageError("down", undone=True)
UNKNOWN = StorageError("silent")
FOREIGN = StorageError("a foreign value", outage=False, undone=True)


class Faulty:
    """A memory that raises `error` while there is one. Nodes, if there are any, are named by how a key begins."""

    def __init__(self, clock: FakeClock) -> None:
        self.memory = MemoryStorage(clock=clock)
        self.error: BaseException | None = None
        self.broken = ""  # only this node
        self.calls: list[tuple[Sequence[Group], Mode]] = []
        self.resets = 0
        self.closed = 0

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        self.calls.append((groups, mode))
        if self.error is not None and any(self.broken in nodes_of(group) or not self.broken for group in groups):
            raise self.error
        return self.memory.evaluate(groups, mode)

    def reset(self, group: Group) -> None:
        self.resets += 1
        if self.error is not None:
            raise self.error
        self.memory.reset(group)

    def close(self) -> None:
        self.closed += 1


class Prompt(Faulty):
    deadline = 5.0


class AsyncFaulty:
    def __init__(self, faulty: Faulty) -> None:
        self.faulty = faulty

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        await asyncio.sleep(0)
        return self.faulty.evaluate(groups, mode)

    async def reset(self, group: Group) -> None:
        self.faulty.reset(group)

    async def close(self) -> None:
        self.faulty.close()


def nodes_of(group: Group) -> tuple[str, ...]:
    return tuple(sorted({key.partition(":")[0] for key, *_ in group}))


class Subject:
    """A guarded storage of one of the three kinds, as a sync one, with the storage in it."""

    def __init__(self, kind: str, clock: FakeClock, nodes: bool = False, **given: Any) -> None:
        self.clock = clock
        self.faulty = (Prompt if kind == "inline" else Faulty)(clock)
        options: Any = {"deadline": 5.0, "clock": clock, **given}
        self.storage: Any
        if kind == "tasks":
            inner: Any = AsyncFaulty(self.faulty)
            if nodes:
                inner.nodes_of = nodes_of
            self.inside: Any = AsyncGuardedStorage(inner, **options)
            self.storage = Blocking(self.inside)
        else:
            if nodes:
                self.faulty.nodes_of = nodes_of  # type: ignore[attr-defined]
            self.storage = self.inside = GuardedStorage(self.faulty, **options)
        self.guard: Guard = self.inside.guard

    def hit(self, key: str, *limits: Limit | str, cost: int = 1, mode: Mode = "spend") -> Decision:
        return self.decide([(key, tuple(map(limit_of, limits)), cost, None, None)], mode)

    def decide(self, group: Group, mode: Mode = "spend") -> Decision:
        return Decision(group, self.storage.evaluate((group,), mode)[0])

    def settle(self, decision: Decision, cost: int) -> Decision:
        forced = settlement(decision.asks, decision.rows, [cost] * len(decision.asks))
        return Decision(forced, self.storage.evaluate((forced,), "force")[0])

    def open_breaker(self, error: StorageError = UNKNOWN) -> None:
        self.faulty.error = error
        for _ in range(3):
            self.hit("opener", "100/day as opener")
        assert not self.guard.breaker("").closed

    def come_back(self) -> None:
        """The storage is well again and the next call finds out. Returns when all is written back."""
        self.faulty.error = None
        self.clock.advance(1)
        assert self.hit("prober", "100/day as prober").degraded is None
        self.finish_writing()

    def finish_writing(self) -> None:
        if isinstance(self.inside, GuardedStorage):
            if self.inside._writer is not None:
                self.inside._writer.join(10)
            return

        async def rest() -> None:
            await asyncio.gather(*self.inside._writers)

        self.storage._runner.run(rest())

    def left(self, key: str, limit: Limit | str) -> int:
        """What the storage itself says is left."""
        ask: Ask = (key, (limit_of(limit),), 1, None, None)
        return self.faulty.memory.evaluate(((ask,),), "peek")[0][0][1]


def limit_of(limit: Limit | str) -> Limit:
    return parse_limit(limit) if isinstance(limit, str) else limit


def falling_to(failure: Failure, text: str) -> Limit:
    limit = parse_limit(text)
    return Limit(limit.count, limit.period_us, limit.burst, limit.algorithm, f"{failure}-limit", failure=failure)


Make = Callable[..., Subject]
