"""What a server says about its limits: the checks never blame one that tells the truth."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratebound.http.quota import Quota
from ratebound.kernels.packing import unpacked
from ratebound.limit import ALGORITHMS, BUCKETS, Limit
from ratebound.loadtest.answer import Answer
from ratebound.loadtest.bounds import Span
from ratebound.loadtest.check import FAIL, LoadCheck
from ratebound.loadtest.expected_limit import can_be_meant
from ratebound.loadtest.judge import REFUSED
from ratebound.loadtest.truthful import ClientAnswers, truthful_checks
from ratebound.notation import parse_limit
from tests.loadtest.honest_servers import decide, decide_with_begun_windows, seen

SECOND = 1_000_000


def answered(limit: Limit, requests: Sequence[tuple[int, int, int]]) -> list[Answer]:
    """What an honest server answers to requests: (before, instant, after) of the decision, in microseconds."""
    state = unpacked(limit.numbers, None)
    answers = []
    for before, instant, after in requests:
        row = state.spend(limit.numbers, instant, 1, None, 0)
        quota = Quota("limit", limit.burst, row[1], math.ceil(limit.refill_us / SECOND), math.ceil(row[3] / SECOND))
        sent, done = (instant - before) / SECOND, (instant + after) / SECOND
        wait = None if row[0] or row[2] is None else float(math.ceil(row[2] / SECOND))
        answers.append(Answer(0, sent, sent, done, 200 if row[0] else 429, "", wait, (quota,)))
    return answers


def checked(answers: Sequence[Answer], limit: Limit) -> dict[str, LoadCheck]:
    checks = truthful_checks([ClientAnswers(0, answers, REFUSED, 1e-6)], [limit])
    return {check.name: check for check in checks}


@settings(max_examples=200)
@given(st.data())
def test_true_headers_are_never_called_false(data: st.DataObject) -> None:
    algorithm = data.draw(st.sampled_from(ALGORITHMS))
    count = data.draw(st.integers(1, 8))
    burst = data.draw(st.integers(1, 8)) if algorithm in BUCKETS else 0
    limit = Limit(count, data.draw(st.sampled_from([SECOND, 3 * SECOND, 1_700_000])), burst, algorithm)
    widths = st.one_of(st.integers(1, 100), st.integers(1, SECOND))
    now, requests = data.draw(st.integers(0, SECOND)), []
    for gap in data.draw(st.lists(st.one_of(st.integers(0, 1000), st.integers(0, 4 * SECOND)), max_size=50)):
        now += gap
        requests.append((data.draw(widths), now, data.draw(widths)))
    failed = [check for check in checked(answered(limit, requests), limit).values() if check.outcome == FAIL]
    assert not failed


@settings(max_examples=200)
@given(st.data())
def test_headers_that_round_a_window_may_be_meant(data: st.DataObject) -> None:
    """The window is told in whole seconds, and without its algorithm."""
    algorithm = data.draw(st.sampled_from(ALGORITHMS))
    period = data.draw(st.sampled_from([1_500_000, 2 * SECOND, 2_900_000]))
    limit = Limit(data.draw(st.integers(1, 8)), period, 0, algorithm)
    now, instants = data.draw(st.integers(0, SECOND)), []
    for gap in data.draw(st.lists(st.one_of(st.integers(0, 1000), st.integers(0, SECOND)), min_size=1, max_size=50)):
        instants.append(now := now + gap)
    answers = decide([limit], instants, data.draw(st.integers(0, period)))
    if data.draw(st.booleans()):
        answers = decide_with_begun_windows(limit.count, period, instants)
    told = Quota("limit", limit.burst, 0, math.ceil(limit.refill_us / SECOND))
    assert can_be_meant([told], seen([Span(now - 500, now + 500) for now in instants], answers))


def test_a_window_of_one_and_a_half_seconds_is_told_as_two() -> None:
    drawn = random.Random(2)
    count, now, instants = drawn.choice([3, 5, 20]), 0, []
    limit = Limit(count, 1_500_000, 0, "fixed-window")
    while now < 9 * SECOND:  # bursts
        instants += [now + k * 2000 for k in range(drawn.randint(1, 30))]
        now += drawn.choice([300_000, 900_000, 1_100_000, 1_600_000])
    spans = [Span(now - 500, now + 500) for now in instants]
    assert can_be_meant([Quota("limit", count, 0, 2)], seen(spans, decide([limit], instants)))


def plain_answers(text: str = "3/5 seconds sliding-log") -> tuple[Limit, list[Answer]]:
    """Twelve requests at intervals of half a second, answered in 1 ms."""
    limit = parse_limit(text)
    return limit, answered(limit, [(500, number * SECOND // 2 + 1000, 500) for number in range(12)])


def refusals_changed(answers: list[Answer], **changes: object) -> list[Answer]:
    return [one._replace(**changes) if one.status == 429 else one for one in answers]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"retry_after": None}, "Refusals have Retry-After"),
        ({"retry_after": 1.0}, "Retry-After is long enough"),
        ({"retry_after": 60.0}, "Retry-After is not too long"),
        ({"quotas": (Quota("limit", 3, 0, 5, 0.0),)}, "Resets are in the future"),
        ({"quotas": (Quota("limit", 9, 0, 5, 1.0),)}, "The policy is constant"),
    ],
)
def test_a_lie_fails_its_own_check(changes: dict[str, object], name: str) -> None:
    limit, answers = plain_answers()
    honest = checked(answers, limit)
    assert [check for check in honest.values() if check.outcome == FAIL] == []
    lies = checked(refusals_changed(answers, **changes), limit)
    assert [check.name for check in lies.values() if check.outcome == FAIL] == [name]
    assert lies[name].examples


@pytest.mark.parametrize("told", [0, 1, 3])
def test_remaining_units_that_do_not_fall_are_found(told: int) -> None:
    limit, answers = plain_answers()
    stuck = [one._replace(quotas=(one.quotas[0]._replace(remaining=told),)) for one in answers]
    check = checked(stuck, limit)["The remaining units are true"]
    assert check.outcome == FAIL
    assert "client 0, sent at" in check.examples[0]
