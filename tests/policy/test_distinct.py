"""Distinct values in a policy: where they come from, and that no request escapes by what it looks like."""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

import pytest

from ratebound import AsyncMemoryStorage
from ratebound.policy import AsyncGate, Computed, Gate, Match, Policy, PolicyError, RequestView, Rule, read_policy
from ratebound.policy.match.request_body import MAX_BODY
from tests.policy.gates import decide, gate_of, request

LOGIN = Match(paths=["/login"])


def gate_by(source: Any, limits: str = "2 distinct account/hour", **more: Any) -> Gate:
    return gate_of(Policy(rules=[Rule("login", limits, by="address", distinct={"account": source}, **more)]))


def post(body: bytes | str | dict[str, Any], kind: str = "application/json", *more: tuple[str, str]) -> RequestView:
    content = json.dumps(body) if isinstance(body, dict) else body
    sent = content.encode() if isinstance(content, str) else content
    headers = [("content-type", kind), *more] if kind else [*more]
    return request("/login", "POST", headers=headers, body=sent)


def parts(*fields: tuple[str, str], extra: str = "", boundary: str = "xyz") -> str:
    head = f"--{boundary}\r\nContent-Disposition: form-data; name="
    return "".join(f'{head}"{name}"{extra}\r\n\r\n{value}\r\n' for name, value in fields) + f"--{boundary}--\r\n"


def admitted(gate: Gate, views: list[RequestView]) -> list[bool]:
    return [bool(decide(gate, view)) for view in views]


FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=xyz"


@pytest.mark.parametrize(
    "write",
    [
        lambda name: post({"username": name, "password": "&username=other"}),
        lambda name: post({"username": name}, "application/vnd.api+json; charset=utf-8"),
        lambda name: post({"username": name}, ""),
        lambda name: post({"username": name}, "text/plain"),
        lambda name: post({"username": name}, FORM),  # an application may read JSON whatever the type says
        lambda name: post(urlencode({"username": name, "password": "{}"}), FORM),
        lambda name: post(parts(("csrf", "1"), ("username", name)), PARTS),
        lambda name: post(parts(("username", name), extra="; filename=a"), 'multipart/form-data; boundary="xyz"'),
    ],
)
def test_a_field_of_the_body_is_counted_in_json_and_in_forms(write: Any) -> None:
    names = ["ann", "bob", "ann", "eve", "bob", "eve"]
    assert admitted(gate_by("body.username"), [write(name) for name in names]) == [True, True, True, False, True, False]


def test_what_is_the_same_value_in_two_encodings_is_one() -> None:
    views = [
        post({"username": "jürgen"}),
        post(urlencode({"username": "jürgen"}), FORM),
        post(parts(("username", "jürgen")), PARTS),
        post('{"username": "j\\u00fcrgen"}'),
        post({"username": "42"}),
        post({"username": 42}),
        post({"username": "ann"}),
    ]
    assert admitted(gate_by("body.username"), views) == [True] * 6 + [False]


def test_a_nested_field_is_named_with_dots() -> None:
    gate = gate_by("body.user.name")
    views = [post({"user": {"name": name}}) for name in ("ann", "bob", "eve")]
    assert admitted(gate, views) == [True, True, False]
    assert not decide(gate, post(urlencode({"user.name": "eve"}), FORM))


@pytest.mark.parametrize(
    "view",
    [
        request("/login", "POST"),
        request("/login", "POST", body=b" "),
        post("{}"),
        post("null"),
        post({"username": None}),
        post({"user": "ann"}),
        post("a=b", FORM),
        post(parts(("a", "b")), PARTS),
        post(parts(), PARTS),
        post("a=b;c=d", FORM),
    ],
)
def test_absent_is_one_value(view: RequestView) -> None:
    gate = gate_by("body.username", "1 distinct account/hour")
    assert admitted(gate, [view, request("/login", "POST"), post({"username": ""}), post({"username": "ann"})]) == [
        True,
        True,
        False,
        False,
    ]


OTHER_PART = '--xyz\r\nContent-Disposition: form-data; name="username"\r\n\r\nann'

HOSTILE = {
    "too long": post(b'{"username": "ann"}' + b" " * MAX_BODY),
    "broken JSON": post('{"username": "ann"'),
    "not JSON": post("username=ann"),
    "a form of no type": post("username=ann", "text/plain"),
    "a key twice": post('{"username": "ann", "username": "bob"}'),
    "a key twice elsewhere": post('{"username": "ann", "a": {"b": 1, "b": 2}}'),
    "a key twice in another spelling": post('{"username": "ann", "usern\\u0061me": "bob"}'),
    "compressed": post({"username": "ann"}, "application/json", ("content-encoding", "gzip")),
    "a list": post('[{"username": "ann"}]'),
    "a text": post('"username"'),
    "a list as value": post({"username": ["ann"]}),
    "a fraction": post({"username": 1.0}),
    "true": post({"username": True}),
    "NaN": post('{"username": NaN}'),
    "too deep": post('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "two types": post({"username": "ann"}, "application/json", ("content-type", FORM)),
    "another charset": post("username=ann", FORM + "; charset=utf-16"),
    "a field twice": post("username=ann&username=bob", FORM),
    "a field twice, encoded": post("username=ann&%75sername=bob", FORM),
    "bytes that are not UTF-8": post(b"username=%ff", FORM),
    "too many fields": post("&".join(f"a{number}=1" for number in range(2000)), FORM),
    "a form that is JSON, too": post('{"a": "&username=ann&", "username": "bob"}', FORM),
    "a part twice": post(parts(("username", "ann"), ("username", "bob")), PARTS),
    "no boundary": post(parts(("username", "ann")), "multipart/form-data"),
    "two boundaries": post(parts(("username", "ann")), PARTS + "; boundary=abc"),
    "no end": post(parts(("username", "ann"))[:-6], PARTS),
    "text before the parts": post("{}\r\n" + parts(("username", "ann")), PARTS),
    "JSON as parts": post({"username": "ann"}, PARTS),
    "lines that end with LF": post(parts(("username", "ann")).replace("\r\n", "\n"), PARTS),
    "two names": post(parts(("username", "ann"), extra="; name=other"), PARTS),
    "an extended name": post(parts(("a", "ann"), extra="; name*=utf-8''username"), PARTS),
    "an encoded part": post(parts(("username", "ann"), extra="\r\nContent-Transfer-Encoding: base64"), PARTS),
    "a part in another charset": post(
        parts(("username", "ann"), extra="\r\nContent-Type: text/plain; charset=utf-16"), PARTS
    ),
    "a part behind another end of a line": post(parts(("a", f"b\n{OTHER_PART}")), PARTS),
    "a part in the middle of a line": post(parts(("a", f"b{OTHER_PART}")), PARTS),
    "a head that ends with LF": post(parts(("username", "ann"), extra="\n\nbob"), PARTS),
    "a name behind a decoy": post(
        parts(("a", "ann")).replace(" name", " name*10=username\r\nX: content-disposition: form-data; name"), PARTS
    ),
    "a name over two lines": post(parts(("username", "ann")).replace("; name", ";\r\n name"), PARTS),
    "a name that some cut short": post(parts(("username[", "ann")).replace('"', ""), PARTS),
    "two heads": post(parts(("a", "ann"), extra='\r\nContent-Disposition: form-data; filename="b"'), PARTS),
    "a boundary that some cut short": post(
        parts(("username", "ann"), boundary="xyz=a"), "multipart/form-data; boundary=xyz=a"
    ),
    "a boundary with a space": post(parts(("a", "ann"), boundary="xyz "), 'multipart/form-data; boundary="xyz "'),
    "JSON of a type that some read as a form": post('{"username": "ann", "a": "&username=bob&"}', FORM + "=1; a=b"),
    "a form and parts": post("username=ann", f"{FORM}; {PARTS}"),
    "a key twice in JSON that says it is a form": post('{"username": "ann", "username": "ann"}', FORM),
    "the same in UTF-16": post('{"username": "ann", "username": "ann"}'.encode("utf-16"), FORM),
    "fields that some divide at a semicolon": post("a=b;username=ann", FORM),
    "a part that is not UTF-8": post(parts(("username", "?")).encode().replace(b"?", b"\xff"), PARTS),
}


@pytest.mark.parametrize("view", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_body_that_cannot_be_read_is_denied_and_says_why_without_an_echo(view: RequestView) -> None:
    gate = gate_by("body.username", "1000 distinct account/hour", message="Too many accounts.")
    verdict = decide(gate, view)
    assert (verdict.allowed, verdict.kind, verdict.decision) == (False, "deny", None)
    assert verdict.rule is not None
    assert verdict.rule.name == "login"
    assert verdict.message.endswith(".")
    assert verdict.message != "Too many accounts."
    assert not {"ann", "bob", "username"} & set(verdict.message.lower().rstrip(".").split())


def test_in_shadow_an_unreadable_body_is_only_reported() -> None:
    for more in ({"mode": "shadow"}, {"limits": "9/minute", "candidate": "2 distinct account/hour"}):
        given: dict[str, Any] = {"limits": "2 distinct account/hour", **more}
        gate = gate_by("body.username", **given)
        verdict = decide(gate, post("{"))
        assert verdict
        assert [shadow.allowed for shadow in verdict.shadows] == [False]
        assert decide(gate, post({"username": "ann"})).shadows[0].allowed


def test_a_rule_that_does_not_match_does_not_look_at_the_body() -> None:
    gate = gate_by("body.username", match=LOGIN)
    assert decide(gate, request("/other", "POST", body=b"{"))


def test_only_such_rules_need_the_body() -> None:
    assert gate_by("body.username").policy.reads_body
    assert Policy(rules=[Rule("a", "5/minute", by="body.username")]).reads_body
    assert not gate_by("query.username").policy.reads_body
    assert not Policy(rules=[Rule("a", "5/minute", by="query.q")]).reads_body


@pytest.mark.parametrize(
    ("source", "write"),
    [
        ("query.id", lambda value: request(query=f"a=1&id={value}")),
        ("header.X-Device", lambda value: request(headers={"x-device": value})),
        ("cookie.cart", lambda value: request(headers={"cookie": f"a=b; cart={value}"})),
        ("user", lambda value: request(user=value)),
        (lambda view: view.query or None, lambda value: request(query=value)),
        (lambda view: int(view.query, 36), lambda value: request(query=value)),
    ],
)
def test_values_come_from_other_parts_of_a_request(source: Any, write: Any) -> None:
    views = [write(value) for value in ("a", "b", "a", "c", "b")]
    assert admitted(gate_by(source), views) == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("source", "view"),
    [
        ("query.id", request(query="id=1&id=2")),
        ("query.id", request(query="id=%ff")),
        ("header.x-device", request(headers=[("x-device", "1"), ("x-device", "2")])),
        ("cookie.cart", request(headers={"cookie": "cart=1; cart=2"})),
        (lambda view: 1 / 0, request()),
        (lambda view: [], request()),
    ],
)
def test_a_value_that_is_there_twice_or_a_function_that_fails_denies(source: Any, view: RequestView) -> None:
    verdict = decide(gate_by(source), view)
    assert (verdict.allowed, verdict.kind) == (False, "deny")


def test_addresses_of_one_identity_are_counted_by_their_ipv6_prefix() -> None:
    made = Policy(rules=[Rule("a", "2 distinct place/hour", by="user", distinct={"place": "address"})])
    gate = gate_of(made)
    peers = ["2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2", "2001:db8::3"]
    assert admitted(gate, [request(peer=peer, user="ann") for peer in peers]) == [True, True, True, False, True]


def test_an_identity_of_which_there_are_two_is_not_absent() -> None:
    rule = Rule("login", "2 distinct key/hour", by="address", distinct={"key": "api-key"})
    gate = gate_of(Policy(rules=[rule], identities={"api-key": {"verify": str}}))
    verdict = decide(gate, request(headers=[("x-api-key", "ann"), ("x-api-key", "eve")]))
    assert (verdict.kind, verdict.message) == ("deny", "A credential occurs twice, or is too long.")
    assert decide(gate, request(headers=[("x-api-key", "ann")]))


def test_a_parameter_of_the_path_comes_from_the_route_or_from_the_pattern() -> None:
    match = Match(paths=["/users/{id}", "/v{n}/users/{id}"])
    gate = gate_by("path.id", match=match)
    paths = ["/users/1", "/v2/users/2", "/Users/1/", "/users/3", "/users/%33", "/users/%31"]
    assert admitted(gate, [request(path) for path in paths]) == [True, True, True, False, False, True]
    gate = gate_by("path.id")
    views = [request(f"/any/{number}", path_params={"id": number}) for number in (1, 2, 3)]
    assert admitted(gate, views) == [True, True, False]


@pytest.mark.parametrize("path", ["/x/../users/3", "//users/3", "/users/3;a=b", "/users/1%2f..%2f3", "/users/%ff"])
def test_a_path_that_servers_read_differently_is_denied(path: str) -> None:
    gate = gate_by("path.id", "1000 distinct account/hour", match=Match(paths=["/users/{id}"]))
    verdict = decide(gate, request(path))
    assert (verdict.allowed, verdict.kind) == (False, "deny")


def test_the_rest_of_a_path_and_parts_of_segments_are_parameters() -> None:
    gate = gate_by("path.file", match=Match(paths=["/files/{file*}"]))
    assert admitted(gate, [request(f"/files/{name}") for name in ("a/b", "a", "a/c")]) == [True, True, False]
    gate = gate_by("path.n", match=Match(paths=["/v{n}"]))
    assert admitted(gate, [request(f"/v{n}") for n in (1, 2, 3)]) == [True, True, False]


def test_a_candidate_and_an_override_count_values_too() -> None:
    made = read_policy(
        {
            "rules": [
                {
                    "name": "login",
                    "by": "address",
                    "limits": "9/minute",
                    "candidate": "1 distinct account/hour",
                    "distinct": {"account": "query.a"},
                }
            ],
            "overrides": [{"client": "192.0.2.9", "limits": "1 distinct account/hour"}],
        }
    )
    gate = gate_of(made)
    assert [decide(gate, request(query=f"a={name}")).shadows[0].allowed for name in "xy"] == [True, False]
    assert admitted(gate, [request(peer="192.0.2.9", query=f"a={name}") for name in "xy"]) == [True, False]


def test_limits_of_a_function_may_count_values_that_have_a_source() -> None:
    found = Computed(lambda view: f"1 distinct {view.header('x-count')}/hour", "3/minute")
    gate = gate_of(Policy(rules=[Rule("a", found, by="address", distinct={"n": "query.n"})]))
    views = [request(query=f"n={name}", headers={"x-count": "n"}) for name in "xy"]
    assert admitted(gate, views) == [True, False]
    decision = decide(gate, request(headers={"x-count": "unknown"})).decision
    assert decision is not None
    assert decision.limit.name == "a/minute"


def test_async_functions_give_values_to_an_async_gate() -> None:
    async def account(view: RequestView) -> str:
        await asyncio.sleep(0)
        return view.query

    made = Policy(rules=[Rule("login", "1 distinct account/hour", by="address", distinct={"account": account})])
    with pytest.raises(TypeError, match="is an async def"):
        Gate(made)

    async def play() -> list[bool]:
        async with AsyncGate(made, storage=AsyncMemoryStorage()) as gate:
            return [bool(await gate.decide(request(query=name))) for name in ("a", "b", "a")]

    assert asyncio.run(play()) == [True, False, True]


def test_a_denial_by_values_strikes() -> None:
    limits = "1 distinct account/hour; 1 strike/hour block 5 minutes"
    gate = gate_by("query.a", limits)
    assert admitted(gate, [request(query="a=1"), request(query="a=2"), request(query="a=1")]) == [True, False, False]


def test_limits_of_values_have_names_of_their_own() -> None:
    rule = Rule(
        "login",
        "5/hour; 20 distinct account/hour; 50 distinct account/day; 3 distinct id/hour",
        distinct={"account": "body.username", "id": "path.id"},
    )
    plan = rule.plans["default"]
    assert isinstance(plan, tuple)
    assert [limit.name for limit in plan] == [
        "login/hour",
        "login/account-hour",
        "login/account-day",
        "login/id-hour",
    ]


@pytest.mark.parametrize(
    ("rule", "place", "words"),
    [
        ({"limits": "5 distinct account/hour"}, "limits", "write for example 'distinct: {account: body.account}'"),
        ({"limits": "5/hour", "distinct": {"account": "body.a"}}, "distinct.account", "no limit of this rule counts"),
        (
            {"limits": "5 distinct accounts/hour", "distinct": {"account": "body.a", "accounts": "body.b"}},
            "distinct.account",
            "did you mean 'accounts'?",
        ),
        (
            {"limits": "5 distinct account/hour", "distinct": {"account": "body.a", "acount": "body.b"}},
            "distinct.acount",
            "no limit of this rule counts 'acount': did you mean 'account'? Or add one like '20 distinct acount/hour'",
        ),
        (
            {"distinct": {"account": "boddy.name"}},
            "distinct.account",
            "unknown source 'boddy.name': did you mean 'body.name'?",
        ),
        ({"distinct": {"account": "json.user"}}, "distinct.account", "did you mean 'body.user'?"),
        ({"distinct": {"account": "form.user"}}, "distinct.account", "did you mean 'body.user'?"),
        ({"distinct": {"account": "username"}}, "distinct.account", "For a field of the body write 'body.username'"),
        ({"distinct": {"account": "body"}}, "distinct.account", "expected for example 'body.username'"),
        ({"distinct": {"account": "adress"}}, "distinct.account", "unknown source 'adress': did you mean 'address'?"),
        ({"distinct": {"account": "body."}}, "distinct.account", "expected for example 'body.username'"),
        (
            {"distinct": {"account": "path.id"}, "match": {"paths": ["/{name}"]}},
            "distinct.account",
            "/users/{id}",
        ),
        ({"distinct": {"account": 5}}, "distinct.account", "expected a source like"),
        ({"distinct": {"a b": "body.a"}}, "distinct.a b", "expected a name like"),
        ({"distinct": "body.username"}, "distinct", "expected names with their sources"),
        ({"distinct": {"account": lambda: 1}}, "distinct.account", "is called with one argument"),
        ({"distinct": {"account": {"call": "missing"}}}, "distinct.account.call", "unknown function 'missing'"),
        ({"distinct": {"account": "api-key"}}, "distinct.account", "only a claim of the client"),
    ],
)
def test_a_source_that_cannot_work_is_told(rule: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy({"rules": [{"name": "a", "by": "address", "limits": "5 distinct account/hour", **rule}]})
    [problem] = raised.value.problems
    assert problem.where == f"rules[0].{place}"
    assert words in problem.message


def test_an_override_with_values_needs_their_source() -> None:
    with pytest.raises(PolicyError, match="needs to know where 'account' is"):
        read_policy(
            {
                "rules": [{"name": "a", "by": "address", "limits": "5/minute"}],
                "overrides": [{"client": "192.0.2.1", "limits": "5 distinct account/hour"}],
            }
        )
