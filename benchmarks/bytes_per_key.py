"""Bytes per key in each storage, for each algorithm: one table of one run.

Memory is what the process grows by. On shared memory it is the cells, tags and blocks in use, and besides, a zone of
which so many bytes per key are needed that no state is dropped. On Redis it is what the server's `used_memory` grows
by, and MEMORY USAGE of one key.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.servers import redis_server

from benchmarks.builds import Done, Worker
from benchmarks.memory import resident
from benchmarks.table import Sheet
from benchmarks.zones import evicted, own_zone, used
from ratebound import Limiter, MemoryStorage, parse_limit
from ratebound.limit import ALGORITHMS, Group, Limit
from ratebound.storage.redis.storage import RedisStorage
from ratebound.storage.shared_memory.layout import BLOCK, CELL

ZONE = 16 << 20  # bytes
TAG = 1  # byte of a cell
BATCH = 500  # groups in one call of Redis
# The text of the limit, and the hits on each key.
KINDS: dict[str, tuple[str, int]] = {
    **{name: (f"1000/day {name}", 1) for name in ALGORITHMS if name != "sliding-log"},
    "sliding-log, 1 entry": ("1000/day sliding-log", 1),
    "sliding-log, 10 entries": ("1000/day sliding-log", 10),
    "sliding-log, 100 entries": ("1000/day sliding-log", 100),
    "calendar": ("1000/calendar-month", 1),
}


@dataclass(slots=True)
class Weight:
    """The bytes per key of one kind of limit."""

    kind: str
    memory: dict[str, float] = field(default_factory=dict)  # by build
    zone_used: float = 0.0  # cells, tags and blocks in use
    zone_all: float = 0.0  # of a zone in which the next state would replace another
    zone_fill: float = 0.0  # the share of its cells that are in use then
    redis: float = 0.0
    redis_key: int = 0


def sheets(weights: Sequence[Weight], builds: Sequence[str]) -> list[Sheet]:
    """Return the table."""
    head = (
        "limit",
        *(f"memory, {build}" for build in builds),
        "shm, in use",
        "shm, whole zone",
        "cells in use then",
        "Redis, used_memory",
        "Redis, MEMORY USAGE",
    )
    rows = [
        (
            each.kind,
            *(f"{each.memory[build]:.0f}" for build in builds),
            f"{each.zone_used:.0f}",
            f"{each.zone_all:.0f}",
            f"{each.zone_fill:.0%}",
            f"{each.redis:.0f}",
            str(each.redis_key),
        )
        for each in weights
    ]
    return [Sheet("Bytes per key", head, rows)]


def steps(builds: Sequence[str]) -> int:
    """Return how many times `done` is called for each kind of limit."""
    return len(builds) + 2


def measure_bytes(kind: str, builds: Sequence[str], keys: int, done: Done) -> Weight:
    """Weigh one kind of limit in all storages. Logs with many entries get fewer keys, and so as many entries."""
    weight = Weight(kind)
    hits = KINDS[kind][1]
    for build in builds:
        with Worker(build) as worker:  # of its own, so that nothing is left of others
            weight.memory[build] = worker.run(weigh_memory, kind, keys // hits)
        done()
    with Worker(builds[-1]) as worker:
        filled = worker.run(fill_zone, kind)
    weight.zone_used = (filled.cells * (CELL + TAG) + filled.blocks * BLOCK) / filled.cells
    weight.zone_all = filled.size / filled.keys
    weight.zone_fill = filled.cells / filled.all_cells
    done()
    weight.redis, weight.redis_key = weigh_redis(kind, max(keys // 50 // hits, 1_000))
    done()
    return weight


def weigh_memory(kind: str, keys: int, _: Done) -> float:
    """Return the bytes per key that this process grows by. Workers run this."""
    text, hits = KINDS[kind]
    hit = Limiter(text, storage=MemoryStorage(max_keys=10 * keys * (1 + hits // 16))).hit
    hit("user:first")
    gc.collect()
    before = resident()
    for key in _keys(keys):
        for _hit in range(hits):
            hit(key)
    gc.collect()
    return (resident() - before) / keys


class Filled(NamedTuple):
    """A zone that is as full as it can be without dropping a state."""

    size: int
    keys: int
    all_cells: int
    cells: int
    blocks: int


def fill_zone(kind: str, _: Done) -> Filled:
    """Hit new keys until a state is dropped, and return what was in use before. Workers run this."""
    text, hits = KINDS[kind]
    storage = own_zone(ZONE)
    zone: Any = storage.states.zone
    limiter = Limiter(text, storage=storage, failure="raise")
    all_cells, cells, blocks, keys = len(zone.owner.locks.handles) * zone.cells.cells, 0, 0, 0
    for number, key in enumerate(_keys(all_cells)):
        for _hit in range(hits):
            limiter.hit(key)
        if evicted(storage):
            return Filled(ZONE, number, all_cells, cells, blocks)
        if number % 100 == 99:
            cells, blocks = used(storage)
        keys = number + 1
    return Filled(ZONE, keys, all_cells, *used(storage))


def weigh_redis(kind: str, keys: int) -> tuple[float, int]:
    """Return the bytes per key that a server grows by, and those of the first key."""
    text, hits = KINDS[kind]
    limit = parse_limit(text)
    with redis_server() as server, server.client() as admin:
        storage = RedisStorage(f"{server.url}?timeout=10")
        storage.evaluate([_group("user:first", limit)])
        admin.flushdb()
        before: Any = admin.info("memory")
        groups = [_group(key, limit) for key in _keys(keys)]
        for first in [*range(0, keys, BATCH)] * hits:  # no key twice in a call, which has one instant for all
            storage.evaluate(groups[first : first + BATCH])
        after: Any = admin.info("memory")
        (name, *_) = admin.keys()
        found = (after["used_memory"] - before["used_memory"]) / keys
        one = int(admin.memory_usage(name, samples=0))
        storage.close()
    return found, one


def _group(key: str, limit: Limit) -> Group:
    return ((key, (limit,), 1, None, None),)


def _keys(number: int) -> Iterator[str]:
    return (f"user:{1_000_000 + place}" for place in range(number))
