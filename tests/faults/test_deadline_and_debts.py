"""One deadline for all of a decision; what is owed is not lost; of many keys only those in trouble are degraded."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from ratebound import Limiter, parse_limit
from ratebound.storage.redis.keys import Keys
from tests.faults.test_redis import Subject
from tests.proxy import Proxy, proxy
from tests.servers import Server, wait_until

KINDS = pytest.mark.parametrize("kind", ["threads", "tasks"])


@pytest.fixture
def between(fresh_redis: Server) -> Iterator[Proxy]:
    with proxy(fresh_redis) as found:
        yield found


@KINDS
@pytest.mark.parametrize("flushed", [True, False])
def test_a_call_that_sends_the_script_again_or_connects_first_has_one_deadline(
    kind: str, flushed: bool, fresh_redis: Server, between: Proxy
) -> None:
    """Every reply takes 0.8 of the deadline: EVALSHA, then EVAL, or (a database to select) SELECT, then EVALSHA."""
    subject = Subject(kind, f"{between.url}?timeout=1&connect_timeout=1&db=1", deadline=1.0, listeners=[])
    subject.hit()
    between.delay = 0.8
    if flushed:
        with fresh_redis.client() as admin:
            admin.script_flush()
    else:
        between.drop()
        subject.rest(0.1)
    begin = time.monotonic()
    decision = subject.hit()
    seconds = time.monotonic() - begin
    between.delay = 0.0
    subject.close()
    assert seconds < 1.3, f"{seconds:.2f} s, {decision.degraded}"


def test_what_a_full_server_refused_to_write_back_is_kept(fresh_redis: Server) -> None:
    """A bucket: SET is refused when memory is full. A batch of which every group was refused has changed nothing."""
    keys = [f"k{number}" for number in range(10)]
    with fresh_redis.client() as admin, Limiter("100/hour burst 100", storage=fresh_redis.url) as limiter:
        assert limiter.hit("used up", cost=100)
        admin.config_set("maxmemory", 1)
        assert all(limiter.hit(key).degraded for key in keys)
        # A denial is answered by a full server, too: the breaker closes, and the write-back is refused.
        wait_until(lambda: limiter.hit("used up", cost=100).degraded is None, 15, "a probe that writes nothing")
        time.sleep(0.3)
        admin.config_set("maxmemory", 0)
        wait_until(lambda: limiter.hit("trigger").degraded is None, 15, "it is back")
        time.sleep(0.5)
        assert [limiter.peek(key).remaining for key in keys] == [99] * len(keys)


def test_of_many_keys_only_the_one_with_a_foreign_value_is_degraded(fresh_redis: Server) -> None:
    limit = parse_limit("5/day burst 5")
    name = Keys(prefix="rb").subject("taken") + limit.scope.encode()
    with fresh_redis.client() as admin, Limiter(limit, storage=fresh_redis.url) as limiter:
        admin.set(name, "hello")
        found = limiter.hit_many(["one", "taken", "two"])
        assert [bool(decision.degraded) for decision in found] == [False, True, False]


def test_a_decorated_async_function_has_the_deadline_of_its_limiter(fresh_redis: Server) -> None:
    with Limiter("100/hour", storage=f"{fresh_redis.url}?timeout=3&connect_timeout=3", deadline=0.2) as limiter:

        @limiter.limit
        async def work() -> float:
            return time.monotonic()

        async def main() -> float:
            await work()
            fresh_redis.pause()
            begin = time.monotonic()
            seconds = await work() - begin
            fresh_redis.resume()
            await limiter._for_tasks().close()
            return seconds

        assert asyncio.run(main()) < 1.2
