"""By whom a rule counts: the first identity that is present, parts together, and always the address in the end."""

import asyncio
import logging
from typing import Any

import pytest

from ratebound import MemoryStorage
from ratebound.http import ClientAddress, parse_address
from ratebound.http.prefix import MAX_TEXT
from ratebound.policy import (
    AsyncGate,
    Computed,
    Gate,
    Identity,
    Policy,
    PolicyError,
    RequestView,
    Rule,
    Source,
    read_policy,
)
from ratebound.policy.identity import identify
from ratebound.policy.identity.identify import (
    AGENTS,
    MAX_BITS,
    MAX_CLAIM,
    _log_unusable,
    agent_class,
    as_identity,
    check_by,
    combined,
)
from tests.policy.gates import decide, gate_of, passes, request


def known(value: Any) -> Any:
    return None if value == "bad" else value


SOURCES = {
    "api-key": Source(verify=known),
    "bearer": Source(verify=known),
    "jwt": Source(
        header="x-jwt", verify=lambda token: {"sub": token, "org": "acme", "n": 7, "plan": "pro"}, tier="plan"
    ),
    "session": Source(verify=known),
    "cookie:id": Source(verify=known),
    "header:X-Device": Source(verify=known),
    "tenant": Source(proxy=True),
    "team": Source(call=lambda view: view.header("x-team")),
    "late": Source(header="x-late", verify=lambda value: Identity("ignored", value, "pro")),
}


def who(by: Any, view: RequestView, **more: Any) -> Identity | None:
    policy = Policy(
        rules=[Rule("a", "5/minute", by=by)], identities=SOURCES, trusted=["10.0.0.0/8"], tiers=["pro"], **more
    )
    return decide(gate_of(policy), view).identity


@pytest.mark.parametrize(
    ("by", "view", "key"),
    [
        ("user", request(user="ann"), "user:ann"),
        ("user", request(user=42), "user:42"),
        ("user", request(user=Identity("anything", "ann")), "user:ann"),
        ("api-key", request(headers={"x-api-key": "k"}), "api-key:k"),
        ("bearer", request(headers={"authorization": "bearer  t"}), "bearer:t"),
        ("jwt:sub", request(headers={"x-jwt": "s"}), "jwt.sub:s"),
        ("jwt:n", request(headers={"x-jwt": "s"}), "jwt.n:7"),
        ("session", request(headers={"cookie": 'a=b; session="s"'}), "session:s"),
        ("cookie:id", request(headers={"cookie": "id=7"}), "cookie.id:7"),
        ("header:x-Device", request(headers={"x-device": "d"}), "header.x-device:d"),
        ("address", request(peer="2001:db8::1"), "address:2001:db8::/64"),
        ("prefix", request(peer="192.0.2.77"), "prefix:192.0.2.0/24"),
        ("prefix", request(peer="2001:db8:1:2::3"), "prefix:2001:db8:1::/48"),
        ("prefix:56", request(peer="2001:db8:0:1ff::1"), "prefix.56:2001:db8:0:100::/56"),
        ("prefix:16/48", request(peer="192.0.2.77"), "prefix.16/48:192.0.0.0/16"),
        ("prefix:8/16", request(peer="192.0.2.77"), "prefix.8/16:192.0.0.0/8"),
        ("prefix:8/16", request(peer="2001:db8::1"), "prefix.8/16:2001::/16"),
        ("prefix:32/128", request(peer="2001:db8::1"), "prefix.32/128:2001:db8::1"),
        ("tenant", request(peer="10.0.0.1", headers={"x-tenant": "t"}), "tenant:t"),
        ("team", request(headers={"x-team": "t"}), "team:t"),
        ("global", request(), "global:"),
        ("user + team", request(user="ann", headers={"x-team": "t"}), "user+team:3:ann,1:t"),
        (lambda view: view.header("x-a"), request(headers={"x-a": "1"}), "call.lambda:1"),
        ("address", request(peer=None), "address:unix"),
    ],
)
def test_each_kind(by: Any, view: RequestView, key: str) -> None:
    identity = who(by, view)
    assert identity is not None
    assert identity.key == key


ALL = [
    "api-key",
    "jwt:sub",
    "session",
    "cookie:id",
    "header:X-Device",
    "tenant",
    "team",
    "user",
    "bearer",
    "address + team",
]


@pytest.mark.parametrize("name", ["x-api-key", "X-API-Key"])
def test_the_name_of_a_header_may_have_capitals(name: str) -> None:
    view = request(headers={"x-api-key": "k1"})
    assert (view.header(name), view.header_lines(name)) == ("k1", ["k1"])


@pytest.mark.parametrize("by", [*ALL, ALL, [lambda view: None], "user + team"])
def test_where_nothing_is_present_the_address_is(by: Any) -> None:
    assert who(by, request()) == Identity("address", "192.0.2.1")


def test_the_first_that_is_present_counts() -> None:
    by = ["user", "api-key + team", "api-key"]
    headers = {"x-api-key": "k", "x-team": "t"}
    assert who(by, request(user="ann", headers=headers)) == Identity("user", "ann")
    assert who(by, request(headers=headers)) == Identity("api-key+team", "1:k,1:t")
    assert who(by, request(headers={"x-api-key": "k"})) == Identity("api-key", "k")
    assert who(by, request(headers={"x-api-key": "bad"})) == Identity("address", "192.0.2.1")


def test_a_combined_identity_has_the_tier_of_the_first_part_that_has_one() -> None:
    free, pro, none = Identity("a", "1", "free"), Identity("b", "22", "pro"), Identity("c", "")
    assert combined([none, pro, free]) == Identity("c+b+a", "0:,2:22,1:1", "pro")
    assert combined([free, none]) == Identity("a+c", "1:1,0:", "free")
    assert combined([none, none]) == Identity("c+c", "0:,0:", None)


def test_a_part_of_a_combined_identity_may_have_to_be_awaited() -> None:
    async def verify(token: str) -> str:
        return f"verified-{token}"

    async def main() -> Identity | None:
        policy = Policy(
            rules=[Rule("a", "5/minute", by="address + key")], identities={"key": Source("x-key", verify=verify)}
        )
        async with AsyncGate(policy, storage=MemoryStorage()) as gate:
            return (await gate.decide(request(headers={"x-key": "k"}))).identity

    assert asyncio.run(main()) == Identity("address+key", "9:192.0.2.1,10:verified-k")


def test_functions_of_one_name_in_one_rule_are_told_apart() -> None:
    by = [lambda view: None, lambda view: None, lambda view: "third"]
    assert who(by, request()) == Identity("call.lambda-3", "third")


def test_the_address_plus_the_user_agent() -> None:
    one, other = (who("address + agent", request(headers={"user-agent": agent})) for agent in ("a", "c"))
    assert one is not None
    assert one.kind == "address+agent"
    assert one != other


def test_user_agents_are_of_a_few_classes() -> None:
    classes = {agent_class(request(headers={"user-agent": f"agent {n}"})) for n in range(500)}
    assert classes == {str(number) for number in range(AGENTS)}
    assert agent_class(request()) == agent_class(request(headers={"user-agent": ""}))


def test_a_verifier_is_asked_once_for_all_rules() -> None:
    calls: list[str] = []
    policy = Policy(
        rules=[
            Rule("a", "5/minute", by="jwt:sub"),
            Rule("b", "5/minute", by="jwt:org"),
            Rule("c", "9/minute", by="jwt:sub"),
        ],
        identities={"jwt": Source(verify=lambda token: [calls.append(token), {"sub": "s", "org": "o"}][1])},  # type: ignore[func-returns-value]
    )
    verdict = decide(gate_of(policy), request(headers={"authorization": "Bearer x"}))
    assert [identity.key for identity in verdict.identities] == ["jwt.sub:s", "jwt.org:o", "jwt.sub:s"]
    assert calls == ["x"]


def test_a_verifier_is_not_bothered_with_what_is_no_token() -> None:
    calls: list[str] = []
    policy = Policy(
        rules=[Rule("a", "5/minute", by="api-key")],
        identities={"api-key": Source(verify=lambda token: calls.append(token))},
    )
    decide(gate_of(policy), request(headers={"x-api-key": "x" * (MAX_CLAIM + 1)}))
    decide(gate_of(policy), request(headers={"x-api-key": ""}))
    assert not calls
    decide(gate_of(policy), request(headers={"x-api-key": "x" * MAX_CLAIM}))
    assert calls == ["x" * MAX_CLAIM]


@pytest.mark.parametrize(
    ("answer", "identity", "said"),
    [
        (None, None, ""),
        (False, None, ""),
        ("", None, ""),
        ("ann", Identity("team", "ann"), ""),
        (2**MAX_BITS - 1, Identity("team", str(2**MAX_BITS - 1)), ""),
        (True, None, "identifying by team returned bool;"),
        (1.5, None, "identifying by team returned float;"),
        (2**MAX_BITS, None, "identifying by team returned a number of too many bits;"),
        (Identity("", "ann"), Identity("team", "ann"), ""),
        (Identity("", ""), None, "identifying by team returned an Identity whose value is empty;"),
        (Identity("", True), None, "returned an Identity whose value is bool;"),  # type: ignore[arg-type]
        (Identity("", 2**MAX_BITS), None, "returned an Identity whose value is a number of too many bits;"),
        (Identity("", "ann", "pro"), Identity("team", "ann", "pro"), ""),
        (Identity("", "ann", 5), Identity("team", "ann"), "returned a tier of type int:"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_that_cannot_be_used_is_told_and_nobody_is_not(
    answer: Any, identity: Identity | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    _log_unusable.cache_clear()
    with caplog.at_level(logging.ERROR, "ratebound"):
        assert as_identity("team", answer) == identity
    assert len(caplog.records) == bool(said)
    assert said in caplog.text


@pytest.mark.parametrize(
    ("claims", "tier", "identity", "said"),
    [
        (None, "plan", None, ""),
        ("ann", "plan", None, "the verifier of jwt returned str: expected a mapping of claims or None"),
        ({"plan": "pro"}, "plan", None, ""),
        ({"sub": "ann", "plan": "pro"}, "plan", Identity("jwt.sub", "ann", "pro"), ""),
        ({"sub": "ann"}, "plan", Identity("jwt.sub", "ann"), ""),
        ({"sub": "ann", "plan": "pro"}, "", Identity("jwt.sub", "ann"), ""),
        ({"sub": Identity("", "ann", "pro")}, "", Identity("jwt.sub", "ann", "pro"), ""),
    ],
)
def test_claims_give_an_identity_and_the_tier_that_is_asked_for(
    claims: Any, tier: str, identity: Identity | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(
        rules=[Rule("a", "5/minute", by="jwt:sub")],
        identities={"jwt": Source(header="x-jwt", verify=lambda _: claims, tier=tier)},
        tiers=["pro"],
    )
    with caplog.at_level(logging.ERROR, "ratebound"):
        verdict = decide(gate_of(policy), request(headers={"x-jwt": "t"}))
    assert verdict.identity == (identity or Identity("address", "192.0.2.1"))
    assert len(caplog.records) == bool(said)
    assert said in caplog.text


def test_of_an_address_the_identity_is_remembered_but_not_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identify, "MAX_KNOWN", 2)
    of_client = identify._address_kind.__wrapped__("address", 32, 64).of_client
    assert of_client is not None
    clients = [ClientAddress(parse_address(text), text, "peer") for text in ("192.0.2.1", "192.0.2.2", "192.0.2.3")]
    first, second = of_client(clients[0]), of_client(clients[1])
    assert of_client(clients[0]) is first
    assert of_client(clients[1]) is second
    assert of_client(clients[2]) == (Identity("address", "192.0.2.3"), "address:192.0.2.3")
    assert of_client(clients[0]) is not first, "all were forgotten"


def test_of_a_client_without_an_address_no_long_text_is_remembered() -> None:
    of_client = identify._address_kind.__wrapped__("address", 32, 64).of_client
    assert of_client is not None
    for length, is_remembered in ((MAX_TEXT, True), (MAX_TEXT + 1, False)):
        client = ClientAddress(None, "p" * length, "peer")
        first = of_client(client)
        assert first == (Identity("address", "p" * length), f"address:{'p' * length}")
        assert (of_client(client) is first) is is_remembered


@pytest.mark.parametrize("answer", [None, False, "", 3.5, b"x", {"sub": "x"}, object(), Identity("", "")])
def test_an_answer_that_is_no_identity_counts_for_nothing(answer: Any) -> None:
    policy = Policy(rules=[Rule("a", "5/minute", by=lambda view: answer)])
    assert decide(gate_of(policy), request()).identity == Identity("address", "192.0.2.1")


class Hostile:
    """What a careless function may return: whatever is done with it raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __hash__(self) -> int:
        raise RuntimeError("not to be hashed")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __index__(self) -> int:
        raise RuntimeError("not a number")

    def __iter__(self) -> Any:
        raise RuntimeError("not a list")

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("not of a class")


class Text(str):
    """Text that is equal to nothing, and cannot be hashed."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __hash__(self) -> int:
        raise RuntimeError("not to be hashed")


ODD: list[Any] = [
    Hostile(),
    [],
    ["pro"],
    {},
    10**5000,
    -(10**5000),
    5.5,
    float("nan"),
    b"pro",
    Text("x"),
    object,
    "\ud800",
    True,
]


@pytest.mark.parametrize("place", range(len(ODD)))  # pytest itself cannot name all of them
def test_nothing_that_a_function_answers_is_raised(place: int) -> None:
    answer = ODD[place]

    def odd(*arguments: Any) -> Any:
        return answer

    policy = Policy(
        rules=[
            Rule("a", {"pro": "9/minute", "default": "3/minute"}, by=[odd, "key", "jwt:sub", "user"]),
            Rule("b", Computed(odd, otherwise="4/minute"), by=lambda view: Identity("", "x", answer), cost=odd),
            Rule(
                "c", "5/minute", by=lambda view: Identity("", answer), candidate={"pro": "9/minute", "default": "deny"}
            ),
        ],
        by=["late", "key", "jwt:n", "jwt:sub", "user"],
        identities={
            "key": Source(header="x-key", verify=odd),
            "jwt": Source(header="x-jwt", verify=lambda token: {"sub": "s", "n": answer, "plan": answer}, tier="plan"),
            "late": Source(call=lambda view: Identity("", "x", answer)),
        },
        tiers=["pro"],
        block=["jwt:n:mallory", "late:mallory"],
    )
    for headers in ({"x-key": "k"}, {"x-jwt": "t"}, {}):
        verdict = decide(gate_of(policy), request(headers=headers, user=answer))
        assert verdict.kind == "limited"
        assert all(type(part) is str for identity in verdict.identities for part in identity[:2])


def test_claims_that_cannot_be_looked_into_count_for_nothing() -> None:
    class Claims(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise RuntimeError("no claims")

    policy = Policy(rules=[Rule("a", "5/minute", by="jwt:sub")], identities={"jwt": Source(verify=lambda _: Claims())})
    verdict = decide(gate_of(policy), request(headers={"authorization": "Bearer x"}))
    assert verdict.identity == Identity("address", "192.0.2.1")


def test_two_functions_of_one_name_are_asked_each() -> None:
    def named(value: str) -> Any:
        return lambda view: value

    policy = Policy(rules=[Rule("a", "100/minute", by=named("A")), Rule("b", "5/minute", by=named("B"))])
    assert decide(gate_of(policy), request()).identities == [
        Identity("call.lambda", "A"),
        Identity("call.lambda", "B"),
    ]


@pytest.mark.parametrize(
    ("by", "headers"),
    [
        ("api-key", [("x-api-key", "mine"), ("x-api-key", "yours")]),
        ("api-key", [("x-api-key", "mine"), ("x-api-key", "mine")]),
        ("bearer", [("authorization", "Bearer mine"), ("authorization", "Bearer yours")]),
        ("bearer", [("authorization", "Bearer mine"), ("authorization", "Basic eW91cnM=")]),
        ("jwt:sub", [("x-jwt", "mine"), ("x-jwt", "yours")]),
        ("header:x-device", [("x-device", "mine"), ("x-device", "yours")]),
        ("session", [("cookie", "session=mine; session=yours")]),
        ("cookie:id", [("cookie", "id=mine; a=b"), ("cookie", "id=yours")]),
        ("cookie:id", [("cookie", "id=; id=yours")]),
    ],
)
def test_a_credential_that_was_sent_twice_identifies_nobody(by: str, headers: list[tuple[str, str]]) -> None:
    assert who(by, request(headers=headers)) == Identity("address", "192.0.2.1")
    if len(headers) > 1:
        assert who(by, request(headers=headers[:1])) != Identity("address", "192.0.2.1")


def test_a_policy_says_that_an_identity_looks_at_the_body() -> None:
    def account_of(view: RequestView) -> str | None:
        return (view.body or b"").decode() or None

    assert not Policy(rules=[Rule("a", "5/minute", by=account_of)]).reads_body
    account_of.reads_body = True  # type: ignore[attr-defined]
    assert Policy(rules=[Rule("a", "5/minute", by=account_of)]).reads_body
    assert Policy(rules=[Rule("a", "5/minute", by=[account_of, "address"])]).reads_body
    assert Policy(rules=[Rule("a", "5/minute")], by=[account_of, "address"]).reads_body
    source = Source(call=account_of)
    assert Policy(rules=[Rule("a", "5/minute", by="account + address")], identities={"account": source}).reads_body
    assert Policy(rules=[Rule("a", "5/minute")], identities={"account": source}, block=["account:x"]).reads_body
    assert not Policy(rules=[Rule("a", "5/minute")], identities={"key": Source(header="x", verify=str)}).reads_body


def test_tiers_come_with_the_identity() -> None:
    policy = Policy(
        rules=[Rule("a", {"pro": "9/minute", "default": "3/minute"}, by=["late", "jwt:sub"])],
        identities=SOURCES,
        trusted=["10.0.0.1"],
        tiers=["pro"],
    )
    gate = gate_of(policy)
    assert passes(gate, request(headers={"x-late": "a"})) == 9
    assert passes(gate, request(headers={"x-jwt": "b"})) == 9
    assert passes(gate, request()) == 3


def test_the_tier_may_come_from_another_identity_than_the_one_counted_by() -> None:
    policy = Policy(
        rules=[Rule("a", {"pro": "9/minute", "default": "3/minute"}, by="address")],
        by=["late", "address"],
        identities=SOURCES,
        trusted=["10.0.0.1"],
        tiers=["pro"],
    )
    assert passes(gate_of(policy), request(headers={"x-late": "a"})) == 9


def test_who_is_known_only_after_the_early_stage_is_known_in_the_late_one() -> None:
    def whoever(view: RequestView) -> Any:
        return view.user

    gate = gate_of(
        Policy(rules=[Rule("a", "5/minute", by=whoever, stage="early"), Rule("b", "5/minute", by=whoever)]),
    )
    view = request()
    assert gate.decide(view, "early").identity == Identity("address", "192.0.2.1")
    view.user = "ann"
    assert gate.decide(view, "late").identity == Identity("call.whoever", "ann")
    with pytest.raises(ValueError, match="a stage is"):
        gate.decide(view, "later")  # type: ignore[arg-type]


def test_lists_name_claims_headers_and_cookies() -> None:
    policy = Policy(
        rules=[Rule("a", "5/minute")],
        identities=SOURCES,
        trusted=["10.0.0.1"],
        block=["jwt:sub:mallory", "cookie:id:7", "tenant:evil"],
    )
    gate = gate_of(policy)
    assert decide(gate, request(headers={"x-jwt": "mallory"})).kind == "block"
    assert decide(gate, request(headers={"cookie": "id=7"})).kind == "block"
    assert decide(gate, request(peer="10.0.0.1", headers={"x-tenant": "evil"})).kind == "block"
    assert decide(gate, request(headers={"x-tenant": "evil", "cookie": "id=8"})).kind == "limited"


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("jwt", "write which one"), ("", "unknown identity ''"), ("user +", "unknown identity ''"), (5, "not 5"),
        (["user", "user"], "twice"), (["prefix:56", "user"], "never reached"), ("prefix:x", "cannot read prefix:x"),
        ("nobody", "expected one of"),
        ("prefix:0048", "cannot read prefix:0048"), ("prefix:0024/48", "cannot read prefix:0024/48"),
        *((f"prefix:{lengths}", "is out of range") for lengths in ("7/48", "33/48", "24/15", "24/129", "15", "129")),
    ],
)  # fmt: skip
def test_a_by_that_cannot_work_is_refused(by: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        who(by, request())


@pytest.mark.parametrize(
    ("by", "where"), [("nobody", "rules[0].by"), (["nobody"], "rules[0].by"), (["user", "nobody"], "rules[0].by[1]")]
)
def test_a_mistake_is_told_with_its_place_among_several(by: Any, where: str) -> None:
    with pytest.raises(PolicyError) as caught:
        who(by, request())
    assert [problem.where for problem in caught.value.problems] == [where]


@pytest.mark.parametrize(("by", "name"), [("session", "session"), ("jwt:sub", "jwt"), ("cookie:id", "cookie:id")])
def test_a_claim_without_a_verifier_is_refused_with_what_to_write(by: str, name: str) -> None:
    message = f"'{by}' is only a claim of the client: add {name} to identities, with a verifier"
    with pytest.raises(PolicyError, match=message):
        Policy(rules=[Rule("a", "5/minute", by=by)])


@pytest.mark.parametrize("by", ["address", "prefix:56", "global", "address + agent", lambda view: None])
def test_an_early_rule_counts_by_what_is_known_of_everybody(by: Any) -> None:
    gate = gate_of(Policy(rules=[Rule("a", "5/minute", by=by, stage="early")]))
    assert decide(gate, request(), "early").kind == "limited"


@pytest.mark.parametrize("by", ["user", "team", "user + agent"])
def test_an_early_rule_cannot_count_by_who_is_not_identified_yet(by: str) -> None:
    with pytest.raises(PolicyError, match="an early rule is evaluated before clients are identified"):
        Policy(rules=[Rule("a", "5/minute", by=by, stage="early")], identities={"team": Source(call=known)})


def test_a_name_that_a_policy_may_define_is_left_to_the_policy() -> None:
    for by in (
        "user",
        "customer",
        "api-key",
        "jwt:sub",
        "header:x-team",
        ["customer", "address"],
        "address + customer",
    ):
        check_by(by)
    for wrong in ("ip", "user_or_ip", "get_remote_address"):
        with pytest.raises(ValueError, match="did you mean 'address'"):
            check_by(wrong)
    with pytest.raises(ValueError, match="unknown identity"):
        check_by("No Such")


def test_a_missing_address_is_told_once_and_only_if_a_rule_counts_by_it(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(read_policy({"rules": [{"name": "api", "by": "user", "limits": "9/minute"}]}))
    with caplog.at_level(logging.WARNING, "ratebound"):
        for _ in range(3):
            assert gate.decide(RequestView("GET", "/", peer="a-test-client", user="ann"))
        assert caplog.messages == []
        for _ in range(3):
            assert gate.decide(RequestView("GET", "/", peer="a-test-client"))
    assert caplog.messages == [
        "requests come without the address of a client (peer 'a-test-client'), so they all count as one client"
    ]
