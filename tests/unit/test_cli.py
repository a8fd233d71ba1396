"""The command: what it computes, what it prints, and what it says to a user's mistake."""

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner, Result

import ratebound
from ratebound import Limit, parse_limit, parse_limits
from ratebound.cli import main, saturation
from ratebound.cli.app import app
from ratebound.cli.saturation import (
    first_bindings,
    longest_delay,
    most_in_one_period,
    saturate,
    steady,
    used_up,
    widened,
)
from ratebound.cli.traffic import SHOWN, Event, bursty, busiest, play, standing_at, variants
from ratebound.cli.words import duration, number, per_time, period_name, short
from ratebound.kernels.group_law import evaluate
from ratebound.limit import ALGORITHMS, UNITS, Algorithm
from ratebound.outcome import Row

SECOND = UNITS["second"]
DEMO = parse_limit("10/second burst 5")


def run(*arguments: str, width: int = 80) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": str(width)})


def played(limit: Limit = DEMO, periods: int = 4) -> dict[str, list[Event]]:
    arrivals = bursty(limit, periods * limit.period_us)
    return {algorithm: play(variant, arrivals) for algorithm, variant in variants(limit).items()}


def most(events: list[Event], period: int) -> int:
    return busiest(sorted(event.goes for event in events if event.allowed), period)[0]


# The traffic of the demo.


def test_the_demo_shows_every_algorithm() -> None:
    assert sorted(SHOWN) == sorted(ALGORITHMS)


@pytest.mark.parametrize("text", ["10/second burst 5", "3/minute", "100/500ms burst 20", "1/day"])
def test_the_fixed_window_lets_two_counts_through_around_a_boundary(text: str) -> None:
    limit = parse_limit(text)
    assert most(played(limit)["fixed-window"], limit.period_us) == 2 * limit.count


@pytest.mark.parametrize("text", ["10/second burst 5", "3/minute", "100/500ms burst 20", "7/second burst 30"])
@pytest.mark.parametrize("algorithm", ["sliding-log", "leaky-bucket"])
def test_the_exact_algorithms_never_let_more_than_the_count_go_ahead_in_a_period(
    text: str, algorithm: Algorithm
) -> None:
    limit = parse_limit(text)
    assert most(played(limit, periods=8)[algorithm], limit.period_us) <= limit.count


def test_a_token_bucket_lets_more_than_the_count_through_but_never_burst_and_rate_together() -> None:
    busiest_second = most(played()["token-bucket"], SECOND)
    assert DEMO.count < busiest_second < DEMO.burst + DEMO.count


def test_the_leaky_bucket_admits_what_the_token_bucket_admits_but_later_and_evenly() -> None:
    found = played()
    assert [e.allowed for e in found["leaky-bucket"]] == [e.allowed for e in found["token-bucket"]]
    goes = [event.goes for event in found["leaky-bucket"] if event.allowed]
    assert min(after - before for before, after in pairwise(goes)) >= SECOND // DEMO.count
    assert max(event.goes - event.arrives for event in found["leaky-bucket"]) > 0
    assert all(event.goes == event.arrives for event in found["token-bucket"])


def test_the_busiest_period_is_half_open() -> None:
    assert busiest([0, 1, 9, 10], 10) == (3, 0)
    assert busiest([0, 5, 11, 12, 14], 10) == (4, 5)
    assert busiest([], 10) == (0, 0)


def test_the_standing_between_two_events_is_that_of_the_earlier() -> None:
    limit = parse_limit("10/second fixed-window")
    events = play(limit, [100, 200])
    assert standing_at(limit, events, 99) == (10, 0)
    assert standing_at(limit, events, 150) == (9, SECOND - 150)
    assert standing_at(limit, events, 200) == (8, SECOND - 200)


# The client that is always asking.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_taking_all_at_once_gives_what_asking_one_by_one_gives(algorithm: Algorithm) -> None:
    limit = Limit(7, SECOND, algorithm=algorithm)
    one_by_one = sum(
        event.allowed for event in play(limit, [i for now in range(0, 3 * SECOND, 2_000) for i in [now] * 8])
    )
    assert abs(saturate((limit,), 3 * SECOND)[-1].total - one_by_one) <= 1


@pytest.mark.parametrize("algorithm", ["token-bucket", "gcra", "leaky-bucket"])
def test_a_widened_bucket_gives_what_the_narrow_one_gives(algorithm: Algorithm) -> None:
    limit = Limit(1000, SECOND, 1, algorithm)
    assert widened(limit, 10_000) != limit
    for span in (10_000, 123_457, SECOND):
        narrow = sum(event.allowed for event in play(limit, range(0, span, 1_000)))
        assert saturate((limit,), span)[-1].total == narrow


def test_which_limit_binds_when() -> None:
    limits = parse_limits("10/second burst 20; 500/hour")
    at_once, later = first_bindings(limits)
    assert (at_once.now, at_once.total, at_once.binding) == (0, 20, 0)
    assert later.binding == 1
    assert later.total == 500
    assert abs(later.now - 48 * SECOND) < 10_000


def test_a_limit_that_never_binds_is_left_out() -> None:
    assert [look.binding for look in first_bindings(parse_limits("1/second burst 1; 1000/minute"))] == [0]


@pytest.mark.parametrize(
    ("text", "in_any_period"),
    [
        ("10/second burst 20", 29),
        ("10/second fixed-window", 20),
        ("10/second sliding-log", 10),
        ("500/hour sliding-counter", 998),
        ("1000/second burst 1", 1000),
    ],
)
def test_the_most_in_any_period_is_that_of_the_worst_instant(text: str, in_any_period: int) -> None:
    assert most_in_one_period(parse_limit(text)) == in_any_period


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_client_that_is_always_asking_gets_the_rate(algorithm: Algorithm) -> None:
    limit = Limit(50, UNITS["minute"], algorithm=algorithm)
    passed, span = steady((limit,))
    assert 49 <= passed * limit.period_us / span <= 50


def test_a_leaky_bucket_holds_the_last_of_its_queue_back_for_longest() -> None:
    assert longest_delay(parse_limit("10/second burst 5 leaky-bucket")) == 400_000
    assert longest_delay(parse_limit("10/second burst 1 leaky-bucket")) == 0
    assert used_up(parse_limit("10/second burst 5 leaky-bucket")) == (5, 500_000)


@pytest.mark.parametrize(("text", "at_once"), [("10/second burst 20", 20), ("1/year", 1), ("1/microsecond", 1)])
def test_what_passes_at_once_is_the_burst(text: str, at_once: int) -> None:
    assert used_up(parse_limit(text))[0] == at_once


def test_above_a_unit_a_microsecond_more_than_the_burst_passes_in_one() -> None:
    limit = parse_limit("10000000/second burst 1")
    one_by_one = sum(event.allowed for event in play(limit, [0] * 30))
    assert used_up(limit)[0] == one_by_one == 10


# Words.


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0 s"),
        (1, "1 µs"),
        (142_857, "143 ms"),
        (999_999, "1 s"),
        (999_400, "999 ms"),
        (48 * SECOND, "48 s"),
        (3607 * SECOND, "1 h"),
        (5400 * SECOND, "1 h 30 min"),
        (2 * UNITS["day"], "2 days"),
        (UNITS["year"] + UNITS["day"], "1 year 1 day"),
    ],
)
def test_a_duration_reads_as_one_says_it(microseconds: int, text: str) -> None:
    assert duration(microseconds) == text


def test_numbers_and_rates_read_as_one_says_them() -> None:
    assert (number(1_000_000), number(8.3333), number(20)) == ("1,000,000", "8.33", "20")
    assert (short(1500), short(10**12), short(7)) == ("1.5k", "1T", "7")
    assert per_time(10, SECOND) == "600 a minute"
    assert per_time(5, UNITS["hour"]) == "5 an hour"
    assert per_time(1, 10 * UNITS["year"]) == "0.1 a year"
    assert (period_name(SECOND), period_name(900 * SECOND)) == ("second", "15 minutes")


# What is printed.


def test_explain_tells_what_binds_when() -> None:
    result = run("explain", "10/second burst 20; 500/hour")
    assert result.exit_code == 0
    assert "20 have passed, '10/second burst 20' says wait" in result.stdout
    assert "after 48 s       500 have passed, '500/hour' says wait" in result.stdout
    assert "600 a minute" in result.stdout
    assert "█" in result.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10/second fixed-window", "up to 20: one count just before a boundary of the clock"),
        ("5/minute", "never more than 5 in any minute"),
        ("500/hour", "by its own estimate"),
        ("10/second burst 5 leaky-bucket", "400 ms, the longest delay there is"),
        ("10/second gcra", "A bucket of 10"),
        ("10/second burst 20; 1000000/second", "'1000000/second' does not bind"),
    ],
)
def test_explain_says_what_each_algorithm_promises(text: str, words: str) -> None:
    result = run("explain", text, width=100)
    assert result.exit_code == 0
    assert words in result.stdout


def test_explain_takes_a_default_algorithm() -> None:
    assert "aligned to the clock" in run("explain", "5/minute", "--default-algorithm", "fixed-window").stdout


@pytest.mark.parametrize(
    "text",
    [
        "1/year",
        "1/10 years; 1/microsecond",
        "1000000000000/second",
        "1000000000000/second burst 1; 1000000000000/year",
        "1000000000000/second; 5/year",
        "10000/second sliding-log; 5000/minute burst 1; 1000000/day",
        "1/10 years burst 10",
    ],
)
def test_explain_asks_the_kernels_a_bounded_number_of_times(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(*args: Any) -> list[Row]:
        asked.append(1)
        return evaluate(*args)

    monkeypatch.setattr(saturation, "evaluate", counted)
    assert run("explain", text).exit_code == 0
    assert 0 < len(asked) < 100_000


@pytest.mark.parametrize("width", [30, 40, 75, 76, 80, 120])
@pytest.mark.parametrize("arguments", [("demo",), ("explain", "10/second burst 20; 500/hour"), ("explain", "1/year")])
def test_piped_output_fits_the_width_and_has_no_colours(arguments: tuple[str, ...], width: int) -> None:
    result = run(*arguments, width=width)
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= width
    assert all(line == line.rstrip() for line in result.stdout.splitlines() if "│" not in line)


def test_the_demo_has_a_row_and_a_line_of_the_table_for_each_algorithm() -> None:
    lines = run("demo").stdout.splitlines()
    for algorithm in ALGORITHMS:
        assert sum(line.startswith(f"{algorithm} ") and "│" in line for line in lines) == 1
    assert "fixed-window        51        37      14                  20              -" in lines


def test_the_demo_is_the_same_on_every_run() -> None:
    assert run("demo").stdout == run("demo").stdout


def test_the_demo_plays_another_limit_for_another_time() -> None:
    result = run("demo", "4/minute burst 3", "--seconds", "150")
    assert result.exit_code == 0
    assert "against 4 per minute, burst 3" in result.stdout
    assert "2 min" in result.stdout
    assert "3 min" not in result.stdout


def test_the_demo_claims_no_boundary_burst_that_was_not_played() -> None:
    assert "around 1 s" in run("demo").stdout
    assert "around 1 s" not in run("demo", "--seconds", "1").stdout


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("explain", "10/fortnight"), "cannot read limit '10/fortnight'"),
        (("explain", "5/minute; 50/minute"), "would share one count"),
        (("explain", "5/minute", "--default-algorithm", "magic"), "unknown algorithm 'magic'"),
        (("demo", "nonsense"), "cannot read limit"),
        (("demo", "5/minute; 50/hour"), "the demo takes one limit"),
        (("demo", "2000/second"), "choose a count up to 1000"),
        (("demo", "--seconds", "0.5"), "--seconds must be from one period to 12"),
        (("demo", "--seconds", "nan"), "--seconds must be"),
    ],
)
def test_a_mistake_goes_to_stderr_as_the_message_alone_with_status_2(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert "Usage" not in result.stderr
    assert result.stdout == ""


def test_an_unknown_command_or_a_missing_limit_has_status_2() -> None:
    assert run("explian").exit_code == 2
    assert run("explain").exit_code == 2


def test_the_version_is_that_of_the_package_and_says_whether_it_is_compiled() -> None:
    build = "compiled" if ratebound.compiled else "pure Python"
    assert run("--version").stdout == f"ratebound {ratebound.__version__} ({build})\n"


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_click_or_rich_the_command_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in list(sys.modules):
        if name.startswith("ratebound.cli.") or name.partition(".")[0] == missing:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == ('click and rich are not installed. Run: pip install "ratebound[cli]"\n')


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "ratebound.cli", "explain", "10/fortnight"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("cannot read limit '10/fortnight'")
