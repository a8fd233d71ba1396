"""Passwords and TLS: the login of a URL is libpq's own business, within our deadlines."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from ratebound import StorageError, parse_limit
from ratebound.limit import Group
from ratebound.storage.postgres.storage import AsyncPostgresStorage, PostgresStorage
from ratebound.testing import Blocking
from tests.databases import Postgres, other_user, postgres_server, program
from tests.postgres.tables import make_tables

GROUP: Group = [("a", (parse_limit("1000/hour fixed-window"),), 1, None, None)]
KINDS: dict[str, Callable[[str], Any]] = {
    "threads": PostgresStorage,
    "tasks": lambda url: Blocking(AsyncPostgresStorage(url)),
}
NAMES = [(f"key {number}", (parse_limit("1000/hour fixed-window"),), 1, None, None) for number in range(2000)]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that wants TLS and a password from the user 'guarded'."""
    openssl = program("openssl")
    with postgres_server() as server:
        make_tables(server.url)
        files = server.data / "server.crt", server.data / "server.key"
        command = [openssl, "req", "-new", "-x509", "-days", "2", "-nodes", "-subj", "/CN=localhost", "-out"]
        subprocess.run([*command, str(files[0]), "-keyout", str(files[1])], check=True, capture_output=True)
        files[1].chmod(0o600)
        if (user := other_user()) is not None:
            for file in files:
                shutil.chown(file, user)
        rules = server.data / "pg_hba.conf"
        rules.write_text(f"hostssl all guarded 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        rules.write_text(rules.read_text().replace("all             all", "all             ratebound"))
        server.run(
            "CREATE ROLE guarded LOGIN PASSWORD 'hunter2'",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO guarded",
            "ALTER SYSTEM SET ssl = on",
        )
        server.restart()
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_a_password_and_tls_are_those_of_the_url(kind: str, server: Postgres) -> None:
    url = server.url.replace("ratebound@", "guarded:hunter2@")
    with closing(KINDS[kind](f"{url}?timeout=10&sslmode=require")) as storage:
        storage.evaluate([GROUP])
        assert len(storage.evaluate([NAMES])[0]) == 2000, "more than one packet, in both directions"
        with closing(server.connect()) as connection:
            found = connection.execute(
                "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'guarded'"
            ).fetchone()
        assert found == (True,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_login_is_told_without_the_password(kind: str, server: Postgres) -> None:
    for login, why in (
        ("guarded:hunter3@", "check the user and the password in the URL"),
        ("guarded@", "write the password into the URL"),
        ("stranger:hunter3@", "allow this user and host in pg_hba.conf"),
    ):
        url = server.url.replace("ratebound@", login)
        with closing(KINDS[kind](f"{url}?timeout=10")) as storage, pytest.raises(StorageError) as caught:
            storage.evaluate([GROUP])
        assert why in str(caught.value)
        assert "hunter" not in str(caught.value)
        assert caught.value.undone
