"""Time is whole microseconds since the Unix epoch, everywhere inside. The storage owns the clock (law 5)."""

import time
from collections.abc import Callable

Clock = Callable[[], int]

SECOND = 1_000_000


def ticking(clock: Clock | None) -> tuple[Callable[[], int], int]:
    """(ticks, anchor), such that now is ticks() // 1000 + anchor: by default the monotonic clock, anchored once to the
    wall's time, so that it never steps. In two parts because a call of a Python function would be a tenth of a hit."""
    if clock is not None:
        return lambda: clock() * 1000, 0
    return time.monotonic_ns, (time.time_ns() - time.monotonic_ns()) // 1000


def seconds(microseconds: int) -> float:
    return microseconds / SECOND


def microseconds(seconds: float, most: int) -> int:
    """Whole microseconds, rounded to the nearest and cut to `most`, so that infinity means 'as long as can be'."""
    return most if seconds * SECOND >= most else round(seconds * SECOND)
