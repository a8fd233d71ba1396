"""Flows that evaluate groups here where slices or cached denials can, and in the storage otherwise; see flow.py.

`ask` is the storage's `evaluate`, for threads or for tasks: the flows yield calls of it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ratebound.deny_cache import can_be_cached
from ratebound.flow import Flow
from ratebound.limit import Group, Mode
from ratebound.local_states import LocalStates
from ratebound.outcome import DegradedRows, Row
from ratebound.settling import settlement
from ratebound.slices import Trip, is_from_slice

Ask = Callable[[Sequence[Group], Mode], Any]
Answers = Sequence[Sequence[Row]]


def spending(local: LocalStates, groups: Sequence[Group], ask: Ask, *, repeats_denials: bool = True) -> Flow[Answers]:
    """Spend groups, each by itself. All that cannot be decided here go out in one trip.

    A group that was denied although it would have passed without a slice makes a second trip. A waiter has no use for
    denials of the past, so it is asked for without `repeats_denials`.
    """
    answers = [local.spend(group, repeats_denials) for group in groups]
    out = [number for number, rows in enumerate(answers) if rows is None]
    if not out:
        return [rows for rows in answers if rows is not None]
    trips = [local.slices.set_out(groups[number]) for number in out]
    found: dict[int, Sequence[Row]] = {}
    heard = yield partial(ask, [trip.group for trip in trips], "spend")
    again: list[int] = []
    too_much: list[int] = []
    for at, rows in enumerate(heard):
        found[at] = rows
        if trips[at].extras and isinstance(rows, DegradedRows) and _is_allowed(rows):
            too_much.append(at)
        elif trips[at].extras and not _is_allowed(rows) and not (isinstance(rows, DegradedRows) and rows.closed):
            again.append(at)
    if too_much:
        yield partial(ask, [_without_extras(trips[at], found[at]) for at in too_much], "force")
    if again:
        for at in again:
            if not isinstance(found[at], DegradedRows):
                local.slices.answered(trips[at], found[at])
            trips[at] = trips[at].without_slices(local.slices.now())
        heard = yield partial(ask, [trips[at].group for at in again], "spend")
        for at, rows in zip(again, heard, strict=True):
            found[at] = rows
    for at, number in enumerate(out):
        answers[number] = _taken_in(local, trips[at], found[at])
    return [rows for rows in answers if rows is not None]


def forcing(local: LocalStates, groups: Sequence[Group], ask: Ask) -> Flow[Answers]:
    """Force groups. What corrects a decision from slices is charged or refunded there, as far as that can be done."""
    answers: list[Sequence[Row]] = [()] * len(groups)
    forced: list[Group] = []
    places: list[tuple[int, list[list[Row]]]] = []  # of forced groups: their number, and the rows of each ask
    for number, group in enumerate(groups):
        if not any(map(is_from_slice, group)):
            forced.append(group)
            places.append((number, [[] for _ in group]))
            continue
        rows: list[list[Row]] = []
        rest = []
        for one in group:
            found, left = local.slices.correct(one) if is_from_slice(one) else ([], one)
            rows.append(found)
            if left is not None:
                rest.append(left)
        if rest:
            forced.append(rest)
            places.append((number, rows))
        else:
            answers[number] = [row for found in rows for row in found]
    try:
        heard: Answers = (yield partial(ask, forced, "force")) if forced else ()
    finally:
        for group in groups:
            local.denials.changed(group)
    for (number, known), told in zip(places, heard, strict=True):
        answers[number] = _joined(groups[number], known, told) if any(known) else told
    return answers


def _joined(group: Group, known: list[list[Row]], heard: Sequence[Row]) -> list[Row]:
    """Return the rows of a group in order: those that are known, and those of the storage for the other asks."""
    rest = iter(heard)
    return [row for ask, rows in zip(group, known, strict=True) for row in rows or [next(rest) for _ in ask[1]]]


def _taken_in(local: LocalStates, trip: Trip, rows: Sequence[Row]) -> Sequence[Row]:
    """Take in the last answer to a trip, and return the rows for the caller."""
    if isinstance(rows, DegradedRows):
        local.slices.storage_is_lost(trip)
        return rows
    if can_be_cached(trip.asked):
        local.denials.note(trip.asked, rows, trip.began)
    return local.slices.answered(trip, rows)


def _without_extras(trip: Trip, rows: Sequence[Row]) -> Group:
    """Return what to force so that a decision without the storage has cost no more than the caller asked for."""
    return settlement(trip.group, rows, [cost for _, _, cost, *_ in trip.asked])


def _is_allowed(rows: Sequence[Row]) -> bool:
    return all(row[0] for row in rows)
