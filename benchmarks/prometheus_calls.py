"""The calls of prometheus_client that PrometheusListener makes for a decision, on metrics of the same make.

They are the floor for what that listener costs. A test holds what they count against what the listener counts.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

from ratebound import Limit
from ratebound.observe.label import SECONDS, SHARES

Calls = tuple[Callable[[float], None], Callable[[], None], Callable[[float], None] | None]


def calls_of_a_decision(limit: Limit, allowed: bool, registry: CollectorRegistry | None = None) -> Calls:
    """Return three calls: time the decision, count it, and observe the used share. A denial has no used share."""
    registry = registry or CollectorRegistry()
    seconds = Histogram("ratebound_decision_seconds", "Time", buckets=SECONDS, registry=registry)
    decisions = Counter("ratebound_decisions", "Decisions", ("limit", "result", "degraded"), registry=registry)
    used = Histogram("ratebound_used_share", "Used", ("limit",), buckets=SHARES, registry=registry)
    decision = decisions.labels(limit.name, "allowed" if allowed else "denied", "false")
    return seconds.observe, decision.inc, used.labels(limit.name).observe if allowed else None
