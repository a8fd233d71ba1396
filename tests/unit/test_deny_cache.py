"""The deny cache: which denials are repeated here, and for how long. With a fake clock and trips that are noted."""

import asyncio
import os
from typing import Any

import pytest

from ratebound import AsyncLimiter, Check, InvalidLimit, Limit, Limiter, MemoryStorage, parse_limit
from ratebound.deny_cache import MAX_DENIALS, DenyCache
from ratebound.events import Decided
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


def test_times_count_down_from_before_the_trip(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = caching("5/minute", remote)
    for _ in range(5):
        limiter.hit("k")
    remote.delay_us = 100_000
    denied = limiter.hit("k")
    assert denied.retry_after == 59.9
    clock.advance(0.3)
    again = limiter.hit("k")
    assert again.retry_after == pytest.approx(59.9 - 0.5)
    assert again.reset_after == pytest.approx(59.9 - 0.5)
    assert again.at == denied.at + 500_000
    remote.delay_us = 450_000
    clock.advance(1)
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


def test_a_limit_of_the_group_that_no_longer_denies_is_said_to_allow(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = caching("5/minute; 6/2 minutes", remote)
    limiter.hit("k")
    clock.advance(59.8)
    for _ in range(4):
        limiter.hit("k")
    first = limiter.hit("k", cost=2)
    assert [outcome.allowed for outcome in first.outcomes] == [False, False]
    clock.advance(0.3)
    before = len(remote.trips)
    again = limiter.hit("k", cost=2)
    assert len(remote.trips) == before
    assert [outcome.allowed for outcome in again.outcomes] == [False, False]


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
