"""Latencies of a load test: exact percentiles, from the time at which each request was due."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ratebound.loadtest.answer import Answer

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


class LatencyFigures(NamedTuple):
    """The latencies of a group of answers, sorted, in seconds."""

    seconds: Sequence[float] = ()

    @property
    def answers(self) -> int:
        """The number of answers."""
        return len(self.seconds)

    def percentile(self, share: float) -> float:
        """Return the smallest latency that at least this share of the answers does not exceed; 0 without answers."""
        if not self.seconds:
            return 0.0
        return self.seconds[max(math.ceil(round(share * len(self.seconds), 6)), 1) - 1]

    def figures(self) -> dict[str, float]:
        """Return the usual percentiles and the maximum, by name."""
        named = {name: self.percentile(share) for name, share in SHARES.items()}
        return {**named, "max": self.seconds[-1] if self.seconds else 0.0}


class Latencies(NamedTuple):
    """The latencies of granted requests, of refused ones, and of both."""

    granted: LatencyFigures
    refused: LatencyFigures
    answered: LatencyFigures


def latencies_of(answers: Iterable[Answer], refused: frozenset[int]) -> Latencies:
    """Return the latencies of all requests that were answered. Errors have none."""
    passed: list[float] = []
    denied: list[float] = []
    for answer in answers:
        if answer.status:
            (denied if answer.status in refused else passed).append(answer.done - answer.due)
    passed.sort()
    denied.sort()
    both = sorted([*passed, *denied])
    return Latencies(LatencyFigures(passed), LatencyFigures(denied), LatencyFigures(both))
