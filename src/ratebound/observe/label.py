"""Labels and buckets that Prometheus and OpenTelemetry share. Labels are bounded in number."""

import threading
from collections.abc import Callable
from typing import TypeVar

from ratebound.decision import Decision

T = TypeVar("T")
SECONDS = (5e-6, 1e-5, 2.5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
OTHER = "other"
LOCK = threading.Lock()  # taken for new names, and for names above the bound


def label_of(name: str, made: dict[str, T], most: int, make: Callable[[str], T]) -> T:
    """Return `make(name)`, cached in `made`.

    If that already holds `most` names, return `make("other")` for new ones.
    """
    found = made.get(name)
    if found is not None:
        return found
    with LOCK:
        if name not in made and len(made) >= most:
            name = OTHER  # so `made` has at most one entry more than `most`
        if name not in made:
            made[name] = make(name)
        return made[name]


def checked_most(name: str, most: object) -> int:
    """Return a bound. Raises ValueError unless it is a positive whole number."""
    if type(most) is not int or most < 1:
        raise ValueError(f"{name} must be a positive whole number, not {most!r}")
    return most


def node_label(node: str) -> str:
    """Return the label of a node: "storage" if it has no name, "several" for a call to several nodes."""
    if "," in node:
        return "several"
    return node or "storage"


def decisive_limit(decision: Decision) -> str:
    """Return the name of the limit that a decision is counted under."""
    if len(decision.rows) == 1:
        return decision.asks[0][1][0].name
    return decision.limit.name


def used_shares(decision: Decision) -> list[tuple[str, float]]:
    """Return the used share of each limit after an allowed decision, from 0 to 1, with the limit's name.

    The list is empty for a denial, which is counted as such, and for a degraded decision, which other limits decided.
    """
    if not decision.allowed or decision.degraded is not None:
        return []
    limits = decision.asks[0][1] if len(decision.asks) == 1 else decision.limits
    return [(limit.name, 1 - row[1] / limit.burst) for limit, row in zip(limits, decision.rows, strict=True)]
