"""Tokens and the cookies that stand for them: what makes a session valid, and what ends it."""

import base64
import json
from typing import Any

import pytest

from ratebound.admin.sign_in import LIFETIME, TokenSignIn
from ratebound.admin.site import AdminSite
from tests.admin.sites import ENTRIES, HOST, OTHER_TOKEN, READ_TOKEN, SECRET, WRITE_TOKEN, Browser, a_site, ask

OWN = {"origin": f"http://{HOST}"}


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def sign_in(site: AdminSite, token: str, **more: Any) -> Any:
    return ask(site, "POST", "api/session", {"token": token}, **{"headers": OWN, **more})


def session_of(site: AdminSite, cookie: str, **more: Any) -> Any:
    return ask(site, "GET", "api/session", headers={"cookie": cookie}, **more)


def test_a_bearer_token_needs_no_session_and_no_csrf_header() -> None:
    site = a_site()
    assert ask(site, "GET", "api/session", token=READ_TOKEN).json == {
        "name": "bob",
        "role": "read",
        "csrf": "",
        "live": False,
        "signs_in": True,
        "ledger": False,
    }
    assert ask(site, "POST", "api/policy/check", {"text": "rules: []"}, token=WRITE_TOKEN).status == 200


@pytest.mark.parametrize("header", ["bearer {}", "BEARER  {} ", "Bearer {}"])
def test_the_scheme_is_written_in_any_case(header: str) -> None:
    headers = {"authorization": header.format(READ_TOKEN)}
    assert ask(a_site(), "GET", "api/session", headers=headers).status == 200


def test_a_token_is_exchanged_for_a_cookie() -> None:
    site = a_site()
    answer = sign_in(site, WRITE_TOKEN)
    assert answer.status == 200
    assert answer.json["name"] == "ann"
    assert WRITE_TOKEN not in str(answer)
    found = session_of(site, answer.cookie)
    assert (found.json["name"], found.json["role"], found.json["csrf"]) == ("ann", "write", answer.json["csrf"])


def test_each_session_has_a_cookie_and_a_csrf_value_of_its_own() -> None:
    site = a_site()
    one, other = sign_in(site, WRITE_TOKEN), sign_in(site, WRITE_TOKEN)
    assert one.cookie != other.cookie
    assert one.json["csrf"] != other.json["csrf"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "ratebound_session={}; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"),
        ({"is_secure": True}, "__Host-ratebound_session={}; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure"),
        (
            {"is_secure": True, "mount": "/limits"},
            "ratebound_session={}; Path=/limits/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure",
        ),
        ({"mount": "/a b;c"}, "ratebound_session={}; Path=/a%20b%3Bc/; Max-Age=43200; HttpOnly; SameSite=Strict"),
        (
            {"headers": {"origin": f"https://{HOST}"}},  # a proxy ends TLS
            "ratebound_session={}; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure",
        ),
    ],
)
def test_the_cookie_is_as_narrow_as_it_can_be(more: dict[str, Any], expected: str) -> None:
    cookie = sign_in(a_site(), WRITE_TOKEN, **more).headers["set-cookie"]
    value = cookie.partition("=")[2].partition(";")[0]
    assert cookie == expected.format(value)


def test_a_session_ends_after_twelve_hours() -> None:
    clock = Clock()
    site = a_site(sign_in=TokenSignIn(ENTRIES, SECRET, clock=clock))
    cookie = sign_in(site, WRITE_TOKEN).cookie
    clock.now += LIFETIME - 1
    assert session_of(site, cookie).status == 200
    clock.now += 1
    assert session_of(site, cookie).status == 401


def test_signing_out_ends_the_session_for_everybody_who_has_its_cookie() -> None:
    site = a_site()
    browser, other = Browser(site), Browser(site)
    answer = browser.ask("DELETE", "api/session")
    assert answer.json == {"done": True}
    assert answer.headers["set-cookie"].startswith("ratebound_session=; Path=/; Max-Age=0;")
    assert session_of(site, browser.cookie).status == 401
    assert session_of(site, other.cookie).status == 200


def test_sessions_that_were_signed_out_are_forgotten_when_their_cookies_have_ended() -> None:
    clock = Clock()
    signing = TokenSignIn(ENTRIES, SECRET, clock=clock)
    site = a_site(sign_in=signing)
    Browser(site).ask("DELETE", "api/session")
    clock.now += LIFETIME
    Browser(site).ask("DELETE", "api/session")
    assert len(signing._ended) == 1


def test_instances_with_the_same_secret_accept_each_others_cookies() -> None:
    cookie = sign_in(a_site(), READ_TOKEN).cookie
    assert session_of(a_site(), cookie).json["name"] == "bob"


@pytest.mark.parametrize(
    ("entries", "secret"),
    [
        (ENTRIES, b"another secret"),
        (ENTRIES, None),
        ([("bob", "read", READ_TOKEN), ("eve", "write", OTHER_TOKEN)], SECRET),
        ([("ann", "write", "another-token-0123456789"), *ENTRIES[1:]], SECRET),
        ([("ann", "read", WRITE_TOKEN), *ENTRIES[1:]], SECRET),
        ([("anna", "write", WRITE_TOKEN), *ENTRIES[1:]], SECRET),
    ],
    ids=["secret", "random", "removed", "changed token", "changed role", "changed name"],
)
def test_what_is_changed_in_the_configuration_ends_its_sessions(entries: Any, secret: bytes | None) -> None:
    cookie = sign_in(a_site(), WRITE_TOKEN).cookie
    assert session_of(a_site(sign_in=TokenSignIn(entries, secret)), cookie).status == 401


def test_no_part_of_a_cookie_can_be_changed() -> None:
    site = a_site()
    name, _, value = sign_in(site, READ_TOKEN).cookie.partition("=")
    payload, _, signature = value.partition(".")
    content = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert content[:2] == ["bob", "read"]
    assert READ_TOKEN not in str(content)
    raised = base64.urlsafe_b64encode(json.dumps(["ann", "write", *content[2:]]).encode()).decode().rstrip("=")
    forged = [
        f"{raised}.{signature}",
        f"{raised}.",
        f"{raised}",
        f"{payload}.{signature[:-4]}",
        f".{signature}",
        f"{payload}.{payload}",
        f"{payload}.{signature}é",
        f"{payload}\u0100.{signature}",
        ".",
        "",
        "=" * 5000,
    ]
    for one in forged:
        assert session_of(site, f"{name}={one}").status == 401, one
    assert session_of(site, f"a=b; {name}={value}; c=d").status == 200


def test_the_value_against_csrf_says_nothing_about_the_cookie() -> None:
    answer = sign_in(a_site(), WRITE_TOKEN)
    assert answer.json["csrf"] not in answer.cookie


def test_over_tls_a_cookie_that_a_neighbour_could_have_set_does_not_count() -> None:
    site = a_site()
    plain = sign_in(site, WRITE_TOKEN).cookie
    safe = sign_in(site, WRITE_TOKEN, is_secure=True).cookie
    assert session_of(site, plain, is_secure=True).status == 401
    assert session_of(site, safe, is_secure=True).status == 200
    assert session_of(site, plain, is_secure=True, mount="/limits").status == 200
    assert session_of(site, f"{plain}x; {safe}").status == 200  # behind a proxy that ends TLS


def test_a_cookie_of_the_same_name_that_a_neighbour_has_set_signs_nobody_out() -> None:
    site = a_site()
    cookie = sign_in(site, WRITE_TOKEN).cookie
    assert session_of(site, f"ratebound_session=nonsense; {cookie}; ratebound_session=").status == 200


def test_wrong_tokens_are_limited_for_each_peer() -> None:
    site = a_site()
    statuses = [sign_in(site, "wrong-token-0123456789", peer="198.51.100.7").status for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    refused = sign_in(site, WRITE_TOKEN, peer="198.51.100.7")  # else the answer would say that this one is right
    assert refused.status == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert ask(site, "GET", "api/session", token=WRITE_TOKEN, peer="198.51.100.7").status == 429
    assert sign_in(site, WRITE_TOKEN, peer="198.51.100.8").status == 200


def test_wrong_bearer_tokens_count_as_well() -> None:
    site = a_site()
    statuses = [ask(site, "GET", "api/session", token="wrong-token-0123456789").status for _ in range(11)]
    assert statuses == [401] * 10 + [429]


def test_an_open_session_goes_on_while_sign_ins_are_limited() -> None:
    site = a_site()
    browser = Browser(site)
    for _ in range(11):
        sign_in(site, "wrong-token-0123456789")
    assert browser.ask("GET", "api/figures").status == 200


@pytest.mark.parametrize("peers", [["198.51.100.7"] * 11, [f"203.0.113.{number}" for number in range(101)]])
def test_a_token_goes_on_from_where_it_is_in_use_while_wrong_ones_are_limited(peers: list[str]) -> None:
    site = a_site()
    assert ask(site, "GET", "api/session", token=READ_TOKEN, peer="198.51.100.7").status == 200
    for peer in peers:
        wrong = sign_in(site, "wrong-token-0123456789", peer=peer)
    assert wrong.status == 429
    assert ask(site, "GET", "api/session", token=READ_TOKEN, peer="198.51.100.7").status == 200
    assert sign_in(site, READ_TOKEN, peer="198.51.100.7").status == 200
    # Else the answer would say that this one is right
    assert sign_in(site, WRITE_TOKEN, peer="198.51.100.7").status == 429
    assert sign_in(site, WRITE_TOKEN, peer=peers[0]).status == 429


def test_a_token_that_was_not_used_for_twelve_hours_is_limited_again() -> None:
    clock = Clock()
    site = a_site(sign_in=TokenSignIn(ENTRIES, SECRET, clock=clock))
    assert sign_in(site, READ_TOKEN).status == 200
    clock.now += LIFETIME
    for _ in range(11):
        sign_in(site, "wrong-token-0123456789")
    assert sign_in(site, READ_TOKEN).status == 429


def test_one_network_of_ipv6_is_one_peer() -> None:
    site = a_site()
    for number in range(10):
        assert sign_in(site, "wrong-token-0123456789", peer=f"2001:db8:0:1::{number + 1}").status == 401
    assert sign_in(site, "wrong-token-0123456789", peer="2001:db8:0:1:ffff::1").status == 429
    assert sign_in(site, "wrong-token-0123456789", peer="2001:db8:0:2::1").status == 401


def test_wrong_tokens_are_limited_for_all_peers_together() -> None:
    site = a_site()
    for number in range(100):
        assert sign_in(site, "wrong-token-0123456789", peer=f"198.51.100.{number}").status == 401
    assert sign_in(site, "wrong-token-0123456789", peer="203.0.113.1").status == 429


def test_right_tokens_are_not_limited() -> None:
    site = a_site()
    assert {sign_in(site, WRITE_TOKEN).status for _ in range(200)} == {200}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "no tokens were given"),
        ([("ann", "admin", WRITE_TOKEN)], "a role is 'read' or 'write', not 'admin'"),
        ([("ann", "read", "short")], "at least 16 printable ASCII characters"),
        ([("ann", "read", "with a blank 0123456789")], "no blanks"),
        ([("", "read", WRITE_TOKEN)], "one line of at most 100 characters"),
        ([("a\nb", "read", WRITE_TOKEN)], "one line of at most 100 characters"),
        ([("ann", "read", WRITE_TOKEN), ("bob", "write", WRITE_TOKEN)], "two operators have the same token"),
    ],
)
def test_a_wrong_configuration_raises_without_showing_a_token(entries: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        TokenSignIn(entries, SECRET)
    assert WRITE_TOKEN not in str(caught.value)


def test_tokens_are_not_in_its_text() -> None:
    assert repr(TokenSignIn(ENTRIES, SECRET)) == "TokenSignIn(3 tokens)"
