"""Redis: the server time of one call on a long sliding log, during which the server does nothing else.

The time comes from `INFO commandstats`, so it contains neither Python nor the network. Run: python -m
benchmarks.sliding_log
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.servers import redis_server

from ratebound import Limiter, parse_limit

ENTRIES = (1_000, 10_000)
CALLS = 50


def main() -> None:
    """Measure and print the server time of each kind of call."""
    with redis_server() as server, server.client() as admin:

        def spent() -> int:
            stats: Any = admin.info("commandstats")
            return sum(stats.get(f"cmdstat_{name}", {}).get("usec", 0) for name in ("evalsha", "eval"))

        def milliseconds(call: Callable[[], object]) -> float:
            before = spent()
            for _ in range(CALLS):
                call()
            return (spent() - before) / CALLS / 1_000

        for entries in ENTRIES:
            for cost in (1, 2):  # every second entry costs that much
                admin.flushall()
                _report(f"{server.url}?timeout=5", entries, cost, milliseconds)


def _report(url: str, entries: int, cost: int, milliseconds: Callable[[Callable[[], object]], float]) -> None:
    count = entries * (1 + cost) // 2
    limit = parse_limit(f"{count + 4 * CALLS}/hour sliding-log large")
    with Limiter(limit, storage=url, failure="raise") as limiter:
        spends = [limiter.hit("k", cost=cost if i % 2 else 1) for i in range(entries)]
        newest, middle = iter(spends[-CALLS:]), iter(spends[entries // 2 :])
        found = {
            "hit": milliseconds(lambda: limiter.hit("k")),
            "settle, newest": milliseconds(lambda: limiter.settle(next(newest), cost=0)),
        }
        limiter.hit("k", cost=limiter.peek("k").remaining)
        for when in ("", " after that"):
            for asked in (1, count // 2, count):
                found[f"denied {asked}{when}"] = milliseconds(partial(limiter.hit, "k", cost=asked))
            if not when:
                found["settle, middle"] = milliseconds(lambda: limiter.settle(next(middle), cost=0))
                limiter.hit("k", cost=limiter.peek("k").remaining)
        times = ", ".join(f"{name} {time:.3f}" for name, time in found.items())
        sys.stdout.write(f"{entries} entries of {1 if cost == 1 else f'1 and {cost}'}, ms of the server: {times}\n")


if __name__ == "__main__":
    main()
