"""The events that listeners receive: decisions, settlements and what follows from them, storage calls, outages,
recoveries, lost slots and overload.

A listener is any function of one event. It runs in the thread or task where the event happens, so it must be quick and
must not block. An exception in a listener is logged and does not change the decision. Ready-made listeners are in
observe/.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ratebound.decision import Decision
from ratebound.errors import StorageError
from ratebound.limit import Limit

log = logging.getLogger("ratebound")


class Decided(NamedTuple):
    """A request was decided. `seconds` is the time that took, including the storage but not sleeping.

    `request` is the RequestView of a decision that a gate made, else None. It is personal and lives no longer than its
    request, so the text and the pickle of this event leave it out.
    """

    decision: Decision
    seconds: float
    request: Any = None

    def __repr__(self) -> str:
        return f"Decided(decision={self.decision!r}, seconds={self.seconds!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy the event without its request."""
        return Decided, (self.decision, self.seconds)


class Settled(NamedTuple):
    """An allowed decision has cost another amount after all: it was settled, or undone.

    `settled` is the decision as it stands now. Its asks have the new costs, and its `overage` is the change.
    """

    decision: Decision
    settled: Decision


class Called(NamedTuple):
    """A storage outside this process was called. `error` is None if it answered."""

    node: str  # the server, if there are several; else empty
    seconds: float
    error: StorageError | None


class Degraded(NamedTuple):
    """The storage is out of reach. From now on the failure mode decides."""

    node: str
    reason: str


class Recovered(NamedTuple):
    """The storage decides again. `seconds` is how long it was out of reach."""

    node: str
    seconds: float
    written_back: int  # units granted during the outage that are now charged in the storage


class Shadowed(NamedTuple):
    """The answer that a rule in shadow, or a rule's candidate limits, would have given."""

    rule: str
    candidate: bool
    allowed: bool


class Struck(NamedTuple):
    """A penalty counted a strike: for a denial, or for a result. `remaining` strikes are left until the next block.

    `ask` is the place of its key among `decision.asks`, so that the text of this event shows no key.
    """

    decision: Decision
    limit: Limit  # the penalty
    ask: int
    remaining: int

    @property
    def key(self) -> str:
        """The key that was struck. It may be personal."""
        return self.decision.asks[self.ask][0]


class BlockBegan(NamedTuple):
    """A penalty blocks a key from now on, for `seconds`. The strike that began the block is told before it."""

    decision: Decision
    limit: Limit  # the penalty
    ask: int  # see Struck
    seconds: float

    @property
    def key(self) -> str:
        """The key that is blocked. It may be personal."""
        return self.decision.asks[self.ask][0]


class Warned(NamedTuple):
    """A decision, or its settlement, has taken the used part of a limit to the share `limit.warn` or above it.

    It is told once for each crossing, and denies nothing.
    """

    decision: Decision
    limit: Limit
    ask: int  # see Struck
    remaining: int

    @property
    def key(self) -> str:
        """The key whose limit is nearly used up. It may be personal."""
        return self.decision.asks[self.ask][0]


class SlotLost(NamedTuple):
    """The storage had lost a slot while its holder was at work: a reset, a failover, or a renewal that came too late.

    It is held again, even above the count. `decision` is the one that took it.
    """

    decision: Decision


class PressureChanged(NamedTuple):
    """Limits are lowered further, or raised again, because the load of this process has changed.

    `factors` has a number from 0 to 1 for each priority of rules; 1 is as configured. It is also told when a gate
    begins to watch the load. It comes from a thread of its own.
    """

    factors: Mapping[str, float]


class RequestShed(NamedTuple):
    """A request was turned away before any decision, because too many were in the process: see `concurrent: auto`.

    `in_flight` is how many may be there at the same time now.
    """

    in_flight: int


class ChangeMade(NamedTuple):
    """An operator has changed something through this gate: a block, an override, a switch, or something that `record`
    has noted. `change` is the entry of the audit log. It names a client or a rule, which the text of this event does
    not."""

    change: Any

    def __repr__(self) -> str:
        return f"ChangeMade(action={self.change.action!r})"


Event = (
    Decided
    | Settled
    | Struck
    | BlockBegan
    | Warned
    | Called
    | Degraded
    | Recovered
    | Shadowed
    | SlotLost
    | PressureChanged
    | RequestShed
    | ChangeMade
)
Listener = Callable[[Any], object]  # takes an Event; a policy's gate also sends its verdicts
