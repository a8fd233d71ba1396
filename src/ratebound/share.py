"""Shares: a part of a whole, as text like '80%' or as a number up to 1."""

import re

SHARE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*")


def read_share(given: object) -> float:
    """Return a share above 0 and at most 1. Raises ValueError if it cannot be read."""
    if isinstance(given, str):
        found = SHARE.fullmatch(given)
        share = -1.0 if found is None else float(f"{found[1]}e-2")  # the decimal number, not a quotient of doubles
    else:
        share = given if isinstance(given, int | float) and not isinstance(given, bool) else -1.0
    if not 0 < share <= 1:
        raise ValueError(f"expected a share like '80%', or a number above 0 and at most 1 like 0.8, not {given!r}")
    return float(share)
