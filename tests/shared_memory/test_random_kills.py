"""Workers are killed at random moments while they hit. No grant is lost or made twice, and the zone stays whole.

A worker notes what it is about to ask for, and counts what it was granted. So at most what it was asking for when it
was killed may be charged and not counted. It runs on both builds.
"""

import ctypes
import mmap
import os
import random
import signal
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from ratebound import Check, Limit, Limiter
from ratebound.limit import ALGORITHMS
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from tests.shared_memory.conftest import RunApart
from tests.shared_memory.kinds_of_locks import LOCKS
from tests.shared_memory.zone_check import check_zone

LONG = os.environ.get("RATEBOUND_LONG") == "1"
KILLS = 5_000 if LONG else 200
WORKERS = 4
YEAR = 365 * 86_400 * 1_000_000
LIMITS = [Limit(400 if algorithm == "sliding-log" else 20_000, YEAR, 0, algorithm) for algorithm in ALGORITHMS]
LOG, WINDOW = LIMITS[ALGORITHMS.index("sliding-log")], LIMITS[ALGORITHMS.index("fixed-window")]
KEYS = [(f"key {n}", limit) for n, limit in enumerate(LIMITS * 2)]  # in several shards


class Counters:
    """Numbers in memory that processes share. One store changes one of them, so none is ever half written."""

    def __init__(self, rows: int, columns: int) -> None:
        self._columns = columns
        self._numbers = (ctypes.c_int64 * (rows * columns)).from_buffer(mmap.mmap(-1, 8 * rows * columns))

    def add(self, row: int, column: int, number: int) -> None:
        self._numbers[row * self._columns + column] += number

    def sums(self) -> list[int]:
        columns = self._columns
        return [sum(self._numbers[column::columns]) for column in range(columns)]


class Accounts:
    """What all workers were granted, and what they were asking for when they ended, by check."""

    def __init__(self, workers: int) -> None:
        self.begun = Counters(workers, len(KEYS))
        self.granted = Counters(workers, len(KEYS))
        self.denied = Counters(workers, len(KEYS))


def work(storage: SharedMemoryStorage, accounts: Accounts, worker: int) -> None:
    """Hit until the end."""
    rng = random.Random(worker)
    single = [Limiter(limit, storage=storage, failure="raise") for _, limit in KEYS]
    checks = [Check(key, limit) for key, limit in KEYS]
    several = Limiter(LIMITS[0], storage=storage, failure="raise")
    while True:
        asked = rng.sample(range(len(KEYS)), rng.choice((1, 1, 1, 2, 4)))
        for number in asked:
            accounts.begun.add(worker, number, 1)
        if len(asked) == 1:
            decision = single[asked[0]].hit(KEYS[asked[0]][0])
        else:
            decision = several.check([checks[number] for number in asked])
        result = accounts.granted if decision.allowed else accounts.denied
        for number in asked:
            result.add(worker, number, 1)
        if rng.random() < 0.05:  # other keys come and go, with chains of blocks
            noise = f"noise {rng.randrange(30)}"
            several.check([Check(noise, LOG), Check(noise, WINDOW)])
            if rng.random() < 0.3:
                several.reset(noise, limits=[LOG])


def started(storage: SharedMemoryStorage, accounts: Accounts, worker: int) -> int:
    """Start a worker. Return the id of its process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12: a fork while there are threads
        child = os.fork()
    if not child:
        try:
            work(storage, accounts, worker)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)
    return child


def kill_at_random(locks: str, folder: str) -> None:
    """Kill worker after worker while they hit, then compare the zone with what they were granted."""
    begin = time.monotonic_ns()
    storage = SharedMemoryStorage(
        "kills",
        size=1 << 20,
        directory=folder,
        deadline=60,
        clock=lambda: 1_700_000_000_000_000 + (time.monotonic_ns() - begin) // 1_000,
        locks=locks,
    )
    accounts = Accounts(KILLS + WORKERS)
    rng = random.Random(7)
    running = [started(storage, accounts, worker) for worker in range(WORKERS)]
    try:
        for kill in range(KILLS):
            time.sleep(rng.uniform(0, 0.004))
            chosen = rng.randrange(WORKERS)
            os.kill(running[chosen], signal.SIGKILL)
            status = os.waitpid(running[chosen], 0)[1]
            assert os.WIFSIGNALED(status), "a worker ended by itself: a lock is stuck, or a state is broken"
            running[chosen] = started(storage, accounts, WORKERS + kill)
    finally:
        for child in running:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    zone = storage.states.zone
    begun, granted, denied = accounts.begun.sums(), accounts.granted.sums(), accounts.denied.sums()
    assert sum(granted) > KILLS
    for number, (key, limit) in enumerate(KEYS):
        used = limit.count - Limiter(limit, storage=storage, failure="raise").peek(key).remaining
        cut_short = begun[number] - granted[number] - denied[number]
        assert granted[number] <= limit.count
        assert granted[number] <= used <= granted[number] + cut_short
    shard_keys = {zone.cells.shard_of(f"any {n}"): f"any {n}" for n in range(400)}
    for key in shard_keys.values():
        zone.evaluate([(key, (LIMITS[0],), 1, None, None)], "peek", 0.0)  # every lock is free
    check_zone(zone.cells, zone.owner.geometry)  # type: ignore[attr-defined]


@pytest.mark.parametrize("locks", LOCKS)
def test_workers_killed_at_random_lose_no_grant_and_leave_the_zone_whole(
    locks: str, run_apart: RunApart, tmp_path: Path
) -> None:
    run_apart(kill_at_random, locks, str(tmp_path))
