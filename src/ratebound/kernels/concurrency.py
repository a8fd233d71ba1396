"""Concurrency: slots that are held at the same time, each for one lease unless it is renewed or released.

Packed, a state is (expires, used, id, expiry, id, expiry, …), the earliest expiry first. The caller chooses the id of a
slot, so it can release a slot even if the answer that granted it was lost. Taking a slot that is already held renews
it, and releasing one that is not held does nothing, so both can be repeated.

A clock that steps back keeps slots for longer: by the length of the step, unless they are renewed or released.
"""

from ratebound.compiling import mypyc_attr
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import Extra, Spent
from ratebound.numbers import Numbers
from ratebound.outcome import Row


@mypyc_attr(acyclic=True)
class Slots(State):
    """The state of a limit of concurrent requests: the expiry of each slot by its id. Some may have expired."""

    __slots__ = ("held",)

    def __init__(self, expires: int = UNTOUCHED, held: dict[int, int] | None = None) -> None:
        self.expires = expires
        self.held: dict[int, int] = {} if held is None else held

    def fits(self, limit: Numbers, now: int, cost: int) -> bool:
        """Return True if a slot is free. The cost is ignored."""
        return len(self._live(now)) < limit.count

    def take(self, limit: Numbers, now: int, extra: Extra) -> Row:
        """Take the slot that `extra` names, or renew it."""
        live = self._live(now)
        if extra[0] not in live and len(live) >= limit.count:
            return self._row(limit, now, False, live)
        live[extra[0]] = now + limit.period_us
        self._hold(live)
        return self._row(limit, now, True, live)

    def spend(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Answer without an id, for a peek: allowed if a slot is free. Changes nothing."""
        live = self._live(now)
        return self._row(limit, now, len(live) < limit.count, live)

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Hold the slot that `spent` names even above the count, or release it if `cost` is negative.

        `given` of the row is 1 if the slot was not held before.
        """
        live = self._live(now)
        given = 0
        if spent is not None and spent[0] >= 0:
            given = 0 if spent[0] in live else 1
            if cost > 0:
                live[spent[0]] = now + limit.period_us
            elif cost < 0:
                live.pop(spent[0], None)
            self._hold(live)
        return self._row(limit, now, True, live, given)

    def standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (remaining, reset_after)."""
        live = self._live(now)
        return max(limit.count - len(live), 0), max(live.values()) - now if live else 0

    def holders(self, now: int) -> list[tuple[int, int]]:
        """Return (id, expiry) of each slot that is held now, the earliest expiry first."""
        return [(slot, expiry) for expiry, slot in sorted((at, slot) for slot, at in self._live(now).items())]

    def repair(self, limit: Numbers, now: int) -> None:
        """Do nothing: a lease runs from the instant at which it was given."""

    def turn_after(self, limit: Numbers, now: int, front: int, cost: int) -> int | None:
        """Return microseconds until a slot is free if none is renewed or released. The front is ignored."""
        return self._wait(limit, now, self._live(now))

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

    def _live(self, now: int) -> dict[int, int]:
        """Return the slots that are held now."""
        return {slot: expiry for slot, expiry in self.held.items() if expiry > now}

    def _hold(self, live: dict[int, int]) -> None:
        expires = max(live.values()) if live else UNTOUCHED
        self.held = live
        self.expires = expires

    def _wait(self, limit: Numbers, now: int, live: dict[int, int]) -> int:
        """Return microseconds until the first of enough slots has expired."""
        over = len(live) - limit.count
        return 0 if over < 0 else sorted(live.values())[over] - now

    def _row(self, limit: Numbers, now: int, allowed: bool, live: dict[int, int], given: int = 0) -> Row:
        wait = 0 if allowed else self._wait(limit, now, live)
        reset_after = max(live.values()) - now if live else 0
        return (allowed, max(limit.count - len(live), 0), wait, reset_after, 0, now, given, 0, None)


def grows_after(limit: Numbers, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains: at the latest when the last lease ends."""
    return reset_after
