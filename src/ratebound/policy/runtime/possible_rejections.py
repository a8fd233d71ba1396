"""The rejections that requests of a route can get, as far as the rules tell before there is a request.

For documents about an application, and to find out whether pages can be spared. Rules are read as they are written:
what operators switch, block and override while everything runs is not looked at.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ratebound.policy.match.conditions import Match
from ratebound.policy.match.coverage import covers, may_match, may_match_below, names_path
from ratebound.policy.match.path import Pattern
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import Rule

ANY_PATH = Pattern("/**")


class PossibleRejections(NamedTuple):
    """The rejections of requests of one route: those that exceed a limit, and those that cannot be decided."""

    exceeds: bool
    unavailable: bool


def possible_rejections(
    policy: Policy, method: str, paths: Sequence[str], *, late: bool = True, more: Iterable[Rule] = ()
) -> PossibleRejections:
    """Return the rejections of requests of a method, on a route that is known by these paths, such as `/users/{id}`.

    `late` is False for an endpoint that only early rules apply to. `more` are rules that always apply to it.
    """
    patterns = [_pattern(path) for path in paths]
    asked = Match(paths=[one.text for one in patterns], methods=[method])
    exceeds, unavailable = False, policy.concurrent is not None
    if policy.switch == "on" and not any(covers(match, asked) for match in policy.exempt):
        for rule in [*more, *(_rules_that_may_apply(policy, method, patterns, asked, late))]:
            if _can_deny(rule):
                exceeds = True
                unavailable = unavailable or policy.pressure is not None or (rule.failure or policy.failure) == "closed"
    return PossibleRejections(exceeds, unavailable)


def can_be_spared(policy: Policy, path: str) -> bool:
    """Return True if no rule is meant for this path itself, and none may refuse requests for it whatever was spent.

    The prefix of a request is not known here, so a rule for the path below any prefix counts.
    """
    pattern = _pattern(path)
    denies = any(override.limits == "deny" for override in policy.overrides)
    return not denies and not any(
        names_path(rule.match, pattern) or (_refuses(rule) and may_match_below(rule.match, pattern))
        for rule in policy.rules
        if rule.stage == "late"
    )


def _rules_that_may_apply(
    policy: Policy, method: str, patterns: Sequence[Pattern], asked: Match, late: bool
) -> list[Rule]:
    found: list[Rule] = []
    is_taken = False  # by a rule that is certain to match, so that no default rule applies
    for rule in policy.rules:
        if (rule.stage == "late" and not late) or not may_match(rule.match, method, patterns):
            continue
        if rule.default and is_taken:
            continue
        found.append(rule)
        if covers(rule.match, asked):
            is_taken = is_taken or not rule.default
            if rule.final:
                break
    return found


def _can_deny(rule: Rule) -> bool:
    """Return True if the rule has a limit that a request can exceed."""
    if rule.mode != "enforce" or rule.over == "allow":
        return False
    return rule.computed is not None or any(not isinstance(plan, str) for plan in rule.plans.values())


def _refuses(rule: Rule) -> bool:
    """Return True if the rule may deny a client outright."""
    return rule.mode == "enforce" and (rule.computed is not None or "deny" in rule.plans.values())


def _pattern(path: str) -> Pattern:
    try:
        return Pattern(path)
    except ValueError:  # a router may have paths that no policy can write
        return ANY_PATH
