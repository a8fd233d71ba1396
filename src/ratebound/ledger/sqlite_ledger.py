"""The ledger in an SQLite file, which may also hold the states of limits. Its tables are made by the first writer."""

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ratebound.errors import StorageError
from ratebound.ledger.database import FLUSHES_KEPT, MOST_UNITS
from ratebound.ledger.queries import microseconds_at
from ratebound.ledger.usage_rows import UsageRecord
from ratebound.policy.runtime.operator_documents import Change
from ratebound.storage.secrecy import hidden, split_url

VERSION = 1
PATIENCE = 5.0  # seconds for which a writer waits for others: it is never in the path of a request
SWEPT = 1_000  # rows that one statement removes, so that others wait for no more

KEYS = {"ratebound_usage": "bucket, client, rule, endpoint", "ratebound_usage_totals": "bucket, rule"}
NUMBERS = ("units", "allowed", "denied", "overage")
_COLUMNS = ", ".join(f"{name} INTEGER NOT NULL" for name in NUMBERS)
TABLES = (
    "CREATE TABLE IF NOT EXISTS ratebound_ledger (version INTEGER NOT NULL) STRICT",
    f"CREATE TABLE IF NOT EXISTS ratebound_usage (bucket INTEGER NOT NULL, client TEXT NOT NULL, rule TEXT NOT NULL,"
    f" endpoint TEXT NOT NULL, {_COLUMNS}, PRIMARY KEY (bucket, client, rule, endpoint)) STRICT, WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS ratebound_usage_by_client ON ratebound_usage (client, bucket)",
    f"CREATE TABLE IF NOT EXISTS ratebound_usage_totals (bucket INTEGER NOT NULL, rule TEXT NOT NULL, {_COLUMNS},"
    " PRIMARY KEY (bucket, rule)) STRICT, WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS ratebound_flushes (writer BLOB PRIMARY KEY, number INTEGER NOT NULL,"
    " at INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    'CREATE TABLE IF NOT EXISTS ratebound_audit (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, "by" TEXT NOT NULL,'
    " action TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL, digest BLOB NOT NULL UNIQUE) STRICT",
    "CREATE INDEX IF NOT EXISTS ratebound_audit_by_time ON ratebound_audit (at)",
    "CREATE TRIGGER IF NOT EXISTS ratebound_audit_update BEFORE UPDATE ON ratebound_audit"
    " BEGIN SELECT RAISE(ABORT, 'ratebound_audit is append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS ratebound_audit_delete BEFORE DELETE ON ratebound_audit"
    " BEGIN SELECT RAISE(ABORT, 'ratebound_audit is append-only'); END",
    # OR REPLACE removes the old row without the trigger above.
    "CREATE TRIGGER IF NOT EXISTS ratebound_audit_replace BEFORE INSERT ON ratebound_audit"
    " WHEN EXISTS (SELECT 1 FROM ratebound_audit WHERE id = NEW.id)"
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

# Connections of a parent process, which a forked child must neither use nor close.
_inherited: list[sqlite3.Connection] = []


class SqliteLedger:
    """A LedgerDatabase in a file of SQLite."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = _path_of(url)
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()  # the writer's connection is used by one thread at a time

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
        with self._blamed(), closing(self._open()) as connection:
            if not _has_tables(connection):
                return []
            return connection.execute(statement, parameters).fetchall()

    def maintain(self, now: int, keep: int | None) -> None:
        """Remove what is too old, a part at a time; see LedgerDatabase."""
        with self._writing() as connection:
            connection.execute("DELETE FROM ratebound_flushes WHERE at < ?", (now - FLUSHES_KEPT,))
        if keep is None:
            return
        for table, key in KEYS.items():
            removed = SWEPT
            while removed == SWEPT:
                with self._writing() as connection:
                    removed = connection.execute(
                        f"DELETE FROM {table} WHERE ({key}) IN"
                        f" (SELECT {key} FROM {table} WHERE bucket < ? LIMIT {SWEPT})",
                        (now - keep,),
                    ).rowcount

    def disconnect(self) -> None:
        """Close the writer's connection."""
        with self._lock:
            self._drop()

    def renew(self) -> None:
        """Leave the connection to the parent."""
        self._lock = threading.Lock()
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Run the body in a transaction. A connection that fails is closed."""
        with self._lock, self._blamed():
            if self._connection is None:
                self._connection = self._open(writes=True)
            connection = self._connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                self._drop()  # which rolls back
                raise

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"the ledger {hidden(self._url)} cannot be used: {error}") from error

    def _open(self, *, writes: bool = False) -> sqlite3.Connection:
        if not writes and not self._path.exists():
            raise StorageError(f"there is no ledger {hidden(self._url)}: no program has written to it yet")
        connection = sqlite3.connect(self._path, PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            if writes:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                _make_tables(connection)
            if _has_tables(connection):
                _check_version(connection, hidden(self._url))
        except BaseException:
            connection.close()
            raise
        return connection


def totals_of(records: Sequence[UsageRecord]) -> list[tuple[int, str, int, int, int, int]]:
    """Return the sums of records by bucket and rule, in the order of these two."""
    sums: dict[tuple[int, str], list[int]] = {}
    for record in records:
        found = sums.setdefault((record.bucket, record.rule), [0, 0, 0, 0])
        for place, number in enumerate(record[4:]):
            found[place] += number
    return [(bucket, rule, found[0], found[1], found[2], found[3]) for (bucket, rule), found in sorted(sums.items())]


def _make_tables(connection: sqlite3.Connection) -> None:
    if _has_tables(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    for statement in TABLES:
        connection.execute(statement)
    connection.execute("COMMIT")


def _has_tables(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'ratebound_ledger'").fetchone()
    return bool(found[0])


def _check_version(connection: sqlite3.Connection, shown: str) -> None:
    version = connection.execute("SELECT max(version) FROM ratebound_ledger").fetchone()[0]
    if version != VERSION:
        raise StorageError(
            f"the ledger {shown} has version {version}, and this program knows version {VERSION}: upgrade ratebound"
        )


def _path_of(url: str) -> Path:
    parts = split_url(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or path == ":memory:":
        raise ValueError(
            f"cannot open ledger {hidden(url)}: expected 'sqlite:///usage.db' or 'sqlite:////var/usage.db'"
        )
    return Path(path)
