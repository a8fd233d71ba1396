"""Counts of decisions in plain numbers, for a worker with one thread: no locks. Compiled where that can be done.

This takes a small part of the time of Prometheus metrics. What is counted has the same names and bounds.
"""

from bisect import bisect_left
from typing import Any, ClassVar, Final

from ratebound.decision import Decision
from ratebound.events import Decided, Listener
from ratebound.limit import Limit
from ratebound.observe.label import SECONDS, SHARES, checked_limits, label_of
from ratebound.outcome import DegradedRows, Row

MOST_LIMITS: Final = 200  # names of limits with labels of their own; the others are "other"


class Histogram:
    """Counts by bucket. The last one is for values above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class LimitCounts:
    """The decisions of one limit that the storage has made."""

    __slots__ = ("allowed", "denied", "used")

    def __init__(self, name: str) -> None:
        self.allowed = 0
        self.denied = 0
        self.used = Histogram(SHARES)


class DecisionCounts:
    """A listener that counts decisions. `others` receive the events that it does not count itself, and `denials` each
    decision that denies."""

    __slots__ = ("_denials", "_others", "limits", "seconds")

    logs: ClassVar[bool] = True  # one of the others does: a guard need not log outages itself
    ignores_verdicts: ClassVar[bool] = True

    def __init__(self, *others: Listener, denials: Listener | None = None) -> None:
        self._others = others
        self._denials = denials
        self.seconds = Histogram(SECONDS)
        self.limits: dict[str, LimitCounts] = {}

    def __call__(self, event: Any) -> None:
        if type(event) is not Decided or not self._count(event, event[0]):
            for listener in self._others:
                listener(event)
            return
        self.seconds.add(event[1])

    def _count(self, event: Any, decision: Decision) -> bool:
        """Count a decision of limits that deny. Return False if it is not such a decision."""
        rows = decision.rows
        if isinstance(rows, DegradedRows):
            return False
        limit: Limit = decision.limit
        if not decision.allowed:
            if decision.shed:
                return False
            self._of(limit.name).denied += 1
            if self._denials is not None:
                self._denials(event)
        elif len(rows) == 1:
            if limit.over != "deny" or limit.is_watched:
                return False
            counts = self._of(limit.name)
            counts.allowed += 1
            counts.used.add(_used(limit, rows[0]))
        else:
            limits = checked_limits(decision)
            for one in limits:
                if one.over != "deny" or one.is_watched:
                    return False
            self._of(limit.name).allowed += 1
            for one, row in zip(limits, rows, strict=True):
                self._of(one.name).used.add(_used(one, row))
        return True

    def _of(self, name: str) -> LimitCounts:
        counts = self.limits.get(name)
        return label_of(name, self.limits, MOST_LIMITS, LimitCounts) if counts is None else counts


def _used(limit: Limit, row: Row) -> float:
    """Return the used share, as `observe.label.used_share` does."""
    share: float = 1 - row[1] / limit.burst
    return share if share > 0.0 else 0.0
