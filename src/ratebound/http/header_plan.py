"""The prepared text of rate limit headers for one combination of limits, and the headers of the usual response."""

from collections.abc import Sequence

from ratebound.clock import SECOND
from ratebound.decision import Decision, OneLimitDecision
from ratebound.http.shown import Shown
from ratebound.http.structured import write_integer
from ratebound.kernels import grows_after
from ratebound.limit import Limit
from ratebound.numbers import Numbers
from ratebound.outcome import DegradedRows

Pairs = list[tuple[str, str]]


def remaining_text(quoted: str, left: int, after: int) -> str:
    """Return the remaining units of a limit in the syntax of draft-11; `after` is the time until there are more."""
    return f"{quoted};r={left};t={-(-after // SECOND)}" if after else f"{quoted};r={left}"


class HeaderPlan:
    """The prepared text for one combination of limits. `is_usual` means that `usual` can be called."""

    __slots__ = ("_numbers", "_quoted", "fixed", "held", "is_usual", "policies", "shown", "unique")

    def __init__(self, held: Sequence[Sequence[Limit]], shown: list[Shown], styles: Sequence[str]) -> None:
        self.held = held  # plans are found by identity: keeping the tuples keeps their identities unique
        self.shown = shown
        self._numbers: Numbers = shown[0].numbers
        self._quoted: str = shown[0].quoted
        advertised = [quota for quota in shown if quota.is_advertised]
        named = {quota.quoted: quota for quota in advertised}
        self.unique = len({quota.quoted for quota in shown}) == len(shown)
        self.is_usual = len(shown) == 1 and shown[0].is_rate
        # The old drafts identify policies by their quota: keep the strictest of equal ones. A policy needs a window.
        windows: dict[int, int] = {}
        for quota in advertised:
            if quota.window is not None:
                windows[quota.quota] = max(quota.window, windows.get(quota.quota, 0))
        self.policies = ", ".join([f"{write_integer(quota)};w={window}" for quota, window in windows.items()])
        self.fixed: Pairs = []
        if "draft-11" in styles and named:
            self.fixed.append(("RateLimit-Policy", ", ".join([quota.policy for quota in named.values()])))
        elif self.policies and ("draft-07" in styles or "draft-06" in styles):
            self.fixed.append(("RateLimit-Policy", self.policies))

    def usual(self, left: int, reset: int) -> Pairs:
        """Return the fields of draft-11 for its only limit: the remaining units, and the time until there are more.

        `reset` is the time until all are back, in microseconds.
        """
        return [*self.fixed, ("RateLimit", remaining_text(self._quoted, left, grows_after(self._numbers, left, reset)))]


HeaderPlans = dict[int | tuple[int, ...], HeaderPlan]  # by the identities of the tuples of limits


def usual_pairs(plans: HeaderPlans, decision: Decision) -> Pairs | None:
    """Return the fields of draft-11 for an allowed decision of one rate. None if it is not such a decision, or if its
    plan is not prepared. `plans` are those that are usual."""
    if isinstance(decision, OneLimitDecision):
        row = decision._answer
        limits = decision._plan.limits
    else:
        rows = decision.rows
        if len(rows) != 1 or isinstance(rows, DegradedRows):
            return None
        row = rows[0]
        limits = decision.asks[0][1]
    plan = plans.get(id(limits))
    return None if plan is None else plan.usual(row[1], row[3])
