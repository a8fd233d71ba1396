"""Durations in a policy: seconds, a timedelta, or text like '60 seconds'."""

import math
import re
from datetime import timedelta
from typing import Any

from ratebound.clock import SECOND
from ratebound.notation import UNIT_NAMES
from ratebound.policy.problem import shown

DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def read_seconds(given: Any) -> float:
    """Return a duration in seconds. Raises ValueError if it cannot be read."""
    if isinstance(given, str):
        found = DURATION.fullmatch(given)
        length = None if found is None else UNIT_NAMES.get(found[2].lower())
        if found is None or length is None:
            raise ValueError(f"cannot read {shown(given)}: expected seconds, a timedelta, or text like '60 seconds'")
        given = float(found[1]) * length / SECOND
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ValueError(f"expected seconds, a timedelta, or text like '60 seconds', not {shown(given)}")
    return float(given)
