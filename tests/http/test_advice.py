"""What servers say about their limits is read in every style that is out there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import Decision
from ratebound.http import Headers, Quota, parse_rate_limit, parse_retry_after
from ratebound.http.headers import Style
from tests.http.test_headers import NOW, decisions

START = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "quotas"),
    [
        ({"RateLimit": '"default";r=50;t=30'}, [Quota("default", None, 50, None, 30.0)]),
        ({"ratelimit": '"default";r=50'}, [Quota("default", None, 50)]),
        (
            {"RateLimit-Policy": '"burst";q=100;w=60,"daily";q=1000;w=86400', "RateLimit": '"daily";r=7;t=9'},
            [Quota("daily", 1000, 7, 86400, 9.0), Quota("burst", 100, None, 60)],
        ),
        (
            {"RateLimit-Policy": '"p";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:'},
            [Quota("p", 65535, None, 10, None, "content-bytes", b"\xb1\xd7\xe3,\x95\x0e\x50")],
        ),
        ({"RateLimit-Policy": '"p";q=5;qu="request"'}, [Quota("p", 5)]),
        ({"RateLimit": "default;a=50;w=30;c=3"}, [Quota("default", None, 50, None, 30.0)]),
        ({"RateLimit": '"x";r=1;acme-burst=5;t=2'}, [Quota("x", None, 1, None, 2.0)]),
        (
            {"RateLimit": "limit=100, remaining=50, reset=5", "RateLimit-Policy": "10;w=1, 100;w=10"},
            [Quota("100;w=10", 100, 50, 10, 5.0), Quota("10;w=1", 10, None, 1)],
        ),
        (
            {"RateLimit-Limit": "100, 100;w=60", "RateLimit-Remaining": "50", "RateLimit-Reset": "50"},
            [Quota("", 100, 50, 60, 50.0)],
        ),
        (
            {"RateLimit-Policy": "100;w=60", "RateLimit-Limit": "100", "RateLimit-Remaining": "5"},
            [Quota("", 100, 5, 60)],
        ),
        (
            {"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "4999", "X-RateLimit-Reset": "1700000060"},
            [Quota("", 5000, 4999, None, 60.0)],
        ),
        ({"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "1699999999"}, [Quota("", None, 1, None, 0.0)]),
        ({"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "1700000001500"}, [Quota("", None, 1, None, 1.5)]),
        ({"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "2.5"}, [Quota("", None, 1, None, 2.5)]),
        ({"X-Rate-Limit-Limit": "15", "X-Rate-Limit-Reset": "9"}, [Quota("", 15, None, None, 9.0)]),
        (
            {
                "X-RateLimit-Limit-Minute": "10",
                "X-RateLimit-Remaining-Minute": "9",
                "RateLimit-Limit": "10",
                "RateLimit-Remaining": "9",
                "RateLimit-Reset": "60",
            },
            [Quota("minute", 10, 9, 60, 60.0, kind="window")],
        ),
        (  # as one server sends it: no list at all
            {"ratelimit": '"api";r=495;t=23', "ratelimit-policy": '"fixed window";"api";q=500;w=300'},
            [Quota("api", 500, 495, 300, 23.0, kind="window")],
        ),
        ({"RateLimit": '"a";r=1', "Age": "5"}, []),
        ({"RateLimit": '"a";r=1', "Age": "0"}, [Quota("a", None, 1)]),
        ({"RateLimit": '"a";r=1.5'}, []),
        ({"RateLimit": '"a";r=-1'}, []),
        ({"RateLimit": '"a";t=5'}, []),
        ({"RateLimit": '"a;r=5'}, []),
        ({"RateLimit": "quota;t=1"}, []),
        ({"X-RateLimit-Remaining": "１２"}, []),
        ({"X-RateLimit-Remaining": "1" * 16}, []),
        ({}, []),
    ],
)
def test_every_style_is_read(headers: dict[str, str], quotas: list[Quota]) -> None:
    assert parse_rate_limit(list(headers.items()), now=START) == quotas


def test_a_field_may_come_in_several_lines() -> None:
    lines = [("RateLimit", '"a";r=1'), ("ratelimit", '"b";r=2')]
    assert [quota.name for quota in parse_rate_limit(lines)] == ["a", "b"]


def test_partitions_of_one_policy_are_kept_apart() -> None:
    lines = [("RateLimit", '"a";r=1;pk=:YQ==:, "a";r=2;pk=:Yg==:'), ("RateLimit-Policy", '"a";q=9;w=60')]
    assert parse_rate_limit(lines) == [Quota("a", 9, 1, 60, partition=b"a"), Quota("a", 9, 2, 60, partition=b"b")]


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "5"}, 5.0),
        ({"retry-after": "0"}, 0.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": " 5\t"}, 5.0),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:30 GMT"}, 10.0),
        ({"Retry-After": "Tuesday, 14-Nov-23 22:13:30 GMT"}, 10.0),
        ({"Retry-After": "Tue Nov 14 22:13:30 2023"}, 10.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
        ({"Retry-After": "Tue, 14 Nov 2023 23:13:30 GMT", "Date": "Tue, 14 Nov 2023 23:13:00 GMT"}, 30.0),
        ({"Retry-After": "9", "Retry-After-Ms": "250"}, 0.25),
        ({"Retry-After": "9", "x-ms-retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "9", "Retry-After-Ms": "soon"}, 9.0),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "+5"}, None),
        ({"Retry-After": "1_000"}, None),
        ({"Retry-After": "１２"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "1e3"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "1" * 16}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "Tue, 99 Nov 2023 22:13:30 GMT"}, None),
        ({}, None),
    ],
)
def test_a_wait_is_read_in_every_form(headers: dict[str, str], wait: float | None) -> None:
    assert parse_retry_after(list(headers.items()), now=START) == wait


NAMES = st.sampled_from(
    ["RateLimit", "RateLimit-Policy", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After",
     "Date", "X-RateLimit-Limit", "X-RateLimit-Reset", "X-RateLimit-Remaining-Day", "Age", "Retry-After-Ms"]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(st.characters(max_codepoint=255), max_size=40),
    st.from_regex(r'("[a-z]"|[a-z]|[0-9]{1,16})(;[a-z]{1,2}=[0-9.]{1,17}){0,3}', fullmatch=True),
    st.from_regex(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{2,5} [0-9:]{2,9} (GMT|[+-][0-9]{4,7})", fullmatch=True),
)


@given(st.lists(st.tuples(NAMES, TEXTS), max_size=6))
def test_any_response_gives_an_answer(headers: list[tuple[str, str]]) -> None:
    for quota in parse_rate_limit(headers, now=START):
        assert quota.reset_after is None or quota.reset_after >= 0
        assert quota.remaining is None or quota.remaining >= 0
    wait = parse_retry_after(headers, now=START)
    assert wait is None or 0 <= wait < 1e16


@given(decisions())
def test_what_we_write_we_read(case: tuple[Decision, list[str]]) -> None:
    decision, _ = case
    now = NOW / 1e6
    every: list[Style] = ["draft-11", "draft-07", "draft-06", "draft-03", "x-ratelimit"]
    for style in every:
        pairs = Headers(style).pairs(decision)
        quotas = parse_rate_limit(pairs, now=now)
        if style == "draft-11":
            read = [(quota.name, quota.limit, quota.remaining) for quota in quotas]
            told = zip(decision.limits, decision.outcomes, strict=True)
            assert read == [(limit.name, limit.burst, outcome.remaining) for limit, outcome in told]
        else:
            told_now = [(q.limit, q.remaining) for q in quotas if q.remaining is not None]
            assert told_now == [(decision.limit.burst, decision.remaining)]
        for how in ("seconds", "date"):
            wait = parse_retry_after(Headers(style, retry_after=how).pairs(decision), now=now)
            if decision.allowed or decision.retry_after is None:
                assert wait is None
            else:
                assert wait is not None
                assert decision.retry_after <= wait + 1e-6 < decision.retry_after + 1.001
