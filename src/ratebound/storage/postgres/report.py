"""The content of a database in figures, for operators: versions of the tables, rows, and sizes."""

from typing import NamedTuple

from ratebound.errors import StorageError
from ratebound.storage.postgres.address import PostgresAddress
from ratebound.storage.postgres.connect import Connection, DatabaseError, told
from ratebound.storage.postgres.migrations import SCHEMA, version_of
from ratebound.storage.postgres.statements import NOW
from ratebound.storage.postgres.tables import COMPONENT


class PostgresReport(NamedTuple):
    """The content of a database in figures. Sizes are in bytes, with indexes."""

    storage: str  # its URL, without a login
    server: str  # the version of PostgreSQL
    versions: dict[str, int]  # of each component
    is_logged: bool  # False: states are lost if the server crashes
    rows: int
    expired: int  # of the rows; they are removed from time to time
    documents: int
    size: int


def report_of(connection: Connection, address: PostgresAddress) -> PostgresReport:
    """Return the report of a database. It reads all states once. Raises StorageError."""
    if not version_of(connection, address, COMPONENT):
        raise StorageError(
            f"the tables of Ratebound are not there. Run: ratebound storage init {address.url}", undone=True
        )
    states, documents = address.table("ratebound_states"), address.table("ratebound_documents")
    try:
        (server,) = _row(connection, "SHOW server_version")
        versions = connection.execute(f"SELECT component, version FROM {address.table(SCHEMA)} ORDER BY 1".encode())
        rows, expired = _row(
            connection, f"SELECT count(*), count(*) FILTER (WHERE expires <= (SELECT {NOW})) FROM {states}"
        )
        (kept,) = _row(connection, f"SELECT count(*) FROM {documents}")
        (size,) = _row(connection, f"SELECT sum(pg_total_relation_size(relid)) FROM {_partitions(address)}")
        logged = is_logged(connection, address)
        return PostgresReport(
            address.url, str(server), dict(versions.fetchall()), logged, rows, expired, kept, int(size)
        )
    except DatabaseError as error:
        raise told(error, address) from error


def is_logged(connection: Connection, address: PostgresAddress) -> bool:
    """Return True if states outlast a crash of the server. Raises StorageError."""
    try:
        (found,) = _row(connection, f"SELECT bool_and(relpersistence = 'p') FROM {_partitions(address)}")
        return bool(found)
    except DatabaseError as error:
        raise told(error, address) from error


def _partitions(address: PostgresAddress) -> str:
    return f"pg_partition_tree('{address.table('ratebound_states')}') JOIN pg_class ON oid = relid WHERE isleaf"


def _row(connection: Connection, statement: str) -> tuple[int, ...]:
    found: tuple[int, ...] | None = connection.execute(statement.encode()).fetchone()
    assert found is not None
    return found
