"""A hit on shared memory, and the parts that it is made of.

A hit on shared memory has to do what a hit on memory does, and besides: take and release a lock, digest the key, read
the numbers of a state and write them. Each of these is measured by itself, in blocks that take turns with the hits.
Times are CPU time without that of the empty loop. A figure is the least of all rounds, because a sum of medians has the
noise of each of its parts.
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from mmap import mmap
from random import Random
from struct import Struct
from typing import Any, NamedTuple

from benchmarks.builds import Done, Worker
from benchmarks.measure import Block, spread
from benchmarks.verdict import Verdict, at_most
from benchmarks.zones import evicted, own_zone
from ratebound import Limiter, MemoryStorage, parse_limits
from ratebound.kernels.packing import Packed, unpacked
from ratebound.limit import Limit
from ratebound.numbers import Numbers
from ratebound.storage.shared_memory.locks import FileLocks, Locks
from ratebound.storage.shared_memory.storage import SharedMemoryStorage

MOST = 2.0  # times the sum of the parts

MEMORY, ZONE = "memory hit", "shm hit"
MUTEX, FILE_LOCK, DIGEST, UNPACK, PACK = "mutex pair", "file lock pair", "digest", "unpack", "pack"
EMPTY = "empty loop"
TIMED = (EMPTY, MEMORY, MUTEX, FILE_LOCK, DIGEST, UNPACK, PACK, ZONE)

HOT, MANY = 1, 10_000  # keys
VISITS = {HOT: 2_000, MANY: 10_000}  # hits in a block
ROOM = 64 << 20  # bytes of the zone
STEP = 10  # microseconds that pass with each hit where time is simulated, as in a server that is busy

WIDE = "10000000/hour"
LONG = "10000/day"  # with many keys: a unit is there for seconds, so that no state expires before its next hit
# The text of limits that allow and of limits that deny, and the number of entries that a log has all the time.
KINDS: dict[str, tuple[str, str, int]] = {
    "fixed-window": (f"{WIDE} fixed-window", "10/day fixed-window", 0),
    "sliding-counter": (f"{WIDE} sliding-counter", "10/day sliding-counter", 0),
    "token-bucket": (f"{WIDE} token-bucket", "10/day token-bucket", 0),
    "gcra": (f"{WIDE} gcra", "10/day gcra", 0),
    "sliding-log, 10 entries": ("10000/{} microseconds sliding-log", "10/day sliding-log", 10),
    "sliding-log, 100 entries": ("10000/{} microseconds sliding-log", "100/day sliding-log", 100),
    "calendar": ("10000000/calendar-year", "10/calendar-year", 0),
    "four limits": (
        "10000000/second; 20000000/minute; 30000000/hour; 40000000/day",
        "10000000/second; 20000000/minute; 30000000/hour; 10/day fixed-window",
        0,
    ),
}


class Setting(NamedTuple):
    """What is measured: a kind of limit, how many keys, and whether the hits are denied."""

    kind: str
    keys: int
    denied: bool

    @property
    def name(self) -> str:
        """The setting in words."""
        return f"{self.kind}, {'one key' if self.keys == HOT else f'{self.keys:,} keys'}" + ", denied" * self.denied

    @property
    def text(self) -> str:
        """The text of the limits."""
        allowing, denying, entries = KINDS[self.kind]
        if self.denied:
            return denying
        return (allowing.replace(WIDE, LONG) if self.keys == MANY else allowing).format(STEP * entries * self.keys)


SETTINGS = (
    *(Setting(kind, HOT, False) for kind in KINDS),
    *(Setting(kind, MANY, False) for kind in KINDS if "100" not in kind),
    *(Setting(kind, HOT, True) for kind in KINDS),
)


class Parts(NamedTuple):
    """The least times of one setting in one build, in seconds, without that of the empty loop."""

    build: str
    setting: Setting
    states: int  # of a key: one for each limit
    seconds: dict[str, float]

    @property
    def sum(self) -> float:
        """The sum that a hit is compared with. A hit unpacks and packs each of its states."""
        found = self.seconds
        lock = min(found[MUTEX], found[FILE_LOCK])
        return found[MEMORY] + lock + found[DIGEST] + found[UNPACK] + found[PACK]

    @property
    def times(self) -> float:
        """How many times the sum a hit on shared memory takes."""
        return self.seconds[ZONE] / self.sum

    def verdict(self) -> Verdict:
        """Return whether a hit takes as little as is required."""
        what = f"shm, {self.setting.name}: times the sum of its parts"
        return at_most(self.build, what, MOST, spread([self.times]))


def measure_parts(workers: Sequence[Worker], setting: Setting, rounds: int, done: Done) -> list[Parts]:
    """Return the least times of one setting, for each worker. The workers take turns, one round each."""
    least: list[dict[str, float]] = [dict.fromkeys(TIMED, float("inf")) for _ in workers]
    states = 0
    for number in range(rounds):
        for place, worker in enumerate(workers):
            states, found = worker.run(time_parts, setting, number, done=done)
            for part, seconds in found.items():
                least[place][part] = min(least[place][part], seconds)
    return [
        Parts(
            worker.build,
            setting,
            states,
            {
                part: seconds - found[EMPTY] * (states if part in (UNPACK, PACK) else 1)
                for part, seconds in found.items()
                if part != EMPTY
            },
        )
        for worker, found in zip(workers, least, strict=True)
    ]


def time_parts(setting: Setting, number: int, done: Done) -> tuple[int, dict[str, float]]:
    """Return the number of states of a key, and the CPU seconds of each part in one round. Workers run this."""
    if _prepared.get("setting") != setting:
        _prepared.clear()
        zone = own_zone(ROOM)
        _prepared.update(setting=setting, zone=zone, blocks=blocks_of(setting, zone))
    states, blocks = _prepared["blocks"]
    found = {}
    gc.collect()
    for part in Random(number).sample(TIMED, len(TIMED)):
        asked = visits(setting.keys, number)
        start = time.process_time()
        denied = blocks[part](asked)
        found[part] = (time.process_time() - start) / len(asked)
        expected = len(asked) if setting.denied and part in (MEMORY, ZONE) else 0
        if denied != expected:
            raise AssertionError(f"{setting.name}: {denied} of {len(asked)} were denied, expected {expected}")
    zone = _prepared["zone"]
    if evicted(zone):
        raise AssertionError(f"{setting.name}: the zone of {zone.zone_name.name} is too small")
    done()
    return states, found


_prepared: dict[str, Any] = {}  # the setting that this worker measures, and its blocks


def visits(number_of_keys: int, number: int) -> list[str]:
    """Return the keys of a block: each a new string, as in a server."""
    order = [place % number_of_keys for place in range(VISITS[number_of_keys])]
    Random(number).shuffle(order)
    return [_key(place) for place in order]


def _key(number: int) -> str:
    return f"user:{10_000 + number}"


def blocks_of(setting: Setting, zone: SharedMemoryStorage) -> tuple[int, dict[str, Block]]:
    """Return the number of states of a key, and the blocks of all parts."""
    all_limits, entries = parse_limits(setting.text), KINDS[setting.kind][2]
    memory = MemoryStorage()
    if entries and not setting.denied:  # time that passes with each hit, so that a log has as many entries all the time
        memory.states._ticks = count(time.monotonic_ns(), STEP * 1_000).__next__
        zone.states.zone._ticks = count(time.monotonic_ns(), STEP * 1_000).__next__
    hits = {MEMORY: _hits(all_limits, memory), ZONE: _hits(all_limits, zone)}
    for hit in hits.values():
        for warm_up in range(2 if setting.keys == MANY and not entries else max(12, entries + 2)):
            hit(sorted(set(visits(setting.keys, warm_up))))
    return len(all_limits), {**hits, **_parts(zone, all_limits)}


def _hits(all_limits: Sequence[Limit], storage: MemoryStorage | SharedMemoryStorage) -> Block:
    hit = Limiter(all_limits, storage=storage, failure="raise").hit

    def block(asked: Sequence[str]) -> int:
        denied = 0
        for key in asked:
            if not hit(key).allowed:
                denied += 1
        return denied

    return block


def _parts(storage: SharedMemoryStorage, all_limits: Sequence[Limit]) -> dict[str, Block]:
    """Return the blocks of the parts, on the states that the first key has."""
    zone: Any = storage.states.zone
    cells = zone.cells
    mutexes = zone.owner.locks
    file, path = tempfile.mkstemp()
    os.unlink(path)
    files = FileLocks(file)
    stored = []
    for limit in all_limits:
        place = cells.place(cells.digest(_key(0)), cells.scope(limit.scope))
        if not cells.find(place):
            raise AssertionError(f"there is no state of {limit}")
        stored.append((limit.numbers, place.numbers))
    return {
        EMPTY: _nothing,
        MUTEX: _pairs(mutexes, 0),
        FILE_LOCK: _pairs(files, 0),
        DIGEST: _digests(cells.digest),
        UNPACK: _unpacks(stored),
        PACK: _packs(stored),
    }


def _nothing(asked: Sequence[str]) -> int:
    for _ in asked:
        pass
    return 0


def _pairs(locks: Locks, shard: int) -> Block:
    take, release, handle = locks.try_take, locks.release, locks.handles[shard]

    def block(asked: Sequence[str]) -> int:
        for _ in asked:
            take(handle)
            release(handle)
        return 0

    return block


def _digests(digest: Callable[[str], bytes]) -> Block:
    def block(asked: Sequence[str]) -> int:
        for key in asked:
            digest(key)
        return 0

    return block


def _unpacks(stored: Sequence[tuple[Numbers, Packed]]) -> Block:
    """Return a block that makes each state from the bytes of a copy: its worth, and its numbers."""
    copies = []
    for limit, numbers in stored:
        struct, memory = Struct(f"@{len(numbers) + 1}q"), mmap(-1, 1 << 16)
        struct.pack_into(memory, 0, 1, *numbers)
        copies.append((limit, struct.unpack_from, memory))

    def block(asked: Sequence[str]) -> int:
        for limit, unpack, memory in copies:
            for _ in asked:
                unpacked(limit, unpack(memory, 0)[1:])
        return 0

    return block


def _packs(stored: Sequence[tuple[Numbers, Packed]]) -> Block:
    """Return a block that writes each state as the bytes of a copy: its worth, its numbers and its word."""
    copies = []
    for limit, numbers in stored:
        struct, memory = Struct(f"@{len(numbers) + 2}q"), mmap(-1, 1 << 16)
        copies.append((limit, unpacked(limit, numbers).pack, struct.pack_into, memory))

    def block(asked: Sequence[str]) -> int:
        for limit, pack, pack_into, memory in copies:
            for _ in asked:
                pack_into(memory, 0, 1, *pack(limit), 256)
        return 0

    return block
