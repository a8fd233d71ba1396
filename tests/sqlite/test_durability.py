"""kill -9 at random instants, in a loop: no acknowledged spend is lost, and the file stays whole."""

import asyncio
import os
import random
import signal
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from ratebound import parse_limit
from ratebound.limit import Group
from ratebound.storage.sqlite.storage import AsyncSqliteStorage, SqliteStorage

LONG = os.environ.get("RATEBOUND_LONG") == "1"
ROUNDS = 200 if LONG else 12
HANDS = {"threads": 4, "tasks": 50}
LIMIT = parse_limit("1000000/calendar-month")
GROUP: Group = (("customer", (LIMIT,), 1, None, None),)


def spend_with_threads(path: Path, acknowledged: int) -> None:
    storage = SqliteStorage(str(path), deadline=20)

    def work() -> None:
        while True:
            storage.evaluate([GROUP])
            os.write(acknowledged, b".")

    for _ in range(HANDS["threads"] - 1):
        threading.Thread(target=work, daemon=True).start()
    work()


def spend_with_tasks(path: Path, acknowledged: int) -> None:
    async def work(storage: AsyncSqliteStorage) -> None:
        while True:
            await storage.evaluate([GROUP])
            os.write(acknowledged, b".")

    async def main() -> None:
        storage = AsyncSqliteStorage(str(path), deadline=20)
        await asyncio.gather(*(work(storage) for _ in range(HANDS["tasks"])))

    asyncio.run(main())


SPENDERS = {"threads": spend_with_threads, "tasks": spend_with_tasks}


def killed(kind: str, path: Path, seconds: float) -> int:
    """Let a process spend, and kill it so long after its first spend. Return how many spends it has acknowledged."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            SPENDERS[kind](path, writing)
        finally:
            os._exit(1)
    os.close(writing)
    count = len(os.read(reading, 1))
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    while data := os.read(reading, 65536):
        count += len(data)
    os.close(reading)
    return count


@pytest.mark.parametrize("kind", SPENDERS)
def test_no_acknowledged_spend_is_lost(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.db"
    choose = random.Random()
    acknowledged = 0
    for round_number in range(1, ROUNDS + 1):
        acknowledged += killed(kind, path, choose.uniform(0, 0.03))
        storage = SqliteStorage(str(path), deadline=20)
        used = LIMIT.count - storage.evaluate([GROUP], "peek")[0][0][1]
        storage.close()
        assert acknowledged <= used <= acknowledged + HANDS[kind] * round_number
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
