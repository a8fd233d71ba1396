"""Forks, event loops that come and go, and PgBouncer that goes away."""

import asyncio
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ratebound import AsyncLimiter, StorageError, parse_limit
from ratebound.limit import Group
from ratebound.storage.postgres.storage import AsyncPostgresStorage, PostgresStorage
from ratebound.storage.redis.storage import AsyncRedisStorage
from tests.databases import Postgres, pgbouncer_of
from tests.postgres.tables import fresh_url

HOUR = parse_limit("1000/hour fixed-window")
ROOT = Path(__file__).parents[2]
FORK = """
    import asyncio, os, sys
    from ratebound import parse_limit
    from ratebound.storage.postgres.storage import AsyncPostgresStorage, PostgresStorage

    group = [("a", (parse_limit("1000/hour fixed-window"),), 1, None, None)]
    storage = PostgresStorage(sys.argv[1])
    tasks = AsyncPostgresStorage(sys.argv[1])
    storage.evaluate([group])
    held = storage._pool.take(1e12)  # a call that another thread is in
    loop = asyncio.new_event_loop()
    loop.run_until_complete(tasks.evaluate([group]))
    parents = held.link.socket
    pid = os.fork()
    if pid == 0:
        try:
            assert not os.path.exists(f"/proc/self/fd/{parents}"), "the child does not keep the parent's socket open"
            for _ in range(3):
                storage.evaluate([group])
                asyncio.run(tasks.evaluate([group]))
            storage.close()
            del held
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    storage._pool.give(held)
    storage.evaluate([group])
    loop.run_until_complete(tasks.evaluate([group]))
    assert storage._pool.take(1e12).link.socket == parents, "the parent's connection is as it was"
    loop.run_until_complete(tasks.close())
    loop.close()
    print(storage.evaluate([group], "peek")[0][0][1])
"""


def group(key: str) -> Group:
    return [(key, (HOUR,), 1, None, None)]


def test_a_forked_child_makes_connections_of_its_own(postgres: Postgres) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORK), fresh_url(postgres)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "990\n"


def test_event_loops_that_come_and_go_leave_no_connections(postgres: Postgres) -> None:
    storage = AsyncPostgresStorage(fresh_url(postgres))
    for _ in range(4):
        asyncio.run(storage.evaluate([group("a")]))  # its loop ends without closing the storage
    assert len(storage.loops) == 1

    async def last() -> None:
        await storage.evaluate([group("a")])
        assert storage.loops == [asyncio.get_running_loop()]
        await storage.close()
        await storage.close()

    asyncio.run(last())
    assert storage.loops == []


class ForgottenLoop:
    """An event loop that has ended, and that another thread forgets in the middle of looking at it."""

    def __init__(self, loops: dict[Any, Any]) -> None:
        self._loops = loops

    def is_closed(self) -> bool:
        self._loops.pop(self, None)
        return True


@pytest.mark.parametrize("kind", [AsyncPostgresStorage, AsyncRedisStorage])
def test_two_threads_may_forget_the_same_event_loop(kind: Any) -> None:
    storage = kind("postgresql://localhost/x" if kind is AsyncPostgresStorage else "redis://localhost")
    storage._loops[ForgottenLoop(storage._loops)] = None

    async def play() -> None:
        assert storage._loop() is storage._loop()

    asyncio.run(play())
    assert len(storage.loops) == 1


def test_a_pgbouncer_that_is_killed_and_started_again_is_survived(postgres: Postgres) -> None:
    with pgbouncer_of(postgres, pool=2) as bouncer, closing(PostgresStorage(fresh_url(postgres, bouncer))) as storage:
        storage.evaluate([group("a")])
        bouncer.kill()
        with pytest.raises(StorageError) as caught:
            storage.evaluate([group("a")])
        assert caught.value.undone
        bouncer.start()
        assert storage.evaluate([group("a")])[0][0][1] == 998


def test_more_tasks_than_pgbouncer_has_connections_are_all_served(postgres: Postgres) -> None:
    async def play() -> None:
        with pgbouncer_of(postgres, pool=2) as bouncer:
            url = fresh_url(postgres, bouncer, "timeout=20&pool=20")
            async with AsyncLimiter(HOUR, storage=url, failure="raise") as limiter:
                answers = await asyncio.gather(*(limiter.hit("a") for _ in range(100)))
        assert sorted(answer.remaining for answer in answers) == list(range(900, 1000))

    asyncio.run(play())
