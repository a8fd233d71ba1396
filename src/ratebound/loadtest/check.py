"""The result of one check of a load test."""

from typing import NamedTuple

PASS, FAIL, UNKNOWN = "PASS", "FAIL", "UNKNOWN"


class LoadCheck(NamedTuple):
    """A question about the server, its answer and why. `examples` are requests that show it, in words."""

    name: str
    outcome: str  # PASS, FAIL or UNKNOWN
    why: str
    examples: tuple[str, ...] = ()
