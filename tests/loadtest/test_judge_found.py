"""Limits that are found from the answers alone equal the configured ones within one request, for all algorithms."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.limit import BUCKETS, Limit
from ratebound.loadtest.bounds import ClientSpans, Span
from ratebound.loadtest.found_limit import find_limit
from ratebound.notation import parse_limit
from tests.loadtest.honest_servers import decide, seen

SECOND = 1_000_000


def answers_of(limit: Limit, *, rate: int, seconds: float, seed: int, origin: int, queues: bool = False) -> ClientSpans:
    """A server that decides within a few milliseconds; a queue answers a while later."""
    drawn = random.Random(seed)
    requests = []
    for number in range(int(rate * seconds)):
        due = number * SECOND // rate
        latency = int(drawn.expovariate(1 / 800)) + 100
        requests.append((due + latency // 2, Span(due, due + latency)))
    requests.sort()
    answers = decide([limit], [instant for instant, _ in requests], origin)
    spans = [
        Span(span.begin, span.end + 200_000) if granted and queues else span
        for (_, span), granted in zip(requests, answers, strict=True)
    ]
    return seen(spans, answers)


@pytest.mark.parametrize("rate", [150, 1500])
@pytest.mark.parametrize(
    "text",
    [
        "20/second burst 10 token-bucket",
        "20/second burst 40 gcra",
        "20/second burst 5 leaky-bucket",
        "7/second burst 3",
        "10/second burst 1",
        "20/second fixed-window",
        "30/2 seconds fixed-window",
        "20/second sliding-log",
        "5/500ms sliding-log",
        "20/second sliding-counter",
        "130/2 seconds sliding-counter",
    ],
)
def test_found_limits_equal_the_configured_ones_within_one_request(text: str, rate: int) -> None:
    limit = parse_limit(text)
    queues = limit.algorithm == "leaky-bucket"
    for seed in range(3):
        origin = seed * 377_123
        answers = answers_of(limit, rate=rate, seconds=6, seed=seed, origin=origin, queues=queues)
        found = find_limit({0: answers}, started=origin / SECOND)
        algorithm = "token-bucket" if limit.algorithm == "gcra" else limit.algorithm
        best = {one.algorithm: one for one in found.limits}
        assert algorithm in best, found.words
        one = best[algorithm]
        assert abs(one.count * limit.period_us / one.period_us - limit.count) <= 1, found.words
        assert abs(one.burst - limit.burst) <= 1, found.words
        if limit.algorithm not in BUCKETS:
            assert one.period_us == limit.period_us, found.words
        assert found.unexplained == 0
        if limit.algorithm == "fixed-window":
            assert found.is_aligned


@given(st.integers(2, 40), st.sampled_from([500_000, SECOND, 1_500_000]), st.integers(0, 10**6))
def test_the_count_of_a_sliding_log_is_found(count: int, period: int, seed: int) -> None:
    limit = Limit(count, period, 0, "sliding-log")
    answers = answers_of(limit, rate=200, seconds=4, seed=seed, origin=0)
    found = find_limit({0: answers})
    assert any(one.count == count and one.period_us == period for one in found.limits), found.words


def test_without_a_refusal_nothing_is_found() -> None:
    answers = answers_of(parse_limit("1000/second"), rate=100, seconds=2, seed=1, origin=0)
    assert find_limit({0: answers}).words == "unknown: requests of a client were never both granted and refused"


def test_a_period_longer_than_the_test_is_not_guessed() -> None:
    answers = answers_of(parse_limit("100/hour"), rate=100, seconds=4, seed=1, origin=0)
    found = find_limit({0: answers})
    assert not found.limits
    assert found.words == "100 at once, then none for at least 3.0 s"


def test_nothing_was_granted_at_all() -> None:
    assert find_limit({0: ClientSpans([], [Span(0, 10)])}).limits == ()
