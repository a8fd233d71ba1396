"""Cases of the kernels that histories drawn at random seldom meet: one table for each."""

import pytest

from ratebound.kernels import KERNELS, State
from ratebound.limit import Limit
from ratebound.notation import parse_limit

NOW = 1_700_000_000_000_000


def spent(limit: Limit, *costs: int, state: State | None = None, now: int = NOW) -> State | None:
    for cost in costs:
        state, _ = KERNELS[limit.algorithm].spend(limit, state, now, cost, None, 0)
    return state


@pytest.mark.parametrize(("costs", "tat", "part"), [((1,), 0, 1), ((1, 1), 1, 0), ((1, 1, 1), 1, 1), ((2, 2), 2, 0)])
def test_a_fraction_of_a_bucket_is_less_than_a_microsecond(costs: tuple[int, ...], tat: int, part: int) -> None:
    state = spent(Limit(2, 1, burst=9, algorithm="gcra"), *costs)  # half a microsecond for each
    assert state is not None
    assert state[:2] == (NOW + tat, part)


@pytest.mark.parametrize(
    ("remaining", "reset_after", "grows_after"),
    [
        (5, 400_000, 400_000),  # only the window before is left
        (5, 1_000_000, 1_000_000),
        (10, 1_500_000, 1_500_000),  # nothing is used
        (5, 1_000_001, 200_001),  # five units begin to leave at the end of the window, one in 0.2 s
        (9, 1_400_000, 1_400_000),
    ],
)
def test_when_a_sliding_counter_grows(remaining: int, reset_after: int, grows_after: int) -> None:
    limit = parse_limit("10/second sliding-counter")
    assert KERNELS["sliding-counter"].grows_after(limit, remaining, reset_after) == grows_after


@pytest.mark.parametrize(
    ("now", "entries"),
    [
        (150, (100, 2, 120, 4, 150, 3)),
        (121, (100, 2, 120, 4, 121, 3)),
        (120, (100, 2, 120, 7)),
        (50, (50, 9)),
        (200, (100, 2, 120, 4, 200, 3)),
    ],
)
def test_entries_from_the_future_of_a_log_count_from_now_on(now: int, entries: tuple[int, ...]) -> None:
    limit = parse_limit("10/second sliding-log")
    state = (NOW + 1_000_200, 9, NOW + 100, 2, NOW + 120, 4, NOW + 200, 3)
    expected = tuple(number if i % 2 else NOW + number for i, number in enumerate(entries))
    assert KERNELS["sliding-log"].repair(limit, state, NOW + now) == (NOW + now + 1_000_000, 9, *expected)
