"""Periods of the calendar against a slow oracle: the local time of every minute around a boundary, from zoneinfo."""

import copy
import pickle
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound import InvalidLimit
from ratebound.calendar_period import LENGTHS, WEEKDAYS, Calendar
from ratebound.windows import Windows
from tests.property.strategies import ZONES, calendars

MINUTE = 60_000_000
DAY = 24 * 60 * MINUTE
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Days on which something is odd at midnight.
ODD_DAYS = [
    ("America/Sao_Paulo", date(2018, 11, 4)),  # midnight is left out
    ("America/Sao_Paulo", date(2018, 2, 18)),  # midnight comes twice, for 23 o'clock does
    ("Asia/Beirut", date(2023, 3, 30)),
    ("Asia/Beirut", date(2022, 3, 27)),
    ("Asia/Beirut", date(2022, 10, 30)),
    ("America/Santiago", date(2023, 9, 3)),
    ("America/Santiago", date(2024, 4, 7)),
    ("America/Havana", date(2024, 3, 10)),  # 0 o'clock becomes 1 o'clock
    ("America/Havana", date(2023, 11, 5)),  # 1 o'clock becomes 0 o'clock
    ("America/Toronto", date(1919, 3, 31)),  # the gap begins at 23:30 of the day before
    ("America/St_Johns", date(2006, 10, 29)),  # at 0:01 the clocks go back to 23:01 of the day before
    ("America/St_Johns", date(2007, 3, 11)),
    ("Africa/Cairo", date(2014, 8, 1)),
    ("Asia/Amman", date(2022, 2, 25)),
    ("Asia/Gaza", date(2014, 10, 24)),
    ("Pacific/Apia", date(2011, 12, 30)),  # a day that does not exist
    ("Pacific/Apia", date(2011, 12, 31)),
    ("Pacific/Kwajalein", date(1993, 8, 22)),
    ("Australia/Lord_Howe", date(2024, 4, 7)),
    ("Europe/Berlin", date(2026, 3, 29)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("Europe/Dublin", date(1971, 10, 31)),
    ("Antarctica/Troll", date(2024, 10, 27)),
    ("UTC", date(2000, 2, 29)),
]


def local(now: int, zone: str) -> datetime:
    return (EPOCH + timedelta(microseconds=now)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)


def microseconds(day: date) -> int:
    return (datetime(day.year, day.month, day.day, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def first_minute_of(day: date, zone: str) -> int:
    """The first minute at which the calendar on the wall has reached a day. Zones are within 27 hours of UTC."""
    now = microseconds(day) - 27 * 60 * MINUTE
    while local(now, zone).date() < day:
        now += MINUTE
    return now


@pytest.mark.parametrize(("zone", "day"), ODD_DAYS)
def test_a_day_begins_when_the_calendar_on_the_wall_first_reaches_it(zone: str, day: date) -> None:
    period = Calendar("day", zone)
    begin, end = first_minute_of(day, zone), first_minute_of(day + timedelta(days=1), zone)
    assert (period.start_of(day.toordinal()), period.start_of(day.toordinal() + 1)) == (begin, end)
    for now in range(begin - 3 * 60 * MINUTE, end + 3 * 60 * MINUTE, 7 * MINUTE):
        expected = day.toordinal() if begin <= now < end else None
        index = period.index_at(now)
        assert (index == expected) is (expected is not None), local(now, zone)
        assert period.start_of(index) <= now < period.start_of(index + 1)
    for now in (begin - 1, begin, end - 1, end):
        index = period.index_at(now)
        assert period.start_of(index) <= now < period.start_of(index + 1)


def test_some_of_the_odd_days_are_odd() -> None:
    """Without them the test above would show little."""
    lengths = {}
    for zone, day in ODD_DAYS:
        lengths[zone, day] = first_minute_of(day + timedelta(days=1), zone) - first_minute_of(day, zone)
    assert lengths["Pacific/Apia", date(2011, 12, 30)] == 0
    assert lengths["America/Sao_Paulo", date(2018, 11, 4)] == 23 * 60 * MINUTE
    assert lengths["America/Havana", date(2023, 11, 5)] == 25 * 60 * MINUTE
    assert lengths["Australia/Lord_Howe", date(2024, 4, 7)] == 24 * 60 * MINUTE + 30 * MINUTE
    assert local(first_minute_of(date(1919, 3, 31), "America/Toronto"), "America/Toronto").minute == 30


def days_that_begin_a_period(period: Calendar, year: int) -> list[date]:
    """The first days of all periods that begin in a year, found day by day."""
    found = []
    day = date(year, 1, 1)
    while day.year == year:
        tomorrow = day + timedelta(days=1)
        if period.unit == "day":
            begins = True
        elif period.unit == "week":
            begins = day.weekday() == period.begin - 1
        elif period.unit == "year":
            begins = (day.month, day.day) == (1, 1)
        else:  # the last day of a month that has no such day
            begins = day.day == period.begin or (day.day < period.begin and tomorrow.day == 1)
        if begins:
            found.append(day)
        day = tomorrow
    return found


@pytest.mark.parametrize("year", [1999, 2000, 2023, 2024, 2026, 2100])
@pytest.mark.parametrize(
    "period",
    [
        Calendar("day"),
        Calendar("year"),
        *[Calendar("week", begin=begin) for begin in range(1, 8)],
        *[Calendar("month", begin=begin) for begin in (1, 2, 15, 27, 28, 29, 30, 31)],
    ],
    ids=str,
)
def test_the_periods_of_a_year_begin_on_the_right_days(period: Calendar, year: int) -> None:
    expected = [microseconds(day) for day in days_that_begin_a_period(period, year)]
    index = period.index_at(microseconds(date(year, 1, 1)) - 1) + 1
    assert [period.start_of(index + number) for number in range(len(expected))] == expected
    assert period.start_of(index + len(expected)) >= microseconds(date(year + 1, 1, 1))


@given(calendars(), st.integers(-(10**15), 4 * 10**15))
def test_every_instant_is_in_exactly_one_period(period: Calendar, now: int) -> None:
    index = period.index_at(now)
    starts = [period.start_of(index + number) for number in range(-2, 4)]
    assert starts == sorted(starts)
    assert starts[2] <= now < starts[3]
    assert period.index_at(starts[2]) == index
    assert period.index_at(starts[3] - 1) == index
    assert period.index_at(starts[3]) > index
    for start in starts:
        wall = local(start, period.zone)
        assert local(start - 1, period.zone).date() < wall.date() or wall.time().hour == 0


@given(calendars(), st.lists(st.integers(10**15, 3 * 10**15), min_size=1, max_size=8))
def test_windows_remember_only_what_is_still_true(period: Calendar, instants: list[int]) -> None:
    windows = Windows(LENGTHS[period.unit], period)
    for now in instants:
        index = period.index_at(now)
        expected = (index, period.start_of(index + 1), period.start_of(index + 2))
        end = windows.at(now)[1]
        assert windows.at(now) == windows.at(end - 1) == expected
        assert windows.at(end)[0] > index


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", sorted(LENGTHS))
def test_a_zone_and_a_first_day_move_a_period_by_less_than_one(unit: str, zone: str) -> None:
    """States are shared between them, so their ordinals must be neighbours."""
    now = microseconds(date(2026, 3, 29))
    begins = {"week": range(1, 8), "month": range(1, 32)}.get(unit, range(1, 2))
    for begin in begins:
        assert abs(Calendar(unit, zone, begin).index_at(now) - Calendar(unit).index_at(now)) <= 1


@pytest.mark.parametrize(
    ("unit", "zone", "begin", "why"),
    [
        ("hour", "UTC", 1, "unknown calendar unit 'hour': expected one of day, week, month, year"),
        (["day"], "UTC", 1, "unknown calendar unit ['day']: expected one of day, week, month, year"),
        ("day", "Europe/Atlantis", 1, "unknown time zone 'Europe/Atlantis': expected a name like 'Europe/Berlin'"),
        ("day", "Europe/Berln", 1, "unknown time zone 'Europe/Berln': did you mean 'Europe/Berlin'?"),
        ("day", "", 1, "unknown time zone '': expected a name like"),
        ("day", "x" * 100_000, 1, "expected a name like"),
        ("day", "Europe", 1, "unknown time zone 'Europe'"),
        ("day", "../../etc/passwd", 1, "unknown time zone"),
        ("day", "/etc/localtime", 1, "unknown time zone"),
        ("day", "a\0b", 1, "unknown time zone"),
        ("day", "\ud800", 1, "unknown time zone"),
        ("day", None, 1, "unknown time zone None"),
        ("day", 5, 1, "unknown time zone 5"),
        ("day", ["UTC"], 1, "unknown time zone"),
        ("day", "UTC", 2, "a calendar day takes no first day, not 2"),
        ("year", "UTC", 2, "a calendar year takes no first day, not 2"),
        ("week", "UTC", 8, "a calendar week begins on a day from 1 to 7, not 8"),
        ("month", "UTC", 0, "a calendar month begins on a day from 1 to 31, not 0"),
        ("month", "UTC", 32, "a calendar month begins on a day from 1 to 31, not 32"),
        ("month", "UTC", True, "a calendar month begins on a day from 1 to 31, not True"),
        ("month", "UTC", 1.0, "a calendar month begins on a day from 1 to 31, not 1.0"),
    ],
)
def test_what_does_not_exist_is_refused(unit: str, zone: str, begin: int, why: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        Calendar(unit, zone, begin)
    assert why in str(caught.value)


@given(calendars())
def test_a_period_is_a_value(period: Calendar) -> None:
    for same in (copy.copy(period), copy.deepcopy(period), pickle.loads(pickle.dumps(period))):
        assert (same, hash(same), str(same)) == (period, hash(period), str(period))
    assert period != Calendar("day", "Europe/Paris")


def test_a_period_is_written_in_the_notation() -> None:
    assert str(Calendar("month")) == "calendar-month"
    assert str(Calendar("month", "Europe/Berlin", 15)) == "calendar-month in Europe/Berlin from 15"
    assert [str(Calendar("week", begin=begin + 1)).rpartition(" ")[2] for begin in range(1, 7)] == list(WEEKDAYS[1:])
