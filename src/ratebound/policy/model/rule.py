"""A rule: whom it meets, by what it counts them, and what it allows them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from ratebound.errors import InvalidLimit
from ratebound.http.rejection import is_sendable
from ratebound.limit import Limit, checked_cost, default_algorithm, limit_set
from ratebound.notation import parse_limits
from ratebound.policy.functions import check_takes
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.request import RequestView
from ratebound.policy.problem import Problems, chosen, shown

Mode = Literal["enforce", "shadow"]
Failure = Literal["local", "open", "closed", "raise"]
Stage = Literal["early", "late"]
FAILURES = ("", *get_args(Failure))

Plan = tuple[Limit, ...] | Literal["deny", "unlimited"]
Open = tuple[Limit, bool]  # a limit, and whether its algorithm was left open
Written = tuple[Open, ...] | Literal["deny", "unlimited"]
Window = tuple[str, int]  # a limit's own name, if it has one, and its period
Cost = int | Callable[[RequestView], Any]

RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,39}")
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

    Where limits leave their algorithm open it is one for all tiers, so that a client who moves to another one keeps its
    count: the sliding counter, if any of them counts so many that this is the default. A Limit does not tell whether
    its algorithm was left open; one that has the default counts as such.
    """

    name: str
    limits: Any
    match: Match = field(default_factory=Match)
    by: Any = None
    cost: Cost = 1
    mode: Mode = "enforce"
    candidate: Any = None
    failure: Failure | Literal[""] = ""
    stage: Stage = "late"
    default: bool = False
    final: bool = False
    message: str = ""
    documentation: str = ""

    plans: Mapping[str, Plan] = field(init=False, repr=False)  # by tier; DEFAULT for all others
    computed: Computed | None = field(init=False, repr=False)
    candidates: Mapping[str, Plan] = field(init=False, repr=False)
    written: Mapping[str, Written] = field(init=False, repr=False)  # what the plans are made of
    wide: frozenset[Window] = field(init=False, repr=False)  # where an open algorithm is the sliding counter

    def __post_init__(self) -> None:
        problems, put = Problems(), object.__setattr__
        if not isinstance(self.name, str) or not RULE_NAME.fullmatch(self.name):
            problems.add(
                ("name",), f"{shown(self.name)}: expected 1 to 40 of A-Z a-z 0-9 _ . : - with no mark in front"
            )
            put(self, "name", "rule")
        if not isinstance(self.match, Match):
            problems.add(("match",), f"expected a Match, not {shown(self.match)}")
        for name, known in (("mode", get_args(Mode)), ("failure", FAILURES), ("stage", get_args(Stage))):
            with problems.at(name):
                chosen(name, getattr(self, name), known)
        if self.failure not in FAILURES:
            put(self, "failure", "")  # so that it is told once, and not of each limit
        for name, kind in (("default", bool), ("final", bool), ("message", str), ("documentation", str)):
            if not isinstance(getattr(self, name), kind):
                problems.add((name,), f"expected {'text' if kind is str else 'true or false'}")
            elif kind is str and not is_sendable(getattr(self, name)):
                problems.add((name,), "half of a surrogate pair cannot be sent")
        put(self, "plans", {})
        with problems.at("limits"):
            self._read_limits()
        with problems.at("candidate"):
            wrong = Problems()
            tried = {} if self.candidate is None else _by_tier(self.candidate, wrong)
            put(self, "candidates", self._plans(tried, wide_windows(tried.values()), wrong, "candidate."))
            if any(plan == "unlimited" for plan in self.candidates.values()):
                wrong.add((), "a candidate that is unlimited tells nothing")
            wrong.check()
        with problems.at("cost"):
            if callable(self.cost):
                check_takes(self.cost, "the RequestView")
            else:
                put(self, "cost", checked_cost(self.cost))
        if self.final and self.mode == "shadow":
            problems.add(("final",), "a rule in shadow must not change what is enforced: it cannot be final")
        if isinstance(self.cost, int):
            self._check_cost(self.cost, problems)
        problems.check()

    def _read_limits(self) -> None:
        computed = self.limits if isinstance(self.limits, Computed) else None
        if computed is None and callable(self.limits):
            raise ValueError("a function needs limits for when it fails: Computed(function, otherwise='10/minute')")
        if computed is not None:
            check_takes(computed.function, "the RequestView")
        put, wrong = object.__setattr__, Problems()
        put(self, "computed", computed)
        put(self, "written", _by_tier(self.limits if computed is None else computed.otherwise, wrong))
        put(self, "wide", wide_windows(self.written.values()))
        put(self, "plans", self._plans(self.written, self.wide, wrong))
        wrong.check()

    def _plans(
        self, written: Mapping[str, Written], wide: frozenset[Window], problems: Problems, prefix: str = ""
    ) -> dict[str, Plan]:
        plans = {}
        for tier, one in written.items():
            with problems.at(*([] if len(written) == 1 and tier == DEFAULT else [tier])):
                plans[tier] = _plan(self.name, one, wide, prefix, self.failure)
        return plans

    def plans_with(self, wide: frozenset[Window]) -> Mapping[str, Plan]:
        """Its plans where overrides count so many that more of them are sliding counters."""
        if wide <= self.wide:
            return self.plans
        problems = Problems()
        plans = self._plans(self.written, wide, problems)
        problems.check()
        return plans

    def plan(self, limits: Any, wide: frozenset[Window] | None = None) -> Plan:
        """Limits as written, named for this rule, so that two rules with equal limits never share a state."""
        wide = self.wide if wide is None else wide
        if isinstance(limits, str):
            return _plan_of_text(self.name, str.__str__(limits), wide, self.failure)
        return _plan(self.name, as_written(limits), wide, "", self.failure)

    def _check_cost(self, cost: int, problems: Problems) -> None:
        for tier, plan in self.plans.items():
            for limit in plan if isinstance(plan, tuple) else ():
                if cost > limit.burst:
                    tiers = "" if tier == DEFAULT else f" of tier {tier}"
                    problems.add(
                        ("cost",), f"{cost} can never pass '{limit}'{tiers}, which gives {limit.burst} at most"
                    )


def _by_tier(limits: Any, problems: Problems) -> dict[str, Written]:
    """Return the limits that can be read, by tier; problems are added for the others."""
    found = {}
    if not isinstance(limits, Mapping):
        with problems.at():
            found[DEFAULT] = as_written(limits)
        return found
    for tier, one in limits.items():
        with problems.at(str(tier)):
            found[str(tier)] = as_written(one)
    if not limits:
        problems.add((), "expected limits for at least one tier")
    return found


def as_written(limits: Any) -> Written:
    """Limits of a text or a list, with the place of one that cannot be read; or one of the two words."""
    if isinstance(limits, str):
        return _read(str.__str__(limits))
    if isinstance(limits, Limit):
        limits = [limits]
    if not isinstance(limits, Iterable) or isinstance(limits, bytes | Mapping):
        raise ValueError(f"expected limits like '100/minute', 'deny' or 'unlimited', not {shown(limits)}")
    problems = Problems()
    found: list[Open] = []
    for place, limit in enumerate(limits):
        with problems.at(place):
            if isinstance(limit, Limit):
                found.append((limit, limit.algorithm == default_algorithm(limit.count, burst=False)))
            elif isinstance(limit, str):
                found += _limits_of_text(str.__str__(limit))
            else:
                raise ValueError(f"expected a limit like '100/minute', not {shown(limit)}")
    problems.check()
    return tuple(found)


def _read(text: str) -> Written:
    word = text.strip().lower()
    if word == "deny":
        return "deny"
    return "unlimited" if word == "unlimited" else _limits_of_text(text)


def _limits_of_text(text: str) -> tuple[Open, ...]:
    """What another default would change was left open."""
    pairs = zip(parse_limits(text), parse_limits(text, default="fixed-window"), strict=True)
    return tuple((limit, limit.algorithm != other.algorithm) for limit, other in pairs)


def wide_windows(plans: Iterable[Written]) -> frozenset[Window]:
    """Where one of these leaves the algorithm open, and counts so many that it is the sliding counter."""
    return frozenset(
        _window(limit)
        for plan in plans
        if not isinstance(plan, str)
        for limit, is_open in plan
        if is_open and limit.algorithm == "sliding-counter"
    )


def _window(limit: Limit) -> Window:
    return limit.name if limit.named else "", limit.period_us


@lru_cache(maxsize=4096)
def _plan_of_text(rule: str, text: str, wide: frozenset[Window], failure: str) -> Plan:
    return _plan(rule, _read(text), wide, "", failure)


def _plan(rule: str, written: Written, wide: frozenset[Window], prefix: str, failure: str) -> Plan:
    return written if isinstance(written, str) else named_limits(rule, _settled(written, wide), prefix, failure)


def _settled(written: Sequence[Open], wide: frozenset[Window]) -> Iterator[Limit]:
    """With sliding counters where they are wide, unless one stands beside it already."""
    taken = {limit.scope for limit, _ in written}
    for limit, is_open in written:
        if is_open and limit.algorithm == "sliding-log" and _window(limit) in wide:
            counter = replace(limit, algorithm="sliding-counter", name=limit.name if limit.named else "")
            yield limit if counter.scope in taken else counter
        else:
            yield limit


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
