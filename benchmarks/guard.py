"""The cost of the guard on a call, of the check for listeners, and of each listener.

The guard wraps a storage that does nothing, so that only its own time is left. A hit without listeners is compared with
the same function without the `if` that checks for them, made from its source: nothing else differs. The Prometheus
listener is compared with a hit that is followed by the calls of prometheus_client that it makes.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import prometheus_client
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from benchmarks.builds import BUILDS, COMPILED, PURE, Done, Worker
from benchmarks.measure import (
    AsyncBlock,
    AsyncContender,
    Block,
    Case,
    Contender,
    Spread,
    Times,
    added,
    measure,
    ratios,
    spread,
    steps_of,
)
from benchmarks.prometheus_calls import calls_of_a_decision
from benchmarks.unasked_hit import unasked_hit
from benchmarks.verdict import Verdict, at_most
from ratebound import AsyncLimiter, Limiter, parse_limit
from ratebound.events import Listener
from ratebound.limit import Group, Mode
from ratebound.observe import AlertListener, LogListener, TopListener
from ratebound.observe.otel import OpenTelemetryListener
from ratebound.observe.prometheus import PrometheusListener
from ratebound.outcome import Row
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.memory import MemoryStorage

MOST_ADDED = 0.5  # microseconds, by the guard to a sync call
MOST_HEARD = 0.3  # microseconds, by a listener that does nothing to a hit
MOST_PROMETHEUS = 1.0  # microseconds, by the Prometheus listener to a hit and the calls of prometheus_client
MOST_UNHEARD = 1.05  # times a hit that does not ask; below that this machine cannot tell two equal functions apart
USUAL, SPENT = "1000/minute", "10/day"  # the second is used up by the warm-up
BARE, GUARDED = "no guard", "guard"
UNASKED, UNHEARD, HEARD = "without asking who listens", "nobody listens", "a function that does nothing"
PROMETHEUS, CALLS = "PrometheusListener", "nobody listens, then the calls of PrometheusListener"
ROW: Row = (True, 1, 0, 0, 0, 0, 0, 0, None)


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


def _hits(how: str, make: Callable[[], Callable[[str], Any]], builds: tuple[str, ...] = BUILDS) -> Contender:
    def start() -> Block:
        hit = make()

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not hit(key).allowed:
                    denied += 1
            return denied

        return block

    return Contender("hit:", how, "Decision", start, builds)


def _async_hits(how: str, make: Callable[[], Callable[[str], Any]]) -> AsyncContender:
    def start() -> AsyncBlock:
        hit = make()

        async def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not (await hit(key)).allowed:
                    denied += 1
            return denied

        return block

    return AsyncContender("await hit:", how, "Decision", start)


def _hits_and_calls(text: str, allowed: bool) -> Contender:
    def start() -> Block:
        hit, (time, decision, share) = Limiter(text).hit, calls_of_a_decision(parse_limit(text), allowed)

        def block(keys: Sequence[str]) -> int:
            denied = 0
            for key in keys:
                if not hit(key).allowed:
                    denied += 1
                time(1e-6)
                decision()
                if share is not None:
                    share(0.04)
            return denied

        return block

    return Contender("hit:", CALLS, "Decision", start)


def _quiet() -> logging.Logger:
    """Return a logger that drops its lines: the work of handlers is not the listener's."""
    log = logging.getLogger("ratebound.benchmark")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.handlers = [logging.NullHandler()]
    return log


LISTENERS: dict[str, Callable[[], Listener]] = {
    HEARD: lambda: lambda event: None,
    "LogListener": lambda: LogListener(_quiet()),
    "TopListener": TopListener,
    "AlertListener": lambda: AlertListener(lambda alert: None),
    PROMETHEUS: lambda: PrometheusListener(prometheus_client.CollectorRegistry()),
    "OpenTelemetryListener": lambda: OpenTelemetryListener(MeterProvider([InMemoryMetricReader()])),
}


def _hooks(text: str, allowed: bool) -> list[Contender]:
    def heard(make: Callable[[], Listener]) -> Callable[[], Callable[[str], Any]]:
        return lambda: Limiter(text, listeners=[make()]).hit

    return [
        _hits(UNHEARD, lambda: Limiter(text).hit),
        _hits(UNASKED, lambda: unasked_hit(Limiter(text)), (PURE,)),  # needs its source
        *(_hits(how, heard(make)) for how, make in LISTENERS.items()),
        _hits_and_calls(text, allowed),
    ]


def _async_hooks(text: str) -> list[AsyncContender]:
    return [
        _async_hits(UNHEARD, lambda: AsyncLimiter(text).hit),
        _async_hits(HEARD, lambda: AsyncLimiter(text, listeners=[LISTENERS[HEARD]()]).hit),
    ]


CASES = (
    Case(
        "calls",
        [
            _calls(BARE, Nothing),
            _calls(GUARDED, lambda: GuardedStorage(Nothing())),
            _calls(f"{GUARDED}, one listens", lambda: GuardedStorage(Nothing(), listeners=[lambda event: None])),
            _calls(f"{GUARDED} that keeps the deadline by a thread", lambda: GuardedStorage(Nothing(None))),
        ],
    ),
    Case(
        "async calls",
        [
            _async_calls(BARE, AsyncNothing),
            _async_calls(GUARDED, lambda: AsyncGuardedStorage(AsyncNothing())),
            _async_calls(
                f"{GUARDED} that keeps the deadline by a timer", lambda: AsyncGuardedStorage(AsyncNothing(None))
            ),
        ],
    ),
    Case("allowed", _hooks(USUAL, allowed=True)),
    Case("denied", _hooks(SPENT, allowed=False), denied=True),
    Case("async allowed", _async_hooks(USUAL)),
    Case("async denied", _async_hooks(SPENT), denied=True),
)


@dataclass(slots=True)
class Guarding:
    """The results: CPU seconds per call, by case."""

    times: dict[str, Times] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required value that was measured."""
        judged = []
        if PURE in self.times.get("calls", ()):
            calls, hits = self.times["calls"][PURE], self.times["allowed"][PURE]
            guard = added(calls, f"threads: {GUARDED}", f"threads: {BARE}")
            unheard = spread(ratios(hits[f"hit: {UNASKED}"], hits[f"hit: {UNHEARD}"]))
            judged += [
                at_most(PURE, "guard: µs added to a call", MOST_ADDED, guard),
                at_most(PURE, f"hit, {UNHEARD}: times one {UNASKED}", MOST_UNHEARD, unheard),
            ]
        if COMPILED in self.times.get("calls", ()):
            for case in ("allowed", "denied", "async allowed", "async denied"):
                how = "await hit" if "async" in case else "hit"
                heard = added(self.times[case][COMPILED], f"{how}: {HEARD}", f"{how}: {UNHEARD}")
                judged.append(at_most(COMPILED, f"{how}, {case}: µs added by a listener", MOST_HEARD, heard))
            for case in ("allowed", "denied"):
                more = added(self.times[case][COMPILED], f"hit: {PROMETHEUS}", f"hit: {CALLS}")
                judged.append(
                    at_most(COMPILED, f"hit, {case}: µs added by {PROMETHEUS} to its calls", MOST_PROMETHEUS, more)
                )
        return judged

    def rows(self) -> list[tuple[str, str, str, Spread, Spread]]:
        """Return (case, build, contender, CPU seconds per call, microseconds above the first contender)."""
        return [
            (case, build, who, spread(seconds), added(times, who, next(iter(times))))
            for case, builds in self.times.items()
            for build, times in builds.items()
            for who, seconds in times.items()
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results for the JSON file."""
        return [
            {
                "case": case,
                "build": build,
                "who": who,
                "time": time._asdict(),
                "microseconds_added": more._asdict(),
            }
            for case, build, who, time, more in self.rows()
        ]


def steps(builds: Sequence[str], rounds: int) -> int:
    """Return how many times `done` is called."""
    return sum(steps_of(case, builds, rounds) for case in CASES)


def measure_guard(workers: Sequence[Worker], rounds: int, each: int, done: Done) -> Guarding:
    """Measure the guard and the listeners."""
    for worker in workers:
        worker.run(check_guards)
    return Guarding({case.name: measure(__name__, case, workers, rounds, each, done) for case in CASES})


def check_guards(_: Done) -> None:
    """Raise AssertionError if there is anything between a limiter and its memory. Workers run this."""
    kinds = {type(Limiter(USUAL).storage), type(Limiter(USUAL, storage=MemoryStorage()).storage)}
    if kinds != {MemoryStorage} or "Guarded" in type(AsyncLimiter(USUAL).storage).__name__:
        raise AssertionError(f"there is something between a limiter and its memory: {kinds}")
