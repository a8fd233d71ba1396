"""The ledger in an SQLite file, which may also hold the states of limits. Its tables are made by the first writer."""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ratebound.errors import StorageError
from ratebound.ledger.database import FLUSHES_KEPT, MOST_UNITS, sweep, totals_of
from ratebound.ledger.queries import microseconds_at
from ratebound.ledger.usage_rows import UsageRecord
from ratebound.policy.runtime.operator_documents import Change
from ratebound.storage.sqlite.address import read_url
from ratebound.storage.sqlite.connect import SqliteFile, begin, until_free
from ratebound.storage.sqlite.tables import STRICT, WITHOUT_ROWID

VERSION = 1
PATIENCE = 5.0  # seconds for which a writer waits for others: it is never in the path of a request
SWEPT = 1_000  # rows that one statement removes, so that others wait for no more

KEYS = {"ratebound_usage": "bucket, client, rule, endpoint", "ratebound_usage_totals": "bucket, rule"}
NUMBERS = ("units", "allowed", "denied", "overage")
_COLUMNS = ", ".join(f"{name} INTEGER NOT NULL" for name in NUMBERS)
TABLES = (
    f"CREATE TABLE IF NOT EXISTS ratebound_ledger (version INTEGER NOT NULL) {STRICT}",
    f"CREATE TABLE IF NOT EXISTS ratebound_usage (bucket INTEGER NOT NULL, client TEXT NOT NULL, rule TEXT NOT NULL,"
    f" endpoint TEXT NOT NULL, {_COLUMNS}, PRIMARY KEY (bucket, client, rule, endpoint)) {WITHOUT_ROWID}",
    "CREATE INDEX IF NOT EXISTS ratebound_usage_by_client ON ratebound_usage (client, bucket)",
    f"CREATE TABLE IF NOT EXISTS ratebound_usage_totals (bucket INTEGER NOT NULL, rule TEXT NOT NULL, {_COLUMNS},"
    f" PRIMARY KEY (bucket, rule)) {WITHOUT_ROWID}",
    "CREATE TABLE IF NOT EXISTS ratebound_flushes (writer BLOB PRIMARY KEY, number INTEGER NOT NULL,"
    f" at INTEGER NOT NULL) {WITHOUT_ROWID}",
    'CREATE TABLE IF NOT EXISTS ratebound_audit (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, "by" TEXT NOT NULL,'
    f" action TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL, digest BLOB NOT NULL UNIQUE) {STRICT}",
    "CREATE INDEX IF NOT EXISTS ratebound_audit_by_time ON ratebound_audit (at)",
    "CREATE TRIGGER IF NOT EXISTS ratebound_audit_update BEFORE UPDATE ON ratebound_audit"
    " BEGIN SELECT RAISE(ABORT, 'ratebound_audit is append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS ratebound_audit_delete BEFORE DELETE ON ratebound_audit"
    " BEGIN SELECT RAISE(ABORT, 'ratebound_audit is append-only'); END",
    # OR REPLACE removes the old row without the trigger above.
    "CREATE TRIGGER IF NOT EXISTS ratebound_audit_replace BEFORE INSERT ON ratebound_audit"
    " WHEN EXISTS (SELECT 1 FROM ratebound_audit WHERE id = NEW.id OR digest = NEW.digest)"
    " BEGIN SELECT RAISE(ABORT, 'ratebound_audit is append-only'); END",
    f"INSERT INTO ratebound_ledger SELECT {VERSION} WHERE NOT EXISTS (SELECT 1 FROM ratebound_ledger)",
)
_ADDING = ", ".join(f"{name} = max(-{MOST_UNITS}, min({MOST_UNITS}, {name} + excluded.{name}))" for name in NUMBERS)
ADD_USAGE = (
    f"INSERT INTO ratebound_usage VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    f" ON CONFLICT (bucket, client, rule, endpoint) DO UPDATE SET {_ADDING}"
)
ADD_TOTALS = (
    f"INSERT INTO ratebound_usage_totals VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (bucket, rule) DO UPDATE SET {_ADDING}"
)
NOTE_FLUSH = (
    "INSERT INTO ratebound_flushes VALUES (?, ?, ?) ON CONFLICT (writer) DO UPDATE"
    " SET number = excluded.number, at = excluded.at WHERE number < excluded.number"
)
ADD_CHANGE = (
    'INSERT INTO ratebound_audit (at, "by", action, target, detail, digest) SELECT ?, ?, ?, ?, ?, ?'
    " WHERE NOT EXISTS (SELECT 1 FROM ratebound_audit WHERE digest = ?)"
)


class SqliteLedger:
    """A LedgerDatabase in a file of SQLite. Queries have a connection of their own: they never wait for a writer."""

    def __init__(self, url: str) -> None:
        self._address = read_url(url)
        self._patience = PATIENCE
        self._writer = SqliteFile(self._address, self._prepare)
        self._reader = SqliteFile(self._address, _check_version)

    def write(self, writer: bytes, number: int, records: Sequence[UsageRecord]) -> None:
        """Add records, once; see LedgerDatabase."""
        with self._writing() as connection:
            noted = connection.execute(NOTE_FLUSH, (writer, number, int(time.time())))
            if noted.rowcount:
                connection.executemany(ADD_USAGE, records)
                connection.executemany(ADD_TOTALS, totals_of(records))

    def record(self, changes: Sequence[tuple[bytes, Change]]) -> None:
        """Append changes; see LedgerDatabase."""
        with self._writing() as connection:
            for digest, change in changes:
                connection.execute(ADD_CHANGE, (microseconds_at(change.at), *change[1:], digest, digest))

    def select(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query; see LedgerDatabase."""
        if not os.path.lexists(self._address.path):
            raise StorageError(f"there is no ledger {self._address.path}: no program has written to it yet")
        ends = time.monotonic() + PATIENCE
        with self._reader.connected(ends) as connection:
            if not _has_tables(connection):
                return []
            return until_free(self._address, ends, lambda: connection.execute(statement, parameters).fetchall())

    def forget(self, client: str) -> int:
        """Remove the usage of a client; see LedgerDatabase."""
        if not os.path.lexists(self._address.path):
            raise StorageError(f"there is no ledger {self._address.path}: no program has written to it yet")
        with self._writing() as connection:
            return connection.execute("DELETE FROM ratebound_usage WHERE client = ?", (client,)).rowcount

    def maintain(self, now: int, keep: int | None) -> bool:
        """Remove what is too old, a part at a time; see LedgerDatabase."""
        with self._writing() as connection:
            connection.execute("DELETE FROM ratebound_flushes WHERE at < ?", (now - FLUSHES_KEPT,))
        if keep is None:
            return True
        return all(sweep(partial(self._remove, table, now - keep), SWEPT) for table in KEYS)

    def _remove(self, table: str, before: int) -> int:
        """Remove some rows of before an instant. Return how many."""
        key = KEYS[table]
        with self._writing() as connection:
            return connection.execute(
                f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE bucket < ? LIMIT {SWEPT})",
                (before,),
            ).rowcount

    def hurry(self, seconds: float) -> None:
        """Let no write take longer than this."""
        self._patience = min(PATIENCE, seconds)

    def disconnect(self) -> None:
        """Close the connections."""
        self._writer.close(self._patience)
        self._reader.close(self._patience)

    def renew(self) -> None:
        """Do nothing: connections are closed before a fork."""

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Run the body in a transaction. Raises StorageError; then nothing of it was written."""
        ends = time.monotonic() + self._patience
        with self._writer.connected(ends) as connection:
            begin(connection, self._address, ends)
            yield connection
            connection.execute("COMMIT")

    def _prepare(self, connection: sqlite3.Connection, ends: float) -> None:
        """Make the tables if they are not there."""
        if not _has_tables(connection):
            begin(connection, self._address, ends)
            for statement in TABLES:
                connection.execute(statement)
            connection.execute("COMMIT")
        _check_version(connection, ends)


def _has_tables(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'ratebound_ledger'").fetchone()
    return bool(found[0])


def _check_version(connection: sqlite3.Connection, ends: float) -> None:
    if _has_tables(connection):
        (version,) = connection.execute("SELECT max(version) FROM ratebound_ledger").fetchone()
        if version > VERSION:
            raise StorageError(
                f"the tables of the ledger have version {version}, and this program knows version {VERSION}: upgrade"
                " Ratebound in all programs that use the file"
            )
