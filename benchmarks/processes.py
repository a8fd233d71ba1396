"""Decisions per second of several processes that decide at the same time."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.builds import Done, Worker, run_together
from ratebound import Limiter

CHUNK = 100  # hits between two looks at the clock
LEAD = 0.2  # seconds until all of them begin


class Load(NamedTuple):
    """What each process does: hits on one key of a limiter, of which all or none have to be allowed."""

    url: str
    limit: str
    options: dict[str, Any]
    own_keys: bool = False  # a key for each process, and not one for all
    denied: bool = False
    warm_up: float = 0.1  # seconds
    seconds: float = 0.5


class Made(NamedTuple):
    """The decisions of all processes together: per second, and their number with those of the warm-up."""

    per_second: float
    all: int


def decisions_per_second(workers: Sequence[Worker], load: Load) -> Made:
    """Let all workers hit at the same time."""
    for worker in workers:
        worker.run(be_ready)
    found = run_together(workers, hit_for, load, time.monotonic() + LEAD)
    return Made(sum(timed for timed, _ in found) / load.seconds, sum(timed + before for timed, before in found))


def be_ready(_: Done) -> None:
    """Do nothing: a worker that returns from this has imported everything."""


def hit_for(number: int, load: Load, begin: float, _: Done) -> tuple[int, int]:
    """Return the numbers of decisions within the time and before it. Workers run this."""
    key = f"user:{number}" if load.own_keys else "user:hot"
    with Limiter(load.limit, storage=load.url, failure="raise", **load.options) as limiter:
        before, _denied = _hit_until(limiter, key, begin + load.warm_up)
        asked, denied = _hit_until(limiter, key, begin + load.warm_up + load.seconds)
    if denied != (asked if load.denied else 0):
        raise AssertionError(f"{denied} of {asked} were denied, expected {'all' if load.denied else 'none'}")
    return asked, before


def _hit_until(limiter: Limiter, key: str, end: float) -> tuple[int, int]:
    """Return the number of decisions and of denials until an instant, but of one chunk at least."""
    hit, asked, denied = limiter.hit, 0, 0
    while True:
        for _ in range(CHUNK):
            if not hit(key).allowed:
                denied += 1
        asked += CHUNK
        if time.monotonic() >= end:
            return asked, denied
