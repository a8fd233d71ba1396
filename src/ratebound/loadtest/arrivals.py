"""When requests are due: schedules as pure functions from a plan to due times, in seconds from the start.

A schedule never waits for answers: that is what makes the load open. Due times come lazily and never fall. All of them
are in [0, duration). Times are computed from the number of the request, not added up, so errors do not grow.
"""

import math
import random
import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ratebound.clock import SECOND
from ratebound.notation import UNIT_NAMES, parse_span

NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
RATE = re.compile(NUMBER + r" ?/ ?(?:" + NUMBER + r" ?)?([a-z]+)")
BURSTS = re.compile(r"burst (\d{1,9}) every (.+)")
EXAMPLES = "expected for example '150/s', 'poisson 150/s', '10/s..200/s' or 'burst 50 every 5s'"


class Arrivals(Protocol):
    """A schedule of requests."""

    @property
    def duration(self) -> float:
        """Seconds from the start to the end of the schedule."""

    @property
    def peak(self) -> float:
        """The highest rate, in requests per second."""

    def due_times(self) -> Iterator[float]:
        """Yield the due time of each request, in order."""


class ConstantArrivals(NamedTuple):
    """One request every 1/rate seconds, the first at the start."""

    rate: float
    duration: float

    @property
    def peak(self) -> float:
        """The highest rate, in requests per second."""
        return self.rate

    def due_times(self) -> Iterator[float]:
        """Yield k/rate for k = 0, 1, 2, … below the duration."""
        rate, duration = self.rate, self.duration
        number, due = 0, 0.0
        while due < duration:
            yield due
            number += 1
            due = number / rate


class PoissonArrivals(NamedTuple):
    """Requests that come independently of each other, as those of many strangers do. The seed fixes all due times."""

    rate: float
    duration: float
    seed: int = 0

    @property
    def peak(self) -> float:
        """The average rate: a Poisson process has no highest one."""
        return self.rate

    def due_times(self) -> Iterator[float]:
        """Yield times with exponential gaps between them."""
        gap = random.Random(self.seed).expovariate
        rate, duration = self.rate, self.duration
        due = gap(rate)
        while due < duration:
            yield due
            due += gap(rate)


class BurstArrivals(NamedTuple):
    """`size` requests at once, at the start and then every `every` seconds."""

    size: int
    every: float
    duration: float

    @property
    def peak(self) -> float:
        """The average rate. Within a burst all requests are due at once."""
        return self.size / min(self.every, self.duration)

    def due_times(self) -> Iterator[float]:
        """Yield each multiple of `every` below the duration, `size` times."""
        number, due = 0, 0.0
        while due < self.duration:
            for _ in range(self.size):
                yield due
            number += 1
            due = number * self.every


class RampArrivals(NamedTuple):
    """A rate that changes evenly from `first` to `last` requests per second."""

    first: float
    last: float
    duration: float

    @property
    def peak(self) -> float:
        """The highest rate, in requests per second."""
        return max(self.first, self.last)

    def due_times(self) -> Iterator[float]:
        """Yield the time at which the integral of the rate reaches k, for k = 0, 1, 2, …

        The integral is first·t + slope·t²/2. Solved for t, in the form that does not cancel:
        t = 2k / (first + sqrt(first² + 2·slope·k)).
        """
        first, duration = self.first, self.duration
        slope = (self.last - first) / duration
        total = (first + self.last) / 2 * duration
        number, due = 0, 0.0
        while number < total and due < duration:
            yield due
            number += 1
            under = first * first + 2 * slope * number
            if under < 0:  # beyond the end of a ramp that falls to zero
                return
            due = max(due, 2 * number / (first + math.sqrt(under)))


def parse_rate(text: str) -> float:
    """Return requests per second. Raises ValueError if the text is no rate like '150/s' or '600/minute'."""
    match = RATE.fullmatch(_plain(text))
    if match and match[3] in UNIT_NAMES:
        rate = float(match[1]) * SECOND / (float(match[2] or 1) or math.inf) / UNIT_NAMES[match[3]]
        if rate > 0:
            return rate
    raise ValueError(f"cannot read rate {_shown(text)}: expected for example '150/s' or '600/minute'")


def parse_arrivals(text: str, duration: float, *, seed: int = 0) -> Arrivals:
    """Return a schedule: '150/s', 'poisson 150/s', '10/s..200/s' or 'burst 50 every 5s'.

    Raises ValueError if the text is none of these, or the duration is not positive.
    """
    if not 0 < duration < math.inf:
        raise ValueError(f"a load test needs a duration of more than 0 seconds, not {duration!r}")
    plain = _plain(text)
    try:
        if bursts := BURSTS.fullmatch(plain):
            if not int(bursts[1]):
                raise ValueError(f"a burst needs at least 1 request, not {bursts[1]}")
            return BurstArrivals(int(bursts[1]), parse_span(bursts[2]), duration)
        if ".." in plain:
            first, _, last = plain.partition("..")
            return RampArrivals(_ramp_end(first), _ramp_end(last), duration)
        if plain.startswith("poisson "):
            return PoissonArrivals(parse_rate(plain.removeprefix("poisson ")), duration, seed)
        return ConstantArrivals(parse_rate(plain), duration)
    except ValueError as error:
        raise ValueError(f"cannot read arrivals {_shown(text)} ({error}): {EXAMPLES}") from None


def _ramp_end(text: str) -> float:
    """Return the rate at one end of a ramp, which may be 0."""
    match = RATE.fullmatch(text.strip())
    return 0.0 if match and not float(match[1]) and match[3] in UNIT_NAMES else parse_rate(text)


def _plain(text: str) -> str:
    return " ".join(text[:200].lower().split())


def _shown(text: str) -> str:
    return repr(text[:80])
