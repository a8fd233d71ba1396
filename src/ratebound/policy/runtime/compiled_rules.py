"""The rules of a policy, compiled: whom they count, which of them apply to a request, and the limits they enforce.

`CompiledStage.with_rules` adds the rules of an endpoint to a policy's without indexing those again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Literal

from ratebound.errors import InvalidLimit
from ratebound.http.prefix import Address
from ratebound.limit import LOG_COUNT, Failure, Limit
from ratebound.lowered import STEPS, lowered
from ratebound.policy.functions import is_async
from ratebound.policy.identity.identify import Alternatives, IdentityKind, choosable
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.index import Index
from ratebound.policy.match.path import Segments
from ratebound.policy.match.request import RequestView
from ratebound.policy.model.policy import Override, Policy, check_overridden, needs_verified
from ratebound.policy.model.rule import DEFAULT, EXEMPT, Plan, Rule, Window, read_limits
from ratebound.policy.problem import nearest
from ratebound.policy.runtime.operator_overrides import ClientOverride

log = logging.getLogger("ratebound")

# Where a value of a limit of distinct values comes from.
CompiledSource = IdentityKind | Callable[[RequestView], Any]

MAX_LOWERED = 1024  # plans of a rule
MAX_OVERRIDDEN = 1024  # texts of operators' overrides for a rule
SHADOW: Final = (
    "shadow"  # the failure mode of a shadow's limits: a storage that fails must neither deny nor raise there
)


class CompiledRule:
    """A rule of a policy with its identities, and with its limits in the failure mode that they fall to.

    `order` is negative, and counted from the policy's last rule: rules that are put in front do not change it. `flat`
    is the plan that holds for every client, or None if tiers or a function choose one. `penalty` is the entry that the
    rule names; it is part of every plan. `sources` are those of the values that its limits count. `calls_functions` is
    True if functions of the application identify its clients.
    """

    __slots__ = (
        "by",
        "calls_functions",
        "candidates",
        "counter_windows",
        "failure",
        "flat",
        "is_straight",
        "lowered_plans",
        "match",
        "operator_plans",
        "order",
        "penalty",
        "plans",
        "rule",
        "sources",
    )

    def __init__(
        self,
        rule: Rule,
        order: int,
        by: Alternatives,
        failure: Failure,
        counter_windows: frozenset[Window],
        penalty: Limit | None = None,
        sources: Mapping[str, CompiledSource] | None = None,
    ) -> None:
        self.rule = rule
        self.match = rule.match
        self.order = order
        self.by = by
        self.failure: Failure | Literal["shadow"] = SHADOW if rule.mode == "shadow" else failure
        self.counter_windows = counter_windows
        self.lowered_plans: dict[tuple[int, int, int], tuple[Plan, Plan]] = {}  # by identity of a plan, step, cost
        self.operator_plans: dict[str, Plan | None] = {}  # by the text of an operator's override
        self.penalty = penalty
        self.sources = sources or {}
        self.plans = {tier: self.enforced(plan) for tier, plan in rule.plans_with(counter_windows).items()}
        self.candidates = {tier: with_failure(plan, SHADOW) for tier, plan in rule.candidates.items()}
        self.flat = (
            self.plans[DEFAULT] if rule.computed is None and len(self.plans) == 1 and DEFAULT in self.plans else None
        )
        functions = [function for parts in by for kind in parts for function in kind.functions]
        self.is_straight = (
            self.flat not in (None, "deny")
            and (isinstance(self.flat, str) or all(limit.numbers.plain for limit in self.flat or ()))
            and rule.mode == "enforce"
            and isinstance(rule.cost, int)
            and not self.candidates
            and not any(kind.is_target for parts in by for kind in parts)
            and not any(map(is_async, functions))
        )
        self.calls_functions = bool(functions)

    @property
    def is_by_tier(self) -> bool:
        """True if the tier of a client chooses its limits."""
        return self.flat is None and self.rule.computed is None

    def lowered(self, plan: Plan, step: int, cost: int) -> Plan:
        """Return one of this rule's plans, lowered to `step` twentieths for a request of `cost`. It is made once."""
        if isinstance(plan, str):
            return plan
        if all(cost <= limit.burst * step // STEPS for limit in plan if limit.takes_cost):
            cost = 1  # it is the same for all costs that fit
        found = self.lowered_plans.get((id(plan), step, cost))
        if found is None:
            if len(self.lowered_plans) >= MAX_LOWERED:  # overrides and functions make plans, too
                self.lowered_plans.clear()
            made = lowered(plan, step, cost)
            found = self.lowered_plans[id(plan), step, cost] = plan, made  # kept, so that its identity stays its own
        return found[1]

    def enforced(self, plan: Plan) -> Plan:
        """Return a plan as this rule enforces it: with its penalty, and in its failure mode. Remembered for limits that
        are made during a request."""
        penalty = self.penalty
        if penalty is not None and (isinstance(plan, tuple) or (plan == "unlimited" and self.rule.strikes_by_result)):
            plan = (*plan, penalty) if isinstance(plan, tuple) else (penalty,)
        return with_failure_cached(plan, self.failure)

    def computed(self, limits: Any) -> Plan:
        """Return the plan of limits that a function found. Raises ValueError if this rule cannot have them."""
        if limits is EXEMPT:
            return "unlimited"
        plan = self.rule.plan(limits, self.counter_windows, is_computed=True)
        wrong = choosable(self.by) if needs_verified(plan) else ""
        if wrong:
            raise ValueError(f"rule {self.rule.name!r} cannot have these limits: {wrong}")
        return self.enforced(plan)

    def of_operator(self, limits: str) -> Plan | None:
        """Return the plan of limits that an operator has given to a client; None if this rule cannot have them, which
        is logged. It is made once."""
        plans = self.operator_plans
        if limits not in plans:
            if len(plans) >= MAX_OVERRIDDEN:
                plans = self.operator_plans = {}
            try:
                plans[limits] = self.checked_override(limits)
            except ValueError as error:
                log.error("an operator's override has no effect on rule %s: %s", self.rule.name, error)
                plans[limits] = None
        return plans[limits]

    def checked_override(self, limits: str) -> Plan:
        """Return the plan of an operator's override. Raises ValueError if this rule cannot have these limits.

        A limit that is written without an algorithm takes that of the rule's own limit for the same period, if it can,
        so that the client keeps its count.
        """
        plan = self.rule.plan(limits, self.counter_windows)
        written = read_limits(limits)
        if isinstance(plan, tuple) and not isinstance(written, str):
            plans = self.rule.plans_with(self.counter_windows).values()
            own = {limit.name: limit for plan in plans if isinstance(plan, tuple) for limit in plan}
            pairs = zip(plan, written, strict=True)
            plan = tuple(
                _counted_alike(limit, own.get(limit.name)) if is_open else limit for limit, (_, is_open) in pairs
            )
        check_overridden(self.rule, plan, self.by)
        return self.enforced(plan)

    def releases(self, request: RequestView, methods: tuple[str, ...]) -> bool:
        """Return True if this rule, whose match is met, may set the request free from other rules."""
        return releases(self.match, request, methods)


def _counted_alike(limit: Limit, own: Limit | None) -> Limit:
    """Return a limit that shares the count of a rule's own limit, if there is one and its algorithm allows it."""
    if own is None or own.scope == limit.scope:
        return limit
    if own.algorithm == "sliding-log" and limit.count > max(LOG_COUNT, own.count):
        return limit  # a log stores each request, and its rule was not written for so many
    try:
        alike = replace(limit, algorithm=own.algorithm, large=True)
    except InvalidLimit:
        return limit
    return alike if alike.scope == own.scope else limit


def compile_rule(policy: Policy, place: int) -> CompiledRule:
    """Return the rule at a place of the policy, compiled."""
    rule = policy.rules[place]
    order = place - len(policy.rules)
    return CompiledRule(
        rule,
        order,
        policy.rule_by[rule.name],
        policy.failure,
        policy.counter_windows[rule.name],
        policy.penalty_limits.get(rule.penalty),
        {
            name: policy.kinds.kind(source) if isinstance(source, str) else source
            for name, source in rule.sources.items()
        },
    )


class CompiledExemption:
    """A match of requests that no rule counts, and its place in the policy's list."""

    __slots__ = ("match", "order")

    def __init__(self, match: Match, order: int) -> None:
        self.match = match
        self.order = order


def releases(match: Match, request: RequestView, methods: tuple[str, ...]) -> bool:
    """Return True if a match that is met may set the request free from other rules. It must hold for every method that
    the request may be carried out as, and for the exact spelling of its path."""
    if len(methods) > 1 and match.methods and not set(methods) <= set(match.methods):
        return False
    return match.is_exact(request)


def _to_final(rules: list[CompiledRule], request: RequestView, methods: tuple[str, ...]) -> list[CompiledRule]:
    for place, rule in enumerate(rules):
        if rule.rule.final and rule.releases(request, methods):
            return rules[: place + 1]
    return rules


class LayeredIndex:
    """Several indexes that are searched as one. No two of their rules have the same `order`."""

    __slots__ = ("_parts", "has_hosts", "has_methods", "has_paths", "is_plain", "wants_tier")

    def __init__(self, *parts: "RuleIndex") -> None:
        self._parts = parts
        self.wants_tier: bool = any(part.wants_tier for part in parts)
        self.is_plain: bool = all(part.is_plain for part in parts)
        self.has_paths: bool = any(part.has_paths for part in parts)
        self.has_hosts: bool = any(part.has_hosts for part in parts)
        self.has_methods: bool = any(part.has_methods for part in parts)

    def find(
        self,
        request: RequestView,
        readings: Sequence[Segments],
        methods: Sequence[str],
        address: Address | None,
        tier: str | None,
    ) -> list[CompiledRule]:
        """Return the rules whose match the request meets, in order."""
        found = [rule for part in self._parts for rule in part.find(request, readings, methods, address, tier)]
        found.sort(key=_order)
        return found


RuleIndex = Index[CompiledRule] | LayeredIndex


def _order(rule: CompiledRule) -> int:
    return rule.order


class CompiledStage:
    """The rules of one stage: those that always apply, and the defaults, for requests that none of them matched."""

    __slots__ = ("defaults", "has_defaults", "rules", "wants_tier")

    def __init__(self, rules: RuleIndex, defaults: RuleIndex, *, has_defaults: bool) -> None:
        self.rules = rules
        self.defaults = defaults
        self.has_defaults = has_defaults
        self.wants_tier = rules.wants_tier or defaults.wants_tier

    @classmethod
    def of(cls, rules: Sequence[CompiledRule]) -> "CompiledStage":
        """Return a stage of these rules."""
        always, defaults = _apart(rules)
        return cls(Index(always), Index(defaults), has_defaults=bool(defaults))

    def with_rules(self, rules: Sequence[CompiledRule]) -> "CompiledStage":
        """Return a stage that has these rules, too, where their order puts them. Its own are not indexed again."""
        if not rules:
            return self
        always, defaults = _apart(rules)
        return CompiledStage(
            LayeredIndex(Index(always), self.rules) if always else self.rules,
            LayeredIndex(Index(defaults), self.defaults) if defaults else self.defaults,
            has_defaults=self.has_defaults or bool(defaults),
        )

    def without_defaults(self) -> "CompiledStage":
        """Return a stage that has only the rules that always apply."""
        return CompiledStage(self.rules, Index(()), has_defaults=False) if self.has_defaults else self

    def applying(
        self,
        request: RequestView,
        readings: list[Segments],
        methods: tuple[str, ...],
        address: Address | None,
        tier: str | None,
    ) -> list[CompiledRule]:
        """Return the rules that apply, in order. A final rule ends the search, and an enforced rule keeps the defaults
        away, only where its match releases the request."""
        rules = _to_final(self.rules.find(request, readings, methods, address, tier), request, methods)
        if self.has_defaults and not any(
            rule.rule.mode == "enforce" and rule.releases(request, methods) for rule in rules
        ):
            defaults = self.defaults.find(request, readings, methods, address, tier)
            rules = [*rules, *_to_final(defaults, request, methods)]
        return rules


def _apart(rules: Sequence[CompiledRule]) -> tuple[list[CompiledRule], list[CompiledRule]]:
    """Return the rules that always apply, and the defaults."""
    return [rule for rule in rules if not rule.rule.default], [rule for rule in rules if rule.rule.default]


def plan_of(plans: Mapping[str, Plan], tier: str | None, default_tier: str | None) -> Plan:
    """Return the plan of a tier. A client without a tier, or of a tier that is not named here, gets the default."""
    for name in (tier, DEFAULT, default_tier):
        if name is not None and name in plans:
            return plans[name]
    # A tier that this rule's limits leave out: only a rule for certain tiers has such, and this client is of none.
    return next(iter(plans.values()))


def with_failure(plan: Plan, failure: Failure | Literal["shadow"]) -> Plan:
    """Return a plan whose limits take this failure mode, unless they have one of their own. The limits of a shadow are
    always open, and have no penalties."""
    if failure == SHADOW:
        plan = without_penalties(plan)
    if isinstance(plan, str):
        return plan
    return tuple(_fallen(limit, "open" if failure == SHADOW else limit.failure or failure) for limit in plan)


def without_penalties(plan: Plan) -> Plan:
    """Return a plan as a shadow has it: it never strikes, and nobody is blocked there."""
    if isinstance(plan, str) or not any(limit.is_penalty for limit in plan):
        return plan
    return tuple(limit for limit in plan if not limit.is_penalty) or "unlimited"


def with_failure_cached(plan: Plan, failure: Failure | Literal["shadow"]) -> Plan:
    """Return `with_failure`, remembered for limits that are made during a request."""
    return plan if isinstance(plan, str) else _remembered(plan, tuple(map(_not_compared, plan)), failure)


# Limits are equal whatever these are, so they are part of what is remembered.
_not_compared = attrgetter("failure", "warn", "slice", "deny_cache")


@lru_cache(maxsize=4096)
def _remembered(plan: Plan, not_compared: tuple[Any, ...], failure: Failure | Literal["shadow"]) -> Plan:
    return with_failure(plan, failure)


def _fallen(limit: Limit, failure: Failure) -> Limit:
    return limit if limit.failure == failure else replace(limit, failure=failure, large=True)


def override_problem(
    override: ClientOverride,
    policy: Policy,
    rules: Mapping[str, CompiledRule],
    refusal_of: Callable[[Plan], str],
) -> str:
    """Return why an operator's override has no effect on these rules, or not on all that it is for; "" if it has.

    `refusal_of` tells why the storage does not keep a plan; "" if it does.
    """
    if override.tier is not None:
        known = policy.tier_names
        return "" if override.tier in known else f"unknown tier {override.tier!r}: {nearest(override.tier, known)}"
    found = [f"unknown rule {name!r}: {nearest(name, rules)}" for name in override.rules if name not in rules]
    limits = override.limits or ""
    for one in rules.values():
        if override.concerns(one.rule.name):
            try:
                plan = one.operator_plans.get(limits) or one.checked_override(limits)  # the first is known to fit
            except ValueError as error:
                found.append(str(error))
            else:
                found.append(refusal_of(plan))
    return "; ".join(dict.fromkeys(filter(None, found)))


def may_queue(rules: Iterable[Rule], overrides: Iterable[Override]) -> bool:
    """Return True if a request may have to wait for its turn: there is a leaky bucket, or limits that only a request
    shows."""
    return _may_have(lambda limit: limit.queues, rules, overrides)


def may_hold(rules: Iterable[Rule], overrides: Iterable[Override]) -> bool:
    """Return True if a request may take a slot: there is a limit of concurrent requests, or limits that only a request
    shows."""
    return _may_have(lambda limit: limit.has_slots, rules, overrides)


def _may_have(is_one: Callable[[Limit], bool], rules: Iterable[Rule], overrides: Iterable[Override]) -> bool:
    if any(override.limits is not None for override in overrides):
        return True
    return any(
        rule.computed is not None
        or any(
            is_one(limit)
            for plan in (*rule.plans.values(), *rule.candidates.values())
            if isinstance(plan, tuple)
            for limit in plan
        )
        for rule in rules
    )
