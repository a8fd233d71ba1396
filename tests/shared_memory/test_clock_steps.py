"""A clock that steps back: what that makes necessary is stored in the zone, and every process goes on from there."""

import os
from pathlib import Path

import pytest

from ratebound import Limit, Limiter
from ratebound.limit import ALGORITHMS, Algorithm
from ratebound.storage.memory import MemoryStorage
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.testing import FakeClock

MINUTE = 60_000_000
BACK = 10 * MINUTE


def remaining_in_a_child(limiter: Limiter, key: str) -> int:
    """Return what remains, as another process sees it."""
    child = os.fork()
    if not child:
        code = 255
        try:
            code = limiter.peek(key).remaining
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since 3.12: while there are threads
@pytest.mark.parametrize("spent", [2, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_back_of_the_clock_is_repaired_once_and_for_all_processes(
    algorithm: Algorithm, spent: int, tmp_path: Path
) -> None:
    clock = FakeClock()
    storage = SharedMemoryStorage("clock", size=1 << 20, directory=str(tmp_path), clock=clock)
    limit = Limit(4, MINUTE, 0, algorithm)
    zone, memory = Limiter(limit, storage=storage), Limiter(limit, storage=MemoryStorage(clock=clock))
    for step in (0, 0, 0, -BACK, 0, MINUTE // 4, MINUTE // 4, MINUTE, -BACK, MINUTE // 3):
        clock.now += step
        for _ in range(spent):
            here, there = zone.hit("k"), memory.hit("k")
            assert (here.allowed, here.remaining, here.retry_after) == (
                there.allowed,
                there.remaining,
                there.retry_after,
            )
        assert remaining_in_a_child(zone, "k") == memory.peek("k").remaining


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_denial_after_a_step_back_stores_the_repair(algorithm: Algorithm, tmp_path: Path) -> None:
    clock = FakeClock()
    storage = SharedMemoryStorage("clock", size=1 << 20, directory=str(tmp_path), clock=clock)
    limiter = Limiter(Limit(2, MINUTE, 0, algorithm), storage=storage, failure="raise")
    while limiter.hit("k").allowed:
        pass
    clock.now -= BACK
    denied = limiter.hit("k")
    assert not denied.allowed
    assert denied.retry_after is not None
    assert denied.retry_after <= 120
    clock.advance(denied.retry_after)
    assert limiter.hit("k").allowed  # it would wait for the step as well if the repair had not been stored
