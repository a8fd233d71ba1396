"""The ledger in PostgreSQL. Its tables are made by `ratebound storage init`; see postgres_tables.py.

Every writer also makes the partitions of the next months, if its user may, and removes months that are too old.
"""

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from ratebound.calendar_period import Calendar
from ratebound.clock import SECOND
from ratebound.errors import StorageError
from ratebound.ledger.database import FLUSHES_KEPT, MOST_UNITS, sweep, totals_of
from ratebound.ledger.postgres_tables import COMPONENT, MIGRATIONS, OTHER_MONTHS, USAGE
from ratebound.ledger.queries import microseconds_at
from ratebound.ledger.usage_rows import UsageRecord
from ratebound.policy.runtime.operator_documents import Change
from ratebound.storage.postgres.address import read_url
from ratebound.storage.postgres.connect import Connection, DatabaseError, open_connection, told
from ratebound.storage.postgres.migrations import newer, version_of

PATIENCE = 10.0  # seconds for a statement: a writer is never in the path of a request
ASKED = 60.0  # seconds for a query: the top clients of a year take long
LOCKED = "2s"  # for which a new partition waits for the table: everybody who comes later would wait, too
LOCK = 0x7261_7465_6C65_6467  # the key of an advisory lock: one process at a time makes and removes partitions
AHEAD = 3  # months that have a partition: this one and the next two
SWEPT = 10_000  # rows that one statement removes
MONTH = re.compile(rf"{USAGE}_([0-9]{{4}})_([0-9]{{2}})")
MONTHS = Calendar("month")
NO_PRIVILEGE, MISPLACED = "42501", "23514"  # SQLSTATEs: of the user; rows of a new partition are in "other"
NOT_OWNER = (
    f"this user cannot add partitions to {USAGE} ({{error}}), so usage goes to {OTHER_MONTHS}: grant it the role of"
    " the table's owner to have a partition for each month"
)

ANY_NAME = ("UTF8", "SQL_ASCII", None)  # encodings that store every name; None if a proxy does not report it

KEYS = {USAGE: "bucket, client, rule, endpoint", f"{USAGE}_totals": "bucket, rule"}
_TABLES = (USAGE, f"{USAGE}_totals", "ratebound_flushes", "ratebound_audit")
_ADDING = ", ".join(
    f"{name} = LEAST(GREATEST(old.{name} + excluded.{name}, -{MOST_UNITS}), {MOST_UNITS})"
    for name in ("units", "allowed", "denied", "overage")
)
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
ADD_USAGE = (
    f"INSERT INTO {USAGE} AS old SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::bigint[],"
    f" %s::bigint[], %s::bigint[], %s::bigint[]) ON CONFLICT (bucket, client, rule, endpoint) DO UPDATE SET {_ADDING}"
)
ADD_TOTALS = (
    f"INSERT INTO {USAGE}_totals AS old SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::bigint[],"
    f" %s::bigint[], %s::bigint[]) ON CONFLICT (bucket, rule) DO UPDATE SET {_ADDING}"
)
NOTE_FLUSH = (
    "INSERT INTO ratebound_flushes AS old VALUES (%s, %s, %s) ON CONFLICT (writer) DO UPDATE"
    " SET number = excluded.number, at = excluded.at WHERE old.number < excluded.number"
)
ADD_CHANGE = (
    'INSERT INTO ratebound_audit (at, "by", action, target, detail, digest) VALUES (%s, %s, %s, %s, %s, %s)'
    " ON CONFLICT (digest) DO NOTHING"
)
PARTITIONS = (
    "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid"
    " WHERE inhparent = to_regclass(%s)"
)

# Connections of a parent process, which a forked child must neither use nor close.
_inherited: list[Connection] = []


class PostgresLedger:
    """A LedgerDatabase in PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._address = read_url(url)
        self._patience = PATIENCE
        self._connection: Connection | None = None
        self._lock = threading.Lock()  # the writer's connection is used by one thread at a time

    def write(self, writer: bytes, number: int, records: Sequence[UsageRecord]) -> None:
        """Add records, once; see LedgerDatabase."""
        with self._writing() as connection:
            if self._run(connection, NOTE_FLUSH, (writer, number, int(time.time()))).rowcount:
                self._run(connection, ADD_USAGE, _columns(records))
                self._run(connection, ADD_TOTALS, _columns(totals_of(records)))

    def record(self, changes: Sequence[tuple[bytes, Change]]) -> None:
        """Append changes; see LedgerDatabase."""
        with self._writing() as connection:
            for digest, change in changes:
                self._run(connection, ADD_CHANGE, (microseconds_at(change.at), *change[1:], digest))

    def select(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query; see LedgerDatabase."""
        connection = self._open(ASKED)
        try:
            found: list[tuple[Any, ...]] = self._run(connection, statement.replace("?", "%s"), parameters).fetchall()
            return found
        except DatabaseError as error:
            raise told(error, self._address) from error
        finally:
            connection.close()

    def forget(self, client: str) -> int:
        """Remove the usage of a client; see LedgerDatabase."""
        with self._writing() as connection:
            return int(self._run(connection, "DELETE FROM ratebound_usage WHERE client = %s", (client,)).rowcount)

    def maintain(self, now: int, keep: int | None) -> bool:
        """Make partitions of the next months, and remove old ones; see LedgerDatabase.

        Whole months are removed, as soon as all of a month is older than `keep`. What is old must be old by the clock
        of the database, too: a machine whose clock is ahead removes nothing that others keep.
        """
        with self._writing() as connection:
            row: Any = connection.execute("SELECT floor(extract(epoch FROM now()))::bigint").fetchone()
            sure = min(now, int(row[0]))
            self._run(connection, "DELETE FROM ratebound_flushes WHERE at < %s", (sure - FLUSHES_KEPT,))
        month, failed = MONTHS.index_at(now * SECOND), None
        try:
            self._make_partitions(range(month, month + AHEAD))
        except StorageError as error:
            failed = error  # old usage is still removed
        is_done = keep is None or self._remove_before(MONTHS.index_at((sure - keep) * SECOND))
        if failed is not None and is_done:
            raise failed
        return is_done

    def hurry(self, seconds: float) -> None:
        """Let no write take longer than this. Another connection is needed for that."""
        self._patience = min(PATIENCE, seconds)
        if self._lock.acquire(timeout=seconds):
            try:
                self._drop()
            finally:
                self._lock.release()

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

    def _make_partitions(self, months: Sequence[int]) -> None:
        for month in months:
            name = partition_name(month)
            with self._writing() as connection:
                if not self._may_change(connection) or name in self._partitions(connection):
                    continue
                try:
                    with connection.transaction():
                        self._run(connection, f"CREATE TABLE {name} PARTITION OF {USAGE} {_bounds(month)}")
                except DatabaseError as error:
                    if error.sqlstate == NO_PRIVILEGE:
                        raise StorageError(NOT_OWNER.format(error=str(error).strip())) from error
                    if error.sqlstate != MISPLACED:
                        raise
                    self._move_into_partition(connection, name, month)

    def _move_into_partition(self, connection: Connection, name: str, month: int) -> None:
        """Make the partition of a month of which the partition for the rest has rows already."""
        self._run(connection, f"LOCK TABLE {USAGE} IN ACCESS EXCLUSIVE MODE")
        self._run(connection, f"CREATE TABLE {name} (LIKE {USAGE} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
        self._run(
            connection,
            f"WITH moved AS (DELETE FROM {OTHER_MONTHS} WHERE bucket >= %s AND bucket < %s RETURNING *)"
            f" INSERT INTO {name} SELECT * FROM moved",
            (_start(month), _start(month + 1)),
        )
        self._run(connection, f"ALTER TABLE {USAGE} ATTACH PARTITION {name} {_bounds(month)}")

    def _remove_before(self, month: int) -> bool:
        """Remove all usage before a month. Partitions are dropped; what is left elsewhere is deleted in parts. Return
        False if not all of it was."""
        with self._writing() as connection:
            found = [name for name in self._partitions(connection) if _is_before(name, month)]
        for name in found:
            with suppress(_NotAllowed), self._writing() as connection:
                if self._may_change(connection):
                    try:
                        self._run(connection, f"DROP TABLE IF EXISTS {name}")
                    except DatabaseError as error:
                        if error.sqlstate != NO_PRIVILEGE:
                            raise
                        raise _NotAllowed from error
        return all(sweep(partial(self._remove, table, _start(month)), SWEPT) for table in KEYS)

    def _remove(self, table: str, before: int) -> int:
        """Remove some rows of before an instant. Return how many."""
        key = KEYS[table]
        statement = f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE bucket < %s LIMIT {SWEPT})"
        with self._writing() as connection:
            return int(self._run(connection, statement, (before,)).rowcount)

    def _partitions(self, connection: Connection) -> list[str]:
        rows = connection.execute(PARTITIONS.encode(), (self._address.table(USAGE),)).fetchall()
        return [str(row[0]) for row in rows]

    def _may_change(self, connection: Connection) -> bool:
        """Return True if no other process makes or removes partitions now. It holds until the transaction ends."""
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (LOCKED,))
        row: Any = connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (LOCK,)).fetchone()
        return bool(row[0])

    def _run(self, connection: Connection, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Run a statement, with the schema of the URL before the names of tables."""
        if self._address.schema:
            statement = re.sub(rf"\b(?:{'|'.join(_TABLES)})\w*\b", lambda one: self._address.table(one[0]), statement)
        return connection.execute(statement.encode(), parameters or None)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Run the body in a transaction. Raises StorageError; then it may or may not have been committed."""
        with self._lock:
            try:
                connection = self._begun()
                yield connection
                connection.execute("COMMIT")
            except DatabaseError as error:
                self._drop()
                raise told(error, self._address) from error
            except BaseException:
                self._drop()
                raise

    def _begun(self) -> Connection:
        """Return the connection, in a new transaction. One that was closed while it was idle is replaced."""
        if self._connection is not None:
            try:
                self._connection.execute(BEGIN)
                return self._connection
            except DatabaseError:
                self._drop()
        self._connection = self._open(self._patience)
        self._connection.execute(BEGIN)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self, seconds: float) -> Connection:
        connection = open_connection(self._address, seconds)
        try:
            _check_encoding(connection)
            version, known = version_of(connection, self._address, COMPONENT), MIGRATIONS[-1].version
            if version > known:
                raise StorageError(newer(COMPONENT, version, known))
            if version < known:
                verb = "upgrade" if version else "init"
                raise StorageError(
                    f"the tables of the ledger are not there, or too old. Run: ratebound storage {verb}"
                    f" {self._address.url}"
                )
        except BaseException:
            connection.close()
            raise
        return connection


class _NotAllowed(Exception):
    """A user may not drop a partition."""


def _check_encoding(connection: Connection) -> None:
    """Raise StorageError if the database cannot store every name: else one client would stop all writing."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ANY_NAME:
        raise StorageError(
            f"a ledger needs a database with the encoding UTF8, and this one has {encoding}: name another, made by"
            " CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        )


def partition_name(month: int) -> str:
    """Return the name of the partition of a month, which is the number of months since the year 0."""
    return f"{USAGE}_{month // 12:04}_{month % 12 + 1:02}"


def _is_before(name: str, month: int) -> bool:
    found = MONTH.fullmatch(name)
    return found is not None and int(found[1]) * 12 + int(found[2]) - 1 < month


def _start(month: int) -> int:
    return MONTHS.start_of(month) // SECOND


def _bounds(month: int) -> str:
    return f"FOR VALUES FROM ({_start(month)}) TO ({_start(month + 1)})"


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
