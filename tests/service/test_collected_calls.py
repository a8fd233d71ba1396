"""Calls of one turn of the event loop go to Redis together, and every group is still decided by itself."""

import asyncio
import secrets
from typing import Any

import pytest

from ratebound.errors import StorageError
from ratebound.limit import Group
from ratebound.notation import parse_limit
from ratebound.service.collected_calls import CollectedCalls, with_collected_calls
from ratebound.storage.redis.storage import AsyncRedisStorage
from tests.servers import Cluster, Server

LIMIT = parse_limit("10/hour")


def group(key: str, cost: int = 1) -> Group:
    return ((key, (LIMIT,), cost, None, None),)


def scripts_run(server: Server) -> int:
    with server.client() as client:
        stats: Any = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def test_tasks_share_a_call_and_the_limit_is_exact(redis_url_server: Server) -> None:
    key = secrets.token_hex(8)

    async def main() -> list[bool]:
        storage = CollectedCalls(AsyncRedisStorage(redis_url_server.url))
        await storage.evaluate([group("warm")])
        before = scripts_run(redis_url_server)
        answers = await asyncio.gather(*(storage.evaluate([group(key)]) for _ in range(250)))
        assert scripts_run(redis_url_server) - before == 3, "100 groups in a call"
        await storage.close()
        return [rows[0][0][0] for rows in answers]

    assert asyncio.run(main()) == [True] * 10 + [False] * 240


def test_answers_reach_who_asked(redis_url_server: Server) -> None:
    keys = [secrets.token_hex(8) for _ in range(20)]

    async def main() -> None:
        storage = CollectedCalls(AsyncRedisStorage(redis_url_server.url))
        asked = [[group(key, cost) for key in keys[:cost]] for cost in range(1, 6)]
        answers = await asyncio.gather(*(storage.evaluate(groups) for groups in asked))
        assert [len(rows) for rows in answers] == [1, 2, 3, 4, 5]
        assert [rows[-1][0][1] for rows in answers] == [9, 8, 7, 6, 5]
        peeked = await storage.evaluate([group(keys[0])], "peek")
        assert peeked[0][0][0] is False, "1 + 2 + 3 + 4 = 10 were charged, and the 5 denied"
        await storage.close()

    asyncio.run(main())


def test_a_caller_that_is_cancelled_disturbs_no_other(redis_url_server: Server) -> None:
    key = secrets.token_hex(8)

    async def main() -> None:
        storage = CollectedCalls(AsyncRedisStorage(redis_url_server.url))
        tasks = [asyncio.ensure_future(storage.evaluate([group(key)])) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert [rows[0][0][1] for rows in answers[1:] if isinstance(rows, list)] == [8, 7, 6, 5]
        await storage.close()

    asyncio.run(main())


def test_a_call_that_fails_has_failed_for_all_in_it(fresh_redis: Server) -> None:
    async def main() -> None:
        storage = CollectedCalls(AsyncRedisStorage(fresh_redis.url))
        await storage.evaluate([group("warm")])
        fresh_redis.kill()
        answers = await asyncio.gather(*(storage.evaluate([group("a")]) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(answer, StorageError) for answer in answers)
        assert len({id(answer) for answer in answers}) == 5
        await storage.close()

    asyncio.run(main())


def test_a_cluster_and_other_storages_are_left_alone(redis_cluster: Cluster) -> None:
    assert not isinstance(with_collected_calls(redis_cluster.url), CollectedCalls)
    assert not isinstance(with_collected_calls("memory://"), CollectedCalls)


@pytest.mark.parametrize("mode", ["peek", "force"])
def test_other_modes_are_passed_on(mode: Any, redis_url_server: Server) -> None:
    async def main() -> None:
        storage = CollectedCalls(AsyncRedisStorage(redis_url_server.url))
        (rows,) = await storage.evaluate([group(secrets.token_hex(8))], mode)
        assert rows[0][0]
        await storage.reset(group("a"))
        await storage.close()

    asyncio.run(main())
