"""States from which one key can be spent at once. Memory has them, shared memory and slices as well."""

from ratebound.compiling import mypyc_attr
from ratebound.decision import Decision, Plan


@mypyc_attr(allow_interpreted_subclasses=True)
class QuickStates:
    """The base of states that answer `hit` at once, or not at all."""

    __slots__ = ()

    def hit(self, plan: Plan, key: str, cost: int) -> Decision | None:
        """Spend `cost` for one key. Return None, having changed nothing, if that takes the general path."""
        raise NotImplementedError


class Trouble:
    """The sign that a guarded storage is in trouble, or may be: then its guard decides, and not its quick states."""

    __slots__ = ("is_there",)

    def __init__(self) -> None:
        self.is_there = False


class GuardedQuickStates(QuickStates):
    """The quick states of a guarded storage, used only while it is not in trouble."""

    __slots__ = ("_states", "_trouble")

    def __init__(self, states: QuickStates, trouble: Trouble) -> None:
        self._states = states
        self._trouble = trouble

    def hit(self, plan: Plan, key: str, cost: int) -> Decision | None:
        """Spend for one key, or return None."""
        return None if self._trouble.is_there else self._states.hit(plan, key, cost)
