"""The tables of the ledger in PostgreSQL, as migrations. `ratebound storage init` runs them.

Usage is partitioned by month, so that old months are dropped at no cost. The partition "other" takes what no month was
made for. The audit trail is append-only: triggers refuse everything but INSERT.
"""

from ratebound.storage.postgres.migrations import Migration

COMPONENT = "ledger"
USAGE = "ratebound_usage"
OTHER_MONTHS = f"{USAGE}_other"

_NUMBERS = "units bigint NOT NULL, allowed bigint NOT NULL, denied bigint NOT NULL, overage bigint NOT NULL"
_TEXT = 'text COLLATE "C" NOT NULL'

MIGRATIONS = (
    Migration(
        1,
        (
            f"CREATE TABLE {{schema}}{USAGE} (bucket bigint NOT NULL, client {_TEXT}, rule {_TEXT}, endpoint {_TEXT},"
            f" {_NUMBERS}, PRIMARY KEY (bucket, client, rule, endpoint)) PARTITION BY RANGE (bucket)",
            f"CREATE INDEX {USAGE}_by_client ON {{schema}}{USAGE} (client, bucket)",
            f"CREATE TABLE {{schema}}{OTHER_MONTHS} PARTITION OF {{schema}}{USAGE} DEFAULT",
            f"CREATE TABLE {{schema}}{USAGE}_totals (bucket bigint NOT NULL, rule {_TEXT}, {_NUMBERS},"
            " PRIMARY KEY (bucket, rule)) WITH (fillfactor = 70)",
            "CREATE TABLE {schema}ratebound_flushes"
            " (writer bytea PRIMARY KEY, number bigint NOT NULL, at bigint NOT NULL) WITH (fillfactor = 70)",
            "CREATE TABLE {schema}ratebound_audit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            ' at bigint NOT NULL, "by" text NOT NULL, action text NOT NULL, target text NOT NULL,'
            " detail text NOT NULL, digest bytea NOT NULL UNIQUE)",
            "CREATE INDEX ratebound_audit_by_time ON {schema}ratebound_audit (at)",
            "CREATE FUNCTION {schema}ratebound_audit_refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN RAISE EXCEPTION 'ratebound_audit is append-only'; END$$",
            "CREATE TRIGGER ratebound_audit_rows BEFORE UPDATE OR DELETE ON {schema}ratebound_audit"
            " FOR EACH ROW EXECUTE FUNCTION {schema}ratebound_audit_refuse()",
            "CREATE TRIGGER ratebound_audit_whole BEFORE TRUNCATE ON {schema}ratebound_audit"
            " FOR EACH STATEMENT EXECUTE FUNCTION {schema}ratebound_audit_refuse()",
        ),
    ),
)
