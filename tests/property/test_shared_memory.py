"""Shared memory decides like the kernels over a dict, to the unit, on the fast path and on the general path."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratebound import Limit, Limiter, MemoryStorage
from ratebound.decision import Plan
from ratebound.limit import ALGORITHMS, BUCKETS, CALENDAR, MAX_SPAN, Group
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.testing import FakeClock
from tests.property.histories import (
    check_every_kind,
    check_history,
    check_long_log,
    check_slots,
    penalties,
    to_the_next_window,
    value_limits,
)
from tests.property.strategies import START, costs, gaps, limits, near, quotas, slot_limits, starts
from tests.shared_memory.room import check_blocks, stored
from tests.zones import fresh_zone

RATES = (*ALGORITHMS, CALENDAR, "metered")


def check_on_a_zone(pool: list[Limit], start: int, data: st.DataObject) -> None:
    """Half of the history is by another storage, as another process has it."""
    clock = FakeClock(start)
    with fresh_zone(clock=clock) as before:
        name = before.zone_name
        after = SharedMemoryStorage(
            name.name, directory=name.directory, size=before.states.zone.cells.memory.size(), clock=clock
        )
        check_history(before, after, clock, pool, data)
        check_blocks(before)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(limits(), min_size=2, max_size=4), st.data())
def test_any_history_of_groups_is_answered_alike(pool: list[Limit], data: st.DataObject) -> None:
    check_on_a_zone(pool, START, data)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(st.one_of(value_limits(), penalties(), quotas(), slot_limits()), min_size=1, max_size=3),
    st.lists(st.one_of(limits(), quotas(), slot_limits(), value_limits(), penalties()), min_size=1, max_size=3),
    starts(),
    st.data(),
)
def test_any_history_with_all_kinds_of_limits_is_answered_alike(
    pool: list[Limit], others: list[Limit], start: int, data: st.DataObject
) -> None:
    check_on_a_zone(pool + others, start, data)


@pytest.fixture
def zone(clock: FakeClock) -> Iterator[SharedMemoryStorage]:
    with fresh_zone(clock=clock, size=8 << 20) as storage:
        yield storage
        check_blocks(storage)


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_touch_many_slots_of_one_key_are_answered_alike(
    seed: int, zone: SharedMemoryStorage, clock: FakeClock
) -> None:
    check_slots(zone, clock, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_history_of_every_kind_of_limit_is_answered_alike(
    seed: int, zone: SharedMemoryStorage, clock: FakeClock
) -> None:
    check_every_kind(zone, clock, seed)


@pytest.mark.parametrize("most", [1, 3], ids=["each costs one", "costs differ"])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_log_is_answered_alike_wherever_it_is_touched(
    seed: int, most: int, zone: SharedMemoryStorage, clock: FakeClock
) -> None:
    check_long_log(zone, clock, seed, most)


def stricter(limit: Limit) -> Limit:
    """A limit of the same scope that allows less."""
    count = max(limit.count // 2, 1)
    if limit.calendar is not None:
        return Limit(count, calendar=limit.calendar, over=limit.over)
    burst = 0
    if limit.algorithm in BUCKETS:
        burst = min(max(limit.burst // 2, 1), MAX_SPAN * count // limit.period_us)
    return Limit(count, limit.period_us, burst, limit.algorithm, over=limit.over)


@pytest.mark.parametrize("algorithm", RATES)
@settings(max_examples=max(settings().max_examples // 3, 1))
@given(data=st.data())
def test_the_fast_path_and_the_general_path_agree(algorithm: str, data: st.DataObject) -> None:
    """On rows, on the states that they leave, and on whether those may be dropped."""
    clock = FakeClock(data.draw(starts()))
    limit = data.draw(limits((algorithm,)))
    tiers = [limit, limit, stricter(limit)]
    assert len({each.scope for each in tiers}) == 1
    memory = MemoryStorage(clock=clock)
    with fresh_zone(clock=clock) as fast, fresh_zone(clock=clock) as general:
        for _ in range(data.draw(st.integers(1, 12))):
            asked = data.draw(st.sampled_from(tiers))
            clock.now += data.draw(st.one_of(st.just(0), gaps(asked), to_the_next_window(asked, clock.now)))
            if data.draw(st.integers(0, 9)) == 0:
                clock.now -= data.draw(near(1, 1_000, asked.period_us, 3 * asked.period_us))
            cost = data.draw(st.one_of(st.just(1), costs(asked)))
            group: Group = (("k", (asked,), cost, None, None),)
            is_known = stored(fast, "k", asked) is not None
            decision = fast.states.hit(Plan((asked,)), "k", cost)
            rows = [decision.rows] if decision is not None else fast.evaluate((group,))
            assert [list(each) for each in rows] == [list(each) for each in general.evaluate((group,))]
            assert [list(each) for each in rows] == [list(each) for each in memory.evaluate((group,))]
            found = stored(fast, "k", asked), stored(general, "k", asked)
            assert (found[0] is None) == (found[1] is None)
            if found[0] is not None and found[1] is not None:
                assert found[0][1:] == found[1][1:]
            assert (decision is not None) == is_known, "a known key takes the fast path"
        check_blocks(fast)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(limits(RATES), min_size=2, max_size=3, unique_by=lambda limit: limit.scope), st.data())
def test_the_fast_path_and_the_general_path_agree_on_several_limits(pool: list[Limit], data: st.DataObject) -> None:
    clock = FakeClock(data.draw(starts()))
    plan = Plan(tuple(pool))
    with fresh_zone(clock=clock) as fast, fresh_zone(clock=clock) as general:
        for _ in range(data.draw(st.integers(1, 10))):
            asked = data.draw(st.sampled_from(pool))
            clock.now += data.draw(st.one_of(st.just(0), gaps(asked), to_the_next_window(asked, clock.now)))
            if data.draw(st.integers(0, 9)) == 0:
                clock.now -= data.draw(near(1, 1_000, asked.period_us, 3 * asked.period_us))
            cost = data.draw(st.one_of(st.just(1), costs(asked)))
            group: Group = (("k", tuple(pool), cost, None, None),)
            decision = fast.states.hit(plan, "k", cost)
            rows = [decision.rows] if decision is not None else fast.evaluate((group,))
            assert [list(each) for each in rows] == [list(each) for each in general.evaluate((group,))]
            for limit in pool:
                one, other = stored(fast, "k", limit), stored(general, "k", limit)
                assert (None if one is None else one[1:]) == (None if other is None else other[1:])
        check_blocks(fast)


def test_a_limiter_takes_the_fast_path(clock: FakeClock) -> None:
    with fresh_zone(clock=clock) as zone, fresh_zone(clock=clock) as other:
        fast, general = (Limiter("3/minute", storage=storage) for storage in (zone, other))
        for _ in range(5):
            clock.now += 1_000
            group: Group = (("k", fast.limits, 1, None, None),)
            assert list(fast.hit("k").rows) == list(general.storage.evaluate((group,))[0])
