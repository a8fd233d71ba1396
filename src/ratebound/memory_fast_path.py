"""The way by which memory decides at once: no storage outside the process, and nothing to wait for."""

from ratebound.events import Listener
from ratebound.storage.memory_states import States


class MemoryFastPath:
    """The states that may be spent from directly, and the listeners to be told. A decider keeps it up to date.

    `states` is None while the decider is closed, and if its storage is not memory or has methods of its own.
    `unblocked` are the documents of these states in which operators block nobody: a gate looks at other ones first.
    """

    __slots__ = ("listeners", "states", "unblocked")

    def __init__(self) -> None:
        self.states: States | None = None
        self.listeners: tuple[Listener, ...] = ()
        self.unblocked: dict[str, tuple[int, bytes]] | None = None
