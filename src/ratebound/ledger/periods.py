"""Times in queries of the ledger: from when, until when, and the days and months of a zone.

Days and months begin where those of calendar quotas do: see calendar_period.py. Inside, an instant is whole seconds
since 1970 in UTC.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from ratebound.calendar_period import Calendar, zone_of
from ratebound.clock import EPOCH, SECOND
from ratebound.errors import InvalidLimit

Instant = datetime | date | str  # a date or a text without an offset is of the query's zone
BUCKETS = {"1 minute": 60, "5 minutes": 300, "15 minutes": 900, "1 hour": 3600, "1 day": 86_400}
Period = Literal["bucket", "hour", "day", "month"]
PERIODS: tuple[Period, ...] = get_args(Period)
MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")
DATE = len("2026-11-16")
QUARTER = 900  # seconds: all offsets of time zones in use are multiples of this
EARLIEST, LATEST = 0, 253_402_300_800  # the years 1970 to 9999


def bucket_seconds(text: object) -> int:
    """Return the length of a bucket. Raises ValueError for a text that is none of BUCKETS."""
    found = BUCKETS.get(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"cannot use bucket {text!r}: expected one of {', '.join(map(repr, BUCKETS))}")
    return found


def checked_zone(name: object) -> ZoneInfo:
    """Return a time zone. Raises ValueError for a name that is not known."""
    if not isinstance(name, str):
        raise ValueError(f"cannot use time zone {name!r}: expected a name like 'UTC' or 'Europe/Berlin'")
    try:
        return zone_of(name)
    except InvalidLimit as error:
        raise ValueError(str(error)) from None


def instant(given: Instant | None, zone: str, missing: int) -> int:
    """Return an instant in seconds. Raises ValueError for a text that cannot be read."""
    if given is None:
        return missing
    try:
        return _seconds(given if isinstance(given, date) else _read(given), zone)
    except OverflowError:  # the first day of the year 1 in the east, or the last one of 9999 in the west
        raise ValueError(f"cannot use the time {given!r}: expected one of the years 1970 to 9999") from None


def _seconds(found: date | datetime, zone: str) -> int:
    if not isinstance(found, datetime):
        checked_zone(zone)
        return _within(Calendar("day", zone).start_of(found.toordinal()) // SECOND)
    if found.tzinfo is None:
        found = found.replace(tzinfo=checked_zone(zone))
    return _within((found.astimezone(UTC) - EPOCH) // timedelta(seconds=1))


def _within(seconds: int) -> int:
    return max(EARLIEST, min(seconds, LATEST))


def _read(text: object) -> date | datetime:
    if isinstance(text, str):
        month = MONTH.fullmatch(text.strip())
        try:
            if month is not None:
                return date(int(month[1]), int(month[2]), 1)
            return (date if len(text.strip()) <= DATE else datetime).fromisoformat(text.strip())
        except ValueError:
            pass
    raise ValueError(f"cannot read the time {text!r}: expected for example '2026-11-16', '2026-11' or a datetime")


def month_bounds(month: object, zone: str) -> tuple[int, int]:
    """Return the begin and the end of a month like '2026-11', in seconds. Raises ValueError."""
    found = MONTH.fullmatch(month) if isinstance(month, str) else None
    if found is None or not 1 <= int(found[2]) <= 12 or not 1970 <= int(found[1]) <= 9998:
        raise ValueError(f"cannot read the month {month!r}: expected for example '2026-11'")
    checked_zone(zone)
    months, index = Calendar("month", zone), int(found[1]) * 12 + int(found[2]) - 1
    return _within(months.start_of(index) // SECOND), _within(months.start_of(index + 1) // SECOND)


def quantum(by: str, zone: str) -> int:
    """Return the seconds by which a database may add buckets up before they are folded into periods."""
    if by == "bucket":
        return 1
    if by == "hour":
        return QUARTER
    return 86_400 if zone == "UTC" else QUARTER


def begin_of(by: str, zone: str) -> Callable[[int], datetime]:
    """Return a function from an instant to the beginning of its period. Raises ValueError for an unknown period."""
    found = checked_zone(zone)
    if by not in PERIODS:
        raise ValueError(f"cannot add up by {by!r}: expected one of {', '.join(map(repr, PERIODS))}")
    if by == "bucket":
        return lambda at: datetime.fromtimestamp(at, found)
    if by == "hour":
        return lambda at: datetime.fromtimestamp(at, found).replace(minute=0)
    periods = Calendar(by, zone)
    known: dict[int, datetime] = {}

    def begin(at: int) -> datetime:
        index = periods.index_at(at * SECOND)
        if index not in known:
            known[index] = datetime.fromtimestamp(periods.start_of(index) // SECOND, found)
        return known[index]

    return begin
