"""The `adaptive` of a policy: thresholds of signals in words, such as `cpu: 85%`, become a Pressure."""

import re
from collections.abc import Mapping
from typing import Any

from ratebound.adaptive import CpuUse, ErrorRate, Latency, LoopLag, Pressure, Signal
from ratebound.policy.duration_text import read_seconds
from ratebound.policy.problem import Problems, nearest, shown

PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
DECIMAL = re.compile(r"[0-9]*\.[0-9]+")  # YAML gives numbers with a point as text
SIGNALS = ("cpu", "lag", "latency", "errors")


def read_pressure(given: Any) -> Pressure | None:
    """Return the pressure that a mapping describes, or the Pressure that was given. Raises PolicyError or ValueError
    with everything that is wrong."""
    if given is None or isinstance(given, Pressure):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"expected a mapping like {{cpu: 85%, latency: 500 ms}}, or a Pressure, not {shown(given)}")
    problems = Problems()
    signals: list[Signal] = []
    floor = 0.1
    for name, value in given.items():
        with problems.at(str(name)):
            if name == "cpu":
                signals.append(CpuUse(_share(value)))
            elif name == "lag":
                signals.append(LoopLag(_seconds(value)))
            elif name == "latency":
                signals.append(Latency(_seconds(value)))
            elif name == "errors":
                signals.append(ErrorRate(_share(value)))
            elif name == "floor":
                floor = _share(value)
            else:
                raise ValueError(f"unknown key {shown(name)}: {nearest(name, (*SIGNALS, 'floor'))}")
    if not signals and not problems.found:
        problems.add((), f"expected at least one signal: {', '.join(SIGNALS)}; for example 'cpu: 85%'")
    problems.check()
    return Pressure(signals, floor=floor)


def _share(given: Any) -> float:
    """Return a share that is written as '85%' or 0.85. Raises ValueError."""
    found = PERCENT.fullmatch(given) if isinstance(given, str) else None
    share = float(found[1]) / 100 if found is not None else _number(given)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"expected a share like '85%' or 0.85, above 0 and at most 100%, not {shown(given)}")
    return float(share)


def _number(given: Any) -> Any:
    """Return a decimal number that a file has as text, such as '0.5', as a number, and anything else as it is."""
    return float(given) if isinstance(given, str) and DECIMAL.fullmatch(given) else given


def _seconds(given: Any) -> float:
    """Return a time in seconds. Raises ValueError, also for a plain number of more than a minute: it was meant as
    milliseconds."""
    seconds = read_seconds(_number(given))
    if isinstance(given, int | float) and seconds > 60:
        raise ValueError(f"{given} is {given} seconds: write the unit, like '{given} ms' or '{given} seconds'")
    if not 0 < seconds <= 3600:
        raise ValueError(f"expected more than 0 and at most an hour, like '500 ms', not {shown(given)}")
    return seconds
