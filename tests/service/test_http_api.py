"""The calls of the HTTP API: what they answer, and what they say if something is wrong."""

import json
from typing import Any

import pytest

from ratebound import Limiter
from ratebound.policy import Match, Policy, Rule
from ratebound.service.connections import Bounds
from ratebound.service.engine import plan_of
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock
from tests.service.http_calls import an_api, an_engine, call, called, run

OWN = {"key": "user:42", "limits": "3/minute"}


def fields(body: Any) -> list[str]:
    return [error["field"] for error in body["errors"]]


def test_a_hit_is_answered_with_the_decision_and_its_headers() -> None:
    found = call(an_api(), "/v1/hit", OWN)
    assert found.status == 200
    assert found.headers["content-type"] == "application/json"
    assert found.headers["ratelimit-policy"] == '"3/minute";q=3;w=60'
    assert found.headers["ratelimit"].startswith('"3/minute";r=2;t=')
    limit = {"text": "3/minute", "name": "3/minute", "count": 3, "period": 60.0, "burst": 3}
    assert found.json == {
        "allowed": True,
        "remaining": 2,
        "limit": limit,
        "retry_after": 0.0,
        "reset_after": 60.0,
        "delay": 0.0,
        "blocked": False,
        "overage": 0,
        "degraded": None,
        "unavailable": False,
        "outcomes": [
            {
                "check": 0,
                "limit": limit,
                "allowed": True,
                "remaining": 2,
                "retry_after": 0.0,
                "reset_after": 60.0,
                "delay": 0.0,
            }
        ],
    }


def test_a_denied_hit_is_a_call_that_worked() -> None:
    clock = FakeClock()
    api = an_api(an_engine(MemoryStorage(clock=clock)))
    for _ in range(3):
        assert call(api, "/v1/hit", OWN).json["allowed"]
    clock.advance(20.5)
    denied = call(api, "/v1/hit", OWN)
    assert denied.status == 200
    assert denied.headers["retry-after"] == "40"
    assert (denied.json["allowed"], denied.json["remaining"], denied.json["retry_after"]) == (False, 0, 39.5)


def test_the_counts_are_those_of_a_limiter_on_the_same_storage() -> None:
    storage = MemoryStorage()
    api = an_api(an_engine(storage))
    limiter = Limiter("3/minute", storage=storage)
    assert call(api, "/v1/hit", {**OWN, "cost": 2}).json["remaining"] == 1
    assert limiter.hit("user:42").remaining == 0
    assert not call(api, "/v1/hit", OWN).json["allowed"]


def test_checks_are_charged_all_or_none() -> None:
    api = an_api()
    checks = [{"key": "user:1", "limits": "5/minute"}, {"key": "team:7", "limits": "1/minute; 9/hour", "cost": 1}]
    first = call(api, "/v1/hit", {"checks": checks}).json
    assert [(one["check"], one["limit"]["text"], one["remaining"]) for one in first["outcomes"]] == [
        (0, "5/minute", 4),
        (1, "1/minute", 0),
        (1, "9/hour", 8),
    ]
    second = call(api, "/v1/hit", {"checks": checks}).json
    assert not second["allowed"]
    assert second["limit"]["text"] == "1/minute"
    assert call(api, "/v1/peek", {"key": "user:1", "limits": "5/minute"}).json["remaining"] == 4


def test_a_peek_changes_nothing_and_has_no_token() -> None:
    api = an_api()
    limits = {"key": "k", "limits": "2 concurrent; 5/minute"}
    for _ in range(3):
        found = call(api, "/v1/peek", limits).json
        assert found["allowed"]
        assert "release" not in found
        assert "settle" not in found
    assert [one["used"] for one in call(api, "/v1/usage", limits).json["usage"]] == [0, 0]


def test_values_are_counted() -> None:
    api = an_api()
    asked = {"key": "address:1", "limits": "2 distinct account/hour"}
    hits = [call(api, "/v1/hit", {**asked, "values": {"account": name}}).json["allowed"] for name in ("a", "b", "a", 7)]
    assert hits == [True, True, True, False]
    wrong = call(api, "/v1/hit", asked)
    assert (wrong.status, fields(wrong.json)) == (422, ["values"])


def test_a_queue_tells_the_delay() -> None:
    api = an_api(an_engine(MemoryStorage(clock=FakeClock())))
    asked = {"key": "k", "limits": "10/second burst 5 leaky-bucket"}
    assert [call(api, "/v1/hit", asked).json["delay"] for _ in range(3)] == [0.0, 0.1, 0.2]


def test_a_hit_is_settled_once() -> None:
    api = an_api()
    limits = {"key": "k", "limits": "100/minute"}
    token = call(api, "/v1/hit", {**limits, "cost": 10, "settle": True}).json["settle"]
    settled = call(api, "/v1/settle", {"settle": token, "cost": 3})
    assert (settled.status, settled.json["remaining"]) == (200, 97)
    again = call(api, "/v1/settle", {"settle": token, "cost": 3})
    assert (again.status, fields(again.json)) == (409, ["settle"])
    assert again.headers["content-type"] == "application/problem+json"
    assert call(api, "/v1/peek", limits).json["remaining"] == 97


def test_a_denied_hit_has_no_token() -> None:
    api = an_api()
    call(api, "/v1/hit", {**OWN, "cost": 3})
    assert "settle" not in call(api, "/v1/hit", {**OWN, "settle": True}).json
    assert "reservation" not in call(api, "/v1/reserve", OWN).json


def test_wrong_costs_do_not_use_a_token_up() -> None:
    api = an_api()
    token = call(api, "/v1/hit", {**OWN, "settle": True}).json["settle"]
    for cost, field in ((-1, "cost"), (10**13, "cost"), ([1, 2], "cost"), ([-1], "cost[0]")):
        wrong = call(api, "/v1/settle", {"settle": token, "cost": cost})
        assert (wrong.status, fields(wrong.json)) == (422, [field])
    assert call(api, "/v1/settle", {"settle": token, "cost": 0}).json["remaining"] == 3


def test_a_reservation_is_committed_once() -> None:
    api = an_api()
    asked = {"key": "k", "limits": "100/minute; 2 concurrent", "cost": 40}
    token = call(api, "/v1/reserve", asked).json["reservation"]
    usage = {"key": "k", "limits": asked["limits"]}
    assert [one["used"] for one in call(api, "/v1/usage", usage).json["usage"]] == [40, 1]
    assert call(api, "/v1/commit", {"reservation": token, "cost": 55}).status == 200
    assert [one["used"] for one in call(api, "/v1/usage", usage).json["usage"]] == [55, 0]
    assert call(api, "/v1/commit", {"reservation": token, "cost": 1}).status == 409
    assert call(api, "/v1/cancel", {"reservation": token}).status == 409


def test_a_cancelled_reservation_is_as_if_it_had_not_been() -> None:
    api = an_api()
    asked = {"key": "k", "limits": "100/minute; 2 concurrent; 9 distinct account/hour"}
    token = call(api, "/v1/reserve", {**asked, "cost": 40, "values": {"account": "a"}}).json["reservation"]
    assert call(api, "/v1/cancel", {"reservation": token}).json == {"done": True}
    assert [one["used"] for one in call(api, "/v1/usage", asked).json["usage"]] == [0, 0, 0]
    assert call(api, "/v1/cancel", {"reservation": token}).status == 409


def test_a_reservation_expires_by_the_clock_of_the_storage() -> None:
    clock = FakeClock()
    api = an_api(an_engine(MemoryStorage(clock=clock)))
    asked = {"key": "k", "limits": "100/hour", "cost": 9}
    early, late = (call(api, "/v1/reserve", {**asked, "lifetime": 60}).json["reservation"] for _ in range(2))
    clock.advance(60)
    assert call(api, "/v1/commit", {"reservation": early, "cost": 1}).status == 200
    clock.advance(0.000001)
    expired = call(api, "/v1/commit", {"reservation": late, "cost": 1})
    assert (expired.status, fields(expired.json)) == (410, ["reservation"])
    clock.advance(60)
    assert call(api, "/v1/commit", {"reservation": early, "cost": 1}).status in (409, 410)
    assert call(api, "/v1/peek", {"key": "k", "limits": "100/hour"}).json["remaining"] == 100 - 9 - 1


def test_slots_are_released_by_their_token_and_again_without_harm() -> None:
    api = an_api()
    asked = {"key": "k", "limits": "1 concurrent"}
    token = call(api, "/v1/hit", asked).json["release"]
    assert not call(api, "/v1/hit", asked).json["allowed"]
    assert call(api, "/v1/release", {"release": token}).json == {"done": True}
    other = call(api, "/v1/hit", asked).json
    assert other["allowed"]
    assert call(api, "/v1/release", {"release": token}).json == {"done": True}
    assert not call(api, "/v1/hit", asked).json["allowed"]


def test_a_token_is_for_one_purpose() -> None:
    api = an_api()
    found = call(api, "/v1/hit", {"key": "k", "limits": "5/minute; 2 concurrent", "settle": True}).json
    for path, body in (
        ("/v1/commit", {"reservation": found["settle"], "cost": 1}),
        ("/v1/cancel", {"reservation": found["release"]}),
        ("/v1/release", {"release": found["settle"]}),
        ("/v1/settle", {"settle": found["release"], "cost": 1}),
    ):
        assert call(api, path, body).status == 422


def test_usage_and_reset_of_a_callers_own_limits() -> None:
    api = an_api()
    call(api, "/v1/hit", {"key": "k", "limits": "5/minute; 100/calendar-day", "cost": 2})
    first, second = call(api, "/v1/usage", {"key": "k", "limits": "5/minute; 100/calendar-day"}).json["usage"]
    assert (first["used"], first["quota"], first["rule"], first["limit"]["period"]) == (2, 5, "", 60.0)
    assert (second["used"], second["remaining"], second["limit"]["period"]) == (2, 98, None)
    assert call(api, "/v1/reset", {"key": "k", "limits": "5/minute"}).json == {"done": True}
    usage = call(api, "/v1/usage", {"key": "k", "limits": "5/minute; 100/calendar-day"}).json["usage"]
    assert [one["used"] for one in usage] == [0, 2]


def test_usage_and_reset_of_a_client_of_the_policy() -> None:
    api = an_api()
    request = {"path": "/", "address": "203.0.113.7"}
    call(api, "/v1/decide", request)
    (used,) = call(api, "/v1/usage", {"identity": "203.0.113.7"}).json["usage"]
    assert (used["rule"], used["used"]) == ("all", 1)
    assert call(api, "/v1/reset", {"identity": ["address:203.0.113.7"], "rule": "all"}).status == 200
    assert call(api, "/v1/usage", {"identity": "203.0.113.7", "rule": "all"}).json["usage"][0]["used"] == 0


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/hit", {"key": "k"}, ["limits"]),
        ("/v1/hit", {}, ["key", "limits"]),
        ("/v1/hit", {"key": 7, "limits": "1/minute"}, ["key"]),
        ("/v1/hit", {"key": "k" * 1025, "limits": "1/minute"}, ["key"]),
        ("/v1/hit", {"key": "k", "limits": "1/fortnight"}, ["limits"]),
        ("/v1/hit", {"key": "k", "limits": ""}, ["limits"]),
        ("/v1/hit", {"key": "k", "limits": "1/minute; 2/minute"}, ["limits"]),
        ("/v1/hit", {"key": "k", "limits": "1/minute", "cost": 0}, ["cost"]),
        ("/v1/hit", {"key": "k", "limits": "1/minute", "cost": 1.5}, ["cost"]),
        ("/v1/hit", {"key": "k", "limits": "1/minute", "cost": True}, ["cost"]),
        ("/v1/hit", {"key": "k", "limits": "1/minute", "values": {"a": None}}, ["values"]),
        ("/v1/hit", {"key": "k", "limits": "1/minute", "values": {"a": "b"}}, ["values"]),
        ("/v1/hit", {"key": "k", "limits": "1/minute", "color": 1}, ["color"]),
        ("/v1/hit", {"checks": []}, ["checks"]),
        ("/v1/hit", {"checks": [{"key": "k", "limits": "1/minute"}], "key": "k", "cost": 2}, ["key", "cost"]),
        ("/v1/hit", {"checks": [{"key": "k", "limits": "1/minute"}, {"key": "k"}]}, ["checks[1].limits"]),
        (
            "/v1/hit",
            {"checks": [{"key": "k", "limits": "0/minute"}, {"key": "k", "limits": "1/day", "cost": -1}]},
            ["checks[0].limits", "checks[1].cost"],
        ),
        ("/v1/hit", {"checks": [{"key": "k", "limits": "1/day"}, {"key": "k", "limits": "2/day"}]}, ["checks"]),
        ("/v1/reserve", {**OWN, "lifetime": 0}, ["lifetime"]),
        ("/v1/reserve", {**OWN, "lifetime": 86_401}, ["lifetime"]),
        ("/v1/reserve", {**OWN, "settle": True}, ["settle"]),
        ("/v1/commit", {"reservation": "rb1.", "cost": 1}, ["reservation"]),
        ("/v1/commit", {"reservation": "é", "cost": 1}, ["reservation"]),
        ("/v1/commit", {"cost": 1}, ["reservation"]),
        ("/v1/settle", {"settle": "rb1.AAAA", "cost": 1, "strike": 1}, ["strike"]),
        ("/v1/release", {"release": "rb1.%%"}, ["release"]),
        ("/v1/usage", {"key": "k"}, ["limits"]),
        ("/v1/usage", {"key": "k", "limits": "1/minute", "identity": "user:1"}, ["key", "limits"]),
        ("/v1/usage", {"key": "k", "limits": "1/minute", "rule": "all"}, ["rule"]),
        ("/v1/usage", {"identity": "user:42"}, ["identity"]),
        ("/v1/usage", {"identity": "x"}, ["identity"]),
        ("/v1/usage", {"identity": []}, ["identity"]),
        ("/v1/usage", {"identity": "203.0.113.7", "rule": "al"}, ["rule"]),
        ("/v1/usage", {"identity": "203.0.113.7", "tier": "gold"}, ["tier"]),
        ("/v1/reset", {"identity": "203.0.113.7", "tier": "gold"}, ["tier"]),
        ("/v1/decide", {"path": "orders"}, ["path"]),
        ("/v1/decide", {"path": "/orders?a=1"}, ["path"]),
        ("/v1/decide", {"path": "/", "method": "GET /"}, ["method"]),
        ("/v1/decide", {"path": "/", "method": "POST\n"}, ["method"]),
        ("/v1/decide", {"path": "/", "address": "localhost"}, ["address"]),
        ("/v1/decide", {"path": "/", "scheme": "ftp"}, ["scheme"]),
        ("/v1/decide", {"path": "/", "headers": {"a": 1}}, ["headers"]),
        ("/v1/decide", {"path": "/", "user": 1.5}, ["user"]),
    ],
)
def test_a_wrong_field_is_named(path: str, body: Any, expected: list[str]) -> None:
    found = call(an_api(), path, body)
    assert (found.status, fields(found.json)) == (422, expected)
    assert found.headers["content-type"] == "application/problem+json"
    assert all(error["detail"] and "`" not in error["detail"] for error in found.json["errors"])


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"key": 7, "limits": "1/day"}, "key: expected text or null, not a whole number"),
        ({"key": "k" * 1025, "limits": "1/day"}, "key: expected text with a length of at most 1024"),
        ({"key": "k", "limits": "1/day", "cost": 1.5}, "cost: expected a whole number, not a number with a fraction"),
        ({"key": "k", "limits": "1/day", "cots": 1}, "cots: there is no such field"),
        ({"checks": []}, "checks: expected an array with a length of at least 1"),
        (7, "expected an object, not a whole number"),
    ],
)
def test_a_wrong_type_is_told_in_plain_words(body: Any, detail: str) -> None:
    assert call(an_api(), "/v1/hit", body).json["detail"] == detail


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nul",
        b'{"key": "k", "limits": "1/minute"} x',
        b'{"key": NaN, "limits": "1/minute"}',
        b'{"key": "\\ud800", "limits": "1/minute"}',
        b'{"key": "\xff", "limits": "1/minute"}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b"[{]",
    ],
)
def test_a_body_that_is_no_json_is_400(body: bytes) -> None:
    assert call(an_api(), "/v1/hit", body).status == 400


def test_another_content_type_is_415_and_none_is_fine() -> None:
    api = an_api()
    body = json.dumps(OWN).encode()
    assert call(api, "/v1/hit", body, [(b"content-type", b"text/plain")]).status == 415
    assert call(api, "/v1/hit", body, [(b"content-type", b"Application/JSON; charset=utf-8")]).status == 200
    assert call(api, "/v1/hit", body, []).status == 200


def test_an_array_is_answered_in_order_and_a_wrong_entry_spoils_no_other() -> None:
    api = an_api()
    found = call(api, "/v1/hit", [OWN, {"key": "k"}, {**OWN, "cost": 2}, 7, {**OWN, "cost": 1}])
    assert found.status == 200
    assert [entry.get("allowed", entry.get("status")) for entry in found.json] == [True, 422, True, 422, False]
    assert fields(found.json[1]) == ["limits"]
    assert "ratelimit" not in found.headers


def test_an_array_that_is_too_long_is_refused() -> None:
    api = an_api(bounds=Bounds(batch=3))
    assert len(call(api, "/v1/hit", [OWN] * 3).json) == 3
    assert call(api, "/v1/hit", [OWN] * 4).status == 422
    assert call(api, "/v1/hit", []).json == []
    assert call(api, "/v1/peek", b"  \n\t [ ] ").json == []


def test_a_request_with_too_many_limits_is_refused() -> None:
    api = an_api()
    limits = "; ".join(f"9/{seconds} seconds" for seconds in range(1, 60))
    one = {"checks": [{"key": str(number), "limits": limits} for number in range(50)]}
    assert call(api, "/v1/hit", one).json["allowed"]
    more = call(api, "/v1/hit", {"checks": one["checks"] * 2})
    assert (more.status, fields(more.json)) == (422, ["checks"])
    for path in ("/v1/hit", "/v1/peek", "/v1/reserve"):
        assert call(api, path, [one] * 2).status == 422
    assert call(api, "/v1/usage", [{"key": "k", "limits": limits}] * 100).status == 422


def test_every_call_takes_an_array() -> None:
    api = an_api()
    limits = {"key": "k", "limits": "9/minute; 5 concurrent"}
    one, two = (entry["reservation"] for entry in call(api, "/v1/reserve", [limits, limits]).json)
    hit = call(api, "/v1/hit", {**limits, "settle": True}).json
    assert [entry["remaining"] for entry in call(api, "/v1/peek", [limits, limits]).json] == [6, 6]
    statuses = [
        entry.get("status", 200) for entry in call(api, "/v1/commit", [{"reservation": one, "cost": 0}] * 2).json
    ]
    assert statuses == [200, 409]
    assert call(api, "/v1/cancel", [{"reservation": two}]).json == [{"done": True}]
    assert call(api, "/v1/settle", [{"settle": hit["settle"], "cost": 2}]).json[0]["remaining"] == 7
    assert call(api, "/v1/release", [{"release": hit["release"]}]).json == [{"done": True}]
    assert [one["used"] for one in call(api, "/v1/usage", [limits]).json[0]["usage"]] == [2, 0]
    assert call(api, "/v1/reset", [limits, {"key": "k"}]).json[0] == {"done": True}
    request = {"path": "/", "address": "203.0.113.7"}
    verdicts = call(api, "/v1/decide", [request] * 6 + [{"path": ""}]).json
    assert [entry.get("allowed") for entry in verdicts] == [True] * 5 + [False, None]


# Decisions by the policy


def a_policy(*rules: Rule, **options: Any) -> Any:
    return an_api(an_engine(policy=Policy(rules=list(rules), **options)))


def test_the_policy_decides_a_described_request() -> None:
    api = a_policy(Rule("orders", "2/minute", by="user", match=Match(paths=["/orders/*"], methods=["POST"])))
    request = {"method": "post", "path": "/orders/7", "user": 42}
    first = call(api, "/v1/decide", request)
    assert first.status == 200
    assert first.json["allowed"]
    assert (first.json["status"], first.json["kind"]) == (200, "limited")
    assert first.json["headers"]["RateLimit"] == first.headers["ratelimit"]
    assert first.json["decision"]["remaining"] == 1
    assert "body" not in first.json
    call(api, "/v1/decide", request)
    denied = call(api, "/v1/decide", request)
    assert denied.status == 200
    assert denied.json["status"] == 429
    assert denied.json["headers"]["Content-Type"] == "application/problem+json"
    assert denied.json["headers"]["Retry-After"] == denied.headers["retry-after"]
    assert denied.headers["content-type"] == "application/json"
    assert json.loads(denied.json["body"])["status"] == 429
    assert call(api, "/v1/decide", {**request, "user": 43}).json["allowed"]
    unmatched = call(api, "/v1/decide", {**request, "method": "GET"}).json
    assert (unmatched["allowed"], unmatched["kind"], unmatched["decision"]) == (True, "unmatched", None)


def test_a_blocked_client_is_told_what_the_policy_says() -> None:
    api = a_policy(Rule("all", "9/minute"), block=["203.0.113.7"])
    found = call(api, "/v1/decide", {"path": "/", "address": "203.0.113.7"}).json
    assert (found["allowed"], found["status"], found["kind"], found["decision"]) == (False, 403, "block", None)


def test_headers_come_in_the_style_of_the_policy() -> None:
    api = a_policy(Rule("all", "9/minute"), headers="x-ratelimit")
    found = call(api, "/v1/decide", {"path": "/", "address": "203.0.113.7", "headers": {"Origin": "https://a.example"}})
    assert found.json["headers"]["X-RateLimit-Remaining"] == "8"
    assert found.headers["x-ratelimit-remaining"] == "8"
    assert "X-RateLimit-Remaining" in found.json["headers"]["Access-Control-Expose-Headers"]


def test_trusted_proxies_are_applied_to_the_address_and_the_headers() -> None:
    api = a_policy(Rule("all", "1/minute", by="address"), trusted=["10.0.0.0/8"])
    request = {"path": "/", "address": "10.0.0.1", "headers": {"X-Forwarded-For": ["203.0.113.7"]}}
    assert call(api, "/v1/decide", request).json["allowed"]
    assert not call(api, "/v1/decide", request).json["allowed"]
    assert call(api, "/v1/decide", {**request, "headers": {"x-forwarded-for": "203.0.113.8"}}).json["allowed"]
    liar = {"path": "/", "address": "203.0.113.7", "headers": {"x-forwarded-for": "203.0.113.9"}}
    assert not call(api, "/v1/decide", liar).json["allowed"]


def test_a_path_that_is_not_encoded_is_read_as_one_that_is() -> None:
    api = a_policy(Rule("all", "1/minute", match=Match(paths=["/caf%C3%A9"])))
    assert call(api, "/v1/decide", {"path": "/café"}).json["allowed"]
    assert not call(api, "/v1/decide", {"path": "/caf%C3%A9"}).json["allowed"]


def test_a_rule_by_a_field_of_the_body_reads_it() -> None:
    api = a_policy(Rule("login", "1/minute", by="body.username"))
    requests = [{"path": "/login", "method": "POST", "body": json.dumps({"username": name})} for name in "aba"]
    assert [call(api, "/v1/decide", request).json["allowed"] for request in requests] == [True, True, False]


def test_both_stages_and_shadows_are_settled_and_released_together() -> None:
    rules = [
        Rule("early", "10/minute", by="address", stage="early"),
        Rule("late", "20/minute", by="address"),
        Rule("slots", "3 concurrent", by="address"),
        Rule("shadow", "30/minute", by="address", mode="shadow"),
    ]
    engine = an_engine(policy=Policy(rules=rules))
    api = an_api(engine)
    request = {"path": "/", "address": "203.0.113.7", "settle": True}

    def used() -> list[tuple[str, int]]:
        return [(one["rule"], one["used"]) for one in call(api, "/v1/usage", {"identity": "203.0.113.7"}).json["usage"]]

    found = call(api, "/v1/decide", request).json
    assert [one["limit"]["text"] for one in found["decision"]["outcomes"]] == ["10/minute", "20/minute", "3 concurrent"]
    assert used() == [("early", 1), ("late", 1), ("slots", 1)]
    settled = call(api, "/v1/settle", {"settle": found["settle"], "cost": 5})
    assert settled.status == 200
    assert used() == [("early", 5), ("late", 5), ("slots", 1)]
    call(api, "/v1/release", {"release": found["release"]})
    assert used() == [("early", 5), ("late", 5), ("slots", 0)]
    other = call(api, "/v1/decide", request).json
    wrong = call(api, "/v1/settle", {"settle": other["settle"], "cost": [1, 2]})
    assert fields(wrong.json) == ["cost"]
    assert call(api, "/v1/settle", {"settle": other["settle"], "cost": [2, 3, 4]}).status == 200
    assert used() == [("early", 7), ("late", 8), ("slots", 1)]


def test_a_settlement_can_be_a_strike() -> None:
    api = an_api()
    asked = {"key": "k", "limits": "100/minute; 1 strike/hour block 5 minutes", "settle": True}
    token = call(api, "/v1/hit", asked).json["settle"]
    assert call(api, "/v1/settle", {"settle": token, "cost": 1, "strike": True}).json["blocked"]
    blocked = call(api, "/v1/hit", asked)
    assert (blocked.json["allowed"], blocked.json["blocked"], blocked.headers["retry-after"]) == (False, True, "300")


def test_a_storage_that_must_be_awaited_gives_the_same_answers(zone_url: str) -> None:
    async def main() -> None:
        engine = an_engine(zone_url)
        api = an_api(engine)
        try:
            found = (await called(api, "/v1/hit", [OWN, OWN, {"key": "k"}, OWN, OWN])).json
            assert [entry.get("allowed", entry.get("status")) for entry in found] == [True, True, 422, True, False]
            both = {"key": "k", "limits": "9/minute; 1 concurrent", "settle": True}
            hit = (await called(api, "/v1/hit", both)).json
            assert (await called(api, "/v1/settle", {"settle": hit["settle"], "cost": 4})).json["remaining"] == 5
            assert (await called(api, "/v1/settle", {"settle": hit["settle"], "cost": 4})).status == 409
            assert (await called(api, "/v1/release", {"release": hit["release"]})).status == 200
            asked = [{"key": "k", "limits": "9/minute; 1 concurrent"}] * 2
            used = [[one["used"] for one in entry["usage"]] for entry in (await called(api, "/v1/usage", asked)).json]
            assert used == [[4, 0], [4, 0]]
            verdicts = await called(api, "/v1/decide", [{"path": "/", "address": "203.0.113.7"}] * 6)
            assert sorted(entry["allowed"] for entry in verdicts.json) == [False] + [True] * 5
        finally:
            await engine.close()

    run(main)


def test_callers_cannot_fill_memory_with_limits_that_are_kept() -> None:
    def texts(number: int) -> str:
        return "; ".join(f"{number + place}/{place} seconds" for place in range(1, 40))

    short, long = plan_of("7/minute"), plan_of(texts(0))
    assert plan_of("7/minute") is short
    assert plan_of(texts(0)) is long
    for number in range(1, 300):
        plan_of(f"{number}/minute")
        plan_of(texts(number))
    assert plan_of("7/minute") is short
    assert plan_of(texts(0)) is not long
