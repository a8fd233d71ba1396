"""The numbers of a limit, as kernels compute with them.

They are apart from `Limit` so that the compiler can lay them out in memory: a Limit is a frozen dataclass for users.
"""

from collections.abc import Callable
from operator import mul
from typing import Final

from ratebound.compiling import COMPILED, i64, mypyc_attr
from ratebound.windows import Windows

MAX_COUNT: Final = 10**12
_multiply: Final[Callable[[int, int], int]] = mul


def product(time: int, units: int) -> int:
    """Return time * units, where time is in microseconds. Compiled code must not multiply with `*`.

    The compiler's `*` leaves factors of 2**30 and more, which is 18 minutes, to Python. That is slow, and Python runs
    signal handlers while it multiplies: if one raises, the compiler's `*` takes it for a lack of memory and aborts the
    process. A function raises the handler's exception.
    """
    if not COMPILED:
        return time * units
    if 0 <= time < 2**42 and 0 <= units < 2**20:
        return i64(time) * i64(units)
    if 0 <= time < 2**31 and 0 <= units < 2**31:
        return i64(time) * i64(units)
    return _multiply(time, units)


@mypyc_attr(acyclic=True)
class Numbers:
    """The numbers of one limit. Nothing changes them.

    `room` and `room_part` are the time that a burst less one unit takes to refill, `step` and `step_part` the time of
    one unit: whole microseconds and a remainder in 1/count microseconds. `refill_us` is the time from empty to full.
    `full` is a whole burst and a microsecond, in 1/count microseconds. `queues` is True for a leaky bucket: allowed
    requests wait for their turn. `scope` names the state, see `state_scope`. `windows` are those of a quota, which is
    `metered` if it denies nothing. `blocks_us` and `forget_us` are those of a penalty. `plain` is False for limits that
    only the group law decides: slots and values, which need an extra in their ask, and penalties. `slice_place` names
    the slices of the limit (see slices.py).
    """

    __slots__ = (
        "algorithm",
        "blocks_us",
        "burst",
        "count",
        "forget_us",
        "full",
        "metered",
        "period_us",
        "plain",
        "queues",
        "refill_us",
        "room",
        "room_part",
        "scope",
        "slice_place",
        "step",
        "step_part",
        "windows",
    )

    def __init__(
        self,
        count: int,
        period_us: int,
        burst: int,
        algorithm: str,
        scope: str,
        windows: Windows | None = None,
        metered: bool = False,
        blocks_us: tuple[int, ...] = (),
        forget_us: int = 0,
        slice_place: str = "",
    ) -> None:
        self.count = count
        self.period_us = period_us
        self.burst = burst
        self.algorithm = algorithm
        self.scope = scope
        self.windows = windows
        self.metered = metered
        self.blocks_us = blocks_us
        self.forget_us = forget_us
        self.slice_place = slice_place
        self.plain = algorithm not in ("concurrent", "distinct", "penalty")
        self.queues = algorithm == "leaky-bucket"
        self.room, self.room_part = divmod(product(period_us, burst - 1), count)
        self.step, self.step_part = divmod(period_us, count)
        self.refill_us = product(period_us, burst) // count
        self.full = product(period_us, burst) + count - 1

    def room_for(self, cost: int) -> tuple[int, int]:
        """Return the time that the burst less `cost` takes to refill: microseconds and a remainder in 1/count."""
        return divmod(product(self.period_us, self.burst - cost), self.count)

    def allows_more_than(self, other: "Numbers") -> bool:
        """Return True if a whole burst of this limit takes longer to refill than one of `other`."""
        mine = (self.room, self.room_part, self.step, self.step_part)
        return mine > (other.room, other.room_part, other.step, other.step_part)
