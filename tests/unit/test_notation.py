"""Text in, limits out: what is read, how it is printed, and what a mistake is told."""

import copy
import pickle
import re
import tracemalloc
from dataclasses import replace

import limits as peer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import InvalidLimit, Limit, parse_limit, parse_limits
from ratebound.calendar_period import LENGTHS, Calendar
from ratebound.limit import ALGORITHMS, CALENDAR, CONCURRENT, MAX_COUNT, MAX_PERIOD, UNITS, Algorithm, Over, limit_set
from tests.property.strategies import ALL_KINDS, limits

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
def test_the_grammar_is_read(text: str, count: int, period: int, burst: int, algorithm: Algorithm, name: str) -> None:
    limit = parse_limit(text)
    assert (limit.count, limit.period_us, limit.burst) == (count, period, burst)
    assert (limit.algorithm, limit.name) == (algorithm, name)


@pytest.mark.parametrize("unit", ["us", "ms", "s", "sec", "m", "min", "h", "hr", "d", "w", "mo", "y", "yr"])
def test_short_units_are_read(unit: str) -> None:
    assert parse_limit(f"3/{unit}").count == 3
    assert parse_limit(f"3/2{unit.upper()}").period_us == 2 * parse_limit(f"3/{unit}").period_us


@pytest.mark.parametrize(
    ("text", "calendar", "over", "name"),
    [
        ("10000/calendar-month", Calendar("month"), "deny", "10000/calendar-month"),
        ("10000 per calendar-month", Calendar("month"), "deny", "10000/calendar-month"),
        (
            "5/Calendar-Day IN Europe/Berlin",
            Calendar("day", "Europe/Berlin"),
            "deny",
            "5/calendar-day in Europe/Berlin",
        ),
        (
            "5/calendar-month from 15 in Europe/Berlin",
            Calendar("month", "Europe/Berlin", 15),
            "deny",
            "5/calendar-month in Europe/Berlin from 15",
        ),
        ("5/calendar-month from 031", Calendar("month", begin=31), "deny", "5/calendar-month from 31"),
        ("5/calendar-month from 1 in UTC", Calendar("month"), "deny", "5/calendar-month"),
        ("5/calendar-week from Sunday", Calendar("week", begin=7), "deny", "5/calendar-week from sunday"),
        ("5/calendar-week from monday", Calendar("week"), "deny", "5/calendar-week"),
        ("5/calendar-year over allow", Calendar("year"), "allow", "5/calendar-year over allow"),
        ("5/calendar-year over deny", Calendar("year"), "deny", "5/calendar-year"),
        ("5/calendar-day in Etc/GMT+5 as q", Calendar("day", "Etc/GMT+5"), "deny", "q"),
        ("5/calendar-day in America/Port-au-Prince", Calendar("day", "America/Port-au-Prince"), "deny", None),
        (
            "5/calendar-day in America/Argentina/Buenos_Aires",
            Calendar("day", "America/Argentina/Buenos_Aires"),
            "deny",
            None,
        ),
    ],
)
def test_quotas_are_read(text: str, calendar: Calendar, over: Over, name: str | None) -> None:
    limit = parse_limit(text)
    assert (limit.count, limit.calendar, limit.over) == (int(text.split("/")[0].split()[0]), calendar, over)
    assert (limit.algorithm, limit.period_us) == (CALENDAR, LENGTHS[calendar.unit])
    assert limit.name == (text if name is None else name)
    assert limit.is_quota
    assert limit.metered is (over == "allow")
    assert not limit.has_slots


def test_metered_windows_are_read() -> None:
    limit = parse_limit("5/hour fixed-window over allow")
    assert (limit.algorithm, limit.period_us, limit.over, str(limit)) == (
        "fixed-window",
        HOUR,
        "allow",
        "5/hour fixed-window over allow",
    )
    assert limit.is_quota
    assert parse_limit("5/hour over allow", default="fixed-window") == limit
    assert not parse_limit("5/hour fixed-window over deny").is_quota


@pytest.mark.parametrize(
    ("text", "count", "lease", "shown"),
    [
        ("3 concurrent", 3, MINUTE, "3 concurrent"),
        ("3 CONCURRENT for 1 minute", 3, MINUTE, "3 concurrent"),
        ("3concurrent", 3, MINUTE, "3 concurrent"),
        ("3 concurrent for 10 minutes", 3, 10 * MINUTE, "3 concurrent for 10 minutes"),
        ("3 concurrent for 10min as exports", 3, 10 * MINUTE, "3 concurrent for 10 minutes as exports"),
        ("10000 concurrent for day", 10_000, DAY, "10000 concurrent for 1 day"),
        ("1 concurrent for 1500 ms", 1, 1_500_000, "1 concurrent for 1500 milliseconds"),
    ],
)
def test_slots_are_read(text: str, count: int, lease: int, shown: str) -> None:
    limit = parse_limit(text)
    assert (limit.count, limit.period_us, limit.burst, limit.algorithm) == (count, lease, count, CONCURRENT)
    assert str(limit) == shown
    assert limit.has_slots
    assert not limit.is_quota
    assert not limit.numbers.plain


def test_all_kinds_stand_in_one_text() -> None:
    text = "10/second burst 20; 10000/calendar-month in Europe/Berlin from 15; 3 concurrent for 10 minutes"
    assert "; ".join(map(str, parse_limits(text))) == text


@pytest.mark.parametrize(
    ("one", "other", "is_shared"),
    [
        ("5/calendar-month", "9/calendar-month in Asia/Tokyo from 15 over allow", True),
        ("5/calendar-month", "5/calendar-day", False),
        ("5/calendar-day", "5/day fixed-window over allow", False),
        ("5/day fixed-window", "5/day fixed-window over allow", False),
        ("3 concurrent", "9 concurrent for 1 hour", True),
        ("3 concurrent", "3 concurrent as exports", False),
        ("3 concurrent as calendar", "3/calendar-day as calendar", False),
    ],
)
def test_limits_that_share_a_state_are_refused_on_one_key(one: str, other: str, is_shared: bool) -> None:
    pair = parse_limit(one), parse_limit(other)
    assert (pair[0].scope == pair[1].scope) is is_shared
    if is_shared:
        with pytest.raises(InvalidLimit, match="would share one count"):
            limit_set(pair)
    else:
        assert limit_set(pair) == pair


def test_several_limits_stand_in_one_text() -> None:
    for text in ("10/second; 500/hour", "10/second, 500/hour", "10/second|500/hour"):
        assert [str(limit) for limit in parse_limits(text)] == ["10/second", "500/hour"]


def renamed(limit: Limit, name: str) -> Limit:
    return replace(limit, name=name, large=True)


@given(limits(ALL_KINDS))
def test_printing_and_parsing_round_trip(limit: Limit) -> None:
    assert parse_limit(str(limit)) == limit
    named = renamed(limit, "a.name:1/x_-")
    assert parse_limit(str(named)) == named
    assert parse_limits(f"{limit}; {named}") == [limit, named]


@given(limits(ALL_KINDS))
def test_a_limit_is_a_value(limit: Limit) -> None:
    for each in (limit, renamed(limit, "named")):
        for same in (copy.copy(each), copy.deepcopy(each), pickle.loads(pickle.dumps(each))):
            assert (same, hash(same), repr(same), str(same)) == (each, hash(each), repr(each), str(each))
            assert (same.scope, same.numbers.plain, same.numbers.metered) == (
                each.scope,
                each.numbers.plain,
                each.metered,
            )
            assert (same.numbers.windows is None) is (not each.is_quota)
    assert limit != renamed(limit, "other")


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
    "5.5/minute": "numbers are whole: write '1/2 seconds' for 0.5 per second",
    "0.5/second": "numbers are whole: write '1/2 seconds' for 0.5 per second",
    "1/0.5 seconds": "numbers are whole: write '1/2 seconds' for 0.5 per second, and '500ms' for 0.5 seconds",
    "10/1.5m": "numbers are whole",
    "10/minute burst 2.5": "numbers are whole",
    "1e3/minute": "'/' or 'per'",
    "1_000/minute": "write the count without separators: '1000'",
    "10,000,000/minute": "write the count without separators: '10000000'",
    "10 MB/minute": "limits count units: write '10000000/…', and 'charge: bytes' in the rule",
    "3KiB per second": "limits count units: write '3072/…', and 'charge: bytes' in the rule",
    "999999999999999 gigabytes/day": "'/' or 'per'",
    "5 minutes": "expected '/' or 'per' between the count and 'minutes'",
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


BAD_QUOTAS_AND_SLOTS = {
    "0/calendar-month": "zero",
    "5/calendar": "expected calendar-day, calendar-week, calendar-month or calendar-year",
    "5/calendar-months": "did you mean 'calendar-month'",
    "5/calender-month": "did you mean 'calendar-month'",
    "5/calendar-hour": "expected calendar-day, calendar-week, calendar-month or calendar-year",
    "5/calendar month": "unknown unit 'calendar': expected calendar-day, calendar-week, calendar-month",
    "5/2 calendar-month": "a calendar period takes no number",
    "5/1 calendar-month": "a calendar period takes no number",
    "5/calendar-month in": "a time zone, like Europe/Berlin",
    "5/calendar-month in 5": "a time zone, like Europe/Berlin",
    "5/calendar-month in Europe/Atlantis": "unknown time zone 'Europe/Atlantis'",
    "5/calendar-month in Europe": "unknown time zone 'Europe'",
    "5/calendar-month in Europe/Berln": "time zone 'Europe/Berln': did you mean 'Europe/Berlin'?, at position 20",
    "5/calendar-month in europe/berlin as x": "unknown time zone 'europe/berlin': did you mean 'Europe/Berlin'?",
    "5/calendar-month in New_York": "unknown time zone 'New_York': did you mean 'America/New_York'?",
    "5/calendar-month in ../../etc/passwd": "a time zone, like Europe/Berlin",
    "5/calendar-month in UTC in UTC": "in is given twice",
    "5/calendar-month from": "a day of the month or a weekday after 'from'",
    "5/calendar-month from 0": "a day cannot be zero",
    "5/calendar-month from 32": "begins on a day from 1 to 31, not 32",
    "5/calendar-month from -1": "a day of the month or a weekday after 'from'",
    "5/calendar-month from 1 from 2": "from is given twice",
    "5/calendar-month from monday": "a calendar month takes a day of the month, like 'from 15'",
    "5/calendar-week from 1": "a calendar week takes a weekday, like 'from monday'",
    "5/calendar-week from mondays": "a day of the month or a weekday after 'from': did you mean 'monday'?",
    "5/calendar-week from wed": "a day of the month or a weekday after 'from': did you mean 'wednesday'?",
    "5/calendar-month from first": "a day of the month or a weekday after 'from', like 'from 15' or 'from monday'",
    "5/calendar-day from 1": "a calendar day takes no 'from'",
    "5/calendar-year from 1": "a calendar year takes no 'from'",
    "5/calendar-year from sunday": "a calendar year takes no 'from'",
    "5/calendar-month burst 9": "unknown word 'burst': it belongs to rates, like '10/second burst 20'",
    "5/calendar-month fixed-window": "unknown word 'fixed-window'",
    "5/calendar-month large": "unknown word 'large'",
    "5/calendar-month for 1 hour": "unknown word 'for': it belongs to slots, like '3 concurrent for 10 minutes'",
    "5/calendar-month over": "'allow' or 'deny' after 'over'",
    "5/calendar-month over quota": "'allow' or 'deny' after 'over'",
    "5/calendar-month over allow over allow": "over is given twice",
    "5/calendar-month frm 15": "did you mean 'from'",
    "5/minute over allow": "'over allow' needs windows, and sliding-log has none",
    "5/minute burst 9 over allow": "'over allow' needs windows, and token-bucket has none",
    "5/minute in Europe/Berlin": "unknown word 'in': it belongs to periods of the calendar, like '500/calendar-day in",
    "5/month from 15": "'from': it belongs to periods of the calendar, like '10000/calendar-month from 15'",
    "concurrent": "count",
    "0 concurrent": "zero",
    "10001 concurrent": "at most 10000 can be concurrent, not 10001",
    "3 concurent": "unknown word 'concurent': did you mean 'concurrent'?",
    "3 Concurrently": "unknown word 'Concurrently': did you mean 'concurrent'?",
    "3 parallel": "unknown word 'parallel': did you mean 'concurrent'?",
    "3 workers": "'/' or 'per' after the count, which is a whole number, or 'concurrent'",
    "3/concurrent": "slots have no period: write '3 concurrent'",
    "3 per concurrent": "slots have no period: write '3 concurrent'",
    "3 concurrent/minute": "unknown word '/'",
    "3 concurrent for": "unit",
    "3 concurrent for 0 minutes": "zero",
    "3 concurrent for ever": "unknown unit 'ever'",
    "3 concurrent for 1 calendar-day": "expected a length of time",
    "3 concurrent for calendar-day": "expected a length of time",
    "3 concurrent for 999 ms": "from 1 second to 1 day",
    "3 concurrent for 25 hours": "from 1 second to 1 day",
    "3 concurrent for 1 hour for 2 hours": "for is given twice",
    "3 concurrent burst 5": "unknown word 'burst'",
    "3 concurrent over allow": "unknown word 'over': it belongs to quotas, like '10000/calendar-month over allow'",
    "3 concurrent gcra": "unknown word 'gcra'",
}


BAD_VALUES_AND_PENALTIES = {
    "20 different account/hour": "unknown word 'different': did you mean 'distinct'?",
    "20 unique account/hour": "unknown word 'unique': did you mean 'distinct'?",
    "3 strikes/hour block 5 minutes 1 hour": "write 'then' before the next time",
    "3 strikes/hour block 5 minutes and 1 hour": "write 'then' before the next time",
    "3 strikes/hour block 5 minutes, 1 hour": "the times of a penalty are joined by 'then'",
    "0 distinct account/hour": "zero",
    "5 distinct": "expected the name of the values that are counted",
    "5 distinct /hour": "expected the name of the values that are counted",
    "5 distinct per hour": "expected the name of the values that are counted",
    "5 distinct 1st/hour": "expected the name of the values that are counted",
    "5 distinct account": "expected '/' or 'per' and a period",
    "5 distinct account hour": "expected '/' or 'per' and a period",
    "5 distinct account/": "unit",
    "5 distinct account/0 hours": "zero",
    "5 distinct account/hourly": "did you mean 'hour",
    "5 distinct account/calendar-day": "expected a length of time",
    "5 distinct account/hour account": "unknown word 'account'",
    "5 distinct account/hour burst 5": "unknown word 'burst': it belongs to rates",
    "5 distinct account/hour over allow": "unknown word 'over': it belongs to quotas",
    "5 distinct account/hour block 1 minute": "unknown word 'block': it belongs to penalties",
    "5 distinct account/hour large large": "large is given twice",
    "5 distinct account/hour as": "name",
    "5 distinct accöunt/hour": "expected '/' or 'per' and a period",
    "5 distinct " + "a" * 65 + "/hour": "values must be a name",
    "5 distict account/hour": "unknown word 'distict': did you mean 'distinct'?",
    "1001 distinct account/hour": "allow it with '1001 distinct account/… large'",
    "10001 distinct account/hour large": "at most 10000 values can be distinct, not 10001",
    "0 strikes/hour block 1 minute": "zero",
    "3 strikes": "expected '/' or 'per' and a period",
    "3 strikes/hour": "expected 'block' and how long to block",
    "3 strikes/hour block": "unit",
    "3 strikes/hour block 0 minutes": "zero",
    "3 strikes/hour block 5": "unit",
    "3 strikes/hour block 5 minutes then": "unit",
    "3 strikes/hour block 5 minutes then 1 hour block 1 day": "block is given twice",
    "3 strikes/hour block 5 minutes forget": "unit",
    "3 strikes/hour then 5 minutes": "'then': it belongs behind 'block'",
    "3 strikes/hour block 5 minutes forget 1 day then 1 hour": "'then': it belongs behind 'block'",
    "3 strikes/hour forget 1 day": "expected 'block' and how long to block",
    "3 strikes/hour block 999 ms": "from 1 second to 1 year",
    "3 strikes/hour block 2 years": "from 1 second to 1 year",
    "3 strikes/hour block 1 minute forget 2 years": "from 1 second to 1 year",
    "3 strikes/2 years block 1 minute": "within at most a year",
    "3 strikes/2 seconds block 1 minute": "so 3 strikes take 2 seconds",
    "101 strikes/hour block 1 minute": "at most 100 strikes, not 101",
    "3 strikes/hour block 1 s" + " then 1 s" * 8: "blocks for 1 to 8 times",
    "3 strikes/hour block 1 calendar-day": "expected a length of time",
    "3 strikes/hour block 1 minute burst 5": "unknown word 'burst': it belongs to rates",
    "3 strikes/hour block 1 minute large": "unknown word 'large'",
    "3 strike/calendar-day block 1 minute": "expected a length of time",
    "3 strkes/hour block 1 minute": "did you mean 'strikes'?",
    "3/hour block 1 minute": "unknown word 'block': it belongs to penalties",
    "3 concurrent forget 1 day": "unknown word 'forget': it belongs to penalties",
}


@pytest.mark.parametrize("text", BAD_VALUES_AND_PENALTIES)
def test_a_bad_limit_of_values_or_penalty_is_told_what_is_wrong_and_where(text: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        parse_limits(text)
    message = str(caught.value)
    assert BAD_VALUES_AND_PENALTIES[text] in message
    assert "at position" in message
    assert "^" in message
    examples = re.findall(r"'([^']+)'", message.splitlines()[-1])
    assert examples, "no example that works"
    assert all(parse_limit(example) for example in examples)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("20 distinct account/hour", "20 distinct account/hour"),
        ("20 DISTINCT Account per 60 minutes", "20 distinct Account/hour"),
        ("20 distinct user_id/2h as people", "20 distinct user_id/2 hours as people"),
        ("5 distinct x-api-key / day large", "5 distinct x-api-key/day"),
        ("5 distinct large/day", "5 distinct large/day"),
        ("2000 distinct account/hour large", "2000 distinct account/hour large"),
        ("1 strike/hour block 60 s", "1 strike/hour block 1 minute"),
        ("3 Strikes per hour BLOCK 5m THEN 1h THEN 1d", "3 strikes/hour block 5 minutes then 1 hour then 1 day"),
        ("3 strike/hour block minute forget week", "3 strikes/hour block 1 minute"),
        ("3 strikes/2 days forget 30 days block hour as a", "3 strikes/2 days block 1 hour forget 1 month as a"),
    ],
)
def test_values_and_penalties_are_written_in_one_way(text: str, written: str) -> None:
    assert str(parse_limit(text)) == written
    assert parse_limit(written) == parse_limit(text)


def test_every_word_of_a_name_of_values_is_one_name() -> None:
    """So that no text is read as another: the name ends where the period begins."""
    assert parse_limit("5 distinct per-user/hour").values == "per-user"
    assert parse_limit("5 distinct account per hour").values == "account"


@pytest.mark.parametrize("text", BAD_QUOTAS_AND_SLOTS)
def test_a_bad_quota_or_slot_is_told_what_is_wrong_and_where(text: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        parse_limits(text)
    message = str(caught.value)
    assert BAD_QUOTAS_AND_SLOTS[text] in message
    assert repr(text)[:60] in message
    assert "at position" in message
    assert "^" in message
    examples = re.findall(r"'([^']+)'", message.splitlines()[-1])
    assert examples, "no example that works"
    assert all(parse_limit(example) for example in examples)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"count": 5, "calendar": "month"}, "calendar must be a Calendar"),
        ({"count": 5, "calendar": Calendar("day"), "algorithm": "gcra"}, "belongs to the algorithm 'calendar'"),
        ({"count": 5, "period_us": HOUR, "algorithm": "calendar"}, "belongs to the algorithm 'calendar'"),
        ({"count": 5, "calendar": Calendar("day"), "period_us": HOUR}, "its calendar gives the period"),
        ({"count": 5, "calendar": Calendar("day"), "burst": 9}, "calendar has no burst"),
        (
            {"count": 5, "period_us": HOUR, "algorithm": "fixed-window", "over": "quota"},
            "over must be 'deny' or 'allow'",
        ),
        ({"count": 5, "period_us": HOUR, "algorithm": "fixed-window", "over": None}, "over must be 'deny' or 'allow'"),
        ({"count": 5, "period_us": HOUR, "algorithm": "gcra", "over": "allow"}, "'over allow' needs windows"),
        ({"count": 10_001, "period_us": HOUR, "algorithm": "concurrent"}, "at most 10000 can be concurrent"),
        ({"count": 5, "period_us": 999_999, "algorithm": "concurrent"}, "from 1 second to 1 day"),
        ({"count": 5, "period_us": HOUR, "burst": 9, "algorithm": "concurrent"}, "concurrent has no burst"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        Limit(**given)  # type: ignore[arg-type]
    assert why in str(caught.value)


def test_a_lease_and_the_length_of_a_period_have_defaults() -> None:
    assert Limit(3, algorithm="concurrent") == parse_limit("3 concurrent")
    assert Limit(3, calendar=Calendar("week")) == parse_limit("3/calendar-week")


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


FRAGMENTS = (
    *("distinct", "strikes", "strike", "block", "then", "forget", "as", "large", "concurrent", "for", "burst", "over"),
    *("/", "per", "hour", "minutes", "5m", "ms", "account", "x-1", "1", "3", "60", "1001", "0", ";", "é", "\0", "-"),
)


@given(st.integers(1, 5), st.lists(st.sampled_from(FRAGMENTS), max_size=14), st.sampled_from([" ", ""]))
def test_any_words_of_values_and_penalties_are_a_limit_or_invalid_limit(
    count: int, words: list[str], between: str
) -> None:
    for kind in ("distinct account/hour", "strikes/hour block 1 minute", "distinct", "strikes"):
        try:
            found = parse_limits(f"{count} {kind}{between}{between.join(words)}")
        except InvalidLimit:
            continue
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
        parse_limit("5/minute", default="sliding")  # type: ignore[arg-type]


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
        Limit(5, SECOND, algorithm="window")  # type: ignore[arg-type]
    assert all(name in str(caught.value) for name in ALGORITHMS)


@pytest.mark.parametrize("text", ["100/minute", "10/second burst 20", "5/minute fixed-window", "3 concurrent"])
def test_a_copy_with_other_options_keeps_the_derived_name(text: str) -> None:
    limit = parse_limit(text)
    copied = replace(limit, failure="open")
    assert (str(copied), copied.failure, copied.named, copied.scope) == (text, "open", False, limit.scope)


def test_a_derived_name_that_no_longer_fits_says_what_to_do() -> None:
    with pytest.raises(InvalidLimit, match=re.escape("dataclasses.replace(limit, name='', …)")):
        replace(parse_limit("10/second burst 20"), burst=30)
    assert str(replace(parse_limit("10/second burst 20"), burst=30, name="")) == "10/second burst 30"


def test_a_name_cannot_hold_what_would_break_a_header_or_a_key() -> None:
    for name in ("a b", "a;b", 'a"b', "é", "a\n", "-a", "x" * 65):
        with pytest.raises(InvalidLimit, match="name"):
            Limit(5, SECOND, name=name)
