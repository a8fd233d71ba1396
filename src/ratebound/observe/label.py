"""What Prometheus and OpenTelemetry say alike: of which limit, in which buckets, and labels that cannot grow without
bound."""

import threading
from collections.abc import Callable
from typing import TypeVar

from ratebound.decision import Decision

T = TypeVar("T")
SECONDS = (5e-6, 1e-5, 2.5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
OTHER = "other"
LOCK = threading.Lock()  # taken for names that are new, or too many


def label_of(name: str, made: dict[str, T], most: int, make: Callable[[str], T]) -> T:
    """What `make` makes of a name, made once and kept in `made`; once that holds `most`, of "other"."""
    found = made.get(name)
    if found is not None:
        return found
    with LOCK:
        if name not in made and len(made) >= most:
            name = OTHER  # one more entry than `most`, and the last
        if name not in made:
            made[name] = make(name)
        return made[name]


def checked_most(name: str, most: object) -> int:
    if type(most) is not int or most < 1:
        raise ValueError(f"{name} must be a positive whole number, not {most!r}")
    return most


def node_label(node: str) -> str:
    """A storage that is a single server may leave it without a name; a call to several at once is no one's."""
    if "," in node:
        return "several"
    return node or "storage"


def decisive_limit(decision: Decision) -> str:
    """The name of the limit that a decision is counted under."""
    if len(decision.rows) == 1:
        return decision.asks[0][1][0].name
    return decision.limit.name


def used_shares(decision: Decision) -> list[tuple[str, float]]:
    """How much of each limit is used after an allowed decision, from 0 to 1, by the limit's name.

    Nothing for a refusal, which is counted as such; nothing without the storage, whose limits are not those
    that were decided by.
    """
    if not decision.allowed or decision.degraded is not None:
        return []
    limits = decision.asks[0][1] if len(decision.asks) == 1 else decision.limits
    return [(limit.name, 1 - row[1] / limit.burst) for limit, row in zip(limits, decision.rows, strict=True)]
