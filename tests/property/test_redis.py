"""The Lua is a mirror: any history of groups has the same outcomes on Redis and in Python, to the unit."""

import itertools
import os
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratekeeper import Limit
from ratekeeper.decision import Row
from ratekeeper.kernels import State, evaluate
from ratekeeper.limit import Ask, Group, Mode, Spent
from ratekeeper.settling import spent_of
from ratekeeper.storage.redis.storage import RedisStorage
from ratekeeper.testing import FakeClock
from tests.property.strategies import START, costs, gaps, limits, near
from tests.servers import Server

runs = itertools.count()
EXAMPLES = int(os.environ.get("RATEKEEPER_EXAMPLES", "150"))


class Plain:
    """The kernels over a dict that forgets nothing."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.states: dict[tuple[str, str], State | None] = {}

    def evaluate(self, groups: Sequence[Group], mode: Mode) -> list[list[Row]]:
        return [self._evaluate(group, mode) for group in groups]

    def _evaluate(self, group: Group, mode: Mode) -> list[Row]:
        names = [(limit.scope, key) for key, limits, *_ in group for limit in limits]
        slots = {name: slot for slot, name in enumerate(dict.fromkeys(names))}
        states = [self.states.get(name) for name in slots]
        rows = evaluate(group, mode, [slots[name] for name in names], states, self.clock.now)
        self.states.update(zip(slots, states, strict=True))
        return rows


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(limits(), min_size=1, max_size=3), st.data())
def test_any_history_of_groups_is_answered_alike(
    redis_url_server: Server, pool: list[Limit], data: st.DataObject
) -> None:
    clock = FakeClock(START)
    python = Plain(clock)
    redis = RedisStorage(f"{redis_url_server.url}?prefix=diff{next(runs)}-&timeout=5&connect_timeout=5", clock=clock)
    spends: list[Spent] = [(START, START, 0)]
    for _ in range(data.draw(st.integers(1, 8))):
        limit = data.draw(st.sampled_from(pool))
        clock.now += data.draw(gaps(limit))
        if data.draw(st.integers(0, 9)) == 0:
            clock.now -= data.draw(near(1, 1_000, limit.period, 3 * limit.period, 10**14))
        mode: Mode = data.draw(st.sampled_from(["spend", "spend", "spend", "peek", "force"]))
        groups = [
            [data.draw(asks(pool, mode, spends)) for _ in range(data.draw(st.integers(1, 3)))]
            for _ in range(data.draw(st.integers(1, 2)))
        ]
        expected = python.evaluate(groups, mode)
        assert [list(rows) for rows in redis.evaluate(groups, mode)] == expected
        spends = [spent_of(row) for rows in expected for row in rows]
    redis.close()


@st.composite
def asks(draw: st.DrawFn, pool: list[Limit], mode: Mode, spends: list[Spent]) -> Ask:
    limit, key = draw(st.sampled_from(pool)), draw(st.sampled_from("ab"))
    cost = draw(costs(limit))
    if mode == "force":
        spent = draw(st.one_of(st.none(), st.sampled_from(spends)))
        return key, (limit,), draw(st.sampled_from([cost, -cost])), None, None if spent is None else [spent]
    return key, (limit,), cost, draw(st.one_of(st.none(), near(0, limit.period, 3 * limit.period))), None
