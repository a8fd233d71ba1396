"""What a gate decides: which rules apply, together and at once, and what the others say."""

import asyncio
import logging
from typing import Any

import pytest

from ratebound import MemoryStorage, StorageError
from ratebound.events import Decided
from ratebound.limit import Failure, Limit
from ratebound.policy import (
    AsyncGate,
    Computed,
    Gate,
    Identity,
    Judged,
    Match,
    Override,
    Policy,
    PolicyError,
    Rule,
    Source,
    Verdict,
    explain,
    read_policy,
)
from ratebound.storage import Storage
from ratebound.testing import FakeClock, limiting_off
from tests.policy.gates import decide, gate_of, passes, request


def names(verdict: Verdict) -> list[str]:
    return [rule.name for rule in verdict.asked]


def test_all_matching_rules_are_one_decision_that_charges_all_or_none() -> None:
    gate = gate_of(Policy(rules=[Rule("user", "10/minute", by="user"), Rule("all", "3/minute", by="global")]))
    verdicts = [decide(gate, request(user="ann")) for _ in range(5)]
    assert [bool(verdict) for verdict in verdicts] == [True] * 3 + [False] * 2
    last = verdicts[-1]
    assert last.decision is not None
    assert [outcome.remaining for outcome in last.decision.outcomes] == [7, 0], "a rejection is charged nothing"
    assert [rule.name for rule in last.rules] == ["user", "all"]
    assert last.rule is not None
    assert last.rule.name == "all"
    assert last.identity == Identity("global", "")


def test_a_decision_is_one_call_to_the_storage_shadows_included() -> None:
    calls: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self.memory = MemoryStorage()

        def evaluate(self, groups: Any, mode: Any = "spend") -> Any:
            calls.append(len(groups))
            return self.memory.evaluate(groups, mode)

        def reset(self, group: Any) -> None: ...

        def close(self) -> None: ...

    rules = [Rule("a", "5/minute", candidate="1/minute"), Rule("b", "5/minute"), Rule("c", "1/minute", mode="shadow")]
    storage: Storage = Counting()
    with Gate(Policy(rules=rules), storage=storage) as gate:
        assert decide(gate, request())
    assert calls == [3]


def test_default_rules_apply_only_when_no_other_matched() -> None:
    rules = [
        Rule("rest", "9/minute", default=True),
        Rule("login", "5/minute", match=Match(paths=("/login",))),
        Rule("posts", "7/minute", default=True, match=Match(methods=("POST",))),
    ]
    gate = gate_of(Policy(rules=rules))
    assert names(decide(gate, request("/login", "POST"))) == ["login"]
    assert names(decide(gate, request("/other", "POST"))) == ["rest", "posts"]
    assert names(decide(gate, request("/other"))) == ["rest"]


def test_a_final_rule_ends_the_search() -> None:
    rules = [
        Rule("first", "5/minute"),
        Rule("login", "5/minute", match=Match(paths=("/login",)), final=True),
        Rule("last", "5/minute"),
    ]
    gate = gate_of(Policy(rules=rules))
    assert names(decide(gate, request("/login"))) == ["first", "login"]
    assert names(decide(gate, request("/"))) == ["first", "last"]


def test_a_rule_in_shadow_changes_nothing_that_is_enforced() -> None:
    rules = [Rule("try", "1/minute", mode="shadow"), Rule("rest", "3/minute", default=True)]
    gate = gate_of(Policy(rules=rules))
    verdicts = [decide(gate, request()) for _ in range(4)]
    assert [bool(verdict) for verdict in verdicts] == [True, True, True, False]
    assert [verdict.shadows[0].allowed for verdict in verdicts] == [True, False, False, False]
    assert verdicts[0].shadows[0].identity == Identity("address", "192.0.2.1")
    with pytest.raises(PolicyError, match="cannot be final"):
        Rule("try", "1/minute", mode="shadow", final=True)


def test_a_shadow_that_denies_is_reported() -> None:
    verdict = decide(gate_of(Policy(rules=[Rule("closed", "deny", mode="shadow")])), request())
    assert verdict
    assert verdict.kind == "unlimited"
    assert not verdict.shadows[0].allowed


def test_candidates_have_counts_of_their_own() -> None:
    gate = gate_of(Policy(rules=[Rule("a", "2/minute", candidate={"default": "3/minute"})]))
    verdicts = [decide(gate, request()) for _ in range(5)]
    assert [bool(verdict) for verdict in verdicts] == [True, True, False, False, False]
    assert [verdict.shadows[0].allowed for verdict in verdicts] == [True, True, True, False, False]
    assert all(shadow.candidate for verdict in verdicts for shadow in verdict.shadows)


def test_the_two_stages_are_two_decisions() -> None:
    rules = [Rule("early", "5/minute", stage="early"), Rule("late", "3/minute", by="user")]
    gate = gate_of(Policy(rules=rules))
    view = request(user=None)
    assert names(gate.decide(view, "early")) == ["early"]
    view.user = "ann"
    verdict = gate.decide(view, "late")
    assert names(verdict) == ["late"]
    assert verdict.identity == Identity("user", "ann")
    assert passes(gate, request(), stage="early") == 4


def test_deny_and_block_refuse_without_the_storage() -> None:
    class Down:
        def evaluate(self, groups: Any, mode: Any = "spend") -> Any:
            raise AssertionError("not to be asked")

        def reset(self, group: Any) -> None: ...

        def close(self) -> None: ...

    rules = [
        Rule("admin", "deny", match=Match(paths=("/admin",)), message="Go away.", documentation="https://a.example")
    ]
    gate = Gate(Policy(rules=rules, block=["192.0.2.66", "user:mallory"]), storage=Down())
    verdict = decide(gate, request("/admin"))
    assert (verdict.allowed, verdict.kind, verdict.decision) == (False, "deny", None)
    assert (verdict.message, verdict.documentation) == ("Go away.", "https://a.example")
    assert decide(gate, request(peer="192.0.2.66")).kind == "block"
    assert decide(gate, request(user="mallory")).kind == "block"
    assert decide(gate, request(user="mallory"), "early").kind == "unmatched", "nobody is known yet"
    assert decide(gate, request()).kind == "unmatched"


@pytest.mark.parametrize("name", ["message", "documentation"])
def test_words_that_cannot_be_sent_are_refused(name: str) -> None:
    bad: dict[str, Any] = {name: "a \ud800"}
    good: dict[str, Any] = {name: "ä 😀"}
    with pytest.raises(PolicyError, match=f"{name}: half of a surrogate pair"):
        Rule("a", "5/minute", **bad)
    with pytest.raises(PolicyError, match=f"rules.0..{name}: half of a surrogate pair"):
        read_policy(f'{{"rules": [{{"name": "a", "limits": "5/minute", "{name}": "\\ud800"}}]}}')
    with pytest.raises(PolicyError, match=f"{name} cannot be sent"):
        Policy(rules=[Rule("a", "5/minute")], rejection=bad)
    assert Rule("a", "5/minute", **good)


def test_block_wins_over_allow() -> None:
    gate = gate_of(Policy(rules=[Rule("a", "1/minute")], allow=["192.0.2.0/24"], block=["192.0.2.66"]))
    assert decide(gate, request(peer="192.0.2.66")).kind == "block"
    assert passes(gate, request(peer="192.0.2.67"), most=9) == 9


def test_limits_by_tier_come_from_the_identity() -> None:
    def verify(key: str) -> Identity:
        return Identity("", key, {"p": "pro", "x": "unheard-of"}.get(key[0]))

    policy = Policy(
        rules=[Rule("a", {"pro": "9/minute", "default": "3/minute"}, by="api-key")],
        tiers=["pro", "free"],
        identities={"api-key": Source(verify=verify)},
    )
    gate = gate_of(policy)
    assert passes(gate, request(headers={"x-api-key": "p1"})) == 9
    assert passes(gate, request(headers={"x-api-key": "f1"})) == 3
    assert passes(gate, request(headers={"x-api-key": "x1"})) == 3
    assert passes(gate, request()) == 3


def test_a_rule_may_match_a_tier() -> None:
    policy = Policy(
        rules=[Rule("pro", "9/minute", match=Match(tiers=("pro",))), Rule("rest", "3/minute", default=True)],
        tiers={"pro": ["user:ann", "203.0.113.0/24"], "free": None},
        default_tier="free",
    )
    gate = gate_of(policy)
    assert passes(gate, request(user="ann")) == 9
    assert passes(gate, request(peer="203.0.113.5")) == 9
    assert passes(gate, request(user="bob")) == 3


def test_moving_up_a_tier_keeps_the_count() -> None:
    tiers = {"ann": "free"}
    policy = Policy(
        rules=[Rule("a", {"free": "3/minute", "pro": "5/minute"})],
        tiers=["free", "pro"],
        default_tier="free",
        identities={"user": Source(call=lambda view: Identity("", str(view.user), tiers[str(view.user)]))},
    )
    gate = gate_of(policy)
    assert passes(gate, request(user="ann")) == 3
    tiers["ann"] = "pro"
    assert passes(gate, request(user="ann")) == 2


def test_an_override_changes_limits_or_the_tier_of_one_client() -> None:
    policy = Policy(
        rules=[Rule("a", {"free": "3/minute", "pro": "5/minute"}), Rule("b", "20/minute", match=Match(paths=("/b",)))],
        tiers=["free", "pro"],
        default_tier="free",
        overrides=[
            Override("user:ann", tier="pro"),
            Override("user:bob", limits="7/minute", rules="a"),
            Override("user:eve", limits="deny"),
            Override("user:god", limits="unlimited"),
            Override("198.51.100.0/24", limits="2/minute"),
            Override("198.51.100.7", limits="4/minute"),
        ],
    )
    gate = gate_of(policy)
    assert passes(gate, request(user="ann")) == 5
    assert passes(gate, request("/b", user="bob")) == 7
    assert decide(gate, request(user="eve")).kind == "deny"
    assert decide(gate, request(user="god")).kind == "unlimited"
    assert passes(gate, request(peer="198.51.100.8")) == 2
    assert passes(gate, request(peer="198.51.100.7")) == 4, "the narrowest range speaks first"


def test_limits_may_be_computed() -> None:
    def find(view: Any) -> Any:
        return {"ann": "2/minute", "bob": "deny", "carl": [Limit(4, 60_000_000)], "bad": "5/nothing"}.get(view.user)

    gate = gate_of(Policy(rules=[Rule("a", Computed(find, otherwise="3/minute"))]))
    assert passes(gate, request(user="ann")) == 2
    assert decide(gate, request(user="bob")).kind == "deny"
    assert passes(gate, request(user="carl")) == 4
    assert passes(gate, request(user="bad")) == 3
    assert passes(gate, request(user="dora")) == 3
    with pytest.raises(PolicyError, match="otherwise"):
        Rule("a", find)


def test_the_switch_turns_everything_off_or_into_shadow() -> None:
    gate = gate_of(
        Policy(rules=[Rule("a", "1/minute"), Rule("b", "deny", match=Match(paths=("/b",)))], block=["192.0.2.66"])
    )
    gate.switch = "off"
    assert decide(gate, request(peer="192.0.2.66")).kind == "off"
    gate.switch = "shadow"
    assert passes(gate, request(), request("/b"), request(peer="192.0.2.66"), most=9) == 9
    assert not decide(gate, request()).shadows[0].allowed
    gate.switch = None
    assert passes(gate, request()) == 0
    with pytest.raises(ValueError, match="did you mean 'shadow'"):
        gate.switch = "shaddow"  # type: ignore[assignment]


@pytest.mark.parametrize(("word", "count"), [("on", 1), ("off", 9), ("shadow", 9)])
def test_the_switch_stands_in_the_file_too(word: str, count: int) -> None:
    assert passes(gate_of(f"switch: {word}\nrules: [{{name: a, limits: 1/minute}}]"), request(), most=9) == count


def test_a_verdict_can_be_settled(clock: FakeClock) -> None:
    gate = gate_of(Policy(rules=[Rule("login", "3/minute"), Rule("all", "9/minute", by="global")]), clock)
    for _ in range(10):
        verdict = decide(gate, request())
        assert verdict
        gate.settle(verdict, cost=0)
    settled = gate.settle(decide(gate, request()), cost=[3, 1])
    assert settled.decision is not None
    assert [outcome.remaining for outcome in settled.decision.outcomes] == [0, 8]
    refused = decide(gate, request())
    assert gate.settle(refused, cost=0) is refused


def test_listeners_hear_of_decisions_and_verdicts() -> None:
    heard: list[Any] = []
    gate = gate_of(Policy(rules=[Rule("a", "1/minute", match=Match(paths=("/a",)))]), listeners=[heard.append])
    decide(gate, request("/a"))
    decide(gate, request("/b"))
    assert [type(event) for event in heard] == [Decided, Judged, Judged]
    assert heard[0].decision is heard[1].verdict.decision


def test_a_rules_failure_mode_is_that_of_its_limits() -> None:
    policy = read_policy(
        "failure: closed\nrules: [{name: a, limits: 5/minute}, {name: b, limits: 5/minute, failure: open},"
        " {name: c, limits: 5/minute, mode: shadow, failure: raise}]"
    )
    verdict = decide(gate_of(policy), request())
    assert verdict.decision is not None
    assert [limit.failure for limit in verdict.decision.limits] == ["closed", "open"]
    shadow = verdict.shadows[0].decision
    assert shadow is not None
    assert [limit.failure for limit in shadow.limits] == ["open"], "a shadow must not raise"


class Failing:
    deadline = 0.1

    def evaluate(self, groups: Any, mode: Any = "spend") -> Any:
        raise StorageError("down", undone=True)

    def reset(self, group: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("failure", "allowed"), [("open", True), ("closed", False), ("local", True)])
def test_without_its_storage_a_gate_falls_to_the_failure_mode(failure: Failure, allowed: bool) -> None:
    with Gate(Policy(rules=[Rule("a", "5/minute")], failure=failure), storage=Failing()) as gate:
        verdict = decide(gate, request())
        assert verdict.allowed is allowed
        assert verdict.decision is not None
        assert verdict.decision.degraded


def test_with_raise_the_failure_of_the_storage_is_raised_but_not_in_shadow(caplog: pytest.LogCaptureFixture) -> None:
    with Gate(Policy(rules=[Rule("a", "5/minute")], failure="raise"), storage=Failing()) as gate:
        with pytest.raises(StorageError):
            decide(gate, request())
        gate.switch = "shadow"
        with caplog.at_level(logging.CRITICAL, "ratebound"):
            assert decide(gate, request())


def test_with_limiting_off_nothing_is_counted() -> None:
    gate = gate_of(Policy(rules=[Rule("a", "1/minute")]))
    with limiting_off():
        assert passes(gate, request(), most=9) == 9
    assert passes(gate, request()) == 1


def test_async_functions_are_awaited_by_an_async_gate() -> None:
    async def find(key: str) -> str | None:
        await asyncio.sleep(0)
        return "ann" if key == "good" else None

    async def limits(view: Any) -> str:
        await asyncio.sleep(0)
        return "3/minute"

    async def cost(view: Any) -> int:
        return 2

    async def fail(view: Any) -> int:
        raise RuntimeError("no database")

    policy = Policy(
        rules=[
            Rule("a", "10/minute", by=["api-key", "address"], cost=cost),
            Rule("b", Computed(limits, otherwise="1/minute"), by=[fail, "api-key"], cost=fail),
        ],
        identities={"api-key": Source(verify=find)},
        block=["api-key:bad"],
    )

    async def run() -> list[Verdict]:
        async with AsyncGate(policy) as gate:
            return [await gate.decide(request(headers={"x-api-key": "good"})) for _ in range(4)]

    verdicts = asyncio.run(run())
    assert [bool(verdict) for verdict in verdicts] == [True, True, True, False]
    assert verdicts[-1].identities == [Identity("api-key", "ann"), Identity("api-key", "ann")]
    with pytest.raises(TypeError, match="it is for AsyncGate"):
        Gate(policy)


def test_an_object_with_an_async_call_is_for_tasks_too() -> None:
    class Who:
        async def __call__(self, request: Any) -> str:
            return "ann"

    policy = Policy(rules=[Rule("a", "1/minute", by=[Who()])])
    with pytest.raises(TypeError, match="it is for AsyncGate"):
        Gate(policy)
    gate = AsyncGate(policy)
    assert gate.decide_now(request()) is None
    assert asyncio.run(gate.decide(request())).identities[0].value == "ann"


def test_an_answer_to_await_that_comes_by_surprise_counts_for_nothing() -> None:
    async def later() -> str:
        return "ann"

    policy = Policy(rules=[Rule("a", "5/minute", by=lambda view: later())])
    assert decide(gate_of(policy), request()).identity == Identity("address", "192.0.2.1")


def test_the_async_gate_says_the_same() -> None:
    policy = Policy(rules=[Rule("a", "3/minute", candidate="1/minute")], block=["192.0.2.66"])

    async def run() -> list[bool]:
        async with AsyncGate(policy, storage=MemoryStorage(clock=FakeClock())) as gate:
            blocked = await gate.decide(request(peer="192.0.2.66"))
            first = await gate.decide(request())
            await gate.settle(first, cost=0)
            return [bool(blocked), *[bool(await gate.decide(request())) for _ in range(4)]]

    assert asyncio.run(run()) == [False, True, True, True, False]


def test_an_explanation_says_which_rules_apply_and_why_not() -> None:
    policy = Policy(
        rules=[
            Rule("login", "5/minute", match=Match(paths=("/login",)), by="address", final=True),
            Rule("pro", "9/minute", match=Match(tiers=("pro",))),
            Rule("all", "5/minute", cost=lambda view: 1),
            Rule("early", "5/minute", stage="early"),
            Rule("rest", "5/minute", default=True),
        ],
        tiers=["pro"],
        overrides=[Override("192.0.2.1", limits="50/minute", rules="login")],
    )
    told = explain(policy, request("/Login"))
    assert (told.kind, told.address, told.tier, told.paths) == ("limited", "192.0.2.1", None, ["/login"])
    assert [(report.rule.name, report.applies, report.why) for report in told.rules] == [
        ("login", True, "an override for this client"),
        ("pro", False, "the tier is none of pro"),
        ("all", True, "matched"),
        ("early", False, "it belongs to the stage early"),
        ("rest", False, "another rule matched"),
    ]
    assert [limit.count for limit in told.rules[0].plan or () if isinstance(limit, Limit)] == [50]
    exact = explain(policy, request("/login"))
    assert exact.rules[2].why == "a final rule before it matched"
    assert explain(policy, request("/login"), "early").rules[3].applies
