"""A worker that is stopped inside a lock: others answer by the failure mode, and go on when it does."""

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ratebound import AsyncLimiter, Limiter, StorageError
from ratebound.events import Event, Recovered
from ratebound.limit import Failure
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from tests.shared_memory.kinds_of_locks import LOCKS

PATIENCE = 60  # seconds


@pytest.fixture(params=LOCKS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMemoryStorage:
    return SharedMemoryStorage("stop", size=1 << 20, directory=str(tmp_path), deadline=0.05, locks=request.param)


@contextmanager
def stopped_in_lock_of(storage: SharedMemoryStorage, key: str) -> Iterator[int]:
    """Stop a child while it has the lock of a key's shard. Yield its process id. At last it goes on and ends."""
    zone = storage.states.zone
    shard = zone.cells.shard_of(key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12: a fork while there are threads
        child = os.fork()
    if not child:
        try:
            assert zone.enter(shard, 10.0)
            os.kill(os.getpid(), signal.SIGSTOP)
            zone.leave(shard)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        yield child
        os.kill(child, signal.SIGCONT)
        assert os.waitpid(child, 0)[1] == 0
    except BaseException:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        raise


def elsewhere(storage: SharedMemoryStorage, key: str) -> str:
    """Return a key of another shard."""
    shard_of = storage.states.zone.cells.shard_of
    return next(other for other in map(str, range(1_000)) if shard_of(other) != shard_of(key))


@pytest.mark.parametrize(("failure", "allowed"), [("local", True), ("open", True), ("closed", False)])
def test_keys_of_a_stopped_workers_shard_are_answered_by_the_failure_mode(
    storage: SharedMemoryStorage, failure: Failure, allowed: bool
) -> None:
    limiter = Limiter("5/hour", storage=storage, failure=failure, workers=2)
    other = elsewhere(storage, "k")
    assert limiter.hit("k").remaining == 4
    with stopped_in_lock_of(storage, "k"):
        for _ in range(2):
            decision = limiter.hit("k")
            assert (decision.allowed, bool(decision.degraded)) == (allowed, True)
        for left in (4, 3, 2):
            decision = limiter.hit(other)
            assert (decision.remaining, decision.degraded) == (left, None)


def test_a_stopped_worker_raises_for_its_shard_only(storage: SharedMemoryStorage) -> None:
    limiter = Limiter("5/hour", storage=storage, failure="raise")
    with stopped_in_lock_of(storage, "k"):
        with pytest.raises(StorageError, match="was not free within"):
            limiter.hit("k")
        assert limiter.hit(elsewhere(storage, "k")).remaining == 4
    other = SharedMemoryStorage("stop", size=1 << 20, directory=storage.zone_name.directory)
    assert Limiter("5/hour", storage=other, failure="raise").hit("k").remaining == 4


def test_grants_made_without_a_stopped_worker_are_written_back_when_it_goes_on(storage: SharedMemoryStorage) -> None:
    recovered = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, Recovered):
            recovered.set()

    limiter = Limiter("5/hour", storage=storage, workers=1, listeners=[listen])
    assert limiter.hit("k").remaining == 4
    with stopped_in_lock_of(storage, "k"):
        granted = [limiter.hit("k") for _ in range(4)]
        assert all(decision.allowed and decision.degraded for decision in granted)
    pause = threading.Event()
    for _ in range(PATIENCE * 20):
        limiter.hit(elsewhere(storage, "k"))
        if limiter.peek("k").degraded is None and recovered.is_set() and not limiter.peek("k").remaining:
            break
        pause.wait(0.05)
    else:
        pytest.fail("what was granted meanwhile was not written back")
    seen = Limiter("5/hour", storage=storage.__class__("stop", size=1 << 20, directory=storage.zone_name.directory))
    assert not seen.hit("k").allowed


def test_a_stopped_worker_does_not_block_the_event_loop(storage: SharedMemoryStorage) -> None:
    async def main() -> tuple[bool, int]:
        limiter = AsyncLimiter("5/hour", storage=storage.async_twin(), failure="closed")
        turns = 0
        call = asyncio.ensure_future(limiter.hit("k"))
        while not call.done():
            await asyncio.sleep(0)
            turns += 1
        return bool((await call).degraded), turns

    with stopped_in_lock_of(storage, "k"):
        degraded, turns = asyncio.run(main())
    assert degraded
    assert turns > 3  # the loop ran on while the call waited


def test_a_worker_killed_while_it_is_stopped_frees_its_lock(storage: SharedMemoryStorage) -> None:
    limiter = Limiter("5/hour", storage=storage, failure="raise")
    limiter.hit("k")
    with suppress(ProcessLookupError), stopped_in_lock_of(storage, "k") as child:  # it cannot go on any more
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert [limiter.hit("k").remaining for _ in range(3)] == [3, 2, 1]
