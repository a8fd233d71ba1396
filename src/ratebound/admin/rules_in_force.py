"""The rules in force, described for operators: limits, conditions, and how each rule is switched. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ratebound.policy.model.descriptor_rule import DescriptorRule
from ratebound.policy.model.rule import Plan, Rule
from ratebound.policy.runtime.compiled_rules import CompiledRule
from ratebound.policy.runtime.policy_changes import NOT_SHOWN, is_secret_header

FUNCTION = "a function"
MATCH_LISTS = ("paths", "methods", "hosts", "tiers", "addresses")


def plan_text(plan: Plan) -> str:
    """Return limits in the notation: "100/minute; 5000/day", "deny" or "unlimited"."""
    return plan if isinstance(plan, str) else "; ".join(limit.text for limit in plan)


def rule_document(one: CompiledRule, *, is_endpoints: bool) -> dict[str, Any]:
    """Return a rule for JSON, as the policy has it."""
    rule = one.rule
    limits = {tier: plan_text(plan) for tier, plan in rule.plans.items()}
    if rule.computed is not None:
        limits = {tier: f"{FUNCTION}, else {text}" for tier, text in limits.items()}
    return {
        "name": rule.name,
        "limits": limits,
        "by": [" + ".join(kind.name for kind in parts) for parts in one.by],
        "match": _match_document(rule),
        "mode": rule.mode,
        "candidate": {tier: plan_text(plan) for tier, plan in rule.candidates.items()} or None,
        "penalty": rule.penalty,
        "priority": rule.priority,
        "stage": rule.stage,
        "default": rule.default,
        "final": rule.final,
        "cost": FUNCTION if callable(rule.cost) else str(rule.cost),
        "charge": _charge_text(rule.charge),
        "over": rule.over,
        "endpoint": is_endpoints,
    }


def descriptor_document(one: DescriptorRule) -> dict[str, Any]:
    """Return a rule for descriptors for JSON."""
    return {
        "name": one.name,
        "domain": one.domain,
        "entries": [str(condition) for condition in one.conditions],
        "limits": plan_text(one.plan),
        "mode": one.mode,
        "over": one.over,
    }


def _match_document(rule: Rule) -> dict[str, Any]:
    match = rule.match
    found: dict[str, Any] = {name: list(getattr(match, name)) for name in MATCH_LISTS}
    found["headers"] = {name: _header_value(name, value) for name, value in match.headers.items()}
    return found


def _header_value(name: str, value: str | bool | Iterable[str]) -> Any:
    if isinstance(value, bool):
        return value
    if is_secret_header(name):
        return NOT_SHOWN
    return value if isinstance(value, str) else list(value)


def _charge_text(charge: Any) -> str:
    if charge is None:
        return ""
    if isinstance(charge, Mapping):
        return ", ".join(f"{name}: {_listed(value)}" for name, value in charge.items())
    return charge if isinstance(charge, str) else FUNCTION


def _listed(value: Any) -> str:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return ", ".join(map(str, value)) if is_list else str(value)
