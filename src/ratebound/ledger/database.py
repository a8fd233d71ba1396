"""The seam between the ledger and its database. Each kind of database is opened by the one file that knows it."""

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from ratebound.ledger.usage_rows import UsageRecord
from ratebound.policy.runtime.operator_documents import Change
from ratebound.storage.secrecy import hidden
from ratebound.storage.urls import check_storage_is_installed

MOST_UNITS = 2**53  # numbers are capped here, so that sums of them fit into the integers of both databases
SWEEPING = 1.0  # seconds for which old rows are removed at once
FLUSHES_KEPT = 90 * 86_400  # seconds for which the last flush of a writer is remembered

KINDS = {
    "sqlite": ("ratebound.ledger.sqlite_ledger", "SqliteLedger"),
    "postgresql": ("ratebound.ledger.postgres_ledger", "PostgresLedger"),
    "postgres": ("ratebound.ledger.postgres_ledger", "PostgresLedger"),
}


class LedgerDatabase(Protocol):
    """A database that keeps usage. One thread at a time writes; `select` may be called by any thread at any time.

    All methods raise StorageError, and nothing else, if the database cannot do it.
    """

    def write(self, writer: bytes, number: int, records: Sequence[UsageRecord]) -> None:
        """Add records in one transaction, unless this writer has written this number or a later one before.

        So a flush whose answer was lost can be repeated.
        """

    def record(self, changes: Sequence[tuple[bytes, Change]]) -> None:
        """Append changes of operators, each with the digest of its content. Those that are there already stay."""

    def select(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query, over a connection of its own."""

    def forget(self, client: str) -> int:
        """Remove the usage of a client, and return how many rows that were. Totals of all clients stay."""

    def maintain(self, now: int, keep: int | None) -> bool:
        """Make room ahead, and remove what is older than `keep` seconds; None keeps all. `now` is in seconds.

        Return False if there is more to remove, and it would take too long at once.
        """

    def hurry(self, seconds: float) -> None:
        """Let no call take longer than this from now on: the program ends."""

    def disconnect(self) -> None:
        """Close the writer's connection. The next write opens another."""

    def renew(self) -> None:
        """Leave the connection to the parent: called in a forked child."""


def open_database(url: object) -> LedgerDatabase:
    """Open the database of a ledger by its URL; nothing is connected yet. Raises ValueError, TypeError and
    ModuleNotFoundError."""
    if not isinstance(url, str):
        raise TypeError(f"expected the URL of a ledger, like 'sqlite:///usage.db', not {url!r}")
    found = KINDS.get(url.partition(":")[0].lower())
    if found is None:
        raise ValueError(f"cannot open ledger {hidden(url)}: expected 'sqlite:///usage.db' or 'postgresql://host/db'")
    check_storage_is_installed(url)
    database: LedgerDatabase = getattr(import_module(found[0]), found[1])(url)
    return database


def sweep(remove: Callable[[], int], most: int) -> bool:
    """Call `remove`, which removes `most` rows if there are so many, until fewer are left. Return False if the time is
    over before."""
    ends = time.monotonic() + SWEEPING
    while remove() == most:
        if time.monotonic() > ends:
            return False
    return True


def capped(number: int) -> int:
    """Return a number as it is stored."""
    return max(-MOST_UNITS, min(number, MOST_UNITS))


def totals_of(records: Sequence[UsageRecord]) -> list[tuple[int, str, int, int, int, int]]:
    """Return the sums of records by bucket and rule, in the order of these two."""
    sums: dict[tuple[int, str], list[int]] = {}
    for record in records:
        found = sums.setdefault((record.bucket, record.rule), [0, 0, 0, 0])
        for place, number in enumerate(record[4:]):
            found[place] += number
    return [(bucket, rule, found[0], found[1], found[2], found[3]) for (bucket, rule), found in sorted(sums.items())]
