"""Comparison of matches: does one match every request of another, and can it match any request of a route?"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from ratebound.http.prefix import parse_network
from ratebound.policy.match.conditions import Match, host_matches
from ratebound.policy.match.path import Mixed, Pattern, Step

T = TypeVar("T")


def covers(wide: Match, narrow: Match) -> bool:
    """Return True if `wide` is certain to match every request that `narrow` matches. False may mean "not known"."""
    return (
        _all_covered(wide.patterns, narrow.patterns, _path_covers)
        and (not wide.methods or (bool(narrow.methods) and set(narrow.methods) <= set(wide.methods)))
        and _all_covered(wide.hosts, narrow.hosts, _host_covers)
        and set(wide.header_matches) <= set(narrow.header_matches)
        and (not wide.tiers or (bool(narrow.tiers) and set(narrow.tiers) <= set(wide.tiers)))
        and _all_covered(wide.addresses, narrow.addresses, _range_covers)
    )


def may_match(match: Match, method: str, paths: Sequence[Pattern]) -> bool:
    """Return True if a request of this method, with a path that one of the patterns matches, may meet the conditions.
    Conditions on hosts, headers, tiers and addresses may hold."""
    if match.methods and method not in match.methods:
        return False
    return not match.patterns or any(_paths_meet(one, path) for one in match.patterns for path in paths)


def _paths_meet(one: Pattern, other: Pattern) -> bool:
    """Return True if some path may match both patterns."""
    lengths = len(one.segments), len(other.segments)
    if (one.whole and lengths[1] > lengths[0]) or (other.whole and lengths[0] > lengths[1]):
        return False
    return all(_steps_meet(step, beside) for step, beside in zip(one.segments, other.segments, strict=False))


def _steps_meet(one: Step, other: Step) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    if isinstance(one, Mixed) and isinstance(other, str):
        return one.matches(other)
    return not (isinstance(one, str) and isinstance(other, Mixed)) or _steps_meet(other, one)


def names_path(match: Match, path: Pattern) -> bool:
    """Return True if the conditions name this path, or the same path below a prefix, without parameters. `/docs/**`
    names `/docs`, too."""
    return any(
        (one.whole or bool(path.segments)) and one.segments[-len(path.segments) :] == path.segments
        for one in match.patterns
    )


def may_match_below(match: Match, path: Pattern) -> bool:
    """Return True if a GET of this path, below whatever prefix, may meet the conditions."""
    if match.methods and "GET" not in match.methods:
        return False
    wanted = path.segments
    return not match.patterns or any(
        not one.whole
        or (
            len(one.segments) >= len(wanted)
            and all(map(_steps_meet, one.segments[len(one.segments) - len(wanted) :], wanted))
        )
        for one in match.patterns
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
