"""The tables of PostgreSQL for the command `ratebound storage`: those of the states, and those of the usage ledger."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import click

from ratebound.errors import StorageError
from ratebound.ledger import postgres_tables
from ratebound.storage.postgres import migrations
from ratebound.storage.postgres.address import PostgresAddress, read_url
from ratebound.storage.postgres.connect import Connection, open_connection
from ratebound.storage.postgres.migrations import Migration, statements_of, version_of
from ratebound.storage.postgres.report import is_logged, report_of
from ratebound.storage.postgres.tables import COMPONENT, migrations_of_states

PATIENCE = 60.0  # seconds for one statement


def make(url: str, unlogged: bool, no_ledger: bool, sql: bool) -> None:
    """Make the tables that are not there, or print the statements. Raises StorageError and ValueError."""
    components = _components(unlogged, no_ledger)
    if sql:
        address = read_url(url)
        print_statements([statements_of(address, component, given) for component, given in components.items()])
        return
    with _connected(url) as (connection, address):
        for component, given in components.items():
            found, last = version_of(connection, address, component), given[-1].version
            if 0 < found < last:
                raise StorageError(
                    f"the tables of the {component} have version {found}, and the last one is {last}. Run: ratebound"
                    f" storage upgrade {address.url}"
                )
            before, _ = migrations.upgrade(connection, address, component, given)
            done = "are there already" if before else "are made"
            click.echo(f"the tables of the {component} {done}: version {last}")
        if unlogged and is_logged(connection, address):
            click.echo(
                "--unlogged has changed nothing, because the tables of the states were logged before. Run ALTER TABLE"
                " … SET UNLOGGED for each partition of ratebound_states"
            )


def upgrade(url: str, no_ledger: bool, sql: bool) -> None:
    """Bring the tables up to date, or print the statements. Raises StorageError and ValueError."""
    components = _components(False, no_ledger)
    with _connected(url) as (connection, address):
        versions = {component: version_of(connection, address, component) for component in components}
        if not any(versions.values()):
            raise StorageError(f"the tables of Ratebound are not there. Run: ratebound storage init {address.url}")
        if sql:
            print_statements(
                [
                    statements_of(address, component, given, versions[component])
                    for component, given in components.items()
                    if versions[component] < given[-1].version
                ]
            )
            return
        for component, given in components.items():
            before, last = migrations.upgrade(connection, address, component, given)
            done = f"had version {before} and have" if before < last else "have"
            click.echo(f"the tables of the {component} {done} version {last}")


def report(url: str) -> dict[str, Any]:
    """Return what the tables hold. Raises StorageError and ValueError."""
    with _connected(url) as (connection, address):
        found = report_of(connection, address)
    return {
        "storage": found.storage,
        "server": f"PostgreSQL {found.server}",
        "versions": found.versions,
        "logged": found.is_logged,
        "states": found.rows,
        "expired_states": found.expired,
        "documents": found.documents,
        "size": found.size,
    }


def print_statements(parts: Sequence[Sequence[str]]) -> None:
    """Print statements as one transaction. What several parts begin with is printed once."""
    click.echo("BEGIN;")
    for statement in dict.fromkeys(statement for part in parts for statement in part):
        click.echo(f"{statement};")
    click.echo("COMMIT;")


def _components(unlogged: bool, no_ledger: bool) -> Mapping[str, Sequence[Migration]]:
    """Return the migrations of each component."""
    states = {COMPONENT: migrations_of_states(unlogged)}
    return states if no_ledger else {**states, postgres_tables.COMPONENT: postgres_tables.MIGRATIONS}


@contextmanager
def _connected(url: str) -> Iterator[tuple[Connection, PostgresAddress]]:
    address = read_url(url)
    with closing(open_connection(address, PATIENCE)) as connection:
        yield connection, address
