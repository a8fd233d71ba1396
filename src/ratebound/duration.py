"""Durations that a user gives, as seconds or as a timedelta. One function reads them all."""

import math
from datetime import timedelta

Duration = float | timedelta


def as_seconds(label: str, value: object, *, positive: bool = False, most: float = math.inf) -> float:
    """Return a duration in seconds: 0 or more, more than 0 if `positive`, and no more than `most`.

    Raises ValueError, which names the argument as `label`, for a bool, nan, what is out of bounds and what is neither a
    number nor a timedelta.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        seconds = math.nan  # within no bounds
    if 0 <= seconds <= most and (seconds or not positive):
        return seconds
    least = "more than 0" if positive else "0 or more"
    bound = ", or math.inf to wait for ever" if math.isinf(most) else f" and at most {most:.0f}"
    raise ValueError(f"{label} must be seconds or a timedelta, {least}{bound}, not {value!r}")
