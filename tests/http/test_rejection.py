"""A rejection says what happened, to whom it may concern, and nothing that is inside."""

import json
import logging
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from ratebound import Decision, Limiter, parse_limit
from ratebound.clock import SECOND
from ratebound.http import Headers, Rejection, RejectionFormat, Response, is_preflight
from ratebound.http.rejection import FORMATS, FormatName
from ratebound.outcome import DegradedRows
from tests.http.test_headers import HOPELESS, NOW, REFUSED, decided, decision_of, decisions

TYPES = "https://iana.org/assignments/http-problem-types#"
CLOSED = decision_of(
    (parse_limit("5/minute as login"),),
    DegradedRows([(False, 0, 3 * SECOND, 0, 0, NOW, 0, 0, None)], "connection refused by 10.1.2.3", closed=True),
)
ORIGIN = [("origin", "https://app.example")]
LIMITS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["policy", "quota", "window", "remaining"],
        "properties": {
            "policy": {"type": "string"},
            "quota": {"type": "integer", "minimum": 1},
            "window": {"type": "integer", "minimum": 1},
            "remaining": {"type": "integer", "minimum": 0},
            "retry_after": {"type": "integer", "minimum": 1},
        },
        "additionalProperties": False,
    },
}
NAMES = {"type": "array", "items": {"type": "string"}}
COMMON = {"retry_after": {"type": "integer", "minimum": 1}, "limits": LIMITS, "documentation": {"type": "string"}}
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "violated-policies"],
    "properties": {
        "type": {"enum": [TYPES + "quota-exceeded", TYPES + "temporary-reduced-capacity"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "violated-policies": NAMES,
        **COMMON,
    },
    "additionalProperties": False,
}
JSON_API = {
    "type": "object",
    "required": ["errors"],
    "properties": {
        "errors": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["status", "code", "title"],
                "properties": {
                    "status": {"type": "string"},
                    "code": {"type": "string"},
                    "title": {"type": "string"},
                    "detail": {"type": "string"},
                    "links": {"type": "object", "additionalProperties": {"type": "string"}},
                    "meta": {"type": "object"},
                },
                "additionalProperties": False,
            },
        }
    },
    "additionalProperties": False,
}


def read(response: Response) -> tuple[dict[str, str], Any]:
    return dict(response.headers), json.loads(response.body)


def test_problem_json_has_the_registered_type_and_the_violated_policies() -> None:
    response = RejectionFormat(documentation="https://example.org/limits").respond(REFUSED)
    headers, body = read(response)
    assert response.status == 429
    assert headers == {
        "Content-Type": "application/problem+json",
        "Cache-Control": "no-store",
        "RateLimit-Policy": '"burst";q=100;w=60, "daily";q=1000;w=86400',
        "RateLimit": '"burst";r=0;t=5, "daily";r=400;t=1',
        "Retry-After": "5",
    }
    assert body == {
        "type": TYPES + "quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "Too many requests: try again in 5 seconds.",
        "violated-policies": ["burst"],
        "retry_after": 5,
        "limits": [
            {"policy": "burst", "quota": 100, "window": 60, "remaining": 0, "retry_after": 5},
            {"policy": "daily", "quota": 1000, "window": 86400, "remaining": 400},
        ],
        "documentation": "https://example.org/limits",
    }


def test_json_api_has_errors_with_a_status_of_text() -> None:
    headers, body = read(RejectionFormat("jsonapi", documentation="https://example.org/limits").respond(REFUSED))
    assert headers["Content-Type"] == "application/vnd.api+json"
    (error,) = body["errors"]
    assert (error["status"], error["code"]) == ("429", "quota-exceeded")
    assert error["links"] == {"about": "https://example.org/limits", "type": TYPES + "quota-exceeded"}
    assert error["meta"]["violated-policies"] == ["burst"]
    assert error["meta"]["retry_after"] == 5
    assert [limit["policy"] for limit in error["meta"]["limits"]] == ["burst", "daily"]


def test_plain_json_has_an_error_code() -> None:
    headers, body = read(RejectionFormat("json", message="Slow down").respond(REFUSED))
    assert headers["Content-Type"] == "application/json"
    assert (body["error"], body["message"], body["retry_after"]) == ("rate_limit_exceeded", "Slow down", 5)
    assert read(RejectionFormat("json").respond(CLOSED))[1] == {
        "error": "temporarily_unavailable",
        "message": "The service cannot answer at the moment.",
        "retry_after": 3,
    }


def test_text_is_a_sentence_and_a_link() -> None:
    response = RejectionFormat("text", documentation="https://example.org/limits").respond(REFUSED)
    assert dict(response.headers)["Content-Type"] == "text/plain; charset=utf-8"
    assert response.body == b"Too many requests: try again in 5 seconds.\nSee https://example.org/limits\n"
    once = decided("1/minute", (False, 0, SECOND, SECOND))
    assert RejectionFormat("text").respond(once).body == b"Too many requests: try again in 1 second.\n"
    assert (
        RejectionFormat("text", message="Zu viel – später wieder").respond(once).body.decode()
        == "Zu viel – später wieder\n"
    )


def test_what_no_wait_can_help_says_so_and_names_no_wait() -> None:
    headers, body = read(RejectionFormat().respond(HOPELESS))
    assert "Retry-After" not in headers
    assert "retry_after" not in body
    assert body["detail"] == "This request exceeds the limit, so it is always denied: no wait will help."
    assert body["limits"] == [{"policy": "burst", "quota": 100, "window": 60, "remaining": 40}]


@pytest.mark.parametrize("format", ["problem+json", "jsonapi", "json", "text"])
def test_our_own_failure_is_a_503_and_tells_nothing_of_the_inside(format: FormatName) -> None:
    response = RejectionFormat(format, message="You did too much", status=420).respond(CLOSED)
    assert response.status == 503
    headers = dict(response.headers)
    assert headers["Retry-After"] == "3"
    assert headers["Cache-Control"] == "no-store"
    assert "RateLimit" not in headers
    for secret in (b"10.1.2.3", b"connection", b"key", b"You did"):
        assert secret not in response.body
    if format == "problem+json":
        body = json.loads(response.body)
        assert (body["type"], body["status"]) == (TYPES + "temporary-reduced-capacity", 503)
        assert body["violated-policies"] == []


def test_a_local_share_that_is_used_up_is_the_clients_excess() -> None:
    rows = DegradedRows([(False, 0, 3 * SECOND, 0, 0, NOW, 0, 0, None)], "down")
    assert RejectionFormat().respond(decision_of((parse_limit("5/minute"),), rows)).status == 429


def test_the_status_is_configurable_and_the_body_has_the_same() -> None:
    for status in (429, 403, 420, 503):
        response = RejectionFormat(status=status).respond(REFUSED)
        assert response.status == status == json.loads(response.body)["status"]
        assert read(RejectionFormat("jsonapi", status=status).respond(REFUSED))[1]["errors"][0]["status"] == str(status)
    assert RejectionFormat(unavailable_status=500).respond(CLOSED).status == 500


def test_a_rules_own_message_and_link_win() -> None:
    rejection = RejectionFormat(message="general", documentation="https://example.org/all")
    body = read(rejection.respond(REFUSED, message="login", documentation="https://example.org/login"))[1]
    assert (body["detail"], body["documentation"]) == ("login", "https://example.org/login")
    body = read(rejection.respond(REFUSED))[1]
    assert (body["detail"], body["documentation"]) == ("general", "https://example.org/all")


@pytest.mark.parametrize(
    "format", [*FORMATS, lambda rejection: rejection.detail, lambda rejection: {"no": rejection.detail}]
)
def test_a_message_that_has_no_bytes_is_sent_as_far_as_it_has(format: Any) -> None:
    for response in (
        RejectionFormat(format).respond(REFUSED, message="slow \ud800 down", documentation="\udfff"),
        RejectionFormat(format).block(message="slow \ud800 down", documentation="\udfff"),
    ):
        assert "slow ? down" in response.body.decode()


def test_an_empty_message_is_none() -> None:
    assert RejectionFormat(message="").respond(REFUSED, message="") == RejectionFormat().respond(REFUSED)
    assert read(RejectionFormat(message="general").respond(REFUSED, message=""))[1]["detail"] == "general"
    assert RejectionFormat(message="").block(message="") == RejectionFormat().block()


def test_names_are_the_same_in_headers_and_body() -> None:
    rejection = RejectionFormat(headers=Headers("draft-11", names={"burst": 'the "short" one'}))
    headers, body = read(rejection.respond(REFUSED))
    assert body["violated-policies"] == ['the "short" one']
    assert headers["RateLimit"].startswith(r'"the \"short\" one";r=0')


def test_limits_of_one_name_are_told_apart_in_the_body_too() -> None:
    decision = Limiter("5/minute as login; 20/hour as login").hit("k", cost=6)
    headers, body = read(RejectionFormat().respond(decision))
    assert body["violated-policies"] == ["login 5/minute"]
    assert '"login 5/minute";r=5' in headers["RateLimit"]


def test_jitter_is_the_same_in_headers_and_body() -> None:
    slow = decided("1/hour", (False, 0, 1000 * SECOND, 1000 * SECOND))
    rejection = RejectionFormat(headers=Headers(jitter=1.0))
    waits = set()
    for _ in range(50):
        headers, body = read(rejection.respond(slow))
        assert headers["Retry-After"] == str(body["retry_after"]) == str(body["limits"][0]["retry_after"])
        waits.add(headers["Retry-After"])
    assert len(waits) > 10


def test_scripts_of_another_origin_may_read_what_is_sent_and_only_then_is_it_said() -> None:
    rejection = RejectionFormat(headers=Headers(["draft-11", "x-ratelimit"]))
    headers = dict(rejection.respond(REFUSED, ORIGIN).headers)
    assert headers["Access-Control-Expose-Headers"] == (
        "RateLimit-Policy, RateLimit, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After"
    )
    for request in ([], [("host", "x")], [("origin", "")]):
        assert "Access-Control-Expose-Headers" not in dict(rejection.respond(REFUSED, request).headers)
    assert dict(rejection.respond(CLOSED, ORIGIN).headers)["Access-Control-Expose-Headers"] == "Retry-After"


@pytest.mark.parametrize(
    ("returned", "content_type", "body"),
    [
        ("nein", "text/plain; charset=utf-8", b"nein"),
        (b"\x00", "application/octet-stream", b"\x00"),
        ({"no": "ä"}, "application/json", '{"no":"ä"}'.encode()),
        (["no"], "application/json", b'["no"]'),
        (("text/html", "<p>no"), "text/html", b"<p>no"),
        (("application/x-own", b"\x01"), "application/x-own", b"\x01"),
    ],
)
def test_a_format_of_ones_own_is_a_function(returned: Any, content_type: str, body: bytes) -> None:
    seen: list[Rejection] = []

    def own(rejection: Rejection) -> Any:
        seen.append(rejection)
        return returned

    response = RejectionFormat(own).respond(REFUSED)
    assert (dict(response.headers)["Content-Type"], response.body, response.status) == (content_type, body, 429)
    assert dict(response.headers)["Retry-After"] == "5"
    assert seen[0].violated == ("burst",)
    assert seen[0].decision is REFUSED


@pytest.mark.parametrize("returned", [None, 5, ("a", "b", "c"), ("text/plain", None), {"x": {1}}, RuntimeError("no")])
def test_a_format_that_fails_is_logged_and_the_refusal_stands(returned: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(rejection: Rejection) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    with caplog.at_level(logging.ERROR, "ratebound"):
        response = RejectionFormat(broken).respond(REFUSED)
    assert response == RejectionFormat().respond(REFUSED)
    assert "rejection format failed" in caplog.text


def test_a_blocked_client_is_told_no_numbers() -> None:
    response = RejectionFormat(documentation="https://example.org/blocked").block(ORIGIN)
    assert (response.status, response.headers) == (
        403,
        [("Content-Type", "application/problem+json"), ("Cache-Control", "no-store")],
    )
    assert json.loads(response.body) == {
        "type": "about:blank",
        "title": "Forbidden",
        "status": 403,
        "detail": "This request is not allowed.",
        "documentation": "https://example.org/blocked",
    }
    body = json.loads(RejectionFormat(blocked_status=429).block(message="Enough").body)
    assert (body["type"], body["detail"]) == (TYPES + "abnormal-usage-detected", "Enough")
    assert json.loads(RejectionFormat("jsonapi").block().body)["errors"][0]["code"] == "forbidden"
    assert json.loads(RejectionFormat("json").block().body)["error"] == "forbidden"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"format": "xml"}, "unknown rejection format 'xml': expected problem\\+json"),
        ({"status": 200}, "400 to 599"),
        ({"status": "429"}, "400 to 599"),
        ({"unavailable_status": 302}, "400 to 599"),
        ({"blocked_status": True}, "400 to 599"),
        ({"message": 5}, "message must be text"),
        ({"documentation": b"x"}, "documentation must be text"),
        ({"message": "slow \ud800 down"}, "message cannot be sent"),
        ({"documentation": "\udfff"}, "documentation cannot be sent"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        RejectionFormat(**options)


@pytest.mark.parametrize(
    ("method", "headers", "preflight"),
    [
        ("OPTIONS", [*ORIGIN, ("Access-Control-Request-Method", "POST")], True),
        ("OPTIONS", [("ORIGIN", "null"), ("access-control-request-method", "PUT"), ("x", "y")], True),
        ("OPTIONS", ORIGIN, False),
        ("OPTIONS", [("Access-Control-Request-Method", "POST")], False),
        ("OPTIONS", [*ORIGIN, ("Access-Control-Request-Method", "")], False),
        ("OPTIONS", [*ORIGIN, ("Access-Control-Request-Headers", "POST")], False),
        ("OPTIONS", [], False),
        ("POST", [*ORIGIN, ("Access-Control-Request-Method", "POST")], False),
        ("GET", [*ORIGIN, ("Access-Control-Request-Method", "POST")], False),
        ("options", [*ORIGIN, ("Access-Control-Request-Method", "POST")], False),
    ],
)
def test_a_preflight_is_that_and_nothing_else(method: str, headers: list[tuple[str, str]], preflight: bool) -> None:
    assert is_preflight(method, headers) is preflight


@given(decisions())
def test_every_body_is_what_its_type_says(case: tuple[Decision, list[str]]) -> None:
    decision, _ = case
    if decision:
        return
    violated = [limit.name for limit, row in zip(decision.limits, decision.rows, strict=True) if not row[0]]
    response = RejectionFormat().respond(decision)
    headers, body = read(response)
    jsonschema.validate(body, PROBLEM)
    assert body["violated-policies"] == violated
    assert ("Retry-After" in headers) == ("retry_after" in body)
    assert headers.get("Retry-After", "None") == str(body.get("retry_after"))
    other = json.loads(RejectionFormat("jsonapi").respond(decision).body)
    jsonschema.validate(other, JSON_API)
    jsonschema.validate(other["errors"][0]["meta"]["limits"], LIMITS)
    jsonschema.validate(body, PROBLEM)


def test_a_real_refusal_passes_after_the_wait_it_names() -> None:
    limiter = Limiter("1/minute as login")
    limiter.hit("ip4:192.0.2.1")
    response = RejectionFormat().respond(limiter.hit("ip4:192.0.2.1"))
    assert b"192.0.2.1" not in response.body
    assert 1 <= json.loads(response.body)["retry_after"] <= 60
