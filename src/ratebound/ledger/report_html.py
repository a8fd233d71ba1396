"""The report of a month as one HTML file. It holds its styles and pictures, and loads nothing.

Names are chosen by clients, so everything that the ledger holds is escaped, and invisible characters are written out.
"""

from collections.abc import Callable
from html import escape

from ratebound.ledger.report import MonthReport, UsedUnits
from ratebound.report.page import (
    bar_cell,
    card,
    figure_card,
    name_cell,
    number_cell,
    percent,
    report_page,
    table,
    tiles,
    visible,
)
from ratebound.report.pictures import StackedBar, stacked_bars

MONTHS = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
EACH_RULE = "A request that several rules count is in the numbers of each."
NONE = "None in this month."
MOST_LINES = 1_000  # of the table for billing: the CSV has all


def report_html(report: MonthReport) -> str:
    """Return a report as an HTML page with pictures."""
    title = f"Usage in {_month(report)}" + (f": {visible(report.client)}" if report.client is not None else "")
    of_all = report.client is None
    parts = [
        _tiles(report),
        _units_picture(report),
        _decisions_picture(report),
        '<div class="columns">',
        _clients_table(report) if of_all else "",
        _rules_table(report),
        "</div>",
        _lines_table(report),
    ]
    made = f"{report.made_at:%Y-%m-%d %H:%M} UTC"
    about = f"Days of the time zone {escape(report.zone)}. {EACH_RULE} Made at {made} by Ratebound."
    return report_page(title, about, parts)


def _month(report: MonthReport) -> str:
    year, _, month = report.month.partition("-")
    return f"{MONTHS[int(month) - 1]} {year}"


def _tiles(report: MonthReport) -> str:
    total = report.total
    facts = [
        ("Units used", f"{total.units:,}"),
        ("Overage", f"{total.overage:,}"),
        ("Allowed", f"{total.allowed:,}"),
        ("Denied", f"{total.denied:,}"),
        ("Denial rate", percent(total.denial_rate)),
    ]
    return tiles(facts)


def _units_picture(report: MonthReport) -> str:
    return _picture(
        report,
        "units",
        "Units per day",
        ("Within quotas", "Overage"),
        lambda used: (used.units - max(0, min(used.overage, used.units)), max(0, min(used.overage, used.units))),
        lambda used: f"{used.units:,} units, {used.overage:,} of them overage",
    )


def _decisions_picture(report: MonthReport) -> str:
    return _picture(
        report,
        "decisions",
        "Decisions per day",
        ("Allowed", "Denied"),
        lambda used: (used.allowed, used.denied),
        lambda used: f"{used.allowed:,} allowed, {used.denied:,} denied ({percent(used.denial_rate)})",
    )


def _picture(
    report: MonthReport,
    name: str,
    title: str,
    legend: tuple[str, str],
    split: Callable[[UsedUnits], tuple[int, int]],
    words: Callable[[UsedUnits], str],
) -> str:
    bars = [StackedBar(str(one.day.day), *split(one.used), f"{one.day}: {words(one.used)}") for one in report.days]
    busiest = max(report.days, key=lambda one: _whole(split(one.used)), default=None)
    told = "Nothing was used in this month."
    if busiest is not None and _whole(split(busiest.used)):
        told = f"In all: {words(report.total)}. The busiest day is {busiest.day}: {words(busiest.used)}."
    rows = [[name_cell(str(one.day)), *(number_cell(f"{number:,}") for number in one.used)] for one in report.days]
    numbers = table(f"{title}, as numbers", ("day", "units", "allowed", "denied", "overage"), rows)
    kind = "card owing" if name == "units" else "card"
    more = f"<details><summary>Numbers of each day</summary>{numbers}</details>"
    picture = stacked_bars(name, title, told, bars)
    return figure_card(name, title, legend, picture, told, more=more, kind=kind)


def _whole(parts: tuple[int, int]) -> int:
    return parts[0] + parts[1]


def _clients_table(report: MonthReport) -> str:
    most = max((one.used.units for one in report.clients), default=0)
    rows = [
        [
            name_cell(one.client),
            name_cell(one.rule, "td"),
            bar_cell(one.used.units / most if most else 0, "used"),
            number_cell(f"{one.used.units:,}"),
            number_cell(f"{one.used.denied:,}"),
        ]
        for one in report.clients
    ]
    columns = ("client", "rule", "share", "units", "denied")
    return card("clients", "Clients with the most units", columns, rows, empty=NONE)


def _rules_table(report: MonthReport) -> str:
    rows = [
        [
            name_cell(one.rule),
            bar_cell(one.used.denial_rate, "denied"),
            number_cell(percent(one.used.denial_rate)),
            number_cell(f"{one.used.denied:,}"),
            number_cell(f"{one.used.allowed:,}"),
        ]
        for one in report.rules
    ]
    columns = ("rule", "share", "denial rate", "denied", "allowed")
    return card("rules", "Denial rates by rule", columns, rows, empty=NONE)


def _lines_table(report: MonthReport) -> str:
    lines = report.lines[:MOST_LINES]
    rows = [
        [
            name_cell(one.client),
            name_cell(one.rule, "td"),
            number_cell(f"{one.units:,}"),
            number_cell(f"{one.overage:,}"),
        ]
        for one in lines
    ]
    more = len(report.lines) - len(lines)
    note = f'<p class="muted">And {more:,} more lines: the CSV has all.</p>' if more else ""
    columns = ("client", "rule", "units", "overage")
    return card("lines", "Overage, for billing", columns, rows, empty=NONE, note=note)
