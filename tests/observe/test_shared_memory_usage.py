"""Metrics of memory also watch shared memory."""

from pathlib import Path

from ratebound import AsyncLimiter, Limiter
from ratebound.observe.memory_usage import MemoryUse, WatchedMemory
from ratebound.storage.shared_memory.storage import SharedMemoryStorage


def test_a_limiter_on_shared_memory_reports_its_zone(tmp_path: Path) -> None:
    storage = SharedMemoryStorage("watched", size=1 << 20, directory=str(tmp_path))
    limiter = Limiter("5/minute", storage=storage)
    watched = WatchedMemory()
    watched.watch(limiter, "here")
    watched.watch(AsyncLimiter("5/minute", storage=storage), "tasks")
    for number in range(3):
        limiter.hit(f"k{number}")
    assert watched.now() == [MemoryUse(name, 3, storage.max_keys, 0, 0) for name in ("here", "tasks")]


def test_dropped_states_are_reported(tmp_path: Path) -> None:
    storage = SharedMemoryStorage("full", size=1 << 20, directory=str(tmp_path))
    limiter = Limiter("5/hour fixed-window", storage=storage)
    watched = WatchedMemory()
    watched.watch(limiter, "here")
    for number in range(2 * storage.max_keys):
        limiter.hit(f"k{number}")
    (use,) = watched.now()
    assert use.evicted > 0
    assert use.keys + use.evicted == 2 * storage.max_keys
