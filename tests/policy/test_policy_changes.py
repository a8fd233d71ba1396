"""What a dry run tells about two policies: everything that differs, no secret, and what starts anew."""

from dataclasses import fields, replace
from typing import Any

import pytest

from ratebound import parse_limit
from ratebound.adaptive import CpuUse, Pressure
from ratebound.limit import Slice
from ratebound.policy import Computed, DescriptorRule, Match, Override, Policy, RequestView, Rule, Source, read_policy
from ratebound.policy.runtime.policy_changes import PolicyChange, changes_between, described_changes


def one(view: RequestView) -> int:
    return 1


def two(view: RequestView) -> int:
    return 2


RULE = Rule("a", "5/minute")
SESSION = Source(call=one)
# For each field that can be written: options that all policies of the pair have, the old value and the new one.
POLICY_FIELDS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "rules": ({}, [RULE], [RULE, Rule("b", "5/minute")]),
    "storage": ({}, "memory://", "memory://?max_keys=5"),
    "failure": ({}, "local", "open"),
    "switch": ({}, "on", "shadow"),
    "headers": ({}, "draft-11", {"styles": "draft-11", "jitter": 0.5}),
    "rejection": ({}, "problem+json", {"status": 420}),
    "trusted": ({}, ["10.0.0.0/8"], ["10.1.0.0/16"]),
    "ipv6": ({}, 64, 56),
    "concurrent": ({}, None, "auto"),
    "salt": ({}, "old-salt", "new-salt"),
    "by": ({}, "address", ["user", "address"]),
    "identities": ({}, {"session": SESSION}, {"session": Source(call=two)}),
    "tiers": ({"default_tier": "free"}, {"free": ()}, {"free": ["192.0.2.1"]}),
    "default_tier": ({"tiers": ["free", "paid"]}, "free", "paid"),
    "exempt": ({}, [], [Match(paths=["/health"])]),
    "allow": ({}, ["192.0.2.1"], ["192.0.2.2"]),
    "block": ({}, [], ["192.0.2.2"]),
    "overrides": ({}, [Override("192.0.2.1", "9/minute")], [Override("192.0.2.1", "8/minute")]),
    "adaptive": ({}, {"cpu": "85%"}, {"cpu": "80%"}),
    "penalties": ({}, {"p": "3 strikes/hour block 5 minutes"}, {"p": "3 strikes/hour block 6 minutes"}),
    "descriptors": ({}, [], [DescriptorRule("d", "edge", ["remote_address"], "5/minute")]),
}
RULE_FIELDS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "name": ({}, "a", "b"),
    "limits": ({}, "10/second", "20/second"),
    "match": ({}, Match(paths=["/a"]), Match(paths=["/b"], methods=["GET"])),
    "by": ({}, None, "address"),
    "cost": ({}, one, two),
    "mode": ({}, "enforce", "shadow"),
    "candidate": ({}, "7/minute", None),
    "failure": ({}, "", "closed"),
    "stage": ({"by": "address"}, "late", "early"),
    "default": ({}, False, True),
    "final": ({}, False, True),
    "message": ({}, "", "slow down"),
    "documentation": ({}, "", "https://example.com/limits"),
    "over": ({"limits": "10/day fixed-window"}, "deny", "allow"),
    "retry": ({"limits": "3 concurrent"}, 1, 2),
    "warn": ({}, None, "80%"),
    "priority": ({}, "normal", "low"),
    "charge": ({}, None, {"status": [401]}),
    "strike": ({"penalty": "p", "by": "address"}, "failure", {"status": [401]}),
    "distinct": ({"limits": "5 distinct x/hour", "by": "address"}, {"x": "body.x"}, {"x": "body.y"}),
    "penalty": ({"by": "address"}, "", "p"),
    "slice": ({"limits": "100/minute"}, None, True),
    "deny_cache": ({}, False, True),
}
DESCRIPTOR_FIELDS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "name": ({}, "a", "b"),
    "domain": ({}, "edge", "inside"),
    "entries": ({}, ["remote_address"], [{"generic_key": "login"}]),
    "limits": ({}, "10/second", "20/second"),
    "cost": ({}, 1, 2),
    "mode": ({}, "enforce", "shadow"),
    "failure": ({}, "", "closed"),
    "message": ({}, "", "slow down"),
    "documentation": ({}, "", "https://example.com/limits"),
    "warn": ({}, None, "80%"),
    "slice": ({"limits": "100/minute"}, None, True),
    "deny_cache": ({}, False, True),
    "over": ({}, "deny", "charge"),
    "replaces": ({}, [], ["other"]),
}


def policy_of(**more: Any) -> Policy:
    return Policy(**{"rules": [RULE], **more})


def of_rule(**more: Any) -> Policy:
    rule = Rule(**{"name": "a", "limits": "10/second", **more})
    return Policy(rules=[rule], penalties={"p": "3 strikes/hour block 5 minutes"})


def of_descriptor(**more: Any) -> Policy:
    given = {"name": "a", "domain": "edge", "entries": ["remote_address"], "limits": "10/second", **more}
    other = DescriptorRule("other", "elsewhere", ["x"], "5/minute")
    return Policy(descriptors=[DescriptorRule(**given), other])


@pytest.mark.parametrize(
    ("kind", "table"), [(Policy, POLICY_FIELDS), (Rule, RULE_FIELDS), (DescriptorRule, DESCRIPTOR_FIELDS)]
)
def test_every_field_that_can_be_written_has_a_case(kind: Any, table: dict[str, Any]) -> None:
    assert table.keys() == {one.name for one in fields(kind) if one.init}


@pytest.mark.parametrize("name", POLICY_FIELDS)
def test_every_change_of_a_policy_is_told(name: str) -> None:
    more, old, new = POLICY_FIELDS[name]
    before, after = policy_of(**more, **{name: old}), policy_of(**more, **{name: new})
    assert described_changes(before, after), name
    assert described_changes(after, before), name
    assert described_changes(before, policy_of(**more, **{name: old})) == []


@pytest.mark.parametrize("name", RULE_FIELDS)
def test_every_change_of_a_rule_is_told(name: str) -> None:
    more, old, new = RULE_FIELDS[name]
    before, after = of_rule(**more, **{name: old}), of_rule(**more, **{name: new})
    told = described_changes(before, after)
    assert [change for change in told if change.where == "rule a"], told
    assert [change for change in described_changes(after, before) if change.where == "rule a"]
    assert described_changes(after, of_rule(**more, **{name: new})) == []


@pytest.mark.parametrize("name", DESCRIPTOR_FIELDS)
def test_every_change_of_a_rule_for_descriptors_is_told(name: str) -> None:
    more, old, new = DESCRIPTOR_FIELDS[name]
    before, after = of_descriptor(**more, **{name: old}), of_descriptor(**more, **{name: new})
    assert [change for change in described_changes(before, after) if change.where == "descriptors a"]
    assert described_changes(after, of_descriptor(**more, **{name: new})) == []


def test_changes_are_told_with_old_and_new_values() -> None:
    old = Policy(
        rules=[Rule("search", "10/second", Match(paths=["/s"])), Rule("gone", "5/minute")], block=["192.0.2.1"]
    )
    new = Policy(
        rules=[Rule("new", "9/hour"), Rule("search", "20/second", Match(paths=["/t"]), mode="shadow")],
        block=["192.0.2.2"],
        switch="shadow",
    )
    assert described_changes(old, new) == [
        PolicyChange("rule new", "added", "as 1 of 2: limits: '9/hour'"),
        PolicyChange("rule search", "changed", "limits: '10/second' -> '20/second'"),
        PolicyChange("rule search", "changed", "match.paths: ['/s'] -> ['/t']"),
        PolicyChange("rule search", "changed", "mode: 'enforce' -> 'shadow'"),
        PolicyChange("rule gone", "removed", "what it has counted is forgotten"),
        PolicyChange("switch", "changed", "'on' -> 'shadow'"),
        PolicyChange("block list", "added", "192.0.2.2"),
        PolicyChange("block list", "removed", "192.0.2.1"),
    ]


def test_what_starts_anew_is_marked() -> None:
    old = Policy(rules=[Rule("a", "5/minute"), Rule("b", "5/minute", by="address")])
    new = Policy(rules=[Rule("a", "5/hour"), Rule("b", "6/minute", by="global")], ipv6=56)
    anew = [(change.where, change.detail) for change in described_changes(old, new) if change.starts_anew]
    assert [f"{where}: {detail}" for where, detail in anew] == list(changes_between(old, new))
    assert [where for where, _ in anew] == ["rule a", "ipv6", "rule b"]


def test_another_order_of_rules_is_told_with_the_names_that_moved() -> None:
    rules = [Rule(name, "5/minute") for name in "abcd"]
    told = described_changes(Policy(rules=rules), Policy(rules=[rules[0], rules[2], rules[1], rules[3]]))
    assert told == [PolicyChange("rules", "changed", "order: b, c -> c, b")]


def test_the_same_in_other_words_is_no_change() -> None:
    old = Policy(rules=[Rule("a", "60 per minute", by="user")], headers="draft-11", trusted="10.0.0.0/8")
    new = Policy(rules=[Rule("a", "60/minute", by=["user"])], headers={"styles": ["draft-11"]}, trusted=["10.0.0.0/8"])
    assert described_changes(old, new) == []


def test_limits_by_tier_are_told_by_tier() -> None:
    old = Policy(tiers=["free"], rules=[Rule("a", {"free": "5/minute", "default": "1/minute"})])
    new = Policy(tiers=["free"], rules=[Rule("a", {"free": "6/minute", "default": "1/minute"})])
    assert described_changes(old, new) == [PolicyChange("rule a", "changed", "limits.free: '5/minute' -> '6/minute'")]


def test_functions_are_told_by_name() -> None:
    old = Policy(rules=[Rule("a", Computed(one, otherwise="5/minute"))])
    new = Policy(rules=[Rule("a", Computed(two, otherwise="5/minute"))])
    assert described_changes(old, new) == [PolicyChange("rule a", "changed", "limits.call: one -> two")]


def test_limits_that_differ_only_in_their_options_are_told() -> None:
    plain = parse_limit("100/minute")
    sliced = replace(plain, slice=Slice())
    assert described_changes(Policy(rules=[Rule("a", plain)]), Policy(rules=[Rule("a", sliced)])) == [
        PolicyChange("rule a", "changed", "limits: '100/minute': other options")
    ]


def test_several_overrides_of_one_client_are_told_by_what_was_added_and_removed() -> None:
    def overridden(*limits: str) -> Policy:
        rules = [Rule("a", "5/minute"), Rule("b", "5/minute")]
        each = zip(limits, ("a", "b"), strict=False)
        return Policy(rules=rules, overrides=[Override("192.0.2.1", text, rules=[name]) for text, name in each])

    told = described_changes(overridden("7/minute", "8/minute"), overridden("7/minute", "9/minute"))
    assert [(change.where, change.what) for change in told] == [
        ("override 192.0.2.1", "added"),
        ("override 192.0.2.1", "removed"),
    ]
    assert told[0].detail == "limits: '9/minute', rules: ['b']"


def test_no_secret_is_told() -> None:
    secret = "hunter2"
    old = Policy(
        rules=[Rule("a", "5/minute", Match(headers={"x-api-token": f"{secret}-old", "x-kind": "bot"}))],
        exempt=[Match(paths=["/x"], headers={"authorization": f"{secret}-old"})],
        storage=f"redis://user:{secret}-old@host/0",
        salt=f"{secret}-old",
    )
    new = Policy(
        rules=[
            Rule("a", "5/minute", Match(headers={"x-api-token": f"{secret}-new", "x-kind": "person"})),
            Rule("b", "5/minute", Match(headers={"cookie": f"{secret}-more"})),
        ],
        exempt=[Match(paths=["/x"], headers={"authorization": f"{secret}-new"})],
        storage=f"redis://user:{secret}-new@host/0?secret={secret}",
        salt=f"{secret}-new",
    )
    told = described_changes(old, new)
    assert {"storage", "salt", "rule a", "rule b", "exempt"} <= {change.where for change in told}
    assert not [change for change in told if secret in str(change)]
    assert "match.headers.x-kind: 'bot' -> 'person'" in [change.detail for change in told]


def test_an_object_counts_as_changed_unless_it_is_the_same() -> None:
    pressure = Pressure([CpuUse(0.85)], background=False)
    same = [Policy(rules=[RULE], adaptive=pressure) for _ in range(2)]
    assert described_changes(*same) == []
    other = Policy(rules=[RULE], adaptive=Pressure([CpuUse(0.85)], background=False))
    assert described_changes(same[0], other) == [PolicyChange("adaptive", "changed", "a Pressure -> a Pressure")]


def test_a_policy_of_a_thousand_rules_is_compared_with_short_texts() -> None:
    old = read_policy({"rules": [{"name": f"r{place}", "limits": "5/minute"} for place in range(1_000)]})
    new = read_policy({"rules": [{"name": f"r{place}", "limits": "5/minute"} for place in reversed(range(1_000))]})
    (told,) = described_changes(old, new)
    assert "and 990 more" in told.detail
