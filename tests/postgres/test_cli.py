"""`ratebound storage`: the tables of PostgreSQL and SQLite, made, upgraded and shown."""

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from ratebound import Limiter
from ratebound.cli.storage import storage
from ratebound.storage.postgres.address import read_url
from ratebound.storage.postgres.connect import open_connection
from ratebound.storage.postgres.migrations import Migration, upgrade, version_of
from tests.databases import Postgres


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(storage, arguments, env=environment)


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.new_database().replace("ratebound@", "ratebound:hunter2@")


def test_init_makes_the_tables_once_and_show_tells_what_is_in_them(url: str) -> None:
    missing = run("show", url)
    assert missing.exit_code == 1
    assert "Run: ratebound storage init postgresql://127.0.0.1" in missing.output
    made = run("init", url)
    assert made.exit_code == 0, made.output
    assert "the tables of the states are made: version 1" in made.output
    assert "the tables of the ledger are made: version 1" in made.output
    assert "are there already" in run("init", url).output
    with Limiter("10/hour", storage=f"{url}?timeout=5", failure="raise") as limiter:
        limiter.hit("a")
    shown = json.loads(run("show", url, "--json").output)
    assert shown["states"] == 1
    assert shown["expired_states"] == 0
    assert shown["logged"] is True
    assert shown["versions"] == {"ledger": 1, "states": 1}
    assert shown["server"].startswith("PostgreSQL 1")
    assert shown["size"] > 0
    for output in (missing.output, made.output, run("show", url).output, json.dumps(shown)):
        assert "hunter2" not in output


def test_unlogged_states_are_shown_as_such(url: str) -> None:
    assert run("init", url, "--unlogged", "--no-ledger").exit_code == 0
    assert json.loads(run("show", url, "--json").output)["versions"] == {"states": 1}
    assert "no: states are lost when the server crashes" in run("show", url).output


@pytest.mark.parametrize("command", ["init", "upgrade", "show"])
def test_a_command_without_a_url_names_the_variable(command: str) -> None:
    asked = CliRunner().invoke(storage, [command], env={"RATEBOUND_STORAGE": None})
    assert asked.exit_code == 2
    assert "set RATEBOUND_STORAGE" in asked.output


def test_unlogged_says_that_it_does_not_change_tables_that_are_there(url: str) -> None:
    assert "--unlogged" not in run("init", url).output
    again = run("init", url, "--unlogged")
    assert again.exit_code == 0
    assert "--unlogged has changed nothing" in again.output
    assert json.loads(run("show", url, "--json").output)["logged"] is True
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT relid::text FROM pg_partition_tree('ratebound_states') WHERE isleaf")
        for (partition,) in found.fetchall():
            connection.execute(f"ALTER TABLE {partition} SET UNLOGGED".encode())
    assert "--unlogged has changed nothing" not in run("init", url, "--unlogged").output


def test_a_user_who_may_not_create_tables_is_told_so(postgres: Postgres, url: str) -> None:
    postgres.run("DROP ROLE IF EXISTS visitor", "CREATE ROLE visitor LOGIN")
    refused = run("init", url.replace("ratebound:hunter2@", "visitor@"))
    assert refused.exit_code == 1
    assert "a user who may create tables" in refused.output


def test_printed_statements_do_what_init_does(postgres: Postgres, url: str) -> None:
    printed = run("init", f"{url}?schema=limits", "--sql")
    assert printed.exit_code == 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(printed.output.encode())
    assert "are there already" in run("init", f"{url}?schema=limits").output
    with Limiter("10/hour", storage=f"{url}?timeout=5&schema=limits", failure="raise") as limiter:
        assert limiter.hit("a").remaining == 9


def test_the_url_may_be_in_the_environment(url: str) -> None:
    assert run("init", RATEBOUND_STORAGE=url).exit_code == 0
    assert run("show", RATEBOUND_STORAGE=url).exit_code == 0


def test_upgrade_runs_what_is_missing_and_refuses_what_is_newer(url: str) -> None:
    refused = run("upgrade", url)
    assert refused.exit_code == 1
    assert "Run: ratebound storage init" in refused.output
    run("init", url)
    assert "have version 1" in run("upgrade", url).output
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE ratebound_schema SET version = 99 WHERE component = 'states'")
    for command in ("init", "upgrade"):
        newer = run(command, url)
        assert newer.exit_code == 1
        assert "have version 99, and this program knows version 1" in newer.output


def test_migrations_run_in_order_once_and_all_or_nothing_whoever_calls(url: str) -> None:
    address = read_url(f"{url}?schema=odd%20name")
    first = Migration(1, ("CREATE TABLE {schema}t (a int)",))
    second = Migration(2, ("ALTER TABLE {schema}t ADD b int", "INSERT INTO {schema}t VALUES (1, 2)"))
    wrong = Migration(3, ("INSERT INTO {schema}t VALUES (3, 4)", "SELECT 1 / 0"))
    found: list[tuple[int, int]] = []

    def work() -> None:
        with closing(open_connection(address)) as connection:
            found.append(upgrade(connection, address, "test", [first]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(0, 1), (1, 1), (1, 1), (1, 1)]
    with closing(open_connection(address)) as connection:
        assert upgrade(connection, address, "test", [first, second]) == (1, 2)
        with pytest.raises(Exception, match="division by zero"):
            upgrade(connection, address, "test", [first, second, wrong])
        assert version_of(connection, address, "test") == 2
        assert connection.execute('SELECT * FROM "odd name".t').fetchall() == [(1, 2)]
        assert version_of(connection, address, "other") == 0


def test_a_storage_without_tables_is_refused_and_so_is_a_wrong_url() -> None:
    for url, why in (("redis://h", "has no tables"), ("memory://", "has no tables"), ("postgresql://h?pool=x", "pool")):
        refused = run("init", url)
        assert refused.exit_code == 2
        assert why in refused.output


def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    refused = run("init", "postgresql://u:hunter2@127.0.0.1:1/x")
    assert refused.exit_code == 1
    assert "cannot be reached" in refused.output
    assert "hunter2" not in refused.output


def test_sqlite_has_the_same_commands(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    for command in ("show", "upgrade"):
        assert "there is no file" in run(command, url).output
    statements = run("init", url, "--sql").output
    assert not (tmp_path / "limits.db").exists()
    with closing(sqlite3.connect(tmp_path / "by hand.db")) as connection:
        connection.executescript(statements)
    with Limiter("10/hour", storage=f"sqlite:///{tmp_path}/by hand.db", failure="raise") as limiter:
        assert limiter.hit("a"), "the statements make a file of ours"
    assert run("init", url).exit_code == 0
    with Limiter("10/hour", storage=url, failure="raise") as limiter:
        limiter.hit("a")
    shown = json.loads(run("show", url, "--format", "json").output)
    assert (shown["states"], shown["expired_states"], shown["logged"]) == (1, 0, True)
    assert run("upgrade", url).exit_code == 0
    assert "?synchronous=off" in run("init", url, "--unlogged").output
