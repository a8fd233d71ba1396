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
    """A request was decided.

    The request is personal and lives no longer than its response, so the text and the pickle of this event leave it
    out.

    Attributes:
        decision: The decision.
        seconds: The time that it took, including the storage but not sleeping.
        request: The RequestView of a decision that a gate made, else None.
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

    Attributes:
        decision: The decision as it was.
        settled: The decision as it stands now. Its asks have the new costs, and its `overage` is the change.
    """

    decision: Decision
    settled: Decision


class Called(NamedTuple):
    """A storage outside this process was called.

    Attributes:
        node: The server, if there are several; else empty.
        seconds: The time that the call took.
        error: The failure; None if it answered.
    """

    node: str
    seconds: float
    error: StorageError | None


class Degraded(NamedTuple):
    """The storage is out of reach. From now on the failure mode decides.

    Attributes:
        node: The server, if there are several; else empty.
        reason: What happened, for people.
    """

    node: str
    reason: str


class Recovered(NamedTuple):
    """The storage decides again.

    Attributes:
        node: The server, if there are several; else empty.
        seconds: How long it was out of reach.
        written_back: The units that were granted during the outage and are now charged in the storage.
    """

    node: str
    seconds: float
    written_back: int


class Shadowed(NamedTuple):
    """The answer that a rule in shadow, or a rule's candidate limits, would have given.

    Attributes:
        rule: The name of the rule.
        candidate: True if the rule's candidate limits answered.
        allowed: True if they would have allowed the request.
    """

    rule: str
    candidate: bool
    allowed: bool


class Struck(NamedTuple):
    """A penalty counted a strike: for a denial, or for a result.

    Attributes:
        decision: The decision.
        limit: The penalty.
        ask: The place of its key among `decision.asks`, so that the text of this event shows no key.
        remaining: The strikes that are left until the next block.
    """

    decision: Decision
    limit: Limit
    ask: int
    remaining: int

    @property
    def key(self) -> str:
        """The key that was struck. It may be personal."""
        return self.decision.asks[self.ask][0]


class BlockBegan(NamedTuple):
    """A penalty blocks a key from now on. The strike that began the block is told before it.

    Attributes:
        decision: The decision.
        limit: The penalty.
        ask: The place of its key among `decision.asks`, so that the text of this event shows no key.
        seconds: The length of the block.
    """

    decision: Decision
    limit: Limit
    ask: int
    seconds: float

    @property
    def key(self) -> str:
        """The key that is blocked. It may be personal."""
        return self.decision.asks[self.ask][0]


class Warned(NamedTuple):
    """A decision, or its settlement, has taken the used part of a limit to the share `limit.warn` or above it.

    It is told once for each crossing, and denies nothing.

    Attributes:
        decision: The decision.
        limit: The limit that is nearly used up.
        ask: The place of its key among `decision.asks`, so that the text of this event shows no key.
        remaining: The units that are left.
    """

    decision: Decision
    limit: Limit
    ask: int
    remaining: int

    @property
    def key(self) -> str:
        """The key whose limit is nearly used up. It may be personal."""
        return self.decision.asks[self.ask][0]


class SlotLost(NamedTuple):
    """The storage had lost a slot while its holder was at work: a reset, a failover, or a renewal that came too late.

    It is held again, even above the count.

    Attributes:
        decision: The decision that took it.
    """

    decision: Decision


class PressureChanged(NamedTuple):
    """Limits are lowered further, or raised again, because the load of this process has changed.

    It is also told when a gate begins to watch the load. It comes from a thread of its own.

    Attributes:
        factors: A number from 0 to 1 for each priority of rules; 1 is as configured.
    """

    factors: Mapping[str, float]


class RequestShed(NamedTuple):
    """A request was turned away before any decision, because too many were in the process: see `concurrent: auto`.

    Attributes:
        in_flight: How many may be there at the same time now.
    """

    in_flight: int


class ChangeMade(NamedTuple):
    """An operator has changed something through this gate: a block, an override, a switch, or something that `record`
    has noted.

    Attributes:
        change: The entry of the audit log. It names a client or a rule, which the text of this event does not.
    """

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
