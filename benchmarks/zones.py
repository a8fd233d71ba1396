"""Zones of shared memory that nobody else opens, and that go with the benchmark."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from ratebound.storage.shared_memory.layout import BLOCK, EVICTED, FREE, ONE, SHARDS
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.storage.shared_memory.zone_file import drop_zone, zone_name

SIZE = 32 << 20
_numbers = count()


def own_zone(size: int = SIZE) -> SharedMemoryStorage:
    """Return a storage in a new zone. Its file has no name any more, so the zone ends with this process."""
    storage = SharedMemoryStorage(_new_name(), size=size)
    os.unlink(storage.zone_name.path)
    return storage


@contextmanager
def zone_for_processes(size: int = SIZE) -> Iterator[str]:
    """Return the URL of a zone that several processes open. It is dropped at the end."""
    name = _new_name()
    SharedMemoryStorage(name, size=size)
    try:
        yield f"shm://{name}?size={size}"
    finally:
        drop_zone(zone_name(name))


def evicted(storage: SharedMemoryStorage) -> int:
    """Return how many states were dropped to make room."""
    cells = storage.states.zone.cells
    return sum(ONE.unpack_from(cells.memory, cells.head_at(shard) + EVICTED)[0] for shard in range(SHARDS))


def used(storage: SharedMemoryStorage) -> tuple[int, int]:
    """Return the numbers of cells and of blocks that are in use."""
    zone: Any = storage.states.zone
    cells, geometry = zone.cells, zone.owner.geometry
    tags = cells.memory[geometry.tags_at : geometry.tags_at + SHARDS * geometry.cells]
    free = 0
    for shard in range(SHARDS):
        block = ONE.unpack_from(cells.memory, cells.head_at(shard) + FREE)[0]
        while block:
            free += 1
            block = ONE.unpack_from(cells.memory, geometry.blocks_at + (block - 1) * BLOCK)[0]
    return len(tags) - tags.count(0), SHARDS * geometry.blocks - free


def _new_name() -> str:
    return f"benchmark-{os.getpid()}-{next(_numbers)}"
