"""Rules that a log cannot judge are named, decide nothing, and still match."""

from typing import Any

import pytest

from ratebound.policy import read_policy
from ratebound.policy.match.request import RequestView
from ratebound.replay.judged_policy import judged_policy


def unknown(request: RequestView) -> None:
    return None


unknown.is_stub = True  # type: ignore[attr-defined]


def verify(key: str) -> str:
    return key


IDENTITIES = {"api-key": {"verify": verify}, "shop": {"call": unknown}}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"limits": "1/minute", "by": "api-key"}, "--header x-api-key=FIELD"),
        ({"limits": "1/minute", "by": "shop"}, "a function finds"),
        ({"limits": "1/minute", "by": "body.username"}, "body.username"),
        ({"limits": "1/minute", "by": "fingerprint"}, "fingerprint"),
        ({"limits": "1/minute", "match": {"headers": {"x-kind": "batch"}}}, "the header x-kind"),
        ({"limits": "1/minute", "charge": "bytes"}, "bytes"),
        ({"limits": "1/minute", "cost": unknown}, "cost"),
    ],
)
def test_a_rule_that_cannot_be_judged_is_named(rule: dict[str, Any], words: str) -> None:
    policy = read_policy({"rules": [{"name": "one", **rule}], "identities": IDENTITIES})
    judged, unjudged = judged_policy(policy)
    assert [(one.rule, one.part) for one in unjudged] == [("one", "")]
    assert words in unjudged[0].reason
    assert judged.rules[0].limits == "unlimited"
    assert judged.rules[0].match == policy.rules[0].match


def test_a_header_that_the_log_has_makes_a_rule_judged() -> None:
    policy = read_policy({"rules": [{"name": "one", "limits": "1/minute", "by": "api-key"}], "identities": IDENTITIES})
    assert judged_policy(policy, ["x-api-key"])[1] == []


def test_slots_are_left_out_and_other_limits_stay() -> None:
    rule = {"name": "one", "limits": "5/minute; 3 concurrent; 20 distinct account/hour", "retry": 5}
    policy = read_policy({"rules": [{**rule, "distinct": {"account": "body.username"}}]})
    judged, unjudged = judged_policy(policy)
    assert [one.part for one in unjudged] == ["3 concurrent", "20 distinct account/hour"]
    assert [limit.text for limit in judged.rules[0].plans["default"]] == ["5/minute"]  # type: ignore[union-attr]


def test_a_plain_policy_is_judged_as_it_is() -> None:
    policy = read_policy(
        {
            "rules": [{"name": "one", "limits": {"default": "1/minute", "gold": "9/minute"}}],
            "tiers": {"gold": ["user:7", "192.0.2.0/24"]},
            "block": ["198.51.100.7"],
        }
    )
    judged, unjudged = judged_policy(policy)
    assert unjudged == []
    assert judged.rules == policy.rules
    assert judged.storage == "memory://"
