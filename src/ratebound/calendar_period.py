"""Periods of the calendar: days, weeks, months and years of a time zone, each with an ordinal number.

A period begins at midnight in its zone. A midnight that a change of the clocks leaves out is the first instant after
it; of a midnight that comes twice, the first counts.
"""

import difflib
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from ratebound.clock import EPOCH, utc_datetime
from ratebound.errors import InvalidLimit

# zoneinfo and calendar are imported by the functions that need them: most programs have no calendar quotas.
if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

# The mean length of each unit in microseconds, in the Gregorian calendar.
LENGTHS = {
    "day": 86_400_000_000,
    "week": 604_800_000_000,
    "month": 2_629_746_000_000,
    "year": 31_556_952_000_000,
}
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Calendar:
    """A period of the calendar: `Calendar("month", "Europe/Berlin", 15)` runs from each 15th to the next.

    `unit` is day, week, month or year. `begin` is the day of a month, from 1 to 31, where a shorter month has its last
    day instead; for a week it is the day of the week, 1 for Monday. Days and years have none.

    Raises InvalidLimit for a unit, a zone or a day that does not exist.
    """

    unit: str
    zone: str = "UTC"
    begin: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.unit, str) or self.unit not in LENGTHS:
            raise InvalidLimit(f"unknown calendar unit {self.unit!r}: expected one of {', '.join(LENGTHS)}")
        most = {"week": 7, "month": 31}.get(self.unit, 1)
        if type(self.begin) is not int or not 1 <= self.begin <= most:
            if most == 1:
                raise InvalidLimit(f"a calendar {self.unit} takes no first day, not {self.begin!r}")
            raise InvalidLimit(f"a calendar {self.unit} begins on a day from 1 to {most}, not {self.begin!r}")
        zone_of(self.zone)

    def __str__(self) -> str:
        """Return the period in the notation."""
        text = f"calendar-{self.unit}"
        if self.zone != "UTC":
            text += f" in {self.zone}"
        if self.begin != 1:
            text += f" from {WEEKDAYS[self.begin - 1] if self.unit == 'week' else self.begin}"
        return text

    def index_at(self, now: int) -> int:
        """Return the ordinal of the period that contains an instant in microseconds."""
        zone = zone_of(self.zone)
        index = self._index_of(utc_datetime(now).astimezone(zone).date())
        while now < self.start_of(index):
            index -= 1
        while now >= self.start_of(index + 1):
            index += 1
        return index

    def start_of(self, index: int) -> int:
        """Return the first instant of a period, in microseconds."""
        return _midnight(self._first_day(index), zone_of(self.zone))

    def _index_of(self, day: date) -> int:
        """Return the ordinal of the period that a local day belongs to."""
        if self.unit == "day":
            return day.toordinal()
        if self.unit == "week":
            return (day.toordinal() - self.begin) // 7
        if self.unit == "year":
            return day.year
        index = day.year * 12 + day.month - 1
        return index if day >= self._first_day(index) else index - 1

    def _first_day(self, index: int) -> date:
        if self.unit == "day":
            return date.fromordinal(index)
        if self.unit == "week":
            return date.fromordinal(index * 7 + self.begin)
        if self.unit == "year":
            return date(index, 1, 1)
        from calendar import monthrange

        year, month = divmod(index, 12)
        return date(year, month + 1, min(self.begin, monthrange(year, month + 1)[1]))


def zone_of(name: str) -> "ZoneInfo":
    """Return a time zone, which the standard library caches. Raises InvalidLimit if it is unknown."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        near = _nearest_zone(name)
        hint = f"did you mean '{near}'?" if near else "expected a name like 'Europe/Berlin' or 'UTC'"
        if not _has_zones():
            hint += '; this system has no time zones: pip install "ratebound[tzdata]"'
        raise InvalidLimit(f"unknown time zone {name!r}: {hint}") from None


def local_time(instant: int, zone: str) -> datetime:
    """Return an instant in microseconds as a datetime of a time zone."""
    return utc_datetime(instant).astimezone(zone_of(zone))


def _nearest_zone(name: object) -> str | None:
    """Return the zone that was meant, whatever its case, with or without its region; None if none is near."""
    if not isinstance(name, str) or not 2 < len(name) < 80:
        return None
    from zoneinfo import available_timezones

    zones = {zone.lower(): zone for zone in sorted(available_timezones())}
    cities = {spelling.rpartition("/")[2]: zone for spelling, zone in zones.items() if "/" in spelling}
    wanted = name.lower()
    near = [wanted] if wanted in zones else difflib.get_close_matches(wanted, zones, 1, cutoff=0.8)
    return zones[near[0]] if near else cities.get(wanted)


def _has_zones() -> bool:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo("Europe/Berlin")
    except (KeyError, OSError):
        return False
    return True


def _midnight(day: date, zone: "ZoneInfo") -> int:
    """Return the instant at which a day begins in a zone, in microseconds."""
    local = datetime(day.year, day.month, day.day)
    instant = _instant(local.replace(tzinfo=zone))
    if _local(instant, zone) == local:
        return instant
    # Midnight is left out. The clocks change between its two readings: find the first instant at or after midnight.
    early, late = sorted((_instant(local.replace(tzinfo=zone, fold=1)), instant))
    while late - early > 1:
        middle = (early + late) // 2
        if _local(middle, zone) < local:
            early = middle
        else:
            late = middle
    return late


def _instant(local: datetime) -> int:
    return (local.astimezone(UTC) - EPOCH) // MICROSECOND


def _local(instant: int, zone: "ZoneInfo") -> datetime:
    return utc_datetime(instant).astimezone(zone).replace(tzinfo=None)
