"""The way by which a storage decides at once, without a call in between: nothing to wait for."""

from ratebound.events import Listener
from ratebound.storage.memory_states import States
from ratebound.storage.quick_states import QuickStates


class MemoryFastPath:
    """The states that may be spent from directly, and the listeners to be told. A decider keeps it up to date.

    `quick` is None while the decider is closed, and if its storage has no such states. `states` are the same if the
    storage is memory, and has no methods of its own; otherwise None.
    `may_pause` is True if `quick` is None, or if the general path has to ask a storage where `quick` does not answer.
    `unblocked` are the documents of these states in which operators change nothing: a gate looks at other ones first.
    """

    __slots__ = ("listeners", "may_pause", "quick", "states", "unblocked")

    def __init__(self) -> None:
        self.quick: QuickStates | None = None
        self.may_pause = True
        self.states: States | None = None
        self.listeners: tuple[Listener, ...] = ()
        self.unblocked: dict[str, tuple[int, bytes]] | None = None
