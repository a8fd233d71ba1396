"""Clients of redis-py that the user already has, of every kind: where and who they are is used, how they wait and retry
is not. And what a storage does with its connections when there are many threads, many tasks or a fork."""

import asyncio
import itertools
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import ConstantBackoff, ExponentialBackoff
from redis.retry import Retry

from ratebound import Limiter, StorageError
from ratebound.storage import Storage
from ratebound.storage.redis.keys import Keys
from ratebound.storage.redis.storage import AsyncRedisStorage
from tests.proxy import proxy
from tests.redis.bare import KINDS, bare_async_limiter, bare_limiter
from tests.servers import HOST, Cluster, SentinelGroup, Server, cluster, redis_server, sentinel_group, wait_until

SLOW = "timeout=5&connect_timeout=5"
LIMIT = "50/day; 50/day burst 50"
BOTH: list[Any] = [redis, redis.asyncio]
runs = itertools.count()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Callable[..., Storage]:
    return KINDS[request.param]


@pytest.fixture(params=BOTH, ids=["sync", "async"])
def library(request: pytest.FixtureRequest) -> Any:
    """Of which the client is: either may be handed to either storage."""
    return request.param


@pytest.fixture
def prefix() -> str:
    return f"theirs{next(runs)}-"


@pytest.fixture
def lent(kind: Callable[..., Storage], prefix: str) -> Iterator[Callable[..., Limiter]]:
    """A limiter on somebody's client."""
    made: list[Limiter] = []

    def limiter(client: Any, **options: Any) -> Limiter:
        made.append(
            bare_limiter(LIMIT, storage=kind(client, prefix=prefix, **{"timeout": 5, "connect_timeout": 5} | options))
        )
        return made[-1]

    yield limiter
    for each in made:
        each.close()


def connections(server: Server) -> list[dict[str, str]]:
    """All but the one that asks."""
    with server.client(client_name="asks") as client:
        found: Any = client.client_list()
    return [each for each in found if each["name"] != "asks"]


def evalshas(server: Server) -> int:
    with server.client() as client:
        stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "text"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_plain_client(
    protocol: int, decode: bool, library: Any, lent: Callable[..., Limiter], redis_url_server: Server
) -> None:
    theirs = library.Redis(host=HOST, port=redis_url_server.port, decode_responses=decode, protocol=protocol)
    limiter = lent(theirs)
    assert [limiter.hit("k").remaining for _ in range(3)] == [49, 48, 47]
    assert limiter.settle(limiter.hit("k", cost=5), cost=1).remaining == 46
    limiter.reset("k")
    assert limiter.peek("k").remaining == 50


def test_user_password_and_database_are_theirs(library: Any, lent: Callable[..., Limiter], fresh_redis: Server) -> None:
    with fresh_redis.client() as client:
        client.execute_command("ACL SETUSER", "ann", "on", ">hush", "~*", "+@all")
        client.config_set("requirepass", "x")
        login = {"username": "ann", "password": "hush"}
        given = redis.UsernamePasswordCredentialProvider("ann", "hush")
        for n, options in enumerate(({**login, "db": 3}, {"credential_provider": given, "db": 4})):
            lent(library.Redis(host=HOST, port=fresh_redis.port, **options)).hit("k")
            users: Any = client.client_list()
            assert ("ann", str(3 + n)) in {(each["user"], each["db"]) for each in users}
        sizes: Any = client.info("keyspace")
        assert {name: each["keys"] for name, each in sizes.items()} == {"db3": 2, "db4": 2}


def test_a_client_from_a_url(library: Any, lent: Callable[..., Limiter], fresh_redis: Server) -> None:
    with fresh_redis.client() as client:
        client.config_set("requirepass", "p@ss")
        lent(library.Redis.from_url(f"redis://:p%40ss@{HOST}:{fresh_redis.port}/5?socket_timeout=30")).hit("k")
        assert set(client.info("keyspace")) == {"db5"}


def test_a_unix_socket(library: Any, lent: Callable[..., Limiter], fresh_redis: Server) -> None:
    limiter = lent(library.Redis(unix_socket_path=fresh_redis.unixsocket, db=2))
    assert limiter.hit("k").remaining == 49
    assert [each["addr"] for each in connections(fresh_redis)] == [f"{fresh_redis.unixsocket}:0"]


def test_a_client_of_sentinels(library: Any, lent: Callable[..., Limiter], sentinels: SentinelGroup) -> None:
    addresses = [(HOST, sentinel.port) for sentinel in sentinels.sentinels]
    theirs = library.sentinel.Sentinel(addresses, socket_timeout=30).master_for(sentinels.service, db=6)
    limiter = lent(theirs)
    assert [limiter.hit("k").remaining for _ in range(3)] == [49, 48, 47]
    with sentinels.master.client(db=6) as client:
        assert client.dbsize()
        client.flushdb()


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "text"])
def test_a_client_of_a_cluster(
    decode: bool, kind: Callable[..., Storage], library: Any, prefix: str, redis_cluster: Cluster
) -> None:
    def spend(theirs: Any) -> None:
        storage = kind(theirs, prefix=prefix, timeout=5, connect_timeout=5)
        with bare_limiter(LIMIT, storage=storage) as limiter:
            for i in range(20):
                assert limiter.hit(f"k:{i}").remaining == 49

    port = redis_cluster.nodes[0].port
    if library is redis:
        with redis.RedisCluster(host=HOST, port=port, decode_responses=decode) as theirs:
            spend(theirs)
    else:
        spend(redis.asyncio.RedisCluster(host=HOST, port=port, decode_responses=decode))


def test_their_connections_are_left_alone(lent: Callable[..., Limiter], fresh_redis: Server) -> None:
    theirs = redis.Redis(host=HOST, port=fresh_redis.port, client_name="theirs", max_connections=1)
    limiter = lent(theirs)
    assert limiter.hit("k").remaining == 49
    assert not [each for each in connections(fresh_redis) if each["name"] == "theirs"]
    theirs.ping()
    theirs.close()
    assert limiter.hit("k").remaining == 48, "they may close it"
    limiter.close()
    assert theirs.ping(), "and closing ours does not close theirs"
    theirs.close()


def patient(library: Any) -> dict[str, Any]:
    """Settings of somebody who has time."""
    kind = Retry if library is redis else redis.asyncio.retry.Retry
    return {
        "socket_timeout": 30,
        "socket_connect_timeout": 30,
        "retry": kind(ExponentialBackoff(cap=0.1, base=0.01), 5),
        "retry_on_error": [redis.TimeoutError, redis.ConnectionError],
        "health_check_interval": 1,
    }


def test_a_spend_is_sent_once_whatever_their_client_would_do(
    library: Any, lent: Callable[..., Limiter], fresh_redis: Server
) -> None:
    with proxy(fresh_redis) as between:
        limiter = lent(library.Redis(host=HOST, port=between.port, **patient(library)), timeout=0.8)
        limiter.hit("k")
        before = evalshas(fresh_redis)
        between.mute = True
        begin = time.monotonic()
        with pytest.raises(StorageError, match="it is unknown whether it decided"):
            limiter.hit("k")
        assert time.monotonic() - begin < 5, "our timeout, not theirs"
        between.mute = False
        wait_until(lambda: evalshas(fresh_redis) == before + 1, 5, "the spend to have been decided")
        between.drop()
        assert limiter.peek("k").remaining == 48
        between.cut_reply(1)
        with pytest.raises(StorageError):
            limiter.hit("k")
        assert limiter.peek("k").remaining == 47, "nor is it sent again when the connection breaks"


def test_a_spend_is_not_sent_again_on_another_connection(
    library: Any, lent: Callable[..., Limiter], fresh_redis: Server
) -> None:
    breaking_master(lent(library.Redis(host=HOST, port=fresh_redis.port, **patient(library))), fresh_redis)


def test_a_connection_is_given_up_soon_whatever_their_client_would_do(
    library: Any, lent: Callable[..., Limiter], fresh_redis: Server
) -> None:
    fresh_redis.pause()  # it takes connections and says nothing
    limiter = lent(
        library.Redis(host=HOST, port=fresh_redis.port, **patient(library)), timeout=0.8, connect_timeout=0.8
    )
    begin = time.monotonic()
    with pytest.raises(StorageError):
        limiter.hit("k")
    assert time.monotonic() - begin < 5
    fresh_redis.resume()


@pytest.fixture(scope="module")
def lone_sentinels() -> Iterator[SentinelGroup]:
    """No replica, so that nothing fails over when the master is silent."""
    with sentinel_group(replicas=0, sentinels=1) as group:
        yield group


@pytest.fixture(scope="module")
def lone_cluster() -> Iterator[Cluster]:
    with cluster(masters=2, replicas=0) as nodes:
        yield nodes


def silent_master(limiter: Limiter, master: Server) -> None:
    limiter.hit("k")
    before = evalshas(master)
    master.pause()
    begin = time.monotonic()
    with pytest.raises(StorageError):
        limiter.hit("k")
    took = time.monotonic() - begin
    master.resume()
    wait_until(lambda: evalshas(master) == before + 1, 5, "the spend to have been decided")
    time.sleep(0.2)  # in which a second one would come
    assert evalshas(master) == before + 1
    assert took < 5
    assert limiter.peek("k").remaining == 48


def held_up(connection: dict[str, str]) -> bool:
    return connection["cmd"] == "evalsha" and "b" in connection["flags"]


def breaking_master(limiter: Limiter, master: Server) -> None:
    """It breaks the connection on which a spend has come, before it has decided: sent again, that would pass."""

    def break_off() -> None:
        with master.client() as client:
            wait_until(lambda: any(map(held_up, connections(master))), 5, "the spend to come")
            client.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
            client.execute_command("CLIENT UNPAUSE")

    limiter.hit("broken")
    with master.client() as client:
        kill = threading.Thread(target=break_off)
        client.execute_command("CLIENT PAUSE", 5_000, "WRITE")
        kill.start()
        with pytest.raises(StorageError):
            limiter.hit("broken")
        kill.join()
    assert limiter.peek("broken").remaining == 49


def test_sentinels_send_a_spend_once(library: Any, lent: Callable[..., Limiter], lone_sentinels: SentinelGroup) -> None:
    addresses = [(HOST, sentinel.port) for sentinel in lone_sentinels.sentinels]
    theirs = library.sentinel.Sentinel(addresses).master_for(lone_sentinels.service, **patient(library))
    silent_master(lent(theirs, timeout=0.8), lone_sentinels.master)
    breaking_master(lent(theirs), lone_sentinels.master)


def test_a_cluster_is_sent_a_spend_once(
    kind: Callable[..., Storage], library: Any, prefix: str, lone_cluster: Cluster
) -> None:
    settings = patient(library)
    settings.pop("retry_on_error")
    theirs = library.RedisCluster(host=HOST, port=lone_cluster.nodes[0].port, **settings)
    for timeout, unlucky in ((1.5, silent_master), (5, breaking_master)):
        storage = kind(theirs, prefix=prefix, timeout=timeout, connect_timeout=timeout, slot="one")
        with bare_limiter(LIMIT, storage=storage) as limiter:
            unlucky(limiter, lone_cluster.node_of(Keys(prefix=prefix, one_slot=True).subject("k").decode()))
        lone_cluster.wait_until_ok()
    if library is redis:
        theirs.close()


def in_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_sixteen_threads_share_two_connections(fresh_redis: Server) -> None:
    left: list[int] = []
    gate = threading.Barrier(16)
    with bare_limiter("1000/day burst 1000", storage=f"{fresh_redis.url}?{SLOW}&pool=2") as limiter:

        def work() -> None:
            gate.wait()
            left.extend(limiter.hit("k").remaining for _ in range(50))

        in_threads(16, work)
        assert sorted(left) == list(range(200, 1000))
        assert 1 <= len(connections(fresh_redis)) <= 2
    wait_until(lambda: not connections(fresh_redis), 5, "no connections when all is closed")


def test_two_hundred_tasks_share_two_connections(fresh_redis: Server) -> None:
    async def main() -> list[int]:
        async with bare_async_limiter("1000/day burst 1000", storage=f"{fresh_redis.url}?{SLOW}&pool=2") as limiter:

            async def work() -> list[int]:
                return [(await limiter.hit("k")).remaining for _ in range(4)]

            found = await asyncio.gather(*(work() for _ in range(200)))
            assert 1 <= len(await asyncio.to_thread(connections, fresh_redis)) <= 2
            return [left for each in found for left in each]

    assert sorted(asyncio.run(main())) == list(range(200, 1000))
    wait_until(lambda: not connections(fresh_redis), 5, "no connections when all is closed")


def test_a_thread_that_gets_no_connection_in_time_is_told_so(fresh_redis: Server) -> None:
    options = "timeout=0.3&connect_timeout=1&pool=1"
    with proxy(fresh_redis) as between, bare_limiter("1000/day", storage=f"{between.url}?{options}") as limiter:
        limiter.hit("k")
        between.mute = True
        errors: list[StorageError] = []
        seen: list[bool] = []

        def work() -> None:
            with pytest.raises(StorageError) as caught:
                limiter.hit("k")
            errors.append(caught.value)

        begin = time.monotonic()
        in_threads(4, work)
        assert time.monotonic() - begin < 5
        assert len(errors) == 4
        between.mute = False
        between.drop()

        def works() -> bool:
            with suppress(StorageError):  # a connection that was being made has just been dropped, too
                return limiter.hit("k").allowed
            return False

        wait_until(works, 5, "a decision: the pool has lost nothing")
        in_threads(4, lambda: seen.append(limiter.hit("k").allowed))
        assert seen == [True] * 4


def test_event_loops_have_connections_of_their_own(fresh_redis: Server) -> None:
    storage = AsyncRedisStorage(f"{fresh_redis.url}?{SLOW}")
    left: list[int] = []

    async def main() -> None:
        limiter = bare_async_limiter("1000/day burst 1000", storage=storage)
        left.extend(each.remaining for each in await asyncio.gather(*(limiter.hit("k") for _ in range(50))))
        await storage.close()

    in_threads(4, lambda: asyncio.run(main()))
    asyncio.run(main())
    assert sorted(left) == list(range(750, 1000))
    wait_until(lambda: not connections(fresh_redis), 5, "no connections when all is closed")


def forked(work: Callable[[], Sequence[int]]) -> Callable[[], list[int]]:
    """Start `work` in a child; the result waits for what it returned."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # since 3.12: a fork while there are threads
        child = os.fork()
    if not child:
        try:
            os.close(reader)
            os.write(writer, json.dumps(list(work())).encode())
        finally:
            os._exit(0)  # nothing of the parent's is cleared up twice
    os.close(writer)

    def answer() -> list[int]:
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        assert text, "the child has failed"
        found: list[int] = json.loads(text)
        return found

    return answer


@pytest.mark.parametrize("kind_of_server", ["redis_url_server", "sentinels", "redis_cluster"])
def test_parent_and_child_of_a_fork_share_a_count_and_no_connection(
    kind_of_server: str, request: pytest.FixtureRequest
) -> None:
    found: Any = request.getfixturevalue(kind_of_server)
    with bare_limiter("1000/day burst 1000", storage=f"{found.url}?{SLOW}&prefix=fork{next(runs)}-") as limiter:
        left = [limiter.hit("k").remaining]

        def spend() -> list[int]:
            return [limiter.hit("k").remaining for _ in range(200)]

        children = [forked(spend) for _ in range(2)]
        left += spend()
        left += [each for answer in children for each in answer()]
        left += spend()
    assert sorted(left) == list(range(1000 - 801, 1000))


def test_a_fork_of_a_process_with_an_event_loop_shares_no_connection(redis_url_server: Server) -> None:
    storage = AsyncRedisStorage(f"{redis_url_server.url}?{SLOW}&prefix=fork{next(runs)}-")
    limiter = bare_async_limiter("1000/day burst 1000", storage=storage)

    async def spend() -> list[int]:
        found = await asyncio.gather(*(limiter.hit("k") for _ in range(100)))
        return [each.remaining for each in found]

    with asyncio.Runner() as runner:
        left = runner.run(spend())
        child = forked(lambda: asyncio.run(spend()))
        left += runner.run(spend())
        left += child()
        left += runner.run(spend())
        runner.run(storage.close())
    assert sorted(left) == list(range(600, 1000))


def test_a_child_that_ends_leaves_the_connections_of_its_parent_alone(fresh_redis: Server) -> None:
    with bare_limiter("1000/day", storage=f"{fresh_redis.url}?{SLOW}") as limiter:
        limiter.hit("k")
        (before,) = (each["id"] for each in connections(fresh_redis))

        def child() -> list[int]:
            left = limiter.hit("k").remaining
            limiter.close()
            return [left]

        assert forked(child)() == [998]
        assert limiter.hit("k").remaining == 997
        assert [each["id"] for each in connections(fresh_redis)] == [before]


def test_a_retry_of_theirs_is_not_a_retry_of_ours(lent: Callable[..., Limiter]) -> None:
    """A server that is not there is told at once."""
    with redis_server() as server:
        port = server.port
    theirs = redis.Redis(host=HOST, port=port, retry=Retry(ConstantBackoff(2), 5))
    begin = time.monotonic()
    with pytest.raises(StorageError, match="communication with Redis failed"):
        lent(theirs).hit("k")
    assert time.monotonic() - begin < 2
