"""Signals of overload. Each tells its load: 1.0 is its threshold, and 0.0 means that there is nothing to tell.

A signal is an object with a `name` and a method `load(now)`; `now` is in seconds of a clock that never steps back.
`Pressure` calls `load` a few times each second, in one thread. Signals that requests feed only add to a queue there.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable
from weakref import ref

from ratebound.adaptive.container import Processors, ProcessorTime
from ratebound.duration import Duration, as_seconds

WINDOW = 1.0  # seconds over which processor time is averaged
RECENT = 1.0  # seconds for which a finished request counts
LEAST = 5  # finished requests that say anything
UNKNOWN = 0.95  # a load by which nothing changes: it is neither calm nor too much
SLOW_SHARE = 0.1  # of requests may take longer than the target
LONGEST = 60.0  # seconds after which the last requests say nothing, if no other has finished: a jam may last as long
MOST = 2_000  # requests that are looked at
PROBE = 0.1  # seconds between two probes of an event loop


@runtime_checkable
class Signal(Protocol):
    """A number that shows overload. `name` is for logs.

    Any object with a `name` and a `load` is one. `Reading` makes one of a function.

    Examples:
        >>> from ratebound.adaptive import Pressure
        >>> class QueueLength:
        ...     name = "queue"
        ...     def load(self, now):
        ...         return 30 / 100
        >>> pressure = Pressure([QueueLength()], background=False)
        >>> pressure.sample()
        >>> pressure.factors["low"]
        1.0
    """

    name: str

    def load(self, now: float) -> float:
        """Return the load: 1.0 at the threshold, 0.0 if there is nothing to tell.

        Args:
            now: The time in seconds, of a clock that never steps back.
        """


class Finished(NamedTuple):
    """A request that was let through and has ended: how long it took, and whether it failed by our fault."""

    seconds: float
    failed: bool


class CpuUse:
    """The use of the CPU: of the container if it has a quota, else of the machine.

    Args:
        most: The share that is too much, above 0 and at most 1.
        processors: What reads the times of the processors. None reads those of this container and machine.

    Raises:
        ValueError: The share is out of bounds.

    Examples:
        >>> from ratebound.adaptive import CpuUse, Pressure
        >>> pressure = Pressure([CpuUse(0.85)])
    """

    name = "cpu"

    def __init__(self, most: float = 0.85, processors: Processors | None = None) -> None:
        self._most = checked_share("cpu", most)
        self._processors = processors or Processors()
        self._readings: deque[tuple[float, dict[str, ProcessorTime]]] = deque()

    def load(self, now: float) -> float:
        """Return the use of the last second, as a part of the threshold.

        Args:
            now: The time in seconds, of a clock that never steps back.
        """
        current = {time.of: time for time in self._processors.read()}
        readings = self._readings
        readings.append((now, current))
        while len(readings) > 2 and readings[1][0] <= now - WINDOW:
            readings.popleft()
        since, first = readings[0]
        shares = [
            (time.used - first[name].used) / ((now - since) * time.cpus)
            for name, time in current.items()
            if name in first and now > since
        ]
        return max(shares, default=0.0) / self._most


class LoopLag:
    """The lag of event loops: how late they run what is due.

    `watch` begins to measure a loop. A loop that hangs is seen, because the lag is read from outside of it.

    Args:
        most: The lag that is too much: seconds or a timedelta, up to an hour.

    Raises:
        ValueError: The lag is out of bounds.

    Examples:
        >>> from ratebound.adaptive import LoopLag, Pressure
        >>> pressure = Pressure([LoopLag(0.1)])
    """

    name = "lag"

    def __init__(self, most: Duration = 0.1) -> None:
        self._most = as_seconds("lag", most, positive=True, most=3600)
        self._probes: tuple[_Probe, ...] = ()  # replaced as a whole: another thread reads it

    def watch(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        """Measure the loop that runs here, unless it is measured already. Only one thread at a time may call this.

        Args:
            loop: The event loop that runs here.
            clock: A function that returns seconds and never steps back.
        """
        alive = [probe for probe in self._probes if not probe.is_over]
        if not any(probe.loop() is loop for probe in alive):
            self._probes = (*alive, _Probe(loop, clock))

    @property
    def is_watching(self) -> bool:
        """True if a loop that runs is measured."""
        return any(probe.is_running for probe in self._probes)

    def forget(self) -> None:
        """Forget all loops: this is a forked child."""
        self._probes = ()

    def load(self, now: float) -> float:
        """Return the lag of the slowest loop, as a part of the threshold.

        Args:
            now: The time in seconds, of a clock that never steps back.
        """
        return max((probe.lag(now) for probe in self._probes if probe.is_running), default=0.0) / self._most


class _Probe:
    """A timer of one event loop that runs again and again. It does not keep the loop alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.loop = ref(loop)
        self._clock = clock
        self._latest = 0.0
        self._due = 0.0
        self._arm(loop)

    @property
    def is_running(self) -> bool:
        """True while the loop runs."""
        loop = self.loop()
        return loop is not None and loop.is_running()

    @property
    def is_over(self) -> bool:
        """True if the loop will not run again."""
        loop = self.loop()
        return loop is None or loop.is_closed()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = self._clock() + PROBE
        loop.call_later(PROBE, _run_probe, ref(self), loop)

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note how late the timer is, and set the next one."""
        self._latest = max(0.0, self._clock() - self._due)
        self._arm(loop)

    def lag(self, now: float) -> float:
        """Return how late the last timer came, or the next one is."""
        return max(self._latest, now - self._due)


def _run_probe(probe: "ref[_Probe]", loop: asyncio.AbstractEventLoop) -> None:
    alive = probe()  # each policy that is loaded again has a signal of its own, and the one before is gone
    if alive is not None:
        alive.run(loop)


class _OfRequests:
    """A signal of the requests that have finished lately: of the last second, or the last few."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Finished]] = deque(maxlen=MOST)
        self._since = -math.inf

    def add(self, finished: Sequence[Finished], now: float) -> None:
        """Add requests that have finished since the last call."""
        self._kept.extend((now, one) for one in finished if now - one.seconds >= self._since)
        while len(self._kept) > LEAST and self._kept[0][0] <= now - RECENT:
            self._kept.popleft()

    def begin_anew(self, now: float) -> None:
        """Forget requests that have finished, and those that have begun by now: they show what was before."""
        self._kept.clear()
        self._since = now

    def load(self, now: float) -> float:
        """Return the load. With too few requests to tell, it is UNKNOWN for a while after `begin_anew`, and then 0."""
        if len(self._kept) >= LEAST and self._kept[-1][0] > now - LONGEST:
            return self._load_of([one for _, one in self._kept])
        return UNKNOWN if now - self._since < LONGEST else 0.0

    def _load_of(self, requests: list[Finished]) -> float:
        raise NotImplementedError


class Latency(_OfRequests):
    """The time that requests take. More than a tenth of them may not take longer than `target`.

    So it is the 90th percentile of the last second that is held against the target.

    Args:
        target: Seconds or a timedelta, up to an hour.

    Raises:
        ValueError: The target is out of bounds.

    Examples:
        >>> from ratebound.adaptive import Latency, Pressure
        >>> pressure = Pressure([Latency(0.5)])
    """

    name = "latency"

    def __init__(self, target: Duration = 0.5) -> None:
        super().__init__()
        self._target = as_seconds("latency", target, positive=True, most=3600)

    def _load_of(self, requests: list[Finished]) -> float:
        seconds = sorted(one.seconds for one in requests)
        return seconds[-1 - int(len(seconds) * SLOW_SHARE)] / self._target


class ErrorRate(_OfRequests):
    """The share of requests that fail by our fault: a status of 500 and above, or an exception.

    Args:
        most: The share that is too much, above 0 and at most 1.

    Raises:
        ValueError: The share is out of bounds.

    Examples:
        >>> from ratebound.adaptive import ErrorRate, Pressure
        >>> pressure = Pressure([ErrorRate(0.1)])
    """

    name = "errors"

    def __init__(self, most: float = 0.1) -> None:
        super().__init__()
        self._most = checked_share("errors", most)

    def _load_of(self, requests: list[Finished]) -> float:
        return sum(one.failed for one in requests) / len(requests) / self._most


class Reading:
    """A signal of your own: a function without arguments that returns a number, and the number that is too much.

    Args:
        name: The name of the signal, for logs.
        function: It is called in a thread, four times each second, so it must be quick.
        most: The number that is too much, above 0.

    Raises:
        ValueError: The name is empty, the function cannot be called, or the number is not above 0.

    Examples:
        >>> from ratebound.adaptive import Pressure, Reading
        >>> waiting = []
        >>> pressure = Pressure([Reading("queue", lambda: len(waiting), most=100)], background=False)
    """

    def __init__(self, name: str, function: Callable[[], float], most: float) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"a signal needs a name, not {name!r}")
        if not callable(function):
            raise ValueError(f"signal {name!r}: expected a function, not {function!r}")
        if isinstance(most, bool) or not isinstance(most, int | float) or not 0 < most < math.inf:
            raise ValueError(f"signal {name!r}: the threshold must be a number above 0, not {most!r}")
        self.name = name
        self._function = function
        self._most = most

    def load(self, now: float) -> float:
        """Return what the function returns, as a part of the threshold.

        Args:
            now: The time in seconds, of a clock that never steps back.
        """
        return float(self._function()) / self._most


def checked_share(label: str, share: Any) -> float:
    """Return a share. Raises ValueError unless it is above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"{label} must be a share above 0 and at most 1, such as 0.85, not {share!r}")
    return float(share)
