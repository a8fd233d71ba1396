"""Slots, number by number: two of them, each for a lease of one second."""

import pytest

from ratebound import InvalidLimit, MemoryStorage, parse_limit
from ratebound.extras import ID_BITS, extras_of
from ratebound.kernels.concurrency import Slots
from ratebound.kernels.packing import packed, unpacked
from ratebound.limit import NOT_GIVEN, Extra
from ratebound.slots import slots_of
from ratebound.testing import FakeClock, slot
from tests.packed_kernels import (
    Packed,
    Written,
    check_fits,
    evaluate,
    force,
    grows_after,
    repair,
    spend,
    standing,
    turn_after,
    written,
)

LEASE = 1_000_000
TWO = parse_limit("2 concurrent for 1 second")


def take(state: Packed | None, now: int, number: int) -> tuple[Packed | None, Written]:
    found = unpacked(TWO.numbers, state)
    assert isinstance(found, Slots)
    row = found.take(TWO.numbers, now, slot(number))
    return packed(TWO.numbers, found), written(row)


@pytest.mark.parametrize(
    ("state", "now", "after", "row"),
    [
        (None, 100, (LEASE + 100, 1, 7, LEASE + 100), (True, 1, 0, LEASE, 0, 100, 0, 0)),
        ((900, 1, 3, 900), 100, (LEASE + 100, 2, 3, 900, 7, LEASE + 100), (True, 0, 0, LEASE, 0, 100, 0, 0)),
        ((900, 1, 3, 900), 899, (LEASE + 899, 2, 3, 900, 7, LEASE + 899), (True, 0, 0, LEASE, 0, 899, 0, 0)),
        ((900, 1, 3, 900), 900, (LEASE + 900, 1, 7, LEASE + 900), (True, 1, 0, LEASE, 0, 900, 0, 0)),
        # none is free before the earliest lease ends
        ((900, 2, 3, 800, 4, 900), 100, (900, 2, 3, 800, 4, 900), (False, 0, 700, 800, 0, 100, 0, 0)),
        # one is held already: it is renewed
        ((900, 2, 7, 800, 4, 900), 100, (LEASE + 100, 2, 4, 900, 7, LEASE + 100), (True, 0, 0, LEASE, 0, 100, 0, 0)),
        # more than the count are held: enough of them must end
        (
            (900, 4, 3, 600, 4, 700, 5, 800, 6, 900),
            100,
            (900, 4, 3, 600, 4, 700, 5, 800, 6, 900),
            (False, 0, 700, 800, 0, 100, 0, 0),
        ),
        # a clock that stepped back: a lease ends at its instant
        ((9 * LEASE, 1, 3, 9 * LEASE), 0, (9 * LEASE, 2, 7, LEASE, 3, 9 * LEASE), (True, 0, 0, 9 * LEASE, 0, 0, 0, 0)),
    ],
)
def test_a_slot_is_taken_if_one_is_free(state: Packed | None, now: int, after: Packed | None, row: Written) -> None:
    assert take(state, now, 7) == (after, row)


@pytest.mark.parametrize(
    ("state", "cost", "extra", "after", "remaining"),
    [
        (None, 5, slot(7), (LEASE + 100, 1, 7, LEASE + 100), 1),
        ((900, 2, 3, 800, 4, 900), 1, slot(7), (LEASE + 100, 3, 3, 800, 4, 900, 7, LEASE + 100), 0),
        ((900, 2, 3, 800, 4, 900), 1, slot(3), (LEASE + 100, 2, 4, 900, 3, LEASE + 100), 0),
        ((900, 2, 3, 800, 4, 900), -9, slot(3), (900, 1, 4, 900), 1),
        ((900, 2, 3, 800, 4, 900), -1, slot(4), (800, 1, 3, 800), 1),
        ((900, 2, 3, 800, 4, 900), -1, slot(7), (900, 2, 3, 800, 4, 900), 0),
        ((900, 2, 3, 50, 4, 900), -1, slot(7), (900, 1, 4, 900), 1),
        ((900, 1, 3, 900), -1, slot(3), None, 2),
        (None, -1, slot(3), None, 2),
        ((900, 1, 3, 900), 0, slot(7), (900, 1, 3, 900), 1),
        ((900, 1, 3, 900), 1, None, (900, 1, 3, 900), 1),
        ((900, 1, 3, 900), -1, None, (900, 1, 3, 900), 1),
        ((900, 1, 3, 900), -1, NOT_GIVEN, (900, 1, 3, 900), 1),
    ],
)
def test_force_holds_above_the_count_and_releases(
    state: Packed | None, cost: int, extra: Extra | None, after: Packed | None, remaining: int
) -> None:
    found, row = force(TWO, state, 100, cost, extra)
    assert (found, row[:2]) == (after, (True, remaining))
    assert row[3] == (0 if after is None else after[0] - 100)


@pytest.mark.parametrize("cost", [1, 0, -1])
@pytest.mark.parametrize(("extra", "given"), [(slot(4), 0), (slot(3), 1), (slot(7), 1), (NOT_GIVEN, 0), (None, 0)])
def test_force_says_whether_the_slot_was_not_held_before(cost: int, extra: Extra | None, given: int) -> None:
    _, row = force(TWO, (900, 2, 3, 50, 4, 900), 100, cost, extra)  # slot 3 has expired
    assert row[6] == given


def test_the_questions_of_a_state_count_live_slots_only() -> None:
    state = (900, 2, 3, 800, 4, 900)
    assert standing(TWO, None, 100) == (2, 0)
    assert standing(TWO, state, 100) == (0, 800)
    assert standing(TWO, state, 800) == (1, 100)
    assert standing(TWO, state, 900) == (2, 0)
    assert turn_after(TWO, state, 100, 0, 1) == 700
    assert turn_after(TWO, state, 800, 5, 9) == 0
    assert repair(TWO, state, 100) == state
    assert grows_after(TWO, 0, 800) == 800
    assert spend(TWO, state, 100, 1, None, 0) == (state, (False, 0, 700, 800, 0, 100, 0, 0))
    assert spend(TWO, state, 800, 9, None, 0) == (state, (True, 1, 0, 100, 0, 800, 0, 0))
    for now in (799, 800, 801, 900):
        check_fits(TWO, unpacked(TWO.numbers, state), now, 5)


def test_equal_checks_of_one_group_take_a_slot_each() -> None:
    one = parse_limit("1 concurrent for 1 second")
    for limit, allowed in ((one, [True, False]), (TWO, [True, True])):
        states: list[Packed | None] = [None]
        asks = [("k", (limit,), 1, None, [slot(number)]) for number in (1, 2)]
        for mode in ("peek", "spend"):
            rows = evaluate(asks, "peek" if mode == "peek" else "spend", [0, 0], states, 100)
            assert [row[0] for row in rows] == allowed
        assert (states[0] is not None) is all(allowed)


def test_a_slot_without_an_id_is_refused_by_every_path_of_memory(clock: FakeClock) -> None:
    """An allowed request that holds no slot would be a way around the limit."""
    rate = parse_limit("10/minute")
    for limits in ((TWO,), (rate, TWO)):
        for extras in (None, [NOT_GIVEN] * len(limits)):
            storage = MemoryStorage(clock=clock)
            group = (("k", limits, 1, None, extras),)
            with pytest.raises(ValueError, match="needs an id"):
                storage.evaluate((group,))
            with pytest.raises(ValueError, match="needs an id"):
                storage.at_once(group)
            assert storage.evaluate((group,), "peek")[0][-1][:2] == (True, 2)


def test_ids_are_random_and_only_slots_have_one() -> None:
    rate, quota = parse_limit("10/minute"), parse_limit("10/calendar-day")
    assert extras_of("k", (rate, quota)) is None
    ids = set()
    for _ in range(100):
        extras = extras_of("k", (rate, TWO, quota))
        assert extras is not None
        assert (extras[0], extras[2]) == (NOT_GIVEN, NOT_GIVEN)
        assert extras[1][1:] == (0, 0, 0)
        assert 0 <= extras[1][0] < 2**ID_BITS
        ids.add(extras[1][0])
    assert len(ids) == 100


def test_the_slots_of_a_group_are_what_is_held_and_released() -> None:
    rate = parse_limit("10/minute")
    group = (("a", (rate, TWO), 5, None, [NOT_GIVEN, slot(1)]), ("b", (rate,), 5, None, None))
    assert slots_of(group, 1) == [("a", (TWO,), 1, None, [slot(1)])]
    assert slots_of(group, -1) == [("a", (TWO,), -1, None, [slot(1)])]


@pytest.mark.parametrize("lease", ["1 millisecond", "2 days", "1 year"])
def test_a_lease_is_from_a_second_to_a_day(lease: str) -> None:
    with pytest.raises(InvalidLimit, match="from 1 second to 1 day: '3 concurrent for 10 minutes'"):
        parse_limit(f"3 concurrent for {lease}")
