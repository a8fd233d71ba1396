"""The report of a month: what was used, denied and owed, as values, as JSON and as CSV for billing.

`month_report` asks a ledger. Pictures are in report_html.py, and text for a terminal is in the command line.
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from io import StringIO
from typing import Any, NamedTuple

from ratebound.ledger.ledger import Ledger
from ratebound.ledger.periods import checked_zone, month_bounds
from ratebound.ledger.spans import days_of
from ratebound.ledger.usage_rows import ClientUsage

MOST_CLIENTS = 10
# What spreadsheets take for the beginning of a formula, also in full width
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
# Characters that cannot be seen: spreadsheets and terminals may drop them, and then show the formula behind them
UNSEEN = r"\x00-\x1f\x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
FIRST_UNSEEN = re.compile(f" *[{UNSEEN}]")
# A formula after a character at which a spreadsheet may begin a new cell: in many countries that is the semicolon
LATER_FORMULA = re.compile(f"([;|\t\r\n] *)(?=[=+\\-@＝＋－＠{UNSEEN}])")
COLUMNS = ("month", "client", "rule", "units", "overage")


class UsedUnits(NamedTuple):
    """Numbers of usage: units, decisions, and overage, which are units above metered quotas."""

    units: int = 0
    allowed: int = 0
    denied: int = 0
    overage: int = 0

    @property
    def denial_rate(self) -> float:
        """The share of decisions that denied."""
        return self.denied / (self.allowed + self.denied) if self.denied else 0.0


class DayOfReport(NamedTuple):
    """The usage of one day."""

    day: date
    used: UsedUnits


class RuleOfReport(NamedTuple):
    """The usage of one rule."""

    rule: str
    used: UsedUnits


class ClientOfReport(NamedTuple):
    """The usage of one rule by one client. `client` is a name or a digest, as the ledger keeps it."""

    client: str
    rule: str
    used: UsedUnits


class BillLine(NamedTuple):
    """A line of a bill: what one client has used of one rule, and the units of it that are overage."""

    client: str
    rule: str
    units: int
    overage: int


class MonthReport(NamedTuple):
    """The report of a month, of all clients or of one.

    A request that several rules count is in the numbers of each. `rules` begin with the highest share of denials.
    `clients` are those with the most units of a rule; there are none in the report of one client. `lines` are for
    billing: all clients and rules with overage.
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


def month_report(ledger: Ledger, month: str, *, client: str | None = None, zone: str = "UTC") -> MonthReport:
    """Return the report of a month like 2026-11, of all clients or of one, which is named as operators name it.

    Days are those of the zone. Raises ValueError for a month, a client or a zone that cannot be read, and StorageError
    if the ledger does not answer.
    """
    place = checked_zone(zone)
    since, until = (datetime.fromtimestamp(bound, UTC) for bound in month_bounds(month, zone))
    clients: list[ClientUsage] = []
    if client is None:
        rows = ledger.totals(by="day", since=since, until=until, zone=zone)
        clients = ledger.top(since=since, until=until, by="units", most=MOST_CLIENTS)
    else:
        rows = ledger.usage(client, by="day", since=since, until=until, zone=zone)
    days, rules = defaultdict[date, list[UsedUnits]](list), defaultdict[str, list[UsedUnits]](list)
    for row in rows:
        used = UsedUnits(row.units, row.allowed, row.denied, row.overage)
        days[row.begin.astimezone(place).date()].append(used)
        rules[row.rule].append(used)
    of_rules = [RuleOfReport(rule, added_up(parts)) for rule, parts in rules.items()]
    return MonthReport(
        month=month,
        zone=zone,
        client=client,
        made_at=datetime.now(UTC),
        total=added_up(one.used for one in of_rules),
        days=[DayOfReport(day, added_up(days[day])) for day in days_of(month)],
        rules=sorted(of_rules, key=lambda one: (-one.used.denial_rate, -one.used.denied, one.rule)),
        clients=[
            ClientOfReport(one.client, one.rule, UsedUnits(one.units, one.allowed, one.denied, one.overage))
            for one in clients
        ],
        lines=bill_lines(ledger, month, client=client, zone=zone),
    )


def bill_lines(ledger: Ledger, month: str, *, client: str | None = None, zone: str = "UTC") -> list[BillLine]:
    """Return the overage of a month by client and rule, of all clients or of one."""
    found = ledger.overage(month, client=client, zone=zone)
    return [BillLine(one.client, one.rule, one.units, one.overage) for one in found]


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
        "clients": [{"client": one.client, "rule": one.rule, **one.used._asdict()} for one in report.clients],
        "overage": [one._asdict() for one in report.lines],
    }


def bill_csv(month: str, lines: Iterable[BillLine]) -> str:
    """Return lines of a bill as CSV, one for each client and rule."""
    return csv_text(COLUMNS, ((month, *one) for one in lines))


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV with a heading.

    A text that a spreadsheet would take for a formula gets an apostrophe in front, because clients choose their names.
    """
    lines = []
    for row in (columns, *rows):
        line = StringIO()
        # A text is quoted if it has a character of the line's end: so that is both, and then cut.
        csv.writer(line, lineterminator="\r\n").writerow(
            [safe_cell(value) if isinstance(value, str) else value for value in row]
        )
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def safe_cell(text: str) -> str:
    """Return the text of a cell of a spreadsheet, which is never a formula."""
    safe = LATER_FORMULA.sub(r"\1'", text)
    return f"'{safe}" if safe.lstrip(" ").startswith(FORMULA) or FIRST_UNSEEN.match(safe) else safe


def added_up(used: Iterable[UsedUnits]) -> UsedUnits:
    """Return the sum."""
    found = list(used)
    return UsedUnits(*(sum(numbers) for numbers in zip(*found, strict=True))) if found else UsedUnits()
