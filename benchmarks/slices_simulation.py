"""Slices on a fleet, simulated: how far a limit is exceeded, how many units are lost, how many trips are made.

All that decides is real. A MemoryStorage with its kernels is the shared storage. Each process has the slices, the deny
cache and the flow of a limiter, and the guard of its storage. Only time and traffic are made up: the clock is a number,
a trip takes `latency_ms`, the storage decides in the middle of it, and other processes go on meanwhile. A request
passes when its process has the answer.

A run is a function of its scenario: the same scenario gives the same figures each time, on every machine.
"""

import logging
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, count
from typing import Any, Literal, NamedTuple

from ratebound import GuardedStorage, MemoryStorage, StorageError
from ratebound.clock import SECOND
from ratebound.decision import Plan
from ratebound.limit import BUCKETS, Failure, Group, Limit, Mode, Slice, decided_locally
from ratebound.local_flow import spending
from ratebound.local_states import LocalStates
from ratebound.notation import parse_limit
from ratebound.outcome import Row
from ratebound.testing import FakeClock

BEGIN = 1_700_000_000 * SECOND  # the beginning of ten seconds
Arrival = tuple[int, int, int]  # the instant, a number that chooses the process, the number of the key


class Scenario(NamedTuple):
    """A fleet, a limit and the traffic. `load` is the traffic of all processes together, in times the limit's rate."""

    name: str
    processes: int = 20
    load: float = 0.8
    pattern: str = "steady"
    limit: str = "20000/10 seconds burst 2000"
    share: float | None = 0.05  # None: no slices
    for_ms: int = 1_000
    latency_ms: float = 1.0
    seconds: int = 40
    keys: int = 1
    deny_cache: bool = False
    deaths: float = 0.0  # the share of processes that die in the middle
    outage: Failure | Literal[""] = ""  # the failure mode for an outage of ten seconds in the middle, if there is one

    def parsed(self) -> Limit:
        """Return the limit with its slices and its deny cache."""
        slices = None if self.share is None else Slice(self.share, self.for_ms * 1_000)
        return decided_locally((parse_limit(self.limit),), slices, self.deny_cache)[0]

    def without_slices(self) -> "Scenario":
        """Return the same traffic with one trip for each decision."""
        return self._replace(name="", share=None, deny_cache=False)


@dataclass(slots=True)
class Run:
    """What happened: `passed` has the instants at which requests of each key passed."""

    scenario: Scenario
    asked: int = 0
    trips: int = 0
    charged: int = 0
    passed: dict[str, list[int]] = field(default_factory=dict)

    @property
    def passes(self) -> int:
        """The number of requests that passed."""
        return sum(map(len, self.passed.values()))

    def most_in(self, microseconds: int) -> float:
        """Return the most that passed in any time of this length, as a share of what the limit gives in it."""
        limit = self.scenario.parsed()
        most = max((busiest(instants, microseconds) for instants in self.passed.values()), default=0)
        return most / gives(limit, microseconds)

    def promised_in(self, microseconds: int) -> float:
        """Return the most that slices promise to pass in any time of this length, as the same share."""
        limit = self.scenario.parsed()
        ends_with_window = limit.algorithm == "fixed-window" or limit.is_quota
        later = 0 if limit.slice is None or ends_with_window else limit.slice.for_us
        return gives(limit, microseconds + later) / gives(limit, microseconds)


def gives(limit: Limit, microseconds: int) -> float:
    """Return the most units that a limit gives in any time of this length, if it is asked for enough."""
    periods = microseconds / limit.period_us
    if limit.algorithm in BUCKETS:
        return limit.burst + limit.count * periods
    if limit.algorithm == "sliding-counter":  # an estimate: whatever the last window had comes on top
        return limit.count * (1 + periods)
    whole = -(-microseconds // limit.period_us)
    return limit.count * (whole if limit.algorithm == "sliding-log" else whole + 1)


def busiest(instants: Sequence[int], length: int) -> int:
    """Return the most instants in any half-open time of this length. They must be sorted."""
    most = first = 0
    for place, instant in enumerate(instants):
        while instants[first] <= instant - length:
            first += 1
        most = max(most, place - first + 1)
    return most


class SharedStorage:
    """The storage of all processes: memory, which counts what it is asked. While it is down, it has charged nothing."""

    deadline = 0.25  # calls end by themselves, so that guards call it directly

    def __init__(self, clock: FakeClock) -> None:
        self.memory = MemoryStorage(clock=clock)
        self.is_down = False
        self.trips = 0
        self.charged = 0

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide groups of one ask, in one trip."""
        self.trips += 1
        if self.is_down:
            raise StorageError("the storage is down", undone=True)
        answers = self.memory.evaluate(groups, mode)
        for group, rows in zip(groups, answers, strict=True):
            if mode == "force" or rows[0][0]:
                self.charged += group[0][2]
        return answers

    def reset(self, group: Group) -> None:
        """Forget the states of a group."""
        self.memory.reset(group)

    def close(self) -> None:
        """Do nothing: memory holds nothing open."""


class OneThreadGuard(GuardedStorage):
    """A guard that writes back in the thread that asks, so that runs can be repeated."""

    def _write_back(self) -> None:
        self._write(self.guard.begin_write_back(None), self._stop)


class Process:
    """One process of the fleet: what a limiter has of its own in each."""

    __slots__ = ("guard", "local")

    def __init__(self, storage: SharedStorage, clock: FakeClock, scenario: Scenario) -> None:
        self.local = LocalStates(clock)
        failure = scenario.outage or "local"
        self.guard = OneThreadGuard(storage, failure=failure, workers=scenario.processes, clock=clock)


@contextmanager
def _nothing_logged() -> Iterator[None]:
    """Let guards go through a simulated outage in silence."""
    log = logging.getLogger("ratebound")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


@_nothing_logged()
def simulate(scenario: Scenario) -> Run:
    """Play the traffic of a scenario, and return what happened."""
    random.seed(scenario.pattern)  # of the guards' breakers, which probe at random instants
    clock = FakeClock(BEGIN)
    storage = SharedStorage(clock)
    processes = [Process(storage, clock, scenario) for _ in range(scenario.processes)]
    limit = scenario.parsed()
    plan = Plan((limit,))
    run = Run(scenario)
    steps: list[tuple[int, int, Callable[[], None]]] = []  # of trips on their way
    numbers = count()
    half_trip = round(scenario.latency_ms * 500)
    middle = BEGIN + scenario.seconds * SECOND // 2
    outage = (middle, middle + 10 * SECOND) if scenario.outage else (0, 0)

    def later(step: Callable[[], None]) -> None:
        heappush(steps, (clock.now + half_trip, next(numbers), step))

    def passes(key: str) -> None:
        run.passed.setdefault(key, []).append(clock.now)

    def ask(process: Process, key: str) -> None:
        run.asked += 1
        decision = process.local.hit(plan, key, 1)
        if decision is None:
            group = [(key, plan.limits, 1, None, None)]
            go_on(process, key, spending(process.local, [group], process.guard.evaluate), None)
        elif decision.allowed:
            passes(key)

    def go_on(process: Process, key: str, flow: Any, heard: Any) -> None:
        try:
            call = flow.send(heard)
        except StopIteration as done:
            if all(row[0] for row in done.value[0]):
                passes(key)
        else:
            later(lambda: decide(process, key, flow, call))

    def decide(process: Process, key: str, flow: Any, call: Any) -> None:
        storage.is_down = outage[0] <= clock.now < outage[1]
        heard = call()
        later(lambda: go_on(process, key, flow, heard))

    def play_until(instant: int) -> None:
        while steps and steps[0][0] <= instant:
            clock.now, _, step = heappop(steps)
            step()

    for instant, chosen, key in arrivals(scenario, limit):
        play_until(instant)
        clock.now = instant
        alive = scenario.processes
        if instant >= middle:
            alive -= int(alive * scenario.deaths)
        ask(processes[chosen % alive], f"key {key}")
    play_until(clock.now + 10 * SECOND)
    run.trips, run.charged = storage.trips, storage.charged
    return run


def arrivals(scenario: Scenario, limit: Limit) -> Iterator[Arrival]:
    """Yield the requests of a scenario in order."""
    chance = random.Random(scenario.pattern)
    per_second = scenario.load * limit.count * SECOND / limit.period_us
    steps = PATTERNS[scenario.pattern](chance, per_second, scenario.seconds)
    weights = list(accumulate(1 / (place + 1) for place in range(scenario.keys)))  # Zipf's law
    for seconds in steps:
        key = bisect_left(weights, chance.random() * weights[-1]) if scenario.keys > 1 else 0
        yield BEGIN + round(seconds * SECOND), chance.randrange(1 << 30), key


def _steady(chance: random.Random, per_second: float, until: float, begin: float = 0.0) -> Iterator[float]:
    """Yield instants at random, with this mean rate."""
    now = begin
    while (now := now + chance.expovariate(per_second)) < until:
        yield now


def _bursts(chance: random.Random, per_second: float, until: float) -> Iterator[float]:
    """Yield all requests of five seconds in the first second of them."""
    for begin in range(0, int(until), 5):
        yield from _steady(chance, 5 * per_second, begin + 1.0, begin)


def _ambush(chance: random.Random, per_second: float, until: float) -> Iterator[float]:
    """Yield the worst traffic for slices of one second: they are taken, left until they nearly end, and used at once.

    Four seconds begin with requests for a tenth of a second, which take slices. After a pause, a flood of one second
    meets these slices, and a limit that has given new units meanwhile. Then nobody asks until the limit is full again.
    """
    for begin in range(0, int(until), 4):
        yield from _steady(chance, 5 * per_second, begin + 0.1, begin)
        yield from _steady(chance, 3 * per_second, begin + 1.9, begin + 0.9)


def _edge(chance: random.Random, per_second: float, until: float) -> Iterator[float]:
    """Yield the worst traffic for slices of one second from a window of ten seconds.

    Slices are taken at 0 s and used at 0.9 s. Their charges leave a sliding window at 10 s, and a flood meets the units
    that this sets free. So the window from 0.9 s to 10.9 s has both.
    """
    for begin in range(0, int(until), 20):
        yield from _steady(chance, 25 * per_second, begin + 0.1, begin)
        yield from _steady(chance, 10 * per_second, begin + 1.9, begin + 0.9)
        yield from _steady(chance, 10 * per_second, begin + 10.9, begin + 10)


PATTERNS: dict[str, Callable[[random.Random, float, float], Iterator[float]]] = {
    "steady": _steady,
    "bursts": _bursts,
    "ambush": _ambush,
    "edge": _edge,
}
