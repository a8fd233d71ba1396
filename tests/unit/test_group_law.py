"""The group law, number by number: windows of ten units in 100 microseconds, buckets of one unit in 100."""

import pytest

from ratebound.limit import MAX_SPAN, Ask, Limit, Mode
from tests.packed_kernels import Packed, Written, evaluate, peek

WINDOW = Limit(10, 100, algorithm="fixed-window")
SLOW = Limit(1, 100, 1, "gcra")
QUICK = Limit(1, 60, 1, "gcra")
FIVE, TEN = Limit(5, 100, 5, "gcra"), Limit(10, 100, 10, "gcra")
USED = (1100, 4, 1010)  # a window that ends at 1100


def decided(
    *asks: tuple[int, Limit, int, int | None], states: list[Packed | None], now: int = 1000, mode: Mode = "spend"
) -> list[Written]:
    """Decide a group of (place in `states`, limit, cost, patience)."""
    group: list[Ask] = [("k", (limit,), cost, patience, None) for _, limit, cost, patience in asks]
    return evaluate(group, mode, [slot for slot, *_ in asks], states, now)


def line(end: int, *holes: int) -> Packed:
    """Return a bucket of SLOW whose places are taken until `end`, without those that begin at `holes`."""
    edges = [number for hole in holes for number in (1000 + hole, 0, 1100 + hole, 0)]
    return (1000 + end, 0, 1000, 1000, 0, 1000, len(holes), *edges)


def test_a_group_that_passes_stores_every_spend() -> None:
    states: list[Packed | None] = [None, USED]
    rows = decided((0, WINDOW, 3, None), (1, WINDOW, 6, None), states=states, now=1030)
    assert rows == [(True, 7, 0, 70, 0, 1030, 1030, 0), (True, 0, 0, 70, 0, 1030, 1010, 0)]
    assert states == [(1100, 3, 1030), (1100, 10, 1010)]


def test_a_denied_group_stores_nothing_and_says_what_is_left_now() -> None:
    states: list[Packed | None] = [None, USED, None]
    rows = decided((0, WINDOW, 3, None), (1, WINDOW, 7, None), (2, WINDOW, 1, None), states=states, now=1030)
    untouched = (True, 10, 0, 0, 0, 1030, 0, 0)
    assert rows == [untouched, (False, 6, 70, 70, 0, 1030, 0, 0), untouched]
    assert states == [None, USED, None]


@pytest.mark.parametrize("mode", ["spend", "peek"])
def test_equal_ones_are_denied_for_what_they_cost_together(mode: Mode) -> None:
    states: list[Packed | None] = [(1100, 1, 1000)]
    rows = decided((0, WINDOW, 5, None), (0, WINDOW, 5, None), states=states, mode=mode)
    assert rows == [(True, 9, 0, 100, 0, 1000, 0, 0), (False, 9, 100, 100, 0, 1000, 0, 0)]
    assert states == [(1100, 1, 1000)]


def test_one_that_passes_only_without_those_before_it_says_how_long_it_waits_after_them() -> None:
    """Two limits share each state. A unit of FIVE is 20 microseconds long, and one of TEN 10."""
    states: list[Packed | None] = [None, None]
    rows = decided((1, FIVE, 1, None), (0, TEN, 3, None), (0, FIVE, 3, None), (1, TEN, 9, None), states=states)
    assert [row[0] for row in rows] == [True, True, False, False]
    assert rows[0] == (True, 5, 0, 0, 0, 1000, 0, 0)
    assert rows[2] == (False, 5, None, 0, 0, 1000, 0, 0)
    assert rows[3] == (False, 8, 10, 20, 0, 1000, 0, 0)
    assert states == [None, None]


def test_buckets_that_have_room_now_take_no_place_later() -> None:
    states: list[Packed | None] = [None, None]
    rows = decided((0, SLOW, 1, 500), (1, QUICK, 1, 500), states=states)
    assert [row[4] for row in rows] == [0, 0]
    assert states == [(1100, 0, 1000, 1000, 0), (1060, 0, 1000, 1000, 0)]


def test_places_in_several_buckets_are_taken_for_one_instant() -> None:
    states: list[Packed | None] = [(1100, 0, 1000, 1000, 0), (1060, 0, 1000, 1000, 0)]
    rows = decided((0, SLOW, 1, 500), (1, QUICK, 1, 500), states=states)
    assert [row[4] for row in rows] == [100, 100]
    assert states[1] is not None
    assert states[1][:2] == (1160, 0)


def test_a_bucket_that_has_no_room_at_that_instant_moves_it_further_for_all() -> None:
    """QUICK is free from 60 to 130 and from 190 on."""
    states: list[Packed | None] = [line(100), (1190, 0, 1000, 1000, 0, 1000, 1, 1060, 0, 1130, 0)]
    rows = decided((0, SLOW, 1, 500), (1, QUICK, 1, 500), states=states)
    assert [row[4] for row in rows] == [190, 190]


def test_one_bucket_alone_takes_the_end_of_its_line_in_one_step() -> None:
    states: list[Packed | None] = [(1100, 0, 1000, 1000, 0)]
    assert decided((0, SLOW, 1, 500), states=states) == [(True, 0, 0, 200, 100, 1000, 0, 0)]
    assert states == [(1200, 0, 1000, 1000, 0)]


def test_equal_ones_take_one_place_after_the_other() -> None:
    states: list[Packed | None] = [(1100, 0, 1000, 1000, 0)]
    rows = decided((0, SLOW, 1, 900), (0, SLOW, 1, 900), states=states)
    assert [row[4] for row in rows] == [200, 300]


def test_an_instant_that_holes_have_in_common_is_found_within_eight_steps() -> None:
    states: list[Packed | None] = [line(1000, 100, 300, 500, 700), line(1000, 200, 400, 600, 700)]
    rows = decided((0, SLOW, 1, 5000), (1, SLOW, 1, 5000), states=states)
    assert [row[4] for row in rows] == [700, 700]


def test_after_eight_steps_only_the_ends_of_the_lines_are_looked_at_and_the_holes_stay() -> None:
    odd, even = (100, 300, 500, 700, 900, 1100), (200, 400, 600, 800, 1000, 1100)
    states: list[Packed | None] = [line(1300, *odd), line(1300, *even), None, USED]
    rows = decided(*[(slot, SLOW, 1, 5000) for slot in range(3)], (3, WINDOW, 1, None), states=states)
    assert [row[4] for row in rows] == [1300, 1300, 1300, 0]
    for state, holes in zip(states, (odd, even), strict=False):
        assert state is not None
        assert state[6:] == line(1400, *holes)[6:]
    assert states[3] == (1100, 5, 1010)


@pytest.mark.parametrize("mode", ["spend", "peek"])
def test_who_has_no_patience_takes_a_free_place_only_now(mode: Mode) -> None:
    rows = decided((0, SLOW, 1, None), states=[line(200, 0)], mode=mode)
    assert (rows[0][0], rows[0][4]) == (True, 0)


def test_a_group_is_forced_in_order_each_with_what_it_was_told() -> None:
    states: list[Packed | None] = [USED, (1100, 6, 1010)]
    spent = [(1010, 1100, 0, 1010), (1010, 1100, 0, 1005)]  # of the second there was a reset
    group: list[Ask] = [("k", (WINDOW, WINDOW), -2, None, spent), ("k", (WINDOW,), 1, None, None)]
    rows = evaluate(group, "force", [0, 1, 0], states, 1030)
    assert [row[1] for row in rows] == [8, 4, 7]
    assert states == [(1100, 3, 1010), (1100, 6, 1010)]


QUEUE = Limit(10, 100, 10, "leaky-bucket")
PLACES = (1090, 0, 1030, 1030, 0, 1080, 1, 1040, 0, 1050, 0)  # with a hole of one unit


@pytest.mark.parametrize(
    ("limit", "state", "cost", "patience", "front", "row"),
    [
        # without patience: as a spend would say, and what is left now
        (WINDOW, None, 10, None, 0, (True, 10, 0, 0, 0, 1030, 0, 0)),
        (WINDOW, USED, 6, None, 0, (True, 6, 0, 70, 0, 1030, 0, 0)),
        (WINDOW, USED, 7, None, 0, (False, 6, 70, 70, 0, 1030, 0, 0)),
        (WINDOW, USED, 3, None, 3, (True, 6, 0, 70, 0, 1030, 0, 0)),
        (WINDOW, USED, 3, None, 4, (False, 6, 70, 70, 0, 1030, 0, 0)),
        (QUEUE, (1060, 0, 1030, 1030, 0), 1, None, 0, (True, 7, 0, 30, 30, 1030, 0, 0)),
        (QUEUE, None, 1, None, 0, (True, 10, 0, 0, 0, 1030, 0, 0)),
        (QUEUE, PLACES, 1, None, 0, (True, 5, 0, 60, 10, 1030, 0, 0)),  # in the hole
        (QUEUE, PLACES, 1, None, 1, (True, 5, 0, 60, 60, 1030, 0, 0)),  # two do not go into it
        # with patience: when the turn comes
        (WINDOW, USED, 6, 0, 0, (True, 6, 0, 70, 0, 1030, 0, 0)),
        (WINDOW, USED, 7, 69, 0, (False, 6, 1, 70, 0, 1030, 0, 0)),
        (WINDOW, USED, 7, 70, 0, (True, 6, 0, 70, 70, 1030, 0, 0)),
        (WINDOW, USED, 7, 71, 0, (True, 6, 0, 70, 70, 1030, 0, 0)),
        (WINDOW, USED, 7, 70, 10, (False, 6, 100, 70, 0, 1030, 0, 0)),
        (WINDOW, USED, 11, 999, 0, (False, 6, None, 70, 0, 1030, 0, 0)),
        # behind so many that no number would tell when
        (WINDOW, None, 1, 0, MAX_SPAN // 10, (False, 10, MAX_SPAN - 30, 0, 0, 1030, 0, 0)),
        (WINDOW, None, 1, 0, MAX_SPAN // 10 + 1, (False, 10, None, 0, 0, 1030, 0, 0)),
    ],
)
def test_a_peek_says_when_the_turn_comes_and_what_is_left_now(
    limit: Limit, state: Packed | None, cost: int, patience: int | None, front: int, row: Written
) -> None:
    assert peek(limit, state, 1030, cost, patience, front) == (state, row)


@pytest.mark.parametrize("patience", [None, 0])
def test_a_peek_mends_a_state_after_a_step_back_of_the_clock(patience: int | None) -> None:
    assert peek(WINDOW, (1300, 4, 1210), 1030, 1, patience) == ((1100, 4, 1210), (True, 6, 0, 70, 0, 1030, 0, 0))
