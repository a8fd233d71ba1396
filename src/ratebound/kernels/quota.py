"""Quota: one counter for each window, where windows have ordinal numbers: periods of the calendar, for example.

Packed, a state is (expires, used, index, since, granted, previous): the units spent in the window with the ordinal
`index`, the instant since which it counts, the units that were granted on top of the count, and the units spent in the
window before it. A state expires one window after its own has ended, so that its count can be read until then.

The ordinal decides, not the end of the window. Two callers may disagree about the end by a clock that is behind or by
rules of a time zone that have changed. A state of the present window or of the next one is used as it stands, so their
disagreement never makes a second quota. A state further ahead comes from a clock that has stepped back: it moves to the
present window. A state from before is over.

A row that charges returns `since` as `given`, and as `part` the units of this cost that exceed the quota. A refund must
bring the same `since`: a spend from before a reset is not in `used`. A row that charges nothing returns the state
itself: `granted` as `given`, `used` as `part` and `previous` as `ahead`.
"""

from typing import Final

from ratebound.compiling import mypyc_attr
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import GRANT, Spent
from ratebound.numbers import Numbers
from ratebound.outcome import Row
from ratebound.windows import Windows

MOST: Final = 2**52  # units that are counted: beyond it doubles, and so Lua, would soon not be exact
_GRANT: Final = GRANT[0]


@mypyc_attr(acyclic=True)
class QuotaWindow(State):
    """The state of a quota."""

    __slots__ = ("granted", "index", "previous", "since", "used")

    def __init__(
        self,
        expires: int = UNTOUCHED,
        used: int = 0,
        index: int = 0,
        since: int = 0,
        granted: int = 0,
        previous: int = 0,
    ) -> None:
        self.expires = expires
        self.used = used
        self.index = index
        self.since = since
        self.granted = granted
        self.previous = previous

    def fits(self, limit: Numbers, now: int, cost: int) -> bool:
        """Return True if the window has room, or a new one begins."""
        ahead = self._ahead(limit, now)
        if ahead < 0:
            return limit.metered or cost <= limit.count
        return ahead <= 1 and (limit.metered or self.used + cost <= limit.count + self.granted)

    def spend(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Charge `cost` if the window has room, or if it is metered. Patience is ignored, as by a fixed window."""
        present = self._present(limit, now)
        total = limit.count + present.granted
        used = present.used + cost
        left = _left(limit, present.index, now)
        if limit.metered or used <= total:
            used = present.used = min(used, MOST)
            self._become(present)
            return (True, max(total - used, 0), 0, left, 0, now, present.since, min(max(used - total, 0), cost), None)
        self.repair(limit, now)
        wait = left if cost <= limit.count else None
        remaining, reset_after = self.standing(limit, now)
        return self.peeked(limit, now, (False, remaining, wait, reset_after, 0, now, 0, 0, None))

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Overdraw the window by at most one quota, refund a spend that is still in `used`, or grant units."""
        self.repair(limit, now)
        present = self._present(limit, now)
        is_known = self._ahead(limit, now) >= 0
        total = limit.count + present.granted
        before = max(present.used - total, 0)
        change = 0
        if spent is not None and spent[0] == _GRANT:
            present.granted = min(present.granted + cost, MOST)
            self._become(present)
        elif cost > 0 or (is_known and (spent is None or spent[3] == present.since)):
            most = MOST if limit.metered else min(max(present.used, total + total), MOST)
            present.used = max(min(present.used + cost, most), 0)
            change = max(present.used - total, 0) - before
            self._become(present)
        remaining, reset_after = self.standing(limit, now)
        return (True, remaining, 0, reset_after, 0, now, 0, change, None)

    def standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (remaining, reset_after)."""
        if self._ahead(limit, now) < 0:
            return limit.count, 0
        left = _left(limit, self.index, now) if self.used or self.granted else 0
        return max(limit.count + self.granted - self.used, 0), left

    def peeked(self, limit: Numbers, now: int, row: Row) -> Row:
        """Return a row that charges nothing, with the state itself. The state is repaired."""
        present = self._present(limit, now)
        return (row[0], row[1], row[2], row[3], 0, now, present.granted, present.used, present.previous)

    def repair(self, limit: Numbers, now: int) -> None:
        """After a step back of the clock, count the spends of a window from the future in this one."""
        if self._ahead(limit, now) > 1:
            present = self._present(limit, now)
            self.expires = present.expires
            self.index = present.index

    def turn_after(self, limit: Numbers, now: int, front: int, cost: int) -> int | None:
        """Return microseconds until `cost` passes after `front` units; None if it never does.

        The rest of this window is available now, and one count in each window after it. Beyond the next window the
        answer is too short: it is the beginning of the window after that.
        """
        late = front + cost - self.standing(limit, now)[0]
        if limit.metered or late <= 0:
            return 0
        if cost > limit.count:  # only a window with granted units has room for it
            return None
        windows = _windows(limit).at(now)
        return (windows[1] if late <= limit.count and self.index <= windows[0] else windows[2]) - now

    def copy(self) -> "QuotaWindow":
        """Return an equal state."""
        return QuotaWindow(self.expires, self.used, self.index, self.since, self.granted, self.previous)

    def pack(self, limit: Numbers) -> tuple[int, ...]:
        """Return (expires, used, index, since, granted, previous)."""
        return (self.expires, self.used, self.index, self.since, self.granted, self.previous)

    def _ahead(self, limit: Numbers, now: int) -> int:
        """Return by how many windows the state is ahead of the present one. It is over if that is below zero."""
        return -1 if self.expires == UNTOUCHED else self.index - _windows(limit).at(now)[0]

    def _present(self, limit: Numbers, now: int) -> "QuotaWindow":
        """Return the state as it stands at `now`."""
        index, _, expires = _windows(limit).at(now)
        ahead = self.index - index
        if self.expires == UNTOUCHED or ahead < -1:
            return QuotaWindow(expires, 0, index, now, 0, 0)
        if ahead == -1:
            return QuotaWindow(expires, 0, index, now, 0, self.used)
        if ahead == 1:
            return self.copy()
        return QuotaWindow(expires, self.used, index, self.since, self.granted, self.previous)

    def _become(self, other: "QuotaWindow") -> None:
        self.expires = other.expires
        self.used = other.used
        self.index = other.index
        self.since = other.since
        self.granted = other.granted
        self.previous = other.previous


def _windows(limit: Numbers) -> Windows:
    windows = limit.windows
    assert windows is not None
    return windows


def _left(limit: Numbers, index: int, now: int) -> int:
    """Return microseconds until the window with this ordinal ends: the present one or the next."""
    windows = _windows(limit).at(now)
    return (windows[1] if index <= windows[0] else windows[2]) - now


def grows_after(limit: Numbers, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains. Exact: a window refills at its end."""
    return reset_after
