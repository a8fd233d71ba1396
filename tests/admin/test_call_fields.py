"""Fields are read by the table, and everything that is wrong is said at once."""

import json
from typing import Any

import pytest

from tests.admin.sites import WRITE_TOKEN, Answered, a_site, ask
from tests.admin.test_roles import recorded_site


def made(method: str, path: str, body: Any = None) -> dict[str, Any]:
    """The arguments of the call that was made."""
    site, calls = recorded_site()
    answer = ask(site, method, path, body, token=WRITE_TOKEN)
    assert answer.status == 200, answer
    return calls.made[0][1]


def refused(method: str, path: str, body: Any = None, **headers: str) -> Answered:
    site, calls = recorded_site()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = ask(site, method, path, body, token=WRITE_TOKEN, headers=named)
    assert answer.status >= 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert calls.made == []
    return answer


def test_everything_that_is_wrong_is_said_at_once() -> None:
    answer = refused("POST", "api/overrides", {"clent": "x", "limits": 5, "tier": "", "for": -1, "reason": "a\nb"})
    assert answer.status == 422
    assert answer.fields == ["clent", "client", "limits", "tier", "for", "reason", "limits"]
    by_field = {error["field"]: error["detail"] for error in answer.json["errors"]}
    assert by_field["clent"] == "there is no such field: did you mean 'client'?"
    assert by_field["client"] == "this field is missing"
    assert by_field["for"] == "expected seconds, or text like '1 hour', not -1"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, ["client"]),
        ({"client": None, "digest": None}, ["client"]),
        ({"client": "203.0.113.7", "digest": "00000000000000a1"}, ["client"]),
        ({"client": 5}, ["client"]),
        ({"client": ""}, ["client"]),
        ({"client": "x" * 1001}, ["client"]),
        ({"client": "\ud800"}, ["client"]),
        ({"client": ["203.0.113.7"]}, ["client"]),
        ({"digest": "UPPER"}, ["digest"]),
        ({"client": "203.0.113.7", "for": True}, ["for"]),
        ({"client": "203.0.113.7", "for": 0}, ["for"]),
        ({"client": "203.0.113.7", "for": 1e300}, ["for"]),
        ({"client": "203.0.113.7", "for": "soon"}, ["for"]),
        ({"client": "203.0.113.7", "for": []}, ["for"]),
        ({"client": "203.0.113.7", "reason": "x" * 201}, ["reason"]),
        ({"client": "203.0.113.7", "reason": "\u202e\u0000"}, ["reason"]),
        ({"client": "203.0.113.7", "": 1}, [""]),
        ({"client": "203.0.113.7", "x" * 1000: 1}, ["x" * 64 + "…"]),
    ],
)
def test_a_wrong_block_names_its_fields(body: Any, fields: list[str]) -> None:
    assert refused("POST", "api/blocks", body).fields == fields


@pytest.mark.parametrize("units", [0, -1, 1.5, "5", True, 10**13, 10**400, None])
def test_units_are_a_whole_number(units: Any) -> None:
    assert refused("POST", "api/grants", {"client": "user:42", "units": units}).fields == ["units"]


def test_a_field_that_is_null_counts_as_left_out() -> None:
    body = {"client": "203.0.113.7", "digest": None, "for": None, "reason": None}
    assert made("POST", "api/blocks", body) == {"client": "203.0.113.7"}


def test_the_switch_of_all_rules_has_no_rule() -> None:
    assert made("PUT", "api/switches", {"rule": None, "state": "off"}) == {"state": "off"}
    assert refused("PUT", "api/switches", {"rule": "a", "state": "candidate"}).fields == ["state"]


@pytest.mark.parametrize(
    ("given", "read"), [(60, 60.0), (0.5, 0.5), ("1 hour", "1 hour"), ("90", 90.0), ("2 days", "2 days")]
)
def test_durations_are_seconds_or_text(given: Any, read: Any) -> None:
    assert made("POST", "api/blocks", {"client": "user:42", "for": given}) == {"client": "user:42", "for": read}


def test_several_identities_of_one_client() -> None:
    expected = {"client": ["user:42", "203.0.113.7"]}
    assert made("GET", "api/usage?client=user:42&client=203.0.113.7") == expected
    assert made("POST", "api/resets", {"client": ["user:42", "203.0.113.7"]}) == expected
    assert made("GET", "api/usage?client=user%3A42&rule=a&tier=b") == {"client": ["user:42"], "rule": "a", "tier": "b"}
    assert refused("POST", "api/resets", {"client": ["user:42"] * 11}).fields == ["client"]
    assert refused("POST", "api/resets", {"client": []}).fields == ["client"]
    assert refused("POST", "api/resets", {"client": [["user:42"]]}).fields == ["client"]


def test_several_rules_of_an_override() -> None:
    assert made("DELETE", "api/overrides?client=user:42&rule=a&rule=b")["rule"] == ["a", "b"]
    assert made("DELETE", "api/overrides?client=user:42&rule=a")["rule"] == ["a"]


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("", ["client"]),
        ("client=", ["client"]),
        ("client=a&rule=b&rule=c", ["rule"]),
        ("client=a&limit=5", ["limit"]),
        ("client=a&names=yes", ["names"]),
    ],
)
def test_a_wrong_query_names_its_fields(query: str, fields: list[str]) -> None:
    answer = refused("GET", f"api/usage?{query}")
    assert (answer.status, answer.fields) == (422, fields)


@pytest.mark.parametrize("query", ["client=%ff", "client=%ED%A0%80", "&".join(["client=a"] * 101)])
def test_a_query_that_cannot_be_read_is_400(query: str) -> None:
    assert refused("GET", f"api/usage?{query}").status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"client",
        b"\xff\xfe",
        b'{"client": NaN}',
        b'{"client": Infinity}',
        b'{"units": ' + b"9" * 5000 + b"}",
        b'{"client": "a", "client": "b"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\x00",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_not_json_is_400(body: bytes) -> None:
    answer = refused("POST", "api/blocks", body)
    assert answer.status == 400
    assert "not valid JSON" in answer.json["detail"]


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"5", b"null", b"true"])
def test_a_body_that_is_no_object_is_422(body: bytes) -> None:
    assert refused("POST", "api/blocks", body).status == 422


def test_a_body_must_be_declared_as_json() -> None:
    assert refused("POST", "api/blocks", {"client": "user:42"}, content_type="text/plain").status == 415
    assert refused("POST", "api/blocks", {"client": "user:42"}, content_type="").status == 415
    site, _ = recorded_site()
    kind = {"content-type": "Application/JSON; charset=utf-8"}
    assert ask(site, "POST", "api/blocks", {"client": "user:42"}, token=WRITE_TOKEN, headers=kind).status == 200


def test_a_body_of_more_than_a_megabyte_is_413() -> None:
    longest = json.dumps({"text": ""}).encode()
    body = longest.replace(b'""', b'"' + b"x" * (1_000_000 - len(longest)) + b'"')
    assert len(body) == 1_000_000
    assert made("POST", "api/policy/check", body)["text"].startswith("xxx")
    assert refused("POST", "api/policy/check", body + b" ").status == 413


def test_the_fields_of_a_body_do_not_belong_into_the_query() -> None:
    answer = refused("POST", "api/blocks?client=user:42", {})
    assert (answer.status, answer.fields) == (422, ["client"])


def test_a_call_without_fields_needs_no_body() -> None:
    assert made("POST", "api/policy/reload") == {}
    assert made("POST", "api/policy/reload", {}) == {}
    assert made("POST", "api/policy/check", b"  ") == {}
    assert refused("POST", "api/policy/reload", {"force": True}).fields == ["force"]


def test_what_clients_call_themselves_is_no_markup() -> None:
    hostile = "</script><script>alert(1)</script>&\u2028'\""
    answer = refused("GET", "api/usage?client=a&rule=b&rule=c&%3C%2Fscript%3E=1")
    assert b"<" not in answer.body
    site = a_site()
    answer = ask(site, "POST", "api/resets", {"client": hostile}, token=WRITE_TOKEN)
    assert answer.status == 422
    assert not {*b"<>&"} & {*answer.body}
    assert answer.body.isascii()


def test_head_is_a_get_without_its_body() -> None:
    site = a_site()
    found, head = (ask(site, method, "api/rules", token=WRITE_TOKEN) for method in ("GET", "HEAD"))
    assert (head.status, head.headers, head.body) == (200, found.headers, b"")
    assert ask(site, "HEAD", "").status == 200
    assert ask(site, "HEAD", "api/figures").status == 401
    assert ask(site, "POST", "").status == 405
