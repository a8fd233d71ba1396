"""The numbers of a limit, as kernels compute with them.

They are apart from `Limit` so that the compiler can lay them out in memory: a Limit is a frozen dataclass for users.
"""

import operator
from collections.abc import Callable
from typing import Final

from ratebound.compiling import COMPILED, i64, mypyc_attr

MAX_COUNT: Final = 10**12

_multiply: Final[Callable[[int, int], int]] = operator.mul


def product(time: int, units: int) -> int:
    """Return time * units, where time is in microseconds. Compiled code multiplies whole numbers in no other way.

    Python runs signal handlers in the middle of multiplying large numbers, and compiled code takes an exception out of
    `*` for a lack of memory and aborts the program. A function may raise. Compiled, it is also much faster than `*` for
    times from 18 minutes to 50 days, which the compiler would take for numbers whose product may not fit in 63 bits.
    """
    if not COMPILED:
        return time * units
    if 0 <= time < 2**42 and 0 <= units < 2**20:
        return i64(time) * i64(units)
    return _multiply(time, units)


@mypyc_attr(acyclic=True)
class Numbers:
    """The numbers of one limit. Nothing changes them.

    `room` and `room_part` are the time that a burst less one unit takes to refill, `step` and `step_part` the time of
    one unit: whole microseconds and a remainder in 1/count microseconds. `refill_us` is the time from empty to full.
    `full` is a whole burst and a microsecond, in 1/count microseconds. `queues` is True for a leaky bucket: allowed
    requests wait for their turn. `scope` names the state, see `state_scope`.
    """

    __slots__ = (
        "algorithm",
        "burst",
        "count",
        "full",
        "period_us",
        "queues",
        "refill_us",
        "room",
        "room_part",
        "scope",
        "step",
        "step_part",
    )

    def __init__(self, count: int, period_us: int, burst: int, algorithm: str, scope: str) -> None:
        self.count = count
        self.period_us = period_us
        self.burst = burst
        self.algorithm = algorithm
        self.scope = scope
        self.queues = algorithm == "leaky-bucket"
        self.room, self.room_part = divmod(product(period_us, burst - 1), count)
        self.step, self.step_part = divmod(period_us, count)
        whole = product(period_us, burst)
        self.refill_us = whole // count
        self.full = whole + count - 1

    def room_for(self, cost: int) -> tuple[int, int]:
        """Return the time that the burst less `cost` takes to refill: microseconds and a remainder in 1/count."""
        return divmod(product(self.period_us, self.burst - cost), self.count)

    def allows_more_than(self, other: "Numbers") -> bool:
        """Return True if a whole burst of this limit takes longer to refill than one of `other`."""
        mine = (self.room, self.room_part, self.step, self.step_part)
        return mine > (other.room, other.room_part, other.step, other.step_part)
