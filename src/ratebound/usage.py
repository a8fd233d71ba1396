"""Usage of limits: what a key has used of each, and when it is as if untouched. Also what to force to grant more."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from ratebound.clock import utc_datetime
from ratebound.errors import InvalidCost, InvalidLimit
from ratebound.extras import extras_of_usage
from ratebound.limit import GRANT, MAX_COUNT, Ask, Group, Limit, checked_cost, checked_key
from ratebound.outcome import DegradedRows, Outcome, Row


class Usage(NamedTuple):
    """The usage of one limit by one key.

    Attributes:
        name: The name of the limit.
        limit: The limit.
        quota: The count plus the units that were `granted` in this window; for buckets it is the burst.
        used: What was used; it may exceed `quota` if the limit is metered. For slots the number that is held, for
            distinct values the number that count, for a penalty the number of strikes.
        remaining: What is left. If `degraded`, what this process may grant by its failure mode.
        resets_at: The end of the current window for a quota, else the instant at which the limit is as if untouched.
            While `blocked`, the end of the block.
        previous: What was used in the window before; None for limits that are not quotas.
        granted: The units that `grant` has added in this window.
        degraded: The reason why the storage was not asked; None if it was. Then `used` is the rest of the quota.
        rule: The name of the rule, if a policy has the limit.
        blocked: True while a penalty blocks the key.

    Examples:
        >>> from ratebound import Limiter
        >>> limiter = Limiter("100/calendar-month as month")
        >>> decision = limiter.hit("user:42", cost=30)
        >>> usage = limiter.usage("user:42")[0]
        >>> usage.name, usage.used, usage.remaining
        ('month', 30, 70)
    """

    name: str
    limit: Limit
    quota: int
    used: int
    remaining: int
    resets_at: datetime
    previous: int | None = None
    granted: int = 0
    degraded: str | None = None
    rule: str = ""
    blocked: bool = False


def usage_ask(key: str, limits: tuple[Limit, ...]) -> Ask:
    """Return the ask whose peek shows the usage of a key."""
    return key, limits, 1, None, extras_of_usage(limits)


def usages_of(group: Group, rows: Sequence[Row], rules: Sequence[str] = ()) -> list[Usage]:
    """Return the usage of each limit of a group that was peeked at. `rules` has the name of a rule for each ask."""
    degraded = rows.reason if isinstance(rows, DegradedRows) else None
    names = rules or [""] * len(group)
    limits = [(limit, rule) for (_, limits, *_), rule in zip(group, names, strict=True) for limit in limits]
    return [_usage(limit, Outcome(*row), degraded, rule) for (limit, rule), row in zip(limits, rows, strict=True)]


def _usage(limit: Limit, found: Outcome, degraded: str | None, rule: str) -> Usage:
    """Return the usage that a row of a peek shows."""
    ends = found.at_us + found.reset_after_us
    quota, used, granted = limit.burst, limit.burst - found.remaining, 0
    previous: int | None = None
    blocked = limit.is_penalty and not found.allowed
    if blocked:
        ends = found.at_us + (found.retry_after_us or 0)
    windows = limit.numbers.windows
    if windows is not None:
        ends = max(ends, windows.at(found.at_us)[1])
        if degraded is None:  # other rows have only what remains
            granted, used, previous = found.given, found.part, found.ahead_us
            quota = limit.count + granted
    return Usage(
        limit.name,
        limit,
        quota,
        max(used, 0),
        found.remaining,
        utc_datetime(ends),
        previous,
        granted,
        degraded,
        rule,
        blocked,
    )


def checked_units(units: object) -> int:
    """Return the units of a grant. Raises InvalidCost if they are not a whole number from 1 to 10**12."""
    try:
        return checked_cost(units)
    except InvalidCost:
        raise InvalidCost(f"units must be a whole number from 1 to {MAX_COUNT}, not {units!r}") from None


def quotas_among(limits: Iterable[Limit], name: str | None = None) -> Iterator[Limit]:
    """Yield the limits that units can be granted for, or only the one of this name."""
    return (limit for limit in limits if limit.is_quota and name in (None, limit.name))


def granting(key: object, limits: tuple[Limit, ...], units: object, name: str | None) -> Group:
    """Return what to force to grant units to a key, in the quotas among `limits` or only in the one of this name.

    Raises InvalidKey, InvalidCost, or InvalidLimit if there is no such quota.
    """
    found = tuple(quotas_among(limits, name))
    if not found:
        raise InvalidLimit(no_quota(limits, name))
    return (grant_ask(checked_key(key), found, checked_units(units)),)


def grant_ask(key: str, quotas: tuple[Limit, ...], units: int) -> Ask:
    """Return the ask to force to grant units."""
    return key, quotas, units, None, [GRANT] * len(quotas)


def no_quota(limits: Iterable[Limit], name: str | None) -> str:
    """Return the message for a grant that no limit can take."""
    known = [limit.name for limit in quotas_among(limits)]
    if known:
        return f"no quota is named {name!r}: expected one of {', '.join(known)}"
    return (
        "units can be granted only for a quota, and there is none: use a calendar period like '10000/calendar-month',"
        " or a metered window like '1000/day fixed-window over allow'"
    )
