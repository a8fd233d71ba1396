"""The bucket, number by number. Each case holds a decision of the arithmetic: a rounding, a bound, a branch.

A state is (tat, part, last, since, given), with holes or debts (…, turn, number of holes, start, part, end, part, …).
"""

import pytest

from ratebound.kernels.packing import unpacked
from ratebound.limit import UNITS, Limit, Spent
from tests.packed_kernels import (
    Packed,
    Written,
    check_fits,
    force,
    grows_after,
    repair,
    spend,
    standing,
    turn_after,
    without_holes,
)

BUCKET, QUEUE = Limit(3, 10, 4, "gcra"), Limit(3, 10, 4, "leaky-bucket")  # a unit takes three and a third microseconds
SINGLE, PAIR = Limit(2, 10, 1, "gcra"), Limit(4, 12, 2, "gcra")
THIRDS = Limit(3, 10, 3, "gcra")  # the time of a burst less one unit has a fraction, too
SLOW_QUEUE = Limit(1, 10, 2, "leaky-bucket")
FAST = Limit(7, 2, 9, "gcra")  # more than one unit in a microsecond
YEARS = Limit(2, UNITS["year"], 200, "gcra")  # a burst that takes a hundred years to come back


@pytest.mark.parametrize(("costs", "tat", "part"), [((1,), 0, 1), ((1, 1), 1, 0), ((1, 1, 1), 1, 1), ((2, 2), 2, 0)])
def test_a_fraction_of_a_bucket_is_less_than_a_microsecond(costs: tuple[int, ...], tat: int, part: int) -> None:
    state: Packed | None = None
    for cost in costs:  # half a microsecond for each unit
        state, _ = spend(Limit(2, 1, 9, "gcra"), state, 1000, cost, None, 0)
    assert state is not None
    assert state[:2] == (1000 + tat, part)


@pytest.mark.parametrize(
    ("limit", "state", "now", "cost", "patience", "lead", "after", "row"),
    [
        # an untouched bucket
        (SLOW_QUEUE, None, 997, 3, 0, 3, None, (False, 2, None, 0, 0, 997, 0, 0)),
        (
            BUCKET,
            None,
            1003,
            2,
            0,
            3,
            (1012, 2, 1003, 1003, 0, 1006, 1, 1003, 0, 1006, 0),
            (True, 1, 0, 10, 0, 1003, 0, 2, 9),
        ),
        (BUCKET, None, 1000, 2, 3, 0, (1006, 2, 1000, 1000, 0), (True, 2, 0, 7, 0, 1000, 0, 2)),
        (
            QUEUE,
            None,
            1001,
            4,
            60,
            7,
            (1021, 1, 1001, 1001, 0, 0, 1, 1001, 0, 1008, 0),
            (True, 2, 0, 21, 7, 1001, 0, 1, 20),
        ),
        # places without holes
        (THIRDS, (1007, 1, 1000, 999, 0), 1000, 1, None, 0, (1010, 2, 1000, 999, 0), (True, 0, 0, 11, 0, 1000, 0, 2)),
        (THIRDS, (1007, 2, 1000, 999, 0), 1000, 1, None, 0, (1007, 2, 1000, 999, 0), (False, 0, 1, 8, 0, 1000, 0, 0)),
        (THIRDS, (1008, 1, 1000, 999, 0), 1000, 1, None, 0, (1008, 1, 1000, 999, 0), (False, 0, 1, 9, 0, 1000, 0, 0)),
        (FAST, (1000, 3, 999, 997, 0), 999, 4, 0, 12, (1000, 3, 999, 997, 0), (False, 7, 10, 2, 0, 999, 0, 0)),
        (PAIR, (1000, 0, 994, 1000, 0), 994, 2, 0, 0, (1000, 0, 994, 1000, 0), (False, 0, 6, 6, 0, 994, 0, 0)),
        (BUCKET, (1008, 1, 1005, 1005, 0), 1008, 2, 0, 0, (1015, 0, 1008, 1005, 0), (True, 2, 0, 7, 0, 1008, 0, 0)),
        (BUCKET, (1025, 1, 1014, 1002, 0), 1011, 1, 0, 0, (1022, 1, 1011, 1015, 0), (False, 0, 1, 12, 0, 1011, 0, 0)),
        (SINGLE, (1009, 2, 1003, 1003, 0), 1004, 5, 3, 3, (1010, 0, 1003, 1003, 0), (False, 0, None, 6, 0, 1004, 0, 0)),
        (FAST, (1000, 2, 1000, 1000, 0), 1006, 5, 20, 0, (1007, 3, 1006, 1006, 0), (True, 7, 0, 2, 0, 1006, 0, 3)),
        (BUCKET, (1017, 0, 1007, 1007, 0), 1007, 3, 60, 0, (1027, 0, 1007, 1007, 0), (True, 0, 0, 20, 6, 1007, 0, 0)),
        # holes, debts or a turn
        (
            SINGLE,
            (1031, 2, 1009, 1005, 0, 1021, 0),
            1010,
            5,
            0,
            0,
            (1032, 0, 1009, 1005, 0, 1021, 0),
            (False, 0, None, 22, 0, 1010, 0, 0),
        ),
        (
            PAIR,
            (1006, 0, 1000, 1000, 3, 1006, 0),
            1001,
            2,
            60,
            3,
            (1012, 0, 1001, 1000, 3, 1006, 0),
            (True, 0, 0, 11, 5, 1001, 3, 0, 11),
        ),
        (
            QUEUE,
            (1016, 2, 1005, 1000, 4, 1013, 0),
            1005,
            1,
            None,
            0,
            (1016, 2, 1005, 1000, 4, 1013, 0),
            (False, 0, 1, 12, 0, 1005, 0, 0),
        ),
        (
            QUEUE,
            (1034, 2, 1001, 1001, 0, 0, 1, 1001, 0, 1008, 0),
            995,
            1,
            60,
            0,
            (1028, 2, 995, 1002, 0, -6, 1, 998, 1, 1002, 0),
            (True, 1, 0, 34, 0, 995, 0, 1, 3),
        ),
        (
            PAIR,
            (1027, 0, 999, 1003, 0, 991, 0, 1005, 0, 1027, 0),
            999,
            2,
            60,
            3,
            (1033, 0, 999, 1003, 0, 1027, 0, 1005, 0, 1027, 0),
            (True, 0, 0, 34, 28, 999, 0, 0, 34),
        ),
        (
            SLOW_QUEUE,
            (1054, 1, 1016, 1011, 0, 1008, 0, 1029, 1, 1054, 1),
            1028,
            5,
            None,
            0,
            (1055, 0, 1016, 1011, 0, 1008, 0, 1030, 0, 1054, 0),
            (False, 0, None, 27, 0, 1028, 0, 0),
        ),
        (
            SLOW_QUEUE,
            (1050, 0, 1009, 1000, 0, 1040, 2, 1010, 0, 1020, 0, 1027, 0, 1030, 0),
            1009,
            1,
            None,
            0,
            (1050, 0, 1009, 1000, 0, 1040, 1, 1027, 0, 1030, 0),
            (True, 0, 0, 41, 1, 1009, 0, 0, 11),
        ),
    ],
)
def test_a_spend_takes_the_first_place_that_conforms(
    limit: Limit,
    state: Packed | None,
    now: int,
    cost: int,
    patience: int | None,
    lead: int,
    after: Packed | None,
    row: Written,
) -> None:
    found = spend(limit, state, now, cost, patience, lead)
    assert found == (after, row)


@pytest.mark.parametrize(
    ("limit", "state", "now", "cost", "spent", "after", "row"),
    [
        # an untouched bucket
        (PAIR, None, 999, 1, None, (1002, 0, 999, 999, 0), (True, 1, 0, 3, 0, 999, 0, 0)),
        (PAIR, None, 1012, 0, None, None, (True, 2, 0, 0, 0, 1012, 0, 0)),
        (QUEUE, None, 998, 40, None, (1021, 1, 998, 998, 0, 995, 0, 1011, 1, 1021, 1), (True, 0, 0, 24, 0, 998, 0, 0)),
        # places without holes
        (QUEUE, (1008, 0, 998, 1003, 0), 998, 0, None, (1008, 0, 998, 1003, 0), (True, 1, 0, 10, 0, 998, 0, 0)),
        (
            SINGLE,
            (1004, 0, 999, 999, 0),
            1004,
            2,
            None,
            (1014, 0, 1004, 999, 0, 999, 0, 1009, 0, 1014, 0),
            (True, 0, 0, 10, 0, 1004, 0, 0),
        ),
        (BUCKET, (1003, 1, 1000, 1000, 0), 994, -1, None, (994, 0, 994, 1001, 3), (True, 4, 0, 0, 0, 994, 3, 0)),
        (
            YEARS,
            (3153600000001000, 0, 1000, 1000, 0),
            1000,
            30,
            None,
            (3185136000001000, 0, 1000, 1000, 0, 1000, 0, 3153600000001000, 0, 3185136000001000, 0),
            (True, 0, 0, 3185136000000000, 0, 1000, 0, 0),
        ),
        (
            FAST,
            (1000, 2, 1000, 1000, 0),
            1000,
            -1,
            (1000, 1000, 2, 0),
            (1000, 0, 1000, 1000, 0),
            (True, 9, 0, 0, 0, 1000, 0, 0),
        ),
        (
            BUCKET,
            (1023, 1, 1001, 1000, 0),
            1003,
            -1,
            (1000, 1013, 1, 0),
            (1023, 1, 1003, 1000, 0, 1010, 1, 1010, 0, 1013, 1),
            (True, 1, 0, 21, 0, 1003, 0, 0),
        ),
        (
            QUEUE,
            (1010, 0, 1000, 1000, 0),
            1000,
            -2,
            (1000, 1006, 2, 0),
            (1010, 0, 1000, 1000, 0, 1007, 1, 1000, 0, 1006, 2),
            (True, 3, 0, 10, 0, 1000, 0, 0),
        ),
        (
            BUCKET,
            (1010, 0, 1006, 1001, 7),
            1006,
            -1,
            (1002, 1014, 1, 0),
            (1009, 0, 1006, 1001, 8),
            (True, 3, 0, 3, 0, 1006, 8, 0),
        ),
        (
            QUEUE,
            (1010, 0, 1004, 1000, 7),
            1004,
            -1,
            (1001, 1006, 2, 0),
            (1010, 0, 1004, 1000, 7, 1007, 0),
            (True, 2, 0, 6, 0, 1004, 7, 0),
        ),
        (
            QUEUE,
            (1006, 2, 1003, 1000, 0),
            1003,
            -1,
            (1000, 1003, 1, 0),
            (1006, 2, 1003, 1000, 0),
            (True, 3, 0, 4, 0, 1003, 0, 0),
        ),
        (
            BUCKET,
            (1020, 0, 1000, 1000, 0),
            1003,
            -1,
            (1000, 1003, 1, 0),
            (1020, 0, 1003, 1000, 0, 1007, 1, 1003, 0, 1003, 1),
            (True, 0, 0, 17, 0, 1003, 0, 0),
        ),
        (
            BUCKET,
            (1013, 1, 1000, 1000, 4),
            1001,
            -1,
            (1000, 1010, 0, 4),
            (1010, 0, 1001, 1000, 7),
            (True, 1, 0, 9, 0, 1001, 7, 0),
        ),
        # holes, debts or a turn
        (
            PAIR,
            (1015, 0, 1002, 1002, 0, 0, 1, 1002, 0, 1009, 0),
            1002,
            2,
            None,
            (1015, 0, 1002, 1002, 0, 1009, 1, 1008, 0, 1009, 0),
            (True, 0, 0, 13, 0, 1002, 0, 0),
        ),
        (
            QUEUE,
            (1018, 2, 1002, 1002, 0, 999, 0, 1015, 1, 1018, 2),
            1002,
            5,
            None,
            (1028, 2, 1002, 1002, 0, 999, 0, 1015, 1, 1028, 2),
            (True, 0, 0, 27, 0, 1002, 0, 0),
        ),
        (
            BUCKET,
            (1025, 1, 1002, 1002, 0, 989, 0, 1015, 1, 1025, 1),
            1002,
            -3,
            None,
            (1015, 1, 1002, 1002, 10),
            (True, 0, 0, 14, 0, 1002, 10, 0),
        ),
        (
            SINGLE,
            (1029, 2, 1005, 1001, 0, 1013, 1, 1009, 2, 1013, 0),
            1005,
            0,
            (1001, 1016, 1, 0),
            (1030, 0, 1005, 1001, 0, 1013, 1, 1010, 0, 1013, 0),
            (True, 0, 0, 25, 0, 1005, 0, 0),
        ),
        (
            BUCKET,
            (1030, 2, 1007, 1002, 4, 1017, 0, 1020, 1, 1020, 2),
            1007,
            -1,
            (1004, 1014, 0, 4),
            (1030, 2, 1007, 1002, 4, 1017, 2, 1011, 0, 1014, 0, 1020, 1, 1020, 2),
            (True, 0, 0, 24, 0, 1007, 4, 0),
        ),
        (
            PAIR,
            (1030, 0, 1007, 1005, 0, 1024, 0, 1013, 0, 1027, 0),
            1007,
            -1,
            (1005, 1008, 0, 0),
            (1030, 0, 1007, 1005, 0, 1024, 1, 1026, 0, 1027, 0, 1013, 0, 1026, 0),
            (True, 0, 0, 23, 0, 1007, 0, 0),
        ),
        (
            QUEUE,
            (1025, 0, 1005, 1001, 0, 1021, 0, 1018, 1, 1021, 2),
            1005,
            -1,
            (1005, 1014, 1, 0),
            (1025, 0, 1005, 1001, 0, 1021, 1, 1018, 1, 1021, 2),
            (True, 0, 0, 20, 0, 1005, 0, 0),
        ),
        (
            QUEUE,
            (1023, 1, 1001, 1000, 0, 1013, 0, 1016, 2, 1023, 1),
            1002,
            -1,
            (1001, 1016, 2, 0),
            (1020, 0, 1002, 1000, 0, 1013, 0, 1015, 1, 1020, 0),
            (True, 0, 0, 18, 0, 1002, 0, 0),
        ),
        (
            PAIR,
            (1013, 0, 1006, 1001, 0, 1007, 1, 1006, 0, 1007, 0),
            1007,
            -1,
            (1003, 1010, 0, 0),
            (1011, 0, 1007, 1001, 2),
            (True, 0, 0, 4, 0, 1007, 2, 0),
        ),
        (
            PAIR,
            (1023, 0, 1008, 1003, 0, 1020, 1, 1018, 0, 1020, 0, 1014, 0, 1018, 0),
            1009,
            5,
            None,
            (1033, 0, 1009, 1003, 0, 1020, 0, 1015, 0, 1020, 0, 1023, 0, 1033, 0),
            (True, 0, 0, 24, 0, 1009, 0, 0),
        ),
    ],
)
def test_a_settlement_charges_up_to_a_count_more_and_gives_back_what_is_still_ahead(
    limit: Limit, state: Packed | None, now: int, cost: int, spent: Spent | None, after: Packed | None, row: Written
) -> None:
    assert force(limit, state, now, cost, spent) == (after, row)


@pytest.mark.parametrize(("number", "kept", "since"), [(32, 32, 1000), (33, 32, 1001)])
def test_of_too_many_debts_the_last_are_forgotten_and_nothing_is_given_back_of_spends_before(
    number: int, kept: int, since: int
) -> None:
    debts = [instant for i in range(number) for instant in (1010 + 2 * i, 0, 1011 + 2 * i, 0)]
    state, _ = force(SINGLE, (1080, 0, 1000, 1000, 0, 1005, 0, *debts), 1000, 0, None)
    assert state == (1080, 0, 1000, since, 0, 1005, 0, *debts[: 4 * kept])


def test_of_too_many_holes_the_last_are_forgotten() -> None:
    holes = [instant for i in range(33) for instant in (1010 + 2 * i, 0, 1011 + 2 * i, 0)]
    state, _ = force(SINGLE, (1080, 0, 1000, 1000, 0, 1005, 33, *holes), 1000, 0, None)
    assert state == (1080, 0, 1000, 1000, 0, 1005, 32, *holes[: 4 * 32])


@pytest.mark.parametrize(
    ("limit", "state", "now", "after"),
    [
        (BUCKET, (997, 1, 994, 994, 0), 993, (996, 1, 993, 995, 0)),
        (FAST, (995, 2, 995, 995, 0), 995, (995, 2, 995, 995, 0)),
        (QUEUE, (1009, 1, 996, 1001, 0, 999, 0), 997, (1009, 1, 996, 1001, 0, 999, 0)),
        (FAST, (999, 4, 996, 996, 0, 999, 1, 996, 0, 999, 0), 995, (998, 4, 995, 997, 0, 998, 1, 995, 0, 998, 0)),
        (
            QUEUE,
            (1030, 1, 997, 997, 0, 987, 0, 1017, 0, 1030, 1),
            998,
            (1030, 1, 997, 997, 0, 987, 0, 1017, 0, 1030, 1),
        ),
        (BUCKET, (1020, 0, 1000, 1000, 0, 1010, 1, 1012, 5, 1013, 4), 1000, (1020, 0, 1000, 1000, 0, 1010, 0)),
        (
            QUEUE,
            (1010, 1, 1000, 1000, 0, 0, 2, 1000, 0, 1003, 0, 1006, 1, 1007, 0),
            1005,
            (1010, 1, 1000, 1000, 0, 0, 2, 1000, 0, 1003, 0, 1006, 1, 1007, 0),
        ),
    ],
)
def test_after_a_step_back_of_the_clock_all_instants_move_back_with_it(
    limit: Limit, state: Packed, now: int, after: Packed
) -> None:
    assert repair(limit, state, now) == after


@pytest.mark.parametrize(
    ("limit", "state", "now", "left"),
    [
        # an untouched bucket
        (BUCKET, None, 1000, (4, 0)),
        # places without holes
        (FAST, (995, 2, 995, 995, 0), 995, (9, 1)),
        (FAST, (998, 1, 997, 1001, 0), 997, (8, 2)),
        (PAIR, (1005, 0, 999, 999, 0), 999, (0, 6)),
        (PAIR, (1015, 0, 999, 999, 0), 999, (0, 16)),  # places in the future
        # holes, debts or a turn
        (QUEUE, (1009, 1, 996, 1001, 0, 999, 0), 997, (0, 13)),
        (QUEUE, (1028, 0, 998, 998, 0, 995, 0, 1011, 1, 1028, 0), 998, (0, 30)),
        (PAIR, (1015, 0, 1002, 1002, 0, 0, 1, 1002, 0, 1009, 0), 1003, (2, 12)),
        (QUEUE, (1027, 0, 1002, 997, 0, 1024, 2, 1007, 0, 1010, 1, 1017, 0, 1020, 1), 1002, (1, 25)),
    ],
)
def test_what_is_left_is_what_conforms_now(limit: Limit, state: Packed | None, now: int, left: tuple[int, int]) -> None:
    assert standing(limit, state, now) == left


@pytest.mark.parametrize(
    ("limit", "state", "now", "front", "cost", "turn"),
    [
        # an untouched bucket
        (SLOW_QUEUE, None, 1000, 0, 2, 0),
        # places without holes
        (BUCKET, (996, 1, 993, 995, 0), 993, 5, 1, 10),
        # holes, debts or a turn
        (PAIR, (1015, 0, 1002, 1002, 0, 0, 1, 1002, 0, 1009, 0), 1003, 1, 2, 12),
    ],
)
def test_the_turn_comes_after_all_in_front_have_a_place(
    limit: Limit, state: Packed | None, now: int, front: int, cost: int, turn: int | None
) -> None:
    assert turn_after(limit, state, now, front, cost) == turn


@pytest.mark.parametrize(
    ("state", "after"),
    [
        ((997, 1, 994, 994, 0), (997, 1, 994, 994, 0)),
        ((1009, 1, 996, 1001, 0, 999, 0), (1009, 1, 996, 1001, 0, 999, 0)),
        ((1012, 0, 999, 999, 0, 0, 1, 999, 0, 1002, 0), (1012, 0, 999, 999, 0, 0, 0)),
        ((1021, 1, 998, 998, 0, 995, 0, 1011, 1, 1021, 1), (1021, 1, 998, 998, 0, 995, 0, 1011, 1, 1021, 1)),
        (
            (1003, 3, 995, 1001, 0, 1002, 1, 999, 0, 1002, 0, 997, 4, 999, 0),
            (1003, 3, 995, 1001, 0, 1002, 0, 997, 4, 999, 0),
        ),
    ],
)
def test_without_its_holes_a_state_keeps_its_debts(state: Packed, after: Packed) -> None:
    assert without_holes(state) == after


@pytest.mark.parametrize(
    ("limit", "remaining", "reset_after", "grows"),
    [
        (BUCKET, 1, 10, 3),
        (BUCKET, 0, 14, 4),
        (BUCKET, 3, 4, 4),
        (BUCKET, 4, 0, 0),
        (BUCKET, 4, 2, 0),
        (SINGLE, 0, 5, 5),
    ],
)
def test_more_is_left_when_the_next_unit_is_whole(limit: Limit, remaining: int, reset_after: int, grows: int) -> None:
    assert grows_after(limit, remaining, reset_after) == grows


HOLE = (1001, 1, 1002, 0, 1005, 1)
DEBT = (1002, 0, 1018, 0, 1021, 1)


@pytest.mark.parametrize("limit", [BUCKET, QUEUE, THIRDS, SINGLE], ids=str)
@pytest.mark.parametrize("more", [(), HOLE, DEBT], ids=["plain", "with a hole", "with a debt"])
def test_what_fits_is_what_a_spend_allows(limit: Limit, more: tuple[int, ...]) -> None:
    for expires in range(1006, 1020) if more == HOLE else range(1022, 1025) if more == DEBT else range(998, 1016):
        for part in range(4):  # the last is a fraction of a larger count
            for now in range(999, 1008):
                for cost in range(1, 6):
                    state = unpacked(limit.numbers, (expires, part, 1001, 990, 0, *more))
                    check_fits(limit, state, now, cost)
