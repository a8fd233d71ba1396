"""The command `ratebound ledger`: what clients have used, from the usage ledger, for bills, audits and people."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ratebound.calendar_period import zone_of
from ratebound.cli.app import open_console
from ratebound.cli.command_group import CommandGroup
from ratebound.cli.exit_status import errors_told
from ratebound.cli.figures_page import shown
from ratebound.cli.ledger_page import report_page
from ratebound.cli.parameters import FILE, LEDGER_URL
from ratebound.errors import RateboundError
from ratebound.ledger import Ledger
from ratebound.ledger.periods import Period
from ratebound.ledger.queries import Order
from ratebound.ledger.report import COLUMNS, MonthReport, bill_csv, bill_lines, csv_text, month_report, report_json
from ratebound.ledger.report_html import report_html
from ratebound.report.page import percent

LEDGER_VARIABLE = "RATEBOUND_LEDGER"
SECRET_VARIABLE = "RATEBOUND_LEDGER_SECRET"
SHAPES = {".html": "html", ".htm": "html", ".csv": "csv", ".json": "json"}
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
FILE_WIDTH = 110  # columns of a report that is written to a file as text
NUMBERS = ("units", "allowed", "denied", "overage")
NO_LEDGER = f"which ledger? Give --ledger sqlite:///usage.db, or set {LEDGER_VARIABLE}"

LEDGER = click.option(
    "--ledger", "url", type=LEDGER_URL, metavar="URL", help=f"The ledger. By default that of {LEDGER_VARIABLE}."
)
SECRET = click.option(
    "--secret-file",
    type=FILE,
    help=f"The secret of its digests, to find a client by name. By default that of {SECRET_VARIABLE}.",
)
MONTH = click.option("--month", metavar="YYYY-MM", help="The month. By default the current one.")
ZONE = click.option("--zone", default="UTC", metavar="ZONE", help="The time zone of days and months.")
SINCE = click.option("--since", metavar="TIME", help="The start: 2026-11-16, 2026-11 or 2026-11-16T09:30:00Z.")
UNTIL = click.option("--until", metavar="TIME", help="The end; this instant is not included.")
FORMAT = click.option(
    "--format", "shape", type=click.Choice(["text", "json", "csv"]), default="text", help="The form of the output."
)


@click.group(cls=CommandGroup, short_help="Report what clients have used: months, bills, audits.")
def ledger() -> None:
    """Show what clients have used, from the usage ledger that an application or the service writes.

    Name the ledger with --ledger, or with the environment variable RATEBOUND_LEDGER: sqlite:///usage.db or
    postgresql://HOST/DATABASE. Nothing is written, except by `forget`.

    CSV is for spreadsheets and bills. A name that a spreadsheet would take for a formula has an apostrophe in front.
    JSON has every name exactly as it is.

    \b
    Examples:
      ratebound ledger report --month 2026-11 --ledger sqlite:///usage.db
      ratebound ledger usage user:42 --by month --ledger sqlite:///usage.db
    """


@ledger.command(short_help="Report a month, with pictures.")
@MONTH
@click.option("--client", metavar="CLIENT", help="Only this client, for example user:42.")
@ZONE
@click.option(
    "--format",
    "shape",
    type=click.Choice(["text", "json", "csv", "html"]),
    help="By default what the name of the output file says, else text.",
)
@click.option("--output", type=FILE, help="The file to write. By default it is printed.")
@LEDGER
@SECRET
def report(
    month: str | None,
    client: str | None,
    zone: str,
    shape: str | None,
    output: str | None,
    url: str | None,
    secret_file: str | None,
) -> None:
    """Report a month: units and denials of each day, denial rates of rules, top clients, and overage for billing.

    HTML is one file with pictures that loads nothing from elsewhere. CSV has the overage by client and rule.

    \b
    Examples:
      ratebound ledger report --month 2026-11 --ledger sqlite:///usage.db
      ratebound ledger report --month 2026-11 --output november.html
    """
    shape = shape or (SHAPES.get(Path(output).suffix.lower(), "text") if output else "text")
    with opened_ledger(url, secret_file) as found:
        month = month or _this_month(zone)
        if shape == "csv":
            _write(bill_csv(month, bill_lines(found, month, client=client, zone=zone)), output)
            return
        made = month_report(found, month, client=client, zone=zone)
        if shape == "text" and output is None:
            open_console().print(report_page(made))
        else:
            shapes: dict[str, Callable[[MonthReport], str]] = {"html": report_html, "json": report_json}
            _write(shapes.get(shape, _page_text)(made), output)


@ledger.command(short_help="Show what a client has used, by day or month.")
@click.argument("client")
@click.option(
    "--by",
    type=click.Choice(["hour", "day", "month", "bucket"]),
    default="day",
    help="The period of each row.",
)
@SINCE
@UNTIL
@click.option("--rule", metavar="NAME", help="Only this rule.")
@ZONE
@FORMAT
@LEDGER
@SECRET
def usage(
    client: str,
    by: Period,
    since: str | None,
    until: str | None,
    rule: str | None,
    zone: str,
    shape: str,
    url: str | None,
    secret_file: str | None,
) -> None:
    """Show what CLIENT has used of each rule, by day or month. CLIENT is written like user:42 or 203.0.113.7.

    \b
    Examples:
      ratebound ledger usage user:42 --by month --ledger sqlite:///usage.db
      ratebound ledger usage user:42 --since 2026-11-01 --rule api --format json
    """
    with opened_ledger(url, secret_file) as found:
        rows = found.usage(client, by=by, since=since, until=until, rule=rule, zone=zone)
        _show(rows, ("begin", "rule", *NUMBERS), shape, f"{shown(client)} has used nothing in this time")


@ledger.command(short_help="List the clients with the most units, denials or overage.")
@click.option(
    "--by", type=click.Choice(["units", "denied", "overage"]), default="units", help="What to sort by, the most first."
)
@click.option("--most", type=click.IntRange(1, 100_000), default=20, metavar="NUMBER", help="The most rows to show.")
@SINCE
@UNTIL
@FORMAT
@LEDGER
@SECRET
def top(
    by: Order, most: int, since: str | None, until: str | None, shape: str, url: str | None, secret_file: str | None
) -> None:
    """List the clients and rules with the most units, denials or overage.

    \b
    Examples:
      ratebound ledger top --by denied --since 2026-11-01 --ledger sqlite:///usage.db
      ratebound ledger top --most 100 --format csv
    """
    with opened_ledger(url, secret_file) as found:
        rows = found.top(since=since, until=until, by=by, most=most)
        _show(rows, ("client", "rule", *NUMBERS), shape, "no client in this time")


@ledger.command(short_help="Show how often each rule denied.")
@SINCE
@UNTIL
@FORMAT
@LEDGER
@SECRET
def denials(since: str | None, until: str | None, shape: str, url: str | None, secret_file: str | None) -> None:
    """Show how often each rule allowed and denied, the highest share of denials first.

    \b
    Examples:
      ratebound ledger denials --since 2026-11-01 --ledger sqlite:///usage.db
      ratebound ledger denials --format json
    """
    with opened_ledger(url, secret_file) as found:
        rows = sorted(found.denials(since=since, until=until), key=lambda row: (-row.rate, -row.denied, row.rule))
        _show(rows, ("rule", "allowed", "denied", "rate"), shape, "no rule has decided in this time")


@ledger.command(short_help="Show the overage of a month, for billing.")
@MONTH
@click.option("--client", metavar="CLIENT", help="Only this client, for example user:42.")
@ZONE
@FORMAT
@LEDGER
@SECRET
def overage(
    month: str | None, client: str | None, zone: str, shape: str, url: str | None, secret_file: str | None
) -> None:
    """Show the units above metered quotas in a month, by client and rule.

    \b
    Examples:
      ratebound ledger overage --month 2026-11 --format csv --ledger sqlite:///usage.db
      ratebound ledger overage --client user:42 --zone Europe/Berlin
    """
    with opened_ledger(url, secret_file) as found:
        rows = found.overage(month or _this_month(zone), client=client, zone=zone)
        _show(rows, COLUMNS, shape, "no overage in this month")


@ledger.command(short_help="List what operators have changed.")
@SINCE
@UNTIL
@click.option(
    "--most", type=click.IntRange(1, 100_000), default=100, metavar="NUMBER", help="The most changes to show."
)
@FORMAT
@LEDGER
@SECRET
def audit(
    since: str | None, until: str | None, most: int, shape: str, url: str | None, secret_file: str | None
) -> None:
    """List what operators have changed, newest first: blocks, overrides, switches, grants, and names that were shown.

    \b
    Examples:
      ratebound ledger audit --since 2026-11-01 --ledger sqlite:///usage.db
      ratebound ledger audit --most 500 --format csv
    """
    with opened_ledger(url, secret_file) as found:
        rows = found.audit(since=since, until=until, most=most)
        _show(rows, ("at", "by", "action", "target", "detail"), shape, "operators have changed nothing in this time")


@ledger.command(short_help="Remove the usage of a client.")
@click.argument("client")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@LEDGER
@SECRET
def forget(client: str, yes: bool, url: str | None, secret_file: str | None) -> None:
    """Remove all usage of CLIENT, for example because it has asked for that. It cannot be undone.

    Totals of all clients together stay. So do changes of operators that name the client: the audit only grows.

    \b
    Examples:
      ratebound ledger forget user:42 --ledger sqlite:///usage.db
      ratebound ledger forget user:42 --yes
    """
    with opened_ledger(url, secret_file) as found:
        found.usage(client)  # a mistake is told before the question
        if not yes:
            click.confirm(f"Remove all usage of {shown(client)}?", abort=True)
        removed = found.forget(client)
        click.echo(f"{removed} {'row' if removed == 1 else 'rows'} removed")


@contextmanager
def opened_ledger(url: str | None, secret_file: str | None) -> Iterator[Ledger]:
    """Open a ledger for reading. A mistake exits with status 2, and a ledger that does not answer with status 1."""
    with errors_told(storage="the ledger could not be read: ", values=True):
        found = None
        try:
            given = url or os.environ.get(LEDGER_VARIABLE)
            if not given:
                raise RateboundError(NO_LEDGER)
            secret = _secret(secret_file)
            found = Ledger(given, clients="name" if secret is None else "digest", secret=secret, writes=False)
            yield found
        finally:
            if found is not None:
                found.close()


def _secret(file: str | None) -> str | None:
    if file is None:
        return os.environ.get(SECRET_VARIABLE) or None
    try:
        return Path(file).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise RateboundError(f"{file}: cannot read the secret: {getattr(error, 'strerror', None) or error}") from None


def _this_month(zone: str) -> str:
    return f"{datetime.now(zone_of(zone)):%Y-%m}"


def _page_text(made: MonthReport) -> str:
    console = Console(highlight=False, width=FILE_WIDTH, file=StringIO())
    with console.capture() as page:
        console.print(report_page(made))
    return page.get()


def _print(text: str) -> None:
    """Print a text. Control characters of names are written as escapes: a terminal would obey them."""
    click.echo(CONTROL.sub(lambda match: ascii(match[0])[1:-1], text), nl=False)


def _write(text: str, output: str | None) -> None:
    if output is None:
        _print(text)
    else:
        Path(output).write_text(text, "utf-8")
        click.echo(f"written: {output}", err=True)


def _show(rows: Sequence[Any], columns: Sequence[str], shape: str, nothing: str) -> None:
    """Show rows of the ledger: as a table, as JSON or as CSV."""
    values = [[getattr(row, column) for column in columns] for row in rows]
    if shape == "json":
        document = [dict(zip(columns, map(_plain, one), strict=True)) for one in values]
        click.echo(json.dumps(document, indent=2))
    elif shape == "csv":
        _print(csv_text(columns, [list(map(_plain, one)) for one in values]))
    elif not rows:
        click.echo(nothing)
    else:
        table = Table(box=SIMPLE, pad_edge=False)
        for column in columns:
            is_number = column in (*NUMBERS, "rate")
            heading = {"begin": "from", "at": "at (UTC)"}.get(column, column)
            table.add_column(heading, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
        for one in values:
            table.add_row(*(_cell(column, value) for column, value in zip(columns, one, strict=True)))
        open_console().print(table)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _cell(column: str, value: Any) -> Text:
    if isinstance(value, datetime):
        return Text(f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if column == "at" else f"{value:%Y-%m-%d %H:%M}")
    if column == "rate":
        return Text(percent(value))
    return Text(f"{value:,}" if isinstance(value, int) else shown(str(value)))
