"""Time is whole microseconds since the Unix epoch, everywhere inside. The storage owns the clock (law 5)."""

import time
from collections.abc import Callable

Clock = Callable[[], int]

SECOND = 1_000_000


def system_clock() -> Clock:
    """A clock that starts at the wall's time and then never steps: the monotonic clock, anchored once."""
    monotonic_ns = time.monotonic_ns
    anchor = (time.time_ns() - monotonic_ns()) // 1000

    def now() -> int:
        return monotonic_ns() // 1000 + anchor

    return now


def seconds(microseconds: int) -> float:
    return microseconds / SECOND


def microseconds(seconds: float, most: int) -> int:
    """Whole microseconds, rounded to the nearest and cut to `most`, so that infinity means 'as long as can be'."""
    return most if seconds * SECOND >= most else round(seconds * SECOND)
