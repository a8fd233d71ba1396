"""Rules layered on a compiled policy decide as a policy does that has them written out, and raise what that raises."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import MemoryStorage
from ratebound.policy import Computed, Gate, Identity, Match, Override, Policy, PolicyError, RequestView, Rule, Source
from ratebound.policy.model.rule import Mode
from ratebound.policy.problem import Problem
from ratebound.policy.runtime.explain import Explanation, explain_compiled
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.policy.runtime.layered_policy import written_out
from ratebound.testing import FakeClock
from tests.property.test_straight import BY, HOSTS, LIMITS, METHODS, PATTERNS, alike, requests, told

KEYS: dict[str, Identity | str] = {
    "gold-key": Identity("key", "one", "gold"),
    "plain-key": Identity("key", "two"),
    "free-key": "three",
}
CLIENTS = st.sampled_from(["192.0.2.1", "192.0.2.0/24", "10.0.0.0/8", "user:ann", "user:7", "key:one", "2001:db8::/32"])


def find_key(request: RequestView) -> Identity | str | None:
    return KEYS.get(request.header("x-key") or "")


def find_limits(request: RequestView) -> str | None:
    return {"one": "4/minute", "two": "unlimited", "none": "deny", "bad": "many"}.get(
        request.header("user-agent") or ""
    )


def find_cost(request: RequestView) -> int:
    return 2 if request.method == "POST" else 1


def one_in(draw: st.DrawFn, count: int) -> bool:
    return draw(st.integers(1, count)) == count


@st.composite
def matches(draw: st.DrawFn, is_plain: bool, is_early: bool) -> Match:
    """A match of path, method and host, and of all else unless it is plain. Half of them meet everything."""
    if draw(st.booleans()):
        return Match()
    if is_plain or draw(st.booleans()):
        return Match(paths=draw(PATTERNS), methods=draw(METHODS), hosts=draw(HOSTS))
    return Match(
        addresses=draw(st.sampled_from([(), ["192.0.2.0/24"]])),
        headers=draw(st.sampled_from([{}, {"user-agent": "one"}, {"x-key": True}])),
        tiers=() if is_early else draw(st.sampled_from([(), ["gold"], ["free", "gold"]])),
    )


@st.composite
def rules(draw: st.DrawFn, name: str, is_plain: bool) -> Rule:
    """A rule that the fast path can decide if it is plain, with few exceptions."""
    is_early = one_in(draw, 4)
    mode: Mode = draw(st.sampled_from(["enforce", "enforce", "enforce", "shadow"]))
    limits = LIMITS | st.sampled_from(["150/hour", "2/hour"])
    by: st.SearchStrategy[Any] = st.sampled_from([None, "address", "global", "prefix"]) if is_early else BY
    cost: Any = 1
    candidate = None
    if not is_plain:
        cost = draw(st.sampled_from([1, find_cost]))
        candidate = draw(st.sampled_from([None, None, "1/minute", "deny"]))
        if not is_early:
            by_tier = {"gold": "5/minute", "default": "2/minute"}
            one_tier = {"gold": "deny", "free": "1/minute", "default": "unlimited"}
            limits |= st.sampled_from([by_tier, one_tier, Computed(find_limits, otherwise="2/minute"), "deny"])
            by |= st.sampled_from([find_key, "key", ["key", "user"]])
    return Rule(
        name,
        draw(limits),
        match=draw(matches(is_plain, is_early)),
        by=draw(by),
        cost=cost,
        candidate=candidate,
        failure=draw(st.sampled_from(["", "", "open", "closed"])),
        default=one_in(draw, 3),
        final=mode == "enforce" and one_in(draw, 8),
        mode=mode,
        stage="early" if is_early else "late",
    )


@st.composite
def overrides(draw: st.DrawFn, names: list[str]) -> Override:
    if draw(st.integers(0, 3)) == 0:
        return Override(draw(CLIENTS), tier=draw(st.sampled_from(["gold", "free"])))
    limits = draw(st.sampled_from(["1/minute", "150/hour", "deny", "unlimited", ["3/minute", "200/hour"]]))
    return Override(draw(CLIENTS), limits, rules=draw(st.lists(st.sampled_from(names), max_size=1)))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    is_plain = draw(st.booleans())
    made = [draw(rules(f"rule-{number}", is_plain)) for number in range(draw(st.integers(1, 4)))]
    options: dict[str, Any] = {
        "by": draw(st.sampled_from(["address", ("user", "address"), ["key", "user"]])),
        "trusted": draw(st.sampled_from([[], ["10.0.0.0/8"]])),
        "exempt": draw(st.sampled_from([[], [], [Match(paths=["/a/b"])], [Match(addresses=["10.0.0.0/8"])]])),
        "switch": "shadow" if one_in(draw, 10) else "off" if one_in(draw, 20) else "on",
        "failure": draw(st.sampled_from(["local", "open"])),
        "tiers": ["gold", "free"],
        "default_tier": draw(st.sampled_from([None, "free"])),
        "identities": {"key": Source(call=find_key, kinds=["key"])},
    }
    lists: dict[str, Any] = {}
    if not is_plain:
        lists = {
            "tiers": draw(st.sampled_from([["gold", "free"], {"gold": ["user:ann"], "free": "192.0.2.0/24"}])),
            "allow": [draw(CLIENTS)] if one_in(draw, 6) else [],
            "block": [draw(CLIENTS)] if one_in(draw, 6) else [],
            "overrides": draw(st.lists(overrides([rule.name for rule in made]), max_size=3)),
        }
    for kept in (made, [rule for rule in made if not rule.final], [Rule("rule-0", "2/minute")]):
        try:
            return Policy(rules=kept, **options | lists)
        except PolicyError:  # a rule behind a final one that hides it; an override for a rule that is not there
            lists.pop("overrides", None)
    raise AssertionError("a policy of one plain rule is right")


@st.composite
def endpoint_rules(draw: st.DrawFn) -> list[Rule]:
    """Rules of which some have the name of another, and some cannot be used with any policy here."""
    is_plain = draw(st.booleans())
    names = [draw(st.sampled_from(["own-0", "rule-0"])) if one_in(draw, 12) else f"own-{n}" for n in range(3)]
    found = [draw(rules(name, is_plain)) for name in names[: draw(st.integers(1, 3))]]
    return [*found, draw(st.sampled_from(WRONG))] if one_in(draw, 10) else found


WRONG = [
    Rule("wrong-tier", {"silver": "1/minute", "default": "2/minute"}),
    Rule("wrong-match", "1/minute", match=Match(tiers=["silver"])),
    Rule("wrong-by", "1/minute", by="tenant"),
    Rule("wrong-early", "1/minute", by="user", stage="early"),
    Rule("wrong-names", "1/minute as candidate.minute"),
    Rule("wrong-cost", "100/minute", cost=50),  # an override may give less
    Rule("left-out", {"gold": "1/minute"}),
]


def drawn(views: list[RequestView], keys: list[str]) -> list[RequestView]:
    """The requests, each with a key that some rules count by."""
    return [
        RequestView(
            view.method,
            view.path,
            host=view.host,
            headers=[*view.headers, ("x-key", key)],
            peer=view.peer,
            user=view.user,
            route=view.route,
        )
        for view, key in zip(views, keys, strict=False)
    ]


def made_or_problems(make: Callable[[], CompiledPolicy]) -> CompiledPolicy | tuple[Problem, ...]:
    try:
        return make()
    except PolicyError as error:
        return error.problems


def explained(explanation: Explanation) -> tuple[Any, ...]:
    reports = [(report.rule.name, report.rule.default, *report[1:]) for report in explanation.rules]
    return (*explanation[:-1], reports)


def facts(compiled: CompiledPolicy) -> dict[str, Any]:
    policy = compiled.policy
    return {
        "rules": [(one.rule.name, one.rule.default, one.plans, one.candidates, one.failure) for one in compiled.rules],
        "in the policy": [rule.name for rule in policy.rules],
        "by": {name: [[kind.name for kind in parts] for parts in by] for name, by in policy.rule_by.items()},
        "counter windows": dict(policy.counter_windows),
        "early": compiled.has_early,
        "queues": compiled.may_queue,
        "functions": {id(function) for function in compiled.functions()},
        "body": policy.reads_body,
        "fast": set(compiled._lines),
    }


@given(
    policy=policies(),
    own=endpoint_rules(),
    mode=st.sampled_from([{}, {}, {"keep_defaults": True}, {"alone": True}]),
    asked=st.lists(requests(), min_size=1, max_size=3),
    keys=st.lists(st.sampled_from([*KEYS, "unknown"]), min_size=3, max_size=3),
    is_fast=st.booleans(),
)
def test_a_layer_says_what_the_policy_says_that_is_written_out(
    policy: Policy, own: list[Rule], mode: dict[str, bool], asked: list[RequestView], keys: list[str], is_fast: bool
) -> None:
    base = CompiledPolicy(policy)
    layered = made_or_problems(lambda: base.layered(own, **mode))
    whole = made_or_problems(lambda: CompiledPolicy(written_out(policy, own, **mode)))
    if not isinstance(layered, CompiledPolicy) or not isinstance(whole, CompiledPolicy):
        assert layered == whole
        return
    assert facts(layered) == facts(whole)
    if not is_fast:
        layered._lines = {}
    clock = FakeClock()
    gates = [(Gate(policy, storage=MemoryStorage(clock=clock), max_delay=1), one) for one in (layered, whole)]
    views = [one for view in drawn(asked, keys) for one in alike(view)]
    for view in views * 2:  # the second time from memory
        for stage in ("early", "late"):
            found = []
            for gate, compiled in gates:
                view.found = None
                verdict = gate.decide_by(compiled, view, stage)
                rules = [*verdict.asked, *(shadow.rule for shadow in verdict.shadows)]
                found.append((told(verdict), [(rule.name, rule.default) for rule in rules]))
            assert found[0] == found[1]
        clock.advance(0.7)
    for view in views:
        for stage in ("early", "late"):
            reports = []
            for compiled in (layered, whole):
                view.found = None
                reports.append(explained(explain_compiled(compiled, view, stage)))
            assert reports[0] == reports[1]


@given(policy=policies(), own=endpoint_rules(), asked=st.lists(requests(), min_size=1, max_size=3))
def test_a_layer_changes_nothing_below_it(policy: Policy, own: list[Rule], asked: list[RequestView]) -> None:
    base, untouched = CompiledPolicy(policy), CompiledPolicy(policy)
    for mode in ({}, {"keep_defaults": True}, {"alone": True}):
        try:
            base.layered(own, **mode)
        except PolicyError:
            continue
    assert facts(base) == facts(untouched)
    clock = FakeClock()
    gates = [(Gate(policy, storage=MemoryStorage(clock=clock)), one) for one in (base, untouched)]
    for view in asked * 2:
        found = []
        for gate, compiled in gates:
            view.found = None
            found.append(told(gate.decide_by(compiled, view, "late")))
        assert found[0] == found[1]


def names_asked(compiled: CompiledPolicy, view: RequestView) -> list[str]:
    return [rule.name for rule in Gate(compiled.policy).decide_by(compiled, view, "late").asked]


def test_defaults_that_are_kept_stand_where_the_policy_has_them() -> None:
    policy = Policy(rules=[Rule("first", "5/minute", default=True), Rule("second", "5/minute")])
    layered = CompiledPolicy(policy).layered([Rule("own", "5/minute")], keep_defaults=True)
    assert names_asked(layered, RequestView("GET", "/", peer="192.0.2.1")) == ["own", "first", "second"]


@pytest.mark.parametrize(
    ("match", "met", "missed"),
    [
        (Match(paths=["/a"]), RequestView("GET", "/a"), RequestView("GET", "/b")),
        (Match(methods=["POST"]), RequestView("POST", "/a"), RequestView("GET", "/a")),
        (Match(hosts=["x.test"]), RequestView("GET", "/", host="x.test"), RequestView("GET", "/", host="y.test")),
        (Match(headers={"x-key": True}), RequestView("GET", "/", headers=[("x-key", "1")]), RequestView("GET", "/")),
        (Match(addresses=["10.0.0.1"]), RequestView("GET", "/", peer="10.0.0.1"), RequestView("GET", "/", peer="::1")),
    ],
    ids=["path", "method", "host", "header", "address"],
)
@pytest.mark.parametrize("is_own", [True, False], ids=["of the endpoint", "of the policy"])
def test_either_side_may_look_at_what_the_other_does_not(
    match: Match, met: RequestView, missed: RequestView, is_own: bool
) -> None:
    plain, particular = Rule("plain", "5/minute"), Rule("particular", "5/minute", match=match)
    own, base = (particular, plain) if is_own else (plain, particular)
    layered = CompiledPolicy(Policy(rules=[base])).layered([own])
    for view, expected in ((met, [own.name, base.name]), (missed, ["plain"])) * 2:
        assert names_asked(layered, view) == expected


def test_an_override_for_all_rules_holds_for_the_endpoints_and_one_that_names_rules_does_not() -> None:
    overrides = [Override("192.0.2.1", "7/minute"), Override("192.0.2.2", "7/minute", rules=["all"])]
    policy = Policy(rules=[Rule("all", "5/minute")], overrides=overrides)
    layered = CompiledPolicy(policy).layered([Rule("own", "5/minute")])
    counts = []
    for peer in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        decision = Gate(policy).decide_by(layered, RequestView("GET", "/", peer=peer), "late").decision
        assert decision is not None
        counts.append([limit.count for limit in decision.limits])
    assert counts == [[7, 7], [5, 7], [5, 5]]


@pytest.mark.parametrize(
    ("own", "mode"),
    [(Rule("first", "5/minute"), {}), (Rule("own", "5/minute"), {"keep_defaults": True})],
    ids=["a name that is taken", "a final default that hides another rule"],
)
def test_what_is_wrong_with_all_rules_together_is_told_as_of_a_policy(own: Rule, mode: dict[str, bool]) -> None:
    policy = Policy(rules=[Rule("first", "5/minute", default=True, final=True), Rule("second", "5/minute")])
    problems = made_or_problems(lambda: CompiledPolicy(policy).layered([own], **mode))
    assert problems == made_or_problems(lambda: CompiledPolicy(written_out(policy, [own], **mode)))
    assert not isinstance(problems, CompiledPolicy)


@pytest.mark.parametrize("keep_defaults", [False, True])
def test_no_rules_in_front_change_nothing(keep_defaults: bool) -> None:
    policy = Policy(rules=[Rule("all", "2/minute"), Rule("rest", "1/minute", default=True)])
    compiled = CompiledPolicy(policy)
    layered = compiled.layered([], keep_defaults=keep_defaults).policy
    assert [(rule.name, rule.default) for rule in layered.rules] == [("all", False), ("rest", not keep_defaults)]
    with pytest.raises(PolicyError, match="a policy without rules"):
        compiled.layered([], alone=True)
