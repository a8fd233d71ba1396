"""Clients of limited APIs beside tenacity, stamina, aiolimiter, requests-ratelimiter, httpx and urllib3."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.servers import redis_server

from benchmarks.builds import Done, Worker, on_all_cores
from benchmarks.client_cost import COSTS, cost_of_a_call
from benchmarks.client_outage import BOUNDED, OUTAGE, amplification, served
from benchmarks.client_rates import JUDGED, LIMITS, PACED, PROCESSES, RateFound, be_ready, reach_rate
from benchmarks.measure import Spread, spread
from benchmarks.table import Sheet, figures
from benchmarks.verdict import Verdict, at_least, at_most
from benchmarks.zones import zone_for_processes

MOST_REQUESTS = 1.1  # for each call of an outage
LEAST_SHARE = 0.97  # of the allowed rate
COST_ROUNDS = 15


@dataclass(slots=True)
class Calling:
    """The results of one build."""

    build: str
    outage: dict[str, float] = field(default_factory=dict)  # requests for each call
    rates: dict[tuple[str, str], RateFound] = field(default_factory=dict)  # by limit and contender
    costs: dict[tuple[str, bool], list[float]] = field(default_factory=dict)  # CPU seconds, by library and with ours

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each required value that was measured."""
        judged = [
            at_most(self.build, f"requests for each call of an outage: {name}", MOST_REQUESTS, _one(self.outage[name]))
            for name in BOUNDED
            if name in self.outage
        ]
        for (limit, name), found in self.rates.items():
            if name in JUDGED:
                what = f"{limit}, {PROCESSES} processes, {name}"
                judged.append(at_most(self.build, f"{what}: refused after the first answers", 0, _one(found.refused)))
                judged.append(at_least(self.build, f"{what}: share of the rate", LEAST_SHARE, _one(found.share)))
        return judged

    def added(self, library: str) -> Spread:
        """Return the CPU seconds that ours adds to a call, within each round."""
        pairs = zip(self.costs[library, False], self.costs[library, True], strict=True)
        return spread([more - less for less, more in pairs])

    def sheets(self) -> list[Sheet]:
        """Return the tables."""
        return [
            Sheet(
                "A total outage: requests that reach the server for each call",
                ("build", "who", "requests for each call"),
                [(self.build, name, f"{found:.2f}") for name, found in self.outage.items()],
            ),
            Sheet(
                f"{PROCESSES} processes and one limit of a server",
                ("build", "limit", "who", "share of the rate", "refused", "refused in the first 2 s"),
                [
                    (self.build, limit, name, f"{found.share:.1%}", str(found.refused), str(found.refused_first))
                    for (limit, name), found in self.rates.items()
                ],
            ),
            Sheet(
                "One call: CPU time of the client",
                ("build", "library", "µs bare", "quartiles", "µs added", "quartiles"),
                [
                    (
                        self.build,
                        name,
                        *figures(spread(self.costs[name, False]), 1e6),
                        *figures(self.added(name), 1e6),
                    )
                    for name in COSTS
                    if (name, True) in self.costs
                ],
            ),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the results for the JSON file."""
        return {
            "build": self.build,
            "outage": self.outage,
            "rates": [{"limit": limit, "who": who, **found._asdict()} for (limit, who), found in self.rates.items()],
            "cost": [
                {"library": name, "polite": polite, "seconds": spread(found)._asdict()}
                for (name, polite), found in self.costs.items()
            ],
        }


def _one(value: float) -> Spread:
    return spread([value])


def outage_steps() -> int:
    """Return how many times `measure_outage` calls `done`."""
    return len(OUTAGE)


def rate_steps() -> int:
    """Return how many times `measure_rates` calls `done`."""
    return len(PACED)


def cost_steps() -> int:
    """Return how many times `measure_costs` calls `done`."""
    return len(COSTS) * COST_ROUNDS


def measure_outage(worker: Worker, done: Done) -> Calling:
    """Return the requests for each call of all contenders."""
    found = Calling(worker.build)
    with served("outage") as url:
        for name in OUTAGE:
            found.outage[name] = worker.run(outage_of, name, url)
            done()
    return found


def measure_rates(build: str, limit: str, done: Done) -> Calling:
    """Return the rates that several processes reach with one of LIMITS. Each turn has a new server."""
    found = Calling(build)
    with on_all_cores(), ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        workers = [stack.enter_context(Worker(build)) for _ in range(PROCESSES)]
        for worker in workers:
            worker.run(be_ready)
        for name in PACED:
            with served(LIMITS[limit]) as url, zone_for_processes() as zone, redis.client() as admin:
                admin.flushdb()
                shared = redis.url if "Redis" in name else zone
                found.rates[limit, name] = reach_rate(name, url, shared, workers)
            done()
    return found


def measure_costs(worker: Worker, done: Done) -> Calling:
    """Return the CPU time of a call with our layer and without, in turns."""
    found = Calling(worker.build)
    with served("well") as url:
        for number in range(COST_ROUNDS):
            for name in COSTS:
                for polite in (False, True) if number % 2 else (True, False):
                    found.costs.setdefault((name, polite), []).append(worker.run(cost_of, name, polite, url))
                done()
    return found


def outage_of(name: str, url: str, _: Done) -> float:
    """Return the requests for each call. A worker runs this."""
    return amplification(name, url)


def cost_of(name: str, polite: bool, url: str, _: Done) -> float:
    """Return the CPU seconds of a call. A worker runs this."""
    return cost_of_a_call(name, polite, url)
