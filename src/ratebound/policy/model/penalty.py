"""Entries of a policy's `penalties`: after how many strikes a client is blocked, and for how long."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ratebound.clock import SECOND
from ratebound.errors import InvalidLimit
from ratebound.limit import FORGET, MAX_BLOCK, PENALTY, UNITS, Limit
from ratebound.notation import UNIT_NAMES, parse_limits
from ratebound.policy.duration_text import read_seconds
from ratebound.policy.problem import Problems, nearest, shown
from ratebound.policy.schema import KEYS

AFTER = re.compile(r"\s*([0-9]{1,9})\s+strikes?\s*(?:/|\bper\b)\s*(?:([0-9]{1,9})\s*)?([A-Za-z]+)\s*")

SEVERAL = re.compile(r"\s*(?:,|\bthen\b)\s*")  # between times that people write as text


@dataclass(frozen=True, slots=True)
class Penalty:
    """A penalty: clients with too many strikes are blocked, each time for longer.

    Times are text like '5 minutes', seconds, or a timedelta.

    Args:
        after: The strikes after which a client is blocked, like `"3 strikes/hour"`.
        block: The lengths of the blocks, the first one first. The last one repeats.
        forget: The time until the list starts again; it runs from the last block, and a strike restarts it.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.

    Examples:
        >>> from ratebound.policy import Penalty, Policy, Rule
        >>> penalty = Penalty("3 strikes/hour", block=["5 minutes", "1 hour", "1 day"], forget="7 days")
        >>> policy = Policy(rules=[Rule("login", "5/minute", penalty="brute")], penalties={"brute": penalty})
    """

    after: str
    block: Any
    forget: Any = FORGET / SECOND

    _numbers: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        problems = Problems()
        count, period, blocks, forget = 1, UNITS["hour"], [UNITS["minute"]], FORGET
        with problems.at("after"):
            count, period = _strikes(self.after)
        listed = list(self.block) if isinstance(self.block, list | tuple) else [self.block]
        with problems.at("block"):
            if not listed:
                raise ValueError("expected at least one time, for example [5 minutes, 1 hour, 1 day]")
            blocks = []
        for place, one in enumerate(listed):
            with problems.at("block", *([place] if len(listed) > 1 else [])):
                blocks.append(_length(one))
        with problems.at("forget"):
            forget = _length(self.forget)
        problems.check()
        numbers = {"count": count, "period_us": period, "blocks_us": tuple(blocks), "forget_us": forget}
        object.__setattr__(self, "_numbers", numbers)
        with problems.at():
            self.limit("penalty")
        problems.check()

    def limit(self, name: str) -> Limit:
        """Return the limit of an entry of that name.

        Args:
            name: The name of the entry.
        """
        return Limit(algorithm=PENALTY, name=name, **self._numbers)


def _strikes(given: object) -> tuple[int, int]:
    found = AFTER.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise ValueError(f"cannot read {shown(given)}: expected for example '3 strikes/hour'")
    unit = found[3].lower()
    if unit not in UNIT_NAMES:
        raise ValueError(f"cannot read {shown(given)}: unknown unit {unit!r}: {nearest(unit, UNITS)}")
    return int(found[1]), int(found[2] or 1) * UNIT_NAMES[unit]


def _length(given: Any) -> int:
    times = SEVERAL.split(given.strip()) if isinstance(given, str) else []
    if len(times) > 1:
        raise ValueError(f"cannot read {shown(given)}: write a list of times: [{', '.join(times)[:80]}]")
    length = round(read_seconds(given) * SECOND)
    if not UNITS["second"] <= length <= MAX_BLOCK:
        raise ValueError(f"expected a time from 1 second to 1 year, like '5 minutes', not {shown(given)}")
    return length


def read_penalty(name: str, given: Any) -> Limit:
    """Return the limit of an entry: a Penalty, a mapping with its keys, or text in the notation of limits. Raises
    PolicyError or ValueError."""
    if isinstance(given, Penalty):
        return given.limit(name)
    if isinstance(given, str):
        limits = parse_limits(given)
        if len(limits) != 1 or not limits[0].is_penalty:
            raise InvalidLimit(f"{shown(given)} is no penalty: write '3 strikes/hour block 5 minutes then 1 hour'")
        found = limits[0]
        return Limit(
            found.count,
            found.period_us,
            algorithm=PENALTY,
            name=name,
            blocks_us=found.blocks_us,
            forget_us=found.forget_us,
        )
    if not isinstance(given, Mapping):
        raise ValueError(f"expected a mapping of 'after', 'block' and 'forget', or a Penalty, not {shown(given)}")
    problems = Problems()
    for key in given:
        if key not in KEYS["penalty"]:
            problems.add((str(key),), f"unknown key {shown(key)}: {nearest(key, KEYS['penalty'])}")
    for key, example in (("after", "'3 strikes/hour'"), ("block", "[5 minutes, 1 hour, 1 day]")):
        if key not in given:
            problems.add((), f"a penalty needs '{key}', for example {example}")
    known = {str(key): one for key, one in given.items() if key in KEYS["penalty"]}
    limit: Limit | None = None
    with problems.at():
        limit = Penalty(**{"after": "1 strike/hour", "block": "1 minute", **known}).limit(name)
    problems.check()
    assert limit is not None
    return limit
