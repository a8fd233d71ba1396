"""Why a decision is denied, and how long its client is told to wait. Headers, bodies and applications tell the same."""

from ratebound.clock import SECOND
from ratebound.decision import Decision

# Problem types that the RateLimit draft registers
QUOTA_EXCEEDED = "quota-exceeded"
REDUCED_CAPACITY = "temporary-reduced-capacity"
ABNORMAL_USAGE = "abnormal-usage-detected"

SHED_SPREAD = 4 * SECOND  # clients of an overloaded process are told to wait from 1 second to 5


def kind_of(decision: Decision) -> str:
    """Return the problem type of a denied decision, which also gives the status of its rejection."""
    if decision.unavailable or decision.shed:
        return REDUCED_CAPACITY
    if decision.blocked:
        return ABNORMAL_USAGE
    return QUOTA_EXCEEDED


def longest_wait(decision: Decision, kind: str, spread: float = 1.0) -> int | None:
    """Return microseconds until a denied request may pass; None if it never can, or if it is unknown. Never 0, which
    would mean now. `kind` is that of the decision.

    The end of a lease says nothing about when a slot will be free: only the time that its rule gives counts. If the
    process is overloaded, it is unknown when that will end: clients get waits to come back at different times.
    """
    is_for_slots = kind != REDUCED_CAPACITY  # else every wait is for the storage
    if not is_for_slots and decision.shed:
        return int((SECOND + decision.at * 7919 % SHED_SPREAD) * spread)  # the same in headers and body
    waits: list[int | None] = []
    for limit, row in zip(decision.limits, decision.rows, strict=True):
        if not row[0]:
            if not (is_for_slots and limit.has_slots):
                waits.append(row[2])
            elif limit.retry_us:
                waits.append(limit.retry_us)
    if not waits or None in waits:
        return None
    return max([int((wait or 1) * spread) for wait in waits])
