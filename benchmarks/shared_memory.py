"""Shared memory: the time of a hit beside the sum of its parts, beside Redis, and by several processes at once.

A hit on shared memory has to do what a hit on memory does, and besides: take and release a lock, digest the key, read
the numbers of a state and write them. Each of these is measured by itself, in blocks that take turns with the hits.
Times are CPU time without that of the empty loop. A figure is the least of all rounds, because a sum of medians has the
noise of each of its parts.

On Redis it is wall time, because most of it is spent in the server.
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from mmap import mmap
from random import Random
from struct import Struct
from typing import Any, NamedTuple

import limits
from tests.servers import redis_server

from benchmarks.builds import Done, Worker, on_all_cores
from benchmarks.contenders import counting
from benchmarks.measure import Block, keys, ratios, spread
from benchmarks.processes import Load, decisions_per_second
from benchmarks.table import Sheet, figures
from benchmarks.verdict import Verdict, at_least, at_most
from benchmarks.zones import evicted, own_zone, zone_for_processes
from ratebound import Limiter, MemoryStorage, parse_limits
from ratebound.kernels.packing import Packed, unpacked
from ratebound.limit import Limit
from ratebound.numbers import Numbers
from ratebound.storage.redis.storage import RedisStorage
from ratebound.storage.shared_memory.locks import FileLocks, Locks
from ratebound.storage.shared_memory.storage import SharedMemoryStorage

MOST = 2.0  # times the sum of the parts
LEAST = 8.0  # times as fast as limits on Redis

MEMORY, ZONE = "memory hit", "shm hit"
MUTEX, FILE_LOCK, DIGEST, UNPACK, PACK = "mutex pair", "file lock pair", "digest", "unpack", "pack"
EMPTY = "empty loop"
TIMED = (EMPTY, MEMORY, MUTEX, FILE_LOCK, DIGEST, UNPACK, PACK, ZONE)

HOT, MANY = 1, 10_000  # keys
VISITS = {HOT: 2_000, MANY: 10_000}  # hits in a block
ROOM = 64 << 20  # bytes of the zone
HOUR = 3_600_000_000_000  # nanoseconds

WIDE = "10000000/hour"
LONG = "10000/day"  # with many keys: a unit is there for seconds, so that no state expires before its next hit
# The text of limits that allow and of limits that deny, and the number of entries that a log has all the time.
KINDS: dict[str, tuple[str, str, int]] = {
    "fixed-window": (f"{WIDE} fixed-window", "10/day fixed-window", 0),
    "sliding-counter": (f"{WIDE} sliding-counter", "10/day sliding-counter", 0),
    "token-bucket": (f"{WIDE} token-bucket", "10/day token-bucket", 0),
    "gcra": (f"{WIDE} gcra", "10/day gcra", 0),
    "sliding-log, 10 entries": ("10000/hour sliding-log", "10/day sliding-log", 10),
    "sliding-log, 100 entries": ("10000/hour sliding-log", "100/day sliding-log", 100),
    "calendar": ("10000000/calendar-year", "10/calendar-year", 0),
    "four limits": (
        "10000000/second; 20000000/minute; 30000000/hour; 40000000/day",
        "10000000/second; 20000000/minute; 30000000/hour; 10/day fixed-window",
        0,
    ),
}

PROCESSES = (1, 2, 4)
SHM, MEMORY_OURS, REDIS_OURS = "ratebound on shm", "ratebound in memory", "ratebound on Redis"
REDIS_LIMITS, MEMORY_LIMITS = "limits on Redis", "limits in memory"
WHO = (MEMORY_OURS, SHM, REDIS_OURS, MEMORY_LIMITS, REDIS_LIMITS)
RATE = "10000000/hour"
WIDE_OPEN = "1000000000/hour"  # several processes for a second
EACH = 5  # decisions for each key in a block on Redis


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
        allowing, denying, _ = KINDS[self.kind]
        return denying if self.denied else allowing.replace(WIDE, LONG) if self.keys == MANY else allowing


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


@dataclass(slots=True)
class Sharing:
    """The results on shared memory. `calls` are seconds per call of every round, `rates` decisions per second."""

    parts: list[Parts] = field(default_factory=list)
    calls: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by build and contender
    rates: dict[tuple[str, int, bool], list[float]] = field(default_factory=dict)  # build, processes, own keys

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required value that was measured."""
        judged = [
            at_most(each.build, f"shm, {each.setting.name}: times the sum of its parts", MOST, spread([each.times]))
            for each in self.parts
        ]
        for build, calls in self.calls.items():
            found = spread(ratios(calls[SHM], calls[REDIS_LIMITS]))
            judged.append(at_least(build, f"shm, fixed-window: times as fast as {REDIS_LIMITS}", LEAST, found))
        return judged

    def sheets(self) -> list[Sheet]:
        """Return the tables."""
        return [
            Sheet(
                "A hit on shared memory and its parts: least CPU time in µs",
                ("build", "what", *TIMED[1:-1], "sum", ZONE, "times the sum"),
                [
                    (
                        each.build,
                        each.setting.name,
                        *(f"{each.seconds[part] * 1e6:.3f}" for part in TIMED[1:-1]),
                        f"{each.sum * 1e6:.3f}",
                        f"{each.seconds[ZONE] * 1e6:.3f}",
                        f"{each.times:.2f}",
                    )
                    for each in self.parts
                ],
            ),
            Sheet(
                "A fixed window on shared memory and on Redis: wall time",
                ("build", "who", "µs per call", "quartiles", "times shm", "quartiles"),
                [
                    (build, who, *figures(spread(times), 1e6), *figures(spread(ratios(calls[SHM], times))))
                    for build, calls in self.calls.items()
                    for who, times in calls.items()
                ],
            ),
            Sheet(
                "Processes on one zone, a fixed window: decisions per second of all together",
                ("build", "processes", "keys", "per second", "quartiles"),
                [
                    (
                        build,
                        str(processes),
                        "one for each" if own else "one for all",
                        f"{found.median:,.0f}",
                        f"{found.low:,.0f}–{found.high:,.0f}",
                    )
                    for (build, processes, own), found in ((of, spread(rates)) for of, rates in self.rates.items())
                ],
            ),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "parts": [
                {
                    "build": each.build,
                    **each.setting._asdict(),
                    "seconds": each.seconds,
                    "sum": each.sum,
                    "times": each.times,
                }
                for each in self.parts
            ],
            "calls": {
                build: {who: spread(times)._asdict() for who, times in calls.items()}
                for build, calls in self.calls.items()
            },
            "processes": [
                {"build": build, "processes": processes, "own_keys": own, "per_second": spread(rates)._asdict()}
                for (build, processes, own), rates in self.rates.items()
            ],
        }


# A hit and its parts


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
        _prepared.update(setting=setting, zone=zone, blocks=_blocks(setting, zone))
    states, blocks = _prepared["blocks"]
    found = {}
    for part in Random(number).sample(TIMED, len(TIMED)):
        asked = visits(setting.keys, number)
        gc.collect()
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


def _blocks(setting: Setting, zone: SharedMemoryStorage) -> tuple[int, dict[str, Block]]:
    """Return the number of states of a key, and the blocks of all parts."""
    all_limits, entries = parse_limits(setting.text), KINDS[setting.kind][2]
    memory = MemoryStorage()
    if entries and not setting.denied:  # time that passes with each hit, so that a log has as many entries all the time
        step = HOUR // entries // setting.keys
        memory.states._ticks = count(time.monotonic_ns(), step).__next__
        zone.states.zone._ticks = count(time.monotonic_ns(), step).__next__
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


# Beside Redis, and by several processes


def measure_calls(build: str, rounds: int, done: Done) -> dict[str, list[float]]:
    """Return the wall time of a call in every round, by contender."""
    with on_all_cores(), Worker(build) as worker:  # the server needs a core of its own
        return worker.run(time_calls, rounds, done=done)


def time_calls(rounds: int, done: Done) -> dict[str, list[float]]:
    """Return the wall time of a call in every round, by contender. Workers run this."""
    found: dict[str, list[float]] = {who: [] for who in WHO}
    with redis_server() as server, server.client() as admin:
        redis = RedisStorage(server.url)
        blocks = {
            MEMORY_OURS: _ours(MemoryStorage()),
            SHM: _ours(own_zone()),
            REDIS_OURS: _ours(redis),
            MEMORY_LIMITS: _limits(limits.storage.MemoryStorage()),
            REDIS_LIMITS: _limits(limits.storage.RedisStorage(server.url)),
        }
        for number in range(rounds):
            admin.flushdb()
            for who in Random(number).sample(WHO, len(WHO)):
                blocks[who](keys(number, 2))
                asked = keys(number, EACH)
                gc.collect()
                start = time.perf_counter()
                denied = blocks[who](asked)
                found[who].append((time.perf_counter() - start) / len(asked))
                if denied:
                    raise AssertionError(f"{who} denied {denied} of {len(asked)}, expected none")
            done()
        redis.close()
    return found


def _ours(storage: MemoryStorage | SharedMemoryStorage | RedisStorage) -> Block:
    hit = Limiter(f"{RATE} fixed-window", storage=storage, failure="raise").hit
    return counting(lambda key: hit(key).allowed)


def _limits(storage: Any) -> Block:
    hit, item = limits.strategies.FixedWindowRateLimiter(storage).hit, limits.parse(RATE)
    return counting(lambda key: bool(hit(item, key)))


def process_steps(rounds: int) -> int:
    """Return how many times `measure_processes` calls `done`."""
    return 2 * rounds * len(PROCESSES)


def measure_processes(build: str, rounds: int, done: Done) -> dict[tuple[str, int, bool], list[float]]:
    """Return the decisions per second of every round, by (build, processes, whether each has a key of its own)."""
    turns = [(processes, own) for own in (False, True) for processes in PROCESSES]
    found: dict[tuple[str, int, bool], list[float]] = {(build, *turn): [] for turn in turns}
    with on_all_cores(), ExitStack() as stack, zone_for_processes() as url:
        workers = [stack.enter_context(Worker(build)) for _ in range(max(PROCESSES))]
        for number in range(rounds):
            for processes, own in Random(number).sample(turns, len(turns)):
                load = Load(url, f"{WIDE_OPEN} fixed-window", {}, own_keys=own)
                found[(build, processes, own)].append(decisions_per_second(workers[:processes], load).per_second)
                done()
    return found
