"""The statements that a storage sends, and values in PostgreSQL's binary form."""

import struct
from collections.abc import Sequence
from typing import Final

from ratebound.storage.postgres.address import PostgresAddress
from ratebound.storage.postgres.connect import Bound, Statement

BYTEA, INT8, TEXT, BYTEAS, INT8S = 17, 20, 25, 1001, 1016  # the oids of types
NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
BEGIN: Final = Bound(Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", b"ratebound_begin"))
COMMIT: Final = Bound(Statement(b"COMMIT", b"ratebound_commit"))
ROLLBACK: Final = Bound(Statement(b"ROLLBACK", b"ratebound_rollback"))
CLOCK: Final = Bound(Statement(f"SELECT {NOW}".encode(), b"ratebound_clock"))


def array(kind: int, values: Sequence[bytes]) -> bytes:
    """Return an array of values; `kind` is the oid of their type."""
    parts = [struct.pack(">5i", 1, 0, kind, len(values), 1)]
    for value in values:
        parts += (struct.pack(">i", len(value)), value)
    return b"".join(parts)


def int8(value: int) -> bytes:
    """Return a bigint."""
    return struct.pack(">q", value)


def integer(value: bytes | None) -> int:
    """Return the number that a column of any size holds."""
    return int.from_bytes(value or b"", "big", signed=True)


class Statements:
    """The statements for the tables of one address."""

    def __init__(self, address: PostgresAddress) -> None:
        states, documents = address.table("ratebound_states"), address.table("ratebound_documents")
        schema = address.table("ratebound_schema")

        def made(name: str, text: str, *types: int) -> Statement:
            return Statement(text.encode(), f"ratebound_{name}".encode(), types)

        # The timeouts end a wait for a lock, but no COMMIT that waits for a standby. A stopped process gives its locks
        # back after `idle_in_transaction_session_timeout`. Settings end with the transaction: PgBouncer gives the
        # connection to others.
        names = ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"]
        calls = [f"set_config('{name}', ${place}, true)" for place, name in enumerate(names, 1)]
        if address.synchronous_commit:
            calls.append(f"set_config('synchronous_commit', '{address.synchronous_commit}', true)")
        self.settings = made("settings", f"SELECT {', '.join(calls)}", TEXT, TEXT, TEXT)
        # `WHERE false` locks rows that are there without writing them; rows that are not there are made. ORDER BY:
        # all processes lock in one order, so that none waits for another that waits for it.
        upsert = "ON CONFLICT (name) DO UPDATE SET"
        self.lock_one = made(
            "lock_one",
            f"INSERT INTO {states} AS s VALUES ($1, '', 0) {upsert} expires = excluded.expires WHERE false",
            BYTEA,
        )
        self.lock = made(
            "lock",
            f"INSERT INTO {states} AS s SELECT n, '', 0 FROM unnest($1) AS n ORDER BY n"
            f" {upsert} expires = excluded.expires WHERE false",
            BYTEAS,
        )
        # A statement of its own, because its snapshot must be of after the locks, and so must its clock.
        self.read_one = made("read_one", f"SELECT name, state, {NOW} FROM {states} WHERE name = $1", BYTEA)
        self.read = made("read", f"SELECT name, state, {NOW} FROM {states} WHERE name = ANY ($1)", BYTEAS)
        self.write_one = made(
            "write_one", f"UPDATE {states} SET state = $2, expires = $3 WHERE name = $1", BYTEA, BYTEA, INT8
        )
        # An UPDATE … FROM would be planned for all partitions, which takes longer than all the rest.
        self.write = made(
            "write",
            f"INSERT INTO {states} AS s SELECT * FROM unnest($1, $2, $3)"
            f" {upsert} state = excluded.state, expires = excluded.expires",
            *(BYTEAS, BYTEAS, INT8S),
        )
        self.lock_there = made(
            "lock_there", f"SELECT 1 FROM {states} WHERE name = ANY ($1) ORDER BY name FOR UPDATE", BYTEAS
        )
        self.remove = made("remove", f"DELETE FROM {states} WHERE name = ANY ($1)", BYTEAS)
        self.read_documents = made(
            "read_documents", f"SELECT name, version, content FROM {documents} WHERE name = ANY ($1)", BYTEAS
        )
        self.first_document = made(
            "first_document", f"INSERT INTO {documents} VALUES ($1, 1, $2) ON CONFLICT DO NOTHING", BYTEA, BYTEA
        )
        self.next_document = made(
            "next_document",
            f"UPDATE {documents} SET version = version + 1, content = $2 WHERE name = $1 AND version = $3",
            *(BYTEA, BYTEA, INT8),
        )
        component = "WHERE component = 'states'"
        self.version = made("version", f"SELECT version FROM {schema} {component}")
        # One process sweeps at a time: the others skip the locked row.
        self.lock_sweep = made("lock_sweep", f"SELECT cursor FROM {schema} {component} FOR UPDATE SKIP LOCKED")
        self.next_names = made(
            "next_names",
            f"SELECT name, expires < coalesce($2, {NOW}) FROM {states} WHERE name > $1 ORDER BY name LIMIT $3",
            *(BYTEA, INT8, INT8),
        )
        self.sweep = made(
            "sweep",
            f"DELETE FROM {states} WHERE name = ANY (ARRAY(SELECT name FROM {states} WHERE name = ANY ($1)"
            f" AND expires < coalesce($2, {NOW}) FOR UPDATE SKIP LOCKED))",
            *(BYTEAS, INT8),
        )
        self.move_cursor = made("move_cursor", f"UPDATE {schema} SET cursor = $1 {component}", BYTEA)
