"""Verdicts on clients, latencies, fairness and assertions, from answers that the test makes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.clock import SECOND
from ratebound.http.quota import Quota
from ratebound.loadtest.answer import Answer
from ratebound.loadtest.assertion import parse_assertion
from ratebound.loadtest.bounds import ClientSpans, Span
from ratebound.loadtest.check import FAIL, PASS, UNKNOWN
from ratebound.loadtest.fairness import fairness_check, fairness_of
from ratebound.loadtest.judge import EVERYONE, REFUSED, judge_clients, spans_by_client
from ratebound.loadtest.latency import LatencyFigures, latencies_of
from ratebound.notation import parse_limit

LIMIT = parse_limit("3/minute sliding-log")


def answers(statuses: list[int], client: int = 0) -> list[Answer]:
    return [Answer(client, k * 0.1, k * 0.1, k * 0.1 + 0.01, status) for k, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ([200, 200, 200, 429, 429], "exact"),
        ([200, 200, 200, 200, 429], "too many by 1"),
        ([200, 200, 429, 429, 429], "too few by 1"),
        ([404, 204, 301, 429], "exact"),
        ([200, 200, 500, 429, 429], "exact"),  # an error may have been charged
        ([200, 429, 500, 429, 429], "too few by 1"),  # and only once
    ],
)
def test_a_client_is_judged_by_its_answers(statuses: list[int], words: str) -> None:
    (verdict,) = judge_clients([LIMIT], spans_by_client(answers(statuses)))
    assert verdict.words == words
    assert bool(verdict.evidence) == (words != "exact")
    assert verdict.at_least <= verdict.granted <= verdict.at_most or words != "exact"


def test_clients_that_share_a_limit_are_judged_as_one() -> None:
    both = answers([200, 200, 429], client=0) + answers([200, 429, 429], client=1)
    alone = judge_clients([LIMIT], spans_by_client(both))
    assert [(verdict.client, verdict.too_few) for verdict in alone] == [(0, 1), (1, 2)]
    (together,) = judge_clients([LIMIT], spans_by_client(both, shared=True))
    assert (together.client, together.words) == (EVERYONE, "exact")


def test_another_status_can_mean_a_refusal() -> None:
    (verdict,) = judge_clients([LIMIT], spans_by_client(answers([200, 200, 200, 503]), refused=frozenset({503})))
    assert (verdict.granted, verdict.refused, verdict.words) == (3, 1, "exact")


def test_a_limit_that_was_used_before_the_test_may_refuse_at_once() -> None:
    told = [one._replace(quotas=(Quota("limit", 3, 0, 60),)) for one in answers([200, 429])]
    (verdict,) = judge_clients([LIMIT], spans_by_client(told))
    assert verdict.words == "exact"
    fresh = [one._replace(quotas=(Quota("limit", 3, 2, 60),)) for one in answers([200, 429])]
    (verdict,) = judge_clients([LIMIT], spans_by_client(fresh))
    assert verdict.words == "too few by 1"


def test_a_limit_that_was_used_before_the_test_is_noticed_among_requests_at_the_same_time() -> None:
    together = [one._replace(sent=0.0, due=0.0, done=0.05) for one in answers([200, 200, 429])]
    for left, words in ((2, "too few by 1"), (1, "exact")):
        told = [one._replace(quotas=(Quota("limit", 3, left * (k == 1), 60),)) for k, one in enumerate(together)]
        (verdict,) = judge_clients([LIMIT], spans_by_client(told))
        assert verdict.words == words


def test_a_smaller_limit_is_not_explained_by_earlier_use() -> None:
    """The server keeps 3 per minute of the 5 that it tells, and says that 3 are left after the first request."""
    limit = parse_limit("5/minute sliding-log")
    told = [
        one._replace(quotas=(Quota("limit", 5, max(3 - k, 0), 60),))
        for k, one in enumerate(answers([200, 200, 200, 429]))
    ]
    (verdict,) = judge_clients([limit], spans_by_client(told))
    assert verdict.words == "too few by 1"


def test_a_request_that_was_never_sent_is_nobodys_fault() -> None:
    unsent = answers([200, 200, 0, 429])
    unsent[2] = unsent[2]._replace(error="unsent")
    (verdict,) = judge_clients([LIMIT], spans_by_client(unsent))
    assert (verdict.unknown, verdict.words) == (0, "too few by 1")


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200), st.floats(0.001, 1))
def test_a_percentile_is_the_smallest_latency_that_covers_its_share(seconds: list[float], share: float) -> None:
    figures = LatencyFigures(sorted(seconds))
    found = figures.percentile(share)
    assert sum(one <= found for one in seconds) >= share * len(seconds) - 1e-5
    assert sum(one < found for one in seconds) < share * len(seconds) + 1e-5


def test_latencies_count_from_the_due_time_and_are_apart_for_refusals() -> None:
    late = Answer(0, 1.0, 1.5, 1.6, 200)
    figures = latencies_of([late, Answer(0, 2.0, 2.0, 2.1, 429), Answer(0, 0, 0, 9, 0, "timeout")], REFUSED)
    assert figures.granted.percentile(0.5) == pytest.approx(0.6)
    assert figures.refused.figures()["max"] == pytest.approx(0.1)
    assert figures.answered.answers == 2


def test_clients_with_less_demand_are_not_starved() -> None:
    many = [Span(k, k) for k in range(100)]
    seen = {0: ClientSpans(many[:50], many[50:]), 1: ClientSpans(many[:5], []), 2: ClientSpans(many[:40], many[40:])}
    fair = fairness_of(seen)
    assert fairness_check(fair, 3).outcome == PASS
    seen[3] = ClientSpans(many[:10], many[10:])
    unfair = fairness_of(seen)
    assert unfair.starved == (3,)
    assert fairness_check(unfair, 4).outcome == FAIL
    assert fairness_check(unfair, 1).outcome == UNKNOWN


def test_fairness_says_how_even_and_who_got_nothing_for_how_long() -> None:
    at = [Span(second * SECOND, second * SECOND) for second in range(4)]
    unfair = fairness_of({0: ClientSpans(at, []), 1: ClientSpans([at[1]], [at[0], *at[2:]])})
    assert unfair.jain == pytest.approx((1 + 1 / 4) ** 2 / (2 * (1 + 1 / 16)))
    assert (unfair.least, unfair.most, unfair.starved) == (1, 4, (1,))
    assert (unfair.longest_client, unfair.longest_span) == (1, (1.0, 3.0))
    assert "client 1 got nothing between 1.000 s and 3.000 s" in fairness_check(unfair, 2).examples


@pytest.mark.parametrize(
    ("text", "value", "outcome"),
    [
        ("p99<50ms", 0.049, PASS),
        ("p99 < 50ms", 0.05, FAIL),
        ("p99.9<=1s", 1.0, PASS),
        ("max>1s", 0.5, FAIL),
        ("granted>=100", 100, PASS),
        ("errors==0", 1, FAIL),
        ("jain>0.9", 0.95, PASS),
    ],
)
def test_assertions_compare_a_figure_with_a_bound(text: str, value: float, outcome: str) -> None:
    assertion = parse_assertion(text)
    assert assertion.check({assertion.figure: value}).outcome == outcome
    assert assertion.check({}).outcome == UNKNOWN


@pytest.mark.parametrize("text", ["p99<50", "p98<50ms", "granted>=1ms", "p99", "<5", "p99<", "granted=>1", "p99<0ms"])
def test_an_assertion_that_cannot_be_read_says_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected for example 'p99<50ms'"):
        parse_assertion(text)
