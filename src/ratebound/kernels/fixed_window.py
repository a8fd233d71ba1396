"""Fixed window: one counter for each window; windows are aligned to the clock.

Packed, a state is (expires, used, since): the end of the window, the units spent in it, and the instant since which it
counts. A row returns `since` as `given`. A refund must bring the same `since`: a spend from before a reset, or from
before a step back of the clock, is not in `used`. Simple and small, but a client can spend one full count just before a
boundary and another just after it.
"""

from ratebound.compiling import mypyc_attr
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import Spent
from ratebound.numbers import Numbers, product
from ratebound.outcome import Row


@mypyc_attr(acyclic=True)
class Window(State):
    """The state of a fixed window."""

    __slots__ = ("since", "used")

    def __init__(self, expires: int = UNTOUCHED, used: int = 0, since: int = 0) -> None:
        self.expires = expires
        self.used = used
        self.since = since

    def fits(self, limit: Numbers, now: int, cost: int) -> bool:
        """Return True if the window has room, or a new one begins."""
        left = self.expires - now
        if left <= 0:
            return cost <= limit.count
        return left <= limit.period_us and self.used + cost <= limit.count

    def spend(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Charge `cost` if the window has room. Patience is ignored: a window that has not begun has no places."""
        count = limit.count
        left = self.expires - now
        if 0 < left <= limit.period_us:
            used = self.used
            since = self.since
        else:
            used, since, left = self._other_window(limit, now)
        if used + cost <= count:
            used += cost
            self.expires = now + left
            self.used = used
            self.since = since
            return (True, count - used, 0, left, 0, now, since, 0, None)
        remaining = count - used
        return (
            False,
            remaining if remaining > 0 else 0,
            left if cost <= count else None,
            left if used else 0,
            0,
            now,
            0,
            0,
            None,
        )

    def _other_window(self, limit: Numbers, now: int) -> tuple[int, int, int]:
        """Return (used, since, time left) of the window at `now` if it is not the one that the state was in."""
        left = limit.period_us - now % limit.period_us
        if self.expires > now:  # the clock stepped back
            self.expires = now + left
            return self.used, self.since, left
        return 0, now, left

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Overdraw this window by at most one count, or refund a spend that is still in `used`."""
        used, since, left = self._window(limit, now)
        if cost > 0 or (self.expires > now and (spent is None or spent[3] == since)):
            self.expires = now + left
            self.used = max(min(used + cost, max(used, limit.count + limit.count)), 0)
            self.since = since
        elif self.expires <= now:
            self.expires, self.used, self.since = UNTOUCHED, 0, 0
        remaining, reset_after = self.standing(limit, now)
        return (True, remaining, 0, reset_after, 0, now, 0, 0, None)

    def _window(self, limit: Numbers, now: int) -> tuple[int, int, int]:
        left = self.expires - now
        if 0 < left <= limit.period_us:
            return self.used, self.since, left
        return self._other_window(limit, now)

    def standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (remaining, reset_after)."""
        if self.expires <= now or not self.used:
            return limit.count, 0
        return max(limit.count - self.used, 0), self.expires - now

    def repair(self, limit: Numbers, now: int) -> None:
        """After a step back of the clock, count the spends of a window from the future in this one."""
        if self.expires - now > limit.period_us:
            self.expires = now - now % limit.period_us + limit.period_us

    def turn_after(self, limit: Numbers, now: int, front: int, cost: int) -> int | None:
        """Return microseconds until `cost` passes after `front` units; None if it never does.

        The rest of this window is available now, and one count at the beginning of each window after it.
        """
        if cost > limit.count:
            return None
        late = front + cost - self.standing(limit, now)[0]
        if late <= 0:
            return 0
        return limit.period_us - now % limit.period_us + product(limit.period_us, (late - 1) // limit.count)

    def copy(self) -> "Window":
        """Return an equal state."""
        return Window(self.expires, self.used, self.since)

    def pack(self, limit: Numbers) -> tuple[int, ...]:
        """Return (expires, used, since)."""
        return (self.expires, self.used, self.since)


def grows_after(limit: Numbers, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains. Exact: a window refills at its end."""
    return reset_after
