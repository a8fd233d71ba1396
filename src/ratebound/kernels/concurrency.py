"""Concurrency: slots that are held at the same time, each for one lease unless it is renewed or released.

Packed, a state is (expires, used, id, expiry, id, expiry, …), the earliest expiry first. The caller chooses the id of a
slot, so it can release a slot even if the answer that granted it was lost. Taking a slot that is already held renews
it, and releasing one that is not held does nothing, so both can be repeated.

A clock that steps back keeps slots for longer: by the length of the step, unless they are renewed or released.
"""

from itertools import islice

from ratebound.compiling import mypyc_attr
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import Extra, Spent
from ratebound.numbers import Numbers
from ratebound.outcome import Row


@mypyc_attr(acyclic=True)
class Slots(State):
    """The state of a limit of concurrent requests: the expiry of each slot by its id, the earliest expiry first.

    Those that have expired come first and are dropped by the next change, so a call looks at few of thousands. Only the
    group law changes slots, and only copies of them.
    """

    __slots__ = ("held",)

    def __init__(self, expires: int = UNTOUCHED, held: dict[int, int] | None = None) -> None:
        self.expires = expires
        self.held: dict[int, int] = {} if held is None else held

    def fits(self, limit: Numbers, now: int, cost: int) -> bool:
        """Return True if a slot is free. The cost is ignored."""
        return len(self.held) - self._expired(now) < limit.count

    def take(self, limit: Numbers, now: int, extra: Extra) -> Row:
        """Take the slot that `extra` names, or renew it."""
        if not self._is_held(extra[0], now) and not self.fits(limit, now, 1):
            return self._row(limit, now, False)
        self._hold(extra[0], now, now + limit.period_us)
        return self._row(limit, now, True)

    def spend(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Answer without an id, for a peek: allowed if a slot is free. Changes nothing."""
        return self._row(limit, now, self.fits(limit, now, cost))

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Hold the slot that `spent` names even above the count, or release it if `cost` is negative.

        `given` of the row is 1 if the slot was not held before.
        """
        given = 0
        if spent is not None and spent[0] >= 0:
            given = 0 if self._is_held(spent[0], now) else 1
            if cost > 0:
                self._hold(spent[0], now, now + limit.period_us)
            else:
                self._drop(now, spent[0] if cost < 0 else -1)
        return self._row(limit, now, True, given)

    def standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (remaining, reset_after)."""
        live = len(self.held) - self._expired(now)
        return max(limit.count - live, 0), self._latest() - now if live else 0

    def holders(self, now: int) -> list[tuple[int, int]]:
        """Return (id, expiry) of each slot that is held now, the earliest expiry first."""
        live = sorted((expiry, slot) for slot, expiry in self.held.items() if expiry > now)
        return [(slot, expiry) for expiry, slot in live]

    def repair(self, limit: Numbers, now: int) -> None:
        """Do nothing: a lease runs from the instant at which it was given."""

    def turn_after(self, limit: Numbers, now: int, front: int, cost: int) -> int | None:
        """Return microseconds until a slot is free if none is renewed or released. The front is ignored."""
        return self._wait(limit, now)

    def copy(self) -> "Slots":
        """Return an equal state."""
        return Slots(self.expires, self.held.copy())

    def entries(self) -> int:
        """Return the number of slots, those that have expired included."""
        return len(self.held)

    def pack(self, limit: Numbers) -> tuple[int, ...]:
        """Return (expires, used, id, expiry, …)."""
        slots = sorted((expiry, slot) for slot, expiry in self.held.items())
        return (self.expires, len(slots), *[number for expiry, slot in slots for number in (slot, expiry)])

    def _is_held(self, slot: int, now: int) -> bool:
        return self.held.get(slot, now) > now

    def _expired(self, now: int) -> int:
        """Return the number of slots that have expired."""
        found = 0
        for expiry in self.held.values():
            if expiry > now:
                break
            found += 1
        return found

    def _latest(self) -> int:
        """Return the last expiry. There must be a slot."""
        last: int = next(reversed(self.held.values()))
        return last

    def _hold(self, slot: int, now: int, expiry: int) -> None:
        self._drop(now, slot)
        in_order = not self.held or self._latest() <= expiry
        self.held[slot] = expiry
        if not in_order:  # the clock has stepped back, or others have a longer lease
            self.held = {slot: expiry for expiry, slot in sorted((at, slot) for slot, at in self.held.items())}
        self.expires = self._latest()

    def _drop(self, now: int, slot: int) -> None:
        """Drop the slots that have expired, and this one."""
        for expired in list(islice(self.held, self._expired(now))):
            del self.held[expired]
        self.held.pop(slot, None)
        self.expires = self._latest() if self.held else UNTOUCHED

    def _wait(self, limit: Numbers, now: int) -> int:
        """Return microseconds until the first of enough slots has expired."""
        end = len(self.held) - limit.count  # of those that must have expired, the place of the last
        if end < self._expired(now):
            return 0
        expiry: int = next(islice(self.held.values(), end, None))
        return expiry - now

    def _row(self, limit: Numbers, now: int, allowed: bool, given: int = 0) -> Row:
        remaining, reset_after = self.standing(limit, now)
        return (allowed, remaining, 0 if allowed else self._wait(limit, now), reset_after, 0, now, given, 0, None)


def grows_after(limit: Numbers, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains: at the latest when the last lease ends."""
    return reset_after
