"""Exactly so many grants with eight processes on one key of a zone, started by fork and by spawn."""

import asyncio
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter
from ratebound.limit import ALGORITHMS
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from tests.concurrency.test_grants import GRANTS, THREADS, limit_text, together
from tests.shared_memory.room import check_blocks
from tests.zones import LOCKS, PATIENT, fresh_zone

PROCESSES = 8
LONGEST = 120.0
SIZE = 8 << 20
STARTS = ("fork", "spawn")


def opened(name: str, directory: str) -> SharedMemoryStorage:
    return SharedMemoryStorage(name, directory=directory, size=SIZE, deadline=PATIENT)


def work(pipe: Connection, storage: SharedMemoryStorage | tuple[str, str]) -> None:
    """Play each job that comes. A forked process goes on with the storage of its parent; others open it."""
    if isinstance(storage, tuple):
        storage = opened(*storage)
    kept: list[Any] = []
    pipe.send("ready")
    for limits, value, asks, holds in iter(pipe.recv, None):
        limiter = Limiter(limits, storage=storage, failure="raise")
        if holds:
            granted = 0
            for _ in range(asks):
                decision = limiter.hit(limits)
                granted += decision.allowed
                kept.append(decision)
        elif value:
            names = [f"{multiprocessing.current_process().name} {number}" for number in range(asks)]
            granted = sum(limiter.hit(limits, values={value: name}).allowed for name in names)
        else:
            granted = sum(limiter.hit(limits).allowed for _ in range(asks))
        pipe.send(granted)


class Workers:
    """Processes that all play the same job at once."""

    def __init__(self, storage: SharedMemoryStorage, pipes: list[Connection]) -> None:
        self.storage = storage
        self._pipes = pipes
        assert [self._heard(pipe) for pipe in pipes] == ["ready"] * len(pipes)

    def granted(self, limits: str, asks: int, value: str = "", *, holds: bool = False) -> list[int]:
        for pipe in self._pipes:
            pipe.send((limits, value, asks, holds))
        found = [self._heard(pipe) for pipe in self._pipes]
        check_blocks(self.storage)
        return found

    def _heard(self, pipe: Connection) -> Any:
        assert pipe.poll(LONGEST), "a process does not answer"
        return pipe.recv()


@pytest.fixture(scope="module", params=[(start, locks) for start in STARTS for locks in LOCKS], ids=", ".join)
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    start, locks = request.param
    context: BaseContext = multiprocessing.get_context(start)
    with fresh_zone(locks=LOCKS[locks], size=SIZE) as storage, ExitStack() as stack:
        given: Any = storage if start == "fork" else (storage.zone_name.name, storage.zone_name.directory)
        pipes: list[Connection] = []
        for _ in range(PROCESSES):
            ours, theirs = context.Pipe()
            process: Any = context.Process(target=work, args=(theirs, given), daemon=True)  # type: ignore[attr-defined]
            process.start()
            theirs.close()
            stack.callback(process.join, 10)
            stack.callback(process.kill)
            pipes.append(ours)
        yield Workers(storage, pipes)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_eight_processes_on_one_key_are_granted_exactly_the_count(algorithm: str, workers: Workers) -> None:
    text = limit_text(algorithm)
    assert sum(workers.granted(text, GRANTS // PROCESSES + 25)) == GRANTS
    assert sum(workers.granted(f"{text} as enough", GRANTS // PROCESSES)) == GRANTS, (
        "none is denied while there is room"
    )


def test_eight_processes_are_granted_exactly_the_count_of_a_calendar_month(workers: Workers) -> None:
    assert sum(workers.granted("500/calendar-month", 100)) == 500


def test_eight_processes_are_granted_exactly_what_the_strictest_of_several_limits_gives(workers: Workers) -> None:
    assert sum(workers.granted("300/day as log; 301/day burst 301; 400/calendar-year; 10000/minute", 60)) == 300


def test_eight_processes_hold_exactly_the_count_of_slots(workers: Workers) -> None:
    assert sum(workers.granted("100 concurrent for 1 hour", 30, holds=True)) == 100


def test_eight_processes_count_exactly_as_many_distinct_values(workers: Workers) -> None:
    assert sum(workers.granted("100 distinct account/day", 30, "account")) == 100


@pytest.mark.parametrize("locks", LOCKS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_eight_threads_on_one_key_are_granted_exactly_the_count(algorithm: str, locks: str) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with fresh_zone(locks=LOCKS[locks], size=SIZE) as storage:
            limiter = Limiter(limit_text(algorithm), storage=storage, failure="raise")
            tries = GRANTS // THREADS + 25
            assert sum(together(lambda _: sum(limiter.hit("k").allowed for _ in range(tries)))) == GRANTS
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("locks", LOCKS)
def test_threads_and_tasks_may_share_one_zone(locks: str) -> None:
    with fresh_zone(locks=LOCKS[locks], size=SIZE) as storage:
        sync = Limiter("500/day", storage=storage, failure="raise")
        tasks = AsyncLimiter("500/day", storage=storage.async_twin(), failure="raise")

        async def in_tasks() -> int:
            return sum([(await tasks.hit("k")).allowed for _ in range(80)])

        def one(i: int) -> int:
            return asyncio.run(in_tasks()) if i % 2 else sum(sync.hit("k").allowed for _ in range(80))

        assert sum(together(one)) == 500
