"""Signals and pressures that tests drive by hand."""

from itertools import count

from ratebound.adaptive import Pressure
from ratebound.testing import FakeClock


class Gauge:
    """A signal that a test sets. 1.0 is its threshold."""

    name = "gauge"

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def load(self, now: float) -> float:
        return self.value


def pressure_of(*signals: object, floor: float = 0.1, clock: FakeClock | None = None) -> Pressure:
    """A pressure that nobody samples but the test. Without a clock, samples are two seconds apart."""
    ticks = count(0, 2)
    seconds = (lambda: clock() / 1e6) if clock is not None else (lambda: float(next(ticks)))
    return Pressure(signals, floor=floor, background=False, clock=seconds)  # type: ignore[arg-type]


def lower(pressure: Pressure, gauge: Gauge, samples: int = 100) -> None:
    """Put all priorities to their floors, or as far as so many samples go."""
    before, gauge.value = gauge.value, 10.0
    for _ in range(samples):
        pressure.sample()
    gauge.value = before
