"""Counts of decisions in plain numbers, by limit and by rule. Compiled where that can be done.

This takes a small part of the time of Prometheus metrics. What is counted by limit has the same names and bounds. There
is no lock: each count is one addition without a call in between, during which no other thread runs.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from ratebound.decision import Decision
from ratebound.events import Decided, Listener
from ratebound.limit import Limit
from ratebound.observe.label import OTHER, SECONDS, SHARES, checked_limits, label_of
from ratebound.outcome import DegradedRows, Row

MOST_LIMITS: Final = 200  # names of limits with labels of their own; the others are "other"
MOST_RULES: Final = 100  # the same for rules
MOST_TEXTS: Final = 50  # of these rules, limits without a name that callers bring

# Compiled code reads a Final without looking up its name.
_DECIDED: Final[type[Decided]] = Decided
_DEGRADED: Final[type[DegradedRows]] = DegradedRows


class Histogram:
    """Counts by bucket. The last one is for values above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts: list[int] = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        place = 0  # compiled, this loop is quicker than bisect: most values are in one of the first buckets
        for bound in self.bounds:
            if value <= bound:
                break
            place += 1
        self.counts[place] += 1
        self.total += value


class RuleCounts:
    """The decisions of one rule: those that were allowed while it applied, and those that it denied."""

    __slots__ = ("allowed", "denied")

    def __init__(self, name: str) -> None:
        self.allowed = 0
        self.denied = 0


class LimitCounts:
    """The decisions of one limit that the storage has made, and the rule of the limit.

    `rule` is None for a penalty, which several rules may share, and for "other".
    """

    __slots__ = ("allowed", "denied", "rule", "used")

    def __init__(self, name: str) -> None:
        self.allowed = 0
        self.denied = 0
        self.used = Histogram(SHARES)
        self.rule: RuleCounts | None = None


class DecisionCounts:
    """A listener that counts decisions. `others` receive the events that it does not count itself, and `denials` each
    decision that denies.

    `logs` is True if one of the others logs outages: then a guard need not. If `begin` is set, it is called before the
    next event.
    """

    __slots__ = ("_denials", "_others", "begin", "limits", "logs", "rules", "seconds")

    ignores_verdicts: ClassVar[bool] = True

    def __init__(self, *others: Listener, denials: Listener | None = None, logs: bool = True) -> None:
        self._others: tuple[Listener, ...] = others
        self._denials: tuple[Listener, ...] = () if denials is None else (denials,)
        self.logs = logs
        self.begin: Callable[[], object] | None = None
        self.clear()

    def clear(self) -> None:
        """Begin again at zero."""
        self.seconds = Histogram(SECONDS)
        self.limits: dict[str, LimitCounts] = {}
        self.rules: dict[str, RuleCounts] = {}

    def tell(self, others: Listener, denials: Listener) -> None:
        """Tell `others` from now on of the events that are not counted here, and `denials` of decisions that deny."""
        self._others = (*self._others, others)
        self._denials = (*self._denials, denials)

    def __call__(self, event: Any) -> None:
        begin = self.begin
        if begin is not None:
            begin()
        if type(event) is not _DECIDED or not self._count(event, event[0]):
            for listener in self._others:
                listener(event)
            return
        self.seconds.add(event[1])

    def rule_of(self, limit: Limit) -> RuleCounts:
        """Return the counts of the rule that a limit belongs to. Rules name their limits: `login/minute`.

        A limit of another name is a rule by itself. The number of rules is bounded; the last is "other".
        """
        if limit.named:
            return label_of(limit.name.partition("/")[0], self.rules, MOST_RULES, RuleCounts)
        return label_of(limit.name, self.rules, MOST_TEXTS, RuleCounts)

    def _count(self, event: Any, decision: Decision) -> bool:
        """Count a decision of limits that deny. Return False if it is not such a decision."""
        rows = decision.rows
        if isinstance(rows, _DEGRADED):
            return False
        limit: Limit = decision.limit
        if not decision.allowed:
            if decision.shed:
                return False
            counts = self._of(limit)
            counts.denied += 1
            rule = counts.rule
            if rule is None:
                rule = self.rule_of(denying_limit(decision, limit))
            rule.denied += 1
            for listener in self._denials:
                listener(event)
        elif len(rows) == 1:
            if limit.over != "deny" or limit.is_watched:
                return False
            counts = self._of(limit)
            counts.allowed += 1
            counts.used.add(_used(limit, rows[0]))
            rule = counts.rule
            if rule is None:
                rule = self.rule_of(limit)
            rule.allowed += 1
        else:
            limits = checked_limits(decision)
            for one in limits:
                if one.over != "deny" or one.is_watched:
                    return False
            self._of(limit).allowed += 1
            before: RuleCounts | None = None
            for one, row in zip(limits, rows, strict=True):
                counts = self._of(one)
                counts.used.add(_used(one, row))
                rule = counts.rule
                if rule is None:
                    rule = self.rule_of(one)
                if rule is not before:  # the limits of a rule stand together
                    rule.allowed += 1
                    before = rule
        return True

    def _of(self, limit: Limit) -> LimitCounts:
        counts = self.limits.get(limit.name)
        return self._new(limit) if counts is None else counts

    def _new(self, limit: Limit) -> LimitCounts:
        counts = label_of(limit.name, self.limits, MOST_LIMITS, LimitCounts)
        if limit.name != OTHER and not limit.is_penalty and self.limits.get(limit.name) is counts:
            counts.rule = self.rule_of(limit)
        return counts


def denying_limit(decision: Decision, limit: Limit) -> Limit:
    """Return the limit by which a denial is counted for a rule.

    The penalty of a rule has a name that several rules share: another limit of the same ask stands for it.
    """
    if not limit.is_penalty:
        return limit
    for ask in decision.asks:
        if limit in ask[1]:
            for one in ask[1]:
                if not one.is_penalty:
                    return one
    return limit


def _used(limit: Limit, row: Row) -> float:
    """Return the used share, as `observe.label.used_share` does."""
    share: float = 1 - row[1] / limit.burst
    return share if share > 0.0 else 0.0
