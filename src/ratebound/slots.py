"""Slots of concurrent requests: who holds them, and what to force in a storage to hold or release them."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from ratebound.clock import utc_datetime
from ratebound.limit import Ask, Group, Limit


class Holder(NamedTuple):
    """One slot that is held.

    Attributes:
        limit: The concurrent limit.
        id: The number of the slot.
        expires_at: The instant, by the storage's clock, at which it is free unless it is renewed until then.
    """

    limit: Limit
    id: int
    expires_at: datetime


def holders_from(limit: Limit, slots: Iterable[tuple[int, int]]) -> list[Holder]:
    """Return the holders of the slots that a storage lists: (id, expiry in microseconds)."""
    return [Holder(limit, slot, utc_datetime(expiry)) for slot, expiry in slots]


def slots_of(group: Group, sign: int) -> list[Ask]:
    """Return what to force for the slots of a group: hold them if `sign` is 1, release them if it is -1."""
    found: list[Ask] = []
    for key, limits, _, _, extras in group:
        if extras is not None:
            slots = [(limit, extra) for limit, extra in zip(limits, extras, strict=True) if limit.has_slots]
            found += [(key, (limit,), sign, None, [extra]) for limit, extra in slots]
    return found
