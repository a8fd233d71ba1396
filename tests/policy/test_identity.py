"""By whom a rule counts: the first identity that is present, parts together, and always the address in the end."""

from typing import Any

import pytest

from ratebound.policy import Computed, Identity, Policy, PolicyError, RequestView, Rule, Source
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


def test_the_address_plus_the_user_agent() -> None:
    one, other = (who("address + agent", request(headers={"user-agent": agent})) for agent in ("a", "c"))
    assert one is not None
    assert one.kind == "address+agent"
    assert one != other


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
    decide(gate_of(policy), request(headers={"x-api-key": "x" * 10_000}))
    decide(gate_of(policy), request(headers={"x-api-key": ""}))
    assert not calls


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
        ("jwt", "name one"), ("", "unknown identity ''"), ("user +", "unknown identity ''"), (5, "not 5"),
        (["user", "user"], "twice"), (["prefix:56", "user"], "never reached"), ("prefix:x", "cannot read prefix:x"),
        ("nobody", "known are"),
        *((f"prefix:{lengths}", "is out of range") for lengths in ("7/48", "33/48", "24/15", "24/129", "15", "129")),
    ],
)  # fmt: skip
def test_a_by_that_cannot_work_is_refused(by: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        who(by, request())
