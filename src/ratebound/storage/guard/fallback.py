"""The answers while the storage is out of reach, by failure mode; the one place that decides open or closed.

- `local`: a memory storage of this process grants its share, max(1, ceil(count / workers)), burst alike. It lives as
  long as the guard, so a storage that comes and goes hands out no fresh shares.
- `open`: allow.
- `closed`: deny.
- `raise`: raise the StorageError.

In a group each limit follows its own mode: any `raise` raises, any `closed` denies, and the rest is decided by the
local limits together, all or nothing.

Limits that are not rates have shares of their own kind in mode `local`:
- A calendar quota is granted at its average rate, with an hour's burst. A counter beside that bucket knows what was
  granted in this period of the calendar, so that all of it is written back.
- A metered quota allows everything, and all of it is written back.
- Slots that this process holds count first, whether the storage or this process granted them. A change of a slot can be
  repeated, so one that the storage may have missed is repeated when it is back, in every mode.
- A grant of units must reach the storage: it raises the StorageError in every mode.
- Distinct values are counted in this process. The count is not divided, and nothing is written back.

Penalties are the same in every mode that answers. A block that this process has seen holds until its end
(remembered_blocks.py), and else a penalty allows. Nothing is a strike: neither a denial nor a result.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import ceil
from typing import NamedTuple

from ratebound.clock import SECOND, Clock, ticking
from ratebound.errors import StorageError
from ratebound.kernels.group_law import peek
from ratebound.limit import GRANT, MAX_SPAN, NOT_GIVEN, UNITS, Ask, Extra, Group, Limit, Mode
from ratebound.outcome import DegradedRows, Row
from ratebound.settling import DegradedGroup
from ratebound.storage import HeldSlot
from ratebound.storage.guard.remembered_blocks import RememberedBlocks
from ratebound.storage.memory import MemoryStorage

LEDGER = 10_000  # entries at most
LONG_KEY = 1_000  # characters: spends of longer keys are not recorded, so that the debts stay small
LEAST_WAIT = 1_000  # microseconds

# What a debt is about: a key and its limits, or one slot, with the extra that names it.
Entry = tuple[str, tuple[Limit, ...]] | tuple[str, tuple[Limit, ...], Extra]


def share_of(limit: Limit, workers: int) -> Limit:
    """Return the limit that one of `workers` processes may grant alone.

    The scope is the same, because a changed count keeps its state. The share of a calendar quota is a token bucket
    with a name of its own, so that it shares no state with a bucket of the same period. Distinct values are not
    divided: each worker may meet all values of a client, and would deny a client that keeps its limit.
    """
    if limit.metered or limit.is_distinct or limit.is_penalty:
        return limit
    count, burst = -(-limit.count // workers), -(-limit.burst // workers)
    if limit.is_quota:
        burst = max(1, count * UNITS["hour"] // limit.period_us)
        name = f"quota:{blake2b(limit.scope.encode(), digest_size=16).hexdigest()}"
        return Limit(count, limit.period_us, burst, "token-bucket", name)
    burst = min(burst, MAX_SPAN * count // limit.period_us)  # rounding up may make it slightly too large to be exact
    name = limit.name if limit.named else ""
    return Limit(count, limit.period_us, burst, limit.algorithm, name, large=True)


def counter_of(limit: Limit) -> Limit:
    """Return the limit that counts what was granted of a quota in each of its windows, and denies nothing."""
    if limit.metered:
        return limit
    name = limit.name if limit.named else ""
    return Limit(
        limit.count, limit.period_us, algorithm=limit.algorithm, name=name, calendar=limit.calendar, over="allow"
    )


class Debt(NamedTuple):
    """Units of one entry of the debts, and the number of the first grant among them.

    Of a slot the units are 1 to hold it and -1 to release it.
    """

    units: int
    since: int


class Debts:
    """Units that were granted locally and that the storage has certainly not seen.

    The oldest entries are dropped first. Every new entry gets the next number, and every grant the current number. A
    grant older than the present entry was written, dropped or lost with an earlier one: correcting it must not touch
    this entry.

    `is_contested` is about slots: the write-back of one may reach the storage before or after another change of it.
    """

    def __init__(self) -> None:
        self.dropped = 0  # entries dropped for lack of room
        self._lock = threading.Lock()
        self._debts: dict[Entry, Debt] = {}
        self._taken: dict[Entry, Debt] = {}  # what is being written back
        self._number = 0

    def __len__(self) -> int:
        return len(self._debts)

    def add(self, *grants: tuple[Entry, int]) -> int:
        """Record units that were just granted together. Return the number by which they can be corrected."""
        with self._lock:
            for entry, units in grants:
                if entry not in self._debts:
                    self._number += 1
                self._put(entry, Debt(units, self._number))
            return self._number

    def put_back(self, entry: Entry, debt: Debt) -> None:
        """Record a debt that was taken but not written. A later change of the same slot stays."""
        with self._lock:
            if len(entry) == 2 or entry not in self._debts:
                self._put(entry, debt)

    def change_slot(self, entry: Entry, sign: int) -> None:
        """Record that a slot is to be held or released."""
        with self._lock:
            self._debts.pop(entry, None)
            self._put(entry, Debt(sign, self._number))

    def correct(self, entry: Entry, units: int, number: int) -> None:
        """Change the units that were granted under `number` by a signed amount, if they are still here."""
        with self._lock:
            debt = self._debts.get(entry)
            if debt is None or number < debt.since:
                return
            self._debts[entry] = Debt(debt.units + units, debt.since)
            if debt.units + units <= 0:
                del self._debts[entry]

    def take(self) -> list[tuple[Entry, Debt]]:
        """Remove all debts and return them, oldest first. They are being written back until `end_writing`."""
        with self._lock:
            self._taken, self._debts = self._debts, {}
            return list(self._taken.items())

    def end_writing(self) -> None:
        """Nothing is being written back any more."""
        with self._lock:
            self._taken = {}

    @property
    def is_idle(self) -> bool:
        """True if nothing is to be written back, or being written."""
        return not self._debts and not self._taken

    def is_contested(self, entry: Entry) -> bool:
        """Return True if an entry is to be written back, or being written."""
        with self._lock:
            return entry in self._debts or entry in self._taken

    def renew(self) -> None:
        """Forget all debts in a forked child: the parent writes them back."""
        self._lock, self._debts, self._taken = threading.Lock(), {}, {}

    def _put(self, entry: Entry, debt: Debt) -> None:
        if len(entry[0]) > LONG_KEY:
            self.dropped += 1
            return
        units, since = self._debts.pop(entry, Debt(0, debt.since))
        self._debts[entry] = Debt(units + debt.units, min(since, debt.since))
        if len(self._debts) > LEDGER:
            del self._debts[next(iter(self._debts))]
            self.dropped += 1


class Fallback:
    """A storage without I/O that decides from this process's knowledge. `debts` holds the units to write back."""

    def __init__(self, failure: str, workers: int, clock: Clock | None = None) -> None:
        ticks, anchor = ticking(clock)
        self.failure = failure
        self.workers = workers
        self.now: Clock = lambda: ticks() // 1000 + anchor
        self.memory = MemoryStorage(clock=self.now)
        self.debts = Debts()
        self.blocks = RememberedBlocks(self.now)
        self._share: Callable[[Limit], Limit] = lru_cache(4_096)(lambda limit: share_of(limit, workers))
        self._counter: Callable[[Limit], Limit] = lru_cache(4_096)(counter_of)

    def decide(
        self, groups: Sequence[Group], mode: Mode, error: StorageError, probe_after: float
    ) -> list[Sequence[Row]]:
        """Answer each group. `probe_after` is the time in seconds until the storage may be called again.

        Raises `error` if the mode of any limit is `raise`, and for a grant.
        """
        try:
            self.raise_if_asked(groups, mode, error)
        except StorageError:
            if mode == "spend" and error.outage and not error.undone:  # nobody will release what it may have taken
                for group in groups:
                    self._repeat_later(slot_changes(group, mode, -1))
            raise
        wait = max(ceil(probe_after * SECOND) + 1, LEAST_WAIT)  # better slightly late than too early
        if mode == "force":
            return [self._force(group, error, wait) for group in groups]
        return [self._decide(group, mode, error, wait) for group in groups]

    def raise_if_asked(self, groups: Sequence[Group], mode: Mode, error: StorageError) -> None:
        """Raise `error` if the failure mode of any limit is `raise`, or if units are to be granted.

        To hold or release a slot never raises: that is repeated when the storage is back.
        """
        for group in groups:
            for _, limits, _, _, extras in group:
                if extras is not None and GRANT in extras:
                    raise error
                for limit in limits:
                    if self._failure(limit) == "raise" and not (mode == "force" and limit.has_slots):
                        raise error

    def contested(self, groups: Sequence[Group], mode: Mode) -> set[Entry]:
        """Return the slots that a call will change, and that are also to be written back."""
        if mode == "peek" or self.debts.is_idle:
            return set()
        changed = (slot for group in groups for slot, _ in changed_slots(group, mode))
        return {slot for slot in changed if self.debts.is_contested(slot)}

    def saw(self, group: Group, mode: Mode, rows: Sequence[Row], contested: set[Entry]) -> bool:
        """Note the blocks in an answer of the storage, and the slots that it granted, renewed or released here.

        A change of a slot that was contested is repeated later, because the write-back may have undone it. Return True
        if there is such a slot.
        """
        if not any(extras is not None for *_, extras in group):
            return False
        for (key, limit), row in zip(_places(group), rows, strict=True):
            if limit.is_penalty:
                self.blocks.saw(key, limit, row)
        if mode == "peek":
            return False
        # A force denies nothing: a row of it that does not allow shows that the key is blocked.
        changes = slot_changes(group, mode) if mode == "force" or all(row[0] for row in rows) else ()
        repeats = False
        if changes:
            self._ask(changes, "force")
            for slot, sign in changed_slots(group, mode):
                if slot in contested or self.debts.is_contested(slot):
                    self.debts.change_slot(slot, sign)
                    repeats = True
        return repeats

    def settle(self, group: DegradedGroup) -> Sequence[Row]:
        """Correct a degraded decision: in the local memory, and in the debts if it has not been written back yet."""
        local = self._local(group)
        if group.granted:
            for entry, cost in _entries(local):
                self.debts.correct(entry, cost, group.granted)
        rows = self._merged(group, "force", self._ask(local, "force"), self._penalties(group, "force"), LEAST_WAIT)
        self._repeat_later(slot_changes(group, "force"))  # the storage may hold the slot by now
        return DegradedRows(rows, group.reason)

    def owed(self, entry: Entry, units: int) -> Group:
        """Return the group to force in the storage for an entry of the debts; empty if nothing is owed any more.

        It has one ask for each limit. It charges no more than the key still occupies here: grants older than a period
        are over in the storage as well.
        """
        key, limits = entry[0], entry[1]
        if len(entry) == 3:
            return (
                [(key, limits, units, None, [entry[2]])] if units < 0 or self._is_held(key, limits[0], entry[2]) else []
            )
        used = self._occupied(key, limits)
        return [(key, (limit,), min(units, most), None, None) for limit, most in zip(limits, used, strict=True) if most]

    def holders(self, group: Group, error: StorageError) -> list[HeldSlot]:
        """Return the slots that this process holds, for the first limit of a group.

        Raises `error` if its failure mode is `raise`.
        """
        self.raise_if_asked((group,), "peek", error)
        key, limits, *_ = group[0]
        return self.memory.holders(key, limits[0])

    def reset(self, group: Group) -> None:
        """Forget the local states and the blocks of a group."""
        self.memory.reset([(key, self._shares(limits), 1, None, None) for key, limits, *_ in group])
        self.forget_blocks(group)

    def forget_blocks(self, group: Group) -> None:
        """Forget the blocks of a group."""
        for key, limit in _places(group):
            if limit.is_penalty:
                self.blocks.forget(key, limit)

    def _occupied(self, key: str, limits: tuple[Limit, ...]) -> list[int]:
        """Return the units of each limit that a key occupies here; of a quota, those of the current window."""
        rows = self._ask([(key, limits, 1, None, None)], "peek")
        return [
            row[7] if limit.is_quota else self._share(limit).burst - row[1]
            for limit, row in zip(limits, rows, strict=True)
        ]

    def _is_held(self, key: str, limit: Limit, extra: Extra) -> bool:
        return any(holder[0] == extra[0] for holder in self.memory.holders(key, limit))

    def _failure(self, limit: Limit) -> str:
        return limit.failure or self.failure

    def _is_local(self, limit: Limit) -> bool:
        return self._failure(limit) == "local" and not limit.is_penalty

    def _decide(self, group: Group, mode: Mode, error: StorageError, wait: int) -> DegradedRows:
        local, reason = self._local(group), str(error)
        closed = any(self._failure(limit) == "closed" for limit in _limits(group))
        penalties = self._penalties(group, mode)
        blocked = not all(row[0] for row in penalties)
        answers = self._ask(local, "peek" if closed or blocked else mode)
        rows = self._merged(group, mode, answers, penalties, wait)
        allowed = all(row[0] for row in rows)
        if mode == "spend" and error.outage and (allowed or not error.undone):
            # A spend that the storage may have made, and that is denied here, must not keep its slot there.
            self._repeat_later(slot_changes(group, mode, 1 if allowed else -1))
        if closed:
            return DegradedRows(rows, reason, closed=not blocked and all(row[0] for row in answers))
        return DegradedRows(rows, reason, granted=self._owe(local, error) if allowed and mode == "spend" else 0)

    def _force(self, group: Group, error: StorageError, wait: int) -> DegradedRows:
        """Charge and hold here, and later in the storage.

        Units are charged additionally only: a refund belongs to a spend that the storage knows, with its instants. So
        does a value that is to be taken back.
        """
        local = [
            (key, limits, max(cost, 0), None, _counted_values(limits, extras))
            for key, limits, cost, _, extras in self._local(group)
        ]
        changes = slot_changes(group, "force")
        self._ask(changes, "force")
        answers = self._ask(local, "force")
        if error.outage:
            self._repeat_later(changes)
        rows = self._merged(group, "force", answers, self._penalties(group, "force"), wait)
        return DegradedRows(rows, str(error), granted=self._owe(local, error))

    def _owe(self, local: Sequence[Ask], error: StorageError) -> int:
        """Record units that were granted and that the storage has certainly not seen. Return their number, or 0."""
        kept = error.undone and error.outage  # a healthy storage would reject the same group again
        grants = [(entry, cost) for entry, cost in _entries(local) if cost] if kept else ()
        return self.debts.add(*grants) if grants else 0

    def _repeat_later(self, changes: Sequence[Ask]) -> None:
        for slot, sign in _as_entries(changes):
            self.debts.change_slot(slot, sign)

    def _local(self, group: Group) -> list[Ask]:
        """Return the asks whose limits are decided locally, with the limits as they are in the storage.

        Penalties are not among them: they would count strikes.
        """
        local: list[Ask] = []
        for key, limits, cost, patience, extras in group:
            places = [i for i, limit in enumerate(limits) if self._is_local(limit)]
            if places:
                given = None if extras is None else [extras[i] for i in places]
                local.append((key, tuple([limits[i] for i in places]), cost, patience, given))
        return local

    def _shares(self, limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
        """Return the limits that are asked here: the share of each, and the counter of a quota after its share."""
        found: list[Limit] = []
        for limit in limits:
            found.append(self._share(limit))
            if _is_counted(limit):
                found.append(self._counter(limit))
        return tuple(found)

    def _ask(self, local: Sequence[Ask], mode: Mode) -> Sequence[Row]:
        """Ask the memory of this process. Return one row for each limit."""
        if not local:
            return ()
        asks: list[Ask] = []
        for key, limits, cost, patience, extras in local:
            given: list[Extra] | None = None
            if extras is not None:
                given = []
                for limit, extra in zip(limits, extras, strict=True):
                    given += [NOT_GIVEN, extra] if _is_counted(limit) else [extra]
            asks.append((key, self._shares(limits), cost, patience, given))
        answers = self.memory.evaluate((asks,), mode)[0]
        is_charged = mode == "force" or (mode == "spend" and all(row[0] for row in answers))
        rest, rows = iter(answers), []
        for limit in _limits(local):
            row = next(rest)
            if _is_counted(limit):  # its bucket decides; its counter is what can be read and settled
                counted = next(rest)
                row = (*row[:6], counted[6], 0, None) if is_charged else (*row[:6], *counted[6:])
            rows.append(row)
        return rows

    def _penalties(self, group: Group, mode: Mode) -> list[Row]:
        """Return one row for each penalty of the group, in order, by the blocks that this process remembers."""
        now = self.now()
        rows: list[Row] = []
        for key, limits, cost, patience, _ in group:
            for limit in limits:
                if limit.is_penalty:
                    state = self.blocks.state(key, limit)
                    if mode == "peek":
                        rows.append(peek(limit.numbers, state, now, cost, patience))
                    else:
                        rows.append(state.spend(limit.numbers, now, cost, None, 0))
        return rows

    def _merged(
        self, group: Group, mode: Mode, answers: Sequence[Row], penalties: Sequence[Row], wait: int
    ) -> list[Row]:
        """Return one row for each limit of the group, in order."""
        local, blocks, now = iter(answers), iter(penalties), self.now()
        rows: list[Row] = []
        for _, limits, cost, *_ in group:
            for limit in limits:
                failure = self._failure(limit)
                block = next(blocks) if limit.is_penalty else None
                if block is not None and (failure != "closed" or mode == "force" or not block[0]):
                    row = block
                elif failure == "local":
                    row = next(local)
                    if row[2] is None and cost <= limit.burst:  # it exceeds only the share: the storage may allow it
                        row = (*row[:2], wait, *row[3:])
                elif failure == "open" or mode == "force":
                    row = (True, limit.burst if failure == "open" else 0, 0, 0, 0, now, 0, 0, None)
                else:
                    row = (False, 0, wait, 0, 0, now, 0, 0, None)
                rows.append(row)
        return rows


def _limits(group: Group) -> Iterator[Limit]:
    return (limit for _, limits, *_ in group for limit in limits)


def _places(group: Group) -> Iterator[tuple[str, Limit]]:
    """Return the key and the limit of each row of a group, in order."""
    return ((key, limit) for key, limits, *_ in group for limit in limits)


def _counted_values(limits: tuple[Limit, ...], extras: Sequence[Extra] | None) -> list[Extra] | None:
    """Return the extras that count a value, for a force. All others are left out."""
    if extras is None or not any(limit.is_distinct for limit in limits):
        return None
    return [
        extra if limit.is_distinct and not extra[1] else NOT_GIVEN for limit, extra in zip(limits, extras, strict=True)
    ]


def _is_counted(limit: Limit) -> bool:
    """Return True for a quota whose share is a bucket, and has a counter beside it."""
    return limit.is_quota and not limit.metered


def _entries(local: Sequence[Ask]) -> list[tuple[Entry, int]]:
    """Return the entry of the debts and the cost of each ask. Only rates and quotas take it."""
    found: list[tuple[Entry, int]] = []
    for key, limits, cost, *_ in local:
        charged = tuple([limit for limit in limits if limit.takes_cost])
        if charged:
            found.append(((key, charged), cost))
    return found


def slot_changes(group: Group, mode: Mode, sign: int = 1) -> list[Ask]:
    """Return an ask to force for each slot that a group changes.

    A spend takes its slots if `sign` is 1, and gives them back if it is -1. In mode force the cost says it.
    """
    found: list[Ask] = []
    for key, limits, cost, _, extras in group:
        if extras is not None and (cost or mode == "spend"):
            change = sign if mode == "spend" else 1 if cost > 0 else -1
            for limit, extra in zip(limits, extras, strict=True):
                if limit.has_slots and extra[0] >= 0:
                    found.append((key, (limit,), change, None, [extra]))
    return found


def changed_slots(group: Group, mode: Mode) -> list[tuple[Entry, int]]:
    """Return the debt of each slot that a group changes: 1 if it is taken or held, -1 if it is released."""
    return _as_entries(slot_changes(group, mode))


def _as_entries(changes: Sequence[Ask]) -> list[tuple[Entry, int]]:
    return [((key, limits, extra), sign) for key, limits, sign, _, extras in changes for extra in extras or ()]
