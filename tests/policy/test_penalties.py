"""Penalties in a policy: what strikes, who is blocked, and that nobody can get somebody else blocked."""

from datetime import timedelta
from typing import Any

import pytest
from starlette.requests import cookie_parser

from ratebound import MemoryStorage
from ratebound.limit import UNITS
from ratebound.policy import (
    Computed,
    Gate,
    Identity,
    Match,
    Override,
    Penalty,
    Policy,
    PolicyError,
    RequestView,
    Rule,
    Source,
    Verdict,
    read_policy,
)
from ratebound.policy.runtime.policy_changes import changes_between
from ratebound.testing import FakeClock
from tests.policy.gates import decide, gate_of, request

GUESSING = {"after": "2 strikes/hour", "block": ["5 minutes", "1 hour"], "forget": "7 days"}


def strike(gate: Gate, clock: FakeClock, view: RequestView, *, times: int = 2) -> Verdict:
    """Send requests until `times` of them were denied, each more than a second after the other."""
    verdict = decide(gate, view)
    while times:
        clock.advance(1.5)
        verdict = decide(gate, view)
        times -= not verdict.allowed
    return verdict


def is_blocked(gate: Gate, view: RequestView) -> bool:
    decision = decide(gate, view).decision
    return decision is not None and decision.blocked


def policy(*rules: dict[str, Any], **more: Any) -> Policy:
    return read_policy({"penalties": {"guessing": GUESSING}, "rules": list(rules), **more})


LOGIN = {"name": "login", "by": "address", "limits": "1/minute", "penalty": "guessing", "match": {"paths": ["/login"]}}
SEARCH = {"name": "search", "by": "address", "limits": "1/minute", "match": {"paths": ["/search"]}}


def test_denials_of_a_rule_block_the_client_for_longer_each_time() -> None:
    clock = FakeClock()
    gate = gate_of(policy(LOGIN), clock)
    login = request("/login")
    strike(gate, clock, login)
    blocked = decide(gate, login)
    assert blocked.decision is not None
    assert blocked.decision.blocked
    assert blocked.decision.limit.name == "guessing"
    assert 290 < (blocked.decision.retry_after or 0) <= 300
    assert not is_blocked(gate, request("/login", peer="192.0.2.2"))
    clock.advance(301)
    assert decide(gate, login)
    strike(gate, clock, login)
    assert 3590 < (decide(gate, login).decision.retry_after or 0) <= 3600  # type: ignore[union-attr]


def test_rules_that_name_one_entry_share_its_strikes_and_its_block() -> None:
    clock = FakeClock()
    gate = gate_of(policy(LOGIN, {**SEARCH, "penalty": "guessing"}), clock)
    strike(gate, clock, request("/login"), times=1)
    strike(gate, clock, request("/search"), times=1)
    assert is_blocked(gate, request("/login"))
    assert is_blocked(gate, request("/search"))


def test_a_rule_without_the_penalty_neither_strikes_nor_is_blocked() -> None:
    clock = FakeClock()
    gate = gate_of(policy(LOGIN, SEARCH), clock)
    strike(gate, clock, request("/search"), times=5)
    assert not is_blocked(gate, request("/login"))
    strike(gate, clock, request("/login"))
    assert is_blocked(gate, request("/login"))
    clock.advance(60)
    assert decide(gate, request("/search"))


def test_two_rules_of_one_request_strike_a_shared_entry_once() -> None:
    clock = FakeClock()
    rules = (LOGIN, {"name": "all", "by": "address", "limits": "1/minute", "penalty": "guessing"})
    gate = gate_of(policy(*rules), clock)
    strike(gate, clock, request("/login"), times=1)
    assert not is_blocked(gate, request("/login", "POST", peer="192.0.2.2"))
    clock.advance(1.5)
    assert decide(gate, request("/login")).decision.remaining == 0  # type: ignore[union-attr]
    assert is_blocked(gate, request("/login"))


def test_the_entry_stands_in_every_plan_under_its_own_name() -> None:
    made = Policy(
        tiers=("free", "pro"),
        default_tier="free",
        penalties={"guessing": Penalty("2 strikes/hour", "5 minutes")},
        overrides=[
            Override("192.0.2.9", "9/minute"),
            Override("192.0.2.8", "unlimited"),
            Override("192.0.2.7", "deny"),
        ],
        rules=[
            Rule("a", {"free": "1/minute", "pro": "2/minute"}, by="address", penalty="guessing"),
            Rule("b", Computed(lambda view: "3/minute", "4/minute"), by="address", penalty="guessing"),
        ],
    )
    gate = gate_of(made)

    def names(peer: str) -> list[str]:
        decision = decide(gate, request(peer=peer)).decision
        return [] if decision is None else [limit.name for limit in decision.limits]

    assert names("192.0.2.1") == ["a/minute", "guessing", "b/minute", "guessing"]
    assert names("192.0.2.9") == ["a/minute", "guessing", "b/minute", "guessing"]
    assert names("192.0.2.8") == names("192.0.2.7") == []


def test_penalties_written_in_limits_belong_to_the_rule() -> None:
    clock = FakeClock()
    rules = [
        Rule(name, "1/minute; 2 strikes/hour block 5 minutes", by="address", match=Match(paths=[f"/{name}"]))
        for name in ("a", "b")
    ]
    gate = gate_of(Policy(rules=rules), clock)
    strike(gate, clock, request("/a"))
    assert is_blocked(gate, request("/a"))
    assert not is_blocked(gate, request("/b"))
    assert [limit.name for limit in decide(gate, request("/b")).decision.limits] == ["b/minute", "b/penalty"]  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["rule", "switch", "candidate", "text"])
def test_a_shadow_never_strikes_and_is_never_blocked(how: str) -> None:
    clock = FakeClock()
    rule: dict[str, Any] = {**LOGIN, "mode": "shadow" if how in ("rule", "text") else "enforce"}
    if how == "candidate":
        rule |= {"limits": "1000/minute", "candidate": "1/minute; 2 strikes/hour block 5 minutes"}
    if how == "text":
        rule |= {"limits": "1/minute; 2 strikes/hour block 5 minutes"}
    storage = MemoryStorage(clock=clock)
    gate = Gate(policy(rule, switch="shadow" if how == "switch" else "on"), storage=storage)
    for _ in range(5):
        clock.advance(1.5)
        verdict = decide(gate, request("/login"))
        assert verdict
        [shadow] = verdict.shadows
        assert shadow.decision is not None
        assert [limit.is_penalty for limit in shadow.decision.limits] == [False]
    assert not shadow.allowed
    enforced = Gate(policy(LOGIN), storage=storage)
    assert not is_blocked(enforced, request("/login"))


def test_a_tier_without_limits_has_no_penalty_and_one_that_denies_needs_none() -> None:
    gate = gate_of(
        policy({**LOGIN, "limits": {"pro": "unlimited", "out": "deny", "default": "1/minute"}}, tiers=["pro", "out"])
    )
    assert decide(gate, request("/login", user=Identity("user", "ann", "pro"))).kind == "unlimited"
    assert decide(gate, request("/login", user=Identity("user", "bob", "out"))).kind == "deny"


def test_all_tiers_share_the_strikes_of_a_client() -> None:
    clock = FakeClock()
    gate = gate_of(policy({**LOGIN, "limits": {"pro": "2/minute", "default": "1/minute"}}, tiers=["pro"]), clock)
    strike(gate, clock, request("/login", user=Identity("user", "ann", "pro")))
    assert is_blocked(gate, request("/login"))


def test_a_rule_by_address_never_blocks_a_verified_identity() -> None:
    """An attacker who names the victim wherever a client can name somebody gets its own address blocked."""
    clock = FakeClock()
    rules: list[dict[str, Any]] = [
        {**LOGIN, "name": "by-address"},
        {**LOGIN, "name": "by-user", "by": "user", "limits": "5/minute"},
        {"name": "by-account", "by": "body.username", "limits": "50/minute", "match": {"paths": ["/login"]}},
    ]
    gate = gate_of(policy(*rules), clock)
    attack = request(
        "/login", "POST", peer="198.51.100.1", body=b'{"username": "victim"}', headers={"x-user": "victim"}
    )
    strike(gate, clock, attack, times=2)
    assert is_blocked(gate, attack)
    assert decide(gate, request("/login", "POST", user="victim", body=b'{"username": "victim"}'))
    assert not is_blocked(gate, request("/login", "POST", peer="192.0.2.1", user="victim"))


def test_a_user_that_is_struck_leaves_its_address_alone() -> None:
    clock = FakeClock()
    gate = gate_of(policy({**LOGIN, "by": ["user", "address"]}), clock)
    strike(gate, clock, request("/login", user="ann"))
    assert is_blocked(gate, request("/login", user="ann", peer="192.0.2.77"))
    assert not is_blocked(gate, request("/login"))
    assert not is_blocked(gate, request("/login", user="bob"))


def test_a_rule_without_limits_has_the_penalty_alone_if_results_are_strikes() -> None:
    clock = FakeClock()
    gate = gate_of(policy({**LOGIN, "limits": "unlimited", "strike": {"status": [401]}}), clock)
    verdict = decide(gate, request("/login"))
    assert verdict.decision is not None
    assert [limit.name for limit in verdict.decision.limits] == ["guessing"]
    assert all(decide(gate, request("/login")) for _ in range(50))
    with pytest.raises(PolicyError, match="this rule has none"):
        policy({**LOGIN, "penalty": "", "strike": "failure"})


def test_a_bounded_queue_in_a_rule_does_not_keep_its_other_limits_from_striking() -> None:
    clock = FakeClock()
    limits = "1/second burst 9 leaky-bucket; 2/hour; 2 strikes/hour block 5 minutes"
    gate = Gate(Policy(rules=[Rule("slow", limits, by="address")]), storage=MemoryStorage(clock=clock), max_delay=1.0)
    for _ in range(4):
        verdict = decide(gate, request())
        clock.advance(2)
    assert not verdict.allowed
    assert is_blocked(gate, request())


@pytest.mark.parametrize(
    "limits",
    [
        "1/second burst 9 leaky-bucket; 2 strikes/hour block 5 minutes",
        "2 strikes/hour block 5 minutes; 100/hour; 1/second burst 9 leaky-bucket",
    ],
)
def test_a_bounded_queue_that_denies_strikes(limits: str) -> None:
    clock = FakeClock()
    gate = Gate(Policy(rules=[Rule("slow", limits, by="address")]), storage=MemoryStorage(clock=clock), max_delay=1.0)
    assert [decide(gate, request()).allowed for _ in range(3)] == [True, True, False]
    assert not is_blocked(gate, request())
    clock.advance(1.2)
    for _ in range(3):
        decide(gate, request())
    assert is_blocked(gate, request())


def test_a_bounded_queue_strikes_no_penalty_of_another_rule() -> None:
    clock = FakeClock()
    rules = [
        Rule("slow", "1/second burst 9 leaky-bucket", by="address"),
        Rule("other", "100/hour; 1 strike/hour block 5 minutes", by="address"),
    ]
    gate = Gate(Policy(rules=rules), storage=MemoryStorage(clock=clock), max_delay=1.0)
    assert [decide(gate, request()).allowed for _ in range(4)] == [True, True, False, False]
    clock.advance(10)
    assert decide(gate, request())


def test_reset_lifts_a_block() -> None:
    clock = FakeClock()
    gate = gate_of(policy(LOGIN), clock)
    strike(gate, clock, request("/login"))
    assert is_blocked(gate, request("/login"))
    gate.reset("192.0.2.1")
    assert decide(gate, request("/login"))


def test_a_reload_with_another_list_keeps_the_block_and_says_so() -> None:
    clock = FakeClock()
    old = policy(LOGIN)
    gate = gate_of(old, clock)
    strike(gate, clock, request("/login"))
    changed = {"guessing": {"after": "5 strikes/10 minutes", "block": "1 minute"}}
    new = read_policy({"penalties": changed, "rules": [LOGIN]})
    gate.use(new)
    assert is_blocked(gate, request("/login"))
    assert list(changes_between(old, new)) == [
        "penalty guessing: keeps its strikes and blocks; '5 strikes/10 minutes block 1 minute' is for strikes from now"
        " on"
    ]
    gone = read_policy({"rules": [{**LOGIN, "penalty": ""}]})
    assert "penalty guessing is gone: nobody is blocked by it any more" in changes_between(new, gone)
    own = [
        read_policy({"rules": [{**SEARCH, "limits": f"1/minute; 2 strikes/hour block {block}"}]})
        for block in ("5 minutes", "1 hour")
    ]
    assert list(changes_between(*own)) == [
        "rule search: '2 strikes/hour block 1 hour' keeps its strikes and blocks, and is for strikes from now on"
    ]


@pytest.mark.parametrize(
    "written",
    [
        {"after": "3 strikes/hour", "block": ["5 minutes", 3600, timedelta(days=1)], "forget": "14 days"},
        Penalty("3 strikes per hour", ["5 minutes", "1 hour", "1 day"], "2 weeks"),
        "3 strikes/hour block 5 minutes then 1 hour then 1 day forget 14 days",
    ],
)
def test_an_entry_can_be_written_in_several_ways(written: Any) -> None:
    made = Policy(penalties={"p": written}, rules=[Rule("a", "1/minute", by="address", penalty="p")])
    limit = made.penalty_limits["p"]
    minute, hour, day = UNITS["minute"], UNITS["hour"], UNITS["day"]
    assert (limit.count, limit.period_us) == (3, hour)
    assert (limit.blocks_us, limit.forget_us) == ((5 * minute, hour, day), 14 * day)
    assert limit.scope == "p;penalty;"


@pytest.mark.parametrize(
    ("penalties", "place", "words"),
    [
        ({"p": {"after": "3 strikes/hou", "block": "5 minutes"}}, "penalties.p.after", "did you mean 'hour'?"),
        (
            {"p": {"after": "3/hour", "block": "5 minutes"}},
            "penalties.p.after",
            "expected for example '3 strikes/hour'",
        ),
        ({"p": {"after": 3, "block": "5 minutes"}}, "penalties.p.after", "expected for example"),
        ({"p": {"after": "3 strikes/hour", "block": []}}, "penalties.p.block", "at least one time"),
        ({"p": {"after": "3 strikes/hour", "block": ["1 hour", "soon"]}}, "penalties.p.block[1]", "cannot read 'soon'"),
        (
            {"p": {"after": "3 strikes/hour", "block": "5 minutes then 1 hour"}},
            "penalties.p.block",
            "write a list of times: [5 minutes, 1 hour]",
        ),
        ({"p": {"after": "3 strikes/hour", "block": "5 minutes, 1 hour"}}, "penalties.p.block", "[5 minutes, 1 hour]"),
        ({"p": {"after": "3 strikes/hour", "block": 0.5}}, "penalties.p.block", "from 1 second to 1 year"),
        ({"p": {"after": "3 strikes/hour", "block": 60, "forget": "9 years"}}, "penalties.p.forget", "to 1 year"),
        ({"p": {"after": "3 strikes/hour"}}, "penalties.p", "a penalty needs 'block'"),
        ({"p": {"after": "3 strikes/hour", "block": 60, "forgt": 1}}, "penalties.p.forgt", "did you mean 'forget'?"),
        ({"p": {"after": "300 strikes/hour", "block": 60}}, "penalties.p", "at most 100 strikes"),
        ({"p": "5/minute"}, "penalties.p", "is no penalty"),
        ({"p": 5}, "penalties.p", "expected a mapping of 'after'"),
        ({"a/b": "3 strikes/hour block 5 minutes"}, "penalties.a/b", "expected 1 to 40"),
        ([1], "penalties", "expected a mapping of names"),
    ],
)
def test_a_broken_entry_is_told(penalties: Any, place: str, words: str) -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy({"penalties": penalties, "rules": [{"name": "a", "limits": "5/minute"}]})
    [problem] = raised.value.problems
    assert problem.where == place
    assert words in problem.message


@pytest.mark.parametrize(
    ("rule", "place", "words"),
    [
        ({"penalty": "gessing"}, "rules[0].penalty", "unknown penalty 'gessing': did you mean 'guessing'?"),
        ({"penalty": 5}, "rules[0].penalty", "expected the name of an entry"),
        ({"penalty": "guessing", "limits": "unlimited"}, "rules[0].penalty", "nothing is a strike here"),
        ({"penalty": "guessing", "limits": "3 concurrent"}, "rules[0].penalty", "nothing is a strike here"),
        ({"limits": "3 strikes/hour block 1 hour"}, "rules[0].limits", "nothing is a strike here"),
        (
            {"penalty": "guessing", "limits": "9/calendar-day", "over": "allow"},
            "rules[0].penalty",
            "nothing is a strike",
        ),
        ({"penalty": "guessing", "by": "global"}, "rules[0].by", "'global' is everybody together"),
        ({"penalty": "guessing", "by": "body.username"}, "rules[0].by", "any client can choose 'body.username'"),
        ({"penalty": "guessing", "by": "address + query.q"}, "rules[0].by", "escapes it with another 'query.q'"),
        ({"penalty": "guessing", "by": str}, "rules[0].by", "a function in 'by' may return what a client chooses"),
        ({"penalty": "guessing", "by": "account"}, "rules[0].by", "'verified: true' in this identity"),
        ({"penalty": "guessing", "by": "fingerprint"}, "rules[0].by", "a client chooses the headers"),
        ({"limits": "1/hour; 3 strikes/hour block 1 hour", "by": ["user", "global"]}, "rules[0].by", "everybody"),
        (
            {"limits": "2 distinct n/hour", "by": "global", "distinct": {"n": "query.n"}},
            "rules[0].by",
            "distinct values",
        ),
    ],
)
def test_a_rule_that_could_block_others_or_never_strikes_is_refused(rule: Any, place: str, words: str) -> None:
    with pytest.raises(PolicyError) as raised:
        policy({"name": "login", "limits": "5/minute", **rule}, identities={"account": {"call": str}})
    [problem] = raised.value.problems
    assert problem.where == place
    assert words in problem.message


@pytest.mark.parametrize(
    "by",
    [
        "address",
        "prefix:24/56",
        "user",
        ["api-key", "address"],
        "address + agent",
        "user + fingerprint",
        "account",
        "tenant",
        ["jwt:sub"],
    ],
)
def test_verified_identities_may_have_penalties(by: Any) -> None:
    identities = {
        "api-key": Source(verify=str),
        "jwt": Source(verify=lambda token: {}),
        "account": Source(call=lambda view: None, verified=True),
        "tenant": Source(proxy=True),
    }
    Policy(
        penalties={"p": Penalty("2 strikes/hour", "5 minutes")},
        identities=identities,
        trusted=["127.0.0.1"],
        rules=[Rule("a", "5/minute; 3 distinct q/hour", by=by, penalty="p", distinct={"q": "query.q"})],
    )


def test_the_by_of_the_policy_is_checked_too() -> None:
    with pytest.raises(PolicyError, match="rules\\[0\\].penalty: a rule with a penalty counts only by address"):
        policy({"name": "a", "limits": "5/minute", "penalty": "guessing"}, by="global")


def test_an_override_cannot_bring_a_penalty_to_a_rule_that_others_can_choose() -> None:
    limits = "1/hour; 3 strikes/hour block 1 hour"
    with pytest.raises(PolicyError, match="overrides\\[0\\].limits: rule 'a' cannot have these limits"):
        policy(
            {"name": "a", "limits": "5/minute", "by": "global"}, overrides=[{"client": "192.0.2.1", "limits": limits}]
        )


def test_a_function_cannot_bring_a_penalty_to_a_rule_that_others_can_choose() -> None:
    limits = Computed(lambda view: "1/hour; 1 strike/hour block 1 hour", "2/minute")
    gate = gate_of(Policy(rules=[Rule("a", limits, by="global")]))
    assert [limit.name for limit in decide(gate, request()).decision.limits] == ["a/minute"]  # type: ignore[union-attr]


def test_verified_is_for_functions_only() -> None:
    with pytest.raises(PolicyError, match="it is for 'call'"):
        Source(verify=str, verified=True)
    with pytest.raises(PolicyError, match="true or false"):
        Source(call=str, verified="yes")  # type: ignore[arg-type]


def test_a_broken_rule_with_a_penalty_tells_only_what_is_wrong() -> None:
    with pytest.raises(PolicyError) as raised:
        policy(
            {"name": "a", "limits": "5/minut", "penalty": "guessing"},
            {"name": "b", "limits": "2 distinct n/hour", "by": "address", "distinct": {"n": "boddy.n"}},
            {
                "name": "c",
                "limits": "2 distinct n/hou",
                "by": "address",
                "distinct": {"n": "body.n"},
                "penalty": "guessing",
            },
        )
    assert [problem.where for problem in raised.value.problems] == [
        "rules[0].limits",
        "rules[2].limits",
        "rules[1].distinct.n",
    ]


TWICE = {  # by, its source, the credential once and twice
    "header": ("api-key", {"verify": str}, [("x-api-key", "ann")]),
    "cookie": ("session", {"verify": str}, [("cookie", "session=ann")]),
    "two in one cookie": ("session", {"verify": str}, [("cookie", "session=ann; session=eve")]),
    "bearer": ("bearer", {"verify": str}, [("authorization", "Bearer ann")]),
    "claim": ("jwt:sub", {"verify": lambda token: {"sub": token}}, [("authorization", "Bearer ann")]),
    "proxy": ("tenant", {"proxy": True}, [("x-tenant", "ann")]),
    "too long": ("session", {"verify": lambda session: session.rstrip("~")}, [("cookie", f"session=ann{'~' * 9000}")]),
}


@pytest.mark.parametrize(("by", "source", "sent"), TWICE.values(), ids=list(TWICE))
def test_whoever_sends_a_credential_twice_or_too_long_does_not_escape_a_block(
    by: str, source: dict[str, Any], sent: list[tuple[str, str]]
) -> None:
    known = {"identities": {by.partition(":")[0]: source}, "trusted": ["192.0.2.1"]}
    twice = request("/login", headers=sent if "=ann;" in sent[0][1] or len(sent[0][1]) > 9000 else [*sent, *sent])
    for limits in (LOGIN, {**LOGIN, "limits": "9 distinct a/hour", "distinct": {"a": "query.a"}, "penalty": ""}):
        gate = gate_of(policy({**limits, "by": by}, **known))
        verdict = decide(gate, twice)
        assert (verdict.allowed, verdict.kind, verdict.message) == (
            False,
            "deny",
            "A credential occurs twice, or is too long.",
        )
        assert decide(gate, request("/login")).kind == "limited"
    plain = gate_of(policy({**LOGIN, "by": by, "penalty": ""}, **known))
    assert decide(plain, twice).kind == "limited"  # a rate counts it by address


def test_a_bearer_token_behind_any_space_is_the_same_client() -> None:
    clock = FakeClock()
    gate = gate_of(policy({**LOGIN, "by": "bearer"}, identities={"bearer": {"verify": str}}), clock)
    strike(gate, clock, request("/login", headers=[("authorization", "Bearer ann")]))
    for header in ("Bearer ann", "bearer  ann", "Bearer\tann", "BEARER \t ann "):
        assert is_blocked(gate, request("/login", headers=[("authorization", header)]))


def test_a_cookie_in_quotes_and_with_escapes_is_the_same_client() -> None:
    clock = FakeClock()
    gate = gate_of(policy({**LOGIN, "by": "session"}, identities={"session": {"verify": str}}), clock)
    strike(gate, clock, request("/login", headers=[("cookie", "session=ann")]))
    for cookie in ('session="ann"', 'a=b;session= "ann" ', r'session="\141nn"', r'session="\a\n\n"'):
        assert cookie_parser(cookie)["session"] == "ann"
        assert is_blocked(gate, request("/login", headers=[("cookie", cookie)]))
