"""The group law, number by number: windows of ten units in 100 microseconds, buckets of one unit in 100."""

import pytest

from ratebound import parse_limit
from ratebound.kernels import group_law
from ratebound.kernels.packing import unpacked
from ratebound.kernels.penalty import BLOCKED, STRUCK
from ratebound.kernels.state import UNTOUCHED
from ratebound.limit import MAX_SPAN, NO_STRIKE, NOT_GIVEN, STRIKE, Ask, Extra, Limit, Mode
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


# Strikes: two within a minute block for a minute. `now` is 100 seconds.
S = 1_000_000
NOW = 100 * S
DENIED, ALLOWED = parse_limit("2/minute fixed-window as denied"), parse_limit("9/minute fixed-window as allowed")
FULL = (120 * S, 2, 90 * S)  # of DENIED
PENALTY = parse_limit("2 strikes/minute block 1 minute forget 1 hour as guessing")
OTHER = parse_limit("2 strikes/minute block 1 minute forget 1 hour as other")
SLOTS, VALUES = parse_limit("1 concurrent"), parse_limit("1 distinct account/minute")
ONE_STRIKE = (160 * S, NOW, UNTOUCHED, 0, NOW)
EARLIER = (110 * S, 50 * S, UNTOUCHED, 0, 50 * S)
BLOCK = (3690 * S, 30 * S, 130 * S, 1)
FREE = (True, 2, 0, 0, 0, NOW, 0, 0)


def strikes_of(
    *asks: tuple[tuple[Limit, ...], int, int | None, list[Extra] | None],
    states: dict[str, Packed],
    mode: Mode = "spend",
) -> tuple[list[Written], dict[str, Packed | None]]:
    """Decide asks of one key; states are by the name of their limit. Return the rows, and the states of penalties."""
    names = sorted({limit.name for limits, *_ in asks for limit in limits})
    found: list[Packed | None] = [states.get(name) for name in names]
    group: list[Ask] = [("k", *ask) for ask in asks]
    rows = evaluate(group, mode, [names.index(limit.name) for limits, *_ in asks for limit in limits], found, NOW)
    after = dict(zip(names, found, strict=True))
    for name in names:
        if name not in ("guessing", "other"):
            assert after.pop(name) == states.get(name), "a denial stores nothing else"
    return rows, after


def test_a_denial_is_a_strike_in_the_same_step_and_its_row_says_so() -> None:
    for limits, place in (((DENIED, PENALTY), 1), ((PENALTY, DENIED), 0), ((ALLOWED, PENALTY, DENIED), 1)):
        rows, after = strikes_of((limits, 1, None, None), states={"denied": FULL})
        assert after == {"guessing": ONE_STRIKE}
        assert rows[place] == (True, 1, 0, 60 * S, 0, NOW, STRUCK, 0)
        rows, after = strikes_of((limits, 1, None, None), states={"denied": FULL, "guessing": EARLIER})
        assert after == {"guessing": (3760 * S, NOW, 160 * S, 1)}
        assert rows[place] == (False, 0, 60 * S, 3660 * S, 0, NOW, BLOCKED, 0)


def test_an_allowed_group_stores_no_strike_and_a_block_denies_it() -> None:
    states: list[Packed | None] = [None, EARLIER]
    group: list[Ask] = [("k", (ALLOWED, PENALTY), 1, None, None)]
    assert [row[0] for row in evaluate(group, "spend", [0, 1], states, NOW)] == [True, True]
    assert states == [(120 * S, 1, NOW), EARLIER]
    states = [None, BLOCK]
    rows = evaluate(group, "spend", [0, 1], states, NOW)
    assert rows == [(True, 9, 0, 0, 0, NOW, 0, 0), (False, 0, 30 * S, 3590 * S, 0, NOW, 0, 0)]
    assert states == [None, BLOCK]


def test_a_denied_value_is_a_strike() -> None:
    extras = [(7, 0, 0, 0), NOT_GIVEN]
    held = (130 * S, 1, 3, 130 * S)
    _, after = strikes_of(((VALUES, PENALTY), 1, None, extras), states={VALUES.name: held})
    assert after == {"guessing": ONE_STRIKE}


def test_a_denial_by_slots_is_no_strike() -> None:
    """Its clients run at once by chance, and nobody knows when one ends."""
    extras = [(7, 0, 0, 0), NOT_GIVEN]
    held = (130 * S, 1, 3, 130 * S)
    rows, after = strikes_of(((SLOTS, PENALTY), 1, None, extras), states={SLOTS.name: held})
    assert (rows[0][0], rows[1], after) == (False, FREE, {"guessing": None})
    extras = [(7, 0, 0, 0), NOT_GIVEN, NOT_GIVEN]
    _, after = strikes_of(((SLOTS, DENIED, PENALTY), 1, None, extras), states={SLOTS.name: held, "denied": FULL})
    assert after == {"guessing": ONE_STRIKE}, "but the denial of a rate beside them is"


def test_a_cost_that_never_passes_is_no_strike() -> None:
    rows, after = strikes_of(((DENIED, PENALTY), 3, None, None), states={})
    assert (rows[0][0], rows[0][2], rows[1], after) == (False, None, FREE, {"guessing": None})


@pytest.mark.parametrize("patience", [0, 1, 10 * S])
def test_a_waiter_gets_no_strike(patience: int) -> None:
    _, after = strikes_of(((DENIED, PENALTY), 1, patience, None), states={"denied": FULL})
    assert after == {"guessing": None}


def test_an_ask_that_says_so_gets_no_strike() -> None:
    ask = ((DENIED, PENALTY), 1, None, [NOT_GIVEN, NO_STRIKE])
    rows, after = strikes_of(ask, states={"denied": FULL})
    assert (rows[1], after) == (FREE, {"guessing": None})
    with_strike = ((DENIED, PENALTY, OTHER), 1, None, [NOT_GIVEN, NO_STRIKE, NOT_GIVEN])
    _, after = strikes_of(with_strike, states={"denied": FULL})
    assert after == {"guessing": None, "other": ONE_STRIKE}


def test_no_penalty_of_a_group_counts_while_one_of_them_blocks() -> None:
    for asks in (
        [((DENIED, PENALTY, OTHER), 1, None, None)],
        [((DENIED, PENALTY), 1, None, None), ((OTHER,), 1, None, None)],
        [((OTHER,), 1, None, None), ((DENIED, PENALTY), 1, None, None)],
    ):
        _, after = strikes_of(*asks, states={"denied": FULL, "other": BLOCK})
        assert after == {"guessing": None, "other": BLOCK}


def test_a_peek_is_no_strike() -> None:
    rows, after = strikes_of(((DENIED, PENALTY), 1, None, None), states={"denied": FULL}, mode="peek")
    assert (rows[0][0], rows[1], after) == (False, FREE, {"guessing": None})


def test_where_states_are_shared_there_are_no_strikes() -> None:
    for strikes, given in ((True, STRUCK), (False, 0)):
        states = [unpacked(DENIED.numbers, FULL), unpacked(PENALTY.numbers, None)]
        group: list[Ask] = [("k", (DENIED, PENALTY), 1, None, None)]
        rows = group_law.evaluate(group, "spend", [0, 1], states, NOW, strikes)
        assert ([row[0] for row in rows], rows[1][6]) == ([False, True], given)


def test_a_strike_is_for_the_penalties_of_the_ask_that_was_denied() -> None:
    for asks in (
        [((DENIED, PENALTY), 1, None, None), ((ALLOWED, OTHER), 1, None, None)],
        [((ALLOWED, OTHER), 1, None, None), ((DENIED, PENALTY), 1, None, None)],
    ):
        _, after = strikes_of(*asks, states={"denied": FULL})
        assert after == {"guessing": ONE_STRIKE, "other": None}
    _, after = strikes_of(((DENIED, PENALTY, OTHER), 1, None, None), states={"denied": FULL})
    assert after == {"guessing": ONE_STRIKE, "other": ONE_STRIKE}


def test_a_penalty_that_several_asks_share_is_struck_once_and_all_rows_say_so() -> None:
    asks = [((DENIED, PENALTY), 1, None, None), ((ALLOWED, PENALTY), 1, None, None), ((DENIED, PENALTY), 1, None, None)]
    rows, after = strikes_of(*asks, states={"denied": FULL})
    assert after == {"guessing": ONE_STRIKE}
    assert [rows[place][6] for place in (1, 3, 5)] == [STRUCK] * 3


def test_the_penalty_of_a_patient_ask_is_struck_by_another_ask_that_shares_it() -> None:
    asks = [((DENIED, PENALTY), 1, 0, None), ((DENIED, PENALTY), 1, None, None)]
    assert strikes_of(*asks, states={"denied": FULL})[1] == {"guessing": ONE_STRIKE}


def test_strikes_within_one_second_are_one_and_the_row_of_the_second_says_none() -> None:
    struck = (160 * S - 1, NOW - 1, UNTOUCHED, 0, NOW - 1)
    rows, after = strikes_of(((DENIED, PENALTY), 1, None, None), states={"denied": FULL, "guessing": struck})
    assert (rows[1], after) == ((True, 1, 0, 60 * S - 1, 0, NOW, 0, 0), {"guessing": struck})


def test_a_penalty_whose_count_was_lowered_blocks_with_the_next_strike() -> None:
    """No strike remains, but it does not block yet."""
    many = (110 * S, 50 * S, UNTOUCHED, 0, 48 * S, 49 * S, 50 * S)
    rows, after = strikes_of(((DENIED, PENALTY), 1, None, None), states={"denied": FULL, "guessing": many})
    assert (rows[1][6], after) == (BLOCKED, {"guessing": (3760 * S, NOW, 160 * S, 1)})


def test_equal_checks_that_pass_only_alone_are_a_strike() -> None:
    used = (120 * S, 1, 90 * S)
    asks = [((DENIED, PENALTY), 1, None, None)] * 2
    rows, after = strikes_of(*asks, states={"denied": used})
    assert ([row[0] for row in rows], after) == ([True, True, False, True], {"guessing": ONE_STRIKE})


def test_a_group_is_struck_by_force_whatever_its_limits_say() -> None:
    states: list[Packed | None] = [FULL, None, None]
    group: list[Ask] = [("k", (DENIED, PENALTY, OTHER), 0, None, [NOT_GIVEN, STRIKE, NOT_GIVEN])]
    rows = evaluate(group, "force", [0, 1, 2], states, NOW)
    assert [row[6] for row in rows[1:]] == [STRUCK, 0]
    assert states == [FULL, ONE_STRIKE, None]


def test_the_clock_steps_back_and_the_denial_is_no_second_strike() -> None:
    """A strike of the future is as if it were now."""
    later = (200 * S, 140 * S, UNTOUCHED, 0, 140 * S)
    rows, after = strikes_of(((DENIED, PENALTY), 1, None, None), states={"denied": FULL, "guessing": later})
    assert (rows[1][1], rows[1][6], after) == (1, 0, {"guessing": ONE_STRIKE})
