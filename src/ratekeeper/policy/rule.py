"""A rule: whom it meets, by what it counts them, and what it allows them."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from ratekeeper.errors import InvalidLimit
from ratekeeper.limit import Limit, checked_cost, limit_set
from ratekeeper.notation import parse_limits
from ratekeeper.policy.match import Match
from ratekeeper.policy.problem import Problems, chosen, shown
from ratekeeper.policy.request import RequestView

Plan = tuple[Limit, ...] | Literal["deny", "unlimited"]
Cost = int | Callable[[RequestView], Any]

RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,39}")
FAILURES = ("", "local", "open", "closed", "raise")
DEFAULT = "default"  # of limits by tier: for clients of no other tier that is named there


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """Limits that a function finds for each request; async for an AsyncGate. What it returns is as in a rule: text,
    limits, 'deny' or 'unlimited'. `otherwise` holds when it returns None or fails."""

    function: Callable[[RequestView], Any]
    otherwise: Any

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"expected a function, not {shown(self.function)}")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """`limits` are text, limits, 'deny', 'unlimited', any of these by tier, or Computed; `by` says who shares a quota
    (default: the policy's). `candidate` limits and rules in shadow are evaluated and reported and never refuse.

    `default` rules apply when no other matched, a `final` one ends the search, `early` ones come before authentication.
    """

    name: str
    limits: Any
    match: Match = field(default_factory=Match)
    by: Any = None
    cost: Cost = 1
    mode: str = "enforce"
    candidate: Any = None
    failure: str = ""
    stage: str = "late"
    default: bool = False
    final: bool = False
    message: str = ""
    documentation: str = ""

    plans: Mapping[str, Plan] = field(init=False, repr=False)  # by tier; DEFAULT for all others
    computed: Computed | None = field(init=False, repr=False)
    candidates: Mapping[str, Plan] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        problems, put = Problems(), object.__setattr__
        if not isinstance(self.name, str) or not RULE_NAME.fullmatch(self.name):
            problems.add(
                ("name",), f"{shown(self.name)}: expected 1 to 40 of A-Z a-z 0-9 _ . : - with no mark in front"
            )
            put(self, "name", "rule")
        if not isinstance(self.match, Match):
            problems.add(("match",), f"expected a Match, not {shown(self.match)}")
        for name, known in (("mode", ("enforce", "shadow")), ("failure", FAILURES), ("stage", ("early", "late"))):
            with problems.at(name):
                chosen(name, getattr(self, name), known)
        if self.failure not in FAILURES:
            put(self, "failure", "")  # so that it is told once, and not of each limit
        for name, kind in (("default", bool), ("final", bool), ("message", str), ("documentation", str)):
            if not isinstance(getattr(self, name), kind):
                problems.add((name,), f"expected {'text' if kind is str else 'true or false'}")
        with problems.at("limits"):
            self._read_limits()
        with problems.at("candidate"):
            put(self, "candidates", {} if self.candidate is None else self._plans(self.candidate, "candidate."))
            if any(plan == "unlimited" for plan in self.candidates.values()):
                raise ValueError("a candidate that is unlimited tells nothing")
        with problems.at("cost"):
            if not callable(self.cost):
                put(self, "cost", checked_cost(self.cost))
        if self.final and self.mode == "shadow":
            problems.add(("final",), "a rule in shadow must not change what is enforced: it cannot be final")
        problems.check()
        if isinstance(self.cost, int):
            self._check_cost(self.cost, problems)
        problems.check()

    def _read_limits(self) -> None:
        computed = self.limits if isinstance(self.limits, Computed) else None
        if computed is None and callable(self.limits):
            raise ValueError("a function needs limits for when it fails: Computed(function, otherwise='10/minute')")
        object.__setattr__(self, "computed", computed)
        object.__setattr__(self, "plans", self._plans(self.limits if computed is None else computed.otherwise, ""))

    def _plans(self, limits: Any, prefix: str) -> dict[str, Plan]:
        if not isinstance(limits, Mapping):
            return {DEFAULT: self.plan(limits, prefix)}
        problems, plans = Problems(), {}
        for tier, plan in limits.items():
            with problems.at(str(tier)):
                plans[str(tier)] = self.plan(plan, prefix)
        if not limits:
            problems.add((), "expected limits for at least one tier")
        problems.check()
        return plans

    def plan(self, limits: Any, prefix: str = "") -> Plan:
        """Limits as written, named for this rule, so that two rules with equal limits never share a state."""
        if isinstance(limits, str):
            return _plan_of_text(self.name, limits, prefix, self.failure)
        return named_limits(self.name, _listed(limits), prefix, self.failure)

    def _check_cost(self, cost: int, problems: Problems) -> None:
        for tier, plan in self.plans.items():
            for limit in plan if isinstance(plan, tuple) else ():
                if cost > limit.burst:
                    tiers = "" if tier == DEFAULT else f" of tier {tier}"
                    problems.add(
                        ("cost",), f"{cost} can never pass '{limit}'{tiers}, which gives {limit.burst} at most"
                    )


@lru_cache(maxsize=4096)
def _plan_of_text(rule: str, text: str, prefix: str, failure: str) -> Plan:
    word = text.strip().lower()
    if word == "deny":
        return "deny"
    if word == "unlimited":
        return "unlimited"
    return named_limits(rule, parse_limits(text), prefix, failure)


def _listed(limits: Any) -> list[Limit]:
    """Limits of a list, with the place of one that cannot be read."""
    if isinstance(limits, Limit):
        return [limits]
    if not isinstance(limits, Iterable) or isinstance(limits, bytes | Mapping):
        raise ValueError(f"expected limits like '100/minute', 'deny' or 'unlimited', not {shown(limits)}")
    problems, found = Problems(), []
    for place, limit in enumerate(limits):
        with problems.at(place):
            if isinstance(limit, Limit):
                found.append(limit)
            elif isinstance(limit, str):
                found += parse_limits(limit)
            else:
                raise ValueError(f"expected a limit like '100/minute', not {shown(limit)}")
    problems.check()
    return found


def named_limits(rule: str, limits: Iterable[Limit], prefix: str = "", failure: str = "") -> tuple[Limit, ...]:
    """Limits under the rule's name: `login/minute`. A limit's own name stands in for its period."""
    found: dict[str, Limit] = {}
    for limit in limit_set(limits):
        name = f"{rule}/{prefix}{limit.name if limit.named else _period(limit)}"
        if name in found:
            name += f"-{limit.algorithm}"
        if name in found:
            raise InvalidLimit(
                f"'{found[name].text}' and '{limit.text}' have one name: name one, '{limit.text} as other'"
            )
        try:
            found[name] = replace(limit, name=name, failure=failure or limit.failure, large=True)
        except InvalidLimit as error:
            raise InvalidLimit(f"{limit}: {error}; shorten the name of the rule or of the limit") from None
    return tuple(found.values())


def _period(limit: Limit) -> str:
    first, second, *_ = [*limit.text.partition("/")[2].split(), ""]
    return f"{first}-{second}" if first.isdecimal() else first
