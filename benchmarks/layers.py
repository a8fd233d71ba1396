"""Endpoints with limits of their own: 100 layers on one policy of 51 rules, beside 100 copies of the policy.

A copy is a policy with the endpoint's rule written out in front of all others, checked and compiled. A layer decides
the same, and shares the policy. Time is CPU time for all endpoints, interleaved; ratios are within each round. Memory
is what Python has allocated for them, and is the same in each round.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.builds import PURE, Done
from benchmarks.measure import Spread, ratios, spread
from benchmarks.verdict import Verdict, at_least
from ratebound.policy import Match, Policy, Rule
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.policy.runtime.layered_policy import written_out

ENDPOINTS, RULES = 100, 51
LAYERS, COPIES = f"{ENDPOINTS} layers", f"{ENDPOINTS} copies"
LEAST_TIME, LEAST_MEMORY = 8.0, 15.0


def _policy() -> Policy:
    matches = [Match(paths=(f"/v1/things-{number}/{{id}}",), methods=("GET", "POST")) for number in range(RULES - 1)]
    paths = [Rule(f"rule-{number}", "50/minute", match=match) for number, match in enumerate(matches)]
    return Policy(rules=[*paths, Rule("default", "100/minute", default=True)])


def _own_rules() -> list[list[Rule]]:
    return [[Rule(f"endpoint-{number}", "10/minute")] for number in range(ENDPOINTS)]


def _layered(base: CompiledPolicy, rules: list[Rule]) -> CompiledPolicy:
    return base.layered(rules)


def _copied(base: CompiledPolicy, rules: list[Rule]) -> CompiledPolicy:
    return CompiledPolicy(written_out(base.policy, rules))


WAYS: dict[str, Callable[[CompiledPolicy, list[Rule]], CompiledPolicy]] = {LAYERS: _layered, COPIES: _copied}


@dataclass(slots=True)
class Layering:
    """The results, of the pure build: CPU seconds for all endpoints in every round, and bytes of all, by way."""

    times: dict[str, list[float]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def verdicts(self) -> list[Verdict]:
        """Return the required ratios, if anything was measured."""
        if not self.times:
            return []
        less_time = spread(ratios(self.times[LAYERS], self.times[COPIES]))
        less_memory = spread([self.sizes[COPIES] / self.sizes[LAYERS]])
        about = f"layers, {ENDPOINTS} endpoints on {RULES} rules"
        return [
            at_least(PURE, f"{about}: times less time than copies", LEAST_TIME, less_time),
            at_least(PURE, f"{about}: times less memory than copies", LEAST_MEMORY, less_memory),
        ]

    def rows(self) -> list[tuple[str, Spread, int]]:
        """Return (way, CPU seconds, bytes) for all endpoints together."""
        return [(way, spread(times), self.sizes[way]) for way, times in self.times.items()]

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"build": PURE, "who": way, "time": seconds._asdict(), "bytes": size} for way, seconds, size in self.rows()
        ]


def steps(rounds: int) -> int:
    """Return how many times `done` is called."""
    return (rounds + 1) * len(WAYS)


def measure_layers(rounds: int, done: Done) -> Layering:
    """Make all endpoints in both ways, `rounds` times for the clock, and once more to weigh them.

    A worker of the pure build runs this.
    """
    ways = list(WAYS)
    layering = Layering({way: [] for way in ways})
    for number in range(rounds):
        for place in range(len(ways)):
            way = ways[(place + number) % len(ways)]
            layering.times[way].append(_seconds(way))
            done()
    for way in ways:
        layering.sizes[way] = _size(way)
        done()
    return layering


def _seconds(way: str) -> float:
    make, base, rules = WAYS[way], CompiledPolicy(_policy()), _own_rules()
    gc.collect()
    start = time.process_time()
    made = [make(base, own) for own in rules]
    spent = time.process_time() - start
    if len(made) != ENDPOINTS:
        raise AssertionError(f"layers: {way} are {len(made)}")
    return spent


def _size(way: str) -> int:
    make, base, rules = WAYS[way], CompiledPolicy(_policy()), _own_rules()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = [make(base, own) for own in rules]
        gc.collect()
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    if len(made) != ENDPOINTS:
        raise AssertionError(f"layers: {way} are {len(made)}")
    return size
