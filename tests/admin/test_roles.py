"""Nobody sees anything without credentials, and who may only read changes nothing: for every call of the table."""

from typing import Any

import pytest

from ratebound.admin.calls import CALLS, AdminCall, Operator
from ratebound.admin.sign_in import GivenSignIn, TokenSignIn
from ratebound.admin.site import AdminSite
from ratebound.flow import Flow
from tests.admin.sites import (
    ENTRIES,
    READ_TOKEN,
    SECRET,
    WRITE_TOKEN,
    Browser,
    a_site,
    ask,
    body_of,
    path_of,
    request_of,
)

GUARDED = [call for call in CALLS if call.role is not None]
WRITES = [call for call in CALLS if call.role == "write"]
SECRET_DATA = "what-only-operators-see"


class Recorded:
    """Calls that are only noted down."""

    def __init__(self) -> None:
        self.made: list[tuple[str, dict[str, Any], Operator]] = []

    def call(self, name: str, arguments: Any, operator: Operator) -> Flow[Any]:
        yield from ()
        self.made.append((name, arguments, operator))
        return {"data": SECRET_DATA}


def recorded_site() -> tuple[AdminSite, Recorded]:
    calls = Recorded()
    return AdminSite(calls, TokenSignIn(ENTRIES, SECRET)), calls


def named(call: AdminCall) -> str:
    return call.name


@pytest.mark.parametrize("call", GUARDED, ids=named)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic YTpi"}, {"cookie": "ratebound_session=a.b"}])
def test_without_credentials_a_call_answers_401_and_does_nothing(call: AdminCall, headers: dict[str, str]) -> None:
    site, calls = recorded_site()
    answer = ask(site, call.method, path_of(call), body_of(call), headers=headers)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert set(answer.json) == {"type", "title", "status", "detail"}
    assert SECRET_DATA not in answer.body.decode()
    assert calls.made == []


@pytest.mark.parametrize("call", GUARDED, ids=named)
def test_a_wrong_token_answers_401_and_does_nothing(call: AdminCall) -> None:
    site, calls = recorded_site()
    assert ask(site, call.method, path_of(call), body_of(call), token=f"{WRITE_TOKEN}x").status == 401
    assert calls.made == []


@pytest.mark.parametrize("call", WRITES, ids=named)
def test_the_role_read_cannot_write(call: AdminCall) -> None:
    site, calls = recorded_site()
    by_token = ask(site, call.method, path_of(call), body_of(call), token=READ_TOKEN)
    by_cookie = Browser(site, READ_TOKEN).ask(call.method, path_of(call), body_of(call))
    assert (by_token.status, by_cookie.status) == (403, 403)
    assert "role write" in by_token.json["detail"]
    assert calls.made == []


@pytest.mark.parametrize("call", GUARDED, ids=named)
def test_the_role_that_a_call_takes_may_call_it(call: AdminCall) -> None:
    site, calls = recorded_site()
    token = WRITE_TOKEN if call.role == "write" or call.example.get("text") else READ_TOKEN
    answer = ask(site, call.method, path_of(call), body_of(call), token=token, is_live=True)
    assert answer.status == 200, answer
    assert [one[2].name for one in calls.made] in ([], ["ann" if token == WRITE_TOKEN else "bob"])


def test_names_of_clients_take_the_role_write_and_are_recorded() -> None:
    site, calls = recorded_site()
    assert ask(site, "GET", "api/top?names=yes", token=READ_TOKEN).status == 403
    assert ask(site, "GET", "api/top?names=no", token=READ_TOKEN).status == 200
    assert ask(site, "GET", "api/top?names=yes", token=WRITE_TOKEN).status == 200
    assert [(name, arguments) for name, arguments, _ in calls.made] == [
        ("top", {"names": False}),
        ("top", {"names": True}),
    ]


def test_the_text_of_a_policy_takes_the_role_write() -> None:
    site, calls = recorded_site()
    assert ask(site, "POST", "api/policy/check", {"text": "rules: []"}, token=READ_TOKEN).status == 403
    assert calls.made == []
    assert ask(site, "POST", "api/policy/check", {}, token=READ_TOKEN).status == 200


def test_operators_that_may_only_look_check_one_policy_at_a_time() -> None:
    class Source:
        def check(self, text: str | None, format: str | None) -> list[Any]:
            return []

    site = a_site(policy=Source())
    reader = Operator("bob", "read")
    first = site.calls.call("check_policy", {}, reader)
    next(first)
    assert ask(site, "POST", "api/policy/check", {}, token=READ_TOKEN).status == 429
    assert ask(site, "POST", "api/policy/check", {}, token=WRITE_TOKEN).status == 200
    first.close()
    assert ask(site, "POST", "api/policy/check", {}, token=READ_TOKEN).status == 200


def test_the_page_holds_no_data_and_needs_no_credentials_where_it_signs_in() -> None:
    site = a_site()
    assert ask(site, "GET", "").status == 200
    assert ask(site, "GET", "dashboard.js").headers["content-type"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize("path", ["", "dashboard.js", "api/figures", "openapi.json", "api/session"])
def test_a_mounted_site_shows_nothing_to_somebody_whom_the_application_does_not_know(path: str) -> None:
    site = a_site(sign_in=GivenSignIn(lambda request: None))
    answer = ask(site, "GET", path)
    assert answer.status == 401
    assert b"<" not in answer.body


@pytest.mark.parametrize(
    ("said", "write_status"),
    [("read", 403), ("write", 200), (Operator("kim", "write"), 200), (Operator("kim", "read"), 403)],
)
def test_a_mounted_site_asks_the_application_for_the_role(said: Any, write_status: int) -> None:
    site = a_site(sign_in=GivenSignIn(lambda request: said))
    page = {"origin": "http://limits.example", "x-ratebound-csrf": ask(site, "GET", "api/session").json["csrf"]}
    assert ask(site, "GET", "api/blocks").status == 200
    assert ask(site, "DELETE", "api/blocks?client=203.0.113.7", headers=page).status == write_status


def test_the_application_gets_its_own_request() -> None:
    seen: list[Any] = []
    site = a_site(sign_in=GivenSignIn(lambda request: seen.append(request)))
    ask(site, "GET", "api/figures", native="the framework's request")
    assert seen == ["the framework's request"]


@pytest.mark.parametrize("said", [True, "admin", 1, ("kim", "root"), {"role": "read"}])
def test_an_application_that_names_no_role_is_told_so(said: Any) -> None:
    site = a_site(sign_in=GivenSignIn(lambda request: said))
    with pytest.raises(TypeError, match="auth must return None, 'read', 'write' or an Operator"):
        ask(site, "GET", "api/figures")


def test_what_the_application_raises_reaches_its_framework() -> None:
    def redirect(request: Any) -> None:
        raise LookupError("see the login page")

    with pytest.raises(LookupError, match="see the login page"):
        ask(a_site(sign_in=GivenSignIn(redirect)), "GET", "api/figures")


def test_auth_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="auth must be a function of the request"):
        GivenSignIn("read")  # type: ignore[arg-type]


def test_a_mounted_site_has_no_sign_in_of_its_own() -> None:
    site = a_site(sign_in=GivenSignIn(lambda request: "write"))
    page = {"origin": "http://limits.example", "x-ratebound-csrf": "given"}
    assert ask(site, "POST", "api/session", {"token": WRITE_TOKEN}, headers=page).status == 404
    assert ask(site, "DELETE", "api/session", headers=page).status == 404
    assert "post" not in ask(site, "GET", "openapi.json").json["paths"]["/api/session"]


def test_every_request_of_the_table_is_found() -> None:
    site, _ = recorded_site()
    assert ask(site, "GET", "api/none", token=WRITE_TOKEN).status == 404
    for path in {call.path for call in CALLS}:
        allowed = {call.method for call in CALLS if call.path == path}
        answer = ask(site, "PATCH", path, token=WRITE_TOKEN)
        assert answer.status == 405
        assert {*answer.headers["allow"].split(", ")} - {"HEAD"} == allowed
    assert request_of("GET", "api/top?names=yes").query == "names=yes"
