"""Limits that are lowered while the process is overloaded: a part of their count and their burst, at the same states.

The scope of a state does not contain the count, so a client keeps what it has spent. A bucket that was half full stays
half full, because the time to refill it stays the same.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

from ratebound.limit import MAX_SPAN, Limit

STEPS = 20


class LoweredLimits(tuple[Limit, ...]):
    """The limits of one key, some of them lowered. `configured` has the same limits as they were written."""

    configured: tuple[Limit, ...]

    def __new__(cls, limits: Iterable[Limit], configured: tuple[Limit, ...]) -> Self:
        made = super().__new__(cls, limits)
        made.configured = configured
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy both."""
        return type(self), (tuple(self), self.configured)

    def is_lowered(self, index: int) -> bool:
        """Return True if the limit at this place is lowered."""
        return self[index] is not self.configured[index]


def configured(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Return the limits as they were written."""
    return limits.configured if isinstance(limits, LoweredLimits) else limits


def lowered(limits: tuple[Limit, ...], step: int, cost: int = 1) -> tuple[Limit, ...]:
    """Return limits lowered to `step` twentieths; the same tuple if none of them can be.

    Rates and slots are lowered. Quotas, distinct values and penalties are not. A request of `cost` always passes an
    untouched limit, if it passes the limit as written.
    """
    found = [lowered_limit(limit, step, cost) for limit in limits]
    if all(one is limit for one, limit in zip(found, limits, strict=True)):
        return limits
    return LoweredLimits(found, limits)


def lowered_limit(limit: Limit, step: int, cost: int = 1) -> Limit:
    """Return one limit lowered to `step` twentieths; the same object if it cannot be."""
    if limit.is_quota or limit.is_distinct or limit.is_penalty or step >= STEPS:
        return limit
    least = min(cost, limit.burst) if limit.takes_cost else 1
    burst = max(limit.burst * step // STEPS, least)
    count = max(-(-limit.count * step // STEPS), -(-burst * limit.period_us // MAX_SPAN))
    if limit.burst == limit.count:  # windows have no burst of their own
        count = burst = max(count, burst)
    if count == limit.count and burst == limit.burst:
        return limit
    name = limit.name if limit.named else ""
    return replace(limit, count=count, burst=burst, name=name, large=True)
