"""The cost of the guard on a call, of the check for listeners, and of each listener.

The guard wraps a storage that does nothing, so that only its own time is left. A hit without listeners is compared with
the same function without the `if` that checks for them, made from its source: nothing else differs.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import prometheus_client
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from benchmarks.contenders import AsyncBlock, AsyncContender, Block, Contender
from benchmarks.measure import Case, Done, Spread, measure, ratios, spread
from benchmarks.unasked_hit import unasked_hit
from ratebound import AsyncLimiter, Limiter, parse_limit
from ratebound.decision import Row
from ratebound.events import Listener
from ratebound.limit import Group, Mode
from ratebound.observe import AlertListener, LogListener, TopListener
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.observe.prometheus import PrometheusListener
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.memory import MemoryStorage

MOST_ADDED = 2.0  # microseconds, by the guard to a sync call
MOST_UNHEARD = 1.05  # times a hit that does not ask; below that this machine cannot tell two equal functions apart
USUAL, SPENT = "1000/minute", "10/day"  # the second is used up by the warm-up
BARE, GUARDED = "no guard", "guard"
UNASKED, UNHEARD = "without asking who listens", "nobody listens"
ROW: Row = (True, 1, 0, 0, 0, 0, 0, 0, None)


class Judged(NamedTuple):
    """A required value, the measured one, and the verdict."""

    what: str
    threshold: str
    found: Spread
    passed: bool


class Nothing:
    """A storage that answers at once. With a deadline the guard calls it directly."""

    def __init__(self, deadline: float | None = 0.1) -> None:
        self.deadline = deadline
        self.answer: list[Sequence[Row]] = [[ROW]]

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Return allowed rows."""
        return self.answer

    def reset(self, group: Group) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class AsyncNothing:
    """A storage for tasks that answers at once."""

    def __init__(self, deadline: float | None = 0.1) -> None:
        self.deadline = deadline
        self.answer: list[Sequence[Row]] = [[ROW]]

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Return allowed rows."""
        return self.answer

    async def reset(self, group: Group) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def _calls(how: str, make: Callable[[], Any]) -> Contender:
    def start() -> Block:
        evaluate, limits = make().evaluate, (parse_limit(USUAL),)

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not evaluate((((key, limits, 1, None, None),),))[0][0][0]:
                    denied += 1
            return denied

        return block

    return Contender("threads:", how, "rows", start)


def _async_calls(how: str, make: Callable[[], Any]) -> AsyncContender:
    def start() -> AsyncBlock:
        evaluate, limits = make().evaluate, (parse_limit(USUAL),)

        async def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not (await evaluate((((key, limits, 1, None, None),),)))[0][0][0]:
                    denied += 1
            return denied

        return block

    return AsyncContender("tasks:", how, "rows", start)


def _hits(how: str, make: Callable[[], Callable[[str], Any]]) -> Contender:
    def start() -> Block:
        hit = make()

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not hit(key).allowed:
                    denied += 1
            return denied

        return block

    return Contender("hit:", how, "Decision", start)


def _quiet() -> logging.Logger:
    """Return a logger that drops its lines: the work of handlers is not the listener's."""
    log = logging.getLogger("ratebound.benchmark")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.handlers = [logging.NullHandler()]
    return log


LISTENERS: dict[str, Callable[[], Listener]] = {
    "a function that does nothing": lambda: lambda event: None,
    "LogListener": lambda: LogListener(_quiet()),
    "TopListener": TopListener,
    "AlertListener": lambda: AlertListener(lambda alert: None),
    "PrometheusListener": lambda: PrometheusListener(prometheus_client.CollectorRegistry()),
    "OpenTelemetryListener": lambda: OpenTelemetryListener(MeterProvider([InMemoryMetricReader()])),
}


def _hooks(text: str) -> list[Contender]:
    def heard(make: Callable[[], Listener]) -> Callable[[], Callable[[str], Any]]:
        return lambda: Limiter(text, listeners=[make()]).hit

    return [
        _hits(UNHEARD, lambda: Limiter(text).hit),
        _hits(UNASKED, lambda: unasked_hit(Limiter(text))),
        *(_hits(how, heard(make)) for how, make in LISTENERS.items()),
    ]


CASES = {
    "calls": Case(
        "guard-calls",
        [
            _calls(BARE, Nothing),
            _calls(GUARDED, lambda: GuardedStorage(Nothing())),
            _calls(f"{GUARDED}, one listens", lambda: GuardedStorage(Nothing(), listeners=[lambda event: None])),
            _calls(f"{GUARDED} that keeps the deadline by a thread", lambda: GuardedStorage(Nothing(None))),
        ],
    ),
    "async calls": Case(
        "guard-async-calls",
        [
            _async_calls(BARE, AsyncNothing),
            _async_calls(GUARDED, lambda: AsyncGuardedStorage(AsyncNothing())),
            _async_calls(
                f"{GUARDED} that keeps the deadline by a timer", lambda: AsyncGuardedStorage(AsyncNothing(None))
            ),
        ],
    ),
    "allowed": Case("guard-listeners", _hooks(USUAL)),
    "denied": Case("guard-listeners-denied", _hooks(SPENT), denied=True),
}


@dataclass(slots=True)
class Guarding:
    """The results: CPU seconds per call."""

    times: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # CPU seconds of every round: case, who

    def added(self, case: str, who: str) -> Spread:
        """Return microseconds on top of the first contender of the case, within each round."""
        times = self.times[case]
        first = times[next(iter(times))]
        return spread([(theirs - ours) * 1e6 for ours, theirs in zip(first, times[who], strict=True)])

    def verdicts(self) -> list[Judged]:
        """Return one verdict for each required value."""
        if not self.times:
            return []
        added = self.added("calls", f"threads: {GUARDED}")
        unheard = spread(ratios(self.times["allowed"][f"hit: {UNASKED}"], self.times["allowed"][f"hit: {UNHEARD}"]))
        return [
            Judged("guard: µs added to a call", f"at most {MOST_ADDED:g}", added, added.median <= MOST_ADDED),
            Judged(
                f"hit, {UNHEARD}: times one {UNASKED}",
                f"at most {MOST_UNHEARD:g}",
                unheard,
                unheard.median <= MOST_UNHEARD,
            ),
        ]

    def rows(self) -> list[tuple[str, str, Spread, Spread]]:
        """Return (case, contender, CPU seconds per call, microseconds added)."""
        return [
            (case, who, spread(seconds), self.added(case, who))
            for case, times in self.times.items()
            for who, seconds in times.items()
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results for the JSON file."""
        return [
            {"case": case, "who": who, "time": time._asdict(), "microseconds_added": added._asdict()}
            for case, who, time, added in self.rows()
        ]


def steps(rounds: int) -> int:
    """Return how many times `done` is called."""
    return rounds * sum(len(case.contenders) for case in CASES.values())


def measure_guard(guarding: Guarding, rounds: int, each: int, done: Done) -> None:
    """Measure the guard and add the times to `guarding`."""
    kinds = {type(Limiter(USUAL).storage), type(Limiter(USUAL, storage=MemoryStorage()).storage)}
    if kinds != {MemoryStorage} or "Guarded" in type(AsyncLimiter(USUAL).storage).__name__:
        raise AssertionError(f"there is something between a limiter and its memory: {kinds}")
    guarding.times = {name: measure(case, rounds, each, done) for name, case in CASES.items()}
