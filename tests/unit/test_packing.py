"""States as whole numbers: what is packed is unpacked to an equal state."""

import pytest

from ratebound.kernels.packing import Packed, packed, unpacked
from ratebound.limit import ALGORITHMS, BUCKETS, Algorithm, Limit
from ratebound.notation import parse_limit

EXAMPLES: dict[str, list[Packed]] = {
    "fixed-window": [(0, 1, 0), (20, 3, 12)],
    "sliding-counter": [(0, 1, 0), (20, 3, 2)],
    "sliding-log": [(0, 1, -10, 1), (20, 6, 7, 1, 9, 2, 10, 3)],
    **{bucket: [(0, 1, 2, 3, 4), (20, 1, 12, 11, 3, 14, 1, 15, 0, 16, 2, 17, 1, 18, 0)] for bucket in BUCKETS},
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_state_that_was_packed_is_the_same_again(algorithm: Algorithm) -> None:
    limit = Limit(9, 10, 0, algorithm).numbers
    for numbers in EXAMPLES[algorithm]:
        state = unpacked(limit, numbers)
        assert state.expires == numbers[0]
        assert packed(limit, state) == numbers
        assert packed(limit, state.copy()) == numbers


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_untouched_state_is_not_stored(algorithm: Algorithm) -> None:
    limit = Limit(9, 10, 0, algorithm).numbers
    state = unpacked(limit, None)
    assert state.fits(limit, 0, 9)
    assert state.standing(limit, 0) == (9, 0)
    assert packed(limit, state) is None
    assert packed(limit, state.copy()) is None


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("9/calendar-day", [(0, 1, 0, 0, 0, 0), (20, 3, 12, 11, 4, 5)]),
        ("9/hour fixed-window over allow", [(20, 3, 12, 11, 4, 5)]),
        ("9 concurrent", [(0, 1, 7, 0), (20, 3, 7, 12, 6, 13, 5, 20), (20, 2, 2**53 - 1, 20, 1, 20)]),
    ],
)
def test_a_quota_and_slots_that_were_packed_are_the_same_again(text: str, states: list[Packed]) -> None:
    limit = parse_limit(text).numbers
    for numbers in states:
        written = packed(limit, unpacked(limit, numbers))
        assert written is not None
        assert packed(limit, unpacked(limit, written)) == written
        assert sorted(written) == sorted(numbers)
        assert packed(limit, unpacked(limit, numbers).copy()) == written
    untouched = unpacked(limit, None)
    assert untouched.fits(limit, 0, 9)
    assert untouched.standing(limit, 0) == (9, 0)
    assert packed(limit, untouched) is None
