"""Usage under a policy, for a request and for a client that an operator names; grants and resets of such clients."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from ratebound import InvalidCost, InvalidLimit, MemoryStorage, StorageError, Usage
from ratebound.policy import (
    ANY_FUNCTION,
    AsyncGate,
    Gate,
    Identity,
    Override,
    Policy,
    RequestView,
    Rule,
    Source,
    load_policy,
)
from ratebound.policy.match.conditions import Match
from ratebound.testing import FakeClock
from tests.policy.gates import EXAMPLES, gate_of, request
from tests.unit.faulty import DOWN, Prompt

KEYS = {"k1": Identity("", "acme", "pro"), "k2": Identity("team", "7")}
POLICY: dict[str, Any] = {
    "identities": {"api-key": Source(verify=KEYS.get, kinds=["team"])},
    "by": ["api-key", "user", "address"],
    "tiers": {"pro": ["user:ann"], "free": []},
    "default_tier": "free",
}
ADDRESS = "192.0.2.1"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def brief(usages: list[Usage]) -> dict[str, tuple[int, int]]:
    """Return quota and use by name."""
    return {usage.name: (usage.quota, usage.used) for usage in usages}


def policy(*rules: Rule, **more: Any) -> Policy:
    return Policy(rules=rules, **{**POLICY, **more})


def monthly(**more: Any) -> Rule:
    return Rule("monthly", {"pro": "1000/calendar-month", "free": "10/calendar-month"}, **more)


def test_usage_of_a_request_has_the_limits_of_all_rules_that_apply() -> None:
    rules = [monthly(), Rule("login", "5/minute; 20/hour", match=Match(paths="/login"), by="address")]
    gate = gate_of(policy(*rules, Rule("search", "3/minute", match=Match(paths="/search"))))
    gate.decide(request("/login", user="bob"))
    found = gate.usage(request("/login", user="bob"))
    assert brief(found) == {
        "monthly/calendar-month": (10, 1),
        "login/minute": (5, 1),
        "login/hour": (20, 1),
    }
    assert [usage.rule for usage in found] == ["monthly", "login", "login"]
    assert found[0].resets_at == datetime(2023, 12, 1, tzinfo=UTC)
    assert brief(gate.usage(request("/", user="bob"))) == {"monthly/calendar-month": (10, 1)}
    assert brief(gate.usage(request("/", user="carl"))) == {"monthly/calendar-month": (10, 0)}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
@pytest.mark.parametrize("path", ["/", "/auth/login", "/api/v1/x", "/search", "/health", "/upload", "/admin/users"])
def test_usage_has_the_limits_that_the_verdict_has(name: str, path: str) -> None:
    loaded = load_policy(EXAMPLES / name, functions=ANY_FUNCTION, environ={})
    views = [
        request(path, method, peer=peer, user=user)
        for method in ("GET", "POST")
        for peer in ("192.0.2.1", "192.0.2.10", "198.51.100.9", "10.0.0.1")
        for user in (None, "ann", "acme", "batch", "mallory", "monitoring")
    ]
    for view in views:
        gate = gate_of(loaded)
        verdict = gate.decide(view)
        verdicts = [one for one in (verdict.earlier, verdict) if one is not None and one.decision is not None]
        charged = [
            (rule.name, limit, outcome.remaining)
            for one in verdicts
            if one.decision is not None
            for rule, limit, outcome in zip(one.rules, one.decision.limits, one.decision.outcomes, strict=True)
        ]
        if verdict.allowed:
            assert [(usage.rule, usage.limit, usage.remaining) for usage in gate.usage(view)] == charged


def test_usage_of_all_rules_does_not_look_at_the_path_and_leaves_out_what_all_clients_share() -> None:
    rules = [
        monthly(match=Match(paths="/api/{path*}", methods="POST")),
        Rule("flood", "50/second", stage="early", match=Match(paths="/early")),
        Rule("everybody", "1000/second", by="global"),
        Rule("lan", "7/minute", match=Match(addresses="10.0.0.0/8")),
        Rule("pros", "8/minute", match=Match(tiers=["pro"])),
    ]
    gate = gate_of(policy(*rules))
    names = lambda **more: list(brief(gate.usage(request("/usage", **more), all_rules=True)))  # noqa: E731
    assert names(user="bob") == ["flood/second", "monthly/calendar-month"]
    assert names(user="ann") == ["flood/second", "monthly/calendar-month", "pros/minute"]
    assert names(user="bob", peer="10.1.2.3") == ["flood/second", "monthly/calendar-month", "lan/minute"]
    assert list(brief(gate.usage(request("/usage", user="bob")))) == ["everybody/second"]


def test_nobody_reads_the_usage_of_another_by_what_a_function_of_a_rule_looks_at() -> None:
    rules = [Rule("login", "5/hour", by=lambda view: view.header("x-account")), Rule("rest", "9/minute")]
    gate = gate_of(policy(*rules))
    victim = request(headers={"x-account": "victim"})
    gate.decide(victim)
    assert list(brief(gate.usage(victim, all_rules=True))) == ["rest/minute"]
    assert brief(gate.usage(victim)) == {"login/hour": (5, 1), "rest/minute": (9, 1)}


def test_usage_charges_nothing_and_tells_no_listener() -> None:
    told: list[object] = []
    gate = gate_of(policy(Rule("one", "1/minute")), listeners=[told.append])
    for _ in range(3):
        gate.usage(request())
        gate.usage(request(), all_rules=True)
        gate.usage_of(ADDRESS)
    assert not told
    assert gate.decide(request())


def test_shadows_denials_and_unlimited_rules_are_left_out() -> None:
    rules = [
        Rule("planned", "1/minute", mode="shadow"),
        Rule("never", "deny", match=Match(paths="/secret")),
        Rule("free", "unlimited"),
        Rule("kept", "2/minute", candidate="1/minute"),
    ]
    gate = gate_of(policy(*rules))
    gate.decide(request())
    for found in (gate.usage(request("/secret")), gate.usage(request(), all_rules=True), gate.usage_of(ADDRESS)):
        assert brief(found) == {"kept/minute": (2, 1)}


def test_a_client_that_no_rule_counts_has_no_usage() -> None:
    gate = gate_of(policy(Rule("one", "1/minute"), allow=["user:ann"], block=["user:eve"], exempt=[Match(paths="/ok")]))
    assert gate.usage(request(user="ann")) == gate.usage(request(user="eve")) == gate.usage(request("/ok")) == []
    assert gate.usage(request(user="eve"), all_rules=True) == []
    gate.switch = "off"
    assert gate.usage(request()) == []
    gate.switch = "shadow"
    assert gate.usage(request()) == []


def test_usage_between_the_stages_of_a_request_changes_nothing_about_it() -> None:
    gate = gate_of(policy(Rule("early", "1/minute", stage="early"), Rule("late", "5/minute")))
    view = request()
    assert gate.decide(view, "early")
    gate.usage(view)
    assert gate.decide(view)  # the early rule is not asked again


def test_overrides_and_tiers_decide_about_the_quota() -> None:
    gate = gate_of(policy(monthly(), overrides=[Override("user:bob", limits="77/calendar-month")]))
    for who, quota in (("ann", 1000), ("bob", 77), ("carl", 10)):
        for found in (gate.usage(request(user=who)), gate.usage_of(f"user:{who}")):
            assert brief(found) == {"monthly/calendar-month": (quota, 0)}
    assert brief(gate.usage(request(headers={"x-api-key": "k1"}))) == {"monthly/calendar-month": (1000, 0)}
    assert brief(gate.usage_of("api-key:acme")) == {"monthly/calendar-month": (10, 0)}
    assert brief(gate.usage_of("api-key:acme", tier="pro")) == {"monthly/calendar-month": (1000, 0)}


@pytest.mark.parametrize(
    ("identity", "view"),
    [
        ("user:42", request(user=42)),
        ("user:a+b:c@example.com", request(user="a+b:c@example.com")),
        (ADDRESS, request()),
        (f"address:{ADDRESS}", request()),
        ("2001:db8::1", request(peer="2001:db8::2")),  # one /64 is one client
        ("api-key:acme", request(headers={"x-api-key": "k1"})),
        ("team:7", request(headers={"x-api-key": "k2"})),
    ],
)
def test_a_client_is_named_as_in_the_lists_of_a_policy(identity: str, view: RequestView) -> None:
    gate = gate_of(policy(monthly(), Rule("rate", "5/minute")))
    gate.decide(view)
    assert brief(gate.usage_of(identity)) == {"monthly/calendar-month": (10, 1), "rate/minute": (5, 1)}
    gate.reset(identity)
    assert brief(gate.usage_of(identity)) == {"monthly/calendar-month": (10, 0), "rate/minute": (5, 0)}
    assert [usage.used for usage in gate.usage(view)] == [0, 0]


def test_rules_by_prefix_by_everybody_and_by_several_identities_have_names_of_their_own() -> None:
    rules = [
        Rule("net", "9/minute", by="prefix:24/48"),
        Rule("all", "8/minute", by="global"),
        Rule("pair", "7/minute", by="user+address"),
        Rule("alone", "6/minute", by="user"),
    ]
    gate = gate_of(policy(*rules))
    gate.decide(request(user="ann"))
    assert brief(gate.usage_of("prefix:192.0.2.99")) == {"net/minute": (9, 1)}
    assert brief(gate.usage_of("global")) == {"all/minute": (8, 1)}
    for names in (["user:ann", ADDRESS], [ADDRESS, "user:ann"]):
        assert brief(gate.usage_of(names)) == {"pair/minute": (7, 1)}
    assert brief(gate.usage_of("user:ann")) == {"alone/minute": (6, 1)}
    gate.reset("user:ann")
    assert brief(gate.usage_of(["user:ann", ADDRESS])) == {"pair/minute": (7, 1)}


def test_a_claim_of_a_token_is_named_with_its_source() -> None:
    claims = {"jwt": Source(verify=lambda token: {"sub": "42"})}
    gate = gate_of(Policy(rules=[Rule("one", "5/minute", by="jwt:sub")], identities=claims))
    gate.decide(request(headers={"authorization": "Bearer x"}))
    assert brief(gate.usage_of("jwt:sub:42")) == {"one/minute": (5, 1)}


def test_an_identity_that_a_function_returns_is_named_by_its_kind() -> None:
    gate = gate_of(Policy(rules=[Rule("one", "5/minute", by=[lambda view: Identity("team", "7"), "address"])]))
    gate.decide(request())
    assert brief(gate.usage_of("team:7")) == {"one/minute": (5, 1)}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("user", "names no client"),
        ("user:", "names no client"),
        ("address:nowhere", "names no address"),
        (42, "not 42"),
        ([], "expected the name of a client"),
        ([7], "not 7"),
        ("session:x", "no rule counts by session: expected api-key or user or address"),
        (["user:1", "user:2"], r"no rule counts by user \+ user"),
    ],
)
def test_a_name_that_nothing_counts_by_raises(names: Any, message: str) -> None:
    gate = gate_of(policy(monthly()))
    for call in (gate.usage_of, gate.reset, lambda names: gate.grant(names, 1)):
        with pytest.raises(ValueError, match=message):
            call(names)


def test_the_usage_of_a_client_by_name_has_a_method_of_its_own() -> None:
    gate = gate_of("rules: [{name: a, limits: 5/minute}]")
    with pytest.raises(TypeError, match=r"expected a RequestView, not 'user:42': use usage_of\('user:42'\)"):
        gate.usage("user:42")  # type: ignore[arg-type]


def test_a_kind_that_a_verifier_returns_and_does_not_declare_is_told() -> None:
    gate = gate_of(policy(monthly(), identities={"api-key": Source(verify=KEYS.get)}))
    with pytest.raises(ValueError, match=r"no rule counts by team: .*; or declare .* 'kinds: \[team\]'"):
        gate.reset("team:7")


def test_an_unknown_rule_or_tier_raises_with_the_nearest_name() -> None:
    gate = gate_of(policy(monthly()))
    with pytest.raises(ValueError, match="unknown rule 'montly'.*'monthly'"):
        gate.reset("user:1", rule="montly")
    with pytest.raises(ValueError, match="unknown tier 'prö'"):
        gate.usage_of("user:1", tier="prö")


def test_a_grant_reaches_the_quotas_of_a_client_in_every_tier() -> None:
    gate = gate_of(policy(monthly(), Rule("rate", "5/minute")))
    assert brief(gate.grant("user:bob", 500)) == {"monthly/calendar-month": (510, 0), "rate/minute": (5, 0)}
    assert brief(gate.usage(request(user="bob")))["monthly/calendar-month"] == (510, 0)
    assert brief(gate.usage(request(user="carl")))["monthly/calendar-month"] == (10, 0)
    assert brief(gate.usage_of("user:bob", tier="pro"))["monthly/calendar-month"] == (1500, 0)


def test_a_grant_may_name_its_rule() -> None:
    gate = gate_of(policy(monthly(), Rule("daily", "3/calendar-day"), Rule("rate", "5/minute")))
    assert brief(gate.grant("user:bob", 2, rule="daily")) == {"daily/calendar-day": (5, 0)}
    assert brief(gate.usage_of("user:bob"))["monthly/calendar-month"] == (10, 0)
    with pytest.raises(InvalidLimit, match="calendar-month"):
        gate.grant("user:bob", 2, rule="rate")
    with pytest.raises(InvalidCost, match="units must be"):
        gate.grant("user:bob", -2)


def test_a_reset_reaches_all_tiers_overrides_and_candidates() -> None:
    rule = Rule("api", {"pro": "9/hour", "default": "2/minute"}, candidate="3/day", by="user")
    override = Override("user:bob", limits="1/second")
    gate = gate_of(policy(rule, overrides=[override], tiers={"pro": ["user:ann"]}, default_tier=None))
    for who in ("ann", "bob", "carl"):
        gate.decide(request(user=who))
    storage: Any = gate.storage
    for who, left in (("ann", 4), ("bob", 2), ("carl", 0)):
        gate.reset(f"user:{who}")
        assert storage.keys == left


def test_a_reset_may_name_its_rule() -> None:
    gate = gate_of(policy(Rule("one", "5/minute"), Rule("two", "5/minute")))
    gate.decide(request())
    gate.reset(ADDRESS, rule="two")
    assert brief(gate.usage(request())) == {"one/minute": (5, 1), "two/minute": (5, 0)}


def slots(**more: Any) -> Rule:
    return Rule("exports", {"pro": "9 concurrent", "free": "2 concurrent; 50/hour"}, **more)


def test_holders_are_the_slots_of_a_client_under_all_rules_or_under_one(clock: FakeClock) -> None:
    gate = gate_of(policy(slots(), Rule("mail", "1 concurrent for 10 seconds", match=Match(paths="/mail"))), clock)
    gate.decide(request("/mail", user="bob"))
    gate.decide(request("/", user="ann"))
    found = gate.holders("user:bob")
    assert [holder.limit.name for holder in found] == ["exports/concurrent", "mail/concurrent"]
    assert [(holder.expires_at - EPOCH).total_seconds() - clock.now / 1e6 for holder in found] == [60, 10]
    assert gate.holders("user:bob", rule="mail") == found[1:]
    assert len(gate.holders("user:ann")) == 1
    assert gate.holders("user:nobody") == []
    with pytest.raises(ValueError, match="no rule counts by session"):
        gate.holders("session:1")
    with pytest.raises(ValueError, match="unknown rule 'export'"):
        gate.holders("user:bob", rule="export")


def test_holders_of_a_client_are_found_whatever_its_tier_and_never_those_in_shadow() -> None:
    gate = gate_of(policy(slots(), Rule("planned", "1 concurrent", mode="shadow")))
    gate.decide(request(headers={"x-api-key": "k1"}))
    assert [holder.limit.name for holder in gate.holders("api-key:acme")] == ["exports/concurrent"]


def test_tasks_see_the_same_usage(clock: FakeClock) -> None:
    async def find(key: str) -> Identity | None:
        return KEYS.get(key)

    storage = MemoryStorage(clock=clock)
    made = policy(monthly(), Rule("rate", "5/minute"), identities={"api-key": Source(verify=find, kinds=["team"])})
    gate = AsyncGate(made, storage=storage)
    view = request(headers={"x-api-key": "k1"})

    async def ask() -> None:
        await gate.decide(view)
        assert brief(await gate.usage(view)) == {"monthly/calendar-month": (1000, 1), "rate/minute": (5, 1)}
        assert await gate.usage(view, all_rules=True) == await gate.usage_of("api-key:acme", tier="pro")
        granted = await gate.grant("api-key:acme", 5, rule="monthly", tier="pro")
        assert brief(granted) == {"monthly/calendar-month": (1005, 1)}
        assert await gate.holders("api-key:acme") == []
        await gate.reset("api-key:acme")
        assert brief(await gate.usage_of("api-key:acme")) == {"monthly/calendar-month": (10, 0), "rate/minute": (5, 0)}

    asyncio.run(ask())


def test_more_limits_than_one_trip_takes_are_read_in_order() -> None:
    gate = gate_of(policy(*(Rule(f"r{number}", f"{number + 1}/minute") for number in range(120))))
    assert [usage.quota for usage in gate.usage(request())] == list(range(1, 121))


def test_one_trip_reads_all_limits_of_a_request(clock: FakeClock) -> None:
    storage = Prompt(clock)
    gate = Gate(policy(monthly(), Rule("rate", "5/minute; 9/hour"), Rule("two", "5/minute")), storage=storage)
    with gate:
        gate.usage(request())
    assert [mode for _, mode in storage.calls] == ["peek"]


def test_grants_and_resets_raise_in_every_failure_mode(clock: FakeClock) -> None:
    storage = Prompt(clock)
    with Gate(policy(monthly(), failure="open"), storage=storage) as gate:
        storage.error = DOWN
        for call in (lambda: gate.grant("user:1", 5), lambda: gate.reset("user:1")):
            with pytest.raises(StorageError, match="down"):
                call()
        assert [usage.degraded for usage in gate.usage(request())] == ["down"]
        storage.error = None
