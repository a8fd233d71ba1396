"""Rules for Envoy's descriptors in a policy: how they are written, what is wrong with them, what they never touch."""

from typing import Any

import pytest

from ratebound.policy import (
    DescriptorRule,
    EntryMatch,
    Gate,
    Match,
    Policy,
    PolicyError,
    Rule,
    read_policy,
)
from ratebound.policy.runtime.compiled_descriptors import DescriptorTable
from ratebound.policy.runtime.policy_changes import changes_between
from tests.policy.gates import request

EDGE: dict[str, Any] = {"name": "a", "domain": "edge", "entries": ["remote_address"], "limits": "5/minute"}


def policy(*rules: dict[str, Any], **settings: Any) -> Policy:
    return read_policy(
        {"descriptors": [{**EDGE, "name": f"r{place}", **rule} for place, rule in enumerate(rules)], **settings}
    )


def found(made: Policy, *entries: tuple[str, str], domain: str = "edge") -> str | None:
    rule = DescriptorTable(made).find(domain.encode(), [(key.encode(), value.encode()) for key, value in entries])
    return None if rule is None else rule.rule.name


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("remote_address", EntryMatch("remote_address")),
        ({"generic_key": "login"}, EntryMatch("generic_key", "login")),
        ({"path": "/api/*"}, EntryMatch("path", "/api/*")),
        ({"status": 404}, EntryMatch("status", "404")),
        ({"remote_address": None}, EntryMatch("remote_address")),
        ({"key": "path"}, EntryMatch("key", "path")),
        ({"key": "path", "value": "/a*", "shared": True}, EntryMatch("path", "/a*", True)),
        ({"key": "user", "shared": True}, EntryMatch("user", "", True)),
        (EntryMatch("user"), EntryMatch("user")),
    ],
)
def test_an_entry_is_a_key_or_a_key_with_a_value(written: Any, meant: EntryMatch) -> None:
    assert DescriptorRule("a", "edge", [written], "5/minute").conditions == (meant,)


def test_the_entry_with_the_value_comes_first_then_wildcards_then_the_key_alone() -> None:
    made = policy(
        {"entries": ["path"]},
        {"entries": [{"path": "/a*"}]},
        {"entries": [{"path": "/ab*"}]},
        {"entries": [{"path": "/abc"}]},
        {"entries": [{"path": "/abc"}, "user"]},
        {"entries": ["path"], "domain": "other"},
    )
    assert found(made, ("path", "/abc")) == "r3"
    assert found(made, ("path", "/abd")) == "r1", "the first wildcard of the file"
    assert found(made, ("path", "/x")) == "r0"
    assert found(made, ("path", "/abc"), ("user", "u")) == "r4"
    assert found(made, ("path", "/x"), ("user", "u")) is None, "it has one entry more than the rule"
    assert found(made, ("path", "/x"), domain="other") == "r5"
    assert found(made, ("path", "/x"), domain="none") is None
    assert found(made) is None


def test_a_descriptor_never_goes_back_to_a_wider_entry() -> None:
    made = policy({"entries": [{"a": "x"}, "b"]}, {"entries": ["a", "c"]})
    assert found(made, ("a", "y"), ("c", "1")) == "r1"
    assert found(made, ("a", "x"), ("c", "1")) is None


def test_keys_and_values_with_the_same_text_joined_are_different() -> None:
    made = policy({"entries": [{"a": "b_c"}]})
    assert found(made, ("a_b", "c")) is None


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"domain": ""}, "domain", "expected the domain"),
        ({"entries": []}, "entries", "1 to 20 entries"),
        ({"entries": "remote_address"}, "entries", "expected a list"),
        ({"entries": [""]}, "entries[0]", "expected a key"),
        ({"entries": ["a", {"b": True}]}, "entries[1]", "expected a string"),
        ({"entries": [{"a": "1", "b": "2"}]}, "entries[0]", "expected one key"),
        ({"entries": [{"key": "a", "value": "b", "shared": True}]}, "entries[0]", "end in *"),
        ({"limits": "5 a minute"}, "limits", "cannot read limit"),
        ({"limits": "3 concurrent"}, "limits", "does not say when a request ends"),
        ({"limits": "20 distinct account/hour"}, "limits", "account"),
        ({"limits": {"free": "5/minute"}}, "limits", "no tiers"),
        ({"limits": lambda request: "5/minute"}, "limits", "no functions"),
        ({"cost": 0}, "cost", "cost must be"),
        ({"cost": lambda request: 1}, "cost", "whole number"),
        ({"cost": 6}, "cost", "can never pass"),
        ({"mode": "shadows"}, "mode", "did you mean 'shadow'"),
        ({"over": "charged"}, "over", "did you mean 'charge'"),
        ({"over": "allow"}, "limits", "needs windows"),
        ({"name": "a b"}, "name", "1 to 40"),
        ({"replaces": "b"}, "replaces", "unknown rule 'b'"),
        ({"replaces": ["a"]}, "replaces", "unknown rule 'a'"),
        ({"by": "address"}, "by", "unknown key 'by'"),
        ({"match": {}}, "match", "unknown key 'match'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(changes: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy({"descriptors": [{**EDGE, **changes}]})
    (problem,) = caught.value.problems
    assert problem.where == f"descriptors[0].{place}"
    assert words in problem.message


def test_everything_that_is_wrong_is_told_at_once() -> None:
    rules = [{"name": "a", "limits": "x"}, {**EDGE, "name": "b", "entries": [""]}, {**EDGE, "name": "b"}]
    with pytest.raises(PolicyError) as caught:
        read_policy({"descriptors": rules})
    told = [problem.where for problem in caught.value.problems]
    assert told == [
        "descriptors[0]",
        "descriptors[0]",
        "descriptors[0].limits",
        "descriptors[1].entries[0]",
        "descriptors[2].name",
    ]


def test_two_rules_for_the_same_descriptor_are_refused() -> None:
    with pytest.raises(PolicyError, match="never matched: 'r0' has the same domain and entries"):
        policy({}, {"limits": "9/hour"})


def test_names_are_shared_with_the_other_rules() -> None:
    with pytest.raises(PolicyError, match=r"'a' is also the name of rules\[0\]"):
        Policy(rules=[Rule("a", "5/minute")], descriptors=[DescriptorRule(**EDGE)])


def test_a_rule_that_is_no_rule_for_descriptors_is_refused() -> None:
    with pytest.raises(PolicyError, match="expected a DescriptorRule"):
        Policy(descriptors=[Rule("a", "5/minute")])  # type: ignore[list-item]


def test_rules_for_descriptors_apply_to_no_request() -> None:
    made = policy({"limits": "deny"}, {"limits": "deny", "entries": [{"path": "/"}]})
    gate = Gate(made)
    assert gate.decide(request("/")).kind == "unmatched"


def test_rules_of_an_endpoint_keep_the_rules_for_descriptors() -> None:
    gate = Gate(policy({}))
    base = gate.current()
    layered = gate.layered(base, [Rule("own", "5/minute", match=Match(paths=("/",)))])
    assert layered.descriptors is base.descriptors


def test_an_override_has_the_failure_mode_of_the_policy_even_if_the_rule_is_in_shadow() -> None:
    table = DescriptorTable(policy({"mode": "shadow"}, {"entries": ["b"], "failure": "raise"}, failure="closed"))
    for key, failure in ((b"remote_address", "closed"), (b"b", "raise")):
        rule = table.find(b"edge", [(key, b"x")])
        assert rule is not None
        found = rule.overridden(9, "minute")
        assert found is not None
        assert not found.in_shadow
        assert isinstance(found.plan, tuple)
        assert [(limit.count, limit.failure) for limit in found.plan] == [(9, failure)]
    assert [limit.failure for limit in table.override(9, "hour").plan if not isinstance(limit, str)] == ["closed"]


def test_a_reload_says_what_starts_anew() -> None:
    old = policy({}, {"entries": ["b"]}, {"entries": ["c"]}, {"entries": ["d", "e"]})
    new = policy({"limits": "9/minute"}, {"entries": ["b"], "limits": "5/hour"}, {"entries": ["c", "x"]})
    assert list(changes_between(old, new)) == [
        "rule r1: '5/hour' starts anew: its algorithm or its period has changed",
        "rule r3 is gone: what it has counted is forgotten",
        "descriptors r2: counts by other entries from now on, and starts anew",
    ]
