"""What peers get wrong on Redis, and we must not: one test for each defect, on a real server.

Each test names the package in which the defect was found, and what must not happen.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from ratebound import AsyncLimiter, Check, Limiter, StorageError, parse_limit
from ratebound.clock import SECOND
from ratebound.limit import ALGORITHMS, BUCKETS, Failure
from ratebound.storage.redis.storage import RedisStorage
from ratebound.testing import FakeClock
from tests.proxy import proxy
from tests.redis.bare import bare_limiter
from tests.servers import Cluster, SentinelGroup, Server, redis_server

SLOW = "timeout=5&connect_timeout=5"
runs = itertools.count()


@pytest.fixture
def prefix() -> str:
    return f"rows{next(runs)}-"


@pytest.fixture
def url(redis_url_server: Server, prefix: str) -> str:
    return f"{redis_url_server.url}?{SLOW}&prefix={prefix}"


@pytest.fixture
def client(redis_url_server: Server) -> Iterator[redis.Redis]:
    with redis_url_server.client() as client:
        yield client


@pytest.fixture
def still(url: str, clock: FakeClock) -> Iterator[Callable[..., Limiter]]:
    """Limiters on Redis and on a clock that stands still."""
    storage = RedisStorage(url, clock=clock)
    yield lambda text, **options: Limiter(text, storage=storage, sleep=clock.sleep, **options)
    storage.close()


def in_threads(count: int, work: Callable[[], None]) -> None:
    gate = threading.Barrier(count)

    def begin() -> None:
        gate.wait()
        work()

    threads = [threading.Thread(target=begin) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def calls(client: redis.Redis) -> dict[str, int]:
    """How often each command was called since the last look, but for those that look."""
    stats: Any = client.info("commandstats")
    client.config_resetstat()
    found = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
    return {name: times for name, times in found.items() if not name.startswith(("info", "config", "client", "hello"))}


def names(client: redis.Redis, prefix: str) -> list[str]:
    return list(client.scan_iter(f"{prefix}*", count=1000))


def stored(client: redis.Redis, name: str) -> bytes:
    found: bytes = client.execute_command("DUMP", name, NEVER_DECODE=True)
    return found


def test_pyrate_limiter_after_a_script_flush_every_call_fails(url: str, client: redis.Redis) -> None:
    with Limiter("100/day", storage=url) as limiter:
        for left in (99, 98, 97):
            assert limiter.hit("k").remaining == left
            client.script_flush()


def test_pyrate_limiter_and_throttled_keys_stay_for_ever(url: str, prefix: str, client: redis.Redis) -> None:
    for algorithm in ALGORITHMS:
        with Limiter(f"5/minute {algorithm}", storage=url) as limiter:
            limiter.hit("once")
            limiter.hit("five", cost=5)
            limiter.hit("five")
            limiter.settle(limiter.hit("settled", cost=3), cost=5)
            limiter.settle(limiter.hit("refunded", cost=3), cost=1)
    found = names(client, prefix)
    assert len(found) == 4 * len(ALGORITHMS)
    assert all(0 < client.pttl(name) <= 121_000 for name in found)


def test_pyrate_limiter_a_hundred_a_second_is_waited_for_and_seventeen_come(still: Callable[..., Limiter]) -> None:
    for text in ("1/10ms", "100/second burst 1"):
        limiter = still(text)
        begin = limiter.hit(text).at
        for _ in range(100):
            last = limiter.wait(text, timeout=10)
        assert last.at - begin <= 1.01 * SECOND


@pytest.mark.parametrize("text", ["1/day", "1/day burst 1"], ids=["in line", "by place"])
def test_pyrate_limiter_an_unrelated_key_waits_for_the_waiter_of_another(text: str, url: str) -> None:
    asyncio.run(_ask_beside_a_waiter(text, url))


async def _ask_beside_a_waiter(text: str, url: str) -> None:
    """It sleeps until it is cancelled, so that nothing here depends on time."""
    sleeping = asyncio.Event()

    async def sleep(_: float) -> None:
        sleeping.set()
        await asyncio.Event().wait()

    async with AsyncLimiter(text, storage=url, sleep=sleep) as limiter, asyncio.timeout(10):
        await limiter.hit("a")
        waiter = asyncio.create_task(limiter.wait("a", timeout=100_000))
        await sleeping.wait()
        assert await limiter.hit("b")
        assert await limiter.wait("c", timeout=0)
        assert not await limiter.hit("a")
        assert not waiter.done()
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)


@pytest.mark.parametrize("algorithm", ["token-bucket", "leaky-bucket", "gcra"])
def test_throttled_the_rate_is_rounded_down_to_whole_seconds(
    algorithm: str, still: Callable[..., Limiter], clock: FakeClock
) -> None:
    for count in (54, 90, 119):
        limiter = still(f"{count}/minute burst 2 {algorithm} as c{count}")
        limiter.hit("k", cost=2)
        granted, begin = 0, clock.now
        while clock.now < begin + 120 * SECOND:
            clock.now += SECOND // 10  # a client that polls
            granted += limiter.hit("k").allowed
        assert granted == pytest.approx(2 * count, rel=0.02)


def test_throttled_a_burst_below_the_rate_never_limits(still: Callable[..., Limiter], client: redis.Redis) -> None:
    limiter = still("1000/second burst 100")
    assert sum(limiter.hit("k").allowed for _ in range(400)) == 100


def test_throttled_a_state_that_ends_within_a_millisecond_is_deleted_at_once(url: str, client: redis.Redis) -> None:
    """In real time: what comes back in 10 ms is gone then, and not before."""
    with Limiter("1000/10 ms burst 1000; 50/day as day", storage=url) as limiter:
        assert sum(limiter.hit("k").allowed for _ in range(60)) == 50


def test_throttled_a_client_that_dies_between_increment_and_expire_leaves_a_key_for_ever(
    fresh_redis: Server, prefix: str
) -> None:
    """There is nothing between: of one command that was sent, and whose answer was lost, all is done."""
    with fresh_redis.client() as client, proxy(fresh_redis) as between:
        url = f"{between.url}?timeout=0.3&prefix={prefix}"
        with bare_limiter("5/minute fixed-window", storage=url) as limiter:
            limiter.hit("warm")
            client.flushdb()
            calls(client)
            between.garbage = b"+OK\r\n"
            with pytest.raises(StorageError):
                limiter.hit("k")
        seen = calls(client)
        (name,) = names(client, prefix)
        assert 0 < client.pttl(name) <= 121_000
    assert seen["evalsha"] == 1
    assert not {"eval", "expire", "pexpire", "incrby"} & set(seen)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_throttled_an_algorithm_does_not_work_on_a_cluster(algorithm: str, prefix: str, redis_cluster: Cluster) -> None:
    with Limiter(
        f"5/day {algorithm}; 5/day as other", storage=f"{redis_cluster.url}?{SLOW}&prefix={prefix}"
    ) as limiter:
        for i in range(20):
            assert [limiter.hit(f"user:{i}").allowed for _ in range(6)] == [True] * 5 + [False]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_throttled_and_traffik_retry_after_is_honoured_and_still_denied(
    algorithm: str, still: Callable[..., Limiter], clock: FakeClock
) -> None:
    limiter = still(f"5/10 seconds {algorithm}")
    clock.now += 3_333_333
    for _ in range(10):
        while (decision := limiter.hit("k")).allowed:
            clock.now += 123_457
        assert decision.retry_after
        clock.now += round(decision.retry_after * SECOND) - 1
        assert not limiter.hit("k"), "no sooner than it said"
        clock.now += 1
        assert limiter.hit("k")


def test_flask_limiter_a_request_takes_four_trips(url: str, client: redis.Redis) -> None:
    with Limiter("100/minute; 2/hour; 5/day burst 5", storage=url) as limiter:
        limiter.hit("warm")
        calls(client)
        for allowed in (True, True, False):
            decision = limiter.hit("k")
            assert decision.allowed is allowed
            assert [(o.remaining, o.retry_after_us, o.reset_after_us) for o in decision.outcomes]
        trips = calls(client)
    assert trips["evalsha"] == 3
    assert "eval" not in trips


def test_flask_limiter_a_rejected_request_burns_the_other_limits(still: Callable[..., Limiter]) -> None:
    limiter = still("100/minute; 2/hour")
    answers = [limiter.hit("k") for _ in range(5)]
    assert [answer.allowed for answer in answers] == [True, True, False, False, False]
    assert [outcome.remaining for outcome in answers[-1].outcomes] == [98, 0]


def test_flask_limiter_forty_failed_logins_at_once_pass_a_limit_of_five(url: str) -> None:
    passed: list[int] = []
    with Limiter("5/day", storage=url) as limiter:
        in_threads(40, lambda: passed.extend([1] if limiter.hit("login:bob") else []))
        assert len(passed) == 5
        for _ in range(20):
            assert limiter.settle(limiter.hit("login:ann"), cost=0)  # the right password costs nothing


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_flask_limiter_the_fallback_multiplies_the_limit_by_the_workers(algorithm: str, fresh_redis: Server) -> None:
    fresh_redis.kill()
    granted = []
    for _ in range(4):  # one limiter for each worker: they share nothing but the server that is dead
        with Limiter(f"10/day {algorithm}", storage=fresh_redis.url, workers=4) as limiter:
            answers = [limiter.hit("k") for _ in range(12)]
        assert all(answer.degraded for answer in answers)
        granted.append(sum(map(bool, answers)))
    assert granted == [3] * 4, "a quarter each, rounded up"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_limits_a_rejected_cost_is_charged(algorithm: str, still: Callable[..., Limiter]) -> None:
    limiter = still(f"10/minute {algorithm}")
    assert [limiter.hit("k", cost=cost).allowed for cost in (8, 5, 2)] == [True, False, True]


@pytest.mark.parametrize("wrong", [-130, 61, 130])
def test_limits_throttled_and_traefik_a_host_with_a_wrong_clock_gets_a_second_quota(
    wrong: int, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Limiter("1/day", storage=url) as limiter:
        limits = [parse_limit(f"5/day {algorithm} as {algorithm}") for algorithm in ALGORITHMS]
        everything = Check("k", limits, cost=5)
        assert limiter.check([everything])
        right, exact = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: right() + wrong)
        monkeypatch.setattr(time, "time_ns", lambda: exact() + wrong * 10**9)
        for limit in limits:
            assert not limiter.check([Check("k", limit)]), limit


def test_limits_two_identifiers_make_the_key_of_another(url: str) -> None:
    with Limiter("1/day", storage=url) as limiter:
        for key in ("a", "a/b", "a:b", "a;b", "a}b", "{a}b", "b", "", "a\x00", "a\n", "*"):
            assert limiter.hit(key), key


def test_limits_a_peek_writes(url: str, client: redis.Redis) -> None:
    texts = [f"5/day {algorithm}" for algorithm in ALGORITHMS]
    with Limiter("; ".join(f"{text} as l{i}" for i, text in enumerate(texts)), storage=url) as limiter:
        limiter.hit("k", cost=3)
        calls(client)
        for cost in (1, 5):
            limiter.peek("k", cost=cost)
            limiter.peek("new", cost=cost)
        seen = calls(client)
    assert seen.pop("evalsha") == 4
    assert set(seen) <= {"time", "get", "lindex", "lrange", "llen", "exists", "ping"}


def test_limits_a_reset_walks_through_all_keys(url: str, client: redis.Redis) -> None:
    with Limiter("5/day; 5/day burst 5", storage=url) as limiter:
        limiter.hit("k")
        calls(client)
        limiter.reset("k")
        seen = calls(client)
        assert limiter.peek("k").remaining == 5
    assert not {"keys", "scan"} & set(seen)


def test_limits_a_sentinel_client_reads_from_replicas(prefix: str, sentinels: SentinelGroup) -> None:
    with Limiter("5/day", storage=f"{sentinels.url}?{SLOW}&prefix={prefix}") as limiter:
        replica = sentinels.replicas[0]
        with replica.client() as client:
            calls(client)
            for left in (4, 3, 2):
                assert limiter.hit("k").remaining == left
                assert limiter.peek("k").remaining == left, "never a state that lags behind"
            assert not {"eval", "evalsha"} & set(calls(client))


@pytest.mark.parametrize(("failure", "allowed"), [("local", True), ("open", True), ("closed", False), ("raise", None)])
def test_django_ratelimit_a_lost_connection_is_an_exception_and_a_500(
    failure: Failure, allowed: bool | None, fresh_redis: Server
) -> None:
    """Unless it was asked for: then it is StorageError, and none of redis-py."""
    with Limiter("50/day", storage=fresh_redis.url, failure=failure, workers=1) as limiter:
        assert limiter.hit("k").degraded is None
        fresh_redis.kill()
        for _ in range(10):  # some find the connection gone, some find none, some do not try
            if allowed is None:
                with pytest.raises(StorageError):
                    limiter.hit("k")
                continue
            decision = limiter.hit("k")
            assert (decision.allowed, decision.unavailable) == (allowed, not allowed)
            assert decision.degraded


def test_django_smart_two_limits_on_the_same_key_share_a_count(url: str) -> None:
    with Limiter("500/minute as browse", storage=url) as browse, Limiter("5/minute as login", storage=url) as login:
        for _ in range(6):
            browse.hit("ip:127.0.0.1")
        assert login.hit("ip:127.0.0.1").remaining == 4


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_django_smart_rejected_requests_are_stored_and_prolong_the_ban(
    algorithm: str, still: Callable[..., Limiter], prefix: str, client: redis.Redis
) -> None:
    limiter = still(f"5/day {algorithm}")
    limiter.hit("k", cost=5)
    (name,) = names(client, prefix)
    state, first = stored(client, name), limiter.hit("k").retry_after
    for _ in range(300):
        assert not limiter.hit("k")
    assert stored(client, name) == state
    assert limiter.hit("k").retry_after == first


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_django_smart_a_cost_is_so_many_calls_and_not_atomic(algorithm: str, url: str, client: redis.Redis) -> None:
    with Limiter(f"60/day {algorithm}", storage=url) as limiter:
        limiter.hit("warm")
        calls(client)
        assert limiter.hit("k", cost=50).remaining == 10
        assert not limiter.hit("k", cost=50)
        assert calls(client)["evalsha"] == 2
        assert limiter.peek("k").remaining == 10


def test_django_smart_the_algorithm_asked_for_is_ignored(still: Callable[..., Limiter], clock: FakeClock) -> None:
    """On the edge of a window a fixed one lets twice the count pass, and no other does."""
    clock.now += 60 * SECOND - clock.now % (60 * SECOND) - SECOND
    for algorithm in set(ALGORITHMS) - set(BUCKETS):
        begin = clock.now
        limiter = still(f"5/minute {algorithm}")
        granted = sum(limiter.hit("k").allowed for _ in range(9))
        clock.advance(2)
        granted += sum(limiter.hit("k").allowed for _ in range(9))
        assert granted == (10 if algorithm == "fixed-window" else 5), algorithm
        clock.now = begin


def test_asgi_ratelimit_a_fraction_of_a_second_is_rounded_to_allowed(
    still: Callable[..., Limiter], clock: FakeClock
) -> None:
    limiter = still("1/second; 100/minute")
    limiter.hit("k")
    clock.advance(0.6)
    denied = limiter.hit("k")
    assert (denied.allowed, denied.retry_after) == (False, 0.4)
    assert denied.outcomes[1].remaining == 99, "a rejected call must not fill the minute"


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_upstash_denied_calls_dig_a_debt(algorithm: str, still: Callable[..., Limiter]) -> None:
    limiter = still(f"3/hour burst 3 {algorithm}")
    answers = [limiter.hit("k", cost=cost) for cost in (2, 2, 1, 1, 1)]
    assert [answer.allowed for answer in answers] == [True, False, True, False, False]
    assert [answer.remaining for answer in answers] == [1, 1, 0, 0, 0]


def test_upstash_a_denied_sliding_window_is_charged(still: Callable[..., Limiter]) -> None:
    for algorithm in ("sliding-counter", "sliding-log"):
        limiter = still(f"10/minute {algorithm}")
        assert [limiter.hit("k", cost=cost).allowed for cost in (9, 9, 1)] == [True, False, True]


def test_upstash_an_outage_takes_five_seconds_of_every_request(fresh_redis: Server) -> None:
    with bare_limiter("5/day", storage=fresh_redis.url) as limiter:
        limiter.hit("k")
        fresh_redis.pause()
        begin = time.monotonic()
        for _ in range(2):
            with pytest.raises(StorageError):
                limiter.hit("k")
        took = time.monotonic() - begin
        fresh_redis.resume()
    assert took < 2.5


def test_envoy_ratelimit_descriptors_collide_through_an_underscore(url: str) -> None:
    with Limiter("1/day", storage=url) as limiter:
        assert limiter.check([Check("foo_x_bar_y", parse_limit("1/day as d"))])
        assert limiter.check([Check("foo_x", parse_limit("1/day as bar_y_d"))])
        assert limiter.check([Check("foo", parse_limit("1/day as x_bar_y_d"))])


def test_envoy_ratelimit_a_denial_by_one_descriptor_charges_the_others(still: Callable[..., Limiter]) -> None:
    limiter = still("1/second")
    checks = [Check("ip", parse_limit("10/minute")), Check("user", parse_limit("1/hour"))]
    assert [limiter.check(checks).allowed for _ in range(5)] == [True] + [False] * 4
    assert limiter.check(checks[:1]).remaining == 8


def test_envoy_ratelimit_not_charging_the_others_lets_too_many_pass_at_once(url: str) -> None:
    granted: list[int] = []
    wide, narrow = parse_limit("100/day as wide"), parse_limit("7/day as narrow")
    with Limiter("1/day", storage=url) as limiter:

        def ask() -> None:
            for _ in range(10):
                if limiter.check([Check("ip", wide), Check("user", narrow)]):
                    granted.append(1)

        in_threads(8, ask)
        assert len(granted) == 7
        assert limiter.check([Check("ip", wide)]).remaining == 100 - 7 - 1


def test_envoy_ratelimit_twice_the_limit_passes_across_the_edge_of_a_window(
    still: Callable[..., Limiter], clock: FakeClock
) -> None:
    """Unless a fixed window was asked for, whose documentation says so."""
    limiter = still("5/minute")
    clock.now += 60 * SECOND - clock.now % (60 * SECOND) - SECOND
    granted = sum(limiter.hit("k").allowed for _ in range(9))
    clock.advance(2)
    assert granted + sum(limiter.hit("k").allowed for _ in range(9)) == 5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kong_check_then_increment_admits_too_many_at_once(algorithm: str, url: str) -> None:
    granted: list[int] = []
    with Limiter(f"50/day {algorithm}", storage=url) as one, Limiter(f"50/day {algorithm}", storage=url) as other:
        nodes = itertools.cycle([one, other])

        def ask() -> None:
            node = next(nodes)
            granted.extend(1 for _ in range(15) if node.hit("k"))

        in_threads(8, ask)
    assert len(granted) == 50


def test_kong_what_could_not_be_sent_is_dropped_from_the_count(fresh_redis: Server) -> None:
    """Nothing is counted here first and sent later: who was granted is in Redis, and after an error still is."""
    with proxy(fresh_redis) as between, bare_limiter("5/day", storage=f"{between.url}?timeout=0.3") as limiter:
        assert limiter.hit("k", cost=3)
        between.refuse = True
        between.drop()
        with pytest.raises(StorageError):
            limiter.hit("k")
        between.refuse = False
        assert limiter.hit("k").remaining == 1


def test_limitador_a_counter_that_a_process_has_not_seen_starts_from_nothing(url: str) -> None:
    with Limiter("5/day", storage=url) as one, Limiter("5/day", storage=url) as other:
        one.hit("k", cost=4)
        assert other.hit("k").remaining == 0
        assert not one.hit("k")
        assert not asyncio.run(_hit_by_a_task(url))


async def _hit_by_a_task(url: str) -> bool:
    async with AsyncLimiter("5/day", storage=url) as limiter:
        return (await limiter.hit("k")).allowed


GARBAGE = {
    "not the protocol": b"HTTP/1.1 200 OK\r\n\r\n",
    "an error of no known kind": b"-ERR strange\r\n",
    "half a reply": b"$3\r\n",
    "text": b"+OK\r\n",
    "a number": b":7\r\n",
    "nothing": b"$-1\r\n",
    "a list of nothing": b"*1\r\n$-1\r\n",
    "the reply to something else": b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_traefik_an_error_of_redis_is_an_error_of_no_known_kind(garbage: str, fresh_redis: Server) -> None:
    """One type for whatever goes wrong, so that the caller can choose to let the request pass."""
    with proxy(fresh_redis) as between, bare_limiter("5/day", storage=f"{between.url}?timeout=0.3") as limiter:
        limiter.hit("k")
        between.garbage = GARBAGE[garbage]
        with pytest.raises(StorageError):
            limiter.hit("k")
        between.drop()
        assert limiter.hit("k").remaining == 2, "which was decided all the same, and once"


def test_gubernator_a_token_bucket_is_a_window_from_the_first_hit(
    still: Callable[..., Limiter], clock: FakeClock
) -> None:
    limiter = still("60/minute burst 60")
    limiter.hit("k", cost=60)
    clock.advance(30)
    assert limiter.hit("k", cost=30).remaining == 0, "half of it is back after half of the time"
    clock.advance(30)
    assert not limiter.hit("k", cost=31), "and not all of it when the minute is over"


def test_gubernator_a_restart_forgets_everything() -> None:
    with (
        redis_server("--appendonly", "yes", "--appendfsync", "always") as server,
        Limiter(
            "5/day; 5/day burst 5; 5/day fixed-window; 5/day sliding-counter", storage=f"{server.url}?{SLOW}"
        ) as it,
    ):
        it.hit("k", cost=4)
        server.restart()
        assert it.hit("k").remaining == 0
        assert not it.hit("k")


def test_throttlecrab_a_flood_of_keys_is_kept_for_ever(url: str, prefix: str, client: redis.Redis) -> None:
    with Limiter("5/second burst 5", storage=url) as limiter:
        limiter.hit_many([f"flood:{i}" for i in range(500)])
        limiter.hit("flood", cost=5)
        deadline = time.monotonic() + 10
        while names(client, prefix) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not names(client, prefix)
