"""Warnings about slices and deny caches that are of no use, or that cost more than they seem to."""

from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction

from ratebound.limit import Limit
from ratebound.policy.lint.credentials import plans_of
from ratebound.policy.lint.known_mistakes import PolicyAdvice, advice
from ratebound.policy.match.coverage import covers, first_literal
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import Rule
from ratebound.policy.problem import Place

# By key of a rule: the names of two warnings, and what the rule has.
KEYS = {
    "slice": ("slice-in-memory", "slice-beside-unsliced-rule", "a slice"),
    "deny_cache": ("deny-cache-in-memory", "deny-cache-beside-uncached-rule", "a deny cache"),
}

IN_MEMORY = ("memory:", "shm:")  # storages that are asked without a trip


def check_local_decisions(policy: Policy) -> Iterator[PolicyAdvice]:
    """Yield the warnings about rules that are to be decided without the storage."""
    for key, (in_memory, beside, what) in KEYS.items():
        local = [(place, rule) for place, rule in enumerate(policy.rules) if _has(rule, key)]
        if local and policy.storage.startswith(IN_MEMORY):
            names = ", ".join(repr(rule.name) for _, rule in local)
            where = policy.storage.partition(":")[0]
            wrong = f"the storage is {where}://, and these rules have {what}: {names}"
            yield advice(in_memory, ("storage",), wrong)
        for place, rule, other in _beside_others(policy, key, local):
            wrong = f"rule {rule.name!r} has {what}; rule {other.name!r}, which applies to the same requests, has none"
            yield advice(beside, ("rules", place, key), wrong)
    for place, rule in enumerate(policy.rules):
        yield from _slice_shapes(place, rule)


def _has(rule: Rule, key: str) -> bool:
    return any(getattr(limit, key) for _, plan in plans_of(rule) if isinstance(plan, tuple) for limit in plan)


def _slice_shapes(place: int, rule: Rule) -> Iterator[PolicyAdvice]:
    for tier, plan in plans_of(rule):
        at: Place = ("rules", place, "limits", *([tier] if len(rule.plans) > 1 else []))
        for limit in plan if isinstance(plan, tuple) else ():
            if 0 < (most := most_taken(limit)) < 2:
                share = f"{limit.slice.share * 100:g}%" if limit.slice is not None else ""
                wrong = f"{share} of '{limit.text}' of rule {rule.name!r} are {float(most):g} units at most"
                if limit.burst > 1:
                    wrong += f", and 2 units are {-(-200 // limit.burst)}%"
                yield advice("slice-too-small", at, wrong)
                break
    if rule.charge is not None and _has(rule, "slice"):
        wrong = f"rule {rule.name!r} has a slice, and charges by result"
        yield advice("slice-with-charge", ("rules", place, "charge"), wrong)


def most_taken(limit: Limit) -> Fraction:
    """Return the units that a process takes from an untouched limit at most; 0 if the limit has no slice."""
    return Fraction(0) if limit.slice is None else limit.burst * Fraction(str(limit.slice.share))


def _beside_others(policy: Policy, key: str, local: list[tuple[int, Rule]]) -> Iterator[tuple[int, Rule, Rule]]:
    """Yield each of the local rules, with its place, whose requests all go to the storage because of another rule."""
    others = _RulesThatGoOut(policy, key) if local else None
    for place, rule in local:
        other = others and others.beside(place, rule)
        if other:
            yield place, rule, other


class _RulesThatGoOut:
    """An index of the rules that ask the storage for every client. It is keyed by the first step of the path, so that
    many rules do not take quadratic time."""

    def __init__(self, policy: Policy, key: str) -> None:
        self._by_begin: dict[tuple[str, str | None], list[tuple[int, Rule]]] = {}
        self._finals: dict[tuple[str, bool], list[int]] = {}
        for place, rule in enumerate(policy.rules):
            if rule.final:
                self._finals.setdefault((rule.stage, rule.default), []).append(place)
            if rule.computed is None and all(
                isinstance(plan, tuple) and not all(getattr(limit, key) for limit in plan)
                for plan in rule.plans.values()
            ):
                for begin in {first_literal(pattern) for pattern in rule.match.patterns} or {None}:
                    self._by_begin.setdefault((rule.stage, begin), []).append((place, rule))

    def beside(self, place: int, rule: Rule) -> Rule | None:
        """Return a rule that applies to every request of this one; None if there is none."""
        begin = first_literal(rule.match.patterns[0]) if rule.match.patterns else None
        for one in dict.fromkeys((None, begin)):
            for other_place, other in self._by_begin.get((rule.stage, one), ()):
                is_asked = other is not rule and self._is_asked(place, rule, other_place, other)
                if is_asked and covers(other.match, rule.match):
                    return other
        return None

    def _is_asked(self, place: int, rule: Rule, other_place: int, other: Rule) -> bool:
        """Return True if no final rule, and nothing about defaults, keeps `other` from a request of `rule`."""
        if other.default != rule.default:
            return other.mode == "shadow" and not other.default  # a shadow keeps no defaults away
        finals = self._finals.get((rule.stage, rule.default), [])
        return other_place < place or bisect_left(finals, place) == bisect_left(finals, other_place)
