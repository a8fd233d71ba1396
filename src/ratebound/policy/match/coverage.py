"""Comparison of matches: does one match every request of another? True is certain; False may mean "not known"."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from ratebound.http.prefix import parse_network
from ratebound.policy.match.conditions import Match, host_matches
from ratebound.policy.match.path import Mixed, Pattern, Step

T = TypeVar("T")


def covers(wide: Match, narrow: Match) -> bool:
    """Return True if `wide` is certain to match every request that `narrow` matches."""
    return (
        _all_covered(wide.patterns, narrow.patterns, _path_covers)
        and (not wide.methods or (bool(narrow.methods) and set(narrow.methods) <= set(wide.methods)))
        and _all_covered(wide.hosts, narrow.hosts, _host_covers)
        and set(wide.header_matches) <= set(narrow.header_matches)
        and (not wide.tiers or (bool(narrow.tiers) and set(narrow.tiers) <= set(wide.tiers)))
        and _all_covered(wide.addresses, narrow.addresses, _range_covers)
    )


def _all_covered(wide: Sequence[T], narrow: Sequence[T], covered: Callable[[T, T], bool]) -> bool:
    """Return True if each of `narrow` is covered by one of `wide`. An empty sequence means everything."""
    return not wide or (bool(narrow) and all(any(covered(one, other) for one in wide) for other in narrow))


def _path_covers(wide: Pattern, narrow: Pattern) -> bool:
    if wide.whole and (not narrow.whole or len(wide.segments) != len(narrow.segments)):
        return False
    if len(wide.segments) > len(narrow.segments):
        return False
    return all(_step_covers(one, other) for one, other in zip(wide.segments, narrow.segments, strict=False))


def _step_covers(wide: Step, narrow: Step) -> bool:
    if wide is None or wide == narrow:
        return True
    if not isinstance(wide, Mixed) or narrow is None:
        return False
    return wide.matches(narrow) if isinstance(narrow, str) else wide.pieces == narrow.pieces


def _host_covers(wide: str, narrow: str) -> bool:
    return wide == narrow or (wide.startswith("*.") and host_matches(wide, narrow.removeprefix("*")))


def _range_covers(wide: str, narrow: str) -> bool:
    one, other = parse_network(wide), parse_network(narrow)
    return one.version == other.version and other.subnet_of(one)  # type: ignore[arg-type]


def first_literal(pattern: Pattern) -> str | None:
    """Return the first step of a pattern if it is a literal, else None. A pattern that covers this one has the same, or
    None."""
    step = pattern.segments[0] if pattern.segments else None
    return step if isinstance(step, str) else None
