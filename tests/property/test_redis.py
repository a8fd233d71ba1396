"""The Lua is a mirror: any history of groups has the same outcomes on Redis and in Python, to the unit."""

import itertools
import struct
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratebound import Limit
from ratebound.limit import Group, Mode
from ratebound.storage.redis.storage import RedisStorage
from ratebound.testing import FakeClock
from tests.property.histories import (
    Plain,
    check_every_kind,
    check_history,
    check_long_log,
    check_slots,
    penalties,
    value_limits,
)
from tests.property.strategies import START, limits, quotas, slot_limits, starts
from tests.servers import Server

runs = itertools.count()


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(limits(), min_size=2, max_size=4), st.booleans(), st.data())
def test_any_history_of_groups_is_answered_alike(
    redis_url_server: Server, pool: list[Limit], rotates: bool, data: st.DataObject
) -> None:
    check_on_redis(redis_url_server, pool, rotates, START, data)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(st.one_of(quotas(), slot_limits()), min_size=1, max_size=3),
    st.lists(st.one_of(limits(), quotas(), slot_limits()), min_size=1, max_size=2),
    st.booleans(),
    starts(),
    st.data(),
)
def test_any_history_with_quotas_and_slots_is_answered_alike(
    redis_url_server: Server, pool: list[Limit], others: list[Limit], rotates: bool, start: int, data: st.DataObject
) -> None:
    check_on_redis(redis_url_server, pool + others, rotates, start, data)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(st.one_of(value_limits(), penalties()), min_size=1, max_size=3),
    st.lists(st.one_of(limits(), quotas(), slot_limits(), value_limits(), penalties()), min_size=1, max_size=3),
    st.booleans(),
    starts(),
    st.data(),
)
def test_any_history_with_values_and_penalties_is_answered_alike(
    redis_url_server: Server, pool: list[Limit], others: list[Limit], rotates: bool, start: int, data: st.DataObject
) -> None:
    check_on_redis(redis_url_server, pool + others, rotates, start, data)


def check_on_redis(server: Server, pool: list[Limit], rotates: bool, start: int, data: st.DataObject) -> None:
    clock = FakeClock(start)
    url = f"{server.url}?prefix=diff{next(runs)}-&timeout=5&connect_timeout=5"
    before, after = (
        RedisStorage(url + options, clock=clock)
        for options in (("&secret=b", "&secret=a&old_secret=b") if rotates else ("", ""))
    )
    with closing(before), closing(after):
        check_history(before, after, clock, pool, data)


@pytest.fixture(params=["", "&secret=a&old_secret=b"], ids=["", "while a secret is changed"])
def redis(request: pytest.FixtureRequest, redis_url_server: Server, clock: FakeClock) -> Iterator[RedisStorage]:
    url = f"{redis_url_server.url}?prefix=long{next(runs)}-&timeout=5&connect_timeout=5{request.param}"
    with closing(RedisStorage(url, clock=clock)) as storage:
        yield storage


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_touch_many_slots_of_one_key_are_answered_alike(
    seed: int, redis: RedisStorage, clock: FakeClock
) -> None:
    check_slots(redis, clock, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_history_of_every_kind_of_limit_is_answered_alike(
    seed: int, redis: RedisStorage, clock: FakeClock
) -> None:
    check_every_kind(redis, clock, seed)


@pytest.mark.parametrize("most", [1, 3], ids=["each costs one", "costs differ"])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_log_is_answered_alike_wherever_it_is_touched(
    seed: int, most: int, redis: RedisStorage, clock: FakeClock
) -> None:
    check_long_log(redis, clock, seed, most)


def test_a_log_that_has_counted_more_than_a_double_holds_exactly_is_answered_alike(redis_url_server: Server) -> None:
    limit = Limit(1_000, 10**6, 0, "sliding-log")
    clock = FakeClock(START)
    python = Plain(clock)
    prefix = f"sums{next(runs)}-"
    url = f"{redis_url_server.url}?prefix={prefix}&timeout=5&connect_timeout=5"
    with closing(RedisStorage(url, clock=clock)) as redis, redis_url_server.client(decode_responses=False) as admin:
        for step in range(120):
            clock.now += 10_000
            calls: list[tuple[int, Mode]] = [(11, "spend"), (700, "spend"), (2, "force"), (-3, "force"), (999, "peek")]
            for cost, mode in calls:
                groups: list[Group] = [[("k", (limit,), cost, None, None)]]
                assert [list(rows) for rows in redis.evaluate(groups, mode)] == python.evaluate(groups, mode)
            if step == 0:  # as after years
                (name,) = admin.keys(f"{prefix}*")
                for place, count in ((0, 4), (1, 3)):
                    numbers = list(struct.unpack(f"<{count}d", admin.lindex(name, place)))
                    numbers[2] += 2.0**52 - 500
                    admin.lset(name, place, struct.pack(f"<{count}d", *numbers))
        total = struct.unpack("<4d", admin.lindex(name, 0))[2]
        assert total < 2.0**32, "it was summed up anew"
