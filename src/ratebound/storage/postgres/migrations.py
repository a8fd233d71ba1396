"""Tables and their versions: each component, the states or the ledger, has migrations that make it what it is now.

`upgrade` runs those that a database has not seen, in one transaction, under a lock: any number of processes may call it
at once. A migration that was released is never changed; another one follows it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ratebound.errors import StorageError
from ratebound.storage.postgres.address import PostgresAddress
from ratebound.storage.postgres.connect import Connection, DatabaseError, told

LOCK = 0x7261_7465_626F_756E  # the key of an advisory lock
SCHEMA = "ratebound_schema"  # the table of versions


class Migration(NamedTuple):
    """The statements that lead to a version. `{schema}` in them stands for the schema's name and a dot, or nothing."""

    version: int
    statements: tuple[str, ...]


def statements_of(
    address: PostgresAddress, component: str, migrations: Sequence[Migration], since: int = 0
) -> list[str]:
    """Return the statements that lead from a version to the last one, as `upgrade` runs them."""
    prefix = f'"{address.schema}".' if address.schema else ""
    found = [
        f"CREATE TABLE IF NOT EXISTS {prefix}{SCHEMA}"
        " (component text PRIMARY KEY, version integer NOT NULL, cursor bytea)"
    ]
    if address.schema:
        found.insert(0, f'CREATE SCHEMA IF NOT EXISTS "{address.schema}"')
    for migration in migrations:
        if migration.version > since:
            found.extend(statement.replace("{schema}", prefix) for statement in migration.statements)
    last = max((migration.version for migration in migrations), default=0)
    found.append(
        f"INSERT INTO {prefix}{SCHEMA} (component, version) VALUES ('{component}', {last})"
        " ON CONFLICT (component) DO UPDATE SET version = excluded.version"
    )
    return found


def version_of(connection: Connection, address: PostgresAddress, component: str) -> int:
    """Return the version of a component in a database; 0 if it is not there. Raises StorageError."""
    try:
        if not _is_there(connection, "to_regclass", address.table(SCHEMA)):
            return 0
        row: Any = connection.execute(
            f"SELECT version FROM {address.table(SCHEMA)} WHERE component = %s".encode(), (component,)
        ).fetchone()
    except DatabaseError as error:
        raise told(error, address) from error
    return 0 if row is None else int(row[0])


def _is_there(connection: Connection, function: str, name: str) -> bool:
    found = connection.execute(f"SELECT {function}(%s) IS NOT NULL".encode(), (name,)).fetchone()
    return found is not None and bool(found[0])


def upgrade(
    connection: Connection, address: PostgresAddress, component: str, migrations: Sequence[Migration]
) -> tuple[int, int]:
    """Run the migrations that a database has not seen. Return the version before and after.

    Raises StorageError, also for a database of a later version than this program knows. Then nothing is changed.
    """
    last = max((migration.version for migration in migrations), default=0)
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            before = version_of(connection, address, component)
            if before > last:
                raise StorageError(newer(component, before, last), undone=True, outage=False)
            if before < last:
                statements = statements_of(address, component, migrations, before)
                # Creating a schema takes a privilege, even if it is there.
                if address.schema and _is_there(connection, "to_regnamespace", f'"{address.schema}"'):
                    del statements[0]
                for statement in statements:
                    connection.execute(statement.encode())
    except DatabaseError as error:
        raise told(error, address) from error
    return before, last


def newer(component: str, found: int, known: int) -> str:
    """Return the message for tables of a later version."""
    return (
        f"the tables of {component!r} have version {found}, and this program knows version {known}: upgrade Ratebound"
        " in all programs that use the database"
    )
