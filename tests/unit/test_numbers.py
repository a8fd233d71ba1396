"""The numbers of a limit are exact, in both builds."""

import pytest

from ratebound.limit import MAX_COUNT, MAX_SPAN, Algorithm, Limit
from ratebound.numbers import product


@pytest.mark.parametrize("time", [0, 1, 2**30 - 1, 2**30, 2**31, 2**42 - 1, 2**42, 2**43, MAX_SPAN, -1, -(2**43)])
@pytest.mark.parametrize("units", [0, 1, 999_983, 2**20 - 1, 2**20, 2**21, MAX_COUNT, -1])
def test_a_product_is_exact_at_every_size(time: int, units: int) -> None:
    exact = sum((time << bit) for bit in range(abs(units).bit_length()) if abs(units) >> bit & 1)
    assert product(time, units) == (exact if units > 0 else -exact)


def test_the_time_of_a_unit_and_of_a_burst_less_one_has_a_remainder() -> None:
    numbers = Limit(3, 10, 5, "gcra").numbers
    assert (numbers.step, numbers.step_part) == (3, 1)
    assert (numbers.room, numbers.room_part) == numbers.room_for(1) == (13, 1)
    assert (numbers.room_for(2), numbers.room_for(5)) == ((10, 0), (0, 0))
    assert (numbers.refill_us, numbers.full) == (16, 52)


@pytest.mark.parametrize(
    ("one", "other", "more"),
    [
        (Limit(5, 10, 6, "gcra"), Limit(5, 10, 5, "gcra"), True),
        (Limit(5, 10, 5, "gcra"), Limit(5, 10, 6, "gcra"), False),
        (Limit(5, 10, 5, "gcra"), Limit(5, 10, 5, "gcra"), False),
        (Limit(7, 10, 5, "gcra"), Limit(5, 10, 5, "gcra"), False),
        (Limit(5, 10, 1, "gcra"), Limit(7, 10, 1, "gcra"), True),  # both have no room: the time of a unit decides
    ],
)
def test_a_limit_allows_more_if_its_burst_takes_longer_to_refill(one: Limit, other: Limit, more: bool) -> None:
    assert one.numbers.allows_more_than(other.numbers) is more


@pytest.mark.parametrize("algorithm", ["token-bucket", "gcra", "leaky-bucket"])
def test_only_a_leaky_bucket_queues(algorithm: Algorithm) -> None:
    limit = Limit(5, 10, 5, algorithm)
    assert limit.queues is limit.numbers.queues is (algorithm == "leaky-bucket")
    assert (limit.numbers.scope, limit.numbers.algorithm) == (limit.scope, algorithm)
