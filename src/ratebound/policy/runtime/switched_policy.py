"""A policy with operators' switches applied: a new policy, whose rules are as if they had been written so.

- `off`: the rule asks nothing. It still matches: it keeps default rules away, and a final one stays final.
- `shadow`: the rule is evaluated and reported, and never denies.
- `on`: the rule is enforced, also if the policy has it in shadow.
- `candidate`: the candidate limits of the rule are enforced in place of its own.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ratebound.limit import Limit
from ratebound.policy.model.descriptor_rule import DescriptorRule
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import Rule
from ratebound.policy.problem import nearest
from ratebound.policy.runtime.layered_policy import changed_policy
from ratebound.policy.runtime.operator_switches import RuleSwitch, RuleSwitches

log = logging.getLogger("ratebound")

# What a rule has that may ask, deny or read something.
NOTHING: dict[str, Any] = {
    "limits": "unlimited",
    "by": "address",
    "cost": 1,
    "candidate": None,
    "failure": "",
    "over": "deny",
    "retry": None,
    "warn": None,
    "charge": None,
    "strike": None,
    "distinct": None,
    "penalty": "",
    "slice": None,
    "deny_cache": False,
}
# Options of a rule that its candidate may not be able to have. They are left out, as few of them as possible.
OF_LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"retry": None, "warn": None},
    {"retry": None, "warn": None, "distinct": None, "strike": None},
)


def switched_policy(policy: Policy, switches: RuleSwitches) -> Policy:
    """Return the policy as operators have switched it; the same object if they concern none of its rules."""
    rules = tuple(switched_rules(policy.rules, switches))
    descriptors = tuple(_descriptor(one, switches.by_rule.get(one.name)) for one in policy.descriptors)
    turned = switches.for_all or policy.switch
    pairs = [(old, new) for old, new in zip(policy.rules, rules, strict=True) if old is not new]
    if not pairs and turned == policy.switch and descriptors == policy.descriptors:
        return policy
    address = policy.kinds.alternatives("address")
    by = {new.name: address for _, new in pairs if new.name in switches.off}
    # A client that is counted by a sliding counter now must keep its count when other limits are promoted.
    windows = {new.name: policy.counter_windows[new.name] | new.counter_windows for _, new in pairs}
    return changed_policy(
        policy,
        rules=rules,
        descriptors=descriptors,
        switch=turned,
        rule_by={**policy.rule_by, **by},
        counter_windows={**policy.counter_windows, **windows},
    )


def switched_rules(rules: Iterable[Rule], switches: RuleSwitches) -> list[Rule]:
    """Return rules as operators have switched them. A switch that does not fit has no effect, and is logged."""
    found = []
    for rule in rules:
        switch = switches.by_rule.get(rule.name)
        if switch is not None:
            try:
                rule = switched_rule(rule, switch)
            except ValueError as error:
                _log_unfit(rule.name, switch.state, str(error))
        found.append(rule)
    return found


def switched_rule(rule: Rule, switch: RuleSwitch) -> Rule:
    """Return a rule as a switch has it. Raises ValueError if the switch does not fit the rule."""
    if switch.state == "on":
        return rule if rule.mode == "enforce" else replace(rule, mode="enforce")
    if switch.state == "shadow":
        return rule if rule.mode == "shadow" else replace(rule, mode="shadow", final=False)
    if switch.state == "off":
        return replace(rule, **NOTHING)
    if rule.candidate is None:
        raise ValueError(f"rule {rule.name!r} has no candidate: there is nothing to promote")
    if switch.candidate != candidate_text(rule):
        raise ValueError(
            f"the candidate of rule {rule.name!r} is {candidate_text(rule)!r} by now, and {switch.candidate!r} was"
            " promoted: promote it again, or remove the switch"
        )
    promoted = {"limits": rule.candidate, "candidate": None, "mode": "enforce", "over": "deny"}
    for left_out in OF_LIMITS:
        try:
            return replace(rule, **promoted, **left_out)
        except ValueError as error:
            wrong = error
    raise wrong


def candidate_text(rule: Rule) -> str:
    """Return the candidate limits of a rule as one line of text; "" if it has none."""
    return "" if rule.candidate is None else _text(rule.candidate)


def _text(limits: Any) -> str:
    if isinstance(limits, Mapping):
        return json.dumps({str(tier): _text(one) for tier, one in limits.items()}, ensure_ascii=False)
    if isinstance(limits, str):
        return " ".join(limits.split())
    return limits.text if isinstance(limits, Limit) else "; ".join(map(_text, limits))


def switch_problem(switch: RuleSwitch, rules: Iterable[Rule], descriptors: Iterable[DescriptorRule]) -> str:
    """Return why a switch has no effect on these rules; "" if it has."""
    if not switch.rule:
        return ""
    known = {rule.name: rule for rule in rules}
    names = {one.name for one in descriptors}
    if switch.rule in names:
        return "a rule for descriptors has no candidate" if switch.state == "candidate" else ""
    if switch.rule not in known:
        return f"unknown rule {switch.rule!r}: {nearest(switch.rule, {*known, *names})}"
    try:
        switched_rule(known[switch.rule], switch)
    except ValueError as error:
        return str(error)
    return ""


def _descriptor(one: DescriptorRule, switch: RuleSwitch | None) -> DescriptorRule:
    if switch is None or switch.state == "candidate":
        return one
    if switch.state == "off":
        return replace(one, limits="unlimited", warn=None, slice=None, deny_cache=False, over="deny")
    mode = "shadow" if switch.state == "shadow" else "enforce"
    return one if one.mode == mode else replace(one, mode=mode)  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _log_unfit(rule: str, state: str, why: str) -> None:
    log.error("an operator has switched rule %s to %r, which has no effect: %s", rule, state, why)
