"""Slices and the deny cache on Redis: decisions per second of one key, with one trip each and without.

All processes hit one key as fast as they can. The commands that reach the server are counted, for the trips per
decision. It is wall time, and the server is started here.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.servers import redis_server

from benchmarks.builds import Done, Worker, on_all_cores
from benchmarks.measure import ratios, spread
from benchmarks.processes import Load, decisions_per_second
from benchmarks.table import Sheet, figures
from benchmarks.verdict import Verdict, at_least

PROCESSES = (1, 2, 4)
LEAST = 10.0  # times the decisions per second of one trip each
WIDE, SPENT = "1000000000/hour", "10/day"
TRIPS, SLICED = "one trip each", "slices of 5 %"
DENIED_TRIPS, CACHED = "denied, one trip each", "denied, deny cache"
# The limit, and the options of the limiter. The first of each pair is what the second is compared with.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    TRIPS: (WIDE, {}),
    SLICED: (WIDE, {"slice": "5%"}),
    DENIED_TRIPS: (SPENT, {}),
    CACHED: (SPENT, {"deny_cache": True}),
}
BASES = {SLICED: TRIPS, CACHED: DENIED_TRIPS}


class Turn(NamedTuple):
    """A way to decide, in so many processes of a build."""

    build: str
    way: str
    processes: int


@dataclass(slots=True)
class Slicing:
    """The results of every round, by turn: decisions per second, and trips per decision."""

    rates: dict[Turn, list[float]] = field(default_factory=dict)
    trips: dict[Turn, list[float]] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required value that was measured."""
        return [
            at_least(
                turn.build,
                f"slices, {turn.processes} {_noun(turn.processes)}: times the decisions per second of {TRIPS}",
                LEAST,
                spread(ratios(self.rates[turn._replace(way=TRIPS)], rates)),
            )
            for turn, rates in self.rates.items()
            if turn.way == SLICED
        ]

    def sheets(self) -> list[Sheet]:
        """Return the table."""
        rows = []
        for turn, rates in self.rates.items():
            base, found = BASES.get(turn.way), spread(rates)
            times = figures(spread(ratios(self.rates[turn._replace(way=base)], rates))) if base else ("", "")
            rows.append(
                (
                    turn.build,
                    str(turn.processes),
                    turn.way,
                    f"{found.median:,.0f}",
                    f"{found.low:,.0f}–{found.high:,.0f}",
                    *times,
                    f"{spread(self.trips[turn]).median:.6f}",
                )
            )
        head = ("build", "processes", "how", "per second", "quartiles", "times", "quartiles", "trips per decision")
        return [Sheet("One key on Redis: decisions per second of all processes together", head, rows)]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results for the JSON file."""
        return [
            {
                **turn._asdict(),
                "per_second": spread(rates)._asdict(),
                "trips_per_decision": spread(self.trips[turn])._asdict(),
            }
            for turn, rates in self.rates.items()
        ]


def steps(rounds: int) -> int:
    """Return how many times `done` is called."""
    return rounds * len(PROCESSES) * len(WAYS)


def measure_slices(build: str, rounds: int, seconds: float, done: Done, slicing: Slicing) -> None:
    """Add the results of a build. Each turn takes `seconds`, after half of that as warm-up."""
    turns = [Turn(build, way, processes) for processes in PROCESSES for way in WAYS]
    for turn in turns:
        slicing.rates[turn], slicing.trips[turn] = [], []
    with on_all_cores(), ExitStack() as stack:
        server = stack.enter_context(redis_server())
        admin = stack.enter_context(server.client())
        workers = [stack.enter_context(Worker(build)) for _ in range(max(PROCESSES))]

        def calls() -> int:
            stats: Any = admin.info("commandstats")
            return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))

        for number in range(rounds):
            for turn in Random(number).sample(turns, len(turns)):
                admin.flushdb()
                rate, trips = _measure_turn(turn, server.url, workers, seconds, calls)
                slicing.rates[turn].append(rate)
                slicing.trips[turn].append(trips)
                done()


def _measure_turn(
    turn: Turn, url: str, workers: list[Worker], seconds: float, calls: Callable[[], int]
) -> tuple[float, float]:
    """Return decisions per second without the warm-up, and trips per decision with it."""
    limit, options = WAYS[turn.way]
    load = Load(url, limit, options, denied=limit == SPENT, warm_up=seconds / 2, seconds=seconds)
    before = calls()
    made = decisions_per_second(workers[: turn.processes], load)
    return made.per_second, (calls() - before) / made.all


def _noun(processes: int) -> str:
    return "process" if processes == 1 else "processes"
