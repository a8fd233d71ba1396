"""Usage of limits, and units that are granted on top of a quota."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratebound import AsyncLimiter, InvalidCost, InvalidKey, InvalidLimit, Limiter, StorageError, Usage
from ratebound.limit import Failure
from ratebound.testing import FakeClock, limiting_off
from tests.limiters import limiter_of
from tests.unit.faulty import DOWN, Faulty, Prompt

NOVEMBER_14 = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)  # where the clock stands


def only(usages: list[Usage]) -> Usage:
    (usage,) = usages
    return usage


def test_usage_of_a_calendar_quota_ends_with_the_month_even_if_nothing_was_spent(clock: FakeClock) -> None:
    limiter = limiter_of("10/calendar-month as monthly", clock)
    found = only(limiter.usage("user:42"))
    assert found == Usage("monthly", limiter.limits[0], 10, 0, 10, datetime(2023, 12, 1, tzinfo=UTC), previous=0)
    limiter.hit("user:42", cost=3)
    assert only(limiter.usage("user:42")) == found._replace(used=3, remaining=7)
    assert only(limiter.usage("user:43")) == found


def test_the_end_of_a_window_is_that_of_its_time_zone(clock: FakeClock) -> None:
    limiter = limiter_of("10/calendar-month in Europe/Berlin from 15", clock)
    assert only(limiter.usage("a")).resets_at == datetime(2023, 11, 14, 23, tzinfo=UTC)


def test_while_limiting_is_off_a_grant_is_checked_and_changes_nothing(clock: FakeClock) -> None:
    broken = Prompt(clock)
    broken.error = DOWN
    with limiting_off():
        assert only(Limiter("10/calendar-day", storage=broken).grant("a", 5)).granted == 0
        assert only(asyncio.run(AsyncLimiter("10/calendar-day", storage="redis://127.0.0.1:1").grant("a", 5))).used == 0
        limiter = limiter_of("10/calendar-day", clock)
        limiter.grant("a", 5)
        with pytest.raises(InvalidCost):
            limiter.grant("a", 0)
    assert only(limiter.usage("a")).granted == 0


def test_usage_charges_nothing(clock: FakeClock) -> None:
    limiter = limiter_of("2/calendar-day; 2/minute; 1 concurrent", clock)
    for _ in range(5):
        limiter.usage("a")
    assert limiter.hit("a")


def test_usage_has_the_limits_in_order(clock: FakeClock) -> None:
    limiter = limiter_of("5/second burst 8; 3/minute; 4/hour fixed-window; 2 concurrent; 9/calendar-day", clock)
    limiter.hit("a")
    found = limiter.usage("a")
    assert [usage.limit for usage in found] == list(limiter.limits)
    assert [(usage.quota, usage.used, usage.remaining) for usage in found] == [
        (8, 1, 7),
        (3, 1, 2),
        (4, 1, 3),
        (2, 1, 1),
        (9, 1, 8),
    ]
    assert [usage.previous for usage in found] == [None, None, None, None, 0]


def test_a_rate_resets_when_it_is_full_again_and_now_if_it_is_untouched(clock: FakeClock) -> None:
    limiter = limiter_of("60/minute burst 10", clock)
    assert only(limiter.usage("a")).resets_at == NOVEMBER_14
    limiter.hit("a", cost=4)
    assert only(limiter.usage("a")).resets_at == NOVEMBER_14 + timedelta(seconds=4)


def test_a_metered_quota_shows_more_than_it_allows_and_the_window_before(clock: FakeClock) -> None:
    limiter = limiter_of("10/calendar-day over allow", clock)
    limiter.hit("a", cost=25)
    assert only(limiter.usage("a"))[2:5] == (10, 25, 0)
    clock.advance(timedelta(days=1))
    found = only(limiter.usage("a"))
    assert (found.used, found.remaining, found.previous) == (0, 10, 25)
    clock.advance(timedelta(days=1))
    assert only(limiter.usage("a")).previous == 0


def test_a_full_quota_shows_all_of_it(clock: FakeClock) -> None:
    limiter = limiter_of("2/calendar-day", clock)
    while limiter.hit("a"):
        pass
    assert only(limiter.usage("a"))[2:5] == (2, 2, 0)


def test_slots_show_how_many_are_held(clock: FakeClock) -> None:
    limiter = limiter_of("3 concurrent for 10 minutes", clock)
    limiter.hit("a")
    limiter.hit("a")
    found = only(limiter.usage("a"))
    assert (found.quota, found.used, found.remaining) == (3, 2, 1)
    assert found.resets_at == NOVEMBER_14 + timedelta(minutes=10)


def test_granted_units_can_be_spent_in_this_window_only(clock: FakeClock) -> None:
    limiter = limiter_of("2/calendar-day", clock)
    assert limiter.hit("a", cost=2)
    found = only(limiter.grant("a", 3))
    assert (found.quota, found.used, found.remaining, found.granted) == (5, 2, 3, 3)
    assert [bool(limiter.hit("a")) for _ in range(4)] == [True, True, True, False]
    assert not limiter.hit("b", cost=3)
    clock.advance(timedelta(days=1))
    found = only(limiter.usage("a"))
    assert (found.quota, found.used, found.granted, found.previous) == (2, 0, 0, 5)


def test_grants_add_up_and_a_reset_forgets_them(clock: FakeClock) -> None:
    limiter = limiter_of("2/calendar-day", clock)
    limiter.grant("a", 3)
    assert only(limiter.grant("a", 4)).quota == 9
    limiter.reset("a")
    assert only(limiter.usage("a")).quota == 2


def test_a_grant_adds_to_quotas_and_to_nothing_else(clock: FakeClock) -> None:
    limiter = limiter_of("2/minute; 2/calendar-day as daily; 5/calendar-month as monthly", clock)
    assert [usage.quota for usage in limiter.grant("a", 10)] == [2, 12, 15]
    assert [usage.quota for usage in limiter.grant("a", 1, name="monthly")] == [2, 12, 16]


def test_a_metered_window_can_be_granted_units(clock: FakeClock) -> None:
    limiter = limiter_of("2/hour fixed-window over allow", clock)
    limiter.grant("a", 3)
    assert limiter.hit("a", cost=7).overage == 2


def test_a_grant_without_a_quota_raises_with_an_example(clock: FakeClock) -> None:
    with pytest.raises(InvalidLimit, match="'10000/calendar-month'"):
        limiter_of("2/minute", clock).grant("a", 1)
    with pytest.raises(InvalidLimit, match="no quota is named 'yearly': expected one of daily"):
        limiter_of("2/calendar-day as daily; 3/minute as yearly", clock).grant("a", 1, name="yearly")


@pytest.mark.parametrize("units", [0, -5, 1.5, "7", True, None, 10**12 + 1])
def test_a_grant_takes_a_positive_whole_number(units: Any, clock: FakeClock) -> None:
    limiter = limiter_of("2/calendar-day", clock)
    with pytest.raises(InvalidCost, match="units must be a whole number from 1"):
        limiter.grant("a", units)
    assert only(limiter.usage("a")).quota == 2


def test_a_key_that_is_no_text_raises(clock: FakeClock) -> None:
    limiter: Any = limiter_of("2/calendar-day", clock)
    for call in (lambda: limiter.usage(42), lambda: limiter.grant(42, 1)):
        with pytest.raises(InvalidKey, match="key must be text"):
            call()


def test_tasks_see_the_same_usage(clock: FakeClock) -> None:
    sync = limiter_of("2/calendar-day; 3/minute", clock)
    tasks = AsyncLimiter("2/calendar-day; 3/minute", storage=sync.storage)

    async def ask() -> None:
        granted = await tasks.grant("a", 5)
        await tasks.hit("a")
        assert granted == [
            usage._replace(used=0, remaining=usage.quota, resets_at=before.resets_at)
            for usage, before in zip(sync.usage("a"), granted, strict=True)
        ]
        assert await tasks.usage("a") == sync.usage("a")

    asyncio.run(ask())


@pytest.mark.parametrize("kind", [Faulty, Prompt])
@pytest.mark.parametrize("failure", ["local", "open", "closed", "raise"])
def test_a_grant_raises_in_every_failure_mode_if_the_storage_is_down(
    kind: type[Faulty], failure: Failure, clock: FakeClock
) -> None:
    storage = kind(clock)
    with Limiter("2/calendar-day", storage=storage, failure=failure) as limiter:
        storage.error = DOWN
        with pytest.raises(StorageError, match="down"):
            limiter.grant("a", 3)
        storage.error = None
        assert only(limiter.usage("a")).granted == 0


@pytest.mark.parametrize("failure", ["local", "open", "closed"])
def test_usage_says_that_it_was_found_without_the_storage(failure: Failure, clock: FakeClock) -> None:
    storage = Prompt(clock)
    with Limiter("2/calendar-day; 3/minute", storage=storage, failure=failure) as limiter:
        limiter.hit("a")
        storage.error = DOWN
        found = limiter.usage("a")
        assert [usage.degraded for usage in found] == ["down", "down"]
        assert [usage.previous for usage in found] == [None, None]
        assert all(usage.used == usage.quota - usage.remaining for usage in found)
        storage.error = None


def test_usage_raises_if_the_failure_mode_says_so(clock: FakeClock) -> None:
    storage = Prompt(clock)
    with Limiter("2/calendar-day", storage=storage, failure="raise") as limiter:
        storage.error = DOWN
        with pytest.raises(StorageError, match="down"):
            limiter.usage("a")
        storage.error = None


def test_distinct_values_show_how_many_are_counted_and_none_of_them(clock: FakeClock) -> None:
    limiter = limiter_of("3 distinct account/hour as accounts", clock)
    for account in ("alice", "bob", "alice"):
        limiter.hit("a", values={"account": account})
    found = only(limiter.usage("a"))
    assert (found.quota, found.used, found.remaining, found.blocked) == (3, 2, 1, False)
    assert found.resets_at == NOVEMBER_14 + timedelta(hours=1)
    assert "alice" not in repr(found)
    limiter.hit("a", values={"account": "carol"})
    assert (only(limiter.usage("a")).used, only(limiter.usage("a")).remaining) == (3, 0)
    limiter.reset("a")
    assert only(limiter.usage("a")).used == 0


def test_a_penalty_shows_its_strikes_and_until_when_it_blocks(clock: FakeClock) -> None:
    limiter = limiter_of("1/day; 2 strikes/hour block 5 minutes then 1 hour as guessing", clock)
    limiter.hit("a")
    assert (limiter.usage("a")[1].used, limiter.usage("a")[1].resets_at) == (0, NOVEMBER_14)
    limiter.hit("a")
    struck = limiter.usage("a")[1]
    assert (struck.name, struck.quota, struck.used, struck.remaining, struck.blocked) == ("guessing", 2, 1, 1, False)
    assert struck.resets_at == NOVEMBER_14 + timedelta(hours=1)
    clock.now += 1_000_000
    limiter.hit("a")
    blocked = limiter.usage("a")[1]
    assert (blocked.used, blocked.remaining, blocked.blocked) == (2, 0, True)
    assert blocked.resets_at == NOVEMBER_14 + timedelta(minutes=5, seconds=1)
    clock.now += 300_000_000
    after = limiter.usage("a")[1]
    assert (after.used, after.blocked) == (0, False)
    assert after.resets_at == NOVEMBER_14 + timedelta(days=7, minutes=5, seconds=1), "then it forgets the block"
    limiter.reset("a")
    assert limiter.usage("a")[1].resets_at == NOVEMBER_14 + timedelta(minutes=5, seconds=1)
