"""Rates by the target of a request: the account that is being guessed, and not who guesses."""

from typing import Any

import pytest

from ratebound.policy import Match, Policy, PolicyError, RequestView, Rule, read_policy
from tests.policy.gates import decide, gate_of, passes, request


def login(name: str, peer: str = "192.0.2.1") -> RequestView:
    return request("/login", "POST", peer=peer, body=b'{"username": "%s"}' % name.encode())


def test_one_account_has_one_quota_from_all_addresses() -> None:
    gate = gate_of(Policy(rules=[Rule("account", "3/minute", by="body.username")]))
    views = [login("ann", f"192.0.2.{number}") for number in range(9)]
    assert passes(gate, *views) == 3
    assert decide(gate, login("bob"))


@pytest.mark.parametrize("name", ["Ann", " ann ", "ANN", "\uff41nn"])
def test_spellings_of_one_name_are_one_key(name: str) -> None:
    gate = gate_of(Policy(rules=[Rule("account", "3/minute", by="body.username")]))
    assert passes(gate, login("ann"), login(name)) == 3


@pytest.mark.parametrize("name", ["adm\u0131n", "ADM\u0130N", "admi\u0307n"])
def test_letters_that_databases_take_for_an_i_are_one_key(name: str) -> None:
    gate = gate_of(Policy(rules=[Rule("account", "3/minute", by="body.username")]))
    assert passes(gate, login("admin"), login(name)) == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("7", "007"),
        ("7", "+7"),
        ("7", "7.0"),
        ("1000", "1_000"),
        ("-7", "-07"),
        ("0", "-00"),
        ("7", "\u0667"),
        ("1000", "\u0967\u09660\u0660"),
        ("7", "00000000000000000000000000000007"),
        ("12345678-1234-5678-1234-56781234567a", "1234567812345678123456781234567A"),
        ("12345678-1234-5678-1234-56781234567a", "{12345678-1234-5678-1234-56781234567a}"),
        ("12345678-1234-5678-1234-56781234567a", "urn:uuid:12345678-1234-5678-1234-56781234567a"),
        ("12345678-1234-5678-1234-56781234567a", "12345678-123\u0664-5678-1234-56781234567a"),
        ("0a345678-1234-5678-1234-56781234567a", "a_34567812345678123456781234567a"),
    ],
)
def test_spellings_of_one_number_or_uuid_are_one_key(first: str, second: str) -> None:
    gate = gate_of(Policy(rules=[Rule("account", "3/minute", by="body.username")]))
    assert passes(gate, login(first), login(second)) == 3


def test_other_numbers_and_names_with_digits_are_other_keys() -> None:
    gate = gate_of(Policy(rules=[Rule("account", "1/minute", by="body.username")]))
    for name in ("7", "70", "-7", "7a", "a7", "7.5", "0x7", "7-0", "_7", "+", "deadbeef"):
        assert decide(gate, login(name)), name


def test_a_path_and_a_query_are_targets_too() -> None:
    rules = [
        Rule("users", "2/minute", by="path.id", match=Match(paths=["/users/{id}"])),
        Rule("search", "2/minute", by="query.q + address", match=Match(paths=["/search"])),
    ]
    gate = gate_of(Policy(rules=rules))
    assert passes(gate, request("/users/7"), request("/users/7", peer="192.0.2.2")) == 2
    assert decide(gate, request("/users/8"))
    assert passes(gate, request("/search", query="q=a")) == 2
    assert decide(gate, request("/search", query="q=a", peer="192.0.2.2"))
    assert decide(gate, request("/search", query="q=b"))


@pytest.mark.parametrize("charset", ["charset=utf-7", "charset*=utf-8''utf-7", "charset*0=utf-7"])
def test_a_query_that_an_application_may_decode_by_another_charset_is_denied(charset: str) -> None:
    gate = gate_of(Policy(rules=[Rule("reset", "2/minute", by="query.account")]))
    for kind, is_allowed in (("text/plain; charset=UTF-8", True), (f"text/plain; {charset}", False)):
        verdict = decide(gate, request("/reset", "POST", query="account=%2BAGE-nn", headers=[("content-type", kind)]))
        assert verdict.allowed is is_allowed


def test_two_rules_read_a_parameter_by_their_own_patterns() -> None:
    rules = [
        Rule("a", "2/minute", by="path.id", match=Match(paths=["/x/{id}/{other}"])),
        Rule("b", "9/minute", by="path.id", match=Match(paths=["/x/{other}/{id}"])),
    ]
    verdict = decide(gate_of(Policy(rules=rules)), request("/x/1/2"))
    assert [identity.key for identity in verdict.identities] == ["path.id:1", "path.id:2"]


def test_without_a_target_a_request_counts_by_address() -> None:
    gate = gate_of(Policy(rules=[Rule("account", "3/minute", by="body.username")]))
    assert passes(gate, login(""), login("  "), request("/login", "POST")) == 3


@pytest.mark.parametrize("body", [b"{", b'{"username": ["ann"]}', b'{"username": "an\\u200bn"}', b'{"username": 1.5}'])
def test_an_unreadable_target_is_denied(body: bytes) -> None:
    gate = gate_of(Policy(rules=[Rule("account", "3/minute", by=["body.username", "address"])]))
    verdict = decide(gate, request("/login", "POST", body=body))
    assert (verdict.allowed, verdict.kind) == (False, "deny")
    assert verdict.message


def test_early_rules_may_count_by_a_target() -> None:
    gate = gate_of(Policy(rules=[Rule("account", "1/minute", by="body.username", stage="early")]))
    assert gate.decide(login("ann"), "early")
    assert not gate.decide(login("ann"), "early")


def test_a_target_has_no_tier_of_its_own() -> None:
    gate = gate_of(
        Policy(
            tiers={"pro": ["user:ann"]},
            rules=[Rule("account", {"pro": "5/minute", "default": "1/minute"}, by="body.username")],
        )
    )
    assert passes(gate, login("ann")) == 1


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"block": ["body.username:ann"]}, "block[0]", "says what a request is about, not who sent it"),
        ({"allow": ["query.q:ann"]}, "allow[0]", "does not identify a client"),
        ({"tiers": {"pro": ["body.username:ann"]}}, "tiers.pro[0]", "does not identify a client"),
        ({"overrides": [{"client": "path.id:1", "limits": "1/hour"}]}, "overrides[0].client", "does not identify"),
        ({"by": ["body.username", "address"]}, "by", "write it in the 'by' of a rule"),
        ({"rules": [{"name": "a", "limits": "1/hour", "by": "header.x-user"}]}, "rules[0].by", "'header:x-user'"),
        ({"rules": [{"name": "a", "limits": "1/hour", "by": "body.a b"}]}, "rules[0].by", "cannot read 'body.a b'"),
    ],
)
def test_a_target_is_no_client(changes: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(PolicyError) as raised:
        read_policy({"rules": [{"name": "a", "limits": "5/minute", "by": "body.username"}], **changes})
    [problem] = raised.value.problems
    assert problem.where == place
    assert words in problem.message


def test_an_operator_can_look_at_a_target_and_reset_it_in_any_spelling() -> None:
    gate = gate_of(Policy(rules=[Rule("account", "1/minute", by="body.username")]))
    assert passes(gate, login("ann")) == 1
    [usage] = gate.usage_of("body.username:Ann")
    assert usage.used == 1
    gate.reset("body.username:ANN")
    assert decide(gate, login("ann"))


def test_the_usage_of_a_client_leaves_targets_out() -> None:
    rules = [Rule("account", "9/minute", by="body.username"), Rule("all", "9/minute", by="address")]
    gate = gate_of(Policy(rules=rules))
    assert [usage.rule for usage in gate.usage(login("victim"), all_rules=True)] == ["all"]
    assert [usage.rule for usage in gate.usage(login("victim"))] == ["account", "all"]
    assert [usage.rule for usage in gate.usage(request("/login", "POST", body=b"{"))] == ["all"]


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        ("application/json", b'{"username": "ann"}', "ann"),
        ("application/x-www-form-urlencoded", b"username=ann&password=x", "ann"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="username"\r\n\r\nann\r\n--b--',
            "ann",
        ),
        ("application/json", b'{"username": "ann", "username": "ben"}', None),
        ("application/x-www-form-urlencoded", b"username=ann&username=ben", None),
        ("application/json", b"{}", None),
    ],
)
def test_a_function_reads_a_value_as_rules_do(kind: str, body: bytes, value: str | None) -> None:
    view = RequestView("POST", "/login", headers=[("content-type", kind), ("x-device", "d1")], query="q=1", body=body)
    assert view.value("body.username") == value
    assert (view.value("header.X-Device"), view.value("query.q"), view.value("cookie.cart")) == ("d1", "1", None)
    with pytest.raises(ValueError, match=r"cannot read 'form\.username'"):
        view.value("form.username")
