"""Quotas and slots while the storage is out of reach: what is granted, and what the storage learns of it afterwards."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from ratebound import Decision, Limit, StorageError, parse_limit
from ratebound.events import Recovered
from ratebound.limit import GRANT, NOT_GIVEN, Ask, Failure, Group, Mode
from ratebound.outcome import Row
from ratebound.settling import undoing
from ratebound.slots import slots_of
from ratebound.storage.guard.fallback import share_of
from ratebound.testing import instant, slot
from tests.unit.faulty import DOWN, FOREIGN, UNKNOWN, Make, Subject

THREE = parse_limit("3 concurrent")
MONTH = parse_limit("7305/calendar-month")  # ten an hour, on average
HOUR = 3_600


def falling(failure: Failure, text: str) -> Limit:
    limit = parse_limit(text)
    return Limit(
        limit.count,
        limit.period_us,
        algorithm=limit.algorithm,
        name=failure,
        failure=failure,
        calendar=limit.calendar,
        over=limit.over,
    )


def take(subject: Subject, number: int, *limits: Limit, key: str = "a") -> Decision:
    asked = limits or (THREE,)
    group: Group = [(key, asked, 1, None, [slot(number) if limit.has_slots else NOT_GIVEN for limit in asked])]
    return subject.decide(group)


def force(subject: Subject, number: int, sign: int, limit: Limit = THREE) -> Decision:
    return subject.decide([("a", (limit,), sign, None, [slot(number)])], "force")


def held(subject: Subject, limit: Limit = THREE, key: str = "a") -> set[int]:
    """The slots that the storage itself holds."""
    return {holder[0] for holder in subject.faulty.memory.holders(key, limit)}


def used(subject: Subject, limit: Limit, key: str = "a") -> int:
    """The units that the storage itself has counted in this window."""
    ask: Ask = (key, (limit,), 1, None, None)
    return subject.faulty.memory.evaluate(((ask,),), "peek")[0][0][7]


@contextmanager
def writing_back(subject: Subject) -> Iterator[Callable[[], object]]:
    """The storage is back, and a write-back is on its way. It arrives when the function is called."""
    subject.guard.write_back = False
    subject.come_back()
    subject.guard.write_back = subject.guard._due = True
    flow = subject.guard.begin_write_back(None)
    assert flow is not None
    groups = flow.send(None)
    yield partial(subject.faulty.memory.evaluate, groups, "force")
    with suppress(StopIteration):
        flow.send(None)


# Quotas


def test_a_calendar_quota_is_granted_at_its_average_rate_with_an_hours_burst(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    assert [subject.hit("a", MONTH).allowed for _ in range(11)] == [True] * 10 + [False]
    subject.clock.advance(HOUR)
    assert [subject.hit("a", MONTH).allowed for _ in range(11)] == [True] * 10 + [False]
    denied = subject.hit("a", MONTH)
    assert denied.degraded
    assert denied.retry_after is not None
    assert 0 < denied.retry_after <= HOUR / 10 + 1


@pytest.mark.parametrize(
    ("text", "workers", "count", "burst"),
    [
        ("7305/calendar-month", 1, 7305, 10),
        ("7305/calendar-month", 4, 1827, 2),
        ("10/calendar-year", 1, 10, 1),
        ("10/calendar-day in Asia/Tokyo", 20, 1, 1),
        ("2400/calendar-day as daily", 1, 2400, 100),
    ],
)
def test_the_share_of_a_quota_is_at_least_one(text: str, workers: int, count: int, burst: int) -> None:
    limit = parse_limit(text)
    share = share_of(limit, workers)
    assert (share.count, share.burst, share.period_us) == (count, burst, limit.period_us)
    assert share_of(limit, workers).scope == share.scope
    assert share.scope != Limit(count, limit.period_us, burst, "token-bucket").scope
    assert share.scope != share_of(parse_limit("5/calendar-week"), workers).scope


def test_a_bucket_of_the_same_period_beside_a_quota_has_a_state_of_its_own(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    quota, bucket = parse_limit("240/calendar-day"), parse_limit("240/day burst 3")
    assert [subject.hit("a", quota, bucket).allowed for _ in range(4)] == [True, True, True, False]
    assert [subject.hit("a", quota).allowed for _ in range(8)] == [True] * 7 + [False]


def test_what_was_granted_of_a_quota_is_written_back_in_full(make: Make) -> None:
    """All that was granted in this window, however much of it the local bucket has regained since."""
    subject = make()
    subject.clock.now = instant("2026-05-20T02:00+00:00")
    subject.hit("a", MONTH, cost=5)
    subject.open_breaker(DOWN)
    for _ in range(3):
        assert subject.hit("a", MONTH, cost=10)
        subject.clock.advance(2 * HOUR)
    subject.come_back()
    assert used(subject, MONTH) == 35
    subject.open_breaker()
    subject.come_back()
    assert used(subject, MONTH) == 35, "once"


def test_what_was_granted_in_a_window_that_is_over_is_not_written_back(make: Make) -> None:
    subject = make()
    day = parse_limit("240/calendar-day")
    subject.clock.now = instant("2026-05-20T20:00+00:00")
    subject.open_breaker(DOWN)
    assert subject.hit("a", day, cost=10)
    subject.clock.advance(5 * HOUR)
    assert subject.hit("a", day, cost=4)
    subject.come_back()
    assert used(subject, day) == 4


@pytest.mark.parametrize("text", ["3/calendar-month over allow", "3/hour fixed-window over allow"])
def test_a_metered_quota_allows_everything_and_is_written_back_in_full(make: Make, text: str) -> None:
    subject = make(workers=4)
    limit = parse_limit(text)
    subject.hit("a", limit, cost=2)
    subject.open_breaker()
    decisions = [subject.hit("a", limit, cost=2) for _ in range(4)]
    assert all(decisions)
    assert [decision.overage for decision in decisions] == [0, 1, 2, 2], "as far as this process knows"
    subject.come_back()
    assert used(subject, limit) == 10


def test_a_degraded_decision_of_a_quota_is_settled_here_and_in_what_is_owed(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    decision = subject.hit("a", MONTH, cost=8)
    assert not subject.hit("a", MONTH, cost=3)
    assert subject.settle(decision, 2).remaining == 8
    assert subject.settle(subject.hit("a", MONTH, cost=3), 4).remaining == 4
    peeked = subject.hit("a", MONTH, mode="peek").outcomes[0]
    assert (peeked.given, peeked.part, peeked.ahead_us) == (0, 6, 0)
    subject.come_back()
    assert used(subject, MONTH) == 6


def test_what_a_quota_says_in_an_outage_has_the_fields_of_a_quota(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    for decision in (
        subject.hit("a", MONTH, cost=7),
        subject.hit("a", MONTH, cost=7),
        subject.settle(subject.hit("a", MONTH), 3),
    ):
        assert decision.overage == 0
        assert all(len(row) == 9 for row in decision.rows)
    reset: Group = (("a", (MONTH,), 1, None, None),)
    with pytest.raises(StorageError):
        subject.storage.reset(reset)
    assert subject.hit("a", MONTH, cost=10), "this process has forgotten the bucket and the counter"


@pytest.mark.parametrize("failure", ["local", "open", "closed", "raise"])
@pytest.mark.parametrize(
    "text", ["100/calendar-day", "100/calendar-day over allow", "100/hour fixed-window over allow"]
)
def test_a_grant_must_reach_the_storage(make: Make, failure: Failure, text: str) -> None:
    subject = make()
    limit = falling(failure, text)
    for error in (DOWN, UNKNOWN):
        subject.faulty.error = error
        for _ in range(5):
            with pytest.raises(StorageError):
                subject.decide([("a", (limit,), 50, None, [GRANT])], "force")
        subject.come_back()
    assert subject.left("a", limit) == 100
    assert subject.decide([("a", (limit,), 50, None, [GRANT])], "force").remaining == 150


@pytest.mark.parametrize("text", ["100/calendar-day", "100/calendar-day over allow", "3 concurrent"])
def test_each_limit_falls_to_its_own_mode(make: Make, text: str) -> None:
    subject = make()
    subject.open_breaker()
    assert take(subject, 1, falling("open", text)).degraded
    closed = take(subject, 1, falling("closed", text))
    assert not closed
    assert closed.unavailable
    with pytest.raises(StorageError, match="silent"):
        take(subject, 1, falling("raise", text))
    subject.come_back()
    assert held(subject, falling("open", text)) == set()


# Slots


def test_slots_of_this_process_count_first_against_its_share(make: Make) -> None:
    """It holds two, which the storage has granted. Its share of six for two workers is three."""
    subject = make(workers=2)
    six = parse_limit("6 concurrent")
    for number in (1, 2):
        assert take(subject, number, six).degraded is None
    subject.open_breaker()
    assert [take(subject, number, six).allowed for number in (3, 4)] == [True, False]
    assert take(subject, 1, six), "one that is held is renewed"
    force(subject, 2, -1, six)
    assert take(subject, 4, six)


def test_a_share_of_slots_is_at_least_one(make: Make) -> None:
    subject = make(workers=8)
    subject.open_breaker()
    assert [take(subject, number).allowed for number in (1, 2)] == [True, False]


def test_slots_that_were_released_or_whose_lease_has_ended_do_not_count(make: Make) -> None:
    subject = make()
    for number in (1, 2, 3):
        take(subject, number)
    force(subject, 1, -1)
    subject.open_breaker()
    assert [take(subject, number).allowed for number in (4, 5)] == [True, False]
    subject.clock.advance(60)
    assert [take(subject, number).allowed for number in (6, 7, 8, 9)] == [True, True, True, False]


@pytest.mark.parametrize("error", [DOWN, UNKNOWN])
def test_a_slot_granted_here_is_held_in_the_storage_after_the_outage(make: Make, error: StorageError) -> None:
    subject = make()
    subject.open_breaker(error)
    for number in (1, 2, 3):
        assert take(subject, number)
    force(subject, 3, -1)
    subject.clock.advance(30)
    force(subject, 2, 1)
    subject.clock.advance(35)  # the lease of the first has ended, the second was renewed
    subject.come_back()
    assert held(subject) == {2}
    assert not len(subject.guard.fallback.debts)


@pytest.mark.parametrize("failure", ["local", "open", "closed", "raise"])
@pytest.mark.parametrize("error", [DOWN, UNKNOWN])
def test_a_release_that_the_storage_missed_is_repeated(make: Make, failure: Failure, error: StorageError) -> None:
    """It raises in no failure mode: the work is done, whatever the storage knows."""
    subject = make()
    limit = falling(failure, "3 concurrent")
    for number in (1, 2):
        assert take(subject, number, limit)
    subject.open_breaker(error)
    assert force(subject, 1, -1, limit).allowed
    assert force(subject, 2, 1, limit).allowed
    assert held(subject, limit) == {1, 2}
    subject.come_back()
    assert held(subject, limit) == {2}


def test_a_release_that_is_repeated_frees_no_slot_that_was_taken_since(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    decision = take(subject, 1)
    subject.come_back()
    assert held(subject) == {1}
    force(subject, 1, -1)
    assert held(subject) == set()
    assert decision.degraded
    subject.open_breaker()
    subject.come_back()
    assert held(subject) == set(), "what was released is not held again"


def test_a_slot_that_the_storage_took_and_that_is_denied_here_is_given_back(make: Make) -> None:
    subject = make(workers=3)
    asking = subject.faulty.evaluate

    def silent(groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        asking(groups, mode)
        raise UNKNOWN

    assert take(subject, 1)
    subject.faulty.evaluate = silent  # type: ignore[method-assign]
    assert not take(subject, 2), "the share is one"
    assert held(subject) == {1, 2}
    subject.faulty.evaluate = asking  # type: ignore[method-assign]
    subject.come_back()
    assert held(subject) == {1}


def test_a_slot_that_the_storage_took_is_given_back_if_its_lost_answer_raises(make: Make) -> None:
    subject = make(failure="raise")
    asking = subject.faulty.evaluate

    def silent(groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        asking(groups, mode)
        raise UNKNOWN

    subject.faulty.evaluate = silent  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        take(subject, 1)
    assert held(subject) == {1}
    subject.faulty.evaluate = asking  # type: ignore[method-assign]
    assert take(subject, 2)
    subject.finish_writing()
    assert held(subject) == {2}


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_slot_that_is_released_while_it_is_written_back_does_not_stay(make: Make, ends_first: bool) -> None:
    subject = make()
    subject.open_breaker()
    take(subject, 1)
    take(subject, 2)
    with writing_back(subject) as write:
        if ends_first:
            write()
        force(subject, 1, -1)
        if not ends_first:
            write()
    subject.come_back()
    assert held(subject) == {2}
    assert not len(subject.guard.fallback.debts)


def test_a_slot_that_is_taken_while_its_release_is_written_back_stays(make: Make) -> None:
    """A waiter names the same slot in all its tries. One of them was denied, and may have taken it in the storage."""
    subject = make(workers=3)
    subject.open_breaker()
    take(subject, 1)
    assert not take(subject, 2), "the share is one"
    force(subject, 2, -1)
    with writing_back(subject) as write:
        assert take(subject, 2)
        write()
    subject.come_back()
    assert held(subject) == {1, 2}


def test_a_release_whose_write_back_is_cut_short_is_repeated(make: Make) -> None:
    """An event loop that ends cancels the call, which may have reached the storage or not."""
    subject = make()
    assert take(subject, 1)
    subject.open_breaker(DOWN)
    force(subject, 1, -1)
    subject.guard.write_back = False
    subject.come_back()
    subject.guard.write_back = subject.guard._due = True
    flow = subject.guard.begin_write_back(None)
    assert flow is not None
    flow.send(None)
    flow.close()
    assert held(subject) == {1}
    subject.hit("b", "5/hour")
    subject.finish_writing()
    assert held(subject) == set()


def test_slots_are_decided_with_the_rates_beside_them_all_or_nothing(make: Make) -> None:
    subject = make()
    rate = parse_limit("2/hour")
    subject.open_breaker()
    assert [take(subject, number, rate, THREE, MONTH).allowed for number in (1, 2, 3)] == [True, True, False]
    assert [take(subject, number).allowed for number in (4, 5)] == [True, False]
    subject.come_back()
    assert held(subject) == {1, 2, 4}
    assert (subject.left("a", rate), used(subject, MONTH)) == (0, 2)


def test_settling_a_degraded_decision_keeps_its_slots_and_undoing_releases_them(make: Make) -> None:
    subject = make()
    rate = parse_limit("9/hour")
    subject.open_breaker()
    settled, undone = take(subject, 1, rate, THREE, MONTH), take(subject, 2, rate, THREE, MONTH)
    subject.settle(settled, 3)
    subject.decide(undoing(undone.asks, undone.rows), "force")
    assert [take(subject, number).allowed for number in (3, 4, 5)] == [True, True, False]
    subject.come_back()
    assert held(subject) == {1, 3, 4}
    assert (subject.left("a", rate), used(subject, MONTH)) == (6, 3)


def test_a_degraded_decision_that_is_undone_after_the_outage_gives_its_slot_back(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    decision = take(subject, 1)
    subject.come_back()
    assert held(subject) == {1}
    subject.decide(undoing(decision.asks, decision.rows), "force")
    subject.hit("b", "5/hour")
    subject.finish_writing()
    assert held(subject) == set()


def test_a_decision_of_the_storage_is_undone_in_an_outage_as_far_as_that_can_be_done(make: Make) -> None:
    subject = make()
    rate = parse_limit("9/hour")
    decision = take(subject, 1, rate, THREE)
    subject.open_breaker()
    subject.decide(undoing(decision.asks, decision.rows), "force")
    assert [take(subject, number).allowed for number in (2, 3, 4, 5)] == [True, True, True, False]
    subject.come_back()
    assert held(subject) == {2, 3, 4}
    assert subject.left("a", rate) == 8, "a refund that the storage missed is lost"


def test_the_slots_of_a_storage_that_answers_no_more_end_with_their_lease(make: Make) -> None:
    """Nothing is kept for a storage that rejects the same again, nor without write-back."""
    subject = make(write_back=False)
    subject.open_breaker()
    take(subject, 1)
    subject.come_back()
    assert held(subject) == set()
    foreign = make()
    foreign.faulty.error = FOREIGN
    assert take(foreign, 1).degraded
    force(foreign, 1, 1)
    assert not len(foreign.guard.fallback.debts)


def test_holding_and_releasing_in_the_storage_is_no_unit_that_was_written_back(make: Make) -> None:
    told: list[Any] = []
    subject = make(listeners=[told.append])
    subject.open_breaker()
    take(subject, 1, THREE, parse_limit("9/hour"))
    take(subject, 2)
    force(subject, 2, -1)
    subject.come_back()
    assert [event.written_back for event in told if isinstance(event, Recovered)] == [1]


def test_slots_on_several_nodes_are_written_to_their_own(make: Make) -> None:
    subject = make(nodes=True, failures=1)
    subject.faulty.error, subject.faulty.broken = DOWN, "east"
    for key in ("east:1", "west:1"):
        take(subject, 1, key=key)
        take(subject, 2, key=key)
        subject.decide([(key, (THREE,), -1, None, [slot(1)])], "force")
    assert (held(subject, key="east:1"), held(subject, key="west:1")) == (set(), {2})
    subject.faulty.error = None
    subject.clock.advance(1)
    assert subject.hit("east:2", "100/hour").degraded is None
    subject.finish_writing()
    assert (held(subject, key="east:1"), held(subject, key="west:1")) == ({2}, {2})


def test_the_slots_of_a_decision_are_released_through_the_guard(make: Make) -> None:
    subject = make()
    decision = take(subject, 7, parse_limit("9/hour"), THREE)
    subject.decide(slots_of(decision.asks, -1), "force")
    assert held(subject) == set()
    subject.open_breaker()
    assert [take(subject, number).allowed for number in (1, 2, 3, 4)] == [True, True, True, False]
