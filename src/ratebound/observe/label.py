"""Labels and buckets that Prometheus and OpenTelemetry share. Labels are bounded in number."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ratebound.decision import Decision
from ratebound.fork import renew_in_children
from ratebound.limit import Limit
from ratebound.outcome import Row

T = TypeVar("T")
SECONDS = (5e-6, 1e-5, 2.5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
OTHER = "other"
IN_FLIGHT = "concurrent: auto"  # takes the place of a limit where requests are shed without one


class NewNames:
    """The lock that is taken for new names. It is free in a forked child, whoever had it in the parent."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self.lock = threading.Lock()


new_names = NewNames()


def label_of(name: str, made: dict[str, T], most: int, make: Callable[[str], T]) -> T:
    """Return `make(name)`, cached in `made`.

    If that already holds `most` names, return `make("other")` for new ones.
    """
    found = made.get(name)
    if found is None and len(made) >= most:
        found = made.get(name, made.get(OTHER))  # the name again: once this is full, no name is added
    if found is not None:
        return found
    with new_names.lock:
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


def checked_limits(decision: Decision) -> Sequence[Limit]:
    """Return the limits of a decision, in the order of its rows. Nothing is built for a decision about one key."""
    asks = decision.asks
    return asks[0][1] if len(asks) == 1 else decision.limits


def used_share(limit: Limit, row: Row) -> float:
    """Return how much of a limit is used after an allowed decision, from 0 to 1.

    It is reported for every limit of the decision. A denial has none: it is counted as such. Nor has a degraded
    decision: other limits decided it. It is 0 while more remains than the quota, because units were granted.
    """
    share = 1 - row[1] / limit.burst
    return share if share > 0 else 0.0
