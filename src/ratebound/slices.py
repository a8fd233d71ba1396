"""Slices: units that this process has taken from a shared storage in advance, and decides from. Compiled where that can
be done. There is no I/O here: what to ask, what an answer means, and what can be decided without asking.

A slice belongs to a key and to one limit with its count and burst: what a generous limit gave is not for a strict one
that counts in the same state. The storage has charged all of its tokens already, so a decision from it allows nothing
that the limit did not give. It only comes later: at most `for_us` after the trip that took the slice began, and never
after the end of the window that a fixed window or a quota was charged in. So in any time D no more passes than the
limit gives in D + `for_us`. Tokens that are left when a slice ends are lost: they were charged, and nobody used them.
At most one slice of each process is lost in each `for_us`.

A key gets a slice when it is met twice within `for_us`. Its size is what was asked for the key in the last `for_us`,
and at most the limit's share of what remained at the last answer. One trip takes the slice and the units that are asked
for now. A group is decided here only if every limit of it has tokens enough. Otherwise the whole group goes out, and
slices are taken only if the next group of the kind could be decided here.
"""

from collections.abc import Sequence
from random import getrandbits
from typing import Final

from ratebound.clock import Clock, ticking
from ratebound.decision import Decision, OneKeyDecision, OneLimitDecision, Plan, StoredRow
from ratebound.limit import NOT_GIVEN, Ask, Extra, Group, Limit
from ratebound.outcome import SLICED, Row
from ratebound.storage.mutex import new_mutex

MAX_SLICES: Final = 100_000  # keys beyond this number get no slice
LOOKS: Final = 2  # old keys that a new key pays for looking at
_SLICED: Final[int] = SLICED
_NOT_GIVEN: Final[Extra] = NOT_GIVEN


class LocalSlice:
    """The tokens of one key and one limit, and what this process knows of its demand. Instants are of this process.

    `remaining` is what was left in the storage at its last answer, without the tokens here. `resets` is the instant at
    which the limit is as if untouched, and `shift` what the storage's clock is ahead of this one. `number` names the
    slice: a refund is only for the slice that was charged. `refilling` is the instant until which other groups take no
    slice, because one is on its way, or was taken and its answer never came.
    """

    __slots__ = (
        "began",
        "burst",
        "demand",
        "ends",
        "for_us",
        "is_dropped",
        "key",
        "met",
        "number",
        "place",
        "refilling",
        "remaining",
        "resets",
        "shift",
        "spent",
        "tokens",
    )

    def __init__(self, place: str, key: str, burst: int, for_us: int, now: int) -> None:
        self.place = place
        self.key = key
        self.burst = burst
        self.for_us = for_us
        self.tokens = 0
        self.ends = 0
        self.number = 0
        self.remaining = 0
        self.resets = 0
        self.shift = 0
        self.met = -1  # the last instant at which the key was met; negative if it never was
        self.began = now  # of the present stretch of `for_us`
        self.spent = 0  # units that were asked for in it
        self.demand = 0  # units that were asked for in the stretch before
        self.refilling = 0
        self.is_dropped = False

    def left(self, now: int) -> int:
        """Return the tokens that can be used now."""
        return self.tokens if now < self.ends else 0

    def take(self, now: int, cost: int) -> None:
        """Use tokens. There must be so many."""
        self.tokens -= cost
        self.spent += cost
        self.met = now

    def row(self, now: int) -> Row:
        """Return the answer of the limit to a request that was allowed from here."""
        resets = self.resets - now
        remaining = self.remaining + self.left(now)
        if remaining > self.burst:
            remaining = _at_most(self.burst, self.remaining, self.left(now))
        return (
            True,
            remaining,
            0,
            resets if resets > 0 else 0,
            0,
            now + self.shift,
            self.number,
            _SLICED,
            None,
        )

    def meet(self, now: int, cost: int) -> None:
        """Count a request that goes out."""
        passed = now - self.began
        if passed >= self.for_us:
            # A stretch lasts until the first request that goes out after `for_us`, so it may be twice as long.
            self.demand = self.spent if passed < self.for_us + self.for_us else 0
            self.spent = 0
            self.began = now
        self.spent += cost
        self.met = now

    def size(self, share: float) -> int:
        """Return how many units to take in the next trip."""
        demand = self.spent if self.spent > self.demand else self.demand
        return max(1, min(demand, int(share * self.remaining)))

    def note(self, row: Row, now: int) -> None:
        """Remember an answer of the storage that came now."""
        self.remaining = row[1]
        self.resets = now + row[3]
        self.shift = row[5] - now

    def fill(self, limit: Limit, row: Row, units: int, number: int, began: int, now: int) -> None:
        """Add units that the storage has charged. Tokens that are still here do not live longer for it."""
        ends = began + self.for_us
        if limit.is_quota or limit.algorithm == "fixed-window":
            ends = min(ends, began + row[3])
        if self.left(now):
            self.tokens += units
            self.ends = min(self.ends, ends)
        else:
            self.tokens = units
            self.ends = ends
            self.number = number


class Trip:
    """A group on its way to the storage.

    `group` is what the storage is asked. `extras` has the units for each ask that exceed its cost; it is empty if no
    slice is taken. `slices` has the slices of all limits in order, or nothing if the group cannot have any.
    """

    __slots__ = ("asked", "began", "extras", "group", "slices")

    def __init__(self, asked: Group, began: int, slices: Sequence[LocalSlice], extras: Sequence[int]) -> None:
        self.asked = asked  # what the caller asks
        self.began = began
        self.slices = slices
        self.extras = extras
        self.group: Group = asked
        if extras:
            self.group = [
                (key, limits, cost + extra, None, None)
                for (key, limits, cost, _, _), extra in zip(asked, extras, strict=True)
            ]

    def without_slices(self, began: int) -> "Trip":
        """Return the trip that asks for no more than the caller does, and begins at an instant of this process."""
        return Trip(self.asked, began, self.slices, ())


def can_be_sliced(group: Group) -> bool:
    """Return True if every limit of a group has slices, and nothing but its cost is asked of it."""
    for _, limits, cost, patience, extras in group:
        if patience is not None or extras is not None or cost < 1:
            return False
        for limit in limits:
            if limit.slice is None:
                return False
    return True


def is_from_slice(ask: Ask) -> bool:
    """Return True if an ask to be forced corrects a decision from slices."""
    extras = ask[4]
    return extras is not None and bool(extras) and extras[0][2] == _SLICED


class Slices:
    """All slices of a process. Thread-safe: no method waits for anything but the lock."""

    __slots__ = ("_hand", "_lock", "_number", "_ring", "_tables", "_ticks")

    def __init__(self, clock: Clock | None = None) -> None:
        self._ticks = ticking(clock)[0]  # without the anchor: slices and denials must agree about the time
        self.renew()

    def renew(self) -> None:
        """Forget everything, and replace the lock: a forked child has taken nothing from the storage."""
        self._lock = new_mutex()
        self._number = getrandbits(40)  # so that no other process knows the numbers of this one
        self._forget()

    def clear(self) -> None:
        """Drop all slices. Answers of trips that are on their way fill none."""
        with self._lock:
            for found in self._ring:
                found.is_dropped = True
            self._forget()

    def _forget(self) -> None:
        self._tables: dict[str, dict[str, LocalSlice]] = {}
        self._ring: list[LocalSlice] = []
        self._hand = 0

    @property
    def keys(self) -> int:
        """The number of keys and limits that are known now."""
        return len(self._ring)

    def now(self) -> int:
        """Return the time of this process in microseconds."""
        return self._ticks() // 1000

    def hit(self, plan: Plan, key: str, cost: int) -> Decision | None:
        """Decide for one key. Return None, having changed nothing, if a limit has too few tokens here."""
        with self._lock:
            now = self._ticks() // 1000
            limit = plan.only
            if limit is not None:
                table = self._tables.get(limit.slice_place)
                if table is None:
                    return None
                found = table.get(key)
                if found is None or found.tokens < cost or now >= found.ends:
                    return None
                found.take(now, cost)
                return OneLimitDecision(key, plan, cost, found.row(now))
            slices: list[LocalSlice] = []
            for limit in plan.numbers:
                table = self._tables.get(limit.slice_place)
                if table is None:
                    return None
                found = table.get(key)
                if found is None or found.tokens < cost or now >= found.ends:
                    return None
                slices.append(found)
            answers: list[StoredRow] = []
            for found in slices:
                found.take(now, cost)
                answers.append(StoredRow(found.row(now)))
            return OneKeyDecision(key, plan, cost, answers, True)

    def spend(self, group: Group) -> list[Row] | None:
        """Decide a group that can be sliced. Return None, having changed nothing, if a limit has too few tokens."""
        with self._lock:
            now = self.now()
            taken: list[tuple[LocalSlice, int]] = []
            for key, limits, cost, _, _ in group:
                for limit in limits:
                    found = self._find(limit, key)
                    if found is None or found.left(now) < cost:
                        for before, units in taken:
                            before.tokens += units
                        return None
                    found.tokens -= cost
                    taken.append((found, cost))
            for found, cost in taken:
                found.tokens += cost
                found.take(now, cost)
            return [found.row(now) for found, _ in taken]

    def set_out(self, group: Group) -> Trip:
        """Return what to ask the storage for a group that is not decided here."""
        with self._lock:
            now = self.now()
            if not can_be_sliced(group):
                return Trip(group, now, (), ())
            slices: list[LocalSlice] = []
            is_hot = True
            for key, limits, _, _, _ in group:
                for limit in limits:
                    found = self._find(limit, key) or self._add(limit, key, now)
                    if found is None:
                        return Trip(group, now, (), ())
                    slices.append(found)
                    if found.met < 0 or now - found.met > found.for_us or found.refilling > now:
                        is_hot = False
            number = 0
            for _, limits, cost, _, _ in group:
                for _ in limits:
                    slices[number].meet(now, cost)
                    number += 1
            extras = _extras(group, slices, now) if is_hot else []
            if extras:
                for found in slices:
                    found.refilling = now + found.for_us
            return Trip(group, now, slices, extras)

    def answered(self, trip: Trip, rows: Sequence[Row]) -> Sequence[Row]:
        """Take in the storage's own answer to a trip. Return the rows for the caller.

        Others may take slices again. A trip that is never answered keeps them from it for `for_us`: the storage may
        have charged its slice, and no more than one is to be lost in that time.
        """
        if not trip.slices:
            return rows
        with self._lock:
            now = self.now()
            is_allowed = True
            for row in rows:
                if not row[0]:
                    is_allowed = False
            answers: list[Row] = []
            at = 0
            for number, (_, limits, cost, _, _) in enumerate(trip.asked):
                extra = trip.extras[number] if trip.extras and is_allowed else 0
                if extra:
                    self._number += 1
                for limit in limits:
                    row = rows[at]
                    found = trip.slices[at]
                    at += 1
                    found.note(row, now)
                    if trip.extras:
                        found.refilling = 0
                    if extra and not found.is_dropped:
                        found.fill(limit, row, extra, self._number, trip.began, now)
                    answers.append(_with_tokens(row, limit, cost, found.left(now), found.number if extra else 0))
            return answers

    def storage_is_lost(self, trip: Trip) -> None:
        """Take no slice until the storage has answered again: what remains there is not known."""
        with self._lock:
            for found in trip.slices:
                found.remaining = 0

    def peeked(self, group: Group, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows of a peek with the tokens that are here, allowed if the group would be decided here."""
        if not can_be_sliced(group):
            return rows
        with self._lock:
            now = self.now()
            tokens: list[int] = []
            is_enough = True
            for key, limits, cost, _, _ in group:
                for limit in limits:
                    found = self._find(limit, key)
                    tokens.append(0 if found is None else found.left(now))
                    if tokens[-1] < cost:
                        is_enough = False
            answers: list[Row] = []
            for _, limits, cost, _, _ in group:
                for limit in limits:
                    row = rows[len(answers)]
                    if is_enough:
                        row = (True, row[1], 0, row[3], row[4], row[5], row[6], row[7], row[8])
                    answers.append(_with_tokens(row, limit, cost, tokens[len(answers)], 0))
            return answers

    def correct(self, ask: Ask) -> tuple[list[Row], Ask | None]:
        """Correct a decision from slices: refund to the slice that was charged, or charge the tokens that are here.

        Return the rows; or no rows, and what is left to be forced in the storage. A refund to a slice that has ended is
        lost: then nothing is forced, and the storage says how the limits stand.
        """
        key, limits, cost, _, extras = ask
        given: Sequence[Extra] = () if extras is None else extras
        with self._lock:
            now = self.now()
            found: list[LocalSlice] = []
            living = True
            most = cost
            for at, limit in enumerate(limits):
                one = self._find(limit, key)
                if one is None or now >= one.ends or (cost < 0 and one.number != given[at][3]):
                    living = False
                    continue
                most = min(most, one.tokens)
                found.append(one)
            if cost > 0 and not living:
                most = 0
            for one in found:
                if cost < 0:
                    one.tokens -= cost
                elif living and most > 0:
                    one.tokens -= most
            if living and most == cost:
                return [_settled(one.row(now)) for one in found], None
            if cost < 0:
                most = cost
            return [], (key, limits, cost - most, None, [_NOT_GIVEN for _ in limits])

    def drop(self, group: Group) -> None:
        """Drop the slices of a group's keys that were charged to the states of its limits."""
        with self._lock:
            for key, limits, *_ in group:
                for limit in limits:
                    for place, table in self._tables.items():
                        if place.startswith(f"{limit.scope};") and key in table:
                            table.pop(key).is_dropped = True

    def _find(self, limit: Limit, key: str) -> LocalSlice | None:
        table = self._tables.get(limit.slice_place)
        return None if table is None else table.get(key)

    def _add(self, limit: Limit, key: str, now: int) -> LocalSlice | None:
        """Return the slice of a new key, which has no tokens yet; None if there is no room for it."""
        self._sweep(now)
        if len(self._ring) >= MAX_SLICES or limit.slice is None:
            return None
        made = LocalSlice(limit.slice_place, key, limit.burst, limit.slice.for_us, now)
        table = self._tables.get(limit.slice_place)
        if table is None:
            table = self._tables[limit.slice_place] = {}
        table[key] = made
        self._ring.append(made)
        return made

    def _sweep(self, now: int) -> None:
        """Look at some keys, and forget those that were not met for so long that nothing is left of them."""
        ring = self._ring
        for _ in range(min(LOOKS, len(ring))):
            if self._hand >= len(ring):
                self._hand = 0
            old = ring[self._hand]
            known = old.began if old.met < 0 else old.met  # one that is just added was not met yet
            if not old.is_dropped and now - known <= old.for_us + old.for_us:
                self._hand += 1
                continue
            last = ring.pop()
            if self._hand < len(ring):
                ring[self._hand] = last
            if not old.is_dropped:
                table = self._tables[old.place]
                del table[old.key]
                if not table:
                    del self._tables[old.place]


def _extras(group: Group, slices: Sequence[LocalSlice], now: int) -> list[int]:
    """Return how many units to take for each ask beside its cost.

    Return nothing if the next group of the kind could not be decided here for it.
    """
    extras: list[int] = []
    is_more = False
    at = 0
    for _, limits, cost, _, _ in group:
        extra = -1
        least = -1
        for limit in limits:
            found = slices[at]
            at += 1
            left = found.left(now)
            share = 0.0 if limit.slice is None else limit.slice.share
            more = max(found.size(share) - cost - left, 0)
            extra = more if extra < 0 else min(extra, more)
            least = left if least < 0 else min(least, left)
        if least + extra < cost:
            return []
        extras.append(extra)
        is_more = is_more or extra > 0
    return extras if is_more else []


def _at_most(burst: int, remaining: int, tokens: int) -> int:
    """Return what is left in the storage and here. A bucket may have refilled what the tokens here were charged."""
    return max(remaining, min(remaining + tokens, burst))


def _with_tokens(row: Row, limit: Limit, cost: int, tokens: int, number: int) -> Row:
    """Return a row of the storage with the tokens that are here. A `number` is the slice that was charged.

    A limit that denies has less than the cost: what is here and in the storage cannot be used together.
    """
    left = _at_most(limit.burst if row[0] else min(cost - 1, limit.burst), row[1], tokens)
    if number:
        return (row[0], left, row[2], row[3], row[4], row[5], number, _SLICED, None)
    return (row[0], left, row[2], row[3], row[4], row[5], row[6], row[7], row[8])


def _settled(row: Row) -> Row:
    """Return the row of a limit after settling, which is not settled again."""
    return (row[0], row[1], row[2], row[3], row[4], row[5], 0, 0, None)
