"""The tables of a storage in SQLite, and the statements that use them. Statements run inside the caller's transaction.

No cursor is kept: one that the traceback of an error refers to would keep the file open after its connection is closed.

Writers remove expired states: a cursor walks over the names, a few rows at a time. There is no index on
`expires`, because every decision would have to change it.
"""

import sqlite3
from collections.abc import Iterable, Sequence

from ratebound.storage import Document
from ratebound.storage.sqlite.address import SqliteAddress
from ratebound.storage.sqlite.connect import begin, roll_back
from ratebound.storage.stored_states import StateChange

STRICT = "STRICT" if sqlite3.sqlite_version_info >= (3, 37) else ""
WITHOUT_ROWID = ", ".join(filter(None, [STRICT, "WITHOUT ROWID"]))
TABLES = {
    "states": "name BLOB NOT NULL PRIMARY KEY, state BLOB NOT NULL, expires INTEGER NOT NULL",  # expires in µs
    "documents": "name BLOB NOT NULL PRIMARY KEY, version INTEGER NOT NULL, content BLOB NOT NULL",
}
MAKE = tuple(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) {WITHOUT_ROWID}" for name, columns in TABLES.items())
READ = "SELECT state FROM states WHERE name = ?"
WRITE = (
    "INSERT INTO states (name, state, expires) VALUES (?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET state = excluded.state, expires = excluded.expires"
)
DELETE = "DELETE FROM states WHERE name = ?"
NEXT = "SELECT name FROM states WHERE name > ? ORDER BY name LIMIT 1 OFFSET ?"
EXPIRED = "DELETE FROM states WHERE name > ? AND name <= ? AND expires <= ?"
LAST_EXPIRED = "DELETE FROM states WHERE name > ? AND expires <= ?"


def make_tables(connection: sqlite3.Connection, address: SqliteAddress, ends: float) -> None:
    """Make the tables that are missing. Raises StorageError and exceptions of SQLite."""
    names = ", ".join(f"'{name}'" for name in TABLES)
    (count,) = connection.execute(f"SELECT count(*) FROM sqlite_master WHERE name IN ({names})").fetchone()
    if count == len(TABLES):
        return
    begin(connection, address, ends)
    try:
        for statement in MAKE:
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def read_states(connection: sqlite3.Connection, names: Iterable[bytes], found: dict[bytes, bytes]) -> None:
    """Add the bytes of each state to `found`, unless they are there already; no bytes if there is no such state."""
    for name in names:
        if name not in found:
            row = connection.execute(READ, (name,)).fetchone()
            found[name] = b"" if row is None else row[0]


def write_states(connection: sqlite3.Connection, changes: Iterable[StateChange]) -> None:
    """Write states; delete those that have no bytes."""
    for change in changes:
        if change.data:
            connection.execute(WRITE, change)
        else:
            connection.execute(DELETE, (change.name,))


def sweep(connection: sqlite3.Connection, after: bytes, most: int, now: int) -> bytes:
    """Delete the expired ones among the next states after a name, `most` of them. Return the last name looked at.

    Return no bytes if there are no more states, so that the next sweep begins at the first.
    """
    last = connection.execute(NEXT, (after, most - 1)).fetchone()
    if last is None:
        connection.execute(LAST_EXPIRED, (after, now))
        return b""
    connection.execute(EXPIRED, (after, last[0], now))
    found: bytes = last[0]
    return found


def read_all_documents(connection: sqlite3.Connection, names: Sequence[str]) -> list[Document]:
    """Return the version and the content of each document; (0, b"") for one that was never written."""
    given = [_bytes(name) for name in names]
    marks = ", ".join("?" * len(given))
    rows = connection.execute(f"SELECT name, version, content FROM documents WHERE name IN ({marks})", given)
    found = {name: (version, content) for name, version, content in rows}
    return [found.get(name, (0, b"")) for name in given]


def replace_document(connection: sqlite3.Connection, name: str, content: bytes, version: int) -> bool:
    """Write a document as `version` + 1, if `version` is the stored one. Return False if it is not."""
    ((stored, _),) = read_all_documents(connection, [name])
    if stored != version:
        return False
    connection.execute(
        "INSERT INTO documents (name, version, content) VALUES (?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET version = excluded.version, content = excluded.content",
        (_bytes(name), version + 1, content),
    )
    return True


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
