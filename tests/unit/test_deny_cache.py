"""The deny cache: which denials are repeated here, and for how long. With a fake clock and trips that are noted."""

import asyncio
import os
from typing import Any

import pytest

from ratebound import AsyncLimiter, Check, InvalidLimit, Limit, Limiter, MemoryStorage, parse_limit
from ratebound.decision import Plan
from ratebound.deny_cache import MAX_DENIALS, DenyCache, can_be_cached
from ratebound.events import Decided
from ratebound.outcome import Row
from ratebound.testing import FakeClock
from tests.remote import RemoteStorage, by_clock, sliced

SECOND = 1_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_040 * SECOND)


@pytest.fixture
def remote(clock: FakeClock) -> RemoteStorage:
    return RemoteStorage(MemoryStorage(clock=clock), clock)


def caching(limits: str, remote: RemoteStorage, **options: Any) -> Limiter:
    return sliced(limits, remote, **{"slice": None, "deny_cache": True, **options})


def use_up(limiter: Limiter, key: str = "k") -> None:
    while limiter.hit(key):
        pass


def trips_of(remote: RemoteStorage, limiter: Limiter, key: str = "k", cost: int = 1) -> int:
    """Return the number of trips that one denied hit takes."""
    before = len(remote.trips)
    assert not limiter.hit(key, cost=cost)
    return len(remote.trips) - before


@pytest.mark.parametrize("text", ["5/minute", "5/minute sliding-counter", "5/minute fixed-window", "5/minute burst 5"])
def test_a_denial_is_repeated_for_a_second(remote: RemoteStorage, clock: FakeClock, text: str) -> None:
    limiter = caching(text, remote)
    clock.now += 1
    use_up(limiter)
    assert trips_of(remote, limiter) == 0
    clock.now += SECOND - 1
    assert trips_of(remote, limiter) == 0
    clock.now += 1
    assert trips_of(remote, limiter) == 1


def test_a_denial_is_repeated_no_longer_than_it_lasts(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = caching("5/minute", remote)
    limiter.hit("k")
    clock.advance(59.6)
    use_up(limiter)
    clock.advance(0.4)
    assert limiter.hit("k")


def test_waiting_as_long_as_a_repeated_denial_says_is_enough(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = caching("5/minute", remote)
    for _ in range(5):
        limiter.hit("k")
    remote.delay_us = 100_000
    denied = limiter.hit("k")
    assert denied.retry_after == 59.9
    clock.advance(0.3)
    again = limiter.hit("k")
    assert again.retry_after == pytest.approx(59.9 - 0.3)
    assert again.reset_after == pytest.approx(59.9 - 0.3)
    assert again.at == denied.at + 300_000
    remote.delay_us = 0
    clock.advance(again.retry_after or 0)
    assert limiter.hit("k")


def test_a_denial_is_repeated_for_a_second_from_before_its_trip(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = caching("5/minute", remote)
    for _ in range(5):
        limiter.hit("k")
    remote.delay_us = 450_000
    limiter.hit("k")
    clock.now += 99_999
    assert trips_of(remote, limiter) == 0
    clock.now += 1
    assert trips_of(remote, limiter) == 1


def test_a_larger_cost_is_denied_too_and_a_smaller_one_is_asked_for(remote: RemoteStorage) -> None:
    limiter = caching("10/minute", remote)
    limiter.hit("k", cost=7)
    assert not limiter.hit("k", cost=5)
    assert trips_of(remote, limiter, cost=5) == 0
    assert trips_of(remote, limiter, cost=6) == 0
    assert trips_of(remote, limiter, cost=4) == 1
    assert limiter.hit("k", cost=3)


def test_a_cost_that_never_passes_is_denied_for_a_second(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = caching("10/minute", remote)
    assert limiter.hit("k", cost=11).retry_after is None
    clock.now += SECOND - 1
    before = len(remote.trips)
    assert limiter.hit("k", cost=11).retry_after is None
    assert len(remote.trips) == before
    clock.now += 1
    assert trips_of(remote, limiter, cost=11) == 1


def test_a_denial_belongs_to_its_key_and_its_limits(remote: RemoteStorage) -> None:
    limiter = caching("5/minute", remote)
    use_up(limiter)
    assert limiter.hit("other")
    limiter.limits = (parse_limit("6/minute"),)
    assert limiter.limits[0].deny_cache
    assert limiter.hit("k")


def test_other_limits_of_the_same_key_are_asked_for(remote: RemoteStorage) -> None:
    limiter = caching("5/minute", remote)
    use_up(limiter)
    raised = Limit(9, 60 * SECOND, algorithm="sliding-log", deny_cache=True)
    assert raised.scope == limiter.limits[0].scope
    assert limiter.check(Check("k", raised))


def test_all_limits_of_a_group_must_allow_it(remote: RemoteStorage) -> None:
    limiter = caching("5/minute", remote)
    checks = [Check("k", limiter.limits), Check("l", parse_limit("100/minute"))]
    use_up(limiter)
    before = len(remote.trips)
    limiter.check(checks)
    limiter.check(checks)
    assert len(remote.trips) == before + 2


def test_a_group_of_several_keys_is_repeated_as_a_whole(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = caching("5/minute; 100/hour", remote)
    use_up(limiter)
    both = [Check("k", limiter.limits, 2), Check("l", limiter.limits)]
    first = limiter.check(both)
    before = len(remote.trips)
    clock.advance(0.5)
    again = limiter.check(both)
    assert not again
    assert len(remote.trips) == before
    assert [outcome.allowed for outcome in again.outcomes] == [outcome.allowed for outcome in first.outcomes]
    assert again.retry_after == pytest.approx((first.retry_after or 0) - 0.5)
    limiter.check([both[1], both[0]])
    limiter.check([Check("k", limiter.limits, 1), both[1]])
    assert len(remote.trips) == before + 2


def test_rows_are_what_the_storage_said_with_times_counted_down() -> None:
    clock = FakeClock()
    cache = DenyCache(clock)
    began = clock.now = clock.now + 1
    limits = tuple(Limit(5, period * SECOND, deny_cache=True) for period in (60, 61, 62, 63))
    group = (("k", limits, 1, None, None),)
    said: list[Row] = [
        (True, 3, 0, 400, 0, 7_000, 11, 12, 13),  # allows
        (False, 1, 500, 600, 0, 7_000, 21, 22, 23),  # denies, and will allow while others still deny
        (False, 0, 900, 1_000, 0, 7_000, 31, 32, 33),
        (False, 2, None, 1_000, 0, 7_000, 41, 42, None),  # no wait can help
    ]
    cache.note(group, said, began)
    assert cache.spend(group) == said
    clock.now += 499
    assert cache.spend(group) == [
        (True, 3, 0, 0, 0, 7_499, 11, 12, 13),
        (False, 1, 1, 101, 0, 7_499, 21, 22, 23),
        (False, 0, 401, 501, 0, 7_499, 31, 32, 33),
        (False, 2, None, 501, 0, 7_499, 41, 42, None),
    ]
    clock.now += 1
    rows = cache.spend(group)
    assert rows is not None
    assert rows[1] == (True, 1, 0, 100, 0, 7_500, 21, 22, 23)


@pytest.mark.parametrize("limits", [1, 2])
def test_a_hit_finds_a_denial_of_its_key_limits_and_cost(limits: int) -> None:
    clock = FakeClock()
    cache = DenyCache(clock)
    clock.now += 1
    its = tuple(Limit(5, period * SECOND, deny_cache=True) for period in (60, 70)[:limits])
    rows: list[Row] = [(False, 0, 900, 1_000, 0, 7_000, 0, 0, None)] * limits
    cache.note((("k", its, 3, None, None),), rows, clock.now)
    equal = tuple(Limit(5, limit.period_us) for limit in its)
    other = (Limit(6, 60 * SECOND), *its[1:])
    for cost, found in ((2, False), (3, True), (4, True)):
        for plan in (Plan(its), Plan(equal)):
            decision = cache.hit(plan, "k", cost)
            assert (decision is not None) is found
            if decision is not None:
                assert (decision.allowed, decision.asks[0][2], list(decision.rows)) == (False, cost, rows)
    assert cache.hit(Plan(other), "k", 3) is None
    assert cache.hit(Plan(its), "l", 3) is None
    clock.now += 900
    assert cache.hit(Plan(its), "k", 3) is None


def test_a_hit_is_not_denied_for_a_group_that_has_its_key() -> None:
    clock = FakeClock()
    cache = DenyCache(clock)
    clock.now += 1
    its = (Limit(5, 60 * SECOND, deny_cache=True),)
    row: Row = (False, 0, 900, 1_000, 0, 7_000, 0, 0, None)
    group = (("k", its, 1, None, None), ("l", its, 1, None, None))
    cache.note(group, [row, row], clock.now)
    assert cache.hit(Plan(its), "k", 1) is None
    assert cache.spend(group[:1]) is None
    assert cache.spend((group[1], group[0])) is None
    assert cache.spend(group) == [row, row]


def test_asks_with_patience_or_extras_are_not_cached() -> None:
    its = (Limit(5, 60 * SECOND, deny_cache=True),)
    assert can_be_cached((("k", its, 1, None, None),))
    assert not can_be_cached((("k", its, 1, 0, None),))
    assert not can_be_cached((("k", its, 1, None, [(0, 0, 0, 0)]),))
    assert not can_be_cached((("k", (*its, Limit(5, 70 * SECOND)), 1, None, None),))


def test_a_group_is_denied_until_the_last_of_its_limits_allows(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = caching("3/10 seconds; 3/20 seconds", remote)
    limiter.hit("k")
    clock.advance(9.7)
    limiter.hit("k", cost=2)
    assert [outcome.allowed for outcome in limiter.hit("k").outcomes] == [False, False]
    clock.advance(0.3)
    before = len(remote.trips)
    assert [outcome.allowed for outcome in limiter.hit("k").outcomes] == [True, False]
    assert len(remote.trips) == before


def test_a_reset_a_refund_and_a_grant_end_the_denials_of_the_key(remote: RemoteStorage) -> None:
    limiter = caching("5/calendar-day", remote)
    decision = limiter.hit("k")
    for change in (
        lambda: limiter.settle(decision, cost=0),
        lambda: limiter.grant("k", 1),
        lambda: limiter.reset("k"),
    ):
        use_up(limiter)
        remote.clock.now += 10
        assert trips_of(remote, limiter) == 0
        change()
        remote.clock.now += 10  # a denial of the same microsecond might be from before the change
        assert limiter.hit("k")


def test_a_denial_whose_trip_began_before_the_reset_is_not_kept(remote: RemoteStorage) -> None:
    limiter = caching("5/minute", remote)
    for _ in range(5):
        limiter.hit("k")

    def reset_meanwhile() -> None:
        remote.on_trip = None
        remote.clock.now += 10
        limiter.reset("k")

    remote.on_trip = reset_meanwhile
    assert not limiter.hit("k")
    assert limiter.hit("k")


def test_a_reset_of_another_process_is_seen_after_a_second(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter, other = caching("5/minute", remote), caching("5/minute", remote)
    use_up(limiter)
    other.reset("k")
    assert other.hit("k")
    assert not limiter.hit("k")
    clock.advance(1)
    assert limiter.hit("k")


def test_a_forked_child_has_no_denials(remote: RemoteStorage) -> None:
    limiter = caching("5/minute", remote)
    use_up(limiter)
    child = os.fork()
    if not child:
        os._exit(limiter._decider.local.denials.denials)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert limiter._decider.local.denials.denials == 1


def test_denials_without_the_storage_are_not_kept(remote: RemoteStorage) -> None:
    limiter = caching("5/minute", remote, failure="closed")
    remote.is_down = True
    assert limiter.hit("k").unavailable
    remote.is_down = False
    assert limiter._decider.local.denials.denials == 0


def test_waiters_and_reservations_ask_the_storage(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = caching("5/minute", remote, sleep=clock.sleep)
    other = caching("5/minute", remote)
    use_up(limiter)
    other.reset("k")
    assert not limiter.hit("k")
    assert limiter.wait("k", timeout=0)
    with limiter.reserve("k", 1) as reservation:
        assert reservation.commit(0)
    assert limiter.hit("k")


def test_slices_come_first(remote: RemoteStorage) -> None:
    limiter = caching("100/minute", remote, slice="50%")
    other = sliced("100/minute", remote, slice=None)
    for _ in range(8):
        limiter.hit("k")
    while other.hit("k"):
        pass
    assert not limiter.hit("k", cost=50)
    assert sum(limiter.hit("k").allowed for _ in range(20)) == 7


def test_listeners_receive_repeated_denials(remote: RemoteStorage) -> None:
    heard: list[Any] = []
    limiter = caching("5/minute", remote, listeners=[heard.append])
    for _ in range(9):
        limiter.hit("k")
    assert [event.decision.allowed for event in heard if isinstance(event, Decided)] == [True] * 5 + [False] * 4
    assert len(remote.trips) == 6


def test_tasks_repeat_denials_too(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = AsyncLimiter("5/minute", storage=remote, deny_cache=True)
    by_clock(limiter._decider, clock)
    clock.now += 1

    async def hits() -> list[bool]:
        return [(await limiter.hit("k")).allowed for _ in range(9)]

    assert asyncio.run(hits()) == [True] * 5 + [False] * 4
    assert len(remote.trips) == 6


def test_denials_are_bounded_and_forgotten() -> None:
    clock = FakeClock()
    cache = DenyCache(clock)
    clock.now += 1
    limits = (Limit(5, 60 * SECOND, deny_cache=True),)
    row = (False, 0, 30 * SECOND, 60 * SECOND, 0, clock.now, 0, 0, None)
    for number in range(MAX_DENIALS + 5):
        cache.note(((f"k{number}", limits, 1, None, None),), [row], clock.now)
    assert cache.denials == MAX_DENIALS
    assert cache.spend((("k0", limits, 1, None, None),)) is not None
    assert cache.spend(((f"k{MAX_DENIALS}", limits, 1, None, None),)) is None
    clock.now += 2 * SECOND
    assert cache.spend((("k0", limits, 1, None, None),)) is None
    clock.now += 2 * SECOND
    assert cache.spend((("k0", limits, 1, None, None),)) is None
    assert cache.denials == 0


def test_many_changes_end_all_denials() -> None:
    clock = FakeClock()
    cache = DenyCache(clock)
    clock.now += 1
    limits = (Limit(5, 60 * SECOND, deny_cache=True),)
    group = (("k", limits, 1, None, None),)
    cache.note(group, [(False, 0, None, 60 * SECOND, 0, clock.now, 0, 0, None)], clock.now)
    assert cache.spend(group) is not None
    for number in range(MAX_DENIALS + 1):
        cache.changed(((f"other{number}", limits, 1, None, None),))
    assert cache.spend(group) is None


@pytest.mark.parametrize(
    ("limits", "given", "reason"),
    [
        ("3 concurrent", True, "deny_cache is for rates and quotas that deny, and not for '3 concurrent'"),
        ("100/minute; 3 strikes/hour block 5 minutes", True, "not for '3 strikes/hour block 5 minutes'"),
        ("20 distinct account/hour", True, "not for '20 distinct account/hour'"),
        ("10/minute burst 5 leaky-bucket", True, "not for '10/minute burst 5 leaky-bucket'"),
        ("100/minute", 1, "deny_cache must be True or False, not 1"),
    ],
)
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_what_cannot_have_a_deny_cache_is_refused_at_construction(
    kind: Any, limits: str, given: Any, reason: str
) -> None:
    with pytest.raises(InvalidLimit, match=reason):
        kind(limits, deny_cache=given)
