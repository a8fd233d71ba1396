"""Shared pacing: eight processes learn the limit of a real server, and share it over a storage.

    python -m benchmarks.pacing [SECONDS]

For each limit and storage: how many requests were refused after the first answers, and the part of the allowed rate
that was used. Required are no refusals and 97 %.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

from tests.client.paced_server import serving_limit
from tests.client.paced_worker import run_processes
from tests.servers import redis_server
from tests.zones import fresh_zone_url

from ratebound.notation import parse_limit

LIMITS = ("50/second burst 50", "50/second fixed-window", "100/5 seconds burst 100", "100/5 seconds fixed-window")
STORAGES = ("shm", "redis")
REQUIRED = 0.97
WARM_UP = 3.0  # seconds


class SharedPacing(NamedTuple):
    """The result of one limit on one storage."""

    limit: str
    storage: str
    first_refused: int  # before all processes had an answer
    refused: int
    used: float  # the part of the allowed rate


@contextmanager
def shared_storage(kind: str) -> Iterator[str]:
    """Open a shared storage of this kind, and return its URL."""
    if kind == "redis":
        with redis_server() as server:
            yield server.url
    else:
        with fresh_zone_url() as url:
            yield url


def measure_shared_pacing(limit: str, storage: str, seconds: float, processes: int = 8) -> SharedPacing:
    """Measure one limit on one storage."""
    parsed = parse_limit(limit)
    period = parsed.period_us / 1_000_000
    warm_up = max(WARM_UP, 2 * period)
    with serving_limit(limit) as url, shared_storage(storage) as shared:
        ran = run_processes(url, shared, warm_up + seconds + 2 * period, processes, *sys.argv[3:])
    # From one burst to the next: whole periods, from the first answer of one.
    begin = ran.answers[0][0] + warm_up
    periods = int(seconds // period)
    begin = _quiet_instant(ran.answers, begin, period)
    used = ran.accepted_within(begin, begin + periods * period) / (parsed.count * periods)
    early = sum(status != 200 for when, status in ran.answers if when < ran.answers[0][0] + warm_up)
    return SharedPacing(limit, storage, early, ran.refused_after(warm_up), used)


def _quiet_instant(answers: list[tuple[float, int]], begin: float, period: float) -> float:
    """Return the middle of the longest pause in the first period after `begin`: there no burst is cut in two."""
    times = [when for when, _ in answers if begin <= when < begin + 2 * period]
    pauses = [(later - earlier, (later + earlier) / 2) for earlier, later in pairwise(times)]
    return max(pauses, default=(0.0, begin))[1]


def main() -> None:
    """Measure all, and exit with 1 if a requirement is missed."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    chosen = sys.argv[2] if len(sys.argv) > 2 else ""
    missed = False
    for storage in STORAGES:
        for limit in LIMITS:
            if chosen not in f"{storage} {limit}":
                continue
            found = measure_shared_pacing(limit, storage, seconds)
            missed = missed or bool(found.refused) or found.used < REQUIRED
            print(
                f"{found.storage:6} {found.limit:30} refused: {found.first_refused} first, {found.refused} later;"
                f" used {found.used:.1%}",
                flush=True,
            )
    sys.exit(missed)


if __name__ == "__main__":
    main()
