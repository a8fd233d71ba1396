"""Tables for the tests: made once in each server, and emptied of documents for each storage."""

import itertools
from weakref import WeakSet

from ratebound.storage.postgres.address import read_url
from ratebound.storage.postgres.connect import open_connection
from ratebound.storage.postgres.migrations import upgrade
from ratebound.storage.postgres.tables import COMPONENT, migrations_of_states
from tests.databases import Database, Postgres

SLOW = "timeout=5"  # a busy machine must not look like a dead server
runs = itertools.count()
have_tables: WeakSet[Postgres] = WeakSet()


def make_tables(url: str, unlogged: bool = False) -> None:
    """Do what `ratebound storage init` does."""
    address = read_url(url)
    with open_connection(address) as connection:
        upgrade(connection, address, COMPONENT, migrations_of_states(unlogged))


def fresh_url(server: Postgres, through: Database | None = None, options: str = SLOW) -> str:
    """A URL under which nothing was counted yet: its secret is new, and there are no documents."""
    if server not in have_tables:
        make_tables(server.url)
        have_tables.add(server)
    server.run("DELETE FROM ratebound_documents")
    url: str = (through or server).url  # type: ignore[attr-defined]
    return f"{url}?{options}&secret=run{next(runs)}"
