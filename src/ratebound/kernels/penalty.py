"""Penalties: strikes, and blocks that become longer.

Packed, a state is (expires, last, until, step, strike, strike, …): the instant of the last strike, the end of the last
block, the number of blocks so far, and the instants of the strikes that count towards the next one.

A penalty stands beside other limits in an ask and costs nothing. The group law calls `strike` where another limit of
the same ask denies. Strikes within one second are one, and a blocked key gets none.
"""

from typing import Final

from ratebound.compiling import mypyc_attr
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import ONE_STRIKE, STRIKE, Spent
from ratebound.numbers import Numbers
from ratebound.outcome import Row

STRUCK: Final = 1  # `given` of a row: this decision was a strike
BLOCKED: Final = 2  # `given` of a row: this decision was a strike, and the block begins with it


@mypyc_attr(acyclic=True)
class Strikes(State):
    """The strikes and the block of one key."""

    __slots__ = ("last", "step", "strikes", "until")

    def __init__(
        self, expires: int = UNTOUCHED, last: int = UNTOUCHED, until: int = UNTOUCHED, step: int = 0, *strikes: int
    ) -> None:
        self.expires = expires
        self.last = last
        self.until = until
        self.step = step
        self.strikes: tuple[int, ...] = strikes

    def fits(self, limit: Numbers, now: int, cost: int) -> bool:
        """Return True if the key is not blocked. The cost is ignored."""
        return self.until <= now

    def spend(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Allow, or deny until the end of the block. Only repairs the state."""
        self.repair(limit, now)
        return self.answer(limit, now, 0)

    def strike(self, limit: Numbers, now: int) -> int:
        """Count a strike. Return STRUCK or BLOCKED, or 0 if it does not count. The state is repaired."""
        if self.until > now or now - self.last < ONE_STRIKE:
            return 0
        step = self.step if self.expires > now else 0
        strikes = (*self._live(limit, now), now)
        until = self.until
        found = STRUCK
        if len(strikes) >= limit.count:
            until = now + limit.blocks_us[min(step, len(limit.blocks_us) - 1)]
            step = min(step + 1, len(limit.blocks_us))
            strikes = ()
            found = BLOCKED
        expires = now + limit.period_us if strikes else until
        if step:
            expires = max(expires, max(until, now) + limit.forget_us)
        self.expires = expires
        self.last = now
        self.until = until
        self.step = step
        self.strikes = strikes
        return found

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Count a strike if `spent` is STRIKE. The cost is ignored."""
        self.repair(limit, now)
        return self.answer(limit, now, self.strike(limit, now) if spent == STRIKE else 0)

    def standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (strikes until the next block, reset_after)."""
        if self.until > now:
            return 0, self.expires - now
        return max(limit.count - len(self._live(limit, now)), 0), max(self.expires - now, 0)

    def answer(self, limit: Numbers, now: int, given: int) -> Row:
        """Return the row of this state."""
        remaining, reset_after = self.standing(limit, now)
        wait = max(self.until - now, 0)
        return (wait == 0, remaining, wait, reset_after, 0, now, given, 0, None)

    def repair(self, limit: Numbers, now: int) -> None:
        """After a step back of the clock, let everything be as if the last strike were now."""
        back = self.last - now
        if back > 0:
            strikes = tuple([at - back for at in self.strikes])
            expires = self.expires - back
            until = self.until if self.until == UNTOUCHED else self.until - back
            self.strikes = strikes
            self.expires = expires
            self.until = until
            self.last = now

    def turn_after(self, limit: Numbers, now: int, front: int, cost: int) -> int | None:
        """Return microseconds until the end of the block."""
        return max(self.until - now, 0)

    def copy(self) -> "Strikes":
        """Return an equal state."""
        return Strikes(self.expires, self.last, self.until, self.step, *self.strikes)

    def entries(self) -> int:
        """Return the number of strikes."""
        return len(self.strikes)

    def pack(self, limit: Numbers) -> tuple[int, ...]:
        """Return (expires, last, until, step, strike, …)."""
        return (self.expires, self.last, self.until, self.step, *self.strikes)

    def _live(self, limit: Numbers, now: int) -> tuple[int, ...]:
        """Return the strikes that still count."""
        return tuple([at for at in self.strikes if at > now - limit.period_us])


def grows_after(limit: Numbers, remaining: int, reset_after: int) -> int:
    """Return microseconds until more strikes remain: at the latest when everything is forgotten."""
    return reset_after
