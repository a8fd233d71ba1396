"""The base of every kernel: a state that knows its algorithm."""

from typing import Final

from ratebound.compiling import mypyc_attr
from ratebound.limit import Spent
from ratebound.numbers import Numbers
from ratebound.outcome import Row

UNTOUCHED: Final = -(2**60)  # `expires` of a state that was never spent from: before every clock, also one below zero


@mypyc_attr(acyclic=True)
class State:
    """The units that a key has spent of one limit.

    If `expires` is before now, the state is as if untouched. A new state is UNTOUCHED. Every method gets the numbers of
    the limit, because a limit may change its count or burst and keep its states.

    A change is a row of plain assignments, without a call or a loop between the first and the last. Python runs signal
    handlers only at calls, in loops, and while it multiplies or divides large numbers, so an exception out of a handler
    never leaves half of a change.
    """

    __slots__ = ("expires",)

    expires: int

    def fits(self, limit: Numbers, now: int, cost: int) -> bool:
        """Return True if `spend` without patience would allow the cost. Changes nothing.

        Return False as well if the state has to be repaired first; after `repair` the answer is exact.
        """
        raise NotImplementedError

    def spend(self, limit: Numbers, now: int, cost: int, patience: int | None, lead: int) -> Row:
        """Charge `cost` if the limit allows it. A denial only repairs the state."""
        raise NotImplementedError

    def force(self, limit: Numbers, now: int, cost: int, spent: Spent | None) -> Row:
        """Charge or refund unconditionally."""
        raise NotImplementedError

    def standing(self, limit: Numbers, now: int) -> tuple[int, int]:
        """Return (remaining, reset_after) of a repaired state. Changes nothing."""
        raise NotImplementedError

    def repair(self, limit: Numbers, now: int) -> None:
        """Correct the state after the clock stepped back."""
        raise NotImplementedError

    def turn_after(self, limit: Numbers, now: int, front: int, cost: int) -> int | None:
        """Return microseconds until `cost` passes if `front` units pass before it; None if it never does.

        The units in front pass as early as they can. The state is repaired. Changes nothing.
        """
        raise NotImplementedError

    def copy(self) -> "State":
        """Return a state that can be changed without changing this one."""
        raise NotImplementedError

    def entries(self) -> int:
        """Return the number of entries that the state stores; 0 for a state of a constant size."""
        return 0

    def pack(self, limit: Numbers) -> tuple[int, ...]:
        """Return the state as whole numbers, `expires` first. The constructor's counterpart is in packing.py."""
        raise NotImplementedError
