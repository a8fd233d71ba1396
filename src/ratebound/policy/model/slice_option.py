"""The `slice` of a rule: true, a share like '5%', or a mapping of `share` and `for`."""

from collections.abc import Mapping
from typing import Any

from ratebound.clock import SECOND
from ratebound.limit import UNITS, Slice
from ratebound.policy.duration_text import read_seconds
from ratebound.policy.problem import Problems, nearest, shown
from ratebound.policy.schema import KEYS
from ratebound.share import read_share


def read_slice(given: Any) -> Slice | None:
    """Return the slice of a rule; None for None and False. Raises PolicyError with every error, or ValueError."""
    if given is None or given is False or isinstance(given, Slice):
        return given or None
    if given is True:
        return Slice()
    if not isinstance(given, Mapping):
        try:
            return Slice(read_share(given))
        except ValueError:
            raise ValueError(
                f"expected true, a share like '5%', or a mapping of 'share' and 'for', not {shown(given)}"
            ) from None
    problems, found = Problems(), Slice()
    share, length = found.share, found.for_us
    for key in given:
        if key not in KEYS["slice"]:
            problems.add((str(key),), f"unknown key {shown(key)}: {nearest(key, KEYS['slice'])}")
    with problems.at("share"):
        share = read_share(given.get("share", share))
    with problems.at("for"):
        length = _length(given["for"]) if "for" in given else length
    problems.check()
    return Slice(share, length)


def _length(given: Any) -> int:
    length = round(read_seconds(given) * SECOND)
    if not UNITS["millisecond"] <= length <= UNITS["hour"]:
        raise ValueError(f"expected a time from 1 millisecond to 1 hour, like '1 second', not {shown(given)}")
    return length
