"""What a client that is always asking gets is the configured rate, from one a day to 999 999 a second."""

import random

import pytest

from ratebound import MemoryStorage, parse_limit
from ratebound.limit import UNITS, Limit
from ratebound.testing import FakeClock, ask

RATES = ["1/day", "3/day", "7/hour", "54/minute", "90/minute", "119/minute", "7/second", "13/500ms", "1000/second"]
RATES += ["99999/second", "999999/second", "1000000000/year", "31/month", "12/year"]
EXACT = ["gcra", "token-bucket burst 3", "leaky-bucket burst 2", "sliding-log", "fixed-window"]


def limit_of(rate: str, algorithm: str) -> Limit:
    name, _, burst = algorithm.partition(" ")
    large = " large" if name == "sliding-log" else ""
    return parse_limit(f"{rate} {burst} {name}{large}")


@pytest.mark.parametrize("algorithm", EXACT)
@pytest.mark.parametrize("rate", RATES)
def test_the_delivered_rate_is_the_configured_rate_stepping_by_retry_after(rate: str, algorithm: str) -> None:
    limit = limit_of(rate, algorithm)
    periods = max(3_000 // limit.count, 1) if limit.count < 3_000 else 1
    assert 0.999 <= delivered(limit, periods) <= 1.001


def delivered(limit: Limit, periods: int) -> float:
    """The share of its rate that a client gets who sleeps exactly retry_after, in a few thousand steps."""
    clock = FakeClock(1_700_000_000 * UNITS["second"])
    clock.now += limit.period_us - clock.now % limit.period_us
    storage = MemoryStorage(clock=clock)
    ask(storage, "k", limit, limit.burst)  # the burst is over
    begin, units = clock.now, 0
    want, step = min(periods * limit.count, 4_000), 1
    if limit.algorithm in ("fixed-window", "sliding-log"):  # a part of a period says nothing about a window
        want, step = periods * limit.count, max(limit.count // 1_000, 1)
        want -= want % step
    while units < want:
        answer = ask(storage, "k", limit, step)
        if answer.allowed:
            units += step
        else:
            assert answer.retry_after_us is not None
            clock.now += answer.retry_after_us
    return units * limit.period_us / (limit.count * (clock.now - begin))


@pytest.mark.parametrize("algorithm", ["gcra", "token-bucket burst 3"])
@pytest.mark.parametrize("rate", RATES)
def test_the_delivered_rate_is_the_configured_rate_with_random_gaps(rate: str, algorithm: str) -> None:
    """Gaps shorter than the burst takes to refill lose nothing: what comes back meanwhile is taken at the next ask."""
    limit = limit_of(rate, algorithm)
    clock = FakeClock(1_700_000_000 * UNITS["second"])
    storage = MemoryStorage(clock=clock)
    ask(storage, "k", limit, limit.burst)
    chance, begin, units = random.Random(rate), clock.now, 0
    for _ in range(6_000):
        clock.now += chance.randint(0, max(limit.refill_us - limit.numbers.step, 1))
        remaining = ask(storage, "k", limit, mode="peek").remaining
        if remaining:
            assert ask(storage, "k", limit, remaining).allowed
            units += remaining
    owed = (clock.now - begin) * limit.count / limit.period_us
    assert owed - limit.burst <= units <= owed + 1
    assert abs(units / owed - 1) <= 0.001 + limit.burst / owed


@pytest.mark.parametrize("algorithm", ["sliding-log", "fixed-window"])
@pytest.mark.parametrize("rate", [rate for rate in RATES if parse_limit(rate).period_us >= 10_000])
def test_the_delivered_rate_of_windows_is_the_configured_rate_with_random_gaps(rate: str, algorithm: str) -> None:
    """What a window gives comes back with it, so a client that asks a thousand times a period loses next to nothing."""
    limit = limit_of(rate, algorithm)
    clock = FakeClock(1_700_000_000 * UNITS["second"])
    clock.now += limit.period_us - clock.now % limit.period_us
    storage = MemoryStorage(clock=clock)
    chance, end, units = random.Random(rate), clock.now + 3 * limit.period_us, 0
    while clock.now < end:
        remaining = ask(storage, "k", limit, mode="peek").remaining
        if remaining:
            assert ask(storage, "k", limit, remaining).allowed
            units += remaining
        clock.now += chance.randint(0, limit.period_us // 1_000)
    assert units == 3 * limit.count


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100, 1_000])
@pytest.mark.parametrize("period", ["second", "year"])
def test_a_saturating_client_of_a_sliding_counter_loses_at_most_one_unit_a_period(count: int, period: str) -> None:
    limit = Limit(count, UNITS[period], algorithm="sliding-counter")
    clock = FakeClock(1_700_000_000 * UNITS["second"])
    storage = MemoryStorage(clock=clock)
    end, units, periods = clock.now + 20 * limit.period_us, 0, 20
    while clock.now < end:
        answer = ask(storage, "k", limit)
        units += answer.allowed
        clock.now += answer.retry_after_us or 0
    assert (count - 1) * periods <= units <= count * (periods + 1)
