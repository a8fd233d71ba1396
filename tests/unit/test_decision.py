"""Decisions of one limit, of one key and of any group answer alike."""

import copy
import pickle
from typing import Any

import pytest

from ratebound import Check, Limiter, RateLimited, parse_limit, parse_limits
from ratebound.decision import Decision, OneKeyDecision, OneLimitDecision, Plan, StoredRow
from ratebound.limit import Group
from ratebound.outcome import DegradedRows, Outcome, Row
from ratebound.testing import FakeClock
from tests.limiters import limiter_of

SECOND = 1_000_000
LIMITS = parse_limits("5/second; 6/minute; 7/hour")


def allowed(remaining: int, reset_after: int, delay: int = 0) -> Row:
    return (True, remaining, 0, reset_after, delay, 40, 1, 2, 3)


def denied(remaining: int, retry_after: int | None, reset_after: int = SECOND) -> Row:
    return (False, remaining, retry_after, reset_after, 0, 40, 0, 0, None)


def kinds(*rows: Row) -> list[Decision]:
    """Return decisions of every kind that can have these rows: of one key, of several, and of one limit."""
    limits = tuple(LIMITS[: len(rows)])
    is_allowed = all(row[0] for row in rows)
    one_key = OneKeyDecision("k", Plan(limits), 2, [StoredRow(row) for row in rows], is_allowed)
    group: Group = (("k", limits, 2, None, None),)
    several: Group = tuple((f"k{i}", (limit,), 2, None, None) for i, limit in enumerate(limits))
    found = [one_key, Decision(group, rows), Decision(several, list(rows))]
    if len(rows) == 1:
        found.append(OneLimitDecision("k", Plan(limits), 2, rows[0]))
    return found


@pytest.mark.parametrize(
    ("rows", "reported"),
    [
        ([allowed(3, 1)], 0),
        ([denied(3, 7)], 0),
        ([denied(3, None)], 0),
        ([allowed(3, 1), allowed(2, 1), allowed(4, 1)], 1),
        ([allowed(3, 1), allowed(3, 2), allowed(3, 2)], 1),
        ([allowed(3, 2), allowed(3, 1), allowed(4, 9)], 0),
        ([allowed(2, 1), allowed(3, 9)], 0),
        ([allowed(0, 9), denied(5, 1), allowed(0, 9)], 1),
        ([denied(5, 1), allowed(0, 9)], 0),
        ([denied(0, 1), denied(5, 2), denied(0, 2)], 1),
        ([denied(5, 2), denied(0, 1)], 0),
        ([denied(0, 2), denied(1, None), denied(0, 3)], 1),
        ([denied(1, None), denied(0, None), denied(0, 9)], 0),
    ],
)
def test_the_limit_that_is_reported_denies_for_longest_or_is_nearest_to_exhaustion(
    rows: list[Row], reported: int
) -> None:
    for decision in kinds(*rows):
        wait = rows[reported][2]
        assert decision.limit is LIMITS[reported]
        assert decision.remaining == rows[reported][1]
        assert decision.reset_after == rows[reported][3] / SECOND
        assert decision.retry_after == (None if wait is None else wait / SECOND)
        assert decision.allowed is bool(decision) is all(row[0] for row in rows)


def test_every_kind_tells_its_delay_its_instant_its_limits_and_its_outcomes() -> None:
    rows = [allowed(3, 1, 2 * SECOND), allowed(2, 1, 3 * SECOND), allowed(1, 1)]
    for decision in kinds(*rows):
        assert (decision.delay, decision.at) == (3.0, 40)
        assert decision.limits == list(LIMITS)
        assert list(decision.rows) == rows
        assert decision.outcomes == [Outcome(*row) for row in rows]
    for decision in kinds(allowed(3, 1, 2 * SECOND)):
        assert (decision.delay, decision.at) == (2.0, 40)
        assert list(decision.rows) == [allowed(3, 1, 2 * SECOND)]
        assert [ask[1:] for ask in decision.asks] == [((LIMITS[0],), 2, None, None)]


def test_a_denial_has_no_delay_although_another_limit_would_queue_it() -> None:
    for decision in kinds(allowed(3, 1, 2 * SECOND), denied(0, 1)):
        assert decision.delay == 0.0


@pytest.mark.parametrize("text", ["3/second", "3/second; 5/minute"])
def test_a_decision_that_was_pickled_or_copied_is_the_same(text: str, clock: FakeClock) -> None:
    limiter = limiter_of(text, clock)
    decisions = [
        limiter.hit("k", cost=2),
        limiter.check([Check("a", parse_limit("9/hour")), Check("b", limiter.limits)]),
    ]
    for decision in decisions:
        limiter.settle(decision, cost=1)
        assert decision.final
        for other in (pickle.loads(pickle.dumps(decision)), copy.copy(decision), copy.deepcopy(decision)):
            assert repr(other) == repr(decision)
            assert (other.final, other.allowed) == (decision.final, decision.allowed)
            assert list(other.rows) == list(decision.rows)
            assert [ask[:3] for ask in other.asks] == [ask[:3] for ask in decision.asks]


def test_a_decision_is_final_only_after_it_was_settled(clock: FakeClock) -> None:
    limiter = limiter_of("3/second", clock)
    for decision in (*kinds(allowed(1, 1)), limiter.hit("k"), limiter.check(Check("k", limiter.limits))):
        assert decision.final == ""


def test_a_decision_without_the_storage_tells_the_reason() -> None:
    asks: Group = (("k", (LIMITS[0],), 1, None, None),)
    rows = {
        "denied": DegradedRows([denied(0, 1)], "no answer", closed=True),
        "allowed": DegradedRows([allowed(1, 1)], "no answer", closed=True),
        "by the share": DegradedRows([denied(0, 1)], "no answer"),
    }
    told: dict[str, Any] = {name: Decision(asks, each) for name, each in rows.items()}
    assert {name: decision.degraded for name, decision in told.items()} == dict.fromkeys(rows, "no answer")
    assert [name for name, decision in told.items() if decision.unavailable] == ["denied"]
    assert str(RateLimited(told["denied"])).startswith("the storage is out of reach")
    assert str(RateLimited(told["by the share"])).startswith("over the limit 5/second")
    for decision in kinds(denied(0, 1)):
        assert (decision.degraded, decision.unavailable) == (None, False)


def test_a_decision_of_one_key_shows_its_numbers(clock: FakeClock) -> None:
    limiter: Limiter = limiter_of("3/second sliding-log", clock)
    assert repr(limiter.hit("k")) == (
        "Decision(allowed=True, limit='3/second', remaining=2, retry_after=0.0, reset_after=1.0, delay=0.0)"
    )


def test_a_blocked_decision_names_the_penalty_and_waits_for_all(clock: FakeClock) -> None:
    limiter = limiter_of("1/day as daily; 1 strike/hour block 5 minutes as guessing; 5/minute as short", clock)
    limiter.hit("a")
    for _ in range(2):
        decision = limiter.hit("a")
        assert decision.blocked
        assert (decision.limit.name, decision.remaining, decision.retry_after) == ("guessing", 0, 86_400.0)


def test_a_strike_that_does_not_block_leaves_the_limit_that_denies(clock: FakeClock) -> None:
    limiter = limiter_of("1/minute as short; 2 strikes/hour block 5 minutes as guessing", clock)
    assert limiter.hit("a").limit.name == "short"
    decision = limiter.hit("a")
    assert (decision.blocked, decision.limit.name, decision.retry_after) == (False, "short", 60.0)
