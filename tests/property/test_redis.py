"""The Lua is a mirror: any history of groups has the same outcomes on Redis and in Python, to the unit."""

import itertools
import random
import struct
from collections.abc import Sequence
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratebound import Limit
from ratebound.limit import Ask, Group, Mode, Spent
from ratebound.outcome import Row
from ratebound.settling import settlement, spent_of
from ratebound.storage.redis.storage import RedisStorage
from ratebound.testing import FakeClock
from tests.packed_kernels import Packed, evaluate_rows
from tests.property.strategies import START, costs, gaps, limits, near
from tests.servers import Server

runs = itertools.count()


class Plain:
    """The kernels over a dict that forgets nothing."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.states: dict[tuple[str, str], Packed | None] = {}

    def evaluate(self, groups: Sequence[Group], mode: Mode) -> list[list[Row]]:
        return [self._evaluate(group, mode) for group in groups]

    def _evaluate(self, group: Group, mode: Mode) -> list[Row]:
        names = [(limit.scope, key) for key, limits, *_ in group for limit in limits]
        slots = {name: slot for slot, name in enumerate(dict.fromkeys(names))}
        states = [self.states.get(name) for name in slots]
        rows = evaluate_rows(group, mode, [slots[name] for name in names], states, self.clock.now)
        self.states.update(zip(slots, states, strict=True))
        return rows


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(limits(), min_size=2, max_size=4), st.booleans(), st.data())
def test_any_history_of_groups_is_answered_alike(
    redis_url_server: Server, pool: list[Limit], rotates: bool, data: st.DataObject
) -> None:
    clock = FakeClock(START)
    python = Plain(clock)
    url = f"{redis_url_server.url}?prefix=diff{next(runs)}-&timeout=5&connect_timeout=5"
    before, after = (
        RedisStorage(url + options, clock=clock)
        for options in (("&secret=b", "&secret=a&old_secret=b") if rotates else ("", ""))
    )
    steps = data.draw(st.integers(1, 8))
    rotated_at = data.draw(st.integers(0, steps))
    spends: list[Spent] = [(START, START, 0, 0)]
    granted: list[tuple[Group, list[Row]]] = []
    with closing(before), closing(after):
        for step in range(steps):
            limit = data.draw(st.sampled_from(pool))
            clock.now += data.draw(st.one_of(st.just(0), gaps(limit)))  # the states of shorter limits last, too
            if data.draw(st.integers(0, 9)) == 0:
                clock.now -= data.draw(near(1, 1_000, limit.period_us, 3 * limit.period_us, 10**14))
            mode: Mode = data.draw(st.sampled_from(["spend", "spend", "spend", "force", "force", "peek"]))
            groups: list[Group] = [
                [data.draw(asks(pool, mode, spends)) for _ in range(data.draw(st.integers(1, 3)))]
                for _ in range(data.draw(st.integers(1, 2)))
            ]
            if mode == "force" and granted and data.draw(st.booleans()):
                group, rows = data.draw(st.sampled_from(granted))
                groups = [settlement(group, rows, [data.draw(near(0, cost, 2 * cost)) for _, _, cost, *_ in group])]
            expected = python.evaluate(groups, mode)
            redis = before if step < rotated_at else after
            assert [list(rows) for rows in redis.evaluate(groups, mode)] == expected
            spends = [spent_of(row) for rows in expected for row in rows]
            if mode == "spend":
                granted += [(g, rows) for g, rows in zip(groups, expected, strict=True) if all(row[0] for row in rows)]


@st.composite
def asks(draw: st.DrawFn, pool: list[Limit], mode: Mode, spends: list[Spent]) -> Ask:
    """Of one to three limits. Within an ask each has a state of its own; those of several asks may share one."""
    asked = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3, unique_by=lambda limit: limit.scope))
    limits, limit, key = tuple(asked), draw(st.sampled_from(asked)), draw(st.sampled_from("aaab"))
    cost = draw(costs(limit))
    if mode == "force":
        given = draw(st.booleans())
        spent = [draw(st.sampled_from(spends)) for _ in limits] if given else None
        return key, limits, draw(st.sampled_from([cost, -cost])), None, spent
    return key, limits, cost, draw(st.one_of(st.none(), near(0, limit.period_us, 3 * limit.period_us))), None


@pytest.mark.parametrize("rotates", [False, True], ids=["", "while a secret is changed"])
@pytest.mark.parametrize("most", [1, 3], ids=["each costs one", "costs differ"])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_log_is_answered_alike_wherever_it_is_touched(
    seed: int, most: int, rotates: bool, redis_url_server: Server
) -> None:
    """Far more entries than are read at a time: refunds, charges and denials of any cost, some of it expired."""
    choose = random.Random(seed)
    limit = Limit(1_500, 10**6, 0, "sliding-log")
    clock = FakeClock(START)
    python = Plain(clock)
    options = "&secret=a&old_secret=b" if rotates else ""
    url = f"{redis_url_server.url}?prefix=long{next(runs)}-&timeout=5&connect_timeout=5{options}"
    granted: list[tuple[Group, list[Row]]] = []

    def same(groups: list[Group], mode: Mode = "spend") -> list[Row]:
        (rows,) = python.evaluate(groups, mode)
        assert [list(found) for found in redis.evaluate(groups, mode)] == [rows]
        if mode == "spend" and rows[0][0]:
            granted.append((groups[0], rows))
        return rows

    with closing(RedisStorage(url, clock=clock)) as redis:
        for step in range(900):
            clock.now += choose.choice([0, 1, 900, 1_100])
            same([[("k", (limit,), choose.randint(1, most), None, None)]])
            kind = choose.randrange(12)
            if kind == 0:
                same([[("k", (limit,), choose.randint(1, 1_500), None, None)]], choose.choice(["spend", "peek"]))
            elif kind == 1:
                same([[("k", (limit,), choose.choice([-1, 1, 40, 5_000]), None, None)]], "force")
            elif kind < 5 and granted:
                place = choose.choice([-1, -2, -30, 0, choose.randrange(len(granted))])
                group, rows = granted.pop(max(place, -len(granted)))
                same([settlement(group, rows, [choose.choice([0, 0, 0, 1, 7])])], "force")
            elif kind == 5 and step > 700:
                clock.now += 300_000
            elif kind == 6 and granted:  # two in one call
                group, rows = granted.pop()
                twice = [*settlement(group, rows, [0]), ("k", (limit,), 2, None, None)]
                same([twice], "force")


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
