"""Sliding counter: two windows in a row, the older one weighted by the part of it that the last period still covers.

Packed, a state is (expires, current, previous). The current window ends one period before `expires`; the first window
begins with the first spend of an untouched key. The estimated use of the last period is current + previous * (rest of
the current window) / period, rounded up. A request passes only if the estimate plus its cost is within the count. So
the limit is never exceeded by its own estimate, at the price of at most one unit per period.
"""

from typing import Final

from ratebound.compiling import mypyc_attr
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import Spent
from ratebound.numbers import Numbers, product
from ratebound.outcome import Row

EXACT_WINDOWS: Final = 16


@mypyc_attr(acyclic=True)
class Counter(State):
    """The state of a sliding counter."""

    __slots__ = ("current", "previous")

    def __init__(self, expires: int = UNTOUCHED, current: int = 0, previous: int = 0) -> None:
        self.expires = expires
        self.current = current
        self.previous = previous

    def fits(self, limit: Numbers, now: int, cost: int) -> bool:
        """Return True if the estimate allows the cost."""
        period = limit.period_us
        left = self.expires - period - now  # of the current window
        current, previous = self.current, self.previous
        if left <= 0 or left > period:
            if left > period:
                return False
            if left <= -period:
                return cost <= limit.count
            left, current, previous = left + period, 0, current
        free = limit.count - current - cost
        if previous:
            free -= _share(limit, previous, left)
        return free >= 0

    def spend(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Charge `cost` if the estimate allows it. Patience is ignored: a window that has not begun has no places."""
        count = limit.count
        period = limit.period_us
        left = self.expires - period - now
        current = self.current
        previous = self.previous
        if left <= 0 or left > period:
            if left > period:
                self.repair(limit, now)
            left, current, previous = self._windows(limit, now)
        free = count - current - cost
        if previous:
            free -= _share(limit, previous, left)
        if free >= 0:
            self.expires = now + left + period
            self.current = current + cost
            self.previous = previous
            return (True, free, 0, left + period, 0, now, 0, 0, None)
        remaining = free + cost
        return (
            False,
            remaining if remaining > 0 else 0,
            None if cost > count else _retry_after(limit, left, current, previous, cost),
            left + period if current else left if previous else 0,
            0,
            now,
            0,
            0,
            None,
        )

    def _windows(self, limit: Numbers, now: int) -> tuple[int, int, int]:
        """Return (left, current, previous) of the windows at `now`. The state is repaired."""
        left = self.expires - limit.period_us - now
        if left > 0:
            return left, self.current, self.previous
        if left > -limit.period_us:
            return left + limit.period_us, 0, self.current
        return limit.period_us, 0, 0

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Overdraw this window by at most one count, or refund the window of the spend.

        A window is identified by its end: a window that began again after a step back of the clock, or after a reset,
        has a different one.
        """
        self.repair(limit, now)
        left, current, previous = self._windows(limit, now)
        end = now + left
        expires = end + limit.period_us if cost > 0 or spent is None else spent[1]
        if expires == end + limit.period_us:
            current = max(min(current + cost, max(current, limit.count + limit.count)), 0)
        elif expires == end:
            previous = max(previous + cost, 0)
        if current:
            self.expires, self.current, self.previous = end + limit.period_us, current, previous
        elif previous:  # as if this window had not begun
            self.expires, self.current, self.previous = end, previous, 0
        else:
            self.expires, self.current, self.previous = UNTOUCHED, 0, 0
        remaining, reset_after = self.standing(limit, now)
        return (True, remaining, 0, reset_after, 0, now, 0, 0, None)

    def standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (remaining, reset_after)."""
        left, current, previous = self._windows(limit, now)
        remaining = limit.count - current - _share(limit, previous, left)
        return max(remaining, 0), left + limit.period_us if current else left if previous else 0

    def repair(self, limit: Numbers, now: int) -> None:
        """After a step back of the clock, let a window from the future begin now, with all its units."""
        if self.expires > now + limit.period_us + limit.period_us:
            self.expires = now + limit.period_us + limit.period_us

    def turn_after(self, limit: Numbers, now: int, front: int, cost: int) -> int | None:
        """Return microseconds until `cost` passes after `front` units; None if it never does.

        The units in front pass one by one as early as each window allows, and `cost` passes at once after them. Beyond
        EXACT_WINDOWS each window is taken to give a whole count, so the answer can be too short.
        """
        count, period = limit.count, limit.period_us
        if cost > count:
            return None
        wait = 0
        left, current, previous = self._windows(limit, now)
        for _ in range(EXACT_WINDOWS):
            gives = max(count - current + -previous // period, 0)  # until the last microsecond of this window
            if front <= gives:
                break
            front -= gives
            wait, left, current, previous = wait + left, period, 0, current + gives
        else:
            wait += product(period, front // count)
            front %= count
        current += front
        if current + cost + _share(limit, previous, left) > count:
            wait += _retry_after(limit, left, current, previous, cost)
        return wait

    def copy(self) -> "Counter":
        """Return an equal state."""
        return Counter(self.expires, self.current, self.previous)

    def pack(self, limit: Numbers) -> tuple[int, ...]:
        """Return (expires, current, previous)."""
        return (self.expires, self.current, self.previous)


def _share(limit: Numbers, previous: int, left: int) -> int:
    """Return the units of the older window that still count, rounded up."""
    return (product(left, previous) + limit.period_us - 1) // limit.period_us


def _retry_after(limit: Numbers, left: int, current: int, previous: int, cost: int) -> int:
    """Solve the estimate for time: within this window if possible, else in the next, where `current` is the older."""
    count, period = limit.count, limit.period_us
    if current + cost <= count:
        return left - product(period, count - current - cost) // previous
    return left + period - product(period, count - cost) // current


def grows_after(limit: Numbers, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains, at the latest.

    Exact if the previous window was empty: then the units of this one begin to leave at its end.
    """
    left = reset_after - limit.period_us
    if left <= 0 or remaining >= limit.count:
        return reset_after
    return left - limit.period_us // (remaining - limit.count)
