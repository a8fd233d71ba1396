"""The ledger in PostgreSQL: partitions by month, made ahead and dropped; privileges; writers that meet."""

import re
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from ratebound import Limiter, StorageError
from ratebound.ledger import Ledger
from ratebound.ledger.postgres_ledger import PostgresLedger, partition_name
from ratebound.ledger.usage_rows import UsageRecord
from ratebound.storage.postgres.address import read_url
from ratebound.storage.postgres.connect import open_connection
from tests.databases import Postgres, pgbouncer_of
from tests.ledger.ledgers import make_tables, rows_of, totals_of_rules

DAY = 86_400


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def record(when: str, client: str = "c") -> UsageRecord:
    return UsageRecord(at(when), client, "r", "", 1, 1, 0, 0)


def partitions(url: str, table: str = "ratebound_usage") -> dict[str, int]:
    """The partitions of the usage, with the number of rows in each."""
    with closing(open_connection(read_url(url))) as connection:
        names = connection.execute(
            "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid"
            " WHERE inhparent = to_regclass(%s) ORDER BY 1",
            (table,),
        ).fetchall()
        counts: dict[str, int] = {}
        schema = table.removesuffix("ratebound_usage")
        for (name,) in names:
            row: Any = connection.execute(f"SELECT count(*) FROM {schema}{name}".encode()).fetchone()
            counts[name.removeprefix("ratebound_usage_")] = row[0]
        return counts


@pytest.fixture
def url(postgres: Postgres) -> str:
    url = postgres.new_database()
    make_tables(url)
    return url


def test_partitions_of_three_months_are_made_ahead_and_the_rest_has_one_of_its_own(url: str) -> None:
    database = PostgresLedger(url)
    database.maintain(at("2026-11-16"), None)
    records = [record("2026-10-31T23:00"), record("2026-11-01"), record("2026-12-31T23:00"), record("2027-02-01")]
    database.write(b"w", 1, records)
    assert partitions(url) == {"2026_11": 1, "2026_12": 1, "2027_01": 0, "other": 2}
    database.maintain(at("2026-12-31T23:59"), None)
    assert partitions(url) == {"2026_11": 1, "2026_12": 1, "2027_01": 0, "2027_02": 1, "other": 1}, "rows have moved"
    database.write(b"w", 2, [record("2027-02-01")])
    assert partitions(url)["2027_02"] == 1, "the row that moved was added to"
    database.disconnect()


def test_a_machine_whose_clock_is_ahead_removes_nothing(url: str) -> None:
    database = PostgresLedger(url)
    now = int(time.time())
    month = datetime.fromtimestamp(now, UTC).strftime("%Y_%m")
    database.maintain(now, None)
    database.write(b"w", 1, [UsageRecord(now // 3600 * 3600, "c", "r", "", 1, 1, 0, 0)])
    database.maintain(now + 5 * 365 * DAY, 400 * DAY)
    assert partitions(url)[month] == 1
    database.write(b"w", 1, [UsageRecord(now // 3600 * 3600, "c", "r", "", 1, 1, 0, 0)])
    with closing(open_connection(read_url(url))) as connection:
        totals: Any = connection.execute("SELECT sum(units) FROM ratebound_usage_totals").fetchone()
    assert totals[0] == 1, "the numbers of flushes are kept, too"
    database.disconnect()


def test_months_that_are_too_old_are_dropped(url: str) -> None:
    database = PostgresLedger(url)
    for month in ("2026-01", "2026-04", "2026-07"):
        database.maintain(at(f"{month}-02"), None)
    days = ("2025-06-01", "2026-01-15", "2026-06-30T23:00", "2026-07-01", "2026-09-01")
    database.write(b"w", 1, [record(day) for day in days])
    database.maintain(at("2026-09-10"), 60 * DAY)  # until the 12th of July
    assert partitions(url) == {"2026_07": 1, "2026_08": 0, "2026_09": 1, "2026_10": 0, "2026_11": 0, "other": 0}
    with closing(open_connection(read_url(url))) as connection:
        totals: Any = connection.execute("SELECT sum(units) FROM ratebound_usage_totals").fetchone()
    assert totals[0] == 2
    database.disconnect()


def test_a_partition_name_sorts_by_time() -> None:
    names = [partition_name(2026 * 12 + month) for month in (0, 11)]
    assert names == ["ratebound_usage_2026_01", "ratebound_usage_2026_12"]


def test_a_user_that_may_only_write_keeps_a_ledger(
    postgres: Postgres, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"writer{id(url)}"
    with closing(open_connection(read_url(url))) as connection:
        for statement in (
            f"CREATE ROLE {role} LOGIN",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
        ):
            connection.execute(statement.encode())
    try:
        with Ledger(url.replace("ratebound@", f"{role}@"), clients="name", every=3600, keep="30 days") as ledger:
            limiter = Limiter("9/day as d", listeners=[ledger])
            for _ in range(3):
                limiter.hit("a")
                ledger.flush()
            assert rows_of(ledger) == {("a", "d", ""): (3, 3, 0, 0)}
        assert partitions(url) == {"other": 1}
        assert [message for message in caplog.messages if "permission denied" in message] == caplog.messages
        assert len(caplog.messages) == 1, "it is said once"
        assert "grant it the role of the table's owner" in caplog.messages[0]
    finally:
        with closing(open_connection(read_url(url))) as connection:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("is_slow", [False, True])
def test_usage_in_partitions_that_cannot_be_dropped_is_deleted(
    postgres: Postgres, url: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = PostgresLedger(url)
    owner.maintain(at("2026-01-02"), None)
    owner.write(b"w", 1, [record("2026-01-15"), record("2026-03-15")])
    owner.disconnect()
    role = f"sweeper{id(url)}"
    with closing(open_connection(read_url(url))) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}".encode())
    try:
        other = PostgresLedger(url.replace("ratebound@", f"{role}@"))
        if is_slow:  # then it goes on with the next flush, and not in an hour
            monkeypatch.setattr("ratebound.ledger.postgres_ledger.SWEPT", 1)
            monkeypatch.setattr("ratebound.ledger.database.SWEEPING", -1.0)
            assert not other.maintain(at("2026-06-10"), 80 * DAY)
            monkeypatch.undo()
        with pytest.raises(StorageError, match="permission denied"):
            other.maintain(at("2026-06-10"), 80 * DAY)
        other.disconnect()
        assert partitions(url) == {"2026_01": 0, "2026_02": 0, "2026_03": 1, "other": 0}
    finally:
        with closing(open_connection(read_url(url))) as connection:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


def test_missing_tables_name_the_command_that_makes_them(postgres: Postgres) -> None:
    url = postgres.new_database()
    with (
        Ledger(url, clients="name", writes=False) as ledger,
        pytest.raises(StorageError, match="ratebound storage init"),
    ):
        ledger.months()


def test_tables_of_a_later_version_are_refused(url: str) -> None:
    with closing(open_connection(read_url(url))) as connection:
        connection.execute("UPDATE ratebound_schema SET version = 99 WHERE component = 'ledger'")
    with Ledger(url, clients="name", writes=False) as ledger, pytest.raises(StorageError, match="version 99"):
        ledger.months()


def test_a_password_is_never_in_an_error(postgres: Postgres) -> None:
    url = postgres.url.replace("ratebound@", "ratebound:hunter2@").replace(str(postgres.port), "1")
    with Ledger(url, clients="name", writes=False) as ledger, pytest.raises(StorageError) as caught:
        ledger.months()
    assert "hunter2" not in str(caught.value)


def test_a_schema_of_its_own_holds_all_tables(postgres: Postgres) -> None:
    url = postgres.new_database() + "?schema=billing"
    make_tables(url)
    with Ledger(url, clients="name", every=3600) as ledger:
        Limiter("9/day as d", listeners=[ledger]).hit("a")
        ledger.flush()
        with closing(open_connection(read_url(url))) as connection:
            row: Any = connection.execute("SELECT sum(units) FROM billing.ratebound_usage").fetchone()
        assert row[0] == 1
        assert len(partitions(url, "billing.ratebound_usage")) == 4
        assert ledger.usage("a")[0].units == 1


def test_it_works_through_pgbouncer(postgres: Postgres) -> None:
    make_tables(postgres.url)
    with pgbouncer_of(postgres) as bouncer, Ledger(bouncer.url, clients="name", every=3600) as ledger:
        limiter = Limiter("9/day as bounced", listeners=[ledger])
        for _ in range(3):
            limiter.hit("through-pgbouncer")
            ledger.flush()
        assert ledger.usage("through-pgbouncer")[0].units == 3


def test_writers_that_meet_in_the_same_rows_lose_nothing(url: str) -> None:
    ledgers = [Ledger(url, clients="name", every=0.01) for _ in range(4)]

    def work(ledger: Ledger, turn: int) -> None:
        limiter = Limiter("1000000/day as d", listeners=[ledger])
        for number in range(600):
            limiter.hit(f"k{number * (turn + 1) % 50}")
            if number % 60 == 0:
                ledger.flush()

    threads = [threading.Thread(target=work, args=(ledger, turn)) for turn, ledger in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [ledger.close(30) for ledger in ledgers] == [True] * 4
    assert [ledger.state.failures for ledger in ledgers] == [0] * 4, "no deadlock"
    assert sum(numbers[0] for numbers in rows_of(ledgers[0]).values()) == 2400
    assert totals_of_rules(ledgers[0]) == {"d": (2400, 2400, 0, 0)}


def test_the_audit_cannot_be_truncated(url: str) -> None:
    with closing(open_connection(read_url(url))) as connection, pytest.raises(Exception, match="append-only"):
        connection.execute("TRUNCATE ratebound_audit")


def test_a_server_that_sets_another_isolation_is_no_trouble(postgres: Postgres) -> None:
    url = postgres.new_database()
    make_tables(url)
    name = url.rpartition("/")[2]
    postgres.run(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    ledgers = [Ledger(url, clients="name", every=3600) for _ in range(2)]
    for _ in range(5):
        for ledger in ledgers:
            Limiter("99/day as d", listeners=[ledger]).hit("a")
            ledger.flush()
    assert rows_of(ledgers[0]) == {("a", "d", ""): (10, 10, 0, 0)}
    assert all(ledger.close() for ledger in ledgers)


def test_a_connection_that_the_server_closed_while_it_was_idle_is_replaced(
    postgres: Postgres, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Ledger(url, clients="name", every=3600) as ledger:
        limiter = Limiter("9/day as d", listeners=[ledger])
        limiter.hit("a")
        ledger.flush()
        with closing(open_connection(read_url(url))) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        limiter.hit("a")
        ledger.flush()
        assert rows_of(ledger) == {("a", "d", ""): (2, 2, 0, 0)}
    assert caplog.messages == []


def test_a_database_that_cannot_store_every_name_is_refused(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        connection.autocommit = True
        connection.execute("DROP DATABASE IF EXISTS latin")
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    url = re.sub(r"/[^/?]*(\?|$)", r"/latin\1", postgres.new_database())
    make_tables(url)
    with pytest.raises(StorageError, match="needs a database with the encoding UTF8, and this one has LATIN1"):
        PostgresLedger(url).write(b"w", 1, [record("2026-11-16")])
