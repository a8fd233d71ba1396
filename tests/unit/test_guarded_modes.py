"""What the guard answers while the storage fails, by the mode of each limit, by node, and when it is reset."""

import logging

import pytest

from ratebound import Decision, InvalidKey, Limit, StorageError, parse_limit
from ratebound.clock import SECOND
from ratebound.limit import ALGORITHMS, Algorithm, Ask, Group
from ratebound.storage.guard.fallback import share_of
from ratebound.testing import FakeClock
from tests.unit.faulty import DOWN, FOREIGN, UNKNOWN, Make, Subject, falling_to


def test_while_all_is_well_the_storage_decides(make: Make) -> None:
    subject = make()
    answers = [subject.hit("a", "2/minute") for _ in range(3)]
    assert [answer.allowed for answer in answers] == [True, True, False]
    assert [answer.degraded for answer in answers] == [None] * 3
    assert subject.left("a", "2/minute") == 0


def test_local_grants_this_process_its_share_and_says_why(make: Make) -> None:
    subject = make(workers=4)
    subject.faulty.error = UNKNOWN
    answers = [subject.hit("a", "10/minute") for _ in range(5)]
    assert [answer.allowed for answer in answers] == [True, True, True, False, False]
    assert {answer.degraded for answer in answers} == {"silent"}
    assert not answers[-1].unavailable
    assert answers[0].remaining == 2


def test_open_allows_all_and_closed_refuses_until_the_next_probe(make: Make) -> None:
    opened, closed = make(failure="open"), make(failure="closed")
    for subject in (opened, closed):
        subject.open_breaker()
    allowed = opened.hit("a", "1/hour")
    assert all(opened.hit("a", "1/hour") for _ in range(5))
    assert (allowed.remaining, allowed.retry_after, allowed.degraded) == (1, 0.0, "silent")
    refused = closed.hit("a", "1/hour")
    assert not refused
    assert refused.unavailable
    assert refused.retry_after is not None
    assert 0.5 <= refused.retry_after <= 1.001
    assert refused.at == closed.clock.now
    closed.clock.advance(refused.retry_after)
    closed.faulty.error = None
    assert closed.hit("a", "1/hour").degraded is None


def test_a_refusal_before_the_breaker_opens_asks_for_a_moment_only(make: Make) -> None:
    subject = make(failure="closed")
    subject.faulty.error = UNKNOWN
    assert subject.hit("a", "1/hour").retry_after == 0.001


def test_raise_lets_the_reason_out_and_the_cause_with_it(make: Make) -> None:
    subject = make(failure="raise")
    subject.faulty.error = OSError("no route")
    for _ in range(5):
        with pytest.raises(StorageError, match="OSError: no route"):
            subject.hit("a", "1/hour")
    subject.come_back()
    assert subject.hit("a", "1/hour")


def test_in_a_group_each_limit_falls_to_its_own(make: Make) -> None:
    subject = make(failure="open", workers=2)
    local, opened = falling_to("local", "4/minute"), falling_to("open", "1/minute")
    closed, raising = falling_to("closed", "9/minute"), falling_to("raise", "9/minute")
    subject.faulty.error = UNKNOWN
    refused = subject.hit("a", local, closed, opened)
    assert [outcome.allowed for outcome in refused.outcomes] == [True, False, True]
    assert refused.unavailable
    with pytest.raises(StorageError, match="silent"):
        subject.hit("a", local, closed, raising)
    answers = [subject.hit("a", opened, local) for _ in range(3)]
    assert [answer.allowed for answer in answers] == [True, True, False], "refused groups charged nothing"
    assert [outcome.allowed for outcome in answers[2].outcomes] == [True, False]
    assert not answers[2].unavailable
    both = subject.hit("a", local, closed)
    assert not both.unavailable, "the client's own share is used up as well"


def test_local_limits_of_a_group_are_charged_together_or_not_at_all(make: Make) -> None:
    subject = make()
    subject.faulty.error = UNKNOWN
    group: Group = [
        ("ip", (parse_limit("9/minute"),), 1, None, None),
        ("user", (parse_limit("1/minute"),), 1, None, None),
    ]
    assert [subject.decide(group).allowed for _ in range(3)] == [True, False, False]
    assert subject.hit("ip", "9/minute", mode="peek").remaining == 8


def test_a_peek_in_an_outage_changes_nothing(make: Make) -> None:
    subject = make()
    subject.open_breaker(DOWN)
    owed = len(subject.guard.fallback.debts)
    assert [subject.hit("a", "1/minute", mode="peek").allowed for _ in range(3)] == [True] * 3
    assert len(subject.guard.fallback.debts) == owed
    assert subject.hit("a", "1/minute")
    assert not subject.hit("a", "1/minute", mode="peek")


def test_a_storage_that_comes_and_goes_hands_out_no_fresh_shares(make: Make) -> None:
    subject = make(write_back=False)
    for expected in (True, False, False):
        subject.open_breaker()
        assert subject.hit("a", "1/hour").allowed is expected
        subject.come_back()


def test_after_three_outages_the_storage_is_left_alone_but_for_one_probe_at_a_time(make: Make) -> None:
    subject = make()
    subject.faulty.error = UNKNOWN
    for _ in range(20):
        subject.hit("a", "100/minute")
    assert len(subject.faulty.calls) == 3
    for probes in (4, 5):
        subject.clock.advance(1)
        for _ in range(5):
            subject.hit("a", "100/minute")
        assert len(subject.faulty.calls) == probes
    subject.faulty.error = None
    subject.clock.advance(1)
    assert subject.hit("a", "100/minute").degraded is None


def test_a_foreign_value_degrades_that_decision_and_nothing_else(make: Make) -> None:
    subject = make()
    subject.faulty.error = FOREIGN
    assert [subject.hit("a", "100/minute").degraded for _ in range(10)] == ["a foreign value"] * 10
    assert len(subject.faulty.calls) == 10
    assert subject.guard.breaker("").calm
    assert not len(subject.guard.fallback.debts), "it would be refused again"


def test_a_bug_in_a_storage_is_an_outage_and_logged_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    subject = make()
    subject.faulty.error = ZeroDivisionError("oops")
    with caplog.at_level(logging.ERROR, "ratebound"):
        answers = [subject.hit("a", "100/minute") for _ in range(5)]
    assert all(answers)
    assert answers[0].degraded == "the storage failed (ZeroDivisionError: oops)"
    assert len([record for record in caplog.records if record.exc_info]) == 1
    assert not subject.guard.breaker("").closed


def test_a_mistake_of_the_caller_is_told_and_not_counted(make: Make) -> None:
    subject = make()
    subject.faulty.error = InvalidKey("too long")
    for _ in range(5):
        with pytest.raises(InvalidKey):
            subject.hit("a", "1/minute")
    assert subject.guard.breaker("").calm


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stop_from_outside_passes(clock: FakeClock, stop: type[BaseException]) -> None:
    subject = Subject("inline", clock)
    subject.faulty.error = stop()
    with pytest.raises(stop):
        subject.hit("a", "1/minute")
    assert subject.guard.breaker("").calm


def test_a_cost_above_the_share_but_not_the_limit_may_come_again(make: Make) -> None:
    subject = make(workers=4)
    subject.open_breaker()
    assert subject.hit("a", "10/minute", cost=5).retry_after is not None
    assert subject.hit("a", "10/minute", cost=11).retry_after is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_share_is_rounded_up_and_keeps_the_scope(algorithm: Algorithm) -> None:
    limit = Limit(10, SECOND, algorithm=algorithm)
    assert [(share.count, share.burst) for share in (share_of(limit, n) for n in (1, 3, 4, 100))] == [
        (10, 10),
        (4, 4),
        (3, 3),
        (1, 1),
    ]
    named = Limit(10, SECOND, algorithm=algorithm, name="login")
    assert {share_of(limit, n).scope for n in (1, 3)} == {limit.scope}
    assert share_of(named, 3).scope == named.scope


def test_the_share_of_the_deepest_bucket_there_is_can_be_kept_exactly() -> None:
    year = 365 * 86_400 * SECOND
    assert share_of(Limit(11, 10 * year, 110, "gcra"), 10).burst == 11
    assert share_of(Limit(20, 10 * year, 191, "gcra"), 19).burst == 11
    assert share_of(Limit(50_000, SECOND, algorithm="sliding-log", large=True), 2).count == 25_000


# Nodes


def test_each_node_has_a_breaker_and_the_others_go_on(make: Make) -> None:
    subject = make(nodes=True)
    subject.faulty.error, subject.faulty.broken = UNKNOWN, "east"
    for _ in range(5):
        assert subject.hit("east:1", "100/hour").degraded
        assert subject.hit("west:1", "100/hour").degraded is None
    assert not subject.guard.breaker("east").closed
    assert subject.guard.breaker("west").calm
    limit = (parse_limit("100/hour"),)
    groups: list[Group] = [((key, limit, 1, None, None),) for key in ("west:2", "east:2", "west:2", "east:1")]
    answers = [
        Decision(group, rows) for group, rows in zip(groups, subject.storage.evaluate(groups, "spend"), strict=True)
    ]
    assert [bool(answer.degraded) for answer in answers] == [False, True, False, True]
    assert [answer.remaining for answer in answers] == [99, 99, 98, 94]
    both: Group = [("east:1", limit, 1, None, None), ("west:1", limit, 1, None, None)]
    assert subject.decide(both).degraded
    subject.clock.advance(1)
    subject.faulty.error = None
    assert subject.decide(both).degraded is None
    subject.finish_writing()
    assert subject.left("east:2", "100/hour") == 99


def test_two_nodes_that_fail_in_one_call_count_each_for_itself(make: Make) -> None:
    subject = make(nodes=True)
    subject.faulty.error, subject.faulty.broken = UNKNOWN, "east"
    limit = (parse_limit("100/hour"),)
    groups: list[Group] = [((key, limit, 1, None, None),) for key in ("west:2", "east:2", "north:1")]
    for _ in range(3):
        rows = subject.storage.evaluate(groups, "spend")
        answers = [Decision(group, each) for group, each in zip(groups, rows, strict=True)]
        assert [bool(answer.degraded) for answer in answers] == [False, True, False]
    assert [subject.guard.breaker(node).closed for node in ("west", "east", "north")] == [True, False, True]


def test_groups_that_share_a_node_are_answered_in_order(make: Make) -> None:
    subject = make(nodes=True)
    limit = (parse_limit("3/hour"),)

    def ask(key: str) -> Ask:
        return key, limit, 1, None, None

    groups: list[Group] = [[ask("a:1")], [ask("a:1"), ask("b:1")], [ask("a:1")], [ask("c:1")]]
    rows = subject.storage.evaluate(groups, "spend")
    assert [each[0][1] for each in rows] == [2, 1, 0, 2]


# Reset


def test_a_reset_in_an_outage_is_done_here_and_says_that_the_storage_was_not_told(make: Make) -> None:
    subject = make(failure="open")
    local = falling_to("local", "1/hour")
    subject.open_breaker()
    group: Group = (("a", (local,), 1, None, None),)
    assert subject.decide(group)
    assert not subject.decide(group)
    with pytest.raises(StorageError):
        subject.storage.reset(group)
    assert subject.faulty.resets == 0
    assert subject.decide(group)
    subject.come_back()
    subject.storage.reset(group)
    assert subject.faulty.resets == 1
    assert subject.left("a", local) == 1


def test_a_reset_that_fails_counts_as_an_outage(make: Make) -> None:
    subject = make()
    subject.faulty.error = UNKNOWN
    group: Group = (("a", (parse_limit("1/hour"),), 1, None, None),)
    for _ in range(3):
        with pytest.raises(StorageError, match="silent"):
            subject.storage.reset(group)
    assert not subject.guard.breaker("").closed
