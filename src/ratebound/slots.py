"""Slots of concurrent requests: their ids, who holds them, and what to force in a storage to hold or release them."""

from collections.abc import Iterable
from datetime import datetime
from random import SystemRandom
from typing import NamedTuple

from ratebound.clock import utc_datetime
from ratebound.limit import NOT_GIVEN, Ask, Extra, Group, Limit

_random = SystemRandom()  # the system's own: forked processes must not choose the same ids
ID_BITS = 53  # a double, and so Lua, holds it exactly


class Holder(NamedTuple):
    """One slot that is held. It is free at `expires_at`, by the storage's clock, unless it is renewed until then."""

    limit: Limit
    id: int
    expires_at: datetime


def holders_from(limit: Limit, slots: Iterable[tuple[int, int]]) -> list[Holder]:
    """Return the holders of the slots that a storage lists: (id, expiry in microseconds)."""
    return [Holder(limit, slot, utc_datetime(expiry)) for slot, expiry in slots]


def extras_of(limits: tuple[Limit, ...]) -> list[Extra] | None:
    """Return the extras of an ask for these limits, with a new id for each slot; None if none needs any."""
    for limit in limits:
        if not limit.numbers.plain:
            return [(_random.getrandbits(ID_BITS), 0, 0, 0) if each.has_slots else NOT_GIVEN for each in limits]
    return None


def slots_of(group: Group, sign: int) -> list[Ask]:
    """Return what to force for the slots of a group: hold them if `sign` is 1, release them if it is -1."""
    found: list[Ask] = []
    for key, limits, _, _, extras in group:
        if extras is not None:
            slots = [(limit, extra) for limit, extra in zip(limits, extras, strict=True) if limit.has_slots]
            found += [(key, (limit,), sign, None, [extra]) for limit, extra in slots]
    return found
