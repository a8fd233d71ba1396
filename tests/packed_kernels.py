"""The kernels as functions of packed states, so that a test can write a state and a row as numbers.

A row that ends with None, as nearly all do, is written without it.
"""

from collections.abc import Sequence
from typing import Any

from ratebound import kernels
from ratebound.kernels import group_law
from ratebound.kernels.gcra import Bucket
from ratebound.kernels.packing import Packed as Packed
from ratebound.kernels.packing import packed, unpacked
from ratebound.kernels.state import State
from ratebound.limit import Group, Limit, Mode, Spent
from ratebound.outcome import Row

Written = tuple[Any, ...]  # a row


def written(row: Written) -> Written:
    """Return a row as tests write it."""
    return row[:-1] if row[-1] is None else row


def spend(
    limit: Limit, numbers: Packed | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[Packed | None, Written]:
    """Spend, and check that `fits` and the packing agree with it."""
    state = unpacked(limit.numbers, numbers)
    assert packed(limit.numbers, state) == numbers
    check_fits(limit, state, now, cost)
    row = state.spend(limit.numbers, now, cost, patience, lead)
    return packed(limit.numbers, state), written(row)


def check_fits(limit: Limit, state: State, now: int, cost: int) -> None:
    """Check that `fits` is exact for a repaired state, never True in error for another, and changes nothing.

    A spend repairs the state by itself.
    """
    before = packed(limit.numbers, state)
    fits = state.fits(limit.numbers, now, cost)
    assert packed(limit.numbers, state) == before
    repaired = state.copy()
    repaired.repair(limit.numbers, now)
    row = repaired.copy().spend(limit.numbers, now, cost, None, 0)
    assert repaired.fits(limit.numbers, now, cost) is row[0]
    assert fits is row[0] or (fits is False and packed(limit.numbers, repaired) != before)
    assert state.copy().spend(limit.numbers, now, cost, None, 0) == row


def force(
    limit: Limit, numbers: Packed | None, now: int, cost: int, spent: Spent | None
) -> tuple[Packed | None, Written]:
    """Charge or refund."""
    state = unpacked(limit.numbers, numbers)
    row = state.force(limit.numbers, now, cost, spent)
    return packed(limit.numbers, state), written(row)


def standing(limit: Limit, numbers: Packed | None, now: int) -> tuple[int, int]:
    """Return (remaining, reset_after)."""
    return unpacked(limit.numbers, numbers).standing(limit.numbers, now)


def repair(limit: Limit, numbers: Packed, now: int) -> Packed | None:
    """Return the repaired state."""
    state = unpacked(limit.numbers, numbers)
    state.repair(limit.numbers, now)
    return packed(limit.numbers, state)


def turn_after(limit: Limit, numbers: Packed | None, now: int, front: int, cost: int) -> int | None:
    """Return when `cost` passes after `front`."""
    return unpacked(limit.numbers, numbers).turn_after(limit.numbers, now, front, cost)


def grows_after(limit: Limit, remaining: int, reset_after: int) -> int:
    """Return when more remains."""
    return kernels.grows_after(limit.numbers, remaining, reset_after)


def without_holes(numbers: Packed) -> Packed:
    """Return a bucket that gives places at the end of the line only."""
    bucket = Bucket(numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5:] or None)
    return bucket.without_holes().pack(Limit(1, 1, 1, "gcra").numbers)


def evaluate(group: Group, mode: Mode, slots: Sequence[int], states: list[Packed | None], now: int) -> list[Written]:
    """Decide a group as `evaluate_rows` does."""
    return [written(row) for row in evaluate_rows(group, mode, slots, states, now)]


def evaluate_rows(group: Group, mode: Mode, slots: Sequence[int], states: list[Packed | None], now: int) -> list[Row]:
    """Decide a group, and put the states after it into `states`."""
    limits = dict(zip(slots, [limit.numbers for _, limits, *_ in group for limit in limits], strict=True))
    found = [unpacked(limits[slot], numbers) for slot, numbers in enumerate(states)]
    rows = group_law.evaluate(group, mode, slots, found, now)
    states[:] = [packed(limits[slot], state) for slot, state in enumerate(found)]
    return rows


def peek(
    limit: Limit, numbers: Packed | None, now: int, cost: int, patience: int | None = None, front: int = 0
) -> tuple[Packed | None, Written]:
    """Peek, and return the repaired state."""
    state = unpacked(limit.numbers, numbers)
    row = group_law.peek(limit.numbers, state, now, cost, patience, front)
    return packed(limit.numbers, state), written(row)
