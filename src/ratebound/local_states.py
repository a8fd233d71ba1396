"""Decisions of a process without its storage: slices, and denials that it repeats. Compiled where that can be done."""

from collections.abc import Sequence
from typing import Final

from ratebound.clock import Clock
from ratebound.decision import Decision, Plan
from ratebound.deny_cache import DenyCache, can_be_cached
from ratebound.limit import Group, Limit
from ratebound.outcome import Row
from ratebound.slices import Slices, can_be_sliced, is_from_slice
from ratebound.storage.quick_states import QuickStates

# In `local` of a plan: all limits have slices; all have a deny cache.
ALL_SLICED: Final = 1
ALL_CACHED: Final = 2


class LocalStates(QuickStates):
    """The slices and the cached denials of one process. Limits without either take the general path."""

    __slots__ = ("denials", "slices")

    def __init__(self, clock: Clock | None = None) -> None:
        self.slices = Slices(clock)
        self.denials = DenyCache(clock)

    def hit(self, plan: Plan, key: str, cost: int) -> Decision | None:
        """Decide for one key, if that can be done here."""
        local = plan.local
        if local < 0:
            local = plan.local = _local_of(plan.limits)
        if local & ALL_SLICED:
            decision = self.slices.hit(plan, key, cost)
            if decision is not None:
                return decision
        return self.denials.hit(plan, key, cost) if local & ALL_CACHED else None

    def spend(self, group: Group, repeats_denials: bool) -> Sequence[Row] | None:
        """Decide a group, if that can be done here. Without `repeats_denials` only slices decide."""
        if can_be_sliced(group):
            rows = self.slices.spend(group)
            if rows is not None:
                return rows
        return self.denials.spend(group) if repeats_denials and can_be_cached(group) else None

    def peeked(self, group: Group, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows of a peek, as the storage gave them, with the tokens that are here."""
        return self.slices.peeked(group, rows)

    def concerns_spend(self, groups: Sequence[Group]) -> bool:
        """Return True if a limit of these groups has slices or a deny cache."""
        for group in groups:
            for ask in group:
                for limit in ask[1]:
                    if limit.slice is not None or limit.deny_cache:
                        return True
        return False

    def concerns_force(self, groups: Sequence[Group]) -> bool:
        """Return True if a decision from slices is corrected, or denials may be wrong after it."""
        for group in groups:
            for ask in group:
                if is_from_slice(ask):
                    return True
                for limit in ask[1]:
                    if limit.deny_cache:
                        return True
        return False

    def drop(self, group: Group) -> None:
        """Forget the slices and the denials of a group's keys."""
        self.slices.drop(group)
        self.denials.changed(group)

    def clear(self) -> None:
        """Forget everything."""
        self.slices.clear()
        self.denials.clear()

    def renew(self) -> None:
        """Forget everything, and replace the locks, in a forked child."""
        self.slices.renew()
        self.denials.renew()


def _local_of(limits: tuple[Limit, ...]) -> int:
    """Return what the limits of a plan have in common."""
    local = ALL_SLICED | ALL_CACHED
    for limit in limits:
        if limit.slice is None:
            local &= ~ALL_SLICED
        if not limit.deny_cache:
            local &= ~ALL_CACHED
    return local
