"""The group law: all or nothing, in order, against the running state, whatever is mixed."""

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limit, MemoryStorage
from ratebound.limit import BUCKETS, Ask
from ratebound.outcome import Row
from ratebound.testing import FakeClock
from tests.property import oracle
from tests.property.strategies import ALL_KINDS, KINDS, START, costs, gaps, limits, slots


@st.composite
def groups(draw: st.DrawFn, pool: list[Limit]) -> list[Ask]:
    """Up to four checks over two keys, so that some of them are equal."""
    checks = draw(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(pool)), min_size=1, max_size=4))
    return [
        (key, (limit,), draw(costs(limit)), None, None if limit.numbers.plain else [draw(slots(limit))])
        for key, limit in checks
    ]


class Twin:
    """Two storages with the same history: one answers groups, the other shows what should have been."""

    def __init__(self) -> None:
        self.clock = FakeClock(START)
        self.grouped, self.single = MemoryStorage(clock=self.clock), MemoryStorage(clock=self.clock)

    def peeks(self, pool: list[Limit]) -> list[tuple[Row, Row]]:
        return [
            (self.grouped.evaluate((ask,), "peek")[0][0], self.single.evaluate((ask,), "peek")[0][0])
            for key in "ab"
            for limit in pool
            for ask in [((key, (limit,), 1, None, None),)]
        ]


@given(st.lists(limits(ALL_KINDS), min_size=1, max_size=3), st.data())
def test_a_group_is_all_or_nothing(pool: list[Limit], data: st.DataObject) -> None:
    twin = Twin()
    for _ in range(data.draw(st.integers(1, 8))):
        twin.clock.now += data.draw(gaps(data.draw(st.sampled_from(pool))))
        group = data.draw(groups(pool))
        rows = twin.grouped.evaluate((group,))[0]
        if all(row[0] for row in rows):
            singly = [twin.single.evaluate(((ask,),))[0][0] for ask in group]
            assert list(rows) == singly
        assert all(one == other for one, other in twin.peeks(pool))


# Two limits of one scope but unequal counts are one state told two truths: no single wait is exact for both.
# The wait of a slot is advice: equal checks may need more slots than there are.
@given(st.lists(limits(KINDS[:-1]), min_size=1, max_size=3, unique_by=lambda limit: limit.scope), st.data())
def test_a_denied_group_says_when_all_of_it_will_pass(pool: list[Limit], data: st.DataObject) -> None:
    twin = Twin()
    for _ in range(data.draw(st.integers(1, 5))):
        twin.clock.now += data.draw(gaps(data.draw(st.sampled_from(pool))))
        twin.grouped.evaluate((data.draw(groups(pool)),))
    group = data.draw(groups(pool))
    rows = twin.grouped.evaluate((group,))[0]
    waits = [row[2] for row in rows if not row[0]]
    if waits and None not in waits:
        longest = max(wait for wait in waits if wait is not None)
        twin.clock.now += longest - 1
        assert not all(row[0] for row in twin.grouped.evaluate((group,), "peek")[0])
        twin.clock.now += 1
        assert all(row[0] for row in twin.grouped.evaluate((group,))[0])


@given(st.lists(limits(BUCKETS[:2]), min_size=1, max_size=3, unique_by=lambda limit: limit.scope), st.data())
def test_places_in_the_future_keep_every_bucket_within_burst_and_rate(pool: list[Limit], data: st.DataObject) -> None:
    """Waiters go ahead at the instant they were told, so that is when the buckets must hold."""
    clock = FakeClock(START)
    storage = MemoryStorage(clock=clock)
    went: list[int] = []
    for _ in range(data.draw(st.integers(1, 12))):
        clock.now += data.draw(gaps(pool[0]))
        patience = data.draw(st.integers(0, 3 * max(limit.period_us for limit in pool)))
        rows = storage.evaluate(((("k", tuple(pool), 1, patience, None),),))[0]
        if all(row[0] for row in rows):
            went.append(clock.now + max(row[4] for row in rows))
    assert went == sorted(went)
    for limit in pool:
        assert oracle.keeps(limit, [(instant, 1) for instant in went])
