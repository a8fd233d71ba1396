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
