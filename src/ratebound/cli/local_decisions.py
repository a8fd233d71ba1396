"""Descriptions of what slices and deny caches do to a rule, in words and in the numbers of its limits."""

from collections.abc import Iterable, Iterator

from ratebound.cli.words import duration, number, period_name
from ratebound.limit import UNITS, Limit
from ratebound.policy.lint.local_decisions import most_taken

DENIALS = (
    "a process repeats a denial for up to 1 s without asking the storage; a client that could pass earlier, because it"
    " was reset or its limit was raised, waits for no longer than that"
)


def slice_effects(limits: Iterable[Limit]) -> Iterator[str]:
    """Yield what its slices do to each limit that has some: what a process takes, and how far that is from exact."""
    for limit in limits:
        if limit.slice is not None:
            taken = max(int(most_taken(limit)), 1)
            lasts = limit.slice.for_us
            yield (
                f"a process takes up to {limit.slice.share * 100:g}% of what remains of '{limit.text}' at once, at most"
                f" {number(taken)}, and uses it within {duration(lasts)}; {_bound(limit, lasts)}"
            )


def _bound(limit: Limit, for_us: int) -> str:
    if limit.calendar is not None or limit.algorithm == "fixed-window":
        return f"it ends with its window, so no window has more than {number(limit.count)}"
    period = period_name(limit.period_us)
    length = f"1 {period}" if period in UNITS else period
    return f"in any {period} no more passes than '{limit.text}' gives in {length} and {duration(for_us)}"


def has_deny_cache(limits: Iterable[Limit]) -> bool:
    """Return True if one of the limits has a deny cache."""
    return any(limit.deny_cache for limit in limits)
