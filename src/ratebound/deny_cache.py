"""The deny cache: denials that this process repeats for up to a second without asking the storage. Compiled where that
can be done. There is no I/O here.

A denial holds for the same keys and the same limits, at the same cost or more, until the storage would allow it. That
instant is counted from before the trip, so it is never too late. What callers are told is counted from the answer, so
waiting for `retry_after` is enough. Other processes may reset a key, refund or raise what it may use: then a cached
denial is wrong, for at most a second after its trip began.

What changes a key in this process ends its denials at once, those included whose trips are still on their way: only
denials whose trips began after the last change are used.
"""

from collections.abc import Sequence
from typing import Final

from ratebound.clock import Clock, ticking
from ratebound.decision import Decision, OneLimitDecision, Plan
from ratebound.limit import Group
from ratebound.outcome import Row
from ratebound.storage.mutex import new_mutex

LONGEST: Final = 1_000_000  # microseconds that a denial is repeated for
MAX_DENIALS: Final = 10_000  # in each second

Keys = str | tuple[str, ...]  # the key of a group's only ask, or the keys of all its asks
Place = tuple[str, Keys]


class Denial:
    """A denial of a group. Instants are of this process; `began` is before the trip, and `heard` after it."""

    __slots__ = ("began", "ends", "group", "heard", "rows")

    def __init__(self, group: Group, rows: Sequence[Row], began: int, heard: int, ends: int) -> None:
        self.group = group
        self.rows = rows
        self.began = began
        self.heard = heard
        self.ends = ends

    def rows_at(self, now: int) -> list[Row]:
        """Return what the storage said, with its times counted down."""
        passed = now - self.heard
        found: list[Row] = []
        for row in self.rows:
            resets = max(row[3] - passed, 0)
            wait = row[2]
            if not row[0] and wait is not None:
                wait -= passed
            if row[0] or (wait is not None and wait <= 0):  # only other limits of the group still deny
                found.append((True, row[1], 0, resets, 0, row[5] + passed, row[6], row[7], row[8]))
            else:
                found.append((False, row[1], wait, resets, 0, row[5] + passed, row[6], row[7], row[8]))
        return found


def can_be_cached(group: Group) -> bool:
    """Return True if every limit of a group allows that its denials are repeated."""
    for _, limits, _, patience, extras in group:
        if patience is not None or extras is not None:
            return False
        for limit in limits:
            if not limit.deny_cache:
                return False
    return True


class DenyCache:
    """The denials of the last second. Thread-safe.

    There are two generations, which change each second, so nothing has to be swept.
    """

    __slots__ = (
        "_changed",
        "_changed_before",
        "_cleared",
        "_denials",
        "_lock",
        "_older",
        "_ticks",
        "_turns",
    )

    def __init__(self, clock: Clock | None = None) -> None:
        self._ticks = ticking(clock)[0]  # without the anchor: slices and denials must agree about the time
        self.renew()

    def renew(self) -> None:
        """Forget everything, and replace the lock, in a forked child."""
        self._lock = new_mutex()
        self._denials: dict[Place, Denial] = {}
        self._older: dict[Place, Denial] = {}
        self._changed: dict[str, int] = {}  # the instant at which a key was changed by this process
        self._changed_before: dict[str, int] = {}
        self._cleared = self._ticks() // 1000 - 1
        self._turns = self._cleared + LONGEST  # the instant at which the generations change

    def clear(self) -> None:
        """Forget all denials."""
        with self._lock:
            self._clear(self._now())

    def _clear(self, now: int) -> None:
        self._denials = {}
        self._older = {}
        self._changed = {}
        self._changed_before = {}
        self._cleared = now

    @property
    def denials(self) -> int:
        """The number of denials that are kept now, ended ones included."""
        return len(self._denials) + len(self._older)

    def hit(self, plan: Plan, key: str, cost: int) -> Decision | None:
        """Return the denial of one key, or None if it is not known that the storage would deny it."""
        with self._lock:
            now = self._now()
            found = self._find((plan.numbers[0].scope, key))
            if found is None or now >= found.ends or len(found.group) > 1:
                return None
            ask = found.group[0]
            if cost < ask[2] or (ask[1] is not plan.limits and ask[1] != plan.limits) or not self._stands(found):
                return None
            rows = found.rows_at(now)
            if len(rows) == 1:
                return OneLimitDecision(key, plan, cost, rows[0])
            return Decision(((key, plan.limits, cost, None, None),), rows)

    def spend(self, group: Group) -> list[Row] | None:
        """Return the rows of a group that can be cached, if it is known that the storage would deny it."""
        with self._lock:
            now = self._now()
            found = self._find(_place(group))
            if found is None or now >= found.ends or len(group) != len(found.group) or not self._stands(found):
                return None
            for ask, denied in zip(group, found.group, strict=True):
                if ask[0] != denied[0] or ask[2] < denied[2] or (ask[1] is not denied[1] and ask[1] != denied[1]):
                    return None
            return found.rows_at(now)

    def note(self, group: Group, rows: Sequence[Row], began: int) -> None:
        """Keep the storage's own answer to a group that can be cached, if it is a denial."""
        longest = -1
        for row in rows:
            if not row[0]:
                wait = row[2]
                longest = max(longest, LONGEST if wait is None else min(wait, LONGEST))
        if longest <= 0:
            return
        with self._lock:
            now = self._now()
            if began + longest > now and len(self._denials) < MAX_DENIALS:
                self._denials[_place(group)] = Denial(group, rows, began, now, began + longest)

    def changed(self, group: Group) -> None:
        """End the denials of the keys of a group, because this process has changed what they may use."""
        with self._lock:
            now = self._now()
            for key, *_ in group:
                self._changed[key] = now
            if len(self._changed) > MAX_DENIALS:
                self._clear(now)

    def _now(self) -> int:
        """Return the time, and change the generations if it is time for that. The caller holds the lock."""
        now = self._ticks() // 1000
        if now >= self._turns:
            both = now >= self._turns + LONGEST
            self._older = {} if both else self._denials
            self._changed_before = {} if both else self._changed
            self._denials = {}
            self._changed = {}
            self._turns = now + LONGEST
        return now

    def _find(self, place: Place) -> Denial | None:
        return self._denials.get(place) or self._older.get(place)

    def _stands(self, denial: Denial) -> bool:
        """Return False if a key of the denial was changed since its trip began."""
        if denial.began <= self._cleared:
            return False
        for ask in denial.group:
            if denial.began <= max(self._changed.get(ask[0], -1), self._changed_before.get(ask[0], -1)):
                return False
        return True


def _place(group: Group) -> Place:
    """Return where the denial of a group is kept. Other groups may have the same place."""
    keys: Keys = group[0][0] if len(group) == 1 else tuple([ask[0] for ask in group])
    return group[0][1][0].scope, keys
