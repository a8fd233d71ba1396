"""One process of many that hit one key: `python -m tests.hammer kind url`, started by tests/hammers.py.

`kind` is threads or tasks. It plays each job that it reads, one a line: the number of asks, the key, the limit. It
answers with what each grant left. An outage raises.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Sequence

from ratebound import AsyncLimiter, Limiter
from ratebound.storage.urls import open_async_storage, open_storage

HANDS = {"threads": 4, "tasks": 50}


def granted_to_threads(limiter: Limiter, asks: int, key: str) -> list[int]:
    """Hit a key from threads that start together. Return what each grant left."""
    gate = threading.Barrier(HANDS["threads"])
    left: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            gate.wait()
            answers = [limiter.hit(key) for _ in range(asks // HANDS["threads"])]
            left.extend(answer.remaining for answer in answers if answer.allowed)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(HANDS["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
    return left


async def granted_to_tasks(limiter: AsyncLimiter, asks: int, key: str) -> list[int]:
    """Hit a key from tasks. Return what each grant left."""
    left: list[int] = []

    async def work() -> None:
        for _ in range(asks // HANDS["tasks"]):
            answer = await limiter.hit(key)
            if answer.allowed:
                left.append(answer.remaining)

    await asyncio.gather(*(work() for _ in range(HANDS["tasks"])))
    return left


def with_threads(url: str) -> None:
    storage = open_storage(url)
    for line in sys.stdin:
        asks, key, limit = json.loads(line)
        tell(granted_to_threads(Limiter(limit, storage=storage, failure="raise"), asks, key))
    storage.close()


async def with_tasks(url: str) -> None:
    storage = open_async_storage(url)
    for line in sys.stdin:  # nothing else is to run in this loop meanwhile
        asks, key, limit = json.loads(line)
        tell(await granted_to_tasks(AsyncLimiter(limit, storage=storage, failure="raise"), asks, key))
    await storage.close()


def tell(numbers: Sequence[float]) -> None:
    sys.stdout.write(f"{json.dumps(numbers)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "tasks":
        asyncio.run(with_tasks(sys.argv[2]))
    else:
        with_threads(sys.argv[2])
