"""The fixed window, number by number: ten units in a window of 100 microseconds."""

import pytest

from ratebound.kernels.packing import unpacked
from ratebound.limit import Limit, Spent
from tests.packed_kernels import Packed, Written, check_fits, force, grows_after, repair, spend, standing, turn_after

TEN = Limit(10, 100, algorithm="fixed-window")


@pytest.mark.parametrize(
    ("state", "now", "cost", "after", "row"),
    [
        # an untouched key
        (None, 1030, 3, (1100, 3, 1030), (True, 7, 0, 70, 0, 1030, 1030, 0)),
        (None, 1000, 10, (1100, 10, 1000), (True, 0, 0, 100, 0, 1000, 1000, 0)),
        (None, 1030, 11, None, (False, 10, None, 0, 0, 1030, 0, 0)),
        # this window
        ((1100, 4, 1010), 1030, 6, (1100, 10, 1010), (True, 0, 0, 70, 0, 1030, 1010, 0)),
        ((1100, 4, 1010), 1030, 7, (1100, 4, 1010), (False, 6, 70, 70, 0, 1030, 0, 0)),
        ((1100, 4, 1010), 1099, 10, (1100, 4, 1010), (False, 6, 1, 1, 0, 1099, 0, 0)),
        ((1100, 9, 1010), 1030, 2, (1100, 9, 1010), (False, 1, 70, 70, 0, 1030, 0, 0)),
        ((1100, 4, 1010), 1030, 11, (1100, 4, 1010), (False, 6, None, 70, 0, 1030, 0, 0)),
        ((1100, 20, 1010), 1030, 1, (1100, 20, 1010), (False, 0, 70, 70, 0, 1030, 0, 0)),  # overdrawn
        ((1100, 0, 1010), 1030, 11, (1100, 0, 1010), (False, 10, None, 0, 0, 1030, 0, 0)),  # all was refunded
        # a window that is over
        ((1100, 4, 1010), 1100, 7, (1200, 7, 1100), (True, 3, 0, 100, 0, 1100, 1100, 0)),
        ((1100, 4, 1010), 1100, 11, (1100, 4, 1010), (False, 10, None, 0, 0, 1100, 0, 0)),
        # the clock stepped back: what was spent counts in this window
        ((1300, 4, 1210), 1030, 6, (1100, 10, 1210), (True, 0, 0, 70, 0, 1030, 1210, 0)),
        ((1300, 4, 1210), 1030, 7, (1100, 4, 1210), (False, 6, 70, 70, 0, 1030, 0, 0)),
    ],
)
def test_a_spend_counts_in_the_window_of_its_instant(
    state: Packed | None, now: int, cost: int, after: Packed | None, row: Written
) -> None:
    assert spend(TEN, state, now, cost, None, 0) == (after, row)


def test_a_denial_leaves_the_state_as_it_is() -> None:
    state = (1100, 4, 1010)
    assert spend(TEN, state, 1030, 7, None, 0)[0] == state
    assert repair(TEN, state, 1030) == state


@pytest.mark.parametrize(
    ("state", "now", "left"),
    [
        (None, 1030, (10, 0)),
        ((1100, 4, 1010), 1030, (6, 70)),
        ((1100, 4, 1010), 1099, (6, 1)),
        ((1100, 4, 1010), 1100, (10, 0)),
        ((1100, 4, 1010), 1101, (10, 0)),
        ((1100, 0, 1010), 1030, (10, 0)),
        ((1100, 20, 1010), 1030, (0, 70)),
    ],
)
def test_all_is_left_again_when_the_window_ends(state: Packed | None, now: int, left: tuple[int, int]) -> None:
    assert standing(TEN, state, now) == left


@pytest.mark.parametrize(
    ("state", "cost", "spent", "after", "left"),
    [
        # charged on top: up to one count more than the limit has
        (None, 3, None, (1100, 3, 1030), (7, 70)),
        (None, 1, None, (1100, 1, 1030), (9, 70)),
        (None, 0, None, None, (10, 0)),
        ((1100, 4, 1010), 3, None, (1100, 7, 1010), (3, 70)),
        ((1100, 4, 1010), 99, None, (1100, 20, 1010), (0, 70)),
        ((1100, 25, 1010), 1, None, (1100, 25, 1010), (0, 70)),  # by a larger limit, before
        ((1000, 4, 910), 3, None, (1100, 3, 1030), (7, 70)),
        ((1300, 4, 1210), 3, None, (1100, 7, 1210), (3, 70)),
        # refunded, if the spend is in what this window counts
        ((1100, 4, 1010), -3, None, (1100, 1, 1010), (9, 70)),
        ((1100, 4, 1010), -3, (1020, 1100, 0, 1010), (1100, 1, 1010), (9, 70)),
        ((1100, 4, 1010), -9, (1020, 1100, 0, 1010), (1100, 0, 1010), (10, 0)),
        ((1100, 4, 1010), -3, (1005, 1100, 0, 1005), (1100, 4, 1010), (6, 70)),  # before a reset
        ((1100, 4, 1010), 0, None, (1100, 4, 1010), (6, 70)),
        ((1000, 4, 910), -3, (920, 1000, 0, 910), None, (10, 0)),
        ((1300, 4, 1210), -3, (1220, 1300, 0, 1210), (1100, 1, 1210), (9, 70)),
        ((1300, 4, 1210), -3, (1020, 1100, 0, 1010), (1100, 4, 1210), (6, 70)),
        (None, -3, None, None, (10, 0)),
        (None, -3, (1020, 1100, 0, 1010), None, (10, 0)),
    ],
)
def test_a_settlement_charges_at_most_one_count_more_and_refunds_what_the_window_counts(
    state: Packed | None, cost: int, spent: Spent | None, after: Packed | None, left: tuple[int, int]
) -> None:
    remaining, reset_after = left
    assert force(TEN, state, 1030, cost, spent) == (after, (True, remaining, 0, reset_after, 0, 1030, 0, 0))


@pytest.mark.parametrize(
    ("cost", "after"), [(3, (1200, 3, 1100)), (0, None), (-3, None)], ids=["charged", "unchanged", "refunded"]
)
def test_a_settlement_at_the_end_of_a_window_is_for_the_next(cost: int, after: Packed | None) -> None:
    assert force(TEN, (1100, 4, 1010), 1100, cost, None)[0] == after


@pytest.mark.parametrize(
    ("state", "now", "after"),
    [
        ((1100, 4, 1010), 1030, (1100, 4, 1010)),
        ((1200, 4, 1110), 1099, (1100, 4, 1110)),
        ((1200, 4, 1110), 1100, (1200, 4, 1110)),
    ],
)
def test_after_a_step_back_of_the_clock_what_was_spent_counts_in_this_window(
    state: Packed, now: int, after: Packed
) -> None:
    assert repair(TEN, state, now) == after


@pytest.mark.parametrize(
    ("state", "front", "cost", "turn"),
    [
        (None, 0, 10, 0),
        (None, 9, 1, 0),
        (None, 10, 1, 70),
        (None, 0, 11, None),
        (None, 12, 8, 70),
        (None, 12, 9, 170),
        ((1100, 4, 1010), 0, 6, 0),
        ((1100, 4, 1010), 3, 3, 0),
        ((1100, 4, 1010), 3, 4, 70),
        ((1100, 4, 1010), 15, 1, 70),
        ((1100, 4, 1010), 16, 1, 170),
        ((1100, 4, 1010), 36, 1, 370),
    ],
)
def test_those_in_line_share_this_window_and_then_each_that_follows(
    state: Packed | None, front: int, cost: int, turn: int | None
) -> None:
    assert turn_after(TEN, state, 1030, front, cost) == turn


def test_more_is_left_when_the_window_ends() -> None:
    assert grows_after(TEN, 6, 70) == 70


@pytest.mark.parametrize("used", [0, 9, 10, 11])
def test_what_fits_is_what_a_spend_allows(used: int) -> None:
    for now in (1000, 1030, 1099, 1100, 1101, 1199, 1200, 1201):
        for cost in (1, 2, 10, 11):
            check_fits(TEN, unpacked(TEN.numbers, (1200, used, 1110)), now, cost)
