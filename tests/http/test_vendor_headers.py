"""What vendors send is read as they mean it; what nobody should send does no harm."""

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratebound import Decision
from ratebound.http import Advice, Headers, Quota, read_advice
from ratebound.http.advice import is_limit_field
from ratebound.http.headers import Style
from ratebound.http.received import MOST_SECONDS
from tests.http.test_headers import NOW, decisions
from tests.http.vendor_headers import recordings

AT = 1_700_000_000
RECORDED = recordings(AT)


def near(advice: Advice) -> Advice:
    """Return an advice with its times rounded to a microsecond."""
    quotas = tuple(
        quota._replace(reset_after=None if quota.reset_after is None else round(quota.reset_after, 6))
        for quota in advice.quotas
    )
    wait = advice.retry_after
    return advice._replace(quotas=quotas, retry_after=None if wait is None else round(wait, 6))


@pytest.mark.parametrize("name", RECORDED)
def test_a_response_is_read_as_its_vendor_means_it(name: str) -> None:
    status, headers, advice, body = RECORDED[name]
    assert near(read_advice(status, headers, body=body, now=AT)) == near(advice)


@pytest.mark.parametrize("name", RECORDED)
def test_the_case_of_names_and_the_kind_of_mapping_do_not_matter(name: str) -> None:
    status, headers, advice, body = RECORDED[name]
    lines = {field.swapcase(): f" {value}\t" for field, value in headers}
    assert near(read_advice(status, lines, body=body, now=AT)) == near(advice)


@pytest.mark.parametrize("name", [name for name in RECORDED if RECORDED[name].advice.quotas])
def test_every_field_that_tells_a_quota_is_known_as_one(name: str) -> None:
    status, headers, _, body = RECORDED[name]
    others = [(field, value) for field, value in headers if not is_limit_field(field)]
    assert all(quota.name == "graphql" for quota in read_advice(status, others, body=body, now=AT).quotas)


def wait_of(status: int, headers: dict[str, str], body: object = None) -> float | None:
    encoded = None if body is None else json.dumps(body).encode()
    return read_advice(status, headers, body=encoded, now=AT).retry_after


def test_waits_come_in_the_order_milliseconds_then_seconds_then_body_then_reset() -> None:
    fields = {
        "retry-after-ms": "1500",
        "x-ms-retry-after-ms": "1600",
        "retry-after": "2",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "9",
    }
    body = {"retry_after": 3.5}
    found = []
    for name in ("retry-after-ms", "x-ms-retry-after-ms", "retry-after"):
        found.append(wait_of(429, fields, body))
        del fields[name]
    assert [*found, wait_of(429, fields, body), wait_of(429, fields)] == [1.5, 1.6, 2.0, 3.5, 9.0]
    del fields["x-ratelimit-reset"]
    assert wait_of(429, fields) is None


def test_the_longest_reset_of_the_exhausted_quotas_is_the_wait() -> None:
    assert wait_of(429, {"RateLimit": '"a";r=0;t=5, "b";r=0;t=50, "c";r=3;t=500'}) == 50.0
    assert wait_of(200, {"RateLimit": '"a";r=0;t=5'}) is None


@pytest.mark.parametrize(
    ("status", "wait"), [(200, None), (202, None), (302, 7.0), (403, 7.0), (429, 7.0), (500, 7.0), (503, 7.0)]
)
def test_a_success_has_no_wait(status: int, wait: float | None) -> None:
    assert wait_of(status, {"Retry-After": "7"}) == wait


@pytest.mark.parametrize(
    ("fields", "wait"),
    [
        ({"Retry-After": "100", "Age": "40"}, 60.0),
        ({"Retry-After": "100", "Age": "400"}, 0.0),
        ({"Retry-After": "Tue, 14 Nov 2023 22:15:00 GMT", "Date": "Tue, 14 Nov 2023 22:13:20 GMT", "Age": "40"}, 60.0),
    ],
)
def test_the_time_in_a_cache_counts_as_waited(fields: dict[str, str], wait: float) -> None:
    assert wait_of(503, fields) == wait


def test_a_limit_of_nothing_on_an_answer_is_no_limit() -> None:
    assert read_advice(200, {"X-RateLimit-Limit": "0", "X-RateLimit-Remaining": "0"}).quotas == ()


def test_a_query_that_costs_more_than_the_bucket_holds_is_not_worth_a_retry() -> None:
    body = {
        "errors": [{"extensions": {"code": "THROTTLED"}}],
        "extensions": {
            "cost": {
                "requestedQueryCost": 3000,
                "throttleStatus": {"maximumAvailable": 2000, "currentlyAvailable": 2000, "restoreRate": 100},
            }
        },
    }
    advice = read_advice(200, [], body=json.dumps(body).encode())
    assert (advice.refused, advice.should_retry, advice.retry_after) == (True, False, None)


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 500, 502])
def test_other_statuses_are_no_refusals(status: int) -> None:
    assert not read_advice(status, {"X-RateLimit-Remaining": "0", "X-RateLimit-Limit": "5"}).refused


@given(decisions(), st.sampled_from(["draft-11", "draft-07", "draft-06", "draft-03", "x-ratelimit", "kong"]))
def test_what_we_send_is_read_back_in_every_style(case: tuple[Decision, list[str]], style: Style) -> None:
    decision, _ = case
    for reset in ("epoch", "delta"):
        pairs = Headers(style, reset=reset).pairs(decision)
        advice = read_advice(200 if decision.allowed else 429, pairs, now=NOW / 1e6)
        assert (advice.refused, advice.vendor in ("", "Kong")) == (not decision.allowed, True)
        told = [quota for quota in advice.quotas if quota.remaining is not None]
        expected = min(decision.limits[0].burst, 10**15 - 1) if len(decision.limits) == 1 else None
        if expected is not None and told:
            assert {(quota.limit, quota.remaining) for quota in told} == {(expected, decision.remaining)}
        if decision.allowed:
            assert advice.retry_after is None
        elif decision.retry_after is not None:
            assert advice.retry_after is not None
            assert min(decision.retry_after, MOST_SECONDS) <= advice.retry_after + 1e-3
        if pairs and style != "kong":
            assert advice.style in (style, "draft-06" if style == "draft-03" else style)


NAMES = st.sampled_from(sorted({field for one in RECORDED.values() for field, _ in one.headers} | {"Age", "Date"}))
VALUES = st.one_of(
    st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")),
    st.text(max_size=30),
    st.sampled_from(sorted({value for one in RECORDED.values() for _, value in one.headers})),
    st.from_regex(r"-?[0-9]{1,30}(\.[0-9]{1,30})?(ms|s|m|h|;w=[0-9]{1,20})?", fullmatch=True),
    st.sampled_from(["nan", "inf", "-inf", "1e999", "9" * 15, "9" * 400, "0" * 99, "-1", "", "9999-12-31T23:59:59Z"]),
)
BODIES = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.sampled_from([one.body for one in RECORDED.values()]),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(
                    ["retry_after", "error", "errors", "extensions", "cost", "throttleStatus", "details", "message",
                     "maximumAvailable", "currentlyAvailable", "restoreRate", "code", "type", "retryDelay", "meta"]
                ),
                inner,
                max_size=4,
            ),
        ),
        max_leaves=12,
    ).map(lambda document: json.dumps(document).encode()),
)  # fmt: skip


@given(
    st.sampled_from([0, 200, 302, 403, 429, 503, 529, 999]),
    st.lists(st.tuples(st.one_of(NAMES, st.text(max_size=20)), VALUES), max_size=8),
    BODIES,
)
@example(200, [], b"[" * 100_000)
@example(429, [], b'{"retry_after": ' + b"9" * 100_000 + b"}")
@example(429, [], b'{"retry_after": 1e400}')
def test_no_response_raises_or_leaves_the_bounds(
    status: int, headers: list[tuple[str, str]], body: bytes | None
) -> None:
    advice = read_advice(status, headers, body=body, now=AT)
    assert advice.refused == bool(advice.reason)
    assert advice.retry_after is None or 0 <= advice.retry_after <= MOST_SECONDS
    for quota in advice.quotas:
        assert type(quota) is Quota
        assert quota.reset_after is None or 0 <= quota.reset_after <= MOST_SECONDS
        for number in (quota.limit, quota.remaining, quota.window):
            assert number is None or 0 <= number < 10**16
        assert quota.limit != 0


@pytest.mark.parametrize(
    "headers",
    [
        [(f"X-RateLimit-Limit-{'a' * (place % 16 + 1)}-requests", "1") for place in range(20_000)],
        [("RateLimit", f'"{place}";r=1') for place in range(50_000)],
        [("RateLimit", ",".join(f'"{place}";r=1;pk=:YQ==:' for place in range(3_000)))] * 100,
        [("RateLimit-Policy", ",".join(f'"{place}";q=1' for place in range(4_000)))],
        [("RateLimit-Policy", '"' + "a" * 60_000), ("RateLimit", '"' + "\\" * 60_000)],
        [("RateLimit-Policy", '"a";' * 16_000), ("RateLimit", '"a"' * 20_000)],
        [("RateLimit-Limit", ", ".join(f"{place};w=1" for place in range(6_000)))],
        [("X-RateLimit-Reset", "1h" * 30_000), ("X-RateLimit-Remaining", "9" * 60_000)],
        [("X-RateLimit-Reset", "Tue Feb 16 2021 09:02:42 GMT+0100 (" + "(" * 60_000), ("X-RateLimit-Remaining", "1")],
        [("Retry-After", "Mon, " * 12_000), ("Date", " " * 60_000 + "x")],
        [(f"zendesk-ratelimit-{place}", "total=1; remaining=1; resets=1") for place in range(30_000)],
        [("a" * 100_000, "b" * 100_000)] * 100,
    ],
)
def test_fields_that_are_made_to_be_slow_are_read_in_bounded_time(headers: list[tuple[str, str]]) -> None:
    before = time.process_time()
    advice = read_advice(429, headers, body=b"{" + b'"a":{' * 100_000, now=AT)
    assert len(advice.quotas) <= 64
    assert time.process_time() - before < 2  # tens of milliseconds each; minutes if something is quadratic
