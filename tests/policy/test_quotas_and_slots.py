"""Rules take quotas by the calendar, metering and slots wherever they take rates."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ratebound import Limit, parse_limit
from ratebound.clock import SECOND
from ratebound.policy import SCHEMA_PATH, Computed, Gate, Override, Policy, PolicyError, Rule, read_policy
from ratebound.policy.runtime.reload import PolicyFile
from ratebound.testing import FakeClock
from tests.policy.gates import decide, gate_of, passes, request

TEXTS = {
    "10000/calendar-month in Europe/Berlin from 15": "calendar-month",
    "500/calendar-day over allow": "calendar-day",
    "5/calendar-week from sunday": "calendar-week",
    "3 concurrent": "concurrent",
    "3 concurrent for 10 minutes": "concurrent",
    "1000/day fixed-window over allow": "day",
}


def limits_of(rule: Rule) -> tuple[Limit, ...]:
    plan = rule.plans["default"]
    assert isinstance(plan, tuple)
    return plan


def problems(text: str) -> list[tuple[str, str]]:
    with pytest.raises(PolicyError) as caught:
        read_policy(text)
    return [(problem.where, problem.message) for problem in caught.value.problems]


@pytest.mark.parametrize(("text", "name"), TEXTS.items())
def test_every_kind_of_limit_is_named_after_its_rule(text: str, name: str) -> None:
    (limit,) = limits_of(Rule("api", text))
    assert limit.name == f"api/{name}"
    assert limit.text == text
    (limit,) = limits_of(Rule("api", [parse_limit(text)]))
    assert limit.name == f"api/{name}"
    (limit,) = limits_of(Rule("api", f"{text} as own"))
    assert limit.name == "api/own"


@pytest.mark.parametrize("text", TEXTS)
def test_every_kind_of_limit_stands_in_tiers_overrides_candidates_shadows_and_functions(text: str) -> None:
    policy = Policy(
        rules=[
            Rule("tiers", {"free": text, "default": "5/minute"}, candidate=text),
            Rule("shadow", text, mode="shadow"),
            Rule("computed", Computed(lambda request: text, otherwise=text)),
        ],
        tiers=["free"],
        default_tier="free",
        overrides=[Override("192.0.2.9", text)],
    )
    gate = Gate(policy, storage="memory://")
    for peer in ("192.0.2.1", "192.0.2.9"):
        verdict = decide(gate, request(peer=peer))
        assert verdict.allowed
        assert verdict.decision is not None
        assert [limit.text for limit in verdict.decision.limits] == [text, text]
        assert [shadow.allowed for shadow in verdict.shadows] == [True, True]


def test_a_default_algorithm_of_tiers_touches_neither_quotas_nor_slots() -> None:
    rule = Rule("api", {"free": "50/day; 10/calendar-day; 2 concurrent", "default": "5000/day"})
    plan = rule.plans["free"]
    assert isinstance(plan, tuple)
    assert [limit.algorithm for limit in plan] == ["sliding-counter", "calendar", "concurrent"]


def test_changing_the_zone_the_first_day_or_the_lease_keeps_the_name_of_the_state() -> None:
    for one, other in (
        ("9/calendar-month", "9/calendar-month in Asia/Tokyo from 15"),
        ("9 concurrent", "8 concurrent for 1 hour"),
    ):
        assert limits_of(Rule("a", one))[0].scope == limits_of(Rule("a", other))[0].scope


def test_only_rates_and_quotas_take_the_cost_of_a_rule() -> None:
    rule = Rule("exports", "100/hour; 3 concurrent", cost=50)
    gate = gate_of(Policy(rules=[rule]))
    assert passes(gate, request()) == 2, "of 100 an hour, and of three slots two"
    with pytest.raises(PolicyError, match="50 can never pass '10/hour"):
        Rule("exports", "10/hour; 3 concurrent", cost=50)
    assert Rule("metered", "10/calendar-day over allow", cost=50).cost == 50
    override = Override("192.0.2.1", "60/hour; 2 concurrent")
    assert Policy(rules=[rule], overrides=[override]).overrides == (override,)


# Metering


def test_a_metered_rule_counts_what_exceeds_it_and_denies_nothing() -> None:
    gate = gate_of("rules: [{name: calls, limits: '3/calendar-month; 2/day fixed-window', over: allow}]")
    verdicts = [decide(gate, request()) for _ in range(5)]
    assert all(verdicts)
    decisions = [verdict.decision for verdict in verdicts]
    assert [decision and decision.overage for decision in decisions] == [0, 0, 1, 1, 1]


def test_a_metered_rule_meters_tiers_overrides_and_functions_too() -> None:
    rule = Rule("calls", {"free": "1/calendar-day", "default": "2/calendar-day"}, over="allow")
    policy = Policy(rules=[rule], tiers=["free"], overrides=[Override("192.0.2.9", "1/calendar-day")])
    assert passes(gate_of(policy), request(), request(peer="192.0.2.9"), most=10) == 10
    computed = Rule("calls", Computed(lambda request: "1/calendar-day", "1/calendar-day"), over="allow")
    assert passes(gate_of(Policy(rules=[computed])), request(), most=10) == 10


def test_a_candidate_of_a_metered_rule_says_what_enforcing_it_would_deny() -> None:
    gate = gate_of("rules: [{name: calls, limits: 2/calendar-month, over: allow, candidate: 2/calendar-month}]")
    verdicts = [decide(gate, request()) for _ in range(3)]
    assert all(verdicts)
    assert [verdict.shadows[0].allowed for verdict in verdicts] == [True, True, False]


@pytest.mark.parametrize("limits", ["10/second burst 20", "5/minute", "1000/day", "3 concurrent"])
def test_metering_without_windows_is_refused_with_the_place_and_an_example(limits: str) -> None:
    ((where, message),) = problems(f"rules: [{{name: calls, limits: '{limits}', over: allow}}]")
    assert where == "rules[0].limits"
    assert limits in message
    assert "'over: allow'" in message
    assert "10000/calendar-month" in message
    assert "fixed-window" in message


def test_a_metered_rule_says_which_tier_or_override_has_no_windows() -> None:
    text = (
        "tiers: [free]\n"
        "rules: [{name: calls, limits: {free: 10/calendar-day, default: 5/minute}, over: allow}]\n"
        "overrides: [{client: user:1, limits: 7/minute}]"
    )
    found = problems(text)
    assert [where for where, _ in found] == ["rules[0].limits.default", "overrides[0].limits"]
    found = problems(text.replace("5/minute", "5/calendar-day"))
    assert [where for where, _ in found] == ["overrides[0].limits"]
    assert "calls" in found[0][1]


def test_a_computed_limit_without_windows_leaves_the_other_limits_to_a_metered_rule() -> None:
    rule = Rule("calls", Computed(lambda request: "1/minute", "7/calendar-day"), over="allow")
    verdict = decide(gate_of(Policy(rules=[rule])), request())
    assert verdict.decision is not None
    assert verdict.decision.limit.text == "7/calendar-day over allow"


@pytest.mark.parametrize(("key", "value"), [("over", "maybe"), ("over", "true"), ("retry", "soon"), ("retry", "0")])
def test_a_value_that_over_and_retry_do_not_take_is_refused(key: str, value: str) -> None:
    ((where, message),) = problems(f"rules: [{{name: a, limits: 3 concurrent, {key}: {value}}}]")
    assert where == f"rules[0].{key}"
    assert "expected" in message


# The time after which to try a slot again


@pytest.mark.parametrize(("given", "seconds"), [("5 seconds", 5), ("1 minute", 60), ("3", 3), ("'0.5 s'", 0.5)])
def test_a_rule_may_say_when_to_try_again_for_a_slot(given: str, seconds: float) -> None:
    policy = read_policy(f"rules: [{{name: exports, limits: '100/hour; 3 concurrent', retry: {given}}}]")
    rate, slots = limits_of(policy.rules[0])
    assert (rate.retry_us, slots.retry_us) == (0, seconds * SECOND)


def test_retry_without_slots_is_refused() -> None:
    ((where, message),) = problems("rules: [{name: a, limits: 100/hour, retry: 5 seconds}]")
    assert where == "rules[0].retry"
    assert "3 concurrent" in message


def test_limits_that_cannot_be_read_say_nothing_of_retry() -> None:
    assert [where for where, _ in problems("rules: [{name: a, limits: 3 concurent, retry: 5}]")] == ["rules[0].limits"]


def test_retry_is_kept_by_copies_and_is_no_part_of_a_limit_that_has_no_slots() -> None:
    import pickle

    limit = Limit(3, 60 * SECOND, algorithm="concurrent", retry_us=SECOND)
    assert pickle.loads(pickle.dumps(limit)).retry_us == SECOND
    with pytest.raises(ValueError, match="concurrent"):
        Limit(3, 60 * SECOND, retry_us=SECOND)


def test_the_schema_knows_over_and_retry() -> None:
    schema = json.loads(SCHEMA_PATH.read_text())

    def check(rule: dict[str, Any]) -> None:
        tree = {"rules": [{"name": "a", "limits": "3 concurrent", **rule}]}
        jsonschema.validate(tree, schema, jsonschema.Draft202012Validator)

    check({"over": "allow", "retry": "5 seconds"})
    check({"over": "deny", "retry": 5})
    for wrong in ({"over": True}, {"retry": True}):
        with pytest.raises(jsonschema.ValidationError):
            check(wrong)


# Beside a queue


def test_slots_stand_beside_a_queue() -> None:
    rule = Rule("exports", "10/second burst 5 leaky-bucket; 2 concurrent; 100/calendar-day")
    gate = gate_of(Policy(rules=[rule]), max_delay=1.0)
    verdicts = [decide(gate, request()) for _ in range(3)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, False]
    assert verdicts[-1].decision is not None
    assert verdicts[-1].decision.limit.has_slots


# Reloading


def reloaded(path: Path, before: str, after: str) -> tuple[str, ...]:
    path.write_text(f"rules: [{{name: a, {before}}}]")
    file = PolicyFile(path, every=0)
    path.write_text(f"rules: [{{name: a, {after}}}]")
    assert file.reload()
    return file.changes


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("limits: 9/calendar-month", "limits: 9/calendar-month from 15", "keeps its count"),
        ("limits: 9/calendar-month", "limits: 9/calendar-month in Asia/Tokyo", "keeps its count"),
        ("limits: 3 concurrent", "limits: 3 concurrent for 5 minutes", "keeps its slots"),
        ("limits: 9/calendar-month", "limits: 9/calendar-day", "starts anew"),
        ("limits: 9/day fixed-window", "limits: 9/day fixed-window, over: allow", "starts anew: it is metered now"),
        ("limits: 9/day fixed-window, over: allow", "limits: 9/day fixed-window", "starts anew: it is no longer"),
        ("limits: 9/day", "limits: 9/calendar-day", "starts anew"),
    ],
)
def test_a_reload_says_what_starts_anew_and_what_is_kept(tmp_path: Path, before: str, after: str, said: str) -> None:
    (change,) = reloaded(tmp_path / "policy.yaml", before, after)
    assert said in change


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("limits: 9/calendar-month", "limits: 90/calendar-month"),
        ("limits: 9/calendar-month", "limits: 9/calendar-month, over: allow"),
        ("limits: 3 concurrent", "limits: 5 concurrent"),
    ],
)
def test_a_reload_says_nothing_where_only_the_count_or_metering_changes(
    tmp_path: Path, before: str, after: str
) -> None:
    assert reloaded(tmp_path / "policy.yaml", before, after) == ()


def test_a_quota_is_kept_when_its_zone_changes(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("rules: [{name: a, limits: 5/calendar-month}]")
    file = PolicyFile(path, every=0)
    gate = Gate(file, storage="memory://")
    assert passes(gate, request(), most=3) == 3
    path.write_text("rules: [{name: a, limits: 5/calendar-month in Europe/Berlin}]")
    assert file.reload()
    assert passes(gate, request(), most=9) == 2


def test_a_quota_begins_anew_with_its_window() -> None:
    clock = FakeClock()
    gate = gate_of("rules: [{name: a, limits: 2/calendar-day}]", clock)
    assert passes(gate, request()) == 2
    denied = decide(gate, request()).decision
    assert denied is not None
    assert denied.retry_after is not None
    clock.advance(denied.retry_after)
    assert passes(gate, request()) == 2
