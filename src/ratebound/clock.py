"""Time as whole microseconds since the Unix epoch. The storage owns the clock (law 5)."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], int]

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ticking(clock: Clock | None) -> tuple[Callable[[], int], int]:
    """Return (ticks, anchor) for a clock, such that now is `ticks() // 1000 + anchor`.

    Without a clock, ticks come from the monotonic clock, anchored once to the wall clock, so that time never steps. The
    value comes in two parts because calling a Python function here would cost a tenth of a hit. What a clock returns is
    made a whole number: compiled code takes no other.
    """
    if clock is not None:
        return lambda: int(clock()) * 1000, 0
    return time.monotonic_ns, (time.time_ns() - time.monotonic_ns()) // 1000


def wall_clock() -> int:
    """Return the time of this host in microseconds. It goes on after a restart, and it may step."""
    return time.time_ns() // 1000


def pause() -> None:
    """Let other threads run, and signal handlers: not compiled, because compiled code runs none."""
    time.sleep(0)


def seconds(microseconds: int) -> float:
    """Return microseconds as float seconds."""
    return microseconds / SECOND


def utc_datetime(microseconds: int) -> datetime:
    """Return an instant in microseconds as a datetime in UTC."""
    return EPOCH + timedelta(microseconds=microseconds)


def microseconds(seconds: float, most: int) -> int:
    """Return seconds as whole microseconds, rounded to the nearest and capped at `most`, so infinity is allowed."""
    return most if seconds * SECOND >= most else round(seconds * SECOND)
