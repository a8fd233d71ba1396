"""Text in, limits out: what is read, how it is printed, and what a mistake is told."""

import tracemalloc

import limits as peer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import InvalidLimit, Limit, parse_limit, parse_limits
from ratebound.limit import ALGORITHMS, MAX_COUNT, MAX_PERIOD, UNITS
from tests.property.strategies import limits

SECOND, MINUTE, HOUR, DAY = (UNITS[unit] for unit in ("second", "minute", "hour", "day"))


@pytest.mark.parametrize(
    ("text", "count", "period", "burst", "algorithm", "name"),
    [
        ("100/minute", 100, MINUTE, 100, "sliding-log", "100/minute"),
        ("101/minute", 101, MINUTE, 101, "sliding-counter", "101/minute"),
        ("100 per minute", 100, MINUTE, 100, "sliding-log", "100/minute"),
        ("10/second burst 20", 10, SECOND, 20, "token-bucket", "10/second burst 20"),
        ("10/second gcra burst 20", 10, SECOND, 20, "gcra", "10/second burst 20 gcra"),
        ("10/second leaky-bucket", 10, SECOND, 10, "leaky-bucket", "10/second leaky-bucket"),
        ("5/15 minutes sliding-log", 5, 15 * MINUTE, 5, "sliding-log", "5/15 minutes"),
        ("200/500ms", 200, SECOND // 2, 200, "sliding-counter", "200/500 milliseconds"),
        ("1000/day as daily", 1000, DAY, 1000, "sliding-counter", "daily"),
        ("1/week", 1, 7 * DAY, 1, "sliding-log", "1/week"),
        ("1/month", 1, 30 * DAY, 1, "sliding-log", "1/month"),
        ("1/year", 1, 365 * DAY, 1, "sliding-log", "1/year"),
        ("  7  PER  2  Hours  Fixed-Window  ", 7, 2 * HOUR, 7, "fixed-window", "7/2 hours fixed-window"),
        ("5/s as api/v1:read_all.x", 5, SECOND, 5, "sliding-log", "api/v1:read_all.x"),
        ("20000/hour sliding-log large", 20_000, HOUR, 20_000, "sliding-log", "20000/hour sliding-log large"),
        ("007/minute", 7, MINUTE, 7, "sliding-log", "7/minute"),
    ],
)
def test_the_grammar_is_read(text: str, count: int, period: int, burst: int, algorithm: str, name: str) -> None:
    limit = parse_limit(text)
    assert (limit.count, limit.period_us, limit.burst) == (count, period, burst)
    assert (limit.algorithm, limit.name) == (algorithm, name)


@pytest.mark.parametrize("unit", ["us", "ms", "s", "sec", "m", "min", "h", "hr", "d", "w", "mo", "y", "yr"])
def test_short_units_are_read(unit: str) -> None:
    assert parse_limit(f"3/{unit}").count == 3
    assert parse_limit(f"3/2{unit.upper()}").period_us == 2 * parse_limit(f"3/{unit}").period_us


def test_several_limits_stand_in_one_text() -> None:
    for text in ("10/second; 500/hour", "10/second, 500/hour", "10/second|500/hour"):
        assert [str(limit) for limit in parse_limits(text)] == ["10/second", "500/hour"]


@given(limits())
def test_printing_and_parsing_round_trip(limit: Limit) -> None:
    assert parse_limit(str(limit)) == limit
    named = Limit(limit.count, limit.period_us, limit.burst, limit.algorithm, "a.name:1/x_-", large=True)
    assert parse_limit(str(named)) == named
    assert parse_limits(f"{limit}; {named}") == [limit, named]


WORDS = st.sampled_from(["/", " / ", "per", " per ", " PER ", "PER"])
PEER_UNITS = st.sampled_from(["second", "minute", "hour", "day", "month", "year"])


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), WORDS, st.one_of(st.none(), st.integers(1, 9)), PEER_UNITS, st.booleans()),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([";", ", ", " | "]),
)
def test_whatever_limits_reads_has_the_same_count_and_period_here(
    parts: list[tuple[int, str, int | None, str, bool]], separator: str
) -> None:
    text = separator.join(
        f"{count}{word}{'' if multiple is None else multiple}{unit}{'s' * plural}"
        for count, word, multiple, unit, plural in parts
    )
    ours, theirs = parse_limits(text), peer.parse_many(text)
    assert [limit.count for limit in ours] == [item.amount for item in theirs]
    for limit, item in zip(ours, theirs, strict=True):
        days = 365 / 360 if item.GRANULARITY.name == "year" else 1  # their year has 360 days: the one difference
        assert limit.period_us == item.get_expiry() * SECOND * days


BAD = {
    "": "count",
    "   ": "count",
    "ten/minute": "count",
    "10": "'/' or 'per'",
    "10 minute": "'/' or 'per'",
    "10/": "unit",
    "10//minute": "unit",
    "0/minute": "zero",
    "000/minute": "zero",
    "10/0 minutes": "zero",
    "10/minute burst 0": "zero",
    "-5/minute": "count",
    "5.5/minute": "'/' or 'per'",
    "1e3/minute": "'/' or 'per'",
    "1_000/minute": "'/' or 'per'",
    "+5/minute": "count",
    "5 per fortnight": "unknown unit 'fortnight'",
    "5/minuts": "did you mean 'minute",
    "10/minute burts 5": "did you mean 'burst'",
    "10/minute slidingwindow": "unknown word",
    "10/minute sliding-window": "did you mean 'sliding-log'",
    "10/minute moving-window": "did you mean 'sliding-log'",
    "10/minute burst": "after 'burst'",
    "10/minute burst x": "after 'burst'",
    "10/minute burst 5 fixed-window": "has no burst",
    "10/minute burst 5 sliding-log": "has no burst",
    "10/minute burst 5 burst 6": "twice",
    "10/minute gcra gcra": "twice",
    "10/minute as": "name",
    "10/minute as -x": "name",
    "10/minute as " + "x" * 65: "unknown word",
    "10/minute as a b": "unknown word 'b'",
    "10/minute;": "count",
    ";10/minute": "count",
    "10/minute;;5/hour": "count",
    "10/minute & 5/hour": "unknown word '&'",
    "٣/minute": "digits 0 to 9",
    "１０/minute": "digits 0 to 9",
    "10/٣ minutes": "digits 0 to 9",
    "²/minute": "digits 0 to 9",
    "10/minute burst ５": "digits 0 to 9",
    "10/minute\0": "unknown word",
    "9999999999999999999999/minute": "too large",
    f"{MAX_COUNT + 1}/minute": "count must be",
    "10/99 years": "period must be",
    "1/year burst 101": "100 years",
    "10001/hour sliding-log": "sliding-log large",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_text_is_told_what_is_wrong_and_where(text: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        parse_limits(text)
    message = str(caught.value)
    assert BAD[text] in message
    assert repr(text)[:60] in message
    assert "at position" in message
    assert "^" in message
    assert "'100/minute'" in message  # an example that works


def test_the_place_is_that_of_the_mistake() -> None:
    with pytest.raises(InvalidLimit, match="at position 15\n.*\n {19}\\^{9}\n"):
        parse_limits("10/minute; 5 / fortnight as x")


@pytest.mark.parametrize(
    "text", ["1" * 10_000_000, " " * 10_000_000, "10/minute;" * 1_000_000, "a" * 4096, "1;" * 2000]
)
def test_a_text_of_ten_megabytes_is_refused_without_reading_it(text: str) -> None:
    tracemalloc.start()
    with pytest.raises(InvalidLimit) as caught:
        parse_limits(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert len(str(caught.value)) < 1_000


@given(st.one_of(st.text(max_size=60), st.text("0123456789/;,| permsinutdayhourbst-\t\n", max_size=60)))
def test_any_text_is_a_limit_or_invalid_limit(text: str) -> None:
    try:
        found = parse_limits(text)
    except InvalidLimit:
        return
    assert parse_limits("; ".join(map(str, found))) == found


def test_what_is_not_text_is_refused() -> None:
    for thing in (None, 5, b"10/minute", ["10/minute"]):
        with pytest.raises(InvalidLimit, match="not text"):
            parse_limits(thing)  # type: ignore[arg-type]


def test_one_limit_is_one_limit() -> None:
    with pytest.raises(InvalidLimit, match="expected one limit, found 2"):
        parse_limit("1/second; 2/minute")


def test_the_default_algorithm_can_be_chosen() -> None:
    assert parse_limit("5/minute", default="fixed-window").algorithm == "fixed-window"
    assert parse_limit("5/minute burst 9", default="fixed-window").algorithm == "token-bucket"
    assert parse_limit("5/minute gcra", default="fixed-window").algorithm == "gcra"
    with pytest.raises(InvalidLimit, match="unknown algorithm 'sliding'"):
        parse_limit("5/minute", default="sliding")


@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "1", None, MAX_COUNT + 1])
def test_a_limit_made_of_bad_numbers_is_refused(bad: object) -> None:
    with pytest.raises(InvalidLimit, match="count must be a whole number"):
        Limit(bad, SECOND)  # type: ignore[arg-type]
    with pytest.raises(InvalidLimit, match="period must be a whole number of microseconds"):
        Limit(5, MAX_PERIOD + 1 if bad == MAX_COUNT + 1 else bad)  # type: ignore[arg-type]
    if bad != 0:
        with pytest.raises(InvalidLimit, match="burst must be a whole number"):
            Limit(5, SECOND, bad)  # type: ignore[arg-type]


def test_an_unknown_algorithm_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidLimit) as caught:
        Limit(5, SECOND, algorithm="window")
    assert all(name in str(caught.value) for name in ALGORITHMS)


def test_a_name_cannot_hold_what_would_break_a_header_or_a_key() -> None:
    for name in ("a b", "a;b", 'a"b', "é", "a\n", "-a", "x" * 65):
        with pytest.raises(InvalidLimit, match="name"):
            Limit(5, SECOND, name=name)
