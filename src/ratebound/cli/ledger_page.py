"""The report of a month for a terminal, with bars. Names are shown as text: nothing in them is read as a style."""

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ratebound.cli.figures_page import shown
from ratebound.ledger.report import MonthReport, UsedUnits
from ratebound.ledger.report_html import EACH_RULE, MONTHS
from ratebound.report.page import percent

BAR = 30  # columns
SMALL_BAR = 16
MOST_LINES = 40  # of the table for billing
EIGHTHS = " ▏▎▍▌▋▊▉█"


def report_page(report: MonthReport) -> RenderableType:
    """Return the report as a page for a terminal."""
    parts: list[RenderableType] = [_heading(report), _totals(report.total)]
    if not report.total.allowed and not report.total.denied:
        return Group(*parts, Text("nothing was used in this month", style="dim"))
    parts += [_days(report), _rules(report)]
    if report.clients:
        parts.append(_clients(report))
    parts.append(_lines(report))
    return Group(*parts)


def bar(share: float, width: int, style: str) -> Text:
    """Return a bar that is filled to a share, to an eighth of a column. A share above 0 is never empty."""
    eighths = min(8 * width, max(1, round(share * width * 8))) if share > 0 else 0
    full, rest = divmod(eighths, 8)
    text = "█" * full + (EIGHTHS[rest] if rest else "")
    return Text(text.ljust(width), style=style)


def _heading(report: MonthReport) -> Text:
    year, _, month = report.month.partition("-")
    text = Text(f"Usage in {MONTHS[int(month) - 1]} {year}", style="bold")
    if report.client is not None:
        text.append(f": {shown(report.client)}")
    return text.append(f"\nDays of {report.zone}. {EACH_RULE}", style="not bold dim")


def _totals(total: UsedUnits) -> Text:
    text = Text(f"units {total.units:,}")
    text.append(f"   overage {total.overage:,}", style="yellow" if total.overage else "")
    text.append(f"   allowed {total.allowed:,}", style="green")
    return text.append(
        f"   denied {total.denied:,} ({percent(total.denial_rate)})", style="red" if total.denied else ""
    )


def _days(report: MonthReport) -> Table:
    table = _table("day", numbers=("units", "overage", "denied"), bars=("", ""))
    most = max(one.used.units for one in report.days)
    last = max((number for number, one in enumerate(report.days) if any(one.used)), default=-1)
    for one in report.days[: last + 1]:
        used = one.used
        table.add_row(
            f"{one.day:%a %d}",
            bar(max(0, used.units) / most if most else 0, BAR, "blue"),
            f"{used.units:,}",
            f"{used.overage:,}" if used.overage else "",
            f"{used.denied:,}" if used.denied else "",
            bar(used.denial_rate, SMALL_BAR // 2, "red"),
        )
    return table


def _rules(report: MonthReport) -> Table:
    table = _table("rule", numbers=("denial rate", "denied", "allowed"), bars=("",))
    for one in report.rules:
        used = one.used
        rate = bar(used.denial_rate, SMALL_BAR, "red")
        table.add_row(Text(shown(one.rule)), rate, percent(used.denial_rate), f"{used.denied:,}", f"{used.allowed:,}")
    return table


def _clients(report: MonthReport) -> Table:
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("clients with the most units", overflow="fold")
    table.add_column("rule", overflow="fold")
    table.add_column("", no_wrap=True)
    for name in ("units", "denied"):
        table.add_column(name, justify="right", no_wrap=True)
    most = max(one.used.units for one in report.clients)
    for one in report.clients:
        share = bar(one.used.units / most if most else 0, SMALL_BAR, "blue")
        table.add_row(
            Text(shown(one.client)), Text(shown(one.rule)), share, f"{one.used.units:,}", f"{one.used.denied:,}"
        )
    return table


def _lines(report: MonthReport) -> RenderableType:
    if not report.lines:
        return Text("no overage in this month", style="dim")
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("overage of client", overflow="fold")
    table.add_column("rule", overflow="fold")
    for name in ("units", "overage"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in report.lines[:MOST_LINES]:
        table.add_row(Text(shown(one.client)), Text(shown(one.rule)), f"{one.units:,}", f"{one.overage:,}")
    more = len(report.lines) - MOST_LINES
    if more <= 0:
        return table
    return Group(table, Text(f"and {more:,} more: --format csv has all", style="dim"))


def _table(first: str, *, numbers: Sequence[str], bars: Sequence[str]) -> Table:
    """Return a table with a bar after the first column, numbers, and perhaps another bar."""
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column(first, overflow="fold")
    table.add_column(bars[0], no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for name in bars[1:]:
        table.add_column(name, no_wrap=True)
    return table
