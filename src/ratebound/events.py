"""What is told to those who listen: every decision, every call to a storage, its failures and its recoveries.

A listener is any function of one event. It is called where the event happens, in that thread or task, so it must be
quick and must not block; what it raises is logged and goes no further. The listeners that come with Ratebound are
in observe/.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from ratebound.decision import Decision
from ratebound.errors import StorageError

log = logging.getLogger("ratebound")


class Decided(NamedTuple):
    """A request has its answer. `seconds` is what that took, the storage included, sleeping not."""

    decision: Decision
    seconds: float


class Called(NamedTuple):
    """A storage outside this process was asked. `error` says why it gave no answer, if it gave none."""

    node: str  # which server, where there are several
    seconds: float
    error: StorageError | None


class Degraded(NamedTuple):
    """From now on decisions are made without the storage, as the failure mode says."""

    node: str
    reason: str


class Recovered(NamedTuple):
    """The storage decides again. `seconds` is how long it did not."""

    node: str
    seconds: float
    written_back: int  # units that were granted meanwhile, and are charged in the storage now


class Shadowed(NamedTuple):
    """What a rule of a policy in shadow, or its candidate limits, would have said."""

    rule: str
    candidate: bool
    allowed: bool


Event = Decided | Called | Degraded | Recovered | Shadowed
Listener = Callable[[Any], object]  # of an Event; a policy's gate tells its verdicts, too


def tell(listeners: tuple[Listener, ...], event: object) -> None:
    """A decision must not fail because of who looks on."""
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed; the decision stands")
