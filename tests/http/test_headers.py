"""Header fields tell the truth about a decision, in every style, and an independent parser reads them so."""

from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import http_sf
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ratebound import Decision, Limit, Limiter, MemoryStorage, parse_limit, parse_limits
from ratebound.clock import SECOND
from ratebound.http import Headers, expose, grows_after
from ratebound.http.headers import FIELDS, ResetForm, RetryAfterForm, Style
from ratebound.limit import ALGORITHMS, BUCKETS, Algorithm, Check
from ratebound.outcome import DegradedRows, Row
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.property.strategies import costs, gaps, limits

NOW = 1_700_000_000 * SECOND + 250_000


def decided(text: str, *answers: tuple[bool, int, int | None, int]) -> Decision:
    """A decision with these (allowed, remaining, retry_after, reset_after) in microseconds."""
    asked = tuple(parse_limits(text))
    return decision_of(asked, [(*answer, 0, NOW, 0, 0, None) for answer in answers])


def decision_of(asked: tuple[Limit, ...], rows: Sequence[Row]) -> Decision:
    return Decision((("key", asked, 1, None, None),), rows)


def sf(text: str, kind: str = "list") -> Any:
    """As an independent implementation reads it."""
    return http_sf.parse(text.encode("ascii"), tltype=kind)


def fields(headers: Headers, decision: Decision) -> dict[str, str]:
    pairs = headers.pairs(decision)
    assert len({name.lower() for name, _ in pairs}) == len(pairs)
    return dict(pairs)


ALLOWED = decided("100/minute as burst; 1000/day fixed-window as daily", (True, 50, 0, 29_000_001), (True, 400, 0, 7))
REFUSED = decided("100/minute as burst; 1000/day as daily", (False, 0, 4_000_001, 60_000_000), (True, 400, 0, SECOND))
HOPELESS = decided("100/minute as burst", (False, 40, None, 30 * SECOND))


@pytest.mark.parametrize(
    ("style", "decision", "expected"),
    [
        (
            "draft-11",
            ALLOWED,
            {
                "RateLimit-Policy": '"burst";q=100;w=60, "daily";q=1000;w=86400',
                "RateLimit": '"burst";r=50;t=30, "daily";r=400;t=1',
            },
        ),
        (
            "draft-07",
            ALLOWED,
            {"RateLimit-Policy": "100;w=60, 1000;w=86400", "RateLimit": "limit=100, remaining=50, reset=30"},
        ),
        (
            "draft-06",
            ALLOWED,
            {
                "RateLimit-Policy": "100;w=60, 1000;w=86400",
                "RateLimit-Limit": "100",
                "RateLimit-Remaining": "50",
                "RateLimit-Reset": "30",
            },
        ),
        (
            "draft-03",
            ALLOWED,
            {
                "RateLimit-Limit": "100, 100;w=60, 1000;w=86400",
                "RateLimit-Remaining": "50",
                "RateLimit-Reset": "30",
            },
        ),
        (
            "x-ratelimit",
            ALLOWED,
            {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "50", "X-RateLimit-Reset": "1700000030"},
        ),
        (
            "kong",
            ALLOWED,
            {
                "X-RateLimit-Limit-Minute": "100",
                "X-RateLimit-Remaining-Minute": "50",
                "X-RateLimit-Limit-Day": "1000",
                "X-RateLimit-Remaining-Day": "400",
                "RateLimit-Limit": "100",
                "RateLimit-Remaining": "50",
                "RateLimit-Reset": "30",
            },
        ),
        ("none", ALLOWED, {}),
        (
            "draft-11",
            REFUSED,
            {
                "RateLimit-Policy": '"burst";q=100;w=60, "daily";q=1000;w=86400',
                "RateLimit": '"burst";r=0;t=5, "daily";r=400;t=1',
                "Retry-After": "5",
            },
        ),
        (
            "draft-07",
            REFUSED,
            {
                "RateLimit-Policy": "100;w=60, 1000;w=86400",
                "RateLimit": "limit=100, remaining=0, reset=5",
                "Retry-After": "5",
            },
        ),
        (
            "x-ratelimit",
            REFUSED,
            {
                "X-RateLimit-Limit": "100",
                "X-RateLimit-Remaining": "0",
                "X-RateLimit-Reset": "1700000005",
                "Retry-After": "5",
            },
        ),
        ("none", REFUSED, {"Retry-After": "5"}),
        ("draft-11", HOPELESS, {"RateLimit-Policy": '"burst";q=100;w=60', "RateLimit": '"burst";r=40;t=30'}),
        ("none", HOPELESS, {}),
    ],
)
def test_each_style_in_full(style: Style, decision: Decision, expected: dict[str, str]) -> None:
    assert fields(Headers(style), decision) == expected


def test_several_styles_stand_side_by_side() -> None:
    found = fields(Headers(["draft-11", "x-ratelimit", "kong"], reset="delta"), REFUSED)
    assert found["RateLimit"] == '"burst";r=0;t=5, "daily";r=400;t=1'
    assert found["X-RateLimit-Reset"] == found["Retry-After"] == found["RateLimit-Reset"] == "5"
    assert found["X-RateLimit-Remaining-Day"] == "400"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"styles": "draft-12"}, "unknown header style 'draft-12': expected one of draft-11"),
        ({"styles": ["draft-11", "draft-07"]}, "both write RateLimit-Policy"),
        ({"styles": ["draft-03", "kong"]}, "both write RateLimit-Limit"),
        ({"styles": ["draft-11", "draft-11"]}, "both write"),
        ({"reset": "ms"}, "reset"),
        ({"retry_after": "minutes"}, "retry_after"),
        ({"jitter": -0.1}, "jitter"),
        ({"jitter": float("nan")}, "jitter"),
        ({"jitter": True}, "jitter"),
        ({"names": {"daily": "täglich"}}, "printable ASCII"),
        ({"names": {"daily": "a\r\nSet-Cookie: x"}}, "printable ASCII"),
        ({"names": {"daily": 7}}, "printable ASCII"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, object], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        Headers(**options)  # type: ignore[arg-type]


def test_retry_after_can_be_a_date() -> None:
    found = fields(Headers("none", retry_after="date"), REFUSED)
    assert found == {"Retry-After": "Tue, 14 Nov 2023 22:13:25 GMT"}
    assert parsedate_to_datetime(found["Retry-After"]).timestamp() * SECOND >= NOW + 4_000_001


def test_a_wait_is_the_longest_of_the_refusals() -> None:
    both = decided("1/minute; 2/hour", (False, 0, 3 * SECOND, 0), (False, 0, 90 * SECOND, 0))
    assert fields(Headers("draft-07"), both)["RateLimit"] == "limit=2, remaining=0, reset=90"
    assert fields(Headers(), both)["Retry-After"] == "90"
    never = decided("1/minute; 2/hour", (False, 0, 3 * SECOND, 0), (False, 0, None, 0))
    assert "Retry-After" not in fields(Headers(), never)


def test_a_refusal_never_says_now() -> None:
    assert fields(Headers(), decided("1/minute", (False, 0, 1, 1)))["Retry-After"] == "1"
    assert fields(Headers(), decided("1/minute", (False, 0, 0, 0)))["Retry-After"] == "1"


def test_jitter_lengthens_every_wait_alike_and_only_on_a_refusal() -> None:
    headers = Headers(["draft-11", "x-ratelimit"], jitter=0.5, reset="delta")
    refused = decided("1/hour", (False, 0, 1000 * SECOND, 1000 * SECOND))
    waits = set()
    for _ in range(200):
        found = fields(headers, refused)
        wait = int(found["Retry-After"])
        assert found["RateLimit"] == f'"1/hour";r=0;t={wait}'
        assert found["X-RateLimit-Reset"] == str(wait)
        assert 1000 <= wait <= 1501
        waits.add(wait)
    assert len(waits) > 20
    assert fields(headers, ALLOWED) == fields(Headers(["draft-11", "x-ratelimit"], reset="delta"), ALLOWED)


def test_names_are_those_that_clients_are_to_see() -> None:
    found = fields(Headers(names={"burst": 'per "user" \\ key'}), ALLOWED)
    assert found["RateLimit"] == r'"per \"user\" \\ key";r=50;t=30, "daily";r=400;t=1'


def test_a_bucket_is_told_as_its_burst_in_the_time_it_takes_to_come_back() -> None:
    found = fields(Headers(["draft-11", "kong"]), Limiter("10/second burst 20").hit("k"))
    assert found["RateLimit-Policy"] == '"10/second burst 20";q=20;w=2'
    assert "X-RateLimit-Limit-Second" not in found  # it is not 20 a second
    found = fields(Headers("kong"), Limiter("1/second burst 60").hit("k"))
    assert (found["X-RateLimit-Limit-Minute"], found["X-RateLimit-Remaining-Minute"]) == ("60", "59")


def test_parts_of_a_second_are_rounded_up() -> None:
    found = fields(Headers(), decided("200/500ms", (True, 5, 0, 900_000)))
    assert found["RateLimit-Policy"].endswith(";q=200;w=1")


def test_old_drafts_tell_equal_quotas_once_by_the_strictest() -> None:
    decision = decided("5/second; 5/hour; 5/minute", *[(True, 3, 0, SECOND)] * 3)
    assert fields(Headers("draft-07"), decision)["RateLimit-Policy"] == "5;w=3600"


def test_of_limits_with_one_name_the_one_nearest_to_its_end_is_told() -> None:
    limit = parse_limit("5/minute as login")
    asks = (("ip", (limit,), 1, None, None), ("user", (limit,), 1, None, None), ("org", (limit,), 1, None, None))
    for answers, told in (
        ([(True, 4, 0), (True, 2, 0), (True, 3, 0)], '"login";r=2;t=60'),
        ([(True, 0, 0), (False, 0, 9 * SECOND), (False, 0, 2 * SECOND)], '"login";r=0;t=9'),
        ([(False, 0, 9 * SECOND), (False, 1, None), (True, 3, 0)], '"login";r=1;t=60'),
    ):
        found = fields(
            Headers(["draft-11", "kong"]), Decision(asks, [(*a, 60 * SECOND, 0, NOW, 0, 0, None) for a in answers])
        )
        assert (found["RateLimit-Policy"], found["RateLimit"]) == ('"login";q=5;w=60', told)
        assert found["X-RateLimit-Remaining-Minute"] == told.split("r=")[1][0]


def test_different_limits_of_one_name_are_told_apart() -> None:
    found = fields(Headers(), Limiter("5/minute as login; 20/hour as login; 9/day").hit("k"))
    assert found["RateLimit-Policy"] == '"login 5/minute";q=5;w=60, "login 20/hour";q=20;w=3600, "9/day";q=9;w=86400'
    assert found["RateLimit"] == '"login 5/minute";r=4;t=60, "login 20/hour";r=19;t=3600, "9/day";r=8;t=86400'


def test_limits_of_several_keys_are_told_together() -> None:
    limiter = Limiter("1/second")
    checks = [Check("a", parse_limits("5/minute as one; 9/hour as two")), Check("b", parse_limit("7/day as three"))]
    headers = Headers()
    for left in (4, 3):
        found = fields(headers, limiter.check(checks))
        assert found["RateLimit"].startswith(f'"one";r={left};')
        assert [item[0] for item in sf(found["RateLimit"])] == [
            "one",
            "two",
            "three",
        ]


def test_a_full_limit_has_nothing_to_grow() -> None:
    assert fields(Headers(), Limiter("5/minute").peek("k"))["RateLimit"] == '"5/minute";r=5'
    assert fields(Headers(), Limiter("5/second burst 9").peek("k"))["RateLimit"] == '"5/second burst 9";r=9'
    assert fields(Headers("draft-03"), Limiter("5/minute").peek("k"))["RateLimit-Reset"] == "0"


def test_while_the_storage_is_out_of_reach_nothing_is_told_that_is_not_known() -> None:
    limit = parse_limit("5/minute")
    closed = decision_of((limit,), DegradedRows([(False, 0, 3 * SECOND, 0, 0, NOW, 0, 0, None)], "down", closed=True))
    assert fields(Headers(["draft-11", "x-ratelimit"]), closed) == {"Retry-After": "3"}


def test_a_local_share_is_told_with_its_end() -> None:
    bucket = parse_limit("10/second burst 100")
    share = DegradedRows([(True, 3, 0, 2 * SECOND, 0, NOW, 0, 0, None)], "down")
    assert fields(Headers(), decision_of((bucket,), share))["RateLimit"] == '"10/second burst 100";r=3;t=2'


def test_limits_made_for_each_request_do_not_fill_the_memory() -> None:
    headers = Headers()
    for n in range(1, 10_000):
        limit = Limit(n, SECOND, algorithm="fixed-window")
        headers.pairs(decision_of((limit,), [(True, 0, 0, 1, 0, NOW, 0, 0, None)]))
        assert len(headers._plans) <= 4096
        assert len(headers._shown) <= 4096
    assert fields(headers, ALLOWED) == fields(Headers(), ALLOWED)


def test_a_prepared_tuple_of_limits_is_found_again() -> None:
    headers = Headers()
    headers.prepare(ALLOWED.asks[0][1])
    plan = headers._plan(ALLOWED.asks)
    assert fields(headers, ALLOWED) == fields(Headers(), ALLOWED)
    assert headers._plan(ALLOWED.asks) is plan
    assert len(headers._plans) == 1


def test_what_is_sent_can_be_exposed_to_scripts() -> None:
    (field,) = expose(Headers().pairs(REFUSED))
    assert field == ("Access-Control-Expose-Headers", "RateLimit-Policy, RateLimit, Retry-After")
    assert expose([]) == []


# Under Hypothesis.

NAMES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
STYLES = st.sampled_from([["draft-11"], ["draft-07"], ["draft-06"], ["draft-03", "draft-11"], ["kong", "x-ratelimit"]])


@st.composite
def decisions(draw: st.DrawFn) -> tuple[Decision, list[str]]:
    asked = draw(st.lists(limits(), min_size=1, max_size=4))
    named = [Limit(a.count, a.period_us, a.burst, a.algorithm, f"limit-{i}") for i, a in enumerate(asked)]
    rows: list[Row] = []
    for limit in named:
        allowed = draw(st.booleans())
        wait = 0 if allowed else draw(st.none() | st.integers(1, 2 * limit.period_us))
        reset = draw(st.integers(0, 2 * max(limit.period_us, limit.refill_us)))
        rows.append((allowed, draw(st.integers(0, limit.burst)), wait, reset, 0, NOW, 0, 0, None))
    return decision_of(tuple(named), rows), draw(st.lists(NAMES, min_size=len(named), max_size=len(named)))


@given(decisions())
def test_another_parser_reads_what_was_meant(case: tuple[Decision, list[str]]) -> None:
    decision, names = case
    assume(len(set(names)) == len(names))
    headers = Headers(names={limit.name: name for limit, name in zip(decision.limits, names, strict=True)})
    found = fields(headers, decision)
    policy = sf(found["RateLimit-Policy"])
    quotas = sf(found["RateLimit"])
    assert [value for value, _ in policy] == [value for value, _ in quotas] == names
    for limit, row, (_, told), (_, left) in zip(decision.limits, decision.rows, policy, quotas, strict=True):
        assert told["q"] == limit.burst
        assert told["w"] >= 1
        assert told["w"] - 1 < limit.burst * limit.period_us / limit.count / SECOND <= told["w"] * (1 + 1e-12)
        assert left["r"] == row[1] <= told["q"]
        if row[2]:
            assert left["t"] * SECOND >= row[2] > (left["t"] - 1) * SECOND
            if "Retry-After" in found:
                assert int(found["Retry-After"]) >= left["t"]
    assert http_sf.ser(policy) == found["RateLimit-Policy"]
    assert http_sf.ser(quotas) == found["RateLimit"]


@given(decisions(), STYLES, st.sampled_from(["epoch", "delta"]), st.sampled_from(["seconds", "date"]))
def test_every_style_speaks_of_the_decisions_own_limit(
    case: tuple[Decision, list[str]], styles: list[Style], reset: ResetForm, retry_after: RetryAfterForm
) -> None:
    decision, _ = case
    found = fields(Headers(styles, reset=reset, retry_after=retry_after), decision)
    assert set(found) - {"Retry-After"} <= {field for style in styles for field in FIELDS[style]}
    assert ("Retry-After" in found) == (not decision.allowed and decision.retry_after is not None)
    told: dict[str, int] = {}
    if "draft-07" in styles:
        told = {key: item[0] for key, item in sf(found["RateLimit"], "dict").items()}
    for prefix in ("RateLimit", "X-RateLimit"):
        if f"{prefix}-Limit" in found:
            first = sf(found[f"{prefix}-Limit"])[0][0]
            told = {"limit": first, "remaining": int(found[f"{prefix}-Remaining"])}
            assert int(found[f"{prefix}-Reset"]) >= 0
        if told:
            assert told["limit"] == decision.limit.burst
            assert told["remaining"] == decision.remaining


@given(st.data(), st.sampled_from(ALGORITHMS))
def test_waiting_until_it_grows_is_enough(data: st.DataObject, algorithm: Algorithm) -> None:
    """And for buckets and fixed windows two microseconds less are not: there it is exact."""
    limit = data.draw(limits((algorithm,)))
    clock = FakeClock(NOW)
    limiter = Limiter(limit, storage=MemoryStorage(clock=clock))
    row: Row | None = None
    for _ in range(data.draw(st.integers(1, 8))):
        clock.now += data.draw(gaps(limit))
        decision = limiter.hit("k", cost=min(data.draw(costs(limit)), limit.burst))
        if decision:
            row = decision.rows[0]
    assume(row is not None and row[5] == clock.now)
    assert row is not None
    after = grows_after(limit, row)
    assert (after == 0) == (row[1] == limit.burst)
    if after > 2 and algorithm in (*BUCKETS, "fixed-window"):
        clock.now += after - 2
        assert limiter.peek("k").remaining == row[1]
    clock.now = row[5] + after
    assert after == 0 or limiter.peek("k").remaining > row[1]


def test_the_first_unit_of_a_counter_leaves_when_it_says(clock: FakeClock) -> None:
    """Exact while the window before was empty."""
    limiter = limiter_of("10/minute sliding-counter", clock)
    limiter.hit("k", cost=4)
    clock.advance(10)
    decision = limiter.hit("k", cost=2)
    after = grows_after(decision.limit, decision.rows[0])
    assert after == 60 * SECOND  # 50 s until the window ends, 10 s for the first of its six units
    start = clock.now
    clock.now = start + after - 1
    assert limiter.peek("k").remaining == 4
    clock.now = start + after
    assert limiter.peek("k").remaining == 5


@given(st.data())
def test_a_client_that_waits_what_it_is_told_passes(data: st.DataObject) -> None:
    clock = FakeClock(NOW)
    several = tuple(
        Limit(a.count, a.period_us, a.burst, a.algorithm, f"limit-{i}")
        for i, a in enumerate(data.draw(st.lists(limits(), min_size=1, max_size=3)))
    )
    limiter = Limiter(several, storage=MemoryStorage(clock=clock))
    headers = Headers(["draft-11", "x-ratelimit"])
    for _ in range(12):
        decision = limiter.hit("k", cost=min(limit.burst for limit in several))
        found = fields(headers, decision)
        assert ("Retry-After" in found) == (not decision)
        if not decision:
            assert int(found["X-RateLimit-Reset"]) * SECOND >= clock.now
            clock.now += int(found["Retry-After"]) * SECOND
            assert limiter.peek("k", cost=min(limit.burst for limit in several))
