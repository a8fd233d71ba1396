"""The sliding counter, number by number: ten units in 100 microseconds."""

import pytest

from ratebound.kernels.packing import unpacked
from ratebound.limit import Limit, Spent
from tests.packed_kernels import Packed, Written, check_fits, force, grows_after, repair, spend, standing, turn_after

TEN = Limit(10, 100, algorithm="sliding-counter")


@pytest.mark.parametrize(
    ("state", "now", "cost", "after", "row"),
    [
        # an untouched key: the window begins with the spend
        (None, 1000, 3, (1200, 3, 0), (True, 7, 0, 200, 0, 1000, 0, 0)),
        (None, 1000, 11, None, (False, 10, None, 0, 0, 1000, 0, 0)),
        # the first window: 70 microseconds are left of it
        ((1200, 4, 0), 1030, 6, (1200, 10, 0), (True, 0, 0, 170, 0, 1030, 0, 0)),
        ((1200, 4, 0), 1030, 7, (1200, 4, 0), (False, 6, 95, 170, 0, 1030, 0, 0)),
        ((1200, 4, 0), 1030, 11, (1200, 4, 0), (False, 6, None, 170, 0, 1030, 0, 0)),
        ((1200, 20, 0), 1030, 1, (1200, 20, 0), (False, 0, 125, 170, 0, 1030, 0, 0)),  # overdrawn
        ((1200, 0, 0), 1030, 11, (1200, 0, 0), (False, 10, None, 0, 0, 1030, 0, 0)),
        # a window before it: 0.7 of its five units still count, rounded up, and 0.6 after ten microseconds
        ((1200, 4, 5), 1030, 2, (1200, 6, 5), (True, 0, 0, 170, 0, 1030, 0, 0)),
        ((1200, 4, 5), 1030, 3, (1200, 4, 5), (False, 2, 10, 170, 0, 1030, 0, 0)),
        ((1200, 4, 5), 1040, 3, (1200, 7, 5), (True, 0, 0, 160, 0, 1040, 0, 0)),
        ((1200, 0, 5), 1030, 7, (1200, 0, 5), (False, 6, 10, 70, 0, 1030, 0, 0)),
        ((1200, 4, 5), 1099, 6, (1200, 4, 5), (False, 5, 1, 101, 0, 1099, 0, 0)),
        ((1200, 9, 5), 1040, 1, (1200, 9, 5), (False, 0, 60, 160, 0, 1040, 0, 0)),
        # this window has become the one before
        ((1200, 4, 5), 1100, 6, (1300, 6, 4), (True, 0, 0, 200, 0, 1100, 0, 0)),
        ((1200, 4, 5), 1100, 7, (1200, 4, 5), (False, 6, 25, 100, 0, 1100, 0, 0)),
        ((1200, 4, 5), 1150, 8, (1300, 8, 4), (True, 0, 0, 150, 0, 1150, 0, 0)),
        ((1200, 4, 5), 1199, 9, (1300, 9, 4), (True, 0, 0, 101, 0, 1199, 0, 0)),
        ((1200, 4, 5), 1199, 10, (1200, 4, 5), (False, 9, 1, 1, 0, 1199, 0, 0)),
        # both are over
        ((1200, 4, 5), 1200, 10, (1400, 10, 0), (True, 0, 0, 200, 0, 1200, 0, 0)),
        ((1200, 4, 5), 1201, 10, (1401, 10, 0), (True, 0, 0, 200, 0, 1201, 0, 0)),
        ((1200, 4, 5), 1200, 11, (1200, 4, 5), (False, 10, None, 0, 0, 1200, 0, 0)),
        # the clock stepped back: the window begins now
        ((1500, 4, 5), 1030, 1, (1230, 5, 5), (True, 0, 0, 200, 0, 1030, 0, 0)),
        ((1500, 4, 5), 1030, 2, (1230, 4, 5), (False, 1, 20, 200, 0, 1030, 0, 0)),
        ((1231, 4, 5), 1030, 2, (1230, 4, 5), (False, 1, 20, 200, 0, 1030, 0, 0)),
        ((1230, 4, 5), 1030, 2, (1230, 4, 5), (False, 1, 20, 200, 0, 1030, 0, 0)),
    ],
)
def test_a_spend_counts_beside_the_share_of_the_window_before(
    state: Packed | None, now: int, cost: int, after: Packed | None, row: Written
) -> None:
    assert spend(TEN, state, now, cost, None, 0) == (after, row)


@pytest.mark.parametrize("now", [1000, 1030, 1100, 1200])
def test_a_denial_leaves_the_state_as_it_is(now: int) -> None:
    state = (1200, 4, 5)
    assert spend(TEN, state, now, 11, None, 0)[0] == state
    assert repair(TEN, state, now) == state


@pytest.mark.parametrize(
    ("state", "now", "left"),
    [
        (None, 1030, (10, 0)),
        ((1200, 4, 0), 1030, (6, 170)),
        ((1200, 4, 5), 1030, (2, 170)),
        ((1200, 4, 5), 1040, (3, 160)),
        ((1200, 0, 5), 1040, (7, 60)),
        ((1200, 0, 0), 1040, (10, 0)),
        ((1200, 20, 0), 1040, (0, 160)),
        ((1200, 4, 5), 1099, (5, 101)),
        ((1200, 4, 1), 1099, (5, 101)),
        ((1200, 4, 0), 1099, (6, 101)),
        ((1200, 4, 5), 1100, (6, 100)),
        ((1200, 4, 5), 1199, (9, 1)),
        ((1200, 4, 5), 1200, (10, 0)),
        ((1200, 4, 5), 1300, (10, 0)),
    ],
)
def test_the_share_of_the_window_before_comes_back_bit_by_bit(
    state: Packed | None, now: int, left: tuple[int, int]
) -> None:
    assert standing(TEN, state, now) == left


@pytest.mark.parametrize(
    ("state", "cost", "spent", "after", "left"),
    [
        # charged on top: up to one count more than the limit has
        (None, 3, None, (1230, 3, 0), (7, 200)),
        (None, 1, None, (1230, 1, 0), (9, 200)),
        (None, 0, None, None, (10, 0)),
        ((1200, 4, 5), 1, (950, 1100, 0, 0), (1200, 5, 5), (1, 170)),
        ((1200, 4, 5), 99, None, (1200, 20, 5), (0, 170)),
        ((1200, 25, 5), 1, None, (1200, 25, 5), (0, 170)),  # by a larger limit, before
        ((1100, 4, 5), 3, None, (1200, 3, 4), (4, 170)),
        ((1030, 4, 5), 3, None, (1230, 3, 0), (7, 200)),
        ((1500, 4, 5), 3, None, (1230, 7, 5), (0, 200)),
        # refunded: in the window that the spend was made in
        ((1200, 4, 5), -3, None, (1200, 1, 5), (5, 170)),
        ((1200, 4, 5), -3, (1020, 1200, 0, 0), (1200, 1, 5), (5, 170)),
        ((1200, 4, 5), -3, (950, 1100, 0, 0), (1200, 4, 2), (4, 170)),
        ((1200, 4, 5), -6, (950, 1100, 0, 0), (1200, 4, 0), (6, 170)),
        ((1200, 4, 5), -3, (950, 1150, 0, 0), (1200, 4, 5), (2, 170)),  # a window from before a reset
        ((1200, 4, 5), -5, (1020, 1200, 0, 0), (1100, 5, 0), (6, 70)),  # as if this window had not begun
        ((1200, 4, 0), -4, (1020, 1200, 0, 0), None, (10, 0)),
        ((1100, 4, 5), -3, (950, 1100, 0, 0), (1100, 1, 0), (9, 70)),
        ((1100, 4, 5), 0, (950, 1100, 0, 0), (1100, 4, 0), (7, 70)),
        ((1200, 4, 5), 0, (950, 1200, 0, 0), (1200, 4, 5), (2, 170)),
        (None, -3, None, None, (10, 0)),
        (None, -3, (1020, 1200, 0, 0), None, (10, 0)),
    ],
)
def test_a_settlement_charges_at_most_one_count_more_and_refunds_the_window_of_the_spend(
    state: Packed | None, cost: int, spent: Spent | None, after: Packed | None, left: tuple[int, int]
) -> None:
    remaining, reset_after = left
    assert force(TEN, state, 1030, cost, spent) == (after, (True, remaining, 0, reset_after, 0, 1030, 0, 0))


@pytest.mark.parametrize(
    ("state", "after"),
    [
        ((1230, 4, 5), (1230, 4, 5)),
        ((1231, 4, 5), (1230, 4, 5)),
        ((9999, 4, 5), (1230, 4, 5)),
        ((900, 4, 5), (900, 4, 5)),
    ],
)
def test_after_a_step_back_of_the_clock_the_window_begins_now(state: Packed, after: Packed) -> None:
    assert repair(TEN, state, 1030) == after


def turn_of_a_line_of_single_units(state: Packed | None, now: int, front: int, cost: int) -> int:
    """Return when `cost` goes ahead if each of those in front does as soon as it may."""
    begin = now
    for units in [1] * front + [cost]:
        state, row = spend(TEN, state, now, units, None, 0)
        if not row[0]:
            assert row[2]
            now += row[2]
            state, row = spend(TEN, state, now, units, None, 0)
        assert row[0]
    return now - begin


@pytest.mark.parametrize("state", [None, (1200, 4, 0), (1200, 4, 5), (1200, 0, 9), (1200, 10, 0), (1100, 7, 9)])
@pytest.mark.parametrize("cost", [1, 3, 10])
def test_the_turn_comes_when_all_in_front_have_gone_ahead_one_by_one(state: Packed | None, cost: int) -> None:
    for front in range(60):
        expected = turn_of_a_line_of_single_units(state, 1030, front, cost)
        assert turn_after(TEN, state, 1030, front, cost) == expected, front


def test_no_turn_comes_for_more_than_the_whole_count() -> None:
    assert turn_after(TEN, None, 1030, 0, 10) == 0
    assert turn_after(TEN, None, 1030, 0, 11) is None


@pytest.mark.parametrize(
    ("front", "cost", "turn"), [(149, 1, 1670), (150, 1, 1670), (151, 1, 1682), (175, 3, 1948), (199, 10, 2270)]
)
def test_behind_sixteen_windows_each_is_taken_to_give_a_whole_count(front: int, cost: int, turn: int) -> None:
    state = (1200, 4, 5)
    assert turn_after(TEN, state, 1030, front, cost) == turn
    assert turn <= turn_of_a_line_of_single_units(state, 1030, front, cost)


@pytest.mark.parametrize(
    ("remaining", "reset_after", "grows"),
    [
        (5, 40, 40),  # only the window before is left
        (5, 100, 100),
        (10, 150, 150),  # nothing is used
        (5, 101, 21),  # five units begin to leave at the end of the window, one in 20 microseconds
        (9, 140, 140),
        (7, 101, 35),
    ],
)
def test_more_is_left_when_a_unit_of_this_window_has_left(remaining: int, reset_after: int, grows: int) -> None:
    assert grows_after(TEN, remaining, reset_after) == grows


@pytest.mark.parametrize("current", [0, 4, 9, 10, 11])
@pytest.mark.parametrize("previous", [0, 1, 5, 10])
def test_what_fits_is_what_a_spend_allows(current: int, previous: int) -> None:
    for now in (900, 998, 999, 1000, 1001, 1030, 1099, 1100, 1101, 1150, 1199, 1200, 1201):
        for cost in (1, 2, 5, 6, 10, 11):
            check_fits(TEN, unpacked(TEN.numbers, (1200, current, previous)), now, cost)
