"""A required value of one build, the measured one, and the verdict."""

from typing import NamedTuple

from benchmarks.measure import Spread


class Verdict(NamedTuple):
    """A required value of one build, the measured one, and whether it is met."""

    build: str
    what: str
    threshold: str
    found: Spread
    passed: bool


def at_least(build: str, what: str, least: float, found: Spread) -> Verdict:
    """Return the verdict on a value whose median has to reach `least`."""
    return Verdict(build, what, f"at least {least:g}", found, found.median >= least)


def at_most(build: str, what: str, most: float, found: Spread) -> Verdict:
    """Return the verdict on a value whose median must not exceed `most`."""
    return Verdict(build, what, f"at most {most:g}", found, found.median <= most)
