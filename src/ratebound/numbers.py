"""The numbers of a limit, as kernels compute with them.

They are apart from `Limit` so that the compiler can lay them out in memory: a Limit is a frozen dataclass for users.
"""

from typing import Final

from ratebound.compiling import COMPILED, i64, mypyc_attr

MAX_COUNT: Final = 10**12


def product(time: int, units: int) -> int:
    """Return time * units, where time is in microseconds.

    Compiled, it is much faster than `*` for times from 18 minutes to 50 days, which the compiler would take for numbers
    whose product may not fit in 63 bits.
    """
    if COMPILED and 0 <= time < 2**42 and 0 <= units < 2**20:
        return i64(time) * i64(units)
    return time * units


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
        self.room, self.room_part = divmod((burst - 1) * period_us, count)
        self.step, self.step_part = divmod(period_us, count)
        self.refill_us = burst * period_us // count
        self.full = burst * period_us + count - 1

    def room_for(self, cost: int) -> tuple[int, int]:
        """Return the time that the burst less `cost` takes to refill: microseconds and a remainder in 1/count."""
        return divmod((self.burst - cost) * self.period_us, self.count)

    def allows_more_than(self, other: "Numbers") -> bool:
        """Return True if a whole burst of this limit takes longer to refill than one of `other`."""
        mine = (self.room, self.room_part, self.step, self.step_part)
        return mine > (other.room, other.room_part, other.step, other.step_part)
