"""Figures of a run while it runs: counts, the current rate, and percentiles from a histogram of latencies."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from ratebound.loadtest.answer import ERRORS, Answers

STEPS = 32  # buckets for each doubling: percentiles are exact to 2.2 %
LEAST = 1e-6


class Progress(NamedTuple):
    """The figures of a run so far."""

    elapsed: float  # seconds since the start
    duration: float  # of the schedule
    sent: int
    answered: int  # including errors
    in_flight: int
    connections: int
    held: int  # requests that obedient clients did not send
    statuses: Mapping[int, int]  # without errors
    errors: Mapping[str, int]
    rate: float  # answers per second since the last call
    p50: float  # latency from the due time, in seconds
    p99: float


class LatencyHistogram:
    """Counts of latencies in buckets that grow by 2.2 %."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.total = 0

    def add(self, seconds: float) -> None:
        """Count one latency."""
        bucket = int(math.log2(max(seconds, LEAST)) * STEPS + 1024)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.total += 1

    def percentile(self, share: float) -> float:
        """Return the latency that this share (0 to 1) does not exceed; 0 without any."""
        left = math.ceil(self.total * share)
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return float(2 ** ((bucket + 1 - 1024) / STEPS))
        return 0.0


class ProgressCounts:
    """Reads new answers at each step, so that the path of an answer stays short."""

    __slots__ = ("_answers", "_errors", "_latencies", "_read", "_statuses", "_when")

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._read = 0
        self._when = 0.0
        self._statuses: dict[int, int] = {}
        self._errors: dict[str, int] = {}
        self._latencies = LatencyHistogram()

    def read(
        self, elapsed: float, duration: float, sent: int, answered: int, in_flight: int, connections: int, held: int
    ) -> Progress:
        """Return the figures at this time."""
        answers, first, last = self._answers, self._read, len(self._answers)
        for status in answers.status[first:last]:
            self._statuses[status] = self._statuses.get(status, 0) + 1
        failed = self._statuses.pop(0, 0)
        if failed:
            for number in answers.error[first:last]:
                if number:
                    self._errors[ERRORS[number]] = self._errors.get(ERRORS[number], 0) + 1
        for due, done, status in zip(
            answers.due[first:last], answers.done[first:last], answers.status[first:last], strict=True
        ):
            if status:
                self._latencies.add(done - due)
        rate = (last - first) / max(elapsed - self._when, 1e-9)
        self._read, self._when = last, elapsed
        percentile = self._latencies.percentile
        return Progress(
            elapsed,
            duration,
            sent,
            answered,
            in_flight,
            connections,
            held,
            dict(self._statuses),
            dict(self._errors),
            rate,
            percentile(0.5),
            percentile(0.99),
        )
