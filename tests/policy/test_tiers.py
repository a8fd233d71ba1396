"""A client that moves between tiers and overrides keeps its count: leaving a credential out is no fresh quota."""

from collections.abc import Mapping
from typing import Any

import pytest

from ratebound import Limit, parse_limit
from ratebound.policy import Computed, Identity, Override, Policy, Rule, Source
from ratebound.policy.model.rule import Plan
from ratebound.policy.runtime.compiled_rules import with_failure_cached
from tests.policy.gates import example_gate, gate_of, passes, request

PRO = {"x-api-key": "k"}
SOURCES = {"api-key": Source(verify=lambda key: Identity("", key, "pro"))}


def scopes(plans: Mapping[str, Plan]) -> list[list[str]]:
    return [[limit.scope for limit in plan] for plan in plans.values() if not isinstance(plan, str)]


@pytest.mark.parametrize("free", ["100/minute", "5/minute"])
def test_leaving_the_key_out_is_no_fresh_quota(free: str) -> None:
    policy = Policy(
        rules=[Rule("api", {"pro": "1000/minute", "default": free}, by="user")],
        by=["api-key", "user"],
        identities=SOURCES,
        tiers=["pro"],
    )
    gate = gate_of(policy)
    assert passes(gate, request(user="ann", headers=PRO), most=2000) == 1000
    assert passes(gate, request(user="ann"), most=2000) == 0


@pytest.mark.parametrize(
    "override", [Override("user:ann", limits="1000/minute"), Override("user:ann", limits="1000/minute", rules="api")]
)
def test_leaving_the_override_is_no_fresh_quota(override: Override) -> None:
    gate = gate_of(Policy(rules=[Rule("api", "100/minute", by="address")], overrides=[override]))
    assert passes(gate, request(user="ann"), most=2000) == 1000
    assert passes(gate, request(), most=2000) == 0


def test_an_override_changes_only_the_rules_that_it_names() -> None:
    override = Override("user:ann", limits="1000/minute", rules="api")
    policy = Policy(rules=[Rule("api", "100/minute"), Rule("other", "100/minute")], overrides=[override])
    verdict = gate_of(policy).decide(request())
    assert verdict.decision is not None
    assert [limit.algorithm for limit in verdict.decision.limits] == ["sliding-counter", "sliding-log"]
    assert [limit.name for limit in verdict.decision.limits] == ["api/minute", "other/minute"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("100/minute", "1000/minute"),
        ("10/second burst 20; 100/minute; 50/hour", "50/second burst 90; 101/minute; 5000/hour"),
        ("20/minute burst 5; 100/minute", "20/minute burst 5; 1000/minute"),
        ("100/minute as quota", "1000/minute as quota"),
        (["100/minute", "5/hour"], ["1000/minute", "500/hour"]),
        (Limit(100, 60_000_000), Limit(1000, 60_000_000)),
        (parse_limit("100/minute"), "1000/minute"),
        (["100/minute"], [parse_limit("1000/minute")]),
        ((text for text in ("100/minute",)), "1000/minute"),
    ],
)
def test_tiers_have_one_algorithm_where_none_is_written(one: Any, other: Any) -> None:
    rule = Rule("api", {"free": one, "pro": other, "none": "deny"}, candidate={"free": "5/day", "pro": "500/day"})
    first, second = scopes(rule.plans)
    assert first == second
    first, second = scopes(rule.candidates)
    assert first == second


@pytest.mark.parametrize(
    ("limits", "algorithms"),
    [
        ({"free": "5/minute", "pro": "100/minute"}, ["sliding-log", "sliding-log"]),
        ({"free": "5/minute sliding-log", "pro": "1000/minute"}, ["sliding-log", "sliding-counter"]),
        ({"free": "5/minute", "pro": "1000/minute sliding-counter"}, ["sliding-log", "sliding-counter"]),
        ({"free": "5/minute", "pro": "1000/minute fixed-window"}, ["sliding-log", "fixed-window"]),
        ({"free": "5/minute", "pro": "1000/hour"}, ["sliding-log", "sliding-counter"]),
        ({"free": "5/minute as a", "pro": "1000/minute"}, ["sliding-log", "sliding-counter"]),
        ({"free": "50/minute; 500/minute", "pro": "9/minute"}, ["sliding-log", "sliding-counter", "sliding-counter"]),
        ("5/minute; 1000/hour", ["sliding-log", "sliding-counter"]),
    ],
)
def test_an_algorithm_that_is_written_stays(limits: Any, algorithms: list[str]) -> None:
    plans = Rule("api", limits).plans.values()
    assert [limit.algorithm for plan in plans if not isinstance(plan, str) for limit in plan] == algorithms


def test_computed_limits_are_counted_as_the_others_of_their_rule() -> None:
    rule = Rule("api", Computed(lambda view: view.header("x-limits"), otherwise="1000/minute"))
    gate = gate_of(Policy(rules=[rule]))
    assert passes(gate, request(headers={"x-limits": "100/minute"})) == 100
    assert passes(gate, request(), most=2000) == 900


def test_no_tier_of_the_example_is_a_fresh_quota() -> None:
    plans = example_gate("tiers.yaml", find_api_key=str).policy.rules[0].plans
    assert len({tuple(one) for one in scopes(plans)}) == 1


def test_plans_that_differ_by_their_failure_mode_are_kept_apart() -> None:
    for failure in ("open", "closed"):
        plan = with_failure_cached(Rule("api", "5/minute", failure=failure).plans["default"], "local")
        assert [limit.failure for limit in plan if isinstance(limit, Limit)] == [failure]
