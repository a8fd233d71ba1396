"""Explains a policy for one request: which rules apply and why, whom each counts, and what that client is allowed."""

import inspect
from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from ratebound.policy.identity.identify import PendingVerification, RequestIdentities, resolve
from ratebound.policy.match.conditions import methods_of
from ratebound.policy.match.request import Identity, RequestView
from ratebound.policy.match.request_body import UnreadableRequest
from ratebound.policy.model.policy import Policy
from ratebound.policy.model.rule import Plan, Rule
from ratebound.policy.runtime.compiled_rules import plan_of
from ratebound.policy.runtime.fast_path import readings_of
from ratebound.policy.runtime.general_path import CompiledPolicy, Step

T = TypeVar("T")


class RuleReport(NamedTuple):
    """One rule of an explanation.

    Attributes:
        rule: The rule.
        applies: True if it applies to the request.
        why: Why it applies or not, in words.
        identity: The identity that it counts by.
        plan: What this client is allowed.
        cost: What the request costs; None if a function says it.
    """

    rule: Rule
    applies: bool
    why: str
    identity: Identity | None = None
    plan: Plan | None = None
    cost: int | None = None


class Explanation(NamedTuple):
    """A prediction of a gate's verdict.

    Attributes:
        kind: How the verdict is found; see `Verdict`.
        address: The client's address, as far as it can be trusted.
        source: "peer", or the name of the header that the address came from.
        tier: The tier of the client.
        paths: The ways in which the path was read.
        rules: All rules of the policy, in order.
    """

    kind: str
    address: str
    source: str
    tier: str | None
    paths: list[str]
    rules: list[RuleReport]


def explain(policy: Policy, request: RequestView, stage: str = "late") -> Explanation:
    """Explain what a policy does with a request at one stage.

    The storage is not asked; verifiers are called, and the async ones count as having found nobody.

    Args:
        policy: The policy.
        request: The request.
        stage: `"early"` or `"late"`.

    Examples:
        >>> from ratebound.policy import Match, Policy, RequestView, Rule, explain
        >>> policy = Policy(rules=[Rule("login", "5/minute", Match(paths=["/login"]))])
        >>> report = explain(policy, RequestView("GET", "/orders", user="42")).rules[0]
        >>> report.applies
        False
    """
    return explain_compiled(CompiledPolicy(policy), request, stage)


def explain_compiled(compiled: CompiledPolicy, request: RequestView, stage: str) -> Explanation:
    """Explain what a compiled policy does with a request; see `explain`."""
    policy = compiled.policy
    verdict = _run(compiled.deliberate(request, stage, policy.switch, None, None))
    if request.found is None:  # off: nothing was looked at
        request.found = RequestIdentities(compiled, policy.proxies.client_address(request.peer, request.headers))
    found: RequestIdentities = request.found
    readings = readings_of(request)
    tier = _run(compiled.tier(request, found, None))
    stage_rules = compiled.stages[stage]
    found_rules = stage_rules.applying(request, readings, methods_of(request), found.client.ip, tier)
    applying = {one.order for one in found_rules}
    reports = []
    for compiled_rule in compiled.rules:
        rule = compiled_rule.rule
        failure = rule.match.failure(request, readings, tier, found.client.ip)
        if rule.stage != stage:
            reports.append(RuleReport(rule, False, f"it belongs to the stage {rule.stage}"))
        elif failure is not None:
            reports.append(RuleReport(rule, False, failure))
        elif compiled_rule.order not in applying:
            why = "another rule matched" if rule.default else "a final rule before it matched"
            reports.append(RuleReport(rule, False, why))
        else:
            try:
                who = resolve(compiled_rule.by, request, found, rule.name)
            except UnreadableRequest as unreadable:
                reports.append(RuleReport(rule, True, f"matched; unreadable: {unreadable}", None, "deny", None))
                continue
            identity = None if isinstance(who, PendingVerification) else who
            own = _run(compiled.tier(request, found, identity))
            plan = compiled.overridden_plan(compiled_rule, found.overrides)
            why = "an override for this client" if plan is not None else "matched"
            if rule.name in compiled.off:
                why = "matched; an operator has switched it off"
            if plan is None:
                plan = plan_of(compiled_rule.plans, own, policy.default_tier)
            cost = rule.cost if isinstance(rule.cost, int) else None
            reports.append(RuleReport(rule, True, why, identity, plan, cost))
    paths = ["/" + "/".join(reading) for reading in readings]
    kind = "limited" if verdict is None else verdict.kind
    return Explanation(kind, found.client.text, found.client.source, tier, paths, reports)


def _run(flow: Generator[Step, Any, T]) -> T | None:
    """Return the result of a flow, or None if it wants to ask the storage. Anything to be awaited becomes None."""
    try:
        step = next(flow)
        while not isinstance(step, list):
            if inspect.iscoroutine(step):
                step.close()
            step = flow.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    return None
