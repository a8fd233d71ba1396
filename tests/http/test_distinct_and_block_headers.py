"""Headers and rejections name distinct values only if they deny, and tell a blocked client nothing but its wait."""

import json
from typing import Any

import pytest

from ratebound import Decision, Limiter, MemoryStorage, RateLimited, parse_limits
from ratebound.clock import SECOND
from ratebound.http import Headers, RejectionFormat, parse_rate_limit, parse_retry_after
from ratebound.http.headers import FIELDS, Style
from ratebound.http.rejection import FormatName
from ratebound.outcome import DegradedRows
from ratebound.testing import FakeClock

GUARDED = "5/minute as login; 2 distinct account/hour as accounts; 2 strikes/hour block 5 minutes as guessing"
ABNORMAL = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
FORMATS = ("problem+json", "jsonapi", "json", "text")


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter(GUARDED, storage=MemoryStorage(clock=clock))


def fields(decision: Decision, *styles: Style, **options: Any) -> dict[str, str]:
    return dict(Headers(styles or ("draft-11",), **options).pairs(decision))


def hit(limiter: Limiter, account: str) -> Decision:
    return limiter.hit("client", values={"account": account})


def denied_by_values(limiter: Limiter) -> Decision:
    assert hit(limiter, "a")
    assert hit(limiter, "b")
    return hit(limiter, "c")


def blocked(limiter: Limiter, clock: FakeClock) -> Decision:
    """The second strike comes in the second after the first, and begins the block."""
    denied_by_values(limiter)
    clock.now += SECOND
    return hit(limiter, "d")


def test_values_and_penalties_are_not_advertised(limiter: Limiter) -> None:
    assert fields(hit(limiter, "a")) == {
        "RateLimit-Policy": '"login";q=5;w=60',
        "RateLimit": '"login";r=4;t=60',
    }


@pytest.mark.parametrize("style", FIELDS)
def test_an_allowed_request_with_values_alone_has_no_fields(style: Style) -> None:
    limiter = Limiter("2 distinct account/hour; 2 strikes/hour block 5 minutes")
    assert fields(hit(limiter, "a"), style) == {}


@pytest.mark.parametrize("style", FIELDS)
def test_the_fields_of_a_rate_are_the_same_with_values_and_a_penalty_beside_it(style: Style, limiter: Limiter) -> None:
    alone = Limiter("5/minute as login", storage=limiter.storage)
    expected = fields(alone.hit("other"), style)
    assert fields(hit(limiter, "a"), style) == expected


def test_values_that_deny_are_named(limiter: Limiter) -> None:
    decision = denied_by_values(limiter)
    assert fields(decision) == {
        "RateLimit-Policy": '"login";q=5;w=60',
        "RateLimit": '"login";r=3;t=60, "accounts";r=0;t=3600',
        "Retry-After": "3600",
    }
    lines = Headers().pairs(decision)
    assert [(quota.name, quota.remaining, quota.reset_after) for quota in parse_rate_limit(lines)] == [
        ("login", 3, 60.0),
        ("accounts", 0, 3600.0),
    ]


def test_values_that_deny_are_the_one_limit_that_older_styles_tell(limiter: Limiter) -> None:
    decision = denied_by_values(limiter)
    assert fields(decision, "draft-07") == {
        "RateLimit-Policy": "5;w=60",
        "RateLimit": "limit=2, remaining=0, reset=3600",
        "Retry-After": "3600",
    }
    assert fields(decision, "x-ratelimit", reset="delta") == {
        "X-RateLimit-Limit": "2",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "3600",
        "Retry-After": "3600",
    }
    assert fields(decision, "kong") == {
        "X-RateLimit-Limit-Minute": "5",
        "X-RateLimit-Remaining-Minute": "3",
        "RateLimit-Limit": "2",
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": "3600",
        "Retry-After": "3600",
    }


def test_a_rejection_names_the_values_that_deny_and_no_penalty(limiter: Limiter) -> None:
    body = json.loads(RejectionFormat().respond(denied_by_values(limiter)).body)
    assert body == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "Too many different values of 'account': try again in 3600 seconds.",
        "violated-policies": ["accounts"],
        "retry_after": 3600,
        "limits": [
            {"policy": "login", "quota": 5, "window": 60, "remaining": 3},
            {
                "policy": "accounts",
                "quota": 2,
                "window": 3600,
                "unit": "distinct account",
                "remaining": 0,
                "retry_after": 3600,
            },
        ],
    }


def test_a_rejection_by_a_rate_does_not_tell_of_values(limiter: Limiter) -> None:
    decision = hit(limiter, "a")
    while decision:
        decision = hit(limiter, "a")
    body = json.loads(RejectionFormat().respond(decision).body)
    assert body["violated-policies"] == ["login"]
    assert [entry["policy"] for entry in body["limits"]] == ["login"]
    assert fields(decision)["RateLimit"] == '"login";r=0;t=60'


@pytest.mark.parametrize("style", [*FIELDS, "none"])
def test_a_blocked_client_is_told_its_wait_and_no_limit(style: Style, limiter: Limiter, clock: FakeClock) -> None:
    for decision in (blocked(limiter, clock), hit(limiter, "a")):
        assert decision.blocked
        assert fields(decision, style)["Retry-After"].isdigit()
        assert set(fields(decision, style)) == {"Retry-After"}
    clock.now += 100 * SECOND
    assert parse_retry_after(Headers(style).pairs(hit(limiter, "a"))) == 200


@pytest.mark.parametrize("text", FORMATS)
def test_every_format_of_a_block_says_so_and_names_nothing(
    text: FormatName, limiter: Limiter, clock: FakeClock
) -> None:
    blocked(limiter, clock)
    response = RejectionFormat(text).respond(hit(limiter, "a"))
    assert response.status == 429
    assert b"Blocked because of too many rejected or failed requests: try again in 300 seconds." in response.body
    for name in (b"guessing", b"accounts", b"login", b"strike"):
        assert name not in response.body


def test_a_block_has_the_problem_type_of_abnormal_usage(limiter: Limiter, clock: FakeClock) -> None:
    blocked(limiter, clock)
    decision = hit(limiter, "a")
    assert json.loads(RejectionFormat().respond(decision).body) == {
        "type": ABNORMAL,
        "title": "Abnormal Usage Detected",
        "status": 429,
        "detail": "Blocked because of too many rejected or failed requests: try again in 300 seconds.",
        "violated-policies": [],
        "retry_after": 300,
    }
    (error,) = json.loads(RejectionFormat("jsonapi").respond(decision).body)["errors"]
    assert (error["code"], error["links"]["type"]) == ("abnormal-usage-detected", ABNORMAL)
    assert json.loads(RejectionFormat("json").respond(decision).body)["error"] == "abnormal_usage_detected"


def test_the_decision_that_begins_a_block_is_told_as_one(limiter: Limiter, clock: FakeClock) -> None:
    response = RejectionFormat().respond(blocked(limiter, clock))
    body = json.loads(response.body)
    assert body["type"] == ABNORMAL
    assert body["retry_after"] == 3599, "the values deny for longer than the block"
    assert "limits" not in body


def test_the_message_of_a_rule_is_for_blocks_too(limiter: Limiter, clock: FakeClock) -> None:
    blocked(limiter, clock)
    body = json.loads(RejectionFormat().respond(hit(limiter, "a"), message="Call us.").body)
    assert (body["type"], body["detail"]) == (ABNORMAL, "Call us.")


def test_a_block_that_was_remembered_in_an_outage_is_told_as_one(limiter: Limiter, clock: FakeClock) -> None:
    blocked(limiter, clock)
    decision = hit(limiter, "a")
    remembered = Decision(decision.asks, DegradedRows(decision.rows, "down"))
    assert fields(remembered) == {"Retry-After": "300"}
    assert RejectionFormat().rejection(remembered).kind == "abnormal-usage-detected"


def test_a_denial_for_want_of_the_storage_is_no_block(limiter: Limiter, clock: FakeClock) -> None:
    blocked(limiter, clock)
    decision = hit(limiter, "a")
    closed = Decision(decision.asks, DegradedRows(decision.rows, "down", closed=True))
    assert not closed.blocked
    assert RejectionFormat().rejection(closed).status == 503


def test_the_exception_says_what_denies(limiter: Limiter, clock: FakeClock) -> None:
    text = "too many different values of 'account', limited by '2 distinct account/hour as accounts'; retry in 3600 s"
    assert str(RateLimited(denied_by_values(limiter))) == text
    clock.now += SECOND
    hit(limiter, "d")
    penalty = str(parse_limits(GUARDED)[2])
    assert str(RateLimited(hit(limiter, "a"))) == f"blocked by '{penalty}'; retry in 300 s"


def test_the_exception_of_a_waiter_says_what_denies(limiter: Limiter, clock: FakeClock) -> None:
    denied_by_values(limiter)
    with pytest.raises(RateLimited, match="too many different values of 'account'.*would not pass within timeout=5"):
        limiter.wait("client", values={"account": "c"}, timeout=5)
    clock.now += SECOND
    hit(limiter, "d")
    with pytest.raises(RateLimited, match="blocked by '2 strikes.*would not end within timeout=5"):
        limiter.wait("client", values={"account": "a"}, timeout=5)
