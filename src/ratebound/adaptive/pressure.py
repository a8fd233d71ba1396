"""The pressure on a process, and how far it lowers the limits of each priority.

The law, at each sample: the load is that of the signal with the highest. Above 1, the factor of the lowest priority
that is not at its floor yet is multiplied by 1/load, but by 0.9 at most and 0.5 at least. Then it does not fall again
for a second: a fall shows only in requests that come after it. Below 0.9, the factor of the highest priority that is
lowered grows by 1/20, but by 1/100 near the factor that was too much, from three quarters of it to a tenth above it.
That factor is the one from which the last falls began, those within three seconds of each other. In between, nothing
changes. So one priority falls to a floor of a tenth in four seconds, and comes back in four to ten. Limits follow in
steps of a twentieth.
"""

import asyncio
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import ref

from ratebound.adaptive.sampling import sampler
from ratebound.adaptive.signals import ErrorRate, Finished, Latency, LoopLag, Signal, checked_share
from ratebound.events import PressureChanged
from ratebound.fork import renew_in_children
from ratebound.lowered import STEPS
from ratebound.telling import tell

log = logging.getLogger("ratebound")

PRIORITIES = ("low", "normal", "high", "critical")
"""The priorities of rules. Limits of "low" are lowered first, those of "critical" never."""

SHEDDABLE = PRIORITIES[:-1]

CALM = 0.9  # below this load, factors grow
MILDEST = 0.9
HARSHEST = 0.5
REACTION = 1.0  # seconds between two falls
TOGETHER = 3.0  # seconds: a fall so soon after another goes on from it
NEAR = (0.75, 1.1)  # of the factor that was too much
QUICK, SLOW = 1 / 20, 1 / 100  # growth at each sample, and near that factor
MAX_FINISHED = 10_000  # requests between two samples; of more, the oldest are not looked at


class Pressure:
    """The pressure on this process, from signals of overload. A policy with it lowers the limits of unimportant rules.

    Two policies that share a pressure are lowered together. `is_calm` is False while a factor is below 1, and until the
    first request.

    Args:
        signals: The signals. The one with the highest load counts.
        floor: The least factor of a priority, above 0 and at most 1; it is rounded up to a twentieth.
        background: True if a thread samples the signals every 250 milliseconds, from the first request on; without it,
            only calls of `sample` do.
        clock: A function that returns seconds and never steps back.

    Raises:
        ValueError: There is no signal, something is not a signal, or the floor is out of bounds.

    Examples:
        >>> from ratebound.adaptive import CpuUse, Latency, Pressure
        >>> from ratebound.policy import Policy, Rule
        >>> pressure = Pressure([CpuUse(0.85), Latency(0.5)], floor=0.2)
        >>> policy = Policy(rules=[Rule("api", "100/minute", priority="low")], adaptive=pressure)
    """

    def __init__(
        self,
        signals: Iterable[Signal],
        *,
        floor: float = 0.1,
        background: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.signals = tuple(signals) if isinstance(signals, Iterable) else (signals,)
        for signal in self.signals:
            if not isinstance(signal, Signal) or not isinstance(signal.name, str):
                raise ValueError(f"expected signals like CpuUse(0.85) or Latency(0.5), not {signal!r}")
        if not self.signals:
            raise ValueError("expected at least one signal, for example CpuUse(0.85)")
        self.floor = math.ceil(checked_share("floor", floor) * STEPS - 1e-9) / STEPS
        self.is_calm = False
        self.priorities: tuple[str, ...] = ()
        self._levels = dict.fromkeys(PRIORITIES, 1.0)
        self._steps = dict.fromkeys(PRIORITIES, STEPS)
        self._fed = [signal for signal in self.signals if isinstance(signal, Latency | ErrorRate)]
        self._lags = [signal for signal in self.signals if isinstance(signal, LoopLag)]
        self._background = background
        self._clock = clock
        self._finished: deque[Finished] = deque(maxlen=MAX_FINISHED)
        self._deciders: tuple[ref[Any], ...] = ()  # replaced as a whole: another thread reads it
        self._lock = threading.Lock()  # held while something begins
        self._broken: set[str] = set()
        self._lowered_at = 0.0
        self._fell_at = -math.inf
        self._too_much = dict.fromkeys(PRIORITIES, 1.0)  # the factors from which the last falls began
        self._is_sampled = False
        self._has_no_thread = False
        renew_in_children(self)

    def __repr__(self) -> str:
        names = ", ".join(signal.name for signal in self.signals)
        return f"Pressure([{names}], floor={self.floor}, factors={self.factors})"

    @property
    def factors(self) -> Mapping[str, float]:
        """The factor of each priority, from `floor` to 1."""
        return {priority: step / STEPS for priority, step in self._steps.items()}

    @property
    def measures_requests(self) -> bool:
        """True if a signal has to be told of finished requests."""
        return bool(self._fed)

    def step(self, priority: str) -> int:
        """Return the factor of a priority in twentieths.

        Args:
            priority: One of `PRIORITIES`.
        """
        return self._steps[priority]

    def include(self, priorities: Iterable[str]) -> None:
        """Lower these priorities, too. A priority that no rule has is left out, or it would take time to fall.

        Args:
            priorities: Names of priorities. Critical is never lowered.
        """
        known = {*self.priorities, *priorities}
        self.priorities = tuple(priority for priority in SHEDDABLE if priority in known)

    def follow(self, before: "Pressure") -> None:
        """Begin with the factors of another pressure, in whose place this one comes.

        Args:
            before: The pressure of the policy that was replaced.
        """
        if before is not self:
            self._levels = {priority: max(level, self.floor) for priority, level in before._levels.items()}
            self._set_steps()
            self._lowered_at = before._lowered_at
            self._fell_at, self._too_much = before._fell_at, dict(before._too_much)
            self.is_calm = False

    def finished(self, seconds: float, failed: bool) -> None:
        """Note that a request which was let through has ended.

        Rejected requests are not to be noted: they are quick, and no sign of health.

        Args:
            seconds: How long the request took.
            failed: True if it failed by our fault.
        """
        self._finished.append(Finished(seconds, failed))

    def begin(self, decider: Any) -> None:
        """Begin to sample, and to measure the event loop that runs here. Listeners of `decider` are told of changes.

        Gates call this for requests that find the pressure not calm.

        Args:
            decider: The decider of the gate. Its listeners receive `PressureChanged`.
        """
        loop = asyncio._get_running_loop() if self._lags else None  # None in a thread, and in other kinds of loops
        is_known = any(known() is decider for known in self._deciders)
        with self._lock:
            if loop is not None:
                for lag in self._lags:
                    lag.watch(loop, self._clock)
            if not is_known:
                self._deciders = (*(known for known in self._deciders if known() is not None), ref(decider))
            if not self._is_sampled:
                self._is_sampled = not self._background or self._add_to_sampler()
            self.is_calm = self._is_sampled and self._is_at_rest()
        if not is_known:
            tell(decider.listeners, PressureChanged(self.factors))

    def _add_to_sampler(self) -> bool:
        try:
            sampler.add(self)
        except RuntimeError:  # the process has as many threads as it may have: the request must not fail for that
            if not self._has_no_thread:
                log.exception(
                    "the load of this process is not sampled, because no thread can be started; limits are not lowered"
                )
            self._has_no_thread = True
            return False
        return True

    def sample(self) -> None:
        """Read all signals, and lower or raise the factors by one sample. Only one thread may call this."""
        now = self._clock()
        finished = [self._finished.popleft() for _ in range(len(self._finished))]
        for signal in self._fed:
            signal.add(finished, now)
        load, name = max(((self._load(signal, now), signal.name) for signal in self.signals), key=lambda pair: pair[0])
        before = self._steps
        if load > 1:
            if now - self._fell_at >= REACTION:
                self._fall(max(HARSHEST, min(MILDEST, 1 / load)), now)
        elif load < CALM:
            self._recover()
        self._set_steps()
        if self._steps != before:
            self._tell(name, load, before, now)
        is_lost = bool(self._lags) and not any(lag.is_watching for lag in self._lags)  # the event loop is another one
        self.is_calm = self._is_at_rest() and not is_lost

    def renew(self) -> None:
        """Begin anew in a forked child, where nobody samples and no event loop is measured yet."""
        self._lock = threading.Lock()
        self._is_sampled = self.is_calm = False
        self._finished.clear()
        for lag in self._lags:
            lag.forget()

    def _load(self, signal: Signal, now: float) -> float:
        try:
            load = min(signal.load(now), sys.float_info.max)
            is_load = load > 0  # and not nan
        except Exception:
            if signal.name not in self._broken:
                self._broken.add(signal.name)
                log.exception("the signal %s failed; it is ignored until it works again", signal.name)
            return 0.0
        self._broken.discard(signal.name)
        return load if is_load else 0.0

    def _fall(self, by: float, now: float) -> None:
        for priority in self.priorities:
            if self._levels[priority] > self.floor:
                if now - self._fell_at > TOGETHER:
                    self._too_much[priority] = self._levels[priority]
                self._levels[priority] = max(self.floor, self._levels[priority] * by)
                self._fell_at = now
                for signal in self._fed:
                    signal.begin_anew(now)
                return

    def _recover(self) -> None:
        for priority in reversed(PRIORITIES):
            if self._levels[priority] < 1:
                is_near = NEAR[0] <= self._levels[priority] / self._too_much[priority] < NEAR[1]
                self._levels[priority] = min(1.0, self._levels[priority] + (SLOW if is_near else QUICK))
                return

    def _set_steps(self) -> None:
        self._steps = {priority: math.floor(level * STEPS + 1e-9) for priority, level in self._levels.items()}

    def _is_at_rest(self) -> bool:
        return all(step == STEPS for step in self._steps.values())

    def _tell(self, name: str, load: float, before: Mapping[str, int], now: float) -> None:
        if all(step == STEPS for step in before.values()):
            self._lowered_at = now
            log.warning("overload: limits are lowered, because %s is at %.0f %% of its threshold", name, load * 100)
        elif self._is_at_rest():
            log.warning("the overload is over: limits are as configured again, after %.1f s", now - self._lowered_at)
        event = PressureChanged(self.factors)
        for known in self._deciders:
            decider = known()
            if decider is not None:
                tell(decider.listeners, event)
