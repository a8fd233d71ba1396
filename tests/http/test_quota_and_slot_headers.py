"""Headers and rejections tell the truth about quotas by the calendar, metering and slots."""

import copy
import json
from collections.abc import Sequence
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import Decision, Limit, Limiter, MemoryStorage, parse_limits
from ratebound.clock import SECOND
from ratebound.http import Headers, RejectionFormat, parse_rate_limit, parse_retry_after
from ratebound.http.headers import FIELDS, Style
from ratebound.http.rejection import FormatName
from ratebound.limit import GRANT, NOT_GIVEN
from ratebound.outcome import DegradedRows, Row
from ratebound.policy import Gate, Rule, read_policy
from ratebound.testing import FakeClock
from ratebound.web.rejected import rejection_of
from tests.policy.gates import decide, gate_of, request

NOW = 1_700_000_000 * SECOND  # 2023-11-14T22:13:20Z
DAY_ENDS = 6_400  # seconds later, in UTC


def decided(text: str, *answers: tuple[bool, int, int | None, int], retry: int = 0) -> Decision:
    """A decision with these (allowed, remaining, retry_after, reset_after) in microseconds."""
    limits = tuple(
        Limit(limit.count, limit.period_us, algorithm="concurrent", retry_us=retry) if limit.has_slots else limit
        for limit in parse_limits(text)
    )
    extras = [(7, 0, 0, 0) if limit.has_slots else NOT_GIVEN for limit in limits]
    found: Sequence[Row] = [(*answer, 0, NOW, 0, 0, None) for answer in answers]
    return Decision((("key", limits, 1, None, extras),), found)


def sf(text: str, kind: str = "list") -> Any:
    """As an independent implementation reads it."""
    return http_sf.parse(text.encode("ascii"), tltype=kind)


def fields(decision: Decision, *styles: Style, **options: Any) -> dict[str, str]:
    return dict(Headers(styles or ("draft-11",), **options).pairs(decision))


HIT = (True, 2, 0, 600 * SECOND)
FULL = (False, 0, 42 * SECOND, 600 * SECOND)
MONTH = (True, 9_000, 0, 1_000 * SECOND)
USED_UP = (False, 0, 1_000 * SECOND, 1_000 * SECOND)


def test_a_calendar_quota_has_no_window_and_ends_when_it_ends() -> None:
    assert fields(decided("10000/calendar-month as month", MONTH)) == {
        "RateLimit-Policy": '"month";q=10000',
        "RateLimit": '"month";r=9000;t=1000',
    }
    assert fields(decided("10000/calendar-month as month", USED_UP)) == {
        "RateLimit-Policy": '"month";q=10000',
        "RateLimit": '"month";r=0;t=1000',
        "Retry-After": "1000",
    }


def test_the_end_is_that_of_the_zone() -> None:
    limiter = Limiter(
        "10/calendar-month in Europe/Berlin as month; 5/calendar-day as day",
        storage=MemoryStorage(clock=FakeClock(NOW)),
    )
    assert fields(limiter.hit("key")) == {
        "RateLimit-Policy": '"month";q=10, "day";q=5',
        "RateLimit": f'"month";r=9;t={16 * 86_400 + DAY_ENDS - 3_600}, "day";r=4;t={DAY_ENDS}',
    }


def test_slots_are_told_as_concurrent_requests_without_times() -> None:
    assert fields(decided("3 concurrent for 10 minutes", HIT)) == {
        "RateLimit-Policy": '"3 concurrent for 10 minutes";q=3;qu="concurrent-requests"',
        "RateLimit": '"3 concurrent for 10 minutes";r=2',
    }


def test_the_time_of_a_slot_is_no_retry_after() -> None:
    assert "Retry-After" not in fields(decided("3 concurrent", FULL))
    assert "t=" not in fields(decided("3 concurrent", FULL))["RateLimit"]
    assert fields(decided("3 concurrent", FULL), "none") == {}


@pytest.mark.parametrize("style", [*FIELDS, "none"])
def test_the_time_that_a_rule_gives_for_its_slots_is_sent(style: Style) -> None:
    assert fields(decided("3 concurrent", FULL, retry=5 * SECOND), style)["Retry-After"] == "5"


def test_of_a_rate_and_a_slot_that_deny_the_wait_of_the_rate_is_sent() -> None:
    both = decided("100/minute; 3 concurrent", (False, 0, 9 * SECOND, 60 * SECOND), FULL)
    assert fields(both)["Retry-After"] == "9"
    both = decided("100/minute; 3 concurrent", (False, 0, 9 * SECOND, 60 * SECOND), FULL, retry=20 * SECOND)
    assert fields(both)["Retry-After"] == "20"
    never = decided("100/minute; 3 concurrent", (False, 0, None, 60 * SECOND), FULL, retry=20 * SECOND)
    assert "Retry-After" not in fields(never)


def test_a_rejection_without_the_storage_sends_the_wait_for_the_storage() -> None:
    decision = decided("3 concurrent", FULL)
    closed = Decision(decision.asks, DegradedRows(decision.rows, "down", closed=True))
    assert fields(closed) == {"Retry-After": "42"}
    assert RejectionFormat().rejection(closed).retry_after == 42


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("draft-07", {"RateLimit-Policy": "100;w=60", "RateLimit": "limit=100, remaining=50, reset=30"}),
        (
            "draft-06",
            {
                "RateLimit-Policy": "100;w=60",
                "RateLimit-Limit": "100",
                "RateLimit-Remaining": "50",
                "RateLimit-Reset": "30",
            },
        ),
        ("draft-03", {"RateLimit-Limit": "100, 100;w=60", "RateLimit-Remaining": "50", "RateLimit-Reset": "30"}),
        (
            "x-ratelimit",
            {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "50", "X-RateLimit-Reset": "1700000030"},
        ),
        (
            "kong",
            {
                "X-RateLimit-Limit-Minute": "100",
                "X-RateLimit-Remaining-Minute": "50",
                "X-RateLimit-Limit-Month": "10000",
                "X-RateLimit-Remaining-Month": "9000",
                "RateLimit-Limit": "100",
                "RateLimit-Remaining": "50",
                "RateLimit-Reset": "30",
            },
        ),
    ],
)
def test_a_slot_that_allows_is_not_the_one_limit_that_older_styles_tell(style: Style, expected: dict[str, str]) -> None:
    decision = decided(
        "100/minute fixed-window; 3 concurrent; 10000/calendar-month", (True, 50, 0, 30 * SECOND), HIT, MONTH
    )
    assert fields(decision, style) == expected


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("100/minute fixed-window; 10/calendar-month over allow", 100),
        ("10/calendar-month over allow; 100/minute fixed-window", 100),
        ("3 concurrent; 10/day fixed-window over allow; 100/minute fixed-window", 100),
        ("50/calendar-month; 10/calendar-month over allow as metered", 50),
        ("3 concurrent; 10/calendar-month over allow", 10),
        ("20/calendar-year over allow; 10/calendar-month over allow", 10),
        ("5 concurrent as large; 2 concurrent as small", 2),
    ],
)
def test_the_one_limit_that_is_told_may_deny_if_there_is_such_a_limit(text: str, quota: int) -> None:
    limiter = Limiter(text, storage=MemoryStorage(clock=FakeClock()))
    limiter.settle(limiter.hit("key"), cost=15)
    from_memory = limiter.hit("key")
    for decision in (from_memory, copy.copy(from_memory)):  # the copy is of the general class
        assert decision.allowed
        assert decision.limit.count == quota
        assert fields(decision, "x-ratelimit")["X-RateLimit-Limit"] == str(quota)
        assert fields(decision, "draft-06")["RateLimit-Remaining"] == str(decision.remaining)


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("draft-07", {"RateLimit": "limit=10000, remaining=9000, reset=1000"}),
        ("draft-06", {"RateLimit-Limit": "10000", "RateLimit-Remaining": "9000", "RateLimit-Reset": "1000"}),
        ("draft-03", {"RateLimit-Limit": "10000", "RateLimit-Remaining": "9000", "RateLimit-Reset": "1000"}),
        (
            "x-ratelimit",
            {"X-RateLimit-Limit": "10000", "X-RateLimit-Remaining": "9000", "X-RateLimit-Reset": "1700001000"},
        ),
    ],
)
def test_older_styles_tell_the_end_of_a_quota_and_no_window(style: Style, expected: dict[str, str]) -> None:
    assert fields(decided("10000/calendar-month", MONTH), style) == expected


@pytest.mark.parametrize("retry", [0, 5 * SECOND])
@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("draft-07", {"RateLimit-Policy": "100;w=60", "RateLimit": "limit=3, remaining=0"}),
        ("draft-06", {"RateLimit-Policy": "100;w=60", "RateLimit-Limit": "3", "RateLimit-Remaining": "0"}),
        ("draft-03", {"RateLimit-Limit": "3, 100;w=60", "RateLimit-Remaining": "0"}),
        ("x-ratelimit", {"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "0"}),
    ],
)
def test_a_slot_that_denies_is_told_without_a_reset_unless_the_rule_gives_one(
    style: Style, expected: dict[str, str], retry: int
) -> None:
    told = fields(decided("100/minute; 3 concurrent", (True, 50, 0, 30 * SECOND), FULL, retry=retry), style)
    if retry:
        assert told.pop("Retry-After") == "5"
        if style == "draft-07":
            expected = {**expected, "RateLimit": "limit=3, remaining=0, reset=5"}
        elif style == "x-ratelimit":
            expected = {**expected, "X-RateLimit-Reset": "1700000005"}
        else:
            expected = {**expected, "RateLimit-Reset": "5"}
    assert told == expected


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("9/calendar-day in Asia/Tokyo", "Day"),
        ("9/calendar-month from 15", "Month"),
        ("9/calendar-year", "Year"),
        ("9/calendar-week", ""),
        ("9 concurrent", ""),
    ],
)
def test_kong_names_the_unit_of_the_calendar(text: str, unit: str) -> None:
    told = fields(decided(text, (True, 5, 0, 9 * SECOND)), "kong")
    assert [name for name in told if name.startswith("X-")] == (
        [f"X-RateLimit-Limit-{unit}", f"X-RateLimit-Remaining-{unit}"] if unit else []
    )


def test_what_was_granted_may_exceed_the_quota_and_stays_a_valid_number() -> None:
    limiter = Limiter("10/calendar-month as month", storage=MemoryStorage(clock=FakeClock(NOW)))
    storage = limiter.storage
    limits = limiter.limits
    storage.evaluate([[("key", limits, 15, None, [GRANT])]], "force")
    assert fields(limiter.hit("key"))["RateLimit"].startswith('"month";r=24;t=')
    for _ in range(5_000):
        storage.evaluate([[("key", limits, 10**12, None, [GRANT])]], "force")
    for style in ("draft-11", "draft-07"):
        told = fields(limiter.hit("key"), style)["RateLimit"]
        assert "999999999999999" in told
        assert sf(told, "list" if style == "draft-11" else "dictionary")


TEXTS = (
    "100/minute",
    "10/second burst 20",
    "10000/calendar-month in Europe/Berlin from 15",
    "5/calendar-week from sunday over allow",
    "10/day fixed-window over allow",
    "3 concurrent",
    "2 concurrent for 10 minutes as exports",
)


@given(
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4, unique=True).filter(
        lambda texts: not {"3 concurrent", "2 concurrent for 10 minutes as exports"} <= set(texts)
    ),
    hits=st.integers(1, 12),
    style=st.sampled_from([*FIELDS, "none"]),
    cost=st.integers(1, 6),
)
def test_every_combination_of_limits_has_valid_headers_in_every_style(
    texts: list[str], hits: int, style: Style, cost: int
) -> None:
    gate = gate_of(read_policy({"rules": [{"name": "a", "limits": texts, "cost": cost}], "headers": style}))
    for _ in range(hits):
        decision = decide(gate, request()).decision
        assert decision is not None
        pairs = gate.policy.response_headers.pairs(decision)
        assert len({name for name, _ in pairs}) == len(pairs)
        told = dict(pairs)
        if style == "draft-11":
            policies, left = dict(sf(told["RateLimit-Policy"])), dict(sf(told["RateLimit"]))
            for limit, row in zip(decision.limits, decision.rows, strict=True):
                assert policies[limit.name]["q"] == limit.burst
                assert ("w" in policies[limit.name]) == (limit.calendar is None and not limit.has_slots)
                assert policies[limit.name].get("qu") == ("concurrent-requests" if limit.has_slots else None)
                assert left[limit.name]["r"] == row[1]
                assert not (limit.has_slots and "t" in left[limit.name])
        elif style != "none":
            limit_told = told.get("X-RateLimit-Limit") or told.get("RateLimit-Limit") or told["RateLimit"]
            assert str(decision.limit.burst) in limit_told
        denying = [limit for limit, row in zip(decision.limits, decision.rows, strict=True) if not row[0]]
        assert ("Retry-After" in told) == any(not limit.has_slots for limit in denying)
        assert json.loads(RejectionFormat().respond(decision).body) if denying else True


def test_our_own_client_reads_them() -> None:
    pairs = Headers().pairs(decided("10000/calendar-month as month; 3 concurrent", MONTH, HIT))
    month, slots = parse_rate_limit(pairs)
    assert (month.limit, month.remaining, month.window, month.reset_after) == (10_000, 9_000, None, 1_000.0)
    assert (slots.limit, slots.remaining, slots.window, slots.reset_after) == (3, 2, None, None)
    assert slots.unit == "concurrent-requests"
    assert parse_retry_after(Headers().pairs(decided("3 concurrent", FULL))) is None


# Rejections


def body(decision: Decision, format: FormatName = "problem+json") -> Any:
    return json.loads(RejectionFormat(format).respond(decision).body)


def test_the_rejection_for_want_of_a_slot_says_so_in_words() -> None:
    told = body(decided("3 concurrent for 10 minutes", FULL))
    assert told["detail"] == "Too many requests at the same time: at most 3. Try again when one of them has ended."
    assert told["violated-policies"] == ["3 concurrent for 10 minutes"]
    assert "retry_after" not in told
    assert told["limits"] == [
        {
            "policy": "3 concurrent for 10 minutes",
            "quota": 3,
            "window": None,
            "unit": "concurrent-requests",
            "remaining": 0,
        }
    ]


def test_the_rejection_for_want_of_a_slot_tells_the_time_of_the_rule() -> None:
    told = body(decided("1 concurrent", FULL, retry=5 * SECOND))
    assert told["detail"] == "Too many requests at the same time: at most 1. Try again in 5 seconds."
    assert told["retry_after"] == 5
    assert told["limits"][0]["retry_after"] == 5


def test_the_rejection_of_a_quota_says_when_the_next_window_begins() -> None:
    limiter = Limiter("1/calendar-month in Europe/Berlin as month", storage=MemoryStorage(clock=FakeClock(NOW)))
    limiter.hit("key")
    told = body(limiter.hit("key"))
    assert told["detail"] == (
        "The quota of this calendar month is used up: the next one begins at 2023-12-01T00:00:00+01:00."
    )
    (entry,) = told["limits"]
    assert (entry["quota"], entry["window"], entry["period"]) == (1, None, "calendar-month in Europe/Berlin")
    assert entry["retry_after"] == told["retry_after"] == 16 * 86_400 + DAY_ENDS - 3_600


def test_a_rate_that_denies_for_longer_than_a_slot_is_told_as_ever() -> None:
    told = body(decided("100/minute; 3 concurrent", (False, 0, 50 * SECOND, 60 * SECOND), FULL))
    assert told["detail"] == "Too many requests: try again in 50 seconds."
    assert told["violated-policies"] == ["100/minute", "3 concurrent"]


@pytest.mark.parametrize("format", ["problem+json", "jsonapi", "json", "text"])
def test_every_format_takes_a_rejection_without_a_wait(format: FormatName) -> None:
    response = RejectionFormat(format).respond(decided("3 concurrent", FULL))
    assert b"at the same time" in response.body
    assert "Retry-After" not in dict(response.headers)


def test_what_frameworks_make_a_retry_after_of_is_the_same_time() -> None:
    for rule, seconds in ((Rule("a", "1 concurrent"), None), (Rule("a", "1 concurrent", retry=5), 5.0)):
        gate = Gate(read_policy({"rules": [rule]}), storage="memory://")
        assert decide(gate, request())
        rejected = rejection_of(decide(gate, request()), request(), {})
        assert rejected.retry_after == seconds
        assert dict(rejected.headers).get("Retry-After") == (None if seconds is None else "5")
        assert rejected.description.startswith("Too many requests at the same time: at most 1. Try again")
