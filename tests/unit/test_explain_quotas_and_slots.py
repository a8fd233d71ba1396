"""`ratebound explain` and `ratebound demo` have an answer for every limit that can be written."""

import io
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ratebound import InvalidLimit, Limit, parse_limits
from ratebound.calendar_period import LENGTHS, Calendar
from ratebound.cli.app import app
from ratebound.cli.explain import explain_limits
from ratebound.clock import SECOND
from ratebound.limit import MAX_LEASE, MAX_SLOTS, Over, limit_set
from tests.policy_cli.commands import run as run_policy
from tests.policy_cli.commands import written
from tests.property.strategies import COUNTS, PERIODS, limits

NOW = 1_700_000_000 * SECOND  # 2023-11-14T22:13:20Z
FAR = 253_000_000_000 * SECOND  # of the year 9987


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})


def explained(text: str, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    explain_limits(limit_set(parse_limits(text)), console, now=NOW)
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def test_a_calendar_quota_says_when_it_begins_anew() -> None:
    told = explained("10000/calendar-month in Europe/Berlin")
    assert "Counts to 10,000 in each calendar month of Europe/Berlin" in told
    assert "2023-12-01 00:00 in Europe/Berlin, in 16 days" in told
    assert "then 2024-01-01 00:00" in told
    assert "up to 20,000: one count just before the end of a month, one just after" in told


@pytest.mark.parametrize(
    ("text", "first", "then"),
    [
        ("5/calendar-month from 31", "2023-11-30 00:00 in UTC", "then 2023-12-31 00:00"),
        ("5/calendar-week from sunday", "2023-11-19 00:00 in UTC", "then 2023-11-26 00:00"),
        ("5/calendar-day in Asia/Tokyo", "2023-11-16 00:00 in Asia/Tokyo", "then 2023-11-17 00:00"),
        ("5/calendar-year", "2024-01-01 00:00 in UTC", "then 2025-01-01 00:00"),
    ],
)
def test_the_next_window_is_that_of_the_calendar(text: str, first: str, then: str) -> None:
    told = explained(text)
    assert first in told
    assert then in told


@pytest.mark.parametrize("text", ["10000/calendar-month over allow", "1000/day fixed-window over allow"])
def test_metering_is_said_to_deny_nothing(text: str) -> None:
    told = explained(text)
    assert "Denies nothing." in told
    assert "decision.overage" in told
    assert "█" not in told


def test_a_slot_says_what_its_lease_is_and_that_it_has_no_rate() -> None:
    told = explained("3 concurrent for 10 minutes")
    assert "At most 3 requests at the same time" in told
    assert "10 min" in told
    assert "renewed" in told
    assert "depends on how long requests take" in told
    assert "█" not in told


def test_the_picture_is_of_the_limits_that_hold_a_client_back() -> None:
    told = explained("3 concurrent; 10/second burst 20; 10000/calendar-month over allow; 500/calendar-day")
    assert "'10/second burst 20' says wait" in told
    assert "500 have passed, '500/calendar-day' says wait" in told
    assert "at any time at most 3 by '3 concurrent'" in told
    assert "'10000/calendar-month over allow' denies nothing" in told
    assert "binds 222" in told
    assert "444" in told, "the places of the limits as they are numbered above"


def test_the_command_explains_them() -> None:
    result = run("explain", "10000/calendar-month in Europe/Berlin; 3 concurrent for 10 minutes")
    assert result.exit_code == 0, result.output
    assert "Europe/Berlin" in result.output


@pytest.mark.parametrize("text", ["10/calendar-day", "3 concurrent", "10/day fixed-window over allow"])
def test_the_demo_plays_rates_only_and_says_so(text: str) -> None:
    result = run("demo", text)
    assert result.exit_code == 2
    assert "10/second burst 5" in result.output
    assert "ratebound explain" in result.output
    assert "Traceback" not in result.output


ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Australia/Lord_Howe")
BEGINS = {"week": 7, "month": 31}


@st.composite
def quotas(draw: st.DrawFn) -> Limit:
    over = draw(st.sampled_from(get_args(Over)))
    if draw(st.booleans()):
        unit = draw(st.sampled_from(sorted(LENGTHS)))
        calendar = Calendar(unit, draw(st.sampled_from(ZONES)), draw(st.integers(1, BEGINS.get(unit, 1))))
        return Limit(draw(COUNTS), calendar=calendar, over=over)
    return Limit(draw(COUNTS), draw(PERIODS), algorithm="fixed-window", over=over)


SLOTS = st.builds(
    lambda count, lease: Limit(count, lease, algorithm="concurrent"),
    st.integers(1, MAX_SLOTS),
    st.integers(SECOND, MAX_LEASE),
)


@settings(max_examples=max(settings().max_examples // 3, 1))
@given(
    chosen=st.lists(st.one_of(limits(), quotas(), SLOTS), min_size=1, max_size=3),
    now=st.integers(0, FAR),
    width=st.sampled_from([24, 60, 100]),
)
def test_every_limit_can_be_explained(chosen: list[Limit], now: int, width: int) -> None:
    try:
        together = limit_set(chosen)
    except InvalidLimit:  # two that share a state
        return
    console = Console(file=io.StringIO(), width=width)
    explain_limits(together, console, now=now)
    assert isinstance(console.file, io.StringIO)
    told = console.file.getvalue()
    assert str(together[0]).split(maxsplit=1)[0] in told


# ratebound policy explain

POLICY = """
rules:
  - {name: exports, match: {paths: /export}, limits: 2 concurrent for 10 minutes, retry: 5 seconds}
  - {name: calls, match: {paths: /call}, limits: 10/calendar-month in Europe/Berlin}
  - {name: meter, match: {paths: /meter}, limits: 10/calendar-month, over: allow}
  - {name: all, match: {paths: /all}, limits: 10/calendar-month; 10/minute; 2 concurrent, cost: 5}
"""


@pytest.fixture
def policy_file(tmp_path: Path) -> str:
    return written(tmp_path, POLICY)


def test_a_rule_of_slots_is_explained_with_its_rejection(policy_file: str) -> None:
    told = run_policy("explain", policy_file, "--path", "/export").stdout
    assert 'RateLimit-Policy: "exports/concurrent";q=2;qu="concurrent-requests"' in told
    assert "denied, once the limit is used up: 429" in told
    assert "Retry-After: 5" in told
    assert "at the same time" in told


def test_a_rule_of_a_quota_is_explained_with_its_rejection(policy_file: str) -> None:
    told = run_policy("explain", policy_file, "--path", "/call").stdout
    assert 'RateLimit-Policy: "calls/calendar-month";q=10' in told
    assert "denied, once the limit is used up: 429" in told
    assert "The quota of this calendar month is used up" in told


def test_a_metered_rule_is_explained_without_a_rejection(policy_file: str) -> None:
    told = run_policy("explain", policy_file, "--path", "/meter").stdout
    assert "10/calendar-month over allow" in told
    assert "denied" not in told
    assert "metered" in told


def test_a_rule_of_all_kinds_is_explained(policy_file: str) -> None:
    told = run_policy("explain", policy_file, "--path", "/all").stdout
    assert "denied, once the limit is used up: 429" in told
    assert '"violated-policies":["all/calendar-month","all/minute"]' in told
