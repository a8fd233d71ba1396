"""The keys `slice` and `deny_cache` of a rule: which limits get them, and which rules cannot have them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import jsonschema
import pytest

from ratebound import GuardedStorage, MemoryStorage, parse_limit
from ratebound.http.prefix import parse_network
from ratebound.limit import Limit, Slice
from ratebound.lowered import STEPS, lowered
from ratebound.policy import Computed, Override, Policy, PolicyError, Rule, read_policy
from ratebound.policy.match.request import Identity
from ratebound.policy.runtime.compiled_rules import CompiledRule, compile_rule
from ratebound.policy.runtime.gate import Gate
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.policy.schema import SCHEMA_PATH
from ratebound.testing import FakeClock
from ratebound.web import WebGate
from ratebound.web.route_limit import RouteLimit
from tests.policy.gates import gate_of, request
from tests.remote import RemoteStorage, by_clock

SECOND = 1_000_000
TENTH = Slice(0.1, 2 * SECOND)


def only(rule: Rule) -> Limit:
    plan = rule.plans["default"]
    assert isinstance(plan, tuple)
    (limit,) = plan
    return limit


def limits_in(rule: CompiledRule) -> Iterator[Limit]:
    for plan in (*rule.plans.values(), *rule.candidates.values()):
        assert isinstance(plan, tuple)
        yield from plan


def problems(**rule: Any) -> list[tuple[str, str]]:
    with pytest.raises(PolicyError) as caught:
        Rule("api", **rule)
    return [(problem.where, problem.message) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        (False, None),
        (True, Slice(0.05, SECOND)),
        ("5%", Slice(0.05, SECOND)),
        (0.2, Slice(0.2, SECOND)),
        (Slice(0.2), Slice(0.2)),
        ({}, Slice()),
        ({"share": "10%"}, Slice(0.1)),
        ({"for": "500 ms"}, Slice(0.05, SECOND // 2)),
        ({"share": 0.1, "for": 2}, TENTH),
        ({"share": "10%", "for": timedelta(seconds=2)}, TENTH),
    ],
)
def test_a_slice_is_written_in_several_ways(given: object, expected: Slice | None) -> None:
    rule = Rule("api", "100/minute", slice=given)
    assert rule.slice == expected
    assert only(rule).slice == expected


@pytest.mark.parametrize(
    ("given", "where", "words"),
    [
        ("much", "slice", "expected true, a share like '5%', or a mapping of 'share' and 'for', not 'much'"),
        (2, "slice", "expected true, a share like '5%'"),
        ([], "slice", "expected true, a share like '5%'"),
        ({"shore": "5%"}, "slice.shore", "unknown key 'shore': did you mean 'share'?"),
        ({"share": "0%"}, "slice.share", "expected a share like"),
        ({"for": "soon"}, "slice.for", "cannot read 'soon'"),
        ({"for": "2 hours"}, "slice.for", "expected a time from 1 millisecond to 1 hour, like '1 second'"),
        ({"for": 0}, "slice.for", "expected a time from 1 millisecond to 1 hour, like '1 second'"),
    ],
)
def test_a_slice_that_cannot_be_read_is_told_by_its_place(given: object, where: str, words: str) -> None:
    ((place, message),) = problems(limits="100/minute", slice=given)
    assert place == where
    assert words in message


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_a_deny_cache_is_true_or_false(given: object) -> None:
    assert problems(limits="100/minute", deny_cache=given) == [("deny_cache", f"expected true or false, not {given!r}")]


def test_a_file_gives_both() -> None:
    policy = read_policy(
        "rules: [{name: api, limits: 1000/minute; 9000/hour, slice: {share: 10%, for: 2 seconds}, deny_cache: true}]"
    )
    assert [(limit.slice, limit.deny_cache) for limit in policy.rules[0].plans["default"]] == [(TENTH, True)] * 2  # type: ignore[union-attr]


def test_every_plan_of_a_rule_gets_them() -> None:
    rule = Rule(
        "api",
        {"pro": "1000/minute", "default": ["100/minute", "900/calendar-day"]},
        candidate="50/minute",
        slice=TENTH,
        deny_cache=True,
    )
    override = Override("192.0.2.1", "5000/minute")
    policy = Policy(rules=[rule], tiers=["pro"], overrides=[override])
    compiled = compile_rule(policy, 0)
    found = list(limits_in(compiled))
    ((_, plans),) = policy.overridden.find([], parse_network("192.0.2.1").network_address)
    found += compiled.enforced(plans["api"])  # type: ignore[arg-type]
    found += [one for limit in found for one in lowered((limit,), STEPS // 2)]
    assert len(found) == 10
    assert {(limit.slice, limit.deny_cache) for limit in found} == {(TENTH, True)}


def test_what_one_tier_took_is_not_for_another() -> None:
    clock = FakeClock()
    remote = RemoteStorage(MemoryStorage(clock=clock), clock)
    policy = read_policy("""
    tiers: [free, pro]
    rules: [{name: api, by: user, limits: {free: 10/minute, pro: 1000/minute, default: deny}, slice: 20%}]
    """)
    gate = Gate(policy, storage=GuardedStorage(remote, clock=clock))
    by_clock(gate._decider, clock)
    for _ in range(100):
        assert gate.decide(request(user=Identity("user", "ann", "pro")))
    assert len(remote.trips) < 20
    assert not gate.decide(request(user=Identity("user", "ann", "free")))


def test_a_rule_in_shadow_has_them() -> None:
    policy = Policy(rules=[Rule("api", "100/minute", mode="shadow", slice=True, deny_cache=True)])
    assert {(limit.slice, limit.deny_cache) for limit in limits_in(compile_rule(policy, 0))} == {(Slice(), True)}


def test_limits_of_a_function_get_what_they_can_have() -> None:
    given = "100/minute"
    rule = Rule("api", Computed(lambda _: given, "5/minute"), slice=True, deny_cache=True)
    compiled = compile_rule(Policy(rules=[rule]), 0)
    found = {}
    for text in ("100/minute", "10/second", "3 concurrent", "9/minute leaky-bucket", "9/calendar-day over allow"):
        plan = compiled.computed(text)
        assert isinstance(plan, tuple)
        (limit,) = plan
        found[text] = limit.slice is not None, limit.deny_cache
    assert found == {
        "100/minute": (True, True),
        "10/second": (False, True),
        "3 concurrent": (False, False),
        "9/minute leaky-bucket": (False, False),
        "9/calendar-day over allow": (False, False),
    }


def test_limits_of_a_function_that_can_have_no_slice_hold_as_they_are() -> None:
    gate = gate_of(Policy(rules=[Rule("api", Computed(lambda _: "3/second", "9/minute"), slice=True)]))
    decision = gate.decide(request()).decision
    assert decision is not None
    assert decision.limits[0].count == 3
    assert decision.limits[0].slice is None


@pytest.mark.parametrize("key", ["slice", "deny_cache"])
@pytest.mark.parametrize(
    "limits",
    [
        "3 concurrent",
        "100/minute leaky-bucket",
        "100/calendar-day over allow",
        "3 strikes/hour block 5 minutes",
    ],
)
def test_a_limit_that_cannot_be_decided_here_is_refused_by_rule_limit_and_reason(key: str, limits: str) -> None:
    wrong = "; ".join(["100/minute", limits]) if "strikes" in limits else limits
    (where, message), *more = problems(limits=wrong, by="address", **{key: True})
    assert not more
    assert where == "limits"
    assert message.startswith("rule 'api': ")
    assert f"{key} is for rates and quotas that deny, and not for '{parse_limit(limits).text}'" in message
    assert f"leave out {key}, or the limit" in message


@pytest.mark.parametrize("key", ["slice", "deny_cache"])
def test_distinct_values_are_refused(key: str) -> None:
    ((where, message),) = problems(limits="9 distinct n/hour", by="address", distinct={"n": "query.n"}, **{key: True})
    assert where == "limits"
    assert "9 distinct n/hour" in message


@pytest.mark.parametrize("key", ["slice", "deny_cache"])
def test_a_metered_rule_is_refused(key: str) -> None:
    ((where, message),) = problems(limits="100/calendar-day", over="allow", **{key: True})
    assert (where, message.startswith("rule 'api': ")) == ("limits", True)
    assert f"{key} is for rates and quotas that deny" in message


def test_a_period_that_is_too_short_is_refused_in_every_plan_that_has_it() -> None:
    found = problems(limits={"pro": "10/second", "default": "100/minute"}, candidate="5/second", slice=True)
    assert [where for where, _ in found] == ["limits.pro", "candidate"]
    for _, message in found:
        assert message.startswith("rule 'api': the period of '")
        assert "at least 10 times as long" in message
        assert message.endswith(": write 'slice: {for: 100 ms}', or leave out 'slice'")


def test_an_override_that_cannot_have_a_slice_is_refused() -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(rules=[Rule("api", "100/minute", slice=True)], overrides=[Override("192.0.2.1", "5/second")])
    (problem,) = caught.value.problems
    assert problem.where == "overrides[0].limits"
    assert problem.message.startswith("rule 'api': the period of '5/second' is too short")


@pytest.mark.parametrize("limits", ["deny", "unlimited"])
@pytest.mark.parametrize("key", ["slice", "deny_cache"])
def test_a_rule_without_limits_has_no_use_for_them(key: str, limits: str) -> None:
    ((where, message),) = problems(limits=limits, **{key: True})
    assert where == key
    assert "this rule has no limits" in message


@pytest.mark.parametrize("key", ["slice", "deny_cache"])
def test_a_rule_that_names_a_penalty_cannot_have_them(key: str) -> None:
    ((where, message),) = problems(limits="100/minute", by="address", penalty="p", **{key: True})
    assert where == key
    assert "penalty" in message


@pytest.mark.parametrize("charge", ["failure", "bytes", {"header": "x-cost"}, lambda response: 1])
def test_a_rule_that_settles_cannot_have_a_deny_cache(charge: Any) -> None:
    ((where, message),) = problems(limits="100/minute", charge=charge, deny_cache=True)
    assert where == "deny_cache"
    assert "'charge'" in message


def test_a_rule_whose_results_are_strikes_cannot_have_a_deny_cache() -> None:
    limits = Computed(lambda _: "5/minute; 3 strikes/hour block 5 minutes", "5/minute")
    ((where, message),) = problems(limits=limits, by="address", strike="failure", deny_cache=True)
    assert where == "deny_cache"
    assert "'strike'" in message


def test_a_rule_that_settles_may_have_a_slice() -> None:
    assert only(Rule("api", "100/minute", charge="failure", slice=True)).slice == Slice()


def test_a_limit_that_brings_its_own_is_checked_alike() -> None:
    cached = Limit(100, 60 * SECOND, deny_cache=True)
    sliced = Limit(100, 60 * SECOND, slice=TENTH)
    assert problems(limits=cached, charge="failure")[0][0] == "limits"
    assert problems(limits=cached, by="address", penalty="p")[0][0] == "limits"
    assert problems(limits=sliced, by="address", penalty="p")[0][0] == "limits"
    assert only(Rule("api", sliced)).slice == TENTH
    assert only(Rule("api", sliced, slice=True)).slice == TENTH


def test_one_mistake_is_told_once() -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(
            "rules: [{name: a, limits: 5/hou, slice: true, deny_cache: true},"
            " {name: b, limits: 5/second, slice: true, deny_cache: true},"
            " {name: c, limits: 5/minute, slice: {share: 0%}},"
            " {name: d, limits: 5/minute, charge: failur, deny_cache: true}]"
        )
    assert [problem.where for problem in caught.value.problems] == [
        "rules[0].limits",
        "rules[1].limits",
        "rules[2].slice.share",
        "rules[3].charge",
    ]


def test_a_rule_that_is_made_anew_keeps_them() -> None:
    rule = replace(Rule("api", "100/minute", slice=TENTH, deny_cache=True), final=True)
    assert (only(rule).slice, only(rule).deny_cache) == (TENTH, True)


@pytest.mark.parametrize("key", ["warn", "slice", "deny_cache"])
def test_a_new_policy_that_differs_in_nothing_else_is_taken_up(key: str) -> None:
    given = {"warn": ("80%", "50%"), "slice": ("5%", None), "deny_cache": (True, False)}[key]
    before, after = [
        next(limits_in(CompiledPolicy(Policy(rules=[Rule("api", "77/minute", **{key: one})])).rules[0]))  # type: ignore[arg-type]
        for one in given
    ]
    assert getattr(before, key) != getattr(after, key)


def test_limits_of_an_endpoint_take_them() -> None:
    limit = RouteLimit(limits="100/minute", slice={"share": "10%", "for": 2}, deny_cache=True)
    base = CompiledPolicy(Policy(rules=[Rule("rest", "900/minute")]))
    layered = base.layered([limit.rule("endpoint")])
    assert {(limit.slice, limit.deny_cache) for limit in limits_in(layered.rules[0])} == {(TENTH, True)}
    assert {(limit.slice, limit.deny_cache) for limit in limits_in(layered.rules[1])} == {(None, False)}


def test_an_endpoint_that_cannot_have_them_raises_where_it_is_declared() -> None:
    with pytest.raises(PolicyError, match="3 concurrent"):
        RouteLimit(limits="3 concurrent", slice=True)
    with pytest.raises(PolicyError, match="deny_cache: "):
        RouteLimit(limits="5/minute", charge="failure", deny_cache=True)
    with pytest.raises(PolicyError, match="3 concurrent"):
        RouteLimit(limits="3 concurrent", exempt_when=lambda _: False, slice=True)


def test_a_charge_of_an_adapter_is_refused_for_a_rule_with_a_deny_cache() -> None:
    policy = Policy(rules=[Rule("api", "5/minute", deny_cache=True), Rule("rest", "9/minute")])
    with pytest.raises(ValueError, match="charge= names api, which has a deny cache"):
        WebGate(policy, charge={"api": "failure"})
    WebGate(policy, charge={"rest": "failure", "api": None})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        (True, True),
        (False, True),
        ("5%", True),
        (0.05, True),
        ({}, True),
        ({"share": "5%", "for": "1 second"}, True),
        ({"share": 0.5, "for": 2}, True),
        ("much", False),
        (2, False),
        ([], False),
        ({"shore": "5%"}, False),
        ({"share": 2}, False),
    ],
)
def test_the_schema_takes_what_the_loader_takes(given: Any, is_right: bool) -> None:
    tree = {"rules": [{"name": "api", "limits": "100/minute", "slice": given, "deny_cache": True}]}
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA_PATH.read_text()))
    assert validator.is_valid(tree) == is_right
    try:
        read_policy(tree)
    except PolicyError:
        assert not is_right
    else:
        assert is_right
