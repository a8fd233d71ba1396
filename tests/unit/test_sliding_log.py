"""The sliding log, number by number: ten units in 100 microseconds."""

import pytest

from ratebound.kernels.packing import unpacked
from ratebound.limit import Limit, Spent
from tests.packed_kernels import Packed, Written, check_fits, force, grows_after, repair, spend, standing, turn_after

TEN = Limit(10, 100, algorithm="sliding-log")
LOG = (1120, 9, 1000, 2, 1010, 4, 1020, 3)  # expires, used, and then the instant and the cost of each entry


@pytest.mark.parametrize(
    ("state", "now", "cost", "after", "row"),
    [
        # an untouched key
        (None, 1030, 3, (1130, 3, 1030, 3), (True, 7, 0, 100, 0, 1030, 0, 0)),
        (None, 1030, 10, (1130, 10, 1030, 10), (True, 0, 0, 100, 0, 1030, 0, 0)),
        (None, 1030, 11, None, (False, 10, None, 0, 0, 1030, 0, 0)),
        # all entries count
        ((1120, 3, 1020, 3), 1030, 2, (1130, 5, 1020, 3, 1030, 2), (True, 5, 0, 100, 0, 1030, 0, 0)),
        (LOG, 1030, 1, (1130, 10, *LOG[2:], 1030, 1), (True, 0, 0, 100, 0, 1030, 0, 0)),
        (LOG, 1020, 1, (1120, 10, *LOG[2:6], 1020, 4), (True, 0, 0, 100, 0, 1020, 0, 0)),  # one entry for an instant
        (LOG, 1030, 2, LOG, (False, 1, 70, 90, 0, 1030, 0, 0)),
        (LOG, 1030, 3, LOG, (False, 1, 70, 90, 0, 1030, 0, 0)),
        (LOG, 1030, 4, LOG, (False, 1, 80, 90, 0, 1030, 0, 0)),
        (LOG, 1030, 7, LOG, (False, 1, 80, 90, 0, 1030, 0, 0)),
        (LOG, 1030, 8, LOG, (False, 1, 90, 90, 0, 1030, 0, 0)),
        (LOG, 1030, 10, LOG, (False, 1, 90, 90, 0, 1030, 0, 0)),
        (LOG, 1030, 11, LOG, (False, 1, None, 90, 0, 1030, 0, 0)),
        # the oldest have left
        (LOG, 1099, 2, LOG, (False, 1, 1, 21, 0, 1099, 0, 0)),
        (LOG, 1100, 3, (1200, 10, *LOG[4:], 1100, 3), (True, 0, 0, 100, 0, 1100, 0, 0)),
        (LOG, 1100, 4, LOG, (False, 3, 10, 20, 0, 1100, 0, 0)),
        (LOG, 1119, 7, (1219, 10, 1020, 3, 1119, 7), (True, 0, 0, 100, 0, 1119, 0, 0)),
        (LOG, 1119, 8, LOG, (False, 7, 1, 1, 0, 1119, 0, 0)),
        # all have left
        (LOG, 1120, 10, (1220, 10, 1120, 10), (True, 0, 0, 100, 0, 1120, 0, 0)),
        (LOG, 1121, 10, (1221, 10, 1121, 10), (True, 0, 0, 100, 0, 1121, 0, 0)),
        (LOG, 1120, 11, LOG, (False, 10, None, 0, 0, 1120, 0, 0)),
        # overdrawn
        ((1120, 20, 1000, 2, 1020, 18), 1030, 1, (1120, 20, 1000, 2, 1020, 18), (False, 0, 90, 90, 0, 1030, 0, 0)),
        # the clock stepped back: what is from the future counts from now on
        (LOG, 1015, 1, (1115, 10, *LOG[2:6], 1015, 4), (True, 0, 0, 100, 0, 1015, 0, 0)),
        (LOG, 1015, 2, (1115, 9, *LOG[2:6], 1015, 3), (False, 1, 85, 100, 0, 1015, 0, 0)),
        (LOG, 900, 2, (1000, 9, 900, 9), (False, 1, 100, 100, 0, 900, 0, 0)),
    ],
)
def test_a_spend_counts_beside_those_of_the_last_period(
    state: Packed | None, now: int, cost: int, after: Packed | None, row: Written
) -> None:
    assert spend(TEN, state, now, cost, None, 0) == (after, row)


@pytest.mark.parametrize("now", [1020, 1030, 1110, 1120])
def test_a_denial_leaves_the_state_as_it_is(now: int) -> None:
    assert spend(TEN, LOG, now, 11, None, 0)[0] == LOG
    assert repair(TEN, LOG, now) == LOG


@pytest.mark.parametrize(
    ("state", "now", "left"),
    [
        (None, 1030, (10, 0)),
        (LOG, 1030, (1, 90)),
        (LOG, 1099, (1, 21)),
        (LOG, 1100, (3, 20)),
        (LOG, 1119, (7, 1)),
        (LOG, 1120, (10, 0)),
        (LOG, 1121, (10, 0)),
        ((1120, 20, 1000, 2, 1020, 18), 1030, (0, 90)),
    ],
)
def test_each_entry_leaves_one_period_after_its_instant(state: Packed | None, now: int, left: tuple[int, int]) -> None:
    assert standing(TEN, state, now) == left


@pytest.mark.parametrize(
    ("state", "now", "cost", "spent", "after", "left"),
    [
        # charged on top: up to one count more than the limit has
        (None, 1030, 3, None, (1130, 3, 1030, 3), (7, 100)),
        (None, 1030, 1, None, (1130, 1, 1030, 1), (9, 100)),
        (None, 1030, 0, None, None, (10, 0)),
        (None, 1030, 99, None, (1130, 20, 1030, 20), (0, 100)),
        (LOG, 1030, 3, None, (1130, 12, *LOG[2:], 1030, 3), (0, 100)),
        (LOG, 1030, 99, None, (1130, 20, *LOG[2:], 1030, 11), (0, 100)),
        (LOG, 1020, 1, None, (1120, 10, *LOG[2:6], 1020, 4), (0, 100)),
        (LOG, 1105, 1, None, (1205, 8, *LOG[4:], 1105, 1), (2, 100)),
        (LOG, 1015, 1, None, (1115, 10, *LOG[2:6], 1015, 4), (0, 100)),
        ((1120, 20, 1020, 20), 1030, 1, None, (1120, 20, 1020, 20), (0, 90)),
        ((1120, 25, 1020, 25), 1030, 1, None, (1120, 25, 1020, 25), (0, 90)),  # by a larger limit, before
        ((1120, 25, 1020, 25), 1020, 1, None, (1120, 25, 1020, 25), (0, 100)),
        # refunded: the entry of the instant of the spend
        (LOG, 1030, -1, (1010, 1110, 0, 0), (1120, 8, 1000, 2, 1010, 3, 1020, 3), (2, 90)),
        (LOG, 1030, -1, (1000, 1100, 0, 0), (1120, 8, 1000, 1, 1010, 4, 1020, 3), (2, 90)),
        (LOG, 1030, -4, (1010, 1110, 0, 0), (1120, 5, 1000, 2, 1020, 3), (5, 90)),
        (LOG, 1030, -9, (1010, 1110, 0, 0), (1120, 5, 1000, 2, 1020, 3), (5, 90)),
        (LOG, 1030, -3, (1020, 1120, 0, 0), (1110, 6, 1000, 2, 1010, 4), (4, 80)),
        (LOG, 1030, -3, (1015, 1115, 0, 0), LOG, (1, 90)),  # not here: before a reset
        (LOG, 1030, -3, None, LOG, (1, 90)),
        (LOG, 1030, 0, None, LOG, (1, 90)),
        (LOG, 1020, -2, None, (1120, 7, 1000, 2, 1010, 4, 1020, 1), (3, 100)),
        (LOG, 1105, -1, (1000, 1100, 0, 0), (1120, 7, *LOG[4:]), (3, 15)),  # it has left
        (LOG, 1015, -1, (1020, 1120, 0, 0), (1115, 9, *LOG[2:6], 1015, 3), (1, 100)),
        ((1130, 3, 1030, 3), 1040, -3, (1030, 1130, 0, 0), None, (10, 0)),
        (LOG, 1120, -3, (1020, 1120, 0, 0), None, (10, 0)),
        (None, 1030, -3, None, None, (10, 0)),
        (None, 1030, -3, (1020, 1120, 0, 0), None, (10, 0)),
    ],
)
def test_a_settlement_charges_at_most_one_count_more_and_refunds_the_entry_of_the_spend(
    state: Packed | None, now: int, cost: int, spent: Spent | None, after: Packed | None, left: tuple[int, int]
) -> None:
    remaining, reset_after = left
    assert force(TEN, state, now, cost, spent) == (after, (True, remaining, 0, reset_after, 0, now, 0, 0))


@pytest.mark.parametrize(
    ("now", "entries"),
    [
        (1020, (1000, 2, 1010, 4, 1020, 3)),
        (1019, (1000, 2, 1010, 4, 1019, 3)),
        (1011, (1000, 2, 1010, 4, 1011, 3)),
        (1010, (1000, 2, 1010, 7)),
        (1009, (1000, 2, 1009, 7)),
        (1000, (1000, 9)),
        (900, (900, 9)),
    ],
)
def test_entries_from_the_future_count_from_now_on(now: int, entries: tuple[int, ...]) -> None:
    assert repair(TEN, LOG, now) == (now + 100, 9, *entries)


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


@pytest.mark.parametrize("state", [None, LOG, (1120, 10, 1000, 9, 1020, 1), (1120, 20, 1000, 2, 1020, 18)])
@pytest.mark.parametrize("now", [1030, 1105, 1130])
@pytest.mark.parametrize("cost", [1, 3, 10])
def test_the_turn_comes_when_all_in_front_have_gone_ahead_one_by_one(state: Packed | None, now: int, cost: int) -> None:
    for front in range(35):
        expected = turn_of_a_line_of_single_units(state, now, front, cost)
        assert turn_after(TEN, state, now, front, cost) == expected, front


def test_no_turn_comes_for_more_than_the_whole_count() -> None:
    assert turn_after(TEN, None, 1030, 0, 10) == 0
    assert turn_after(TEN, None, 1030, 0, 11) is None


def test_more_is_left_at_the_latest_when_the_last_entry_leaves() -> None:
    assert grows_after(TEN, 6, 70) == 70


@pytest.mark.parametrize("state", [LOG, (1120, 3, 1020, 3), (1120, 10, 1020, 10)])
def test_what_fits_is_what_a_spend_allows(state: Packed) -> None:
    for now in (1000, 1015, 1019, 1020, 1021, 1030, 1099, 1100, 1101, 1109, 1110, 1119, 1120, 1121):
        for cost in range(1, 12):
            check_fits(TEN, unpacked(TEN.numbers, state), now, cost)


@pytest.mark.parametrize(("cost", "after"), [(3, (1220, 3, 1120, 3)), (0, None), (-1, None)])
def test_a_settlement_when_the_last_entry_leaves_finds_none(cost: int, after: Packed | None) -> None:
    assert force(TEN, LOG, 1120, cost, None)[0] == after
