"""Schedules: due times never fall, totals are exact, and no list is made of them."""

import math
from fractions import Fraction
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.loadtest.arrivals import (
    Arrivals,
    BurstArrivals,
    ConstantArrivals,
    PoissonArrivals,
    RampArrivals,
    parse_arrivals,
    parse_rate,
)
from ratebound.notation import parse_span

RATES = st.integers(1, 1000).map(float)
SPANS = st.integers(1, 40).map(lambda quarter: quarter / 4)


def total_of(rate: float, duration: float) -> int:
    """The number of k = 0, 1, … with k < rate·duration."""
    return math.ceil(Fraction(rate) * Fraction(duration))


def assert_ordered(arrivals: Arrivals, times: list[float]) -> None:
    assert all(0 <= due < arrivals.duration for due in times)
    assert all(first <= second for first, second in pairwise(times))


@given(RATES, SPANS)
def test_a_constant_rate_sends_exactly_rate_times_duration(rate: float, duration: float) -> None:
    arrivals = ConstantArrivals(rate, duration)
    times = list(arrivals.due_times())
    assert_ordered(arrivals, times)
    assert len(times) == total_of(rate, duration)
    assert times == [float(Fraction(number) / Fraction(rate)) for number in range(len(times))]


@given(RATES, RATES, SPANS)
def test_a_ramp_sends_the_integral_of_its_rate(first: float, last: float, duration: float) -> None:
    arrivals = RampArrivals(first, last, duration)
    times = list(arrivals.due_times())
    assert_ordered(arrivals, times)
    assert len(times) == math.ceil((Fraction(first) + Fraction(last)) / 2 * Fraction(duration))
    slope = (last - first) / duration
    for number, due in enumerate(times):
        assert math.isclose(first * due + slope * due * due / 2, number, rel_tol=1e-6, abs_tol=1e-6)


@given(RATES, SPANS)
def test_a_ramp_from_a_rate_to_the_same_rate_is_constant(rate: float, duration: float) -> None:
    ramp = list(RampArrivals(rate, rate, duration).due_times())
    constant = list(ConstantArrivals(rate, duration).due_times())
    assert all(math.isclose(one, other) for one, other in zip(ramp, constant, strict=True))


@pytest.mark.parametrize(("first", "last"), [(0.0, 100.0), (100.0, 0.0)])
def test_a_ramp_may_begin_or_end_at_zero(first: float, last: float) -> None:
    arrivals = RampArrivals(first, last, 2.0)
    times = list(arrivals.due_times())
    assert_ordered(arrivals, times)
    assert len(times) == 100
    in_first_half = sum(due < 1.0 for due in times)
    assert in_first_half == (25 if first == 0 else 75)


@given(st.integers(1, 500), st.integers(1, 40).map(lambda quarter: quarter / 4), SPANS)
def test_bursts_come_whole(size: int, every: float, duration: float) -> None:
    arrivals = BurstArrivals(size, every, duration)
    times = list(arrivals.due_times())
    assert_ordered(arrivals, times)
    bursts = math.ceil(Fraction(duration) / Fraction(every))
    assert times == [number * every for number in range(bursts) for _ in range(size)]


@given(st.integers(0, 2**32), st.integers(100, 2000).map(float))
def test_poisson_arrivals_are_fixed_by_their_seed(seed: int, rate: float) -> None:
    arrivals = PoissonArrivals(rate, 2.0, seed)
    times = list(arrivals.due_times())
    assert_ordered(arrivals, times)
    assert times == list(arrivals.due_times())
    assert times != list(PoissonArrivals(rate, 2.0, seed + 1).due_times())
    expected = rate * 2
    assert abs(len(times) - expected) < 8 * math.sqrt(expected)  # eight standard deviations


def test_gaps_of_poisson_arrivals_vary_as_exponential_ones_do() -> None:
    times = list(PoissonArrivals(1000.0, 20.0, 3).due_times())
    gaps = [second - first for first, second in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert spread / mean == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    "arrivals",
    [
        ConstantArrivals(1e6, 1e6),
        PoissonArrivals(1e6, 1e6),
        BurstArrivals(10**9, 1.0, 1e6),
        RampArrivals(1e6, 2e6, 1e6),
    ],
)
def test_due_times_are_made_one_by_one(arrivals: Arrivals) -> None:
    assert len(list(islice(arrivals.due_times(), 5))) == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("150/s", ConstantArrivals(150.0, 30.0)),
        ("600/minute", ConstantArrivals(10.0, 30.0)),
        ("3 / 2 s", ConstantArrivals(1.5, 30.0)),
        ("0.5/s", ConstantArrivals(0.5, 30.0)),
        ("Poisson  150/s", PoissonArrivals(150.0, 30.0, 7)),
        ("10/s..200/s", RampArrivals(10.0, 200.0, 30.0)),
        ("0/s .. 60/min", RampArrivals(0.0, 1.0, 30.0)),
        ("burst 50 every 5s", BurstArrivals(50, 5.0, 30.0)),
        ("burst 5 every 500 ms", BurstArrivals(5, 0.5, 30.0)),
    ],
)
def test_arrivals_are_read_from_text(text: str, expected: Arrivals) -> None:
    assert parse_arrivals(text, 30.0, seed=7) == expected


@pytest.mark.parametrize(
    "text",
    ["", "fast", "0/s", "-5/s", "5", "5/fortnight", "1/0s", "5/s..", "burst 0 every 5s", "burst 5 every 0s", "9" * 300],
)
def test_arrivals_that_cannot_be_read_say_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="expected for example '150/s'"):
        parse_arrivals(text, 30.0)


@pytest.mark.parametrize("duration", [0.0, -1.0, math.inf, math.nan])
def test_a_duration_is_positive_and_ends(duration: float) -> None:
    with pytest.raises(ValueError, match="duration of more than 0 seconds"):
        parse_arrivals("5/s", duration)


@given(st.text(max_size=30) | st.from_regex(r"[0-9./]{1,9}[a-z]{1,3}", fullmatch=True))
def test_any_text_is_a_rate_and_a_span_or_a_clear_error(text: str) -> None:
    for parse in (parse_rate, parse_span):
        error = ""
        try:
            assert parse(text) > 0
        except ValueError as raised:
            error = str(raised)
        assert not error or "expected for example" in error
