"""Distinct values: how many different ones a key may touch.

Packed, a state is (expires, used, digest, expiry, digest, expiry, …), the earliest expiry first, like slots. A value
counts until one period after its last allowed sight, so no window holds more than the count. A value that is counted
already passes, and a denied one is not stored.

A clock that steps back keeps values for longer, by the length of the step.
"""

from ratebound.compiling import mypyc_attr
from ratebound.kernels.concurrency import Slots
from ratebound.kernels.state import UNTOUCHED
from ratebound.limit import Extra, Spent
from ratebound.numbers import Numbers
from ratebound.outcome import Row


@mypyc_attr(acyclic=True)
class Values(Slots):
    """The state of a limit of distinct values: the expiry of each value by its digest, the earliest expiry first."""

    __slots__ = ()

    def __init__(self, expires: int = UNTOUCHED, held: dict[int, int] | None = None) -> None:
        super().__init__(expires, held)

    def take(self, limit: Numbers, now: int, extra: Extra) -> Row:
        """Count the value that `extra` names. `given` of the row is the expiry that it had before; 0 if it is new."""
        before = self._expiry(extra[0], now)
        if not before and not self.fits(limit, now, 1):
            return self._row(limit, now, False)
        self._hold(extra[0], now, max(before, now + limit.period_us))
        return self._row(limit, now, True, before)

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Take back the sight that `spent` names if no other came after it, or count a value even above the count."""
        before = 0
        if spent is not None and spent[0] >= 0:
            before = self._expiry(spent[0], now)
            if not spent[1]:
                if cost > 0:
                    self._hold(spent[0], now, max(before, now + limit.period_us))
            elif before == spent[1]:
                if spent[2] > now:
                    self._hold(spent[0], now, spent[2])
                else:
                    self._drop(now, spent[0])
        return self._row(limit, now, True, before)

    def copy(self) -> "Values":
        """Return an equal state."""
        return Values(self.expires, self.held.copy())

    def _expiry(self, value: int, now: int) -> int:
        """Return the expiry of a value that counts; 0 for another."""
        expiry = self.held.get(value, 0)
        return expiry if expiry > now else 0
