"""Sources of identities: written as dicts, with kinds of their own, and with answers that are remembered."""

import asyncio
import logging
import threading
from typing import Any
from uuid import UUID

import pytest

from ratebound.clock import SECOND
from ratebound.policy import (
    AsyncGate,
    Computed,
    Gate,
    Identity,
    Override,
    Policy,
    PolicyError,
    RequestView,
    Rule,
    Source,
    read_policy,
)
from ratebound.policy.function_errors import function_errors
from ratebound.policy.identity.source import VerifierCache
from ratebound.testing import FakeClock
from tests.policy.gates import decide, gate_of, passes, request

CUSTOMERS = {"k1": Identity("customer", "42", "pro"), "k2": Identity("customer", "42", "pro")}


def find(key: str) -> Identity | None:
    return CUSTOMERS.get(key)


def policy_of(verify: Any, **more: Any) -> Policy:
    rules = more.pop("rules", [Rule("a", "2/minute", by="api-key")])
    return Policy(rules=rules, identities={"api-key": {"header": "x-api-key", "verify": verify}}, **more)


def with_key(key: str, **more: Any) -> Any:
    return request(headers={"x-api-key": key}, **more)


# Written as dicts


@pytest.mark.parametrize("verify", [find, f"{__name__}:find", {"call": find}, {"call": f"{__name__}:find", "cache": 5}])
def test_a_source_may_be_a_dict_with_a_function_or_its_name(verify: Any) -> None:
    policy = policy_of(verify)
    assert isinstance(policy.identities["api-key"], Source)
    assert decide(gate_of(policy), with_key("k1")).identity == CUSTOMERS["k1"]


@pytest.mark.parametrize(
    "source",
    [
        5,
        {},
        {"header": 5, "verify": find},
        {"hedaer": "x", "verify": find},
        {"header": "x", "verify": "find"},
        {"header": "x", "verify": "no.such.module:find"},
        {"header": "x", "verify": find, "proxy": True},
        {"header": "x", "verify": find, "cache": "soon"},
        {"header": "x", "verify": {"cache": 5}},
        {"header": "x", "verify": {"call": find, "cahce": 5}},
        {"header": "x", "verify": {"call": find, "cache": 5}, "cache": 5},
        {"header": "x", "verify": find, "cache": True},
        {"header": "x", "verify": find, "cache": 10**6},
        {"call": find, "cache": 5},
        {"header": "x", "verify": find, "kinds": ["address"]},
        {"header": "x", "verify": find, "kinds": ["A B"]},
        {"header": "x", "proxy": True, "kinds": ["a"]},
    ],
)
def test_a_dict_in_code_is_checked_as_one_in_a_file_is(source: Any) -> None:
    found = []
    rule = {"name": "a", "limits": "5/minute"}
    for make in (
        lambda: Policy(rules=[Rule("a", "5/minute")], identities={"id": source}),
        lambda: read_policy({"rules": [rule], "identities": {"id": source}}),
    ):
        with pytest.raises(PolicyError) as caught:
            make()
        found.append([(problem.where, problem.message) for problem in caught.value.problems])
    assert found[0] == found[1]
    assert all(where.startswith("identities.id") for where, _ in found[0])


@pytest.mark.parametrize("identities", [5, [], "api-key"])
def test_identities_that_are_no_mapping_are_told(identities: Any) -> None:
    with pytest.raises(PolicyError, match="identities: expected a mapping of names to sources"):
        Policy(rules=[Rule("a", "5/minute")], identities=identities)


def test_a_gate_takes_a_whole_policy_as_a_dict() -> None:
    tree = {
        "identities": {"api-key": {"header": "x-api-key", "verify": find}},
        "rules": [{"name": "a", "limits": "1/minute", "by": ("api-key", {"call": lambda view: view.user})}],
    }
    with Gate(tree) as gate:
        assert decide(gate, with_key("k1")).identity == CUSTOMERS["k1"]
        assert decide(gate, request(user="ann")).identity == Identity("call.lambda", "ann")
        assert not decide(gate, with_key("k2"))

    async def main() -> None:
        async with AsyncGate(tree) as gate:
            assert (await gate.decide(with_key("k1"))).identity == CUSTOMERS["k1"]

    asyncio.run(main())


def test_objects_may_stand_in_a_dict() -> None:
    tree = {"identities": {"api-key": Source(verify=find)}, "rules": [Rule("a", "5/minute", by="api-key")]}
    assert decide(gate_of(read_policy(tree)), with_key("k1")).identity == CUSTOMERS["k1"]


# The kind that a verifier gives


@pytest.mark.parametrize("kind", ["customer", "user", "session"])
def test_an_identity_keeps_the_kind_that_its_verifier_gave(kind: str) -> None:
    gate = gate_of(policy_of(lambda key: Identity(kind, "42")))
    assert decide(gate, with_key("k")).identity == Identity(kind, "42")


def test_a_key_of_a_user_can_share_the_quota_of_that_user() -> None:
    gate = gate_of(policy_of(lambda key: Identity("user", "42"), rules=[Rule("a", "2/minute", by=["user", "api-key"])]))
    assert decide(gate, request(user=42))
    assert decide(gate, with_key("k"))
    assert not decide(gate, with_key("k"))
    assert not decide(gate, request(user="42"))


@pytest.mark.parametrize(
    "kind", ["address", "prefix", "agent", "global", "a:b", "a+b", "Customer", "jwt.sub", 5, "x" * 40]
)
def test_a_kind_that_is_built_in_or_cannot_be_one_is_told_and_not_taken(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gate = gate_of(policy_of(lambda key: Identity(kind, "192.0.2.1")))
    with caplog.at_level(logging.ERROR, "ratebound"):
        assert decide(gate, with_key("k")).identity == Identity("api-key", "192.0.2.1")
    assert decide(gate, request()).identity == Identity("address", "192.0.2.1")


@pytest.mark.parametrize("client", ["customer:42", "api-key:42"])
@pytest.mark.parametrize("setting", ["block", "allow", "override", "tier"])
def test_lists_may_name_a_client_by_the_kind_of_its_verifier_or_by_its_source(client: str, setting: str) -> None:
    lists: dict[str, Any] = {
        "block": {"block": [client]},
        "allow": {"allow": [client]},
        "override": {"overrides": [Override(client, "1/minute")]},
        "tier": {"tiers": {"gold": [client], "pro": ()}},
    }
    policy = Policy(
        rules=[
            Rule("a", {"gold": "1/minute", "default": "2/minute"} if setting == "tier" else "2/minute", by="api-key")
        ],
        identities={"api-key": Source(verify=find, kinds=["customer"])},
        **{"tiers": ["pro"], **lists[setting]},
    )
    gate = gate_of(policy)
    passed = [bool(decide(gate, with_key("k1"))) for _ in range(3)]
    assert passed == {"block": [False] * 3, "allow": [True] * 3}.get(setting, [True, False, False])
    assert [bool(decide(gate, with_key("other"))) for _ in range(3)] == [True, True, False]


def test_a_list_that_names_a_user_holds_for_the_keys_of_that_user_where_these_are_declared() -> None:
    sources = {"api-key": Source(verify=lambda key: Identity("user", "42"), kinds=["user"])}
    gate = gate_of(Policy(rules=[Rule("a", "2/minute")], identities=sources, block=["user:42"]))
    assert not decide(gate, with_key("k"))
    assert not decide(gate, request(user=42))
    assert decide(gate, request())


def test_a_kind_that_no_source_declares_is_told_with_what_to_do() -> None:
    with pytest.raises(PolicyError, match=r"unknown identity 'custmer'.*'kinds: \[custmer\]'"):
        policy_of(find, block=["custmer:42"])
    with pytest.raises(PolicyError, match="'customer' is .* the source 'api-key': write 'by: api-key'"):
        Policy(
            rules=[Rule("a", "1/minute", by="customer")], identities={"api-key": Source(verify=find, kinds="customer")}
        )


# What is remembered


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Verifier:
    """Knows keys that begin with 'good', and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, key: str) -> Identity | None:
        self.asked.append(key)
        if key == "trouble":
            raise ConnectionError(key)
        return Identity("", key) if key.startswith("good") else None


@pytest.fixture
def verifier() -> Verifier:
    return Verifier()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("cache", [60, 60.0, "60 seconds", "1 minute", "60s"])
def test_an_identity_that_was_found_holds_for_as_long_as_it_says(cache: Any, verifier: Verifier) -> None:
    gate = gate_of(policy_of({"call": verifier, "cache": cache}, rules=[Rule("a", "9/minute", by="api-key")]))
    for _ in range(3):
        assert decide(gate, with_key("good")).identity == Identity("api-key", "good")
    assert verifier.asked == ["good"]
    source = gate.policy.identities["api-key"]
    assert source.cache == 60.0


def test_without_a_cache_the_verifier_is_asked_each_time(verifier: Verifier) -> None:
    gate = gate_of(policy_of(verifier))
    decide(gate, with_key("good"))
    decide(gate, with_key("good"))
    assert verifier.asked == ["good", "good"]


def test_what_was_remembered_is_forgotten_in_time(verifier: Verifier, clock: Clock) -> None:
    cached = VerifierCache(verifier, 60, clock=clock)
    cached("good")
    clock.now += 59.9
    assert cached("good") == Identity("", "good")
    assert verifier.asked == ["good"]
    clock.now += 0.1
    cached("good")
    assert verifier.asked == ["good", "good"]


def test_a_rejection_and_an_exception_are_not_remembered(verifier: Verifier, clock: Clock) -> None:
    cached = VerifierCache(verifier, 60, clock=clock)
    assert cached("bad") is None
    assert cached("bad") is None
    for _ in range(2):
        with pytest.raises(ConnectionError):
            cached("trouble")
    assert verifier.asked == ["bad", "bad", "trouble", "trouble"]


@pytest.mark.parametrize(
    "rejected",
    [None, False, True, "", {}, [], 1.5, b"key", 2**300, Identity("customer", ""), Identity("", None)],  # type: ignore[arg-type]
)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_an_answer_that_identifies_nobody_is_not_remembered(rejected: Any, is_async: bool) -> None:
    asked = []

    def verify(key: str) -> Any:
        asked.append(key)
        return rejected

    async def verify_async(key: str) -> Any:
        return verify(key)

    call = verify_async if is_async else verify
    policy = policy_of({"call": call, "cache": 60}, rules=[Rule("a", "9/minute", by="api-key")])

    async def main() -> list[Any]:
        async with AsyncGate(policy) as gate:
            return [(await gate.decide(with_key("odd"))).identity for _ in range(2)]

    assert asyncio.run(main()) == [Identity("address", "192.0.2.1")] * 2
    assert asked == ["odd", "odd"]


@pytest.mark.parametrize(("claims", "times"), [({"org": 7}, 2), ({"sub": ""}, 2), ({"sub": None}, 2), ({"sub": 0}, 1)])
def test_claims_are_remembered_only_with_the_claim_that_is_counted_by(claims: dict[str, Any], times: int) -> None:
    asked = []

    def verify(token: str) -> dict[str, Any]:
        asked.append(token)
        return claims

    gate = gate_of(
        Policy(
            rules=[Rule("a", "9/minute", by="jwt:sub")],
            identities={"jwt": {"verify": {"call": verify, "cache": 60}}},
        )
    )
    for _ in range(2):
        decide(gate, request(headers={"authorization": "Bearer token"}))
    assert len(asked) == times


def test_a_flood_of_invented_keys_pushes_out_no_good_one(verifier: Verifier, clock: Clock) -> None:
    cached = VerifierCache(verifier, 60, size=2, clock=clock)
    cached("good 1")
    for number in range(100):
        cached(f"invented {number}")
    verifier.asked.clear()
    cached("good 1")
    assert verifier.asked == []


def test_the_oldest_gives_way_when_it_is_full(verifier: Verifier, clock: Clock) -> None:
    cached = VerifierCache(verifier, 60, size=2, clock=clock)
    for key in ("good 1", "good 2", "good 3"):
        cached(key)
    verifier.asked.clear()
    for key in ("good 2", "good 3", "good 1"):
        cached(key)
    assert verifier.asked == ["good 1"]


def test_credentials_are_not_kept_in_clear() -> None:
    cached = VerifierCache(lambda key: "someone", 60)
    cached("hunter2")
    assert "hunter2" not in repr(vars(cached))


def test_an_async_verifier_is_remembered_as_well(verifier: Verifier) -> None:
    async def verify(key: str) -> Any:
        await asyncio.sleep(0)
        return verifier(key)

    policy = policy_of({"call": verify, "cache": 60}, rules=[Rule("a", "9/minute", by="api-key")])

    async def main() -> list[Any]:
        async with AsyncGate(policy) as gate:
            keys = ("good", "good", "bad", "bad", "trouble", "trouble")
            return [(await gate.decide(with_key(key))).identity for key in keys]

    assert asyncio.run(main()) == [Identity("api-key", "good")] * 2 + [Identity("address", "192.0.2.1")] * 4
    assert verifier.asked == ["good", "bad", "bad", "trouble", "trouble"]
    with pytest.raises(TypeError, match="is for AsyncGate"):
        Gate(policy)


def test_threads_may_share_a_cache(verifier: Verifier) -> None:
    cached = VerifierCache(verifier, 60, size=8)

    def ask() -> None:
        for number in range(500):
            assert cached(f"good {number % 16}") == Identity("", f"good {number % 16}")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verifier.asked) >= 16


# What an Identity may hold, and what the log says of one that cannot be used.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (13, "13"),
        (0, "0"),
        (UUID("6f1c1f0e-31d5-4a2f-9d7c-1f0b8c2f7a11"), "6f1c1f0e-31d5-4a2f-9d7c-1f0b8c2f7a11"),
        ("13", "13"),
    ],
)
def test_the_value_of_an_identity_may_be_a_number_or_a_uuid(value: Any, text: str) -> None:
    source = Source(verify=lambda key: Identity("customer", value, "pro"), kinds=["customer"])
    rules = [Rule("api", "2/minute", by="api-key")]
    policy = Policy(rules=rules, identities={"api-key": source}, block=[f"customer:{text}"], tiers=["pro"])
    view = request(headers={"x-api-key": "k"})
    assert decide(gate_of(policy), view).kind == "block"
    policy = Policy(rules=rules, identities={"api-key": source}, tiers=["pro"])
    assert decide(gate_of(policy), view).identity == Identity("customer", text, "pro")


@pytest.mark.parametrize("value", [None, "", True, 1.5, b"13", 2**300, ["13"]])
def test_an_identity_that_cannot_be_used_is_logged_once(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    name = f"unusable-{type(value).__name__.lower()}"
    source = Source(call=lambda view: Identity("customer", value))
    gate = gate_of(Policy(rules=[Rule("api", "9/minute", by=name)], identities={name: source}))
    with caplog.at_level(logging.ERROR, "ratebound"):
        for _ in range(3):
            verdict = decide(gate, request())
            assert verdict.identity is not None
            assert verdict.identity.kind == "address"
    (record,) = caplog.records
    assert f"identifying by {name} returned an Identity whose value is" in record.getMessage()


def test_a_tier_that_the_policy_does_not_know_is_logged_with_its_source(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(call=lambda view: Identity("", "acme", "platinum"))
    limits = {"pro": "9/minute", "default": "5/minute"}
    policy = Policy(rules=[Rule("api", limits, by="team")], identities={"team": source}, tiers=["pro"], by=["team"])
    with caplog.at_level(logging.ERROR, "ratebound"):
        assert passes(gate_of(policy), request()) == 5
    assert "identifying by team gave the tier 'platinum'" in caplog.text
    assert "known are pro" in caplog.text


# Functions that fail.


def failing(*_: Any) -> Any:
    raise LookupError("no such thing")


FAILING = {
    "identifying by call.failing for rule api": Rule("api", "9/minute", by=failing),
    "identifying by team for rule api": Rule("api", "9/minute", by="team"),
    "identifying by api-key for rule api": Rule("api", "9/minute", by="api-key"),
    "finding the cost for rule api": Rule("api", "9/minute", cost=failing),
    "finding the limits of rule api": Rule("api", Computed(failing, "9/minute")),
}


@pytest.mark.parametrize("what", FAILING)
def test_a_function_that_fails_is_logged_with_its_traceback_once_a_minute(
    what: str, clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function_errors, "clock", lambda: clock.now / SECOND)
    sources = {"team": Source(call=failing), "api-key": Source(verify=failing)}
    gate = gate_of(Policy(rules=[FAILING[what]], identities=sources))
    view = {"x-api-key": "k"}
    with caplog.at_level(logging.ERROR, "ratebound"):
        assert passes(gate, request(headers=view)) == 9
        (first,) = caplog.records
        clock.now += 60 * SECOND
        decide(gate, request(headers=view))
    last = caplog.records[-1]
    assert len(caplog.records) == 2
    assert what in first.getMessage()
    assert first.exc_info is not None
    assert "9 more" in last.getMessage()
    assert last.exc_info is not None


def test_an_async_function_that_fails_is_logged_by_its_rule(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(view: RequestView) -> str:
        raise LookupError("no such thing")

    async def decided() -> None:
        gate = AsyncGate(Policy(rules=[Rule("api", "9/minute", by=broken)]), storage="memory://")
        await gate.decide(request())

    with caplog.at_level(logging.ERROR, "ratebound"):
        asyncio.run(decided())
    (record,) = caplog.records
    assert "identifying by call.broken for rule api failed" in record.getMessage()
