"""The tables of SQLite for the command `ratebound storage`. Programs make them by themselves, too."""

import os
import sqlite3
import time
from contextlib import closing
from typing import Any

import click

from ratebound.clock import wall_clock
from ratebound.errors import RateboundError
from ratebound.storage.sqlite.address import check_file, read_url
from ratebound.storage.sqlite.connect import MARK, open_connection, storage_error
from ratebound.storage.sqlite.tables import MAKE, make_tables

PATIENCE = 10.0  # seconds


def make(url: str, unlogged: bool, no_ledger: bool, sql: bool) -> None:
    """Make the file and its tables, or print the statements. Raises StorageError, and ValueError for a wrong URL."""
    address, ends = read_url(url), time.monotonic() + PATIENCE
    if unlogged:
        raise RateboundError("--unlogged is for PostgreSQL: for SQLite write ?synchronous=off in the URL")
    if sql:
        for statement in (*MARK, *MAKE):
            click.echo(f"{statement};")
        return
    with closing(open_connection(address, ends)) as connection:
        try:
            make_tables(connection, address, ends)
        except sqlite3.Error as error:
            raise storage_error(error, address) from error
    click.echo(f"{address.path} is ready" + ("" if no_ledger else "; the ledger makes its own tables when it is used"))


def upgrade(url: str, no_ledger: bool, sql: bool) -> None:
    """Bring the tables up to date: there is one version so far. Raises like `make`, also if there is no file."""
    check_file(url)
    make(url, False, no_ledger, sql)


def report(url: str) -> dict[str, Any]:
    """Return what the tables hold. Raises StorageError, and ValueError for a wrong URL."""
    check_file(url)
    address = read_url(url)
    with closing(open_connection(address, time.monotonic() + PATIENCE)) as connection:
        try:
            make_tables(connection, address, time.monotonic() + PATIENCE)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            count = "SELECT count(*), count(*) FILTER (WHERE expires <= ?) FROM states"
            rows, expired = connection.execute(count, (wall_clock(),)).fetchone()
            (documents,) = connection.execute("SELECT count(*) FROM documents").fetchone()
        except sqlite3.Error as error:
            raise storage_error(error, address) from error
    return {
        "storage": address.url,
        "server": f"SQLite {sqlite3.sqlite_version}",
        "versions": {"states": version},
        "logged": True,
        "states": rows,
        "expired_states": expired,
        "documents": documents,
        "size": sum(os.path.getsize(path) for end in ("", "-wal") if os.path.exists(path := address.path + end)),
    }
