"""Policies with more rules in front of their own, as endpoints declare them.

`written_out` is the law: a new policy with all rules, checked as a whole. `with_rules_in_front` returns a policy that
says the same and costs a fraction: it checks the new rules only, and shares all else with the policy behind them.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from ratebound.policy.model.client_list import ClientList
from ratebound.policy.model.policy import Override, Policy
from ratebound.policy.model.rule import Plan, Rule, Window
from ratebound.policy.problem import PolicyError, Problem

OverriddenPlans = tuple[Override, Mapping[str, Plan]]  # plans by the name of a rule


def written_out(policy: Policy, rules: Sequence[Rule], *, alone: bool = False, keep_defaults: bool = False) -> Policy:
    """Return a policy with `rules` in front of the policy's own, or in their place if `alone`.

    `keep_defaults` makes the policy's default rules apply always. Raises PolicyError with everything that is wrong with
    all rules together.
    """
    kept = tuple(map(_kept, policy.rules)) if keep_defaults else policy.rules
    overrides = policy.overrides
    if alone:
        kept, overrides = (), _without_names(policy)
    # In front: a final rule of the policy must not release a request from what the endpoint limits.
    return _checked(policy, rules=(*rules, *kept), overrides=overrides)


def with_rules_in_front(policy: Policy, rules: Sequence[Rule]) -> Policy:
    """Return a policy that is equal to `written_out(policy, rules)`. Raises PolicyError if that does, with one problem
    at least.

    Plans that an override gives to the new rules are made when a client with this override is found for the first time.
    """
    taken = [rule.name for rule in rules if rule.name in policy.rule_by]
    if taken:
        raise PolicyError([Problem(("rules",), f"the policy has rules with these names: {', '.join(taken)}")])
    if not rules or any(rule.final for rule in rules):  # such a rule may hide one of the policy's
        return written_out(policy, rules)
    overrides = _for_all_rules(policy)
    # A policy of the new rules alone shows what is wrong with them. It needs to know the tiers, but not their clients.
    new = _checked(policy, rules=rules, overrides=overrides, tiers=policy.tier_names, exempt=(), allow=(), block=())
    by = {rule.name: policy.alternatives if _counts_as_policy(rule) else new.rule_by[rule.name] for rule in rules}
    return changed_policy(
        policy,
        rules=(*rules, *policy.rules),
        rule_by=ChainMap(by, policy.rule_by),  # type: ignore[arg-type]  # nothing writes to it
        counter_windows=ChainMap(new.counter_windows, policy.counter_windows),  # type: ignore[arg-type]
        overridden=_with_plans(policy.overridden, rules, new.counter_windows) if overrides else policy.overridden,
    )


def without_rules(policy: Policy) -> Policy:
    """Return a policy that `written_out(policy, rules, alone=True)` can be layered on: all but the rules, and without
    the overrides that name some."""
    kept = _without_names(policy)
    if len(kept) == len(policy.overrides):
        overridden = policy.overridden.mapped(_without_plans)
    else:
        overridden = ClientList([(override.client, (override, {})) for override in kept], policy.kinds)
    return changed_policy(policy, rules=(), rule_by={}, counter_windows={}, overrides=kept, overridden=overridden)


def with_defaults_kept(policy: Policy) -> Policy:
    """Return a policy whose default rules apply always. Raises PolicyError if one of them is final, and now hides
    others."""
    rules = tuple(map(_kept, policy.rules))
    if any(rule.default and rule.final for rule in policy.rules):
        return _checked(policy, rules=rules)
    return changed_policy(policy, rules=rules)


def _kept(rule: Rule) -> Rule:
    return replace(rule, default=False) if rule.default else rule


def _counts_as_policy(rule: Rule) -> bool:
    return rule.by is None and rule.stage == "late"


def _without_names(policy: Policy) -> tuple[Override, ...]:
    return tuple(override for override in policy.overrides if not override.rules)


def _for_all_rules(policy: Policy) -> tuple[Override, ...]:
    """Return an override for each of the limits that overrides give to all rules; equal texts are one."""
    found = {
        override.limits if isinstance(override.limits, str) else id(override): override
        for override in policy.overrides
        if override.limits is not None and not override.rules
    }
    return tuple(found.values())


def _with_plans(
    overridden: ClientList[OverriddenPlans], rules: Sequence[Rule], counter_windows: Mapping[str, frozenset[Window]]
) -> ClientList[OverriddenPlans]:
    """Return the overrides with plans for these rules besides those that they have."""
    known: dict[Override, OverriddenPlans] = {}

    def with_plans(found: OverriddenPlans) -> OverriddenPlans:
        override, plans = found
        if override.limits is None or override.rules:
            return found
        if override not in known:
            own = {rule.name: rule.plan(override.limits, counter_windows[rule.name]) for rule in rules}
            known[override] = override, ChainMap(own, plans)  # type: ignore[arg-type]
        return known[override]

    return overridden.mapped(with_plans)


def _without_plans(found: OverriddenPlans) -> OverriddenPlans:
    return found[0], {}


def _checked(policy: Policy, **changes: Any) -> Policy:
    """Return the policy with other values, checked as a whole."""
    made: dict[str, Any] = {
        "adaptive": policy.pressure,
        "headers": policy.response_headers,
        "rejection": policy.rejection_format,
        "trusted": policy.proxies,
    }
    return replace(policy, **made, **changes)


def changed_policy(policy: Policy, **changes: Any) -> Policy:
    """Return the policy with other values, which are known to be right: nothing is checked."""
    changed = copy(policy)
    for name, value in changes.items():
        object.__setattr__(changed, name, value)
    return changed
