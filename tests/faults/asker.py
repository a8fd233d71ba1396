"""One worker of several that share a Redis: `python -m tests.faults.asker kind url limit workers`, see test_more.py.

`kind` is threads or tasks. It plays each job it is given, a line each: the key, how many times to ask at most, and for
how many seconds. It answers with its grants: the instant of each, and whether it was made without the storage.
"""

import asyncio
import json
import sys
import threading
import time
from itertools import repeat

from ratebound import AsyncLimiter, Decision, Limiter

HANDS = {"threads": 3, "tasks": 20}
PAUSE = 0.002  # seconds between two requests of a hand: the others need some of the machine, too
DEADLINE = 0.5

Grants = list[tuple[int, bool]]


def note(grants: Grants, decision: Decision) -> None:
    if decision:
        grants.append((decision.at, decision.degraded is not None))


def with_threads(limiter: Limiter, key: str, asks: int, seconds: float) -> Grants:
    grants: Grants = []
    left = iter(repeat(None, asks))
    ends = time.monotonic() + seconds

    def work() -> None:
        for _ in left:
            note(grants, limiter.hit(key))
            time.sleep(PAUSE)
            if time.monotonic() > ends:
                return

    threads = [threading.Thread(target=work) for _ in range(HANDS["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return grants


async def with_tasks(limiter: AsyncLimiter, key: str, asks: int, seconds: float) -> Grants:
    grants: Grants = []
    left = iter(repeat(None, asks))
    ends = time.monotonic() + seconds

    async def work() -> None:
        for _ in left:
            note(grants, await limiter.hit(key))
            await asyncio.sleep(PAUSE)
            if time.monotonic() > ends:
                return

    await asyncio.gather(*(work() for _ in range(HANDS["tasks"])))
    return grants


def tell(grants: Grants) -> None:
    sys.stdout.write(f"{json.dumps(grants)}\n")
    sys.stdout.flush()


def main(kind: str, url: str, limit: str, workers: int) -> None:
    if kind == "threads":
        with Limiter(limit, storage=url, deadline=DEADLINE, workers=workers) as limiter:
            tell([])
            for line in sys.stdin:
                tell(with_threads(limiter, *json.loads(line)))
    else:
        with asyncio.Runner() as runner:
            tasks = AsyncLimiter(limit, storage=url, deadline=DEADLINE, workers=workers)
            tell([])
            for line in sys.stdin:  # nothing runs in the loop between two jobs
                tell(runner.run(with_tasks(tasks, *json.loads(line))))
            runner.run(tasks.close())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
