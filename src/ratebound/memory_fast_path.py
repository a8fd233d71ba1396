"""The fast path of a decision from memory: no storage outside the process, nothing to wait for, nothing to check."""

from time import perf_counter
from typing import Final

from ratebound.decision import Decision, Plan
from ratebound.events import Listener
from ratebound.numbers import MAX_COUNT
from ratebound.storage.memory_states import States
from ratebound.switch import switch
from ratebound.telling import decided, tell

_now: Final = perf_counter  # a Final, because compiled code reads it without looking up its name


class MemoryFastPath:
    """The states that a decider may spend from directly, and its listeners.

    `states` is None while the decider is closed, and if its storage is not memory or has methods of its own.
    """

    __slots__ = ("listeners", "states")

    def __init__(self) -> None:
        self.states: States | None = None
        self.listeners: tuple[Listener, ...] = ()

    def hit(self, plan: Plan, key: object, cost: object) -> Decision | None:
        """Spend `cost` and tell the listeners. Return None, having done nothing, if it takes the general path."""
        states = self.states
        if states is None or type(key) is not str or type(cost) is not int or not switch.limiting:
            return None
        if not 1 <= cost <= MAX_COUNT or not plan.plain:
            return None
        listeners = self.listeners
        if not listeners:
            return states.hit(plan, key, cost)
        begin = _now()
        decision = states.hit(plan, key, cost)
        tell(listeners, decided(decision, _now() - begin))
        return decision
