"""The rules of a policy made ready to be asked: in order, by stage, with what their limits fall to."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ratebound.http.prefix import Address
from ratebound.limit import Limit
from ratebound.policy.identity.identify import Alternatives
from ratebound.policy.match.conditions import Match
from ratebound.policy.match.index import Index
from ratebound.policy.match.path import Segments
from ratebound.policy.match.request import RequestView
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import DEFAULT, Plan, Rule, Window

SHADOW = "shadow"  # what a shadow falls to when the storage fails: it must not refuse, nor raise


class CompiledRule:
    """A rule in its policy: its place, its identities, its limits with the failure mode that they fall to."""

    __slots__ = ("by", "candidates", "failure", "flat", "is_straight", "match", "order", "plans", "rule", "wide")

    def __init__(self, rule: Rule, order: int, by: Alternatives, failure: str, wide: frozenset[Window]) -> None:
        self.rule = rule
        self.match = rule.match
        self.order = order
        self.by = by
        self.failure = SHADOW if rule.mode == "shadow" else failure
        self.wide = wide
        self.plans = {tier: with_failure(plan, self.failure) for tier, plan in rule.plans_with(wide).items()}
        self.candidates = {tier: with_failure(plan, SHADOW) for tier, plan in rule.candidates.items()}
        # What holds for every client, if anything does: the straight path.
        self.flat = (
            self.plans[DEFAULT] if rule.computed is None and len(self.plans) == 1 and DEFAULT in self.plans else None
        )

        self.is_straight = (
            self.flat not in (None, "deny")
            and rule.mode == "enforce"
            and isinstance(rule.cost, int)
            and not self.candidates
            and not any(kind.functions for parts in by for kind in parts)
        )

    def releases(self, request: RequestView, methods: tuple[str, ...]) -> bool:
        return releases(self.match, request, methods)


class CompiledExemption:
    """A match under which nothing is counted."""

    __slots__ = ("match", "order")

    def __init__(self, match: Match, order: int) -> None:
        self.match = match
        self.order = order


def releases(match: Match, request: RequestView, methods: tuple[str, ...]) -> bool:
    """Whether a match that is met may set free from other rules: it must hold whatever method the request is carried
    out as, and in the exact spelling of its path."""
    if len(methods) > 1 and match.methods and not set(methods) <= set(match.methods):
        return False
    return match.is_exact(request)


def _to_final(bounds: list[CompiledRule], request: RequestView, methods: tuple[str, ...]) -> list[CompiledRule]:
    for place, bound in enumerate(bounds):
        if bound.rule.final and bound.releases(request, methods):
            return bounds[: place + 1]
    return bounds


class CompiledStage:
    """The rules of one stage, those that always apply and those for when none of these matched."""

    def __init__(self, bounds: Sequence[CompiledRule]) -> None:
        self.rules: Index[CompiledRule] = Index(bound for bound in bounds if not bound.rule.default)
        self.defaults: Index[CompiledRule] = Index(bound for bound in bounds if bound.rule.default)
        self.has_defaults = any(bound.rule.default for bound in bounds)
        self.wants_tier = self.rules.wants_tier or self.defaults.wants_tier

    def applying(
        self,
        request: RequestView,
        readings: list[Segments],
        methods: tuple[str, ...],
        address: Address | None,
        tier: str | None,
    ) -> list[CompiledRule]:
        """The rules that apply, in order. Only a match in its exact spelling ends the search or keeps defaults away."""
        bounds = _to_final(self.rules.find(request, readings, methods, address, tier), request, methods)
        if self.has_defaults and not any(b.rule.mode == "enforce" and b.releases(request, methods) for b in bounds):
            defaults = self.defaults.find(request, readings, methods, address, tier)
            bounds = [*bounds, *_to_final(defaults, request, methods)]
        return bounds


def plan_of(plans: Mapping[str, Plan], tier: str | None, default_tier: str | None) -> Plan:
    """That of the tier; for a client without one, or of one that is not named, the rest."""
    for name in (tier, DEFAULT, default_tier):
        if name is not None and name in plans:
            return plans[name]
    # A tier that this rule's limits leave out: only a rule for certain tiers has such, and this client is of none.
    return next(iter(plans.values()))


def with_failure(plan: Plan, failure: str) -> Plan:
    """Limits that have no failure mode of their own take this one; a shadow's are open, whatever their own."""
    if isinstance(plan, str):
        return plan
    return tuple(_fallen(limit, "open" if failure == SHADOW else limit.failure or failure) for limit in plan)


def with_failure_cached(plan: Plan, failure: str) -> Plan:
    """The same, remembered. Limits are equal whatever their failure mode, so that is asked for beside them."""
    return plan if isinstance(plan, str) else _remembered(plan, tuple(limit.failure for limit in plan), failure)


@lru_cache(maxsize=4096)
def _remembered(plan: Plan, failures: tuple[str, ...], failure: str) -> Plan:
    return with_failure(plan, failure)


def _fallen(limit: Limit, failure: str) -> Limit:
    return limit if limit.failure == failure else replace(limit, failure=failure, large=True)


def may_queue(policy: Policy) -> bool:
    """Whether a request may have to wait for its turn: there is a leaky bucket, or limits that are not known yet."""
    if any(override.limits is not None for override in policy.overrides):
        return True
    return any(
        rule.computed is not None
        or any(
            limit.queues
            for plan in (*rule.plans.values(), *rule.candidates.values())
            if isinstance(plan, tuple)
            for limit in plan
        )
        for rule in policy.rules
    )
