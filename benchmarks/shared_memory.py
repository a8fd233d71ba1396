"""Shared memory: a hit and its parts, a hit beside Redis, and several processes at once.

Beside Redis it is wall time, because most of it is spent in the server.
"""

import gc
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

import limits
from tests.servers import redis_server

from benchmarks.builds import Done, Worker, on_all_cores
from benchmarks.hit_parts import TIMED, ZONE, Parts
from benchmarks.measure import Block, counting, keys, ratios, spread
from benchmarks.processes import Load, decisions_per_second
from benchmarks.table import Sheet, figures
from benchmarks.verdict import Verdict, at_least
from benchmarks.zones import own_zone, zone_for_processes
from ratebound import Limiter, MemoryStorage
from ratebound.storage.redis.storage import RedisStorage
from ratebound.storage.shared_memory.storage import SharedMemoryStorage

LEAST = 8.0  # times as fast as limits on Redis
PROCESSES = (1, 2, 4)
SHM, MEMORY_OURS, REDIS_OURS = "ratebound on shm", "ratebound in memory", "ratebound on Redis"
REDIS_LIMITS, MEMORY_LIMITS = "limits on Redis", "limits in memory"
WHO = (MEMORY_OURS, SHM, REDIS_OURS, MEMORY_LIMITS, REDIS_LIMITS)
RATE = "10000000/hour"
WIDE_OPEN = "1000000000/hour"  # several processes for a second
EACH = 5  # decisions for each key in a block on Redis


@dataclass(slots=True)
class Sharing:
    """The results on shared memory. `calls` are seconds per call of every round, `rates` decisions per second."""

    parts: list[Parts] = field(default_factory=list)
    calls: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by build and contender
    rates: dict[tuple[str, int, bool], list[float]] = field(default_factory=dict)  # build, processes, own keys

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required value that was measured."""
        judged = [each.verdict() for each in self.parts]
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
