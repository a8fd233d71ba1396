"""A process that spends until it is killed: `python -m tests.postgres.spender kind url key`, see test_durability.py.

`kind` is threads or tasks. It writes one byte for each spend: '+' if it was granted, '?' if its fate is unknown, and
'-' if it certainly was not charged.
"""

import asyncio
import os
import sys
import threading

from ratebound import StorageError, parse_limit
from ratebound.limit import Group
from ratebound.storage.postgres.storage import AsyncPostgresStorage, PostgresStorage

HANDS = 4
LIMIT = parse_limit("1000000/day fixed-window")


def tell(error: StorageError | None) -> None:
    os.write(1, b"+" if error is None else b"-" if error.undone else b"?")


def with_threads(url: str, group: Group) -> None:
    storage = PostgresStorage(url)

    def work() -> None:
        while True:
            failed = None
            try:
                storage.evaluate([group])
            except StorageError as error:
                failed = error
            tell(failed)

    for _ in range(HANDS):
        threading.Thread(target=work).start()


async def with_tasks(url: str, group: Group) -> None:
    storage = AsyncPostgresStorage(url)

    async def work() -> None:
        while True:
            failed = None
            try:
                await storage.evaluate([group])
            except StorageError as error:
                failed = error
            tell(failed)

    await asyncio.gather(*(work() for _ in range(HANDS)))


if __name__ == "__main__":
    kind, url, key = sys.argv[1:]
    asks: Group = [(key, (LIMIT,), 1, None, None)]
    if kind == "tasks":
        asyncio.run(with_tasks(url, asks))
    else:
        with_threads(url, asks)
