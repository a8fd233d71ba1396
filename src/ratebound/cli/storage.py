"""The command `ratebound storage`: make, upgrade and show the tables of a storage in PostgreSQL or SQLite."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from ratebound.cli.app import open_console
from ratebound.cli.command_group import CommandGroup
from ratebound.cli.exit_status import errors_told
from ratebound.cli.parameters import STORAGE_URL
from ratebound.cli.policy import FORMAT
from ratebound.cli.words import number
from ratebound.errors import RateboundError
from ratebound.storage.secrecy import hidden, split_url
from ratebound.storage.urls import check_storage_is_installed

URL = click.argument("url", type=STORAGE_URL, envvar="RATEBOUND_STORAGE", default="", metavar="[URL]")
SQL = click.option("--sql", is_flag=True, help="Print the statements instead of running them.")
NO_LEDGER = click.option("--no-ledger", is_flag=True, help="Leave out the tables of the usage ledger.")
JSON = click.option("--json", "shape", flag_value="json", help="The same as --format json.")
SCHEMES = ("postgresql", "postgres", "sqlite")


@click.group(cls=CommandGroup, short_help="Make, upgrade and show the tables of PostgreSQL and SQLite.")
def storage() -> None:
    """Make, upgrade and show the tables of a storage in PostgreSQL or SQLite.

    URL is the storage of the application; by default the one in RATEBOUND_STORAGE. A password may also be in
    PGPASSWORD or in the password file of PostgreSQL.

    \b
    Examples:
      ratebound storage init postgresql://owner@localhost/api
      ratebound storage show sqlite:///limits.db
    """


@storage.command(short_help="Make the tables.")
@URL
@click.option(
    "--unlogged", is_flag=True, help="States are written faster, and are lost when the server of PostgreSQL crashes."
)
@NO_LEDGER
@SQL
def init(url: str, unlogged: bool, no_ledger: bool, sql: bool) -> None:
    """Make the tables that are not there yet. Tables that are there stay as they are.

    The user in the URL needs the privilege to create tables. Programs that use the storage do not: grant them SELECT,
    INSERT, UPDATE and DELETE on the tables.

    \b
    Examples:
      ratebound storage init postgresql://owner@localhost/api
      ratebound storage init postgresql://owner@localhost/api --sql
    """
    with _opened(url):
        _tables_of(url).make(url, unlogged, no_ledger, sql)


@storage.command(short_help="Bring the tables of an older version up to date.")
@URL
@NO_LEDGER
@SQL
def upgrade(url: str, no_ledger: bool, sql: bool) -> None:
    """Bring tables that an older version has made up to date, and make what is missing. Counts stay.

    Upgrade the tables first, then the programs that use them.

    \b
    Examples:
      ratebound storage upgrade postgresql://owner@localhost/api
      ratebound storage upgrade sqlite:///limits.db
    """
    with _opened(url):
        _tables_of(url).upgrade(url, no_ledger, sql)


@storage.command(short_help="Show versions, rows and size of the tables.")
@URL
@FORMAT
@JSON
def show(url: str, shape: str) -> None:
    """Show the versions of the tables, how many rows they have, how many of them have expired, and their size.

    All states are read once, without locks. Expired rows are no mistake: programs that use the storage remove them
    from time to time.

    \b
    Examples:
      ratebound storage show postgresql://localhost/api
      ratebound storage show sqlite:///limits.db --json
    """
    with _opened(url):
        report: dict[str, Any] = _tables_of(url).report(url)
        if shape == "json":
            click.echo(json.dumps(report, ensure_ascii=False, indent=2))
            return
        table = Table(box=SIMPLE, pad_edge=False, show_header=False)
        table.add_column("what", no_wrap=True)
        table.add_column("value", overflow="fold")
        for what, value in report.items():
            table.add_row(what.replace("_", " "), Text(_shown(what, value)))
        open_console().print(table)


@contextmanager
def _opened(url: str) -> Iterator[None]:
    """Answer errors of one command: a mistake exits with status 2, and a storage that fails with status 1."""
    with errors_told(values=True):
        if not url:
            raise RateboundError("which storage? Give its URL, postgresql://host/database, or set RATEBOUND_STORAGE")
        if split_url(url).scheme not in SCHEMES:
            raise RateboundError(
                f"{hidden(url)} has no tables: expected postgresql://host/database or sqlite:///file.db. Other"
                " storages need no preparation"
            )
        check_storage_is_installed(url)
        yield


def _tables_of(url: str) -> Any:
    """Return the module that knows the tables of a URL. It is imported now: psycopg may not be installed."""
    kind = "sqlite" if split_url(url).scheme == "sqlite" else "postgres"
    return import_module(f"ratebound.cli.{kind}_tables")


def _shown(what: str, value: Any) -> str:
    if what == "versions":
        return ", ".join(f"{component} {version}" for component, version in value.items())
    if what == "logged":
        return "yes" if value else "no: states are lost when the server crashes"
    if what == "size":
        return f"{value / (1 << 20):.1f} MB"
    return number(value) if isinstance(value, int) else str(value)
