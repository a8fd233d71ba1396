"""The way by which memory decides at once: no storage outside the process, and nothing to wait for."""

from ratebound.events import Listener
from ratebound.storage.memory_states import States


class MemoryFastPath:
    """The states that may be spent from directly, and the listeners to be told. A decider keeps it up to date.

    `states` is None while the decider is closed, and if its storage is not memory or has methods of its own.
    """

    __slots__ = ("listeners", "states")

    def __init__(self) -> None:
        self.states: States | None = None
        self.listeners: tuple[Listener, ...] = ()
