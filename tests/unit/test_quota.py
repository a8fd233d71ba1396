"""The quota, number by number: ten units in a window of 100 microseconds, with the ordinal start / 100."""

import pytest

from ratebound.kernels.packing import unpacked
from ratebound.kernels.quota import MOST
from ratebound.limit import GRANT, Limit, Spent
from ratebound.numbers import Numbers
from ratebound.windows import Windows
from tests.packed_kernels import (
    Packed,
    Written,
    check_fits,
    evaluate,
    force,
    grows_after,
    peek,
    repair,
    spend,
    standing,
    turn_after,
)

METERED = Limit(10, 100, algorithm="fixed-window", over="allow")


def denying() -> Limit:
    """Return a limit with the windows of the metered one that denies: by notation only calendar periods do."""
    limit = Limit(10, 100, algorithm="fixed-window", over="allow")
    numbers = Numbers(10, 100, 10, "quota", limit.scope, Windows(100, None))
    object.__setattr__(limit, "numbers", numbers)
    return limit


TEN = denying()


@pytest.mark.parametrize(
    ("state", "now", "cost", "after", "row"),
    [
        # an untouched key: the state expires one window after its own
        (None, 1030, 3, (1200, 3, 10, 1030, 0, 0), (True, 7, 0, 70, 0, 1030, 1030, 0)),
        (None, 1000, 10, (1200, 10, 10, 1000, 0, 0), (True, 0, 0, 100, 0, 1000, 1000, 0)),
        (None, 1030, 11, None, (False, 10, None, 0, 0, 1030, 0, 0, 0)),
        # this window; a row that charges nothing has granted, used and previous
        ((1200, 4, 10, 1010, 0, 2), 1030, 6, (1200, 10, 10, 1010, 0, 2), (True, 0, 0, 70, 0, 1030, 1010, 0)),
        ((1200, 4, 10, 1010, 0, 2), 1030, 7, (1200, 4, 10, 1010, 0, 2), (False, 6, 70, 70, 0, 1030, 0, 4, 2)),
        ((1200, 4, 10, 1010, 0, 2), 1099, 7, (1200, 4, 10, 1010, 0, 2), (False, 6, 1, 1, 0, 1099, 0, 4, 2)),
        ((1200, 4, 10, 1010, 0, 2), 1030, 11, (1200, 4, 10, 1010, 0, 2), (False, 6, None, 70, 0, 1030, 0, 4, 2)),
        ((1200, 20, 10, 1010, 0, 2), 1030, 1, (1200, 20, 10, 1010, 0, 2), (False, 0, 70, 70, 0, 1030, 0, 20, 2)),
        # units were granted
        ((1200, 4, 10, 1010, 5, 0), 1030, 11, (1200, 15, 10, 1010, 5, 0), (True, 0, 0, 70, 0, 1030, 1010, 0)),
        ((1200, 4, 10, 1010, 5, 0), 1030, 12, (1200, 4, 10, 1010, 5, 0), (False, 11, None, 70, 0, 1030, 5, 4, 0)),
        ((1200, 14, 10, 1010, 5, 0), 1030, 2, (1200, 14, 10, 1010, 5, 0), (False, 1, 70, 70, 0, 1030, 5, 14, 0)),
        # a window that is over: its count is the previous one for one window
        ((1200, 4, 10, 1010, 5, 2), 1100, 7, (1300, 7, 11, 1100, 0, 4), (True, 3, 0, 100, 0, 1100, 1100, 0)),
        ((1200, 4, 10, 1010, 5, 2), 1100, 11, (1200, 4, 10, 1010, 5, 2), (False, 10, None, 0, 0, 1100, 0, 0, 4)),
        ((1200, 4, 10, 1010, 5, 2), 1200, 7, (1400, 7, 12, 1200, 0, 0), (True, 3, 0, 100, 0, 1200, 1200, 0)),
        # a clock that is behind: the next window is used as it stands
        ((1300, 4, 11, 1110, 1, 2), 1099, 7, (1300, 11, 11, 1110, 1, 2), (True, 0, 0, 101, 0, 1099, 1110, 0)),
        ((1300, 4, 11, 1110, 1, 2), 1099, 8, (1300, 4, 11, 1110, 1, 2), (False, 7, 101, 101, 0, 1099, 1, 4, 2)),
        # a clock that stepped back further: it moves to this window
        ((1400, 4, 12, 1210, 1, 2), 1099, 7, (1200, 11, 10, 1210, 1, 2), (True, 0, 0, 1, 0, 1099, 1210, 0)),
        ((1400, 4, 12, 1210, 1, 2), 1099, 8, (1200, 4, 10, 1210, 1, 2), (False, 7, 1, 1, 0, 1099, 1, 4, 2)),
    ],
)
def test_a_spend_counts_in_the_window_of_its_ordinal(
    state: Packed | None, now: int, cost: int, after: Packed | None, row: Written
) -> None:
    assert spend(TEN, state, now, cost, None, 0) == (after, row)


@pytest.mark.parametrize(
    ("state", "cost", "used", "remaining", "overage"),
    [
        (None, 3, 3, 7, 0),
        (None, 13, 13, 0, 3),
        ((1200, 8, 10, 1010, 0, 0), 5, 13, 0, 3),
        ((1200, 13, 10, 1010, 0, 0), 5, 18, 0, 5),
        ((1200, 13, 10, 1010, 4, 0), 5, 18, 0, 4),
        ((1200, 13, 10, 1010, 9, 0), 5, 18, 1, 0),
        ((1200, MOST - 1, 10, 1010, 0, 0), 5, MOST, 0, 5),
    ],
)
def test_a_metered_quota_allows_everything_and_tells_what_exceeds_it(
    state: Packed | None, cost: int, used: int, remaining: int, overage: int
) -> None:
    since, granted = (1030, 0) if state is None else (1010, state[4])
    row = (True, remaining, 0, 70, 0, 1030, since, overage)
    assert spend(METERED, state, 1030, cost, None, 0) == ((1200, used, 10, since, granted, 0), row)


@pytest.mark.parametrize(
    ("state", "cost", "spent", "after", "left", "overage"),
    [
        # charged on top: up to one quota more than the limit has, what was granted included
        (None, 3, None, (1200, 3, 10, 1030, 0, 0), (7, 70), 0),
        (None, 0, None, None, (10, 0), 0),
        ((1200, 4, 10, 1010, 0, 1), 99, None, (1200, 20, 10, 1010, 0, 1), (0, 70), 10),
        ((1200, 4, 10, 1010, 5, 1), 99, None, (1200, 30, 10, 1010, 5, 1), (0, 70), 15),
        ((1200, 25, 10, 1010, 0, 1), 1, None, (1200, 25, 10, 1010, 0, 1), (0, 70), 0),  # by a larger limit, before
        ((1100, 4, 9, 910, 0, 1), 3, None, (1200, 3, 10, 1030, 0, 4), (7, 70), 0),
        ((1300, 4, 11, 1110, 0, 1), 3, None, (1300, 7, 11, 1110, 0, 1), (3, 170), 0),
        ((1400, 4, 12, 1210, 0, 1), 3, None, (1200, 7, 10, 1210, 0, 1), (3, 70), 0),
        # refunded, if the spend is in what this window counts
        ((1200, 4, 10, 1010, 0, 1), -3, None, (1200, 1, 10, 1010, 0, 1), (9, 70), 0),
        ((1200, 14, 10, 1010, 0, 1), -6, (1020, 1100, 0, 1010), (1200, 8, 10, 1010, 0, 1), (2, 70), -4),
        ((1200, 4, 10, 1010, 0, 1), -9, (1020, 1100, 0, 1010), (1200, 0, 10, 1010, 0, 1), (10, 0), 0),
        ((1200, 4, 10, 1010, 0, 1), -3, (1005, 1100, 0, 1005), (1200, 4, 10, 1010, 0, 1), (6, 70), 0),
        ((1200, 4, 10, 1010, 0, 1), 0, None, (1200, 4, 10, 1010, 0, 1), (6, 70), 0),
        ((1100, 4, 9, 910, 0, 1), -3, (920, 1000, 0, 910), (1100, 4, 9, 910, 0, 1), (10, 0), 0),
        ((1300, 4, 11, 1110, 0, 1), -3, (1120, 1200, 0, 1110), (1300, 1, 11, 1110, 0, 1), (9, 170), 0),
        ((1400, 4, 12, 1210, 0, 1), -3, (1220, 1300, 0, 1210), (1200, 1, 10, 1210, 0, 1), (9, 70), 0),
        (None, -3, None, None, (10, 0), 0),
        # a refund that is refused repairs the state as well: else its row would tell the end of another window
        ((1400, 4, 12, 1210, 0, 1), -3, (1020, 1100, 0, 1010), (1200, 4, 10, 1210, 0, 1), (6, 70), 0),
        # granted
        (None, 5, GRANT, (1200, 0, 10, 1030, 5, 0), (15, 70), 0),
        ((1200, 4, 10, 1010, 2, 1), 5, GRANT, (1200, 4, 10, 1010, 7, 1), (13, 70), 0),
        ((1100, 4, 9, 910, 2, 1), 5, GRANT, (1200, 0, 10, 1030, 5, 4), (15, 70), 0),
        ((1300, 4, 11, 1110, 2, 1), 5, GRANT, (1300, 4, 11, 1110, 7, 1), (13, 170), 0),
        ((1400, 4, 12, 1210, 2, 1), 5, GRANT, (1200, 4, 10, 1210, 7, 1), (13, 70), 0),
    ],
)
def test_a_settlement_charges_refunds_or_grants(
    state: Packed | None, cost: int, spent: Spent | None, after: Packed | None, left: tuple[int, int], overage: int
) -> None:
    remaining, reset_after = left
    row = (True, remaining, 0, reset_after, 0, 1030, 0, overage)
    assert force(TEN, state, 1030, cost, spent) == (after, row)


@pytest.mark.parametrize("limit", [TEN, METERED], ids=["denying", "metered"])
@pytest.mark.parametrize("granted", [0, 10**12, MOST])
def test_no_number_of_a_state_exceeds_what_a_double_holds(limit: Limit, granted: int) -> None:
    state: Packed | None = (1200, MOST - 1, 10, 1010, granted, MOST)
    for cost, spent in ((10**12, None), (10**12, GRANT), (10**12, None)):
        state, row = force(limit, state, 1030, cost, spent)
        assert state is not None
        assert max(*state, *row[1:]) < 2**53
        assert state[1] <= MOST
        assert state[4] <= MOST


def test_a_metered_quota_is_overdrawn_without_a_cap() -> None:
    after, row = force(METERED, (1200, 4, 10, 1010, 0, 1), 1030, 1_000, None)
    assert (after, row[7]) == ((1200, 1_004, 10, 1010, 0, 1), 994)


@pytest.mark.parametrize(
    ("state", "now", "left"),
    [
        (None, 1030, (10, 0)),
        ((1200, 4, 10, 1010, 0, 0), 1030, (6, 70)),
        ((1200, 4, 10, 1010, 3, 0), 1099, (9, 1)),
        ((1200, 0, 10, 1010, 3, 0), 1099, (13, 1)),
        ((1200, 0, 10, 1010, 0, 9), 1030, (10, 0)),
        ((1200, 4, 10, 1010, 0, 0), 1100, (10, 0)),
        ((1200, 20, 10, 1010, 0, 0), 1030, (0, 70)),
        ((1300, 4, 11, 1110, 0, 0), 1030, (6, 170)),
    ],
)
def test_all_is_left_again_when_the_window_ends(state: Packed | None, now: int, left: tuple[int, int]) -> None:
    assert standing(TEN, state, now) == left


@pytest.mark.parametrize(
    ("state", "now", "after"),
    [
        ((1200, 4, 10, 1010, 1, 2), 1030, (1200, 4, 10, 1010, 1, 2)),
        ((1300, 4, 11, 1110, 1, 2), 1099, (1300, 4, 11, 1110, 1, 2)),
        ((1400, 4, 12, 1210, 1, 2), 1099, (1200, 4, 10, 1210, 1, 2)),
        ((1400, 4, 12, 1210, 1, 2), 1100, (1400, 4, 12, 1210, 1, 2)),
        ((1200, 4, 10, 1010, 1, 2), 1900, (1200, 4, 10, 1010, 1, 2)),
    ],
)
def test_a_state_more_than_one_window_ahead_moves_to_the_present_one(state: Packed, now: int, after: Packed) -> None:
    assert repair(TEN, state, now) == after


@pytest.mark.parametrize(
    ("state", "front", "cost", "turn"),
    [
        (None, 0, 10, 0),
        (None, 9, 1, 0),
        (None, 10, 1, 70),
        (None, 0, 11, None),
        ((1200, 4, 10, 1010, 0, 0), 0, 6, 0),
        ((1200, 4, 10, 1010, 0, 0), 3, 4, 70),
        ((1200, 4, 10, 1010, 0, 0), 16, 1, 170),
        ((1200, 4, 10, 1010, 0, 0), 36, 1, 170),  # a bound: it passes no earlier
        ((1300, 4, 11, 1110, 0, 0), 0, 7, 170),  # a clock that is behind
        # a cost above the count passes now or never
        ((1200, 4, 10, 1010, 9, 0), 0, 15, 0),
        ((1200, 4, 10, 1010, 9, 0), 1, 15, None),
        ((1200, 4, 10, 1010, 9, 0), 5, 10, 0),
        ((1200, 4, 10, 1010, 9, 0), 6, 10, 70),
    ],
)
def test_those_in_line_share_this_window_and_then_the_next(
    state: Packed | None, front: int, cost: int, turn: int | None
) -> None:
    assert turn_after(TEN, state, 1030, front, cost) == turn
    assert turn_after(METERED, state, 1030, front, cost) == 0


def test_more_is_left_when_the_window_ends() -> None:
    assert grows_after(TEN, 6, 70) == 70


def test_a_peek_tells_the_state_itself() -> None:
    state = (1200, 4, 10, 1010, 3, 2)
    assert peek(TEN, state, 1030, 1) == (state, (True, 9, 0, 70, 0, 1030, 3, 4, 2))
    assert peek(TEN, state, 1150, 1) == (state, (True, 10, 0, 0, 0, 1150, 0, 0, 4))
    assert peek(TEN, (1400, 4, 12, 1210, 3, 2), 1030, 1)[0] == (1200, 4, 10, 1210, 3, 2)


def test_equal_checks_of_one_group_share_the_window() -> None:
    ask = ("k", (TEN,), 6, None, None)
    states: list[Packed | None] = [None]
    rows = evaluate([ask, ask], "spend", [0, 0], states, 1030)
    assert [row[:3] for row in rows] == [(True, 10, 0), (False, 10, None)]
    assert states == [None]


@pytest.mark.parametrize("used", [0, 9, 10, 11, 15])
@pytest.mark.parametrize("granted", [0, 5])
def test_what_fits_is_what_a_spend_allows(used: int, granted: int) -> None:
    for limit in (TEN, METERED):
        for now in (899, 900, 1030, 1099, 1100, 1101, 1199, 1200, 1201, 1300, 1400):
            for cost in (1, 2, 10, 11, 15, 16):
                check_fits(limit, unpacked(limit.numbers, (1300, used, 11, 1110, granted, 3)), now, cost)
