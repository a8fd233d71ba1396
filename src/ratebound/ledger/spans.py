"""The hours, days and months between two instants, also those in which nothing was used: for pictures and tables."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from ratebound.calendar_period import Calendar
from ratebound.clock import EPOCH, utc_datetime
from ratebound.ledger.periods import checked_zone, instant, month_bounds

FIRST_YEAR, LAST_YEAR = 1970, 9000
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def read_instant(text: str, zone: str = "UTC") -> datetime:
    """Return an instant in UTC. A text without an offset is of the zone: 2026-11-16, 2026-11 or 2026-11-16T09:30.

    Raises ValueError for a text that cannot be read, and for years outside of 1970 to 9000.
    """
    try:
        found = datetime.fromtimestamp(instant(text, zone, 0), UTC)
    except OverflowError:
        found = None
    if found is None or not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise ValueError(f"cannot use the time {text!r}: expected one from {FIRST_YEAR} to {LAST_YEAR}")
    return found


def days_of(month: str) -> list[date]:
    """Return all days of a month like 2026-11. Raises ValueError for another text."""
    since, until = (datetime.fromtimestamp(bound, UTC).date() for bound in month_bounds(month, "UTC"))
    return [since + number * DAY for number in range((until - since).days)]


def spans_between(since: datetime, until: datetime, by: str, zone: str = "UTC") -> Iterator[datetime]:
    """Yield the beginnings of all hours, days or months of a zone that have a part between two instants, in UTC."""
    if by == "hour":
        local = since.astimezone(checked_zone(zone))
        at = local.replace(minute=0, second=0, microsecond=0).astimezone(UTC)
        while at < until:
            yield at
            at += HOUR
        return
    checked_zone(zone)
    periods = Calendar(by, zone)
    index = periods.index_at((since - EPOCH) // timedelta(microseconds=1))
    while (begin := utc_datetime(periods.start_of(index))) < until:
        yield begin
        index += 1
