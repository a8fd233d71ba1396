"""The cost of many keys: the time that a million keys add over a thousand, compared with a bare dict.

A limiter cannot be flatter than the dict that holds its states: at a million keys the processor waits for memory. So
the bare dict does what any limiter must: get the state of a key and set a new one of the same shape, with the same keys
in the same order. All visits use new strings, on both sides: a key comes with the request, so the dict compares it with
the stored one, which is elsewhere in memory.
"""

import gc
import time
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import NamedTuple

from benchmarks.builds import Done
from benchmarks.measure import Block, Spread, spread
from ratebound import Limiter, MemoryStorage

# One hit counts for 259 seconds, longer than the measurement: states that run out would be swept.
LIMITS = {"gcra": "10000/month gcra", "default": "10000/month"}
SMALL = 1_000
MOST = 2.0  # times what the dict's own growth is


class Growth(NamedTuple):
    """Seconds per visit at both sizes, and the ratio of our growth to the dict's."""

    build: str
    algorithm: str
    keys: int  # the larger size
    ours: tuple[Spread, Spread]
    bare: tuple[Spread, Spread]
    times: Spread


def measure_growth(build: str, algorithm: str, large: int, visits: int, rounds: int, done: Done) -> Growth:
    """Return the growth of one algorithm. A worker of this build runs this."""
    sizes = (SMALL, large)
    orders = [_shuffled(size) for size in sizes]
    blocks = [[_ours(LIMITS[algorithm], size), _bare(size)] for size in sizes]
    times: list[list[list[float]]] = [[[], []], [[], []]]
    for number in range(-1, rounds):  # the round before the first warms up
        for size in (0, 1):
            for side in (number % 2, 1 - number % 2):
                spent = _visit(blocks[size][side], orders[size], number % rounds * visits, visits)
                if number >= 0:
                    times[size][side].append(spent)
                done()
    added = [
        [at_large - at_small for at_small, at_large in zip(*pair, strict=True)] for pair in zip(*times, strict=True)
    ]
    return Growth(
        build,
        algorithm,
        large,
        (spread(times[0][0]), spread(times[1][0])),
        (spread(times[0][1]), spread(times[1][1])),
        spread([our / bare for our, bare in zip(*added, strict=True)]),
    )


def blocks_of(rounds: int) -> int:
    """Return how many times `done` is called."""
    return 4 * (rounds + 1)


def _shuffled(size: int) -> list[int]:
    order = list(range(size))
    Random(size).shuffle(order)
    return order


def _visit(block: Block, order: Sequence[int], start: int, visits: int) -> float:
    """Return the time of one block. It has as many visits at both sizes, so that walking the key list cancels out."""
    asked = [_key(order[place % len(order)]) for place in range(start, start + visits)]
    gc.collect()
    begun = time.process_time()
    denied = block(asked)
    spent = time.process_time() - begun
    if denied:
        raise AssertionError(f"growth: {denied} of {visits} denied")
    return spent / visits


def _key(number: int) -> str:
    return f"user:{1_000_000 + number}"


def _ours(text: str, size: int) -> Block:
    storage = MemoryStorage()
    hit = Limiter(text, storage=storage).hit
    for number in range(size):
        hit(_key(number))

    def block(keys: Sequence[str]) -> int:
        denied = 0
        for key in keys:
            if not hit(key).allowed:
                denied += 1
        if storage.keys != size:
            raise AssertionError(f"growth: {storage.keys} keys are stored, not {size}")
        return denied

    return block


def _bare(size: int) -> Block:
    ticks = count(1_700_000_000_000_000)
    states: dict[str, tuple[int, int, int]] = {}
    for number in range(size):
        now = next(ticks)
        states[_key(number)] = (now + 1, 0, now)
    get, tick = states.get, ticks.__next__

    def block(keys: Sequence[str]) -> int:
        missing = 0
        for key in keys:
            state = get(key)
            if state is None:
                missing += 1
            now = tick()
            states[key] = (now + 1, 0, now)
        return missing

    return block
