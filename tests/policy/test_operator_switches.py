"""Rules that operators switch on, off, into shadow, or to their candidate; and the audit log of all that they do."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ratebound import MemoryStorage, StorageError
from ratebound.policy import AsyncGate, Gate, PolicyFile, Verdict, read_policy
from ratebound.policy.runtime import operator_documents, switched_policy
from ratebound.policy.runtime.general_path import CompiledPolicy
from ratebound.policy.runtime.operator_documents import MAX_CHANGES
from ratebound.policy.runtime.operator_switches import MAX_SWITCHES
from ratebound.testing import FakeClock
from tests.policy.gates import request
from tests.policy.operated import Make, OperatedGate, RemoteStorage

POLICY: dict[str, Any] = {
    "rules": [
        {"name": "login", "match": {"paths": ["/login"]}, "limits": "2/minute", "final": True},
        {"name": "search", "match": {"paths": ["/search"]}, "limits": "2/minute", "candidate": "1/minute"},
        {"name": "trial", "match": {"paths": ["/trial"]}, "limits": "1/minute", "mode": "shadow"},
        {"name": "all", "limits": "5/minute", "match": {"paths": ["/login", "/all"]}},
        {"name": "rest", "limits": "3/minute", "default": True},
    ],
}


@pytest.fixture(autouse=True)
def forget_warnings(caplog: pytest.LogCaptureFixture) -> None:
    switched_policy._log_unfit.cache_clear()
    operator_documents._log_entry.cache_clear()
    caplog.set_level(logging.INFO)


def passes(gate: OperatedGate, path: str, most: int = 20, **client: Any) -> int:
    """Return how many requests pass before the first is denied."""
    for count in range(most):
        if not gate.decide(request(path, **client)).allowed:
            return count
    return most


def shadows(verdict: Verdict) -> list[tuple[str, bool]]:
    return [(shadow.rule.name, shadow.candidate) for shadow in verdict.shadows]


def test_a_rule_that_is_off_asks_nothing_and_still_matches(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    switch = gate.set_switch("off", rule="login", by="ann")
    assert (switch.rule, switch.state, switch.by, gate.switches()) == ("login", "off", "ann", [switch])
    verdict = gate.decide(request("/login"))
    assert (verdict.kind, verdict.decision) == ("unlimited", None)  # final as before: 'all' is not asked
    assert passes(gate, "/login") == 20
    gate.set_switch("off", rule="search")
    assert gate.kind("/search") == "unlimited"  # the default stays away, and no candidate is reported
    assert shadows(gate.decide(request("/search"))) == []
    assert gate.kind("/other") == "limited"
    assert gate.remove_switch("login") is True
    assert gate.remove_switch("login") is False
    assert passes(gate, "/login") == 2


def test_a_rule_in_shadow_is_reported_and_denies_nothing(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    gate.set_switch("shadow", rule="login")
    verdicts = [gate.decide(request("/login")) for _ in range(6)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 5 + [False]  # by 'all': a shadow is never final
    assert [[shadow.allowed for shadow in verdict.shadows] for verdict in verdicts[:3]] == [[True], [True], [False]]
    gate.set_switch("shadow", rule="search")
    assert shadows(gate.decide(request("/search"))) == [("search", False), ("search", True)]
    assert passes(gate, "/search", peer="192.0.2.9") == 3  # by the default: a shadow does not keep it away


def test_a_rule_that_the_policy_has_in_shadow_is_switched_on(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    assert passes(gate, "/trial") == 3
    gate.set_switch("on", rule="trial")
    assert passes(gate, "/trial", peer="192.0.2.2") == 1
    gate.remove_switch("trial")
    assert passes(gate, "/trial", peer="192.0.2.3") == 3


def test_a_candidate_is_promoted_and_counts_are_kept(make: Make, storage: Any, clock: FakeClock) -> None:
    gate = make(POLICY, storage)
    assert gate.decide(request("/search")).allowed
    switch = gate.promote("search", reason="looks good", by="ann")
    assert (switch.state, switch.candidate) == ("candidate", "1/minute")
    verdict = gate.decide(request("/search"))
    assert (verdict.allowed, shadows(verdict)) == (False, [])
    assert [limit.count for limit in verdict.decision.limits] == [1]
    clock.advance(60)
    assert passes(gate, "/search") == 1
    gate.remove_switch("search")
    assert passes(gate, "/search") == 1  # of 2


def test_a_rule_in_shadow_without_a_candidate_is_switched_on_by_a_promotion(make: Make, storage: Any) -> None:
    descriptor = {"name": "edge", "domain": "d", "entries": ["key"], "limits": "3/minute", "mode": "shadow"}
    gate = make({**POLICY, "descriptors": [descriptor]}, storage)
    assert passes(gate, "/trial") == 3  # of the default rule
    assert [gate.promote(rule).state for rule in ("trial", "edge")] == ["on", "on"]
    assert passes(gate, "/trial", peer="192.0.2.2") == 1
    with pytest.raises(ValueError, match="has no candidate"):
        gate.promote("login")


def test_a_promotion_has_no_effect_once_the_candidate_is_another_one(
    make: Make, storage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gate = make(POLICY, storage)
    switch = gate.promote("search")
    assert gate.gate.problem_of(switch) == ""
    rules = [{**rule, "candidate": "7/hour"} if rule["name"] == "search" else rule for rule in POLICY["rules"]]
    gate.gate.use(read_policy({"rules": rules}))
    for _ in range(2):
        verdict = gate.decide(request("/search"))
        assert [limit.count for limit in verdict.decision.limits] == [2]
    assert shadows(verdict) == [("search", True)]
    assert caplog.text.count("which has no effect") == 1
    assert "is '7/hour' by now, and '1/minute' was promoted" in gate.gate.problem_of(switch)
    again = gate.promote("search")
    assert gate.decide(request("/search")).decision.limits[0].count == 7
    gate.gate.use(read_policy(POLICY))
    assert gate.decide(request("/search")).decision.limits[0].count == 2
    assert again in gate.switches()
    gate.gate.use(read_policy({"rules": [{"name": "rest", "limits": "9/minute"}]}))
    assert "unknown rule 'search'" in gate.gate.problem_of(again)
    assert passes(gate, "/search", peer="192.0.2.7") == 9


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"limits": "9/day fixed-window", "over": "allow", "candidate": "2/day fixed-window"}, 2),
        ({"limits": "9/minute", "warn": "80%", "candidate": "deny"}, 0),
        ({"limits": "3 concurrent", "retry": "5 seconds", "candidate": "2/minute"}, 2),
        ({"limits": "9/minute; 9 distinct a/hour", "distinct": {"a": "query.a"}, "candidate": "3/minute"}, 3),
        ({"limits": "9/minute", "candidate": {"gold": "5/minute", "default": "2/minute"}}, 2),
        ({"limits": "9/minute", "candidate": ["3/minute", "2/hour"]}, 2),
        ({"limits": "1/minute", "mode": "shadow", "candidate": "2/minute"}, 2),
    ],
    ids=str,
)
def test_every_kind_of_candidate_can_be_promoted(rule: dict[str, Any], expected: int) -> None:
    gate = Gate(read_policy({"tiers": ["gold"], "rules": [{"name": "one", **rule}]}), storage=MemoryStorage())
    gate.promote("one")
    held = [verdict for verdict in (gate.decide(request()) for _ in range(6)) if verdict.allowed]
    assert len(held) == expected


@pytest.mark.parametrize(("state", "kinds"), [("off", ["off", "off"]), ("shadow", ["unlimited", "unlimited"])])
def test_all_rules_are_switched_together(state: Any, kinds: list[str], make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    gate.set_switch(state, reason="a mistake in the policy")
    assert [gate.kind("/login") for _ in range(4)][2:] == kinds
    assert passes(gate, "/search") == 20
    gate.gate.switch = "on"  # of this gate: it wins
    assert passes(gate, "/login", peer="192.0.2.2") == 2
    gate.gate.switch = None
    assert gate.remove_switch() is True
    assert passes(gate, "/search", peer="192.0.2.3") == 2


def test_a_policy_that_is_off_or_in_shadow_is_switched_on(make: Make, storage: Any) -> None:
    for state in ("off", "shadow"):
        gate = make({**POLICY, "switch": state}, storage)
        assert passes(gate, "/search") == 20
        gate.set_switch("on")
        assert passes(gate, "/search", peer=f"198.51.100.{len(state)}") == 2
        gate.remove_switch()


def test_blocks_and_overrides_follow_the_switch_for_all_rules(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    gate.block("192.0.2.1")
    gate.override("192.0.2.2", limits="deny")
    gate.set_switch("off", rule="search")
    assert gate.kind("/search", peer="192.0.2.2") == "unlimited"  # a rule that is off has no limits for anybody
    assert gate.kind("/login", peer="192.0.2.2") == "deny"
    gate.set_switch("shadow")
    assert gate.decide(request("/login")).kind == "block"
    assert gate.decide(request("/login")).allowed
    assert gate.decide(request("/login", peer="192.0.2.2")).allowed
    gate.set_switch("off")
    assert gate.kind("/login") == "off"
    gate.remove_switch()
    assert not gate.decide(request("/login")).allowed


def test_a_rule_in_shadow_by_a_switch_never_strikes(make: Make, storage: Any, clock: FakeClock) -> None:
    policy = {
        "penalties": {"guessing": {"after": "1 strike/hour", "block": "5 minutes"}},
        "rules": [{"name": "login", "limits": "1/minute", "by": "address", "penalty": "guessing"}],
    }
    gate = make(policy, storage)
    gate.set_switch("shadow", rule="login")
    for _ in range(4):
        assert gate.decide(request()).allowed
    gate.remove_switch("login")
    clock.advance(61)
    assert gate.decide(request()).allowed
    assert not gate.decide(request()).allowed
    gate.set_switch("off", rule="login")
    assert gate.decide(request()).allowed  # a block by a penalty belongs to its rule


def test_a_switch_ends_by_itself_without_anybody_writing(make: Make, storage: Any, clock: FakeClock) -> None:
    gate = make(POLICY, storage)
    gate.set_switch("off", rule="login", for_="30 seconds")
    gate.set_switch("off", rule="search")
    assert gate.kind("/login") == "unlimited"
    clock.advance(30)
    assert (gate.kind("/login"), gate.kind("/search")) == ("limited", "unlimited")
    assert [switch.rule for switch in gate.switches()] == ["search"]


def test_the_first_request_of_an_idle_gate_knows_the_switches(make: Make, clock: FakeClock) -> None:
    storage = RemoteStorage(clock)
    one, two = make(POLICY, storage), make(POLICY, storage)
    assert one.kind("/login") == two.kind("/login") == "limited"
    one.set_switch("off", rule="login")
    assert one.kind("/login") == "unlimited"
    assert two.kind("/login") == "limited"
    clock.advance(1)
    assert two.kind("/login") == "unlimited"
    assert make(POLICY, storage).kind("/login") == "unlimited"
    storage.fails = True
    clock.advance(1)
    assert two.kind("/login") == "unlimited"
    with pytest.raises(StorageError):
        two.remove_switch("login")
    storage.fails = False
    one.remove_switch("login")
    clock.advance(1)
    assert two.kind("/login") == "limited"


def test_a_switch_is_compiled_once_for_a_change_and_never_for_a_request(
    make: Make, storage: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = make(POLICY, storage)
    gate.set_switch("off", rule="login")
    assert gate.kind("/login") == "unlimited"
    made: list[object] = []
    init = CompiledPolicy.__init__

    def count(self: CompiledPolicy, *arguments: Any, **more: Any) -> None:
        made.append(self)
        init(self, *arguments, **more)

    monkeypatch.setattr(CompiledPolicy, "__init__", count)
    for _ in range(3):
        clock.advance(1)
        gate.kind("/login")
        gate.block(f"192.0.2.{len(made)}")
        gate.kind("/search")
    assert made == []
    gate.set_switch("shadow", rule="login")
    gate.kind("/login")
    gate.kind("/login")
    assert len(made) == 1


def test_gates_that_share_a_policy_compile_it_once_for_their_switches(
    make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(POLICY))
    file, storage = PolicyFile(path), RemoteStorage(clock)
    one, two = make(file, storage), make(file, storage)
    one.set_switch("off", rule="login")
    first = one.in_force()
    assert two.in_force() is first
    one.set_switch("off", rule="search")
    second = one.in_force()
    assert two.in_force() is first  # it has not read the documents again
    assert one.in_force() is second
    clock.advance(1)
    assert two.in_force() is second


def test_switches_and_a_file_that_is_read_again_both_apply(make: Make, storage: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(POLICY))
    file = PolicyFile(path, every=0)
    gate = make(file, storage)
    gate.set_switch("off", rule="login")
    path.write_text(json.dumps({"rules": [*POLICY["rules"], {"name": "new", "limits": "1/hour", "default": True}]}))
    assert file.reload()
    assert gate.kind("/login") == "unlimited"
    assert passes(gate, "/other") == 1
    assert [rule.name for rule in gate.gate.policy.rules][-1] == "new"
    assert gate.gate.policy.rules[0].limits == "2/minute"  # as it is written


def test_early_rules_are_asked_once_although_they_are_switched(make: Make, storage: Any) -> None:
    policy = {
        "rules": [{"name": "flood", "limits": "3/minute", "stage": "early"}, {"name": "rest", "limits": "9/minute"}]
    }
    gate = make(policy, storage)
    gate.set_switch("shadow", rule="rest")
    view = request()
    assert gate.decide(view, "early").decision.remaining == 2
    verdict = gate.decide(view)
    assert (verdict.earlier, shadows(verdict)) == (None, [("rest", False)])
    gate.set_switch("off", rule="flood")
    assert [gate.decide(request()).allowed for _ in range(6)] == [True] * 6


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        ("of", {"rule": "login"}, "did you mean 'off'"),
        ("candidate", {}, "expected one of off, on, shadow"),
        ("candidate", {"rule": "login"}, "has no candidate"),
        ("off", {"rule": "logn"}, "did you mean 'login'"),
        ("off", {"rule": ""}, "None for all rules"),
        ("off", {"rule": 5}, "None for all rules"),
        ("off", {"rule": "login", "for_": -1}, "more than 0 seconds"),
        ("off", {"rule": "login", "reason": "x" * 201}, "at most 200 characters"),
        ("off", {"rule": "login", "by": "a\x1b[2J"}, "one line"),
    ],
)
def test_a_mistake_raises_and_changes_nothing(state: str, options: dict[str, Any], message: str, make: Make) -> None:
    gate = make(POLICY, MemoryStorage())
    with pytest.raises(ValueError, match=message):
        gate.set_switch(state, **options)
    assert gate.switches() == gate.changes() == []


def test_there_is_room_for_so_many_switches_and_no_more(make: Make) -> None:
    storage = MemoryStorage()
    entries = [{"rule": f"r{n}", "state": "off", "since": "2023-11-14T22:13:20+00:00"} for n in range(MAX_SWITCHES)]
    assert storage.write_document("switches", json.dumps({"switches": entries}).encode(), 0)
    gate = make(POLICY, storage)
    with pytest.raises(ValueError, match="there are 1000 switches"):
        gate.set_switch("off", rule="login")
    assert gate.kind("/login") == "limited"


def test_usage_and_resets_follow_switches(make: Make, storage: Any) -> None:
    policy = {"rules": [{"name": "one", "by": "user", "limits": "3/minute", "candidate": "2/minute"}]}
    gate = make(policy, storage)
    gate.decide(request(user="42"))
    gate.promote("one")
    assert [(usage.quota, usage.used) for usage in gate.usage_of("user:42")] == [(2, 1)]
    assert [usage.quota for usage in gate.usage(request(user="42"))] == [2]
    assert [usage.quota for usage in gate.usage(request(user="42"), all_rules=True)] == [2]
    gate.set_switch("off", rule="one")
    assert gate.usage_of("user:42") == gate.usage(request(user="42")) == []
    gate.reset("user:42")
    gate.remove_switch("one")
    assert [(usage.quota, usage.used) for usage in gate.usage_of("user:42")] == [(3, 0)]


def test_rules_for_descriptors_follow_switches(make: Make, storage: Any) -> None:
    policy = {"descriptors": [{"name": "edge", "domain": "d", "entries": ["key"], "limits": "3/minute"}]}
    gate = make(policy, storage)

    def found() -> Any:
        return gate.in_force().descriptors.find(b"d", [(b"key", b"x")])

    assert (found().in_shadow, found().plan[0].count) == (False, 3)
    gate.set_switch("shadow", rule="edge")
    assert found().in_shadow
    gate.set_switch("off", rule="edge")
    assert (found().plan, found().is_off) == ("unlimited", True)
    gate.remove_switch("edge")
    assert found().plan[0].count == 3
    with pytest.raises(ValueError, match="descriptors has no candidate"):
        gate.promote("edge")
    gate.set_switch("off")
    assert gate.in_force().policy.switch == "off"


def test_a_decision_without_a_pause_follows_switches(clock: FakeClock) -> None:
    async def run() -> None:
        gate = AsyncGate(read_policy(POLICY), storage=MemoryStorage(clock=clock))
        await gate.set_switch("off", rule="login", for_=60)
        verdict = gate.decide_now(request("/login"))
        assert verdict is not None
        assert verdict.kind == "unlimited"
        clock.advance(60)
        verdict = gate.decide_now(request("/login"))
        assert verdict is not None
        assert verdict.kind == "limited"

    asyncio.run(run())


def test_the_fast_path_of_memory_opens_again_when_nothing_is_in_force(clock: FakeClock) -> None:
    gate = Gate(read_policy(POLICY), storage=MemoryStorage(clock=clock))
    path = gate._decider.fast_path

    def is_open() -> bool:
        gate.decide(request("/login"))
        assert path.states is not None
        return path.states.documents is path.unblocked

    assert is_open()
    for set_something in (
        lambda: gate.set_switch("off", rule="login", for_=10),
        lambda: gate.override("192.0.2.1", limits="5/minute", for_=10),
        lambda: gate.block("192.0.2.2", 10),
    ):
        set_something()
        assert not is_open()
        clock.advance(10)
        assert is_open()
    gate.record("grant", "user:42")
    assert is_open()


def test_every_change_is_in_the_audit_log_the_newest_first(make: Make, storage: Any, clock: FakeClock) -> None:
    gate = make(POLICY, storage)
    for act in (
        lambda: gate.block("192.0.2.1", "1 hour", "scans", by="ann"),
        lambda: gate.override("user:42", limits="5/minute", rules=["search"], reason="big customer", by="bob"),
        lambda: gate.set_switch("shadow", rule="login", by="ann"),
        lambda: gate.promote("search", by="cleo"),
        lambda: gate.set_switch("off", by="cleo"),
        lambda: gate.record("grant", "user:42", "500 units", by="bob"),
        lambda: gate.unblock("192.0.2.1", by="ann"),
        lambda: gate.remove_override("user:42", rules=["search"], by="bob"),
        lambda: gate.remove_switch("login", by="ann"),
        lambda: gate.remove_switch(by="cleo"),
    ):
        act()
        clock.advance(1)
    changes = gate.changes()
    assert [change[1:] for change in changes] == [
        ("cleo", "remove switch", "all rules", ""),
        ("ann", "remove switch", "login", ""),
        ("bob", "remove override", "user:42", "for the rules search"),
        ("ann", "unblock", "192.0.2.1", ""),
        ("bob", "grant", "user:42", "500 units"),
        ("cleo", "switch", "all rules", "off, until it is removed"),
        ("cleo", "switch", "search", "candidate, 1/minute, until it is removed"),
        ("ann", "switch", "login", "shadow, until it is removed"),
        ("bob", "override", "user:42", "5/minute, for the rules search, until it is removed: big customer"),
        ("ann", "block", "192.0.2.1", "until 2023-11-14 23:13:20 UTC: scans"),
    ]
    assert changes[-1].at.isoformat() == "2023-11-14T22:13:20+00:00"
    assert set(json.loads(storage.read_document("audit")[1])) == {"changes"}
    assert gate.unblock("192.0.2.1", by="ann") is False
    assert gate.changes() == changes  # nothing was done


def test_the_audit_log_of_a_document_keeps_the_last_changes(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    for number in range(MAX_CHANGES + 5):
        gate.record("grant", f"user:{number}")
    gate.block("192.0.2.1")
    changes = gate.changes()
    assert len(changes) == MAX_CHANGES + 1
    assert "user:0" not in [change.target for change in changes]
    assert f"user:{MAX_CHANGES + 4}" in [change.target for change in changes]


@pytest.mark.parametrize(
    ("arguments", "by"),
    [(("x" * 101, "t"), ""), (("a", "t" * 1001), ""), (("a", "t", "d" * 401), ""), (("a", "t"), "\n")],
)
def test_a_text_that_is_too_long_or_has_more_than_one_line_is_not_recorded(
    arguments: tuple[str, ...], by: str, make: Make
) -> None:
    gate = make(POLICY, MemoryStorage())
    with pytest.raises(ValueError, match="one line of at most"):
        gate.record(*arguments, by=by)


def test_a_layer_of_an_endpoint_is_switched_by_name(make: Make, storage: Any) -> None:
    gate = make(POLICY, storage)
    own = read_policy({"rules": [{"name": "own", "limits": "1/minute", "candidate": "4/minute"}]}).rules
    layered = gate.gate.layered(gate.gate.current(), own)
    known = layered.rules

    def denied(peer: str) -> int:
        return [gate.decide_by(layered, request("/all", peer=peer), "late").allowed for _ in range(7)].index(False)

    assert denied("192.0.2.1") == 1
    gate.set_switch("off", rule="own", known=known)
    assert denied("192.0.2.2") == 5
    gate.promote("own", known=known)
    assert denied("192.0.2.3") == 4
    gate.set_switch("shadow", rule="all")
    gate.remove_switch("own")
    assert denied("192.0.2.4") == 1
    with pytest.raises(ValueError, match="unknown rule 'own'"):
        gate.set_switch("off", rule="own")
