"""`?replicas=`: what too few replicas have is not granted, and the wait for them is part of the same trip."""

import asyncio
import itertools
from typing import Any

import pytest
import redis

from ratebound import AsyncLimiter, Check, Decision, Limiter, StorageError, parse_limit
from ratebound.limit import STRIKE, Ask
from ratebound.storage import Storage
from ratebound.storage.blame import Blameless
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.redis.address import parse_url
from ratebound.storage.redis.keys import Keys
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from ratebound.testing import STORAGE_CONTRACT, Blocking, Claim, FakeClock
from tests.servers import Cluster, SentinelGroup, Server, wait_until

SLOW = "timeout=5&connect_timeout=5"
SHORT = "timeout=2&connect_timeout=5"
runs = itertools.count()


@pytest.fixture(params=["sentinel", "cluster"])
def servers(request: pytest.FixtureRequest) -> SentinelGroup | Cluster:
    found: SentinelGroup | Cluster = request.getfixturevalue(
        "sentinels" if request.param == "sentinel" else "redis_cluster"
    )
    return found


def replicas_of(servers: SentinelGroup | Cluster) -> list[Server]:
    if isinstance(servers, SentinelGroup):
        return servers.replicas
    found = []
    for node in servers.nodes:
        with node.client() as client:
            role: Any = client.role()
        if role[0] == "slave":
            found.append(node)
    return found


def opened(kind: str, url: str, clock: FakeClock | None = None) -> Storage:
    return RedisStorage(url, clock=clock) if kind == "threads" else Blocking(AsyncRedisStorage(url, clock=clock))


def connect(storage: Storage) -> None:
    """Spend until it is granted: on a busy machine the first connections and the first WAIT may take long."""

    def granted() -> bool:
        try:
            return storage.evaluate(((("first", (parse_limit("1000/day burst 1000"),), 1, None, None),),))[0][0][0]
        except (StorageError, Blameless):
            return False

    wait_until(granted, 20.0, "a first grant")


kinds = pytest.mark.parametrize("kind", ["threads", "tasks"])


@kinds
@pytest.mark.parametrize("claim", STORAGE_CONTRACT, ids=lambda claim: claim.__name__)
def test_with_a_replica_that_listens_it_is_true_that(claim: Claim, kind: str, servers: SentinelGroup | Cluster) -> None:
    clock = FakeClock()
    storage = opened(kind, f"{servers.url}?{SLOW}&replicas=1&prefix=replicas{next(runs)}-", clock)
    try:
        claim(storage, clock)
    finally:
        storage.close()


@kinds
def test_what_no_replica_has_is_not_granted_and_a_denial_stays_one(kind: str, servers: SentinelGroup | Cluster) -> None:
    url = f"{servers.url}?{SHORT}&prefix=replicas{next(runs)}-"
    spend = ((("k", (parse_limit("1/day"),), 1, None, None),),)
    with Limiter("1/day", storage=url, failure="raise") as plain:
        sure, alone = opened(kind, f"{url}&replicas=1"), opened(kind, f"{url}&replicas=0")
        connect(sure)
        connect(alone)
        replicas = replicas_of(servers)
        for replica in replicas:
            replica.pause()
        try:
            assert alone.evaluate(((("third", (parse_limit("1/day"),), 1, None, None),),))[0][0][0], "nobody asked"
            with pytest.raises(StorageError, match=r"0 of the 1 replicas that \?replicas=1 requires") as caught:
                sure.evaluate(spend)
            assert caught.value.outage
            assert not caught.value.undone
            assert not plain.hit("k"), "it is charged"
            assert not sure.evaluate(spend)[0][0][0], "a denial charges nothing"
            assert not sure.evaluate(spend, "peek")[0][0][0]
        finally:
            for replica in replicas:
                replica.resume()
            servers.wait_until_ok()
            sure.close()
            alone.close()


@kinds
def test_a_strike_that_no_replica_has_is_told_and_the_denial_stays(kind: str, servers: SentinelGroup | Cluster) -> None:
    url = f"{servers.url}?{SHORT}&prefix=replicas{next(runs)}-"
    limits = (parse_limit("1/day"), parse_limit("1 strike/hour block 1 hour"))
    hit: Ask = ("k", limits, 1, None, None)
    sure = opened(kind, f"{url}&replicas=1")
    connect(sure)
    assert sure.evaluate(((hit,),))[0][0][0]
    replicas = replicas_of(servers)
    for replica in replicas:
        replica.pause()
    try:
        with pytest.raises(StorageError, match="0 of the 1 replicas"):
            sure.evaluate(((("other", limits[1:], 0, None, [STRIKE]),),), "force")
        assert [row[0] for row in sure.evaluate(((hit,),))[0]] == [False, False], "the block begins all the same"
    finally:
        for replica in replicas:
            replica.resume()
        servers.wait_until_ok()
        sure.close()


@kinds
def test_a_replica_has_a_strike_when_the_denial_is_told(kind: str, sentinels: SentinelGroup) -> None:
    limits = (parse_limit("1/day"), parse_limit("2 strikes/hour block 1 hour"))
    prefix = f"replicas{next(runs)}-"
    sure = opened(kind, f"{sentinels.url}?{SLOW}&replicas=1&prefix={prefix}")
    connect(sure)
    (replica,) = sentinels.replicas
    name = Keys(prefix=prefix).subject("k") + limits[1].scope.encode()
    try:
        assert sure.evaluate(((("k", limits, 1, None, None),),))[0][0][0]
        assert not sure.evaluate(((("k", limits, 1, None, None),),))[0][0][0]
        with replica.client() as client:
            assert client.exists(name)
    finally:
        sure.close()


def test_groups_that_were_denied_are_answered_when_others_of_the_call_are_not_replicated(
    sentinels: SentinelGroup,
) -> None:
    url = f"{sentinels.url}?{SHORT}&prefix=replicas{next(runs)}-"
    with Limiter("1/day", storage=f"{url}&replicas=1", failure="closed") as limiter:
        assert limiter.hit("spent")
        (replica,) = sentinels.replicas
        replica.pause()
        try:
            spent, fresh = limiter.hit_many(["spent", "fresh"])
        finally:
            replica.resume()
            sentinels.wait_until_ok()
        assert (spent.allowed, spent.degraded) == (False, None)
        assert not fresh
        assert "0 of the 1 replicas" in (fresh.degraded or "")


@kinds
def test_a_server_without_replicas_is_an_outage_that_is_told_in_the_log(
    kind: str, redis_url_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{redis_url_server.url}?timeout=2&connect_timeout=2&replicas=1&prefix=replicas{next(runs)}-"
    if kind == "threads":
        with Limiter("100/day", storage=GuardedStorage(RedisStorage(url), failures=1)) as limiter:
            answer = limiter.hit("k")
    else:

        async def main() -> Decision:
            storage = AsyncGuardedStorage(AsyncRedisStorage(url), failures=1)
            async with AsyncLimiter("100/day", storage=storage) as limiter:
                return await limiter.hit("k")

        answer = asyncio.run(main())
    assert "INFO replication" in (answer.degraded or "")
    assert "decisions are made without the storage: 0 of the 1 replicas that ?replicas=1 requires" in caplog.text


@kinds
def test_connecting_tells_that_replicas_are_missing(kind: str, redis_url_server: Server) -> None:
    url = f"{redis_url_server.url}?{SHORT}&replicas=1"

    async def main() -> None:
        storage = AsyncRedisStorage(url)
        try:
            await storage.connect()
        finally:
            await storage.close()

    def connect() -> None:
        storage = RedisStorage(url)
        try:
            storage.connect()
        finally:
            storage.close()

    with pytest.raises(StorageError, match="0 of the 1 replicas"):
        connect() if kind == "threads" else asyncio.run(main())


def test_connecting_is_fine_where_there_are_enough(servers: SentinelGroup | Cluster) -> None:
    storage = RedisStorage(f"{servers.url}?{SLOW}&replicas=1")
    storage.connect()
    storage.close()


def test_a_cancelled_task_does_not_take_the_wait_of_the_others_with_it(sentinels: SentinelGroup) -> None:
    async def main() -> None:
        url = f"{sentinels.url}?{SLOW}&replicas=1&prefix=replicas{next(runs)}-"
        async with AsyncLimiter("1000/day", storage=url, failure="raise") as limiter:
            await limiter.hit("k")
            for turns in range(6):
                tasks = [asyncio.create_task(limiter.hit("k")) for _ in range(6)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                tasks[0].cancel()
                tasks[3].cancel()
                answers = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(answer for i, answer in enumerate(answers) if i not in (0, 3))

    asyncio.run(main())


def test_a_check_over_several_slots_waits_on_each(redis_cluster: Cluster) -> None:
    url = f"{redis_cluster.url}?{SLOW}&replicas=1&prefix=replicas{next(runs)}-"
    with Limiter("1/day", storage=url, failure="raise") as limiter:
        checks = [Check(f"key:{i}", parse_limit("2/day")) for i in range(5)]
        assert [limiter.check(checks).allowed for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("given", ["-1", "one", "101", "1.5"])
def test_a_number_of_replicas_that_cannot_be_is_refused_when_the_limiter_is_made(given: str) -> None:
    with pytest.raises(ValueError, match="replicas must be"):
        Limiter("1/day", storage=f"redis://localhost?replicas={given}")


def test_a_client_of_the_users_may_ask_for_replicas_too() -> None:
    client = redis.Redis()
    assert RedisStorage(client, replicas=2).address.replicas == 2
    assert parse_url("redis://localhost").replicas == 0
    with pytest.raises(ValueError, match="replicas must be a whole number from 0 to 100"):
        RedisStorage(client, replicas=True)
