"""Ledgers for the tests: in an SQLite file or in a fresh PostgreSQL database, with all that was written in them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ratebound.ledger import Ledger
from ratebound.ledger.postgres_tables import COMPONENT, MIGRATIONS
from ratebound.storage.postgres.address import read_url
from ratebound.storage.postgres.connect import open_connection
from ratebound.storage.postgres.migrations import upgrade
from tests.databases import Postgres

KINDS = ("sqlite", "postgresql")


def make_tables(url: str) -> None:
    """Make the tables of a ledger, as `ratebound storage init` does."""
    address = read_url(url)
    with closing(open_connection(address)) as connection:
        upgrade(connection, address, COMPONENT, MIGRATIONS)


def new_url(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of an empty ledger."""
    if kind == "sqlite":
        return f"sqlite:///{folder}/usage.db"
    server: Postgres = request.getfixturevalue("postgres")
    url = server.new_database()
    make_tables(url)
    return url


def rows_of(ledger: Ledger) -> dict[tuple[str, str, str], tuple[int, int, int, int]]:
    """Units, allowed, denied and overage of every client, rule and endpoint, over all time."""
    found = ledger._database.select(
        "SELECT client, rule, endpoint, sum(units), sum(allowed), sum(denied), sum(overage) FROM ratebound_usage"
        " GROUP BY 1, 2, 3",
        (),
    )
    return {row[:3]: (int(row[3]), int(row[4]), int(row[5]), int(row[6])) for row in found}


def totals_of_rules(ledger: Ledger) -> dict[str, tuple[int, int, int, int]]:
    """The same by rule, from the table of totals."""
    sums: Counter[tuple[str, int]] = Counter()
    for row in ledger.totals(by="bucket"):
        for place, number in enumerate(row[2:]):
            sums[row.rule, place] += number
    names = {rule for rule, _ in sums}
    return {rule: (sums[rule, 0], sums[rule, 1], sums[rule, 2], sums[rule, 3]) for rule in names}


def opened(url: str, **options: Any) -> Iterator[Ledger]:
    """A ledger that names clients, and that writes only when it is told to."""
    with Ledger(url, **{"clients": "name", "every": 3600, **options}) as ledger:
        yield ledger
