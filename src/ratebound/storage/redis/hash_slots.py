"""Groups on a Cluster: a part in one hash slot is atomic, and several parts are decided in rounds (see parts.py).

`?slot=one` keeps everything in one hash slot.
"""

from collections.abc import Sequence

from ratebound.limit import Group, Mode
from ratebound.storage import parts
from ratebound.storage.parts import Call as Call
from ratebound.storage.parts import Rounds as Rounds
from ratebound.storage.redis.keys import Keys


def decide(group: Group, mode: Mode, keys: Keys) -> Rounds:
    """Yield the calls that decide a group, by hash slot; see `parts.decide`."""
    return parts.decide(group, mode, keys.tag)


def is_one(group: Group, keys: Keys) -> bool:
    """Return True if the whole group is in one hash slot, so that one call decides it."""
    return len(group) == 1 or len({keys.tag(key) for key, *_ in group}) == 1


def chains(groups: Sequence[Group], keys: Keys) -> list[list[int]]:
    """Return positions of groups that must be answered one after the other. Different chains are independent.

    Groups that span hash slots make one chain of all.
    """
    tags = [{keys.tag(key) for key, *_ in group} for group in groups]
    if any(len(found) > 1 for found in tags):
        return [list(range(len(groups)))]
    found: dict[str, list[int]] = {}
    for i, (tag,) in enumerate(tags):
        found.setdefault(tag, []).append(i)
    return list(found.values())
