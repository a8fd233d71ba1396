"""The report of a month: what was used, denied and owed, as values, as JSON and as CSV for billing.

`month_report` asks a ledger. Pictures are in report_html.py, and text for a terminal is in the command line.
"""

import csv
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from ratebound.calendar_period import zone_of

MONTH = re.compile(r"(\d{4})-(0[1-9]|1[0-2])")
MOST_CLIENTS = 20
# What spreadsheets take for the beginning of a formula, also in full width
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
COLUMNS = ("month", "client", "rule", "units", "allowed", "denied", "overage")


class UsedUnits(NamedTuple):
    """What was used: units, decisions, and the units above quotas that are metered."""

    units: int = 0
    allowed: int = 0
    denied: int = 0
    overage: int = 0

    @property
    def denial_rate(self) -> float:
        """The share of decisions that denied."""
        return self.denied / (self.allowed + self.denied) if self.denied else 0.0


class DayOfReport(NamedTuple):
    """What was used on one day."""

    day: date
    used: UsedUnits


class RuleOfReport(NamedTuple):
    """What was used of one rule."""

    rule: str
    used: UsedUnits


class ClientOfReport(NamedTuple):
    """What one client has used. `client` is a name or a digest, as the ledger keeps it."""

    client: str
    used: UsedUnits


class BillLine(NamedTuple):
    """What one client has used of one rule: a line of a bill if there is overage."""

    client: str
    rule: str
    used: UsedUnits


class MonthReport(NamedTuple):
    """The report of a month, of all clients or of one.

    `clients` are those that used most, without an order for one client. `lines` are for billing: those with overage,
    or all lines of one client.
    """

    month: str
    zone: str
    client: str | None
    made_at: datetime
    total: UsedUnits
    days: Sequence[DayOfReport]
    rules: Sequence[RuleOfReport]
    clients: Sequence[ClientOfReport]
    lines: Sequence[BillLine]


def month_bounds(month: str, zone: str = "UTC") -> tuple[datetime, datetime]:
    """Return the first instant of a month, and the first one after it. Raises ValueError for a text that is no month
    and for an unknown zone."""
    found = MONTH.fullmatch(month)
    if found is None or not 1970 <= int(found[1]) <= 9000:
        raise ValueError(f"{month!r} is no month: write it like 2026-11")
    place = zone_of(zone)
    year, number = int(found[1]), int(found[2])
    return _midnight(date(year, number, 1), place), _midnight(date(year + number // 12, number % 12 + 1, 1), place)


def days_of(month: str) -> list[date]:
    """Return all days of a month."""
    since, until = month_bounds(month)
    first = since.date()
    return [first + timedelta(days=number) for number in range((until.date() - first).days)]


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def report_json(report: MonthReport) -> str:
    """Return a report as JSON. Names are exactly as the ledger keeps them."""
    return json.dumps(report_document(report), indent=2) + "\n"


def report_document(report: MonthReport) -> dict[str, Any]:
    """Return a report as values for JSON."""
    return {
        "month": report.month,
        "zone": report.zone,
        "client": report.client,
        "made_at": report.made_at.isoformat().replace("+00:00", "Z"),
        "total": report.total._asdict(),
        "days": [{"day": one.day.isoformat(), **one.used._asdict()} for one in report.days],
        "rules": [{"rule": one.rule, **one.used._asdict()} for one in report.rules],
        "clients": [{"client": one.client, **one.used._asdict()} for one in report.clients],
        "lines": [{"client": one.client, "rule": one.rule, **one.used._asdict()} for one in report.lines],
    }


def bill_csv(month: str, lines: Iterable[BillLine]) -> str:
    """Return lines of a bill as CSV, one for each client and rule."""
    return csv_text(COLUMNS, ((month, one.client, one.rule, *one.used) for one in lines))


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV with a heading.

    A text that a spreadsheet would take for a formula gets an apostrophe in front, because clients choose their names.
    """
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([safe_cell(value) if isinstance(value, str) else value for value in row])
    return out.getvalue()


def safe_cell(text: str) -> str:
    """Return the text of a cell of a spreadsheet, which is never a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text


def added_up(used: Iterable[UsedUnits]) -> UsedUnits:
    """Return the sum."""
    found = list(used)
    return UsedUnits(*(sum(numbers) for numbers in zip(*found, strict=True))) if found else UsedUnits()
