"""The extras of an ask: what some limits must be told besides the cost. See `limit.Extra`."""

from random import SystemRandom

from ratebound.limit import NO_STRIKE, NOT_GIVEN, Extra, Limit
from ratebound.values import Values, check_names, digest_of, value_of

_random = SystemRandom()  # the system's own: forked processes must not choose the same ids
ID_BITS = 53  # a double, and so Lua, holds it exactly


def extras_of(
    key: str, limits: tuple[Limit, ...], values: Values | None = None, *, strikes: bool = True
) -> list[Extra] | None:
    """Return the extras of an ask for these limits: a new id for each slot, and digests of values. None if none needs
    any. Without `strikes`, a denial is not counted by a penalty.

    Raises InvalidValue if a value is missing, or is one that no limit counts.
    """
    if values is not None:
        check_names(limits, values)
    for limit in limits:
        if not limit.numbers.plain:
            return [_extra(key, each, values, strikes) for each in limits]
    return None


def _extra(key: str, limit: Limit, values: Values | None, strikes: bool) -> Extra:
    if limit.has_slots:
        return (_random.getrandbits(ID_BITS), 0, 0, 0)
    if limit.is_distinct:
        return (digest_of(key, value_of(limit, values)), 0, 0, 0)
    return NO_STRIKE if limit.is_penalty and not strikes else NOT_GIVEN


def extras_of_usage(limits: tuple[Limit, ...]) -> list[Extra] | None:
    """Return the extras of an ask whose peek shows the usage of a key: no id and no value."""
    return None if all(limit.numbers.plain for limit in limits) else [NOT_GIVEN] * len(limits)
