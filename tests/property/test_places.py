"""Waits, cancellations, time-outs, hits, settlements and resets in any order: nothing is lost, nothing is minted."""

import itertools
from collections.abc import Sequence
from contextlib import closing
from fractions import Fraction
from typing import NamedTuple

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ratebound import Limit, MemoryStorage
from ratebound.kernels.gcra import MAX_HOLES
from ratebound.limit import BUCKETS, MAX_SPAN, Group, Mode
from ratebound.outcome import Row
from ratebound.settling import settlement
from ratebound.storage.redis.storage import RedisStorage
from ratebound.testing import FakeClock, ask
from tests.property import oracle
from tests.property.histories import Plain
from tests.property.places import Bucket, Place
from tests.property.strategies import START, costs, gaps, limits, near
from tests.servers import Server

runs = itertools.count()
EXACT = (*BUCKETS, "sliding-log", "fixed-window")


def small_costs(limit: Limit) -> st.SearchStrategy[int]:
    return st.one_of(st.just(1), st.integers(1, min(limit.burst, 5)))


def patiences(limit: Limit) -> st.SearchStrategy[int | None]:
    return st.sampled_from([None, 0, limit.numbers.step, 5 * limit.numbers.step + 1, 50 * limit.numbers.step + 50])


@given(limits(BUCKETS), st.data())
def test_any_order_of_waits_cancellations_and_hits_is_answered_as_by_the_oracle(
    limit: Limit, data: st.DataObject
) -> None:
    """Up to as many holes as a state keeps, and as long as nobody gives back what has gone ahead."""
    clock = FakeClock(START)
    storage, bucket = MemoryStorage(clock=clock), Bucket(limit, [])
    waiting: list[tuple[Place, Group, Sequence[Row]]] = []
    for _ in range(data.draw(st.integers(1, 2 * MAX_HOLES))):
        clock.now += data.draw(st.one_of(st.just(0), st.just(0), gaps(limit)))
        waiting = [entry for entry in waiting if entry[0].goes > clock.now]
        cancel: bool = data.draw(st.booleans())
        if cancel and waiting:
            place, group, rows = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            storage.evaluate((settlement(group, rows, [0]),), "force")
            bucket.give_back(place)
        else:
            cost, patience = data.draw(small_costs(limit)), data.draw(patiences(limit))
            allowed = bucket.admits(clock.now, cost, patience)
            peeked = ask(storage, "k", limit, cost, "peek", patience)
            group = (("k", (limit,), cost, patience, None),)
            rows = storage.evaluate((group,))[0]
            assert rows[0][0] == allowed == peeked.allowed
            if allowed:
                assert rows[0][4] == bucket.delay(clock.now, cost) == peeked.delay_us
                waiting.append((bucket.take(clock.now, cost), group, rows))
            else:
                assert rows[0][2] == peeked.retry_after_us
        left = bucket.left(clock.now, min(limit.burst, 9))
        assert min(ask(storage, "k", limit, mode="peek").remaining, 9) == left


@given(limits(EXACT), st.data())
def test_whatever_is_waited_for_settled_and_reset_what_stays_keeps_the_limit(limit: Limit, data: st.DataObject) -> None:
    clock = FakeClock(START)
    storage = MemoryStorage(clock=clock)
    kept: list[tuple[int, int]] = []  # when it goes ahead, and what stays charged, since the last reset
    histories = [kept]
    granted: list[tuple[list[tuple[int, int]], int, Group, Sequence[Row]]] = []
    for _ in range(data.draw(st.integers(2, 25))):
        clock.now += data.draw(st.one_of(st.just(0), gaps(limit)))
        step = data.draw(st.sampled_from(["spend", "spend", "spend", "settle", "settle", "reset"]))
        if step == "reset":
            storage.reset((("k", (limit,), 1, None, None),))
            clock.now += 1  # what was forgotten and what came after it at one instant cannot be told apart
            kept = []
            histories.append(kept)
        elif step == "settle" and granted:
            history, place, group, rows = granted.pop(data.draw(st.integers(0, len(granted) - 1)))
            less = data.draw(st.integers(0, group[0][2]))
            storage.evaluate((settlement(group, rows, [less]),), "force")
            history[place] = (history[place][0], less)
        elif step == "spend":
            cost = data.draw(costs(limit))
            patience = data.draw(patiences(limit)) if limit.algorithm in BUCKETS else None
            group = (("k", (limit,), cost, patience, None),)
            rows = storage.evaluate((group,))[0]
            if rows[0][0]:
                granted.append((kept, len(kept), group, rows))
                kept.append((clock.now + rows[0][4], cost))
    for history in histories:
        assert oracle.keeps(limit, history)


class Went(NamedTuple):
    """What went ahead, or was settled upward, in the order in which it was charged."""

    instant: int
    cost: int
    settled: bool = False


class Buckets:
    """One key of several buckets, and what each of them counted at which instant."""

    def __init__(self, pool: Sequence[Limit]) -> None:
        self.clock = FakeClock(START)
        self.storage = MemoryStorage(clock=self.clock)
        self.went: dict[Limit, list[Went]] = {limit: [] for limit in pool}
        self.granted: list[tuple[dict[Limit, int], Group, Sequence[Row]]] = []

    def spend(self, asked: Sequence[Limit], cost: int, patience: int | None) -> list[int]:
        """Return the delays, one for each limit, or nothing if it is denied."""
        group: Group = (("k", tuple(asked), cost, patience, None),)
        rows = self.storage.evaluate((group,))[0]
        if not all(row[0] for row in rows):
            return []
        self.granted.append(({limit: len(self.went[limit]) for limit in asked}, group, rows))
        delays = [row[4] for row in rows]
        for limit, own in zip(asked, delays, strict=True):
            # With patience all count the instant at which the request goes ahead. Without it each counts as if it had
            # been asked alone: a queue the turn that it gave, any other bucket the instant of the call.
            delay = own if patience is None else max(delays)
            self.went[limit].append(Went(self.clock.now + delay, cost))
        return delays

    def charged(self, which: int) -> tuple[int, int]:
        """Return what was charged, and the most that one settlement adds in full."""
        places, group, _ = self.granted[which]
        return group[0][2], min(limit.count for limit in places)

    def settle(self, which: int, cost: int) -> None:
        places, group, rows = self.granted.pop(which)
        charged = group[0][2]
        self.storage.evaluate((settlement(group, rows, [cost]),), "force")
        for limit, place in places.items():
            if cost > charged:
                self.went[limit].append(Went(self.clock.now, cost - charged, settled=True))
            else:
                self.went[limit][place] = self.went[limit][place]._replace(cost=cost)

    def assert_admitted_rightly(self) -> None:
        for limit, went in self.went.items():
            assert_admitted_rightly(limit, went)


def assert_admitted_rightly(limit: Limit, went: list[Went]) -> None:
    """Whatever was admitted kept the limit, with all that had been settled upward before it was admitted."""
    for n, last in enumerate(went):
        if last.settled or not last.cost:
            continue
        total = 0
        before = [each for i, each in enumerate(went) if each.instant <= last.instant and (i < n or not each.settled)]
        for each in sorted(before, reverse=True):
            total += each.cost
            assert total <= limit.burst + Fraction(limit.count * (last.instant + 1 - each.instant), limit.period_us)


def test_a_bucket_without_patience_counts_at_once_what_a_queue_beside_it_delays() -> None:
    """A unit of the bucket takes 3.666 microseconds. Its places are 0 to 3.67 and 3.67 to 7.33; the settlement takes
    7.33 to 11.00. The last place, of two units, ends at 18.33. A whole burst before that is 10.998, so it goes ahead at
    10. The second spend goes ahead at 12, but the bucket counted it at 0: only the queue knows of that delay."""
    queue, bucket = Limit(77, 1_000, 2, "leaky-bucket"), Limit(5_476, 20_076, 2, "token-bucket")
    buckets = Buckets([queue, bucket])
    assert buckets.spend([queue, bucket], 1, None) == [0, 0]
    assert buckets.spend([queue, bucket], 1, None) == [12, 0]
    buckets.settle(1, 2)
    assert buckets.spend([bucket], 2, 10) == [10]
    buckets.assert_admitted_rightly()


def test_a_waiter_that_was_settled_down_keeps_its_turn() -> None:
    """A refund of what has gone ahead must not move its place: it goes ahead when it was told, though it costs less."""
    limit = Limit(1, 1_000_000, 4, "token-bucket")
    buckets = Buckets([limit])
    assert buckets.spend([limit], 3, None) == [0]
    assert buckets.spend([limit], 4, 9_000_000) == [3_000_000]
    buckets.settle(1, 3)
    buckets.clock.now += 2_000_000
    buckets.settle(0, 0)
    buckets.spend([limit], 2, 9_000_000)
    buckets.assert_admitted_rightly()


@given(st.lists(limits(BUCKETS), min_size=1, max_size=3, unique_by=lambda limit: limit.scope), st.data())
def test_places_that_are_cancelled_and_settled_down_and_up_keep_every_bucket(
    pool: list[Limit], data: st.DataObject
) -> None:
    """Waiters for all of them, and others for one of them alone, go ahead at the instant that they were told. Who does
    not wait is counted as `Buckets.spend` says."""
    assume(all(limit.refill_us < MAX_SPAN // 4 for limit in pool))  # debts of a hundred years are not charged in full
    buckets = Buckets(pool)
    patience = st.one_of(st.none(), st.integers(0, 3 * max(limit.period_us for limit in pool)))
    for _ in range(data.draw(st.integers(1, 25))):
        buckets.clock.now += data.draw(st.one_of(st.just(0), gaps(data.draw(st.sampled_from(pool)))))
        if buckets.granted and data.draw(st.integers(0, 2)) > 0:
            which = data.draw(st.integers(0, len(buckets.granted) - 1))
            charged, more = buckets.charged(which)
            cost = data.draw(st.one_of(st.integers(0, charged), near(charged + 1, charged + more)))
            buckets.settle(which, min(cost, charged + more))
        else:
            asked = data.draw(st.sampled_from([pool, pool[:1], pool[1:] or pool]))
            least = min(limit.burst for limit in asked)
            cost = data.draw(st.one_of(st.integers(1, min(least, 3)), st.just(least)))
            buckets.spend(asked, cost, data.draw(patience))
    buckets.assert_admitted_rightly()


@given(st.lists(limits(BUCKETS), min_size=2, max_size=3, unique_by=lambda limit: limit.scope), st.data())
def test_all_waiters_for_several_buckets_that_go_leave_what_was_there_before_them(
    pool: list[Limit], data: st.DataObject
) -> None:
    clock = FakeClock(START)
    storage, alone = MemoryStorage(clock=clock), MemoryStorage(clock=clock)
    least = min(limit.burst for limit in pool)
    for _ in range(data.draw(st.integers(0, 4))):
        clock.now += data.draw(gaps(pool[0]))
        first: Group = (("k", tuple(pool), data.draw(st.integers(1, least)), None, None),)
        for each in (storage, alone):
            each.evaluate((first,))
    waiting = []
    for _ in range(data.draw(st.integers(1, MAX_HOLES // 2))):
        asked = tuple(data.draw(st.sampled_from([pool, pool, pool[:1], pool[1:]])))
        patience = 200 * max(limit.numbers.step + 1 for limit in asked)
        group: Group = (("k", asked, data.draw(st.integers(1, min(least, 3))), patience, None),)
        rows = storage.evaluate((group,))[0]
        if all(row[0] for row in rows):
            waiting.append((group, rows))
    for group, rows in data.draw(st.permutations(waiting)):
        storage.evaluate((settlement(group, rows, [0]),), "force")
    clock.now += data.draw(gaps(pool[0]))
    for limit in pool:
        assert ask(storage, "k", limit, mode="peek") == ask(alone, "k", limit, mode="peek")


@given(limits(BUCKETS), st.data())
def test_all_waiters_that_go_leave_what_was_there_before_them(limit: Limit, data: st.DataObject) -> None:
    clock = FakeClock(START)
    storage, alone = MemoryStorage(clock=clock), MemoryStorage(clock=clock)
    for _ in range(data.draw(st.integers(0, 4))):
        clock.now += data.draw(gaps(limit))
        cost = data.draw(costs(limit))
        for each in (storage, alone):
            ask(each, "k", limit, cost)
    waiting = []
    for _ in range(data.draw(st.integers(1, 2 * MAX_HOLES))):
        group: Group = (("k", (limit,), data.draw(small_costs(limit)), 200 * limit.numbers.step + 200, None),)
        rows = storage.evaluate((group,))[0]
        if rows[0][0]:
            waiting.append((group, rows))
    for group, rows in data.draw(st.permutations(waiting)):
        storage.evaluate((settlement(group, rows, [0]),), "force")
    clock.now += data.draw(gaps(limit))
    assert ask(storage, "k", limit, mode="peek") == ask(alone, "k", limit, mode="peek")


@settings(max_examples=settings().max_examples // 5)
@given(st.permutations(range(0, 4 * MAX_HOLES, 2)), st.sampled_from([1, 3, 7]))
def test_beyond_the_holes_that_a_state_keeps_a_place_returns_when_its_time_has_passed(
    order: list[int], count: int
) -> None:
    """Every second of many waiters goes: the first of their places are handed out again, and none twice."""
    limit = Limit(count, 1_000_000, 1, "token-bucket")
    clock = FakeClock(START)
    storage, bucket = MemoryStorage(clock=clock), Bucket(limit, [])
    patience = 5 * MAX_HOLES * (limit.numbers.step + 1)
    waiting = []
    for _ in range(4 * MAX_HOLES):
        group: Group = (("k", (limit,), 1, patience, None),)
        waiting.append((group, storage.evaluate((group,))[0], bucket.take(clock.now, 1)))
    for i in order:
        group, rows, place = waiting[i]
        storage.evaluate((settlement(group, rows, [0]),), "force")
        bucket.give_back(place)
    for n in range(2 * MAX_HOLES):
        delay, oracle = ask(storage, "k", limit, patience=patience).delay_us, bucket.delay(clock.now, 1)
        assert delay == oracle if n < MAX_HOLES else delay > oracle
        bucket.take(clock.now, 1)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(limits(BUCKETS), min_size=1, max_size=2, unique_by=lambda limit: limit.scope), st.data())
def test_any_order_of_waits_and_cancellations_is_answered_alike_by_redis(
    redis_url_server: Server, pool: list[Limit], data: st.DataObject
) -> None:
    clock = FakeClock(START)
    python = Plain(clock)
    url = f"{redis_url_server.url}?prefix=places{next(runs)}-&timeout=5&connect_timeout=5"
    granted: list[tuple[Group, list[Row]]] = []
    with closing(RedisStorage(url, clock=clock)) as redis:
        for _ in range(data.draw(st.integers(1, 25))):
            clock.now += data.draw(st.one_of(st.just(0), st.just(0), gaps(pool[0])))
            if data.draw(st.integers(0, 19)) == 0:
                clock.now -= data.draw(st.integers(1, 3 * pool[0].numbers.step + 3))
            mode: Mode = data.draw(st.sampled_from(["spend", "spend", "force", "peek"]))
            if mode == "force" and granted:
                group, rows = granted.pop(data.draw(st.integers(0, len(granted) - 1)))
                actual = st.one_of(st.integers(0, 2), near(pool[0].burst, 2 * pool[0].count))
                group = settlement(group, rows, [data.draw(actual) for _ in group])
            else:
                mode = "peek" if mode == "peek" else "spend"
                asked = tuple(data.draw(st.sampled_from([pool, pool[:1]])))
                ask_one = ("k", asked, data.draw(small_costs(pool[0])), data.draw(patiences(pool[0])), None)
                group = [ask_one] * data.draw(st.sampled_from([1, 1, 1, 2]))
            expected = python.evaluate((group,), mode)
            assert [list(rows) for rows in redis.evaluate((group,), mode)] == expected
            if mode == "spend" and all(row[0] for row in expected[0]):
                granted.append((group, expected[0]))
