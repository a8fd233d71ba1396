"""What operators change decides like a policy in which it is written: other limits of clients, switched rules."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratebound import MemoryStorage
from ratebound.policy import Gate, Override, Policy, PolicyError, RequestView, Rule
from ratebound.testing import FakeClock
from tests.property.test_layered import CLIENTS, KEYS, drawn, policies
from tests.property.test_straight import alike, requests, told

# With an algorithm, so that it is the same in the policy; there, one that is written without takes its default.
GIVEN = st.sampled_from(
    ["1/minute sliding-log", "4/minute gcra; 5/hour fixed-window", "deny", "unlimited", "2 concurrent"]
) | st.just("3/minute leaky-bucket")
STATES = st.sampled_from([None, None, "on", "off", "shadow", "candidate"])
ASKED = st.lists(requests(), min_size=1, max_size=3)
SENT = st.lists(st.sampled_from([*KEYS, "unknown"]), min_size=3, max_size=3)


@st.composite
def given_overrides(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Overrides of different clients, as operators give them."""
    clients = draw(st.lists(CLIENTS, max_size=3, unique=True))
    return [
        {"client": client, "tier": draw(st.sampled_from(["gold", "free"]))}
        if draw(st.integers(0, 3)) == 0
        else {
            "client": client,
            "limits": draw(GIVEN),
            "rules": draw(st.lists(st.sampled_from(["rule-0", "rule-1"]), max_size=2, unique=True)),
        }
        for client in clients
    ]


def without_own(policy: Policy, **changes: Any) -> Policy:
    made: dict[str, Any] = {
        "adaptive": policy.pressure,
        "headers": policy.response_headers,
        "rejection": policy.rejection_format,
        "trusted": policy.proxies,
    }
    return replace(policy, **made, **changes)


def same_decisions(gates: list[Gate], asked: list[RequestView], keys: list[str], clock: FakeClock) -> None:
    views = [one for view in drawn(asked, keys) for one in alike(view)]
    for view in views * 2:  # the second time from memory
        found = []
        for gate in gates:
            view.found = None
            verdict = gate.decide(view)
            found.append(told(verdict))
            gate.release(verdict)
        assert found[0] == found[1]
        clock.advance(0.7)


@given(policy=policies(), overrides=given_overrides(), asked=ASKED, keys=SENT)
def test_an_operators_override_decides_like_one_of_the_policy(
    policy: Policy, overrides: list[dict[str, Any]], asked: list[RequestView], keys: list[str]
) -> None:
    clock = FakeClock()
    policy = without_own(policy, overrides=())
    operated = Gate(policy, storage=MemoryStorage(clock=clock), max_delay=1)
    written: list[Override] = []
    for override in overrides:
        wrong: dict[str, str] = {}
        try:
            operated.override(**override)
        except ValueError as error:
            wrong["operator"] = str(error)
        try:
            without_own(policy, overrides=[Override(**override)])
        except PolicyError as error:
            wrong["policy"] = str(error)
        assert len(wrong) in (0, 2), wrong
        if not wrong:
            written.append(Override(**override))
    plain = Gate(without_own(policy, overrides=written), storage=MemoryStorage(clock=clock), max_delay=1)
    same_decisions([operated, plain], asked, keys, clock)


@given(
    policy=policies(),
    states=st.lists(STATES, min_size=4, max_size=4),
    for_all=st.sampled_from([None, None, "on", "off", "shadow"]),
    asked=ASKED,
    keys=SENT,
)
def test_a_switch_decides_like_a_rule_that_is_written_so(
    policy: Policy, states: list[Any], for_all: Any, asked: list[RequestView], keys: list[str]
) -> None:
    clock = FakeClock()
    operated = Gate(policy, storage=MemoryStorage(clock=clock), max_delay=1)
    rules, off = [], []
    for rule, state in zip(policy.rules, states, strict=False):
        if state == "candidate" and rule.candidate is None:
            state = None
        if state is not None:
            operated.set_switch(state, rule=rule.name)
        rules.append(as_written(rule, state))
        off += [rule.name] if state == "off" else []
    if for_all is not None:
        operated.set_switch(for_all)
    names = [rule.name for rule in rules if rule.name not in off]
    overrides = []
    for one in policy.overrides:
        named = [name for name in one.rules or names if name not in off]
        if one.limits is None:
            overrides.append(one)
        elif named:
            overrides.append(replace(one, rules=named))
    switched = without_own(policy, rules=rules, overrides=overrides, switch=for_all or policy.switch)
    same_decisions([operated, Gate(switched, storage=MemoryStorage(clock=clock), max_delay=1)], asked, keys, clock)


def as_written(rule: Rule, state: str | None) -> Rule:
    if state == "on":
        return replace(rule, mode="enforce")
    if state == "shadow":
        return replace(rule, mode="shadow", final=False)
    if state == "candidate":
        return replace(rule, limits=rule.candidate, candidate=None, mode="enforce")
    if state == "off":
        kept = {name: getattr(rule, name) for name in ("match", "mode", "default", "final", "stage")}
        return Rule(rule.name, "unlimited", **kept)
    return rule
