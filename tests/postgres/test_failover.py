"""A standby refuses to decide, and a promoted one is found by a URL that names both hosts."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ratebound import Limiter, StorageError, parse_limit
from ratebound.limit import Group
from ratebound.storage.blame import TooLate
from ratebound.storage.postgres.storage import AsyncPostgresStorage, PostgresStorage
from ratebound.testing import Blocking
from tests.databases import Postgres, other_user, postgres_server, program, running
from tests.postgres.tables import make_tables
from tests.servers import HOST

LONG = os.environ.get("RATEBOUND_LONG") == "1"
HOUR = parse_limit("1000/hour fixed-window")
KINDS: dict[str, Callable[[str], Any]] = {
    "threads": PostgresStorage,
    "tasks": lambda url: Blocking(AsyncPostgresStorage(url)),
}


def both_of(one: Postgres, other: Postgres, options: str) -> str:
    """A URL of two hosts."""
    return f"postgresql://ratebound@{HOST}:{one.port},{HOST}:{other.port}/ratebound?{options}"


def group(key: str) -> Group:
    return [(key, (HOUR,), 1, None, None)]


@contextmanager
def standby_of(primary: Postgres) -> Iterator[Postgres]:
    """A standby, which must confirm every commit of the primary from now on."""
    backup = primary.folder / "backup"
    command = [program("pg_basebackup"), "-h", HOST, "-p", str(primary.port), "-U", "ratebound", "-D", str(backup)]
    subprocess.run(
        [*command, "-R", "-X", "stream", "--checkpoint=fast", "--no-sync"],
        check=True,
        capture_output=True,
        user=other_user(),
        cwd=Path("/"),
    )
    standby = Postgres(data=backup)
    with running(standby):
        primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        with closing(primary.connect()) as connection:
            ends = time.monotonic() + 20
            while connection.execute(
                "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            ).fetchone() != (1,):
                assert time.monotonic() < ends
                time.sleep(0.02)
        yield standby


@pytest.mark.parametrize("kind", KINDS if LONG else ["threads"])
def test_a_standby_is_told_from_a_primary_and_its_promotion_is_followed(kind: str) -> None:
    with postgres_server() as primary:
        make_tables(primary.url)
        with standby_of(primary) as standby:
            both = both_of(standby, primary, "timeout=3")
            with closing(KINDS[kind](f"{standby.url}?timeout=5")) as wrong:
                with pytest.raises(StorageError, match="read-only here.*target_session_attrs=read-write") as caught:
                    wrong.evaluate([group("a")])
                assert caught.value.undone
                assert wrong.evaluate([group("a")], "peek")[0][0][0], "a peek reads"
            with closing(KINDS[kind](both)) as storage:
                assert [storage.evaluate([group("a")])[0][0][1] for _ in range(5)] == [999, 998, 997, 996, 995]
                standby.pause()
                with pytest.raises(TooLate, match="unknown whether it committed") as late:
                    storage.evaluate([group("a")])
                assert not late.value.undone, "a commit that no standby has confirmed is not acknowledged"
                standby.resume()
                assert storage.evaluate([group("a")])[0][0][1] == 993
                primary.kill()
                with pytest.raises(StorageError) as caught:
                    storage.evaluate([group("a")])
                assert caught.value.undone
                standby.run("SELECT pg_promote()")
                left, ends = None, time.monotonic() + 20
                while left is None:
                    assert time.monotonic() < ends
                    with suppress(StorageError):
                        left = storage.evaluate([group("a")])[0][0][1]
                assert left == 992, "no acknowledged spend is lost: the standby had confirmed them"


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Postgres, Postgres]]:
    with postgres_server() as one, postgres_server() as other:
        for server in (one, other):
            make_tables(server.url)
        yield one, other


def test_a_host_that_never_answers_leaves_time_for_the_next_one(two: tuple[Postgres, Postgres]) -> None:
    one, other = two
    one.pause()
    try:
        with closing(PostgresStorage(both_of(one, other, "timeout=4&secret=1"))) as storage:
            assert storage.evaluate([group("a")])[0][0][1] == 999
            storage.close()
            assert storage._calls._route._first == 1, "the host that answered last is tried first"
            assert storage.evaluate([group("a")])[0][0][1] == 998
    finally:
        one.resume()


def test_a_primary_that_becomes_read_only_is_left_within_the_call(two: tuple[Postgres, Postgres]) -> None:
    one, other = two
    with Limiter(HOUR, storage=both_of(one, other, "timeout=5&secret=2"), failure="raise") as limiter:
        assert limiter.hit("a").remaining == 999
        one.run("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        one.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert limiter.hit("a").remaining == 999, "the other server has its own count"
