"""Another site cannot make an operator's browser act, or sign in as somebody else: the matrix of what browsers send."""

from typing import Any

import pytest

from ratebound.admin.calls import CALLS, AdminCall
from ratebound.admin.sign_in import GivenSignIn
from tests.admin.sites import HOST, WRITE_TOKEN, Browser, a_site, ask, body_of, path_of
from tests.admin.test_roles import recorded_site

WRITES = [call for call in CALLS if call.is_write and call.name != "sign_in"]
ALLOWED: list[dict[str, str | None]] = [
    {"origin": f"http://{HOST}"},
    {"origin": f"https://{HOST}"},  # a proxy ends TLS
    {"origin": f"http://{HOST.upper()}"},
    {"origin": f"https://{HOST}", "host": f"{HOST}:443"},
    {"origin": f"http://{HOST}:4293", "host": f"{HOST}:4293"},
    {"origin": "http://[::1]:4293", "host": "[::1]:4293"},
    {"sec_fetch_site": "same-origin"},
    {"sec_fetch_site": "same-origin", "origin": None},
    {"sec_fetch_site": "same-origin", "origin": "https://public.example"},  # a proxy that changes Host
]
REFUSED: list[dict[str, str | None]] = [
    {"origin": None},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "https://evil.example"},
    {"origin": f"https://{HOST}.evil.example"},
    {"origin": f"https://evil.example/{HOST}"},
    {"origin": f"https://{HOST}@evil.example"},
    {"origin": f"https://evil.example@{HOST}"},
    {"origin": f"http://{HOST}:8000"},
    {"origin": f"ftp://{HOST}"},
    {"origin": HOST},
    {"origin": "http://[::1"},
    {"origin": f"http://{HOST}, https://evil.example"},
    {"origin": f"http://{HOST}", "host": ""},
    {"origin": "http://", "host": ""},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "none"},
    {"sec_fetch_site": ""},
    {"sec_fetch_site": "same-origin, cross-site"},
]
WRONG_CSRF: list[dict[str, str | None]] = [
    {"x_ratebound_csrf": None},
    {"x_ratebound_csrf": ""},
    {"x_ratebound_csrf": "0" * 32},
    {"x_ratebound_csrf": "é"},
]


def named(call: AdminCall) -> str:
    return call.name


@pytest.mark.parametrize("changed", ALLOWED)
def test_the_page_itself_may_write(changed: dict[str, str | None]) -> None:
    site, calls = recorded_site()
    browser = Browser(site)
    browser.ask("POST", "api/resets", {"client": "user:42"}, **changed)
    assert [name for name, *_ in calls.made] == ["reset"]


@pytest.mark.parametrize("changed", [*REFUSED, *WRONG_CSRF])
@pytest.mark.parametrize("call", WRITES, ids=named)
def test_no_other_site_may_write(call: AdminCall, changed: dict[str, str | None]) -> None:
    site, calls = recorded_site()
    browser = Browser(site)
    answer = browser.ask(call.method, path_of(call), body_of(call), **changed)
    assert answer.status == 403
    assert answer.json["detail"]
    assert calls.made == []
    assert browser.ask("GET", "api/session").status == 200  # it has not even been signed out


def test_the_value_of_another_session_does_not_do() -> None:
    site, calls = recorded_site()
    browser, other = Browser(site), Browser(site)
    answer = browser.ask("POST", "api/resets", {"client": "user:42"}, x_ratebound_csrf=other.csrf)
    assert (answer.status, calls.made) == (403, [])


@pytest.mark.parametrize("changed", REFUSED)
def test_no_other_site_may_sign_a_browser_in(changed: dict[str, str | None]) -> None:
    headers = {name.replace("_", "-"): value for name, value in changed.items() if value is not None}
    answer = ask(a_site(), "POST", "api/session", {"token": WRITE_TOKEN}, headers=headers)
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


def test_a_form_cannot_be_sent_as_a_call() -> None:
    site, calls = recorded_site()
    browser = Browser(site)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = browser.ask("POST", "api/resets", {"client": "user:42"}, content_type=kind)
        assert answer.status == 415
    assert calls.made == []


@pytest.mark.parametrize("changed", REFUSED)
def test_programs_with_a_token_need_no_proof(changed: dict[str, str | None]) -> None:
    site, calls = recorded_site()
    headers = {name.replace("_", "-"): value for name, value in changed.items() if value}
    assert ask(site, "POST", "api/resets", {"client": "user:42"}, token=WRITE_TOKEN, headers=headers).status == 200
    assert len(calls.made) == 1


@pytest.mark.parametrize("changed", [{"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}])
def test_another_site_may_not_even_read_with_the_cookie(changed: dict[str, str | None]) -> None:
    site, calls = recorded_site()
    assert Browser(site).ask("GET", "api/figures", **changed).status == 403
    assert calls.made == []


def test_names_are_shown_to_the_page_alone_because_that_is_recorded() -> None:
    site, calls = recorded_site()
    browser = Browser(site)
    assert browser.ask("GET", "api/top?names=yes", x_ratebound_csrf=None).status == 403
    assert browser.ask("GET", "api/top?names=yes", sec_fetch_site="cross-site").status == 403
    assert calls.made == []
    assert browser.ask("GET", "api/top?names=yes", origin=None).status == 200  # browsers send no Origin with a GET


@pytest.mark.parametrize("changed", [*REFUSED, {"x-ratebound-csrf": ""}, {"x-ratebound-csrf": "1"}])
def test_a_mounted_site_trusts_no_other_site_either(changed: dict[str, Any]) -> None:
    site = a_site(sign_in=GivenSignIn(lambda request: "write"))
    page: dict[str, Any] = {"origin": f"http://{HOST}", "x-ratebound-csrf": "given"}
    headers = {**page, **{name.replace("_", "-"): value for name, value in changed.items()}}
    sent = {name: value for name, value in headers.items() if value is not None}
    assert ask(site, "POST", "api/resets", {"client": "user:42"}, headers=sent).status == 403


def test_every_answer_has_the_headers_that_guard_a_browser() -> None:
    site = a_site()
    answers = [
        ask(site, "GET", ""),
        ask(site, "GET", "dashboard.js"),
        ask(site, "GET", None, mount="/limits"),
        ask(site, "GET", "api/figures"),
        ask(site, "GET", "api/figures", token=WRITE_TOKEN),
        ask(site, "GET", "api/live", token=WRITE_TOKEN, is_live=True),
        ask(site, "PUT", "api/none"),
        ask(site, "POST", "api/blocks", b"[", token=WRITE_TOKEN),
    ]
    for answer in answers:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        policy = answer.headers["content-security-policy"].split("; ")
        assert policy[0] == "default-src 'none'"
        assert {"frame-ancestors 'none'", "script-src 'self'", "connect-src 'self'", "base-uri 'none'"} <= {*policy}
        assert not any("unsafe" in one or "*" in one for one in policy)
