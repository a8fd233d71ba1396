"""The answers while the storage is out of reach, by failure mode; the one place that decides open or closed.

- `local`: a memory storage of this process grants its share, max(1, ceil(count / workers)), burst alike. It lives as
  long as the guard, so a storage that comes and goes hands out no fresh shares.
- `open`: allow.
- `closed`: deny.
- `raise`: raise the StorageError.

In a group each limit follows its own mode: any `raise` raises, any `closed` denies, and the rest is decided by the
local limits together, all or nothing.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ratebound.clock import SECOND, Clock, ticking
from ratebound.errors import StorageError
from ratebound.limit import MAX_SPAN, Ask, Group, Limit, Mode
from ratebound.outcome import DegradedRows, Row
from ratebound.settling import DegradedGroup
from ratebound.storage import Holder
from ratebound.storage.memory import MemoryStorage

LEDGER = 10_000  # entries at most
LONG_KEY = 1_000  # characters: spends of longer keys are not recorded, so that the ledger stays small
LEAST_WAIT = 1_000  # microseconds

Entry = tuple[str, tuple[Limit, ...]]


def share_of(limit: Limit, workers: int) -> Limit:
    """Return the limit that one of `workers` processes may grant alone.

    The scope is the same, because a changed count keeps its state.
    """
    count, burst = -(-limit.count // workers), -(-limit.burst // workers)
    burst = min(burst, MAX_SPAN * count // limit.period_us)  # rounding up may make it slightly too large to be exact
    name = limit.name if limit.named else ""
    return Limit(count, limit.period_us, burst, limit.algorithm, name, large=True)


class Debt(NamedTuple):
    """Units of one ledger entry, and the number of the first grant among them."""

    units: int
    since: int


class Ledger:
    """Units that were granted locally and that the storage has certainly not seen.

    The oldest entries are dropped first. Every new entry gets the next number, and every grant the current number. A
    grant older than the present entry was written, dropped or lost with an earlier one: correcting it must not touch
    this entry.
    """

    def __init__(self) -> None:
        self.dropped = 0  # entries dropped for lack of room
        self._lock = threading.Lock()
        self._debts: dict[Entry, Debt] = {}
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
        """Record a debt that was taken but not written."""
        with self._lock:
            self._put(entry, debt)

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
        """Remove all debts and return them, oldest first."""
        with self._lock:
            taken, self._debts = self._debts, {}
        return list(taken.items())

    def renew(self) -> None:
        """Forget all debts in a forked child: the parent writes them back."""
        self._lock, self._debts = threading.Lock(), {}

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
    """A storage without I/O that decides from this process's knowledge. `ledger` holds the units to write back."""

    def __init__(self, failure: str, workers: int, clock: Clock | None = None) -> None:
        ticks, anchor = ticking(clock)
        self.failure = failure
        self.workers = workers
        self.now: Clock = lambda: ticks() // 1000 + anchor
        self.memory = MemoryStorage(clock=self.now)
        self.ledger = Ledger()
        self._share: Callable[[Limit], Limit] = lru_cache(4_096)(lambda limit: share_of(limit, workers))

    def decide(
        self, groups: Sequence[Group], mode: Mode, error: StorageError, probe_after: float
    ) -> list[Sequence[Row]]:
        """Answer each group. `probe_after` is the time in seconds until the storage may be called again.

        Raises `error` if the mode of any limit is `raise`.
        """
        self.raise_if_asked(groups, error)
        wait = max(ceil(probe_after * SECOND) + 1, LEAST_WAIT)  # better slightly late than too early
        kept = error.undone and error.outage  # a healthy storage would reject the same group again
        return [self._decide(group, mode, str(error), wait, kept) for group in groups]

    def raise_if_asked(self, groups: Sequence[Group], error: StorageError) -> None:
        """Raise `error` if the failure mode of any limit is `raise`."""
        if any(self._failure(limit) == "raise" for group in groups for limit in _limits(group)):
            raise error

    def settle(self, group: DegradedGroup) -> Sequence[Row]:
        """Correct a degraded decision: in the local memory, and in the ledger if it has not been written back yet."""
        local = self._local(group)
        if group.granted:
            for key, limits, cost, *_ in local:
                self.ledger.correct((key, limits), cost, group.granted)
        rows = self._merged(group, "force", self._ask(local, "force"), LEAST_WAIT)
        return DegradedRows(rows, group.reason)

    def owed(self, entry: Entry, units: int) -> Group:
        """Return the group to force in the storage for a ledger entry; empty if nothing is owed any more.

        It has one ask for each limit. It charges no more than the key still occupies here: grants older than a period
        are over in the storage as well.
        """
        key, limits = entry
        used = self._occupied(entry)
        return [(key, (limit,), min(units, most), None, None) for limit, most in zip(limits, used, strict=True) if most]

    def holders(self, group: Group, error: StorageError) -> list[Holder]:
        """Return the slots that were granted here, for the first limit of a group.

        Raises `error` if its failure mode is `raise`.
        """
        self.raise_if_asked((group,), error)
        key, limits, *_ = group[0]
        return self.memory.holders(key, limits[0])

    def reset(self, group: Group) -> None:
        """Forget the local states of a group."""
        self.memory.reset(group)

    def _occupied(self, entry: Entry) -> list[int]:
        key, limits = entry
        shares = tuple(map(self._share, limits))
        rows = self.memory.evaluate((((key, shares, 1, None, None),),), "peek")[0]
        return [share.burst - row[1] for share, row in zip(shares, rows, strict=True)]

    def _failure(self, limit: Limit) -> str:
        return limit.failure or self.failure

    def _decide(self, group: Group, mode: Mode, reason: str, wait: int, kept: bool) -> DegradedRows:
        local = self._local(group)
        if mode == "force":
            # Only additional charges: a refund belongs to a spend that the storage knows, with its instants.
            local = [(key, limits, max(cost, 0), None, None) for key, limits, cost, *_ in local]
        closed = mode != "force" and any(self._failure(limit) == "closed" for limit in _limits(group))
        answers = self._ask(local, "peek" if closed else mode)
        rows = self._merged(group, mode, answers, wait)
        if closed:
            return DegradedRows(rows, reason, closed=all(row[0] for row in answers))
        if not kept or mode == "peek" or not all(row[0] for row in rows):
            return DegradedRows(rows, reason)
        grants = [((key, limits), cost) for key, limits, cost, *_ in local if cost]
        return DegradedRows(rows, reason, granted=self.ledger.add(*grants) if grants else 0)

    def _local(self, group: Group) -> list[Ask]:
        """Return the asks whose limits are decided locally, with the limits as they are in the storage."""
        local: list[Ask] = []
        for key, limits, cost, patience, spent in group:
            places = [i for i, limit in enumerate(limits) if self._failure(limit) == "local"]
            if places:
                instants = None if spent is None else [spent[i] for i in places]
                local.append((key, tuple([limits[i] for i in places]), cost, patience, instants))
        return local

    def _ask(self, local: Sequence[Ask], mode: Mode) -> Sequence[Row]:
        if not local:
            return ()
        shares = [(key, tuple(map(self._share, limits)), *rest) for key, limits, *rest in local]
        return self.memory.evaluate((shares,), mode)[0]  # type: ignore[arg-type]

    def _merged(self, group: Group, mode: Mode, answers: Sequence[Row], wait: int) -> list[Row]:
        """Return one row for each limit of the group, in order."""
        local, now = iter(answers), self.now()
        rows: list[Row] = []
        for _, limits, cost, *_ in group:
            for limit in limits:
                failure = self._failure(limit)
                if failure == "local":
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
