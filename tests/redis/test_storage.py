"""What only a real Redis can show: one trip, a TTL on every key, scripts that vanish, keys that are not ours."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from ratebound import AsyncLimiter, Check, Limiter, StorageError, parse_limit
from ratebound.limit import ALGORITHMS, NOT_GIVEN
from ratebound.storage.redis import script
from ratebound.storage.redis.address import parse_url
from ratebound.storage.redis.keys import Keys
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from tests.servers import Cluster, Server

runs = itertools.count()
SLOW = "timeout=5&connect_timeout=5"
ALL_KINDS = (
    "100/second burst 100; 10000/calendar-month in Europe/Berlin; 100/hour fixed-window over allow; 20 concurrent"
)
FIVE = "100/second; 1000/minute; 5000/hour fixed-window; 9999/day; 50/second burst 200"


@pytest.fixture
def url(redis_url_server: Server) -> str:
    return f"{redis_url_server.url}?{SLOW}&prefix=test{next(runs)}-"


@pytest.fixture
def storage(url: str) -> Iterator[RedisStorage]:
    storage = RedisStorage(url)
    yield storage
    storage.close()


@pytest.mark.parametrize("text", ["100/second burst 100", FIVE, ALL_KINDS])
def test_a_decision_is_one_evalsha_however_many_limits_it_has(text: str, fresh_redis: Server) -> None:
    with Limiter(text, storage=f"{fresh_redis.url}?{SLOW}") as limiter:
        limiter.hit("warm")
        server = fresh_redis.client()
        server.config_resetstat()
        for i in range(10):
            assert len(limiter.hit(f"user:{i}").outcomes) == len(limiter.limits)
        limiter.hit_many([f"user:{i}" for i in range(20)])
        stats: Any = server.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 11
    assert "cmdstat_eval" not in stats


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_key_has_a_ttl_after_one_hit_and_no_longer_than_its_state_needs(
    algorithm: str, storage: RedisStorage, redis_url_server: Server
) -> None:
    decision = Limiter(f"5/minute {algorithm}", storage=storage).hit("k")
    keys = list(redis_url_server.client().scan_iter(f"{storage.address.keys.prefix}*"))
    assert len(keys) == 1
    left: Any = redis_url_server.client().pttl(keys[0])
    assert 0 < left <= decision.reset_after * 1000 + 1


def test_a_burst_below_the_rate_limits(storage: RedisStorage) -> None:
    limiter = Limiter("1000/day burst 100", storage=storage)
    assert sum(limiter.hit("k").allowed for _ in range(400)) == 100


def test_flushed_scripts_and_a_restart_are_survived(fresh_redis: Server) -> None:
    with Limiter("100/day", storage=f"{fresh_redis.url}?{SLOW}") as limiter:
        for _ in range(3):
            fresh_redis.client().script_flush()
            assert limiter.hit("k")
        assert limiter.hit("k").remaining == 96
        fresh_redis.restart()
        assert limiter.hit("k").remaining == 99


def test_a_foreign_value_is_an_error_of_that_group_alone(storage: RedisStorage, redis_url_server: Server) -> None:
    limit = parse_limit("5/minute burst 5")
    name = storage.address.keys.subject("taken") + limit.scope.encode()
    limiter = Limiter(limit, storage=storage, failure="raise")
    for write in (lambda c: c.set(name, "hello"), lambda c: (c.delete(name), c.lpush(name, "x"))):
        write(redis_url_server.client())
        with pytest.raises(StorageError, match="a Ratebound key holds a value that Ratebound did not write"):
            limiter.hit("taken")
        with pytest.raises(StorageError):
            limiter.check([Check("free", limit), Check("taken", limit)])
    assert limiter.peek("free").remaining == 5, "a group that cannot be read leaves nothing behind"


def test_out_of_memory_and_a_wrong_password_say_what_to_do(fresh_redis: Server) -> None:
    server = fresh_redis.client()
    with Limiter("5/minute", storage=f"{fresh_redis.url}?{SLOW}", failure="raise") as limiter:
        limiter.hit("k")
        server.config_set("maxmemory", "1")
        with pytest.raises(StorageError, match="out of memory"):
            limiter.hit("k")
        server.config_set("maxmemory", "0")
        assert limiter.hit("k")
        server.config_set("requirepass", "secret")
    with (
        Limiter("5/minute", storage=f"{fresh_redis.url}?{SLOW}", failure="raise") as limiter,
        pytest.raises(StorageError, match="password"),
    ):
        limiter.hit("k")
    right = fresh_redis.url.replace("//", "//:secret@")
    with Limiter("5/minute", storage=f"{right}?{SLOW}", failure="raise") as limiter:
        assert limiter.hit("k")


def test_a_dead_server_is_a_storage_error_and_nothing_else(fresh_redis: Server) -> None:
    async def main() -> None:
        async with AsyncLimiter("5/minute", storage=f"{fresh_redis.url}?{SLOW}", failure="raise") as tasks:
            with pytest.raises(StorageError):
                await tasks.hit("k")
            fresh_redis.restart()
            assert await tasks.hit("k")

    fresh_redis.kill()
    with (
        Limiter("5/minute", storage=f"{fresh_redis.url}?{SLOW}", failure="raise") as limiter,
        pytest.raises(StorageError, match="communication with Redis failed"),
    ):
        limiter.hit("k")
    asyncio.run(main())


def test_a_user_is_not_to_be_found_in_clear_and_a_changed_secret_hands_out_nothing_twice(
    url: str, redis_url_server: Server
) -> None:
    def limiter(**secrets: str) -> Limiter:
        options = "".join(f"&{name}={value}" for name, value in secrets.items())
        return Limiter("5/day; 5/day burst 5; 5/day fixed-window", storage=f"{url}{options}")

    prefix = parse_url(url).keys.prefix
    with limiter(secret="old") as old:
        old.hit("user:42", cost=3)
    with limiter(secret="new", old_secret="old") as both:
        assert both.peek("user:42").remaining == 2
        assert not both.hit("user:42", cost=3)
        assert both.hit("user:42", cost=1).remaining == 1
    with limiter(secret="new") as new:
        assert new.hit("user:42").remaining == 0
    names = "".join(redis_url_server.client().scan_iter(f"{prefix}*"))
    assert "user:42" not in names
    assert names.count(prefix) == 6  # under both names, until those under the old one run out


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "steps",
    [
        ({"secret": "old"}, {"secret": "new", "old_secret": "old"}),
        ({"secret": "new", "old_secret": "old"}, {"secret": "new"}),
        ({"secret": "new", "old_secret": "old"}, {"secret": "old", "old_secret": "new"}),
    ],
    ids=["first step", "second step", "and back"],
)
def test_while_a_secret_is_changed_old_and_new_processes_share_every_quota(
    steps: tuple[dict[str, str], dict[str, str]], algorithm: str, url: str
) -> None:
    one, other = (
        Limiter(f"9/day {algorithm}", storage=f"{url}{''.join(f'&{name}={value}' for name, value in step.items())}")
        for step in steps
    )
    with one, other:
        granted = [bool(limiter.hit("user:42")) for limiter in (one, other, other, one, one, other) * 2]
        assert granted == [True] * 9 + [False] * 3
        assert one.peek("user:42").remaining == other.peek("user:42").remaining == 0


def test_states_of_one_subject_share_a_slot_and_no_client_can_choose_it() -> None:
    keys = Keys(secret="s")
    assert keys.subject("a").split(b"}")[0] == Keys(secret="other").subject("a").split(b"}")[0]
    assert len({keys.tag(f"{{x}}{i}") for i in range(1_000)}) > 700
    assert len({Keys(one_slot=True).tag(str(i)) for i in range(100)}) == 1


@pytest.mark.parametrize("decode", [False, True])
def test_a_client_that_the_user_has_lends_its_address(decode: bool, redis_url_server: Server) -> None:
    theirs = redis.Redis(port=redis_url_server.port, decode_responses=decode)
    tasks = redis.asyncio.Redis(port=redis_url_server.port, decode_responses=decode)
    prefix = f"client{next(runs)}-"
    with Limiter("2/day", storage=RedisStorage(theirs, prefix=prefix)) as limiter:
        assert limiter.hit("k")

    async def main() -> int:
        storage = AsyncRedisStorage(tasks, prefix=prefix)
        async with AsyncLimiter("2/day", storage=storage) as limiter:
            return (await limiter.hit("k")).remaining

    assert asyncio.run(main()) == 0
    theirs.close()
    with pytest.raises(ValueError, match="unknown option pre"):
        RedisStorage(theirs, pre="x")


def test_a_clock_that_is_wrong_gains_nothing(storage: RedisStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    for algorithm in ALGORITHMS:
        limiter = Limiter(f"5/day {algorithm}", storage=storage)
        assert limiter.hit("k", cost=5)
        for wrong in (time.time() - 130, time.time() + 130):
            monkeypatch.setattr(time, "time", lambda wrong=wrong: wrong)
            assert not limiter.hit("k"), algorithm
        monkeypatch.undo()


def test_many_tasks_share_a_connection_and_are_granted_exactly_the_count(fresh_redis: Server) -> None:
    async def main() -> int:
        patient = f"{fresh_redis.url}?timeout=30&connect_timeout=30"  # the last of them waits for all the others
        async with AsyncLimiter("1000/day", storage=patient) as limiter:
            answers = await asyncio.gather(*(limiter.hit("k") for _ in range(1_200)))
            assert {answer.degraded for answer in answers} == {None}
            with fresh_redis.client() as admin:
                assert len(admin.client_list()) == 2
            return sum(answer.allowed for answer in answers)

    assert asyncio.run(main()) == 1_000


def test_a_cancelled_task_does_not_take_the_others_with_it(fresh_redis: Server) -> None:
    async def main() -> None:
        async with AsyncLimiter("1000/day", storage=f"{fresh_redis.url}?{SLOW}") as limiter:
            tasks = [asyncio.create_task(limiter.hit("k")) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(result for result in results[1::2])

    asyncio.run(main())


def test_a_cluster_that_is_taken_for_a_single_server_says_so(redis_cluster: Cluster) -> None:
    url = f"redis://127.0.0.1:{redis_cluster.nodes[0].port}?{SLOW}"
    with (
        Limiter("5/day", storage=url, failure="raise") as limiter,
        pytest.raises(StorageError, match=r"use redis\+cluster://"),
    ):
        [limiter.hit(f"k:{i}") for i in range(50)]


def test_a_user_without_the_rights_is_told_which_it_needs(fresh_redis: Server) -> None:
    fresh_redis.client().execute_command(
        "ACL", "SETUSER", "small", "on", ">p", "~*", "+evalsha", "+eval", "+time", "+get"
    )
    url = fresh_redis.url.replace("//", "//small:p@")
    with (
        Limiter("5/day", storage=f"{url}?{SLOW}", failure="raise") as limiter,
        pytest.raises(StorageError, match="LRANGE, LSET"),
    ):
        limiter.hit("k")


def test_a_group_over_several_slots_is_all_or_nothing(redis_cluster: Cluster) -> None:
    for options in ("", "&slot=one"):
        url = f"{redis_cluster.url}?{SLOW}&prefix=slots{next(runs)}-{options}"
        with Limiter("1/second", storage=url) as limiter:
            checks = [Check(f"key:{i}", parse_limit(f"{5 + i}/day")) for i in range(6)]
            assert [limiter.check(checks).allowed for _ in range(7)] == [True] * 5 + [False] * 2
            assert [limiter.check([check]).remaining for check in checks[1:]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://host:port/0", "a port is a number"),
        ("redis://user:hush@host/x", "the database is not a number"),
        ("redis://host/0?tiemout=1", "option 1 is unknown; did you mean timeout"),
        ("redis://host/0?timeout=soon", "timeout must be a number"),
        ("redis://host/0?timeout=0", "timeout must be seconds"),
        ("redis+sentinel://host", "no service name after the hosts"),
        ("redis+cluster://host/3", "Cluster has none"),
        ("redis://host?slot=two", "slot must be .one."),
        ("redis://host?timeout=nan", "timeout must be seconds"),
        ("redis://host?ssl_cert_reqs=none", "ssl options need rediss://"),
        ("redis://host?db=-1", "db must be 0 or more"),
        ("redis://host1:6379,host2:6379", r"redis:// is one server.*redis\+sentinel://.*redis\+cluster://"),
        ("redis://user:hush@host1,host2:6379/0?secret=hush", r"redis:// is one server.*redis\+cluster://"),
        ("rediss://:hu,hush@host1,host2", r"rediss\+sentinel://.* or rediss\+cluster://"),
        ("redis://host,", "redis:// is one server"),
    ],
)
def test_a_bad_url_says_what_is_wrong_and_hides_the_password(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Limiter("1/second", storage=url)
    assert "hush" not in str(caught.value)


def test_a_url_says_it_all() -> None:
    address = parse_url(
        "rediss://me:p%40ss@one:1234/3?prefix=x&timeout=0.1&connect_timeout=0.2&pool=7&ssl_cert_reqs=none"
    )
    assert (address.kind, address.hosts, address.tls, address.pool) == ("single", [("one", 1234)], True, 7)
    assert address.login == {"username": "me", "password": "p@ss", "db": 3, "ssl_cert_reqs": "none"}
    assert (address.timeout, address.connect_timeout, address.keys.prefix) == (0.1, 0.2, "x1:")
    address = parse_url("redis+sentinel://a:1,b/service/2?sentinel_password=x")
    assert (address.hosts, address.service, address.login) == ([("a", 1), ("b", 26379)], "service", {"db": 2})
    assert parse_url("unix:///run/redis.sock?db=1").login == {"path": "/run/redis.sock", "db": 1}
    assert parse_url("redis://").timeout < 1
    assert parse_url("redis://me:p,ss@one").login == {"username": "me", "password": "p,ss"}


def test_who_waits_for_a_shared_call_when_the_storage_is_closed_is_told_so(fresh_redis: Server) -> None:
    async def main() -> None:
        limiter = AsyncLimiter("1000/day", storage=f"{fresh_redis.url}?{SLOW}", failure="raise")
        await limiter.hit("warm")
        fresh_redis.pause()
        tasks = [asyncio.create_task(limiter.hit("k")) for _ in range(300)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()  # the call under way; those who gathered behind it go next, in more than one call
        await asyncio.sleep(0.01)
        await limiter.close()
        fresh_redis.resume()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert all(isinstance(result, StorageError) for result in results[1:])

    asyncio.run(main())


@pytest.mark.parametrize("options", [{"pool": 0}, {"timeout": 0}, {"timeout": -1}, {"connect_timeout": float("nan")}])
def test_what_is_said_beside_a_client_is_checked_as_in_a_url(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="timeout must be seconds|pool must be a whole number"):
        RedisStorage(redis.Redis(), **options)
    with pytest.raises(ValueError, match="timeout must be seconds|pool must be a whole number"):
        RedisStorage("redis://localhost?" + "&".join(f"{name}={value}" for name, value in options.items()))


def test_a_prefix_that_would_choose_the_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix must not contain"):
        RedisStorage("redis://localhost?prefix={x}")


def test_an_algorithm_that_the_script_does_not_know_is_refused_and_writes_nothing(fresh_redis: Server) -> None:
    record = script.RECORD.pack(1, 99, 5, 60_000_000, 5, 1, -1, *NOT_GIVEN)
    client = fresh_redis.client()
    with pytest.raises(redis.ResponseError, match="unknown algorithm 99"):
        client.eval(script.SOURCE, 1, "k", record)
    assert not client.exists("k")
