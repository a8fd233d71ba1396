"""envoyproxy/ratelimit's YAML as rules for the same descriptors."""

from pathlib import Path

import pytest

from ratebound.policy import EntryMatch, PolicyError, read_policy
from ratebound.policy.imports import import_envoy_descriptors
from tests.policy_cli.commands import run, written

MESSAGES = """
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: day, requests_per_unit: 5 }
  - key: to_number
    rate_limit: { name: per_number, unit: week, requests_per_unit: 100 }
  - key: path
    value: "/files/*"
    share_threshold: true
    detailed_metric: true
    shadow_mode: true
    rate_limit: { unit: HOUR, requests_per_unit: 25, replaces: [{ name: per_number }, { name: gone }] }
  - key: path
    value: /closed
    rate_limit: { unit: second, requests_per_unit: 0 }
  - key: path
    value: /free
    rate_limit: { unlimited: true }
  - key: path
    value: /also-free
"""


def test_each_limit_is_a_rule_with_the_same_entries() -> None:
    policy = read_policy(import_envoy_descriptors(MESSAGES).text, environ={})
    found = {rule.name: rule for rule in policy.descriptors}
    assert {rule.domain for rule in policy.descriptors} == {"messaging"}
    assert {name: (rule.limits, rule.mode) for name, rule in found.items()} == {
        "message_type_marketing_to_number": ("5/day fixed-window", "enforce"),
        "per_number": ("100/week fixed-window", "enforce"),
        "files": ("25/hour fixed-window", "shadow"),
        "closed": ("deny", "enforce"),
        "free": ("unlimited", "enforce"),
        "also-free": ("unlimited", "enforce"),
    }
    assert found["message_type_marketing_to_number"].conditions == (
        EntryMatch("message_type", "marketing"),
        EntryMatch("to_number"),
    )
    assert found["files"].conditions == (EntryMatch("path", "/files/*", shared=True),)
    assert found["files"].replaces == ("per_number",)
    assert not policy.rules


def test_what_differs_is_noted() -> None:
    lost = import_envoy_descriptors(MESSAGES).lost
    assert [what for what in lost if "detailed_metric" in what]
    assert [what for what in lost if "replaces gone" in what]
    assert [what for what in lost if "charges a denied request" in what]
    assert not [what for what in lost if "domain" in what]


def test_values_that_yaml_or_the_loader_would_change_stay_as_they_are() -> None:
    text = """{"domain": "e", "descriptors": [
        {"key": "a", "value": "yes", "rate_limit": {"unit": "hour", "requests_per_unit": 1}},
        {"key": "a", "value": "${HOME}", "rate_limit": {"unit": "hour", "requests_per_unit": 1}},
        {"key": "a", "value": "10", "rate_limit": {"unit": "hour", "requests_per_unit": 1}},
        {"key": "key", "value": "value", "rate_limit": {"unit": "hour", "requests_per_unit": 1}},
        {"key": "true", "rate_limit": {"unit": "hour", "requests_per_unit": 1}},
        {"key": "k: {}", "value": "'\\"#", "rate_limit": {"unit": "hour", "requests_per_unit": 1}}]}"""
    policy = read_policy(import_envoy_descriptors(text).text, environ={})
    assert [rule.conditions for rule in policy.descriptors] == [
        (EntryMatch("a", "yes"),),
        (EntryMatch("a", "${HOME}"),),
        (EntryMatch("a", "10"),),
        (EntryMatch("key", "value"),),
        (EntryMatch("true"),),
        (EntryMatch("k: {}", "'\"#"),),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("descriptors: []", "domain and descriptors"),
        ("domain: e\ndescriptors: [{key: a}]", "nothing to import"),
        ("domain: e\ndescriptors: [{value: a}]", "needs a key"),
        ("domain: e\ndescriptors: [{key: a, rate_limit: {unit: eon, requests_per_unit: 1}}]", "unit 'eon'"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        import_envoy_descriptors(text)


def test_the_command_writes_a_policy_that_can_be_checked(tmp_path: Path) -> None:
    output = str(tmp_path / "new.yaml")
    done = run("import", "envoy", written(tmp_path, MESSAGES), "--descriptors", "-o", output)
    assert done.exit_code == 0, done.output
    assert run("check", output).exit_code == 0


def test_the_option_is_for_envoy_alone(tmp_path: Path) -> None:
    done = run("import", "nginx", written(tmp_path, "http {}"), "--descriptors")
    assert done.exit_code != 0
    assert "--descriptors is for envoy, not for nginx" in done.output


def test_a_value_that_yaml_reads_as_a_boolean_is_its_text() -> None:
    limit = "rate_limit: {unit: minute, requests_per_unit: 5}"
    text = (
        f"domain: edge\ndescriptors: [{{key: internal, value: true, {limit}}}, {{key: internal, value: 'no', {limit}}}]"
    )
    policy = read_policy(import_envoy_descriptors(text).text, environ={})
    assert [rule.entries for rule in policy.descriptors] == [[{"internal": "true"}], [{"internal": "no"}]]
