"""One process of many that share slots: `python -m tests.concurrency.exporter url folder limit tasks rounds seconds`.

Every holder of a slot also takes one of as many lock files as there may be holders. The kernel counts those, not
Ratebound, and frees the locks of a process that is killed. A holder that finds none free has caught us.
"""

import asyncio
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import uniform

KEY = "exports"


@contextmanager
def one_of(folder: Path, count: int) -> Iterator[int | None]:
    """Take one of `count` lock files; None if all are taken."""
    for number in range(count):
        file = os.open(folder / f"{number}.lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        try:
            yield number
        finally:
            os.close(file)
        return
    yield None


async def main(url: str, folder: Path, text: str, tasks: int, rounds: int, length: float) -> None:
    from ratebound import AsyncLimiter

    used: set[int | None] = set()
    held = 0
    async with AsyncLimiter(text, storage=url, failure="raise", max_delay=600) as limiter:
        count = limiter.limits[0].count

        async def export() -> None:
            nonlocal held
            for _ in range(rounds):
                async with limiter.acquire(KEY):
                    with one_of(folder, count) as number:
                        used.add(number)
                        held += 1
                        if held <= count:
                            tell(held)
                        await asyncio.sleep(uniform(0, length))

        await asyncio.gather(*(export() for _ in range(tasks)))
    tell([held, None in used, len(used)])


def tell(said: object) -> None:
    sys.stdout.write(f"{json.dumps(said)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _, url, folder, text, tasks, rounds, length = sys.argv
    asyncio.run(main(url, Path(folder), text, int(tasks), int(rounds), float(length)))
