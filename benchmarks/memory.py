"""Bytes per key: the growth of the process after one hit on each of many keys.

Every contender has a worker of its own. The size is the resident size that the system reports, so it includes allocator
and locks.
"""

import gc
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.builds import COMPILED, Done, Worker
from benchmarks.contenders import Rate, limits_hit, ours, pyrate_acquire, rust_check, throttled_limit
from benchmarks.measure import Block, Contender, spread
from benchmarks.verdict import Verdict, at_most
from ratebound.limit import ALGORITHMS

RATE = Rate(100, "day")  # one hit counts for 864 seconds or more: nothing runs out while the keys are filled in
CHUNK = 10_000
STATM = Path("/proc/self/statm")
MOST = 190  # bytes per key, compiled


def _dict_of_int() -> Block:
    counts: dict[str, int] = {}

    def block(keys: Sequence[str]) -> int:
        for key in keys:
            counts[key] = len(counts) + 1_000  # past the small numbers, which Python keeps once for all
        return 0

    return block


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("bare", "dict of int", "", _dict_of_int),
        *(ours(f"{RATE} {algorithm}", algorithm) for algorithm in ALGORITHMS),
        *(limits_hit(strategy, RATE) for strategy in ("FixedWindow", "MovingWindow", "SlidingWindowCounter")),
        *(
            throttled_limit(algorithm, RATE)
            for algorithm in ("fixed_window", "sliding_window", "token_bucket", "leaking_bucket", "gcra")
        ),
        *(pyrate_acquire(algorithm, [RATE]) for algorithm in ("FixedWindow", "SlidingWindowLog", "GCRA")),
        rust_check(RATE),
    )
}


class Footprint(NamedTuple):
    """The memory of one contender. `seconds` is the CPU time of filling it, including background threads."""

    build: str
    name: str
    keys: int
    bytes_per_key: float
    seconds: float


def to_weigh(builds: Sequence[str]) -> list[tuple[str, str]]:
    """Return (build, contender) of every worker: ours once per build, the others once."""
    return [
        (build, name)
        for name, contender in CONTENDERS.items()
        for build in (builds if contender.library == "ratebound" else builds[:1])
    ]


def measure_memory(build: str, name: str, keys: int) -> Footprint:
    """Measure one contender in its own process."""
    with Worker(build) as worker:
        grown, seconds = worker.run(fill, name, keys)
    return Footprint(build, name, keys, grown / keys, seconds)


def judge(footprint: Footprint) -> list[Verdict]:
    """Return the verdict, if something is required of this one."""
    if footprint.build != COMPILED or CONTENDERS[footprint.name].library != "ratebound":
        return []
    what = f"{footprint.name}: bytes per key at {footprint.keys:,} keys"
    return [at_most(COMPILED, what, MOST, spread([footprint.bytes_per_key]))]


def resident() -> int:
    """Return the resident bytes now; without /proc, the peak."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def fill(name: str, keys: int, _: Done) -> tuple[int, float]:
    """Return the bytes that the process has grown by, and the CPU seconds. Workers run this."""
    block = CONTENDERS[name].make()
    denied = block(["user:first"])  # what is made once, at the first hit, is not a key's
    gc.collect()
    before, start = resident(), time.process_time()
    for first in range(1_000_000, 1_000_000 + keys, CHUNK):
        denied += block([f"user:{number}" for number in range(first, min(first + CHUNK, 1_000_000 + keys))])
    seconds = time.process_time() - start
    gc.collect()
    grown = resident() - before
    if denied:
        raise AssertionError(f"{name}: {denied} denied")
    return grown, seconds
