"""The hours, days and months between two instants, also those in which nothing was used: for pictures and tables."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

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
    place = checked_zone(zone)
    local = since.astimezone(place)
    if by == "hour":
        at = local.replace(minute=0, second=0, microsecond=0).astimezone(UTC)
        while at < until:
            yield at
            at += HOUR
        return
    day = local.date().replace(day=1) if by == "month" else local.date()
    while (begin := _midnight(day, place)) < until:
        yield begin
        day = (day + 31 * DAY).replace(day=1) if by == "month" else day + DAY


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
