"""The tables of the states and of the shared documents, as migrations."""

from ratebound.storage.postgres.migrations import Migration

COMPONENT = "states"
VERSION = 1  # of the last migration
PARTS = 16  # partitions of the states, by a hash of the name: vacuum and locks of one do not concern the others
# No index but the one of the key: an update must not touch any (HOT). A page keeps room for the next version of a row.
STORED = "WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)"


def migrations_of_states(unlogged: bool = False) -> tuple[Migration, ...]:
    """Return the migrations of the states. Unlogged states are lost when the server crashes; documents are not."""
    kind = "UNLOGGED TABLE" if unlogged else "TABLE"
    states = (
        "CREATE TABLE {schema}ratebound_states"
        " (name bytea PRIMARY KEY, state bytea NOT NULL, expires bigint NOT NULL) PARTITION BY HASH (name)"
    )
    parts = (
        f"CREATE {kind} {{schema}}ratebound_states_{part} PARTITION OF {{schema}}ratebound_states"
        f" FOR VALUES WITH (MODULUS {PARTS}, REMAINDER {part}) {STORED}"
        for part in range(PARTS)
    )
    documents = (
        "CREATE TABLE {schema}ratebound_documents"
        " (name bytea PRIMARY KEY, version bigint NOT NULL, content bytea NOT NULL)"
    )
    return (Migration(1, (states, *parts, documents)),)
