"""No acknowledged spend is lost when a client or the server is killed at any instant, and none is charged twice."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ratebound import StorageError
from ratebound.storage.postgres.storage import PostgresStorage
from tests.databases import Postgres, postgres_server
from tests.postgres.spender import HANDS, LIMIT
from tests.postgres.tables import fresh_url, make_tables

ROOT = Path(__file__).parents[2]
LONG = os.environ.get("RATEBOUND_LONG") == "1"
ROUNDS = 100 if LONG else 4
ENOUGH = 40  # spends before somebody may be killed


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server() as server:
        make_tables(server.url)
        yield server


@contextmanager
def spender(kind: str, url: str, key: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "tests.postgres.spender", kind, url, key]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: "subprocess.Popen[bytes]", count: int, mark: bytes = b"+") -> bytes:
    """What a process says until it has said a mark so often."""
    assert process.stdout
    found = b""
    while found.count(mark) < count:
        more = os.read(process.stdout.fileno(), 65536)
        assert more, "the process ended"
        found += more
    return found


def charged(url: str, key: str) -> int:
    ends = time.monotonic() + 30
    with closing(PostgresStorage(url)) as storage:
        while True:
            try:
                return LIMIT.count - storage.evaluate([[(key, (LIMIT,), 1, None, None)]], "peek")[0][0][1]
            except StorageError:
                assert time.monotonic() < ends
                time.sleep(0.02)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_client_that_is_killed_at_any_instant_loses_no_acknowledged_spend(kind: str, server: Postgres) -> None:
    url = fresh_url(server)
    choose = random.Random()
    for turn in range(ROUNDS):
        with spender(kind, url, f"key {turn}") as process:
            told = heard(process, ENOUGH)
            time.sleep(choose.uniform(0.0, 0.02))
            process.kill()
            assert process.stdout
            told += process.stdout.read()
        granted = told.count(b"+")
        assert granted <= charged(url, f"key {turn}") <= granted + HANDS, "those that were under way may be charged"


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_server_that_is_killed_at_any_instant_loses_no_acknowledged_spend(kind: str, server: Postgres) -> None:
    url = fresh_url(server, options="timeout=2")
    choose = random.Random()
    with spender(kind, url, "key") as process:
        told = heard(process, ENOUGH)
        for _ in range(ROUNDS):
            time.sleep(choose.uniform(0.0, 0.02))
            server.kill()
            told += heard(process, 1, b"-")
            server.start()
            told += heard(process, ENOUGH)
        process.kill()
        assert process.stdout
        told += process.stdout.read()
    granted, unknown = told.count(b"+"), told.count(b"?")
    assert granted <= charged(url, "key") <= granted + unknown + HANDS


def test_unlogged_states_are_lost_with_the_server_and_documents_are_not(server: Postgres) -> None:
    url = server.new_database()
    make_tables(url, unlogged=True)
    with closing(PostgresStorage(f"{url}?timeout=5")) as storage:
        storage.evaluate([[("key", (LIMIT,), 5, None, None)]])
        assert storage.write_document("one", b"kept", 0)
        server.kill()
        server.start()
        assert charged(url, "key") == 0
        assert storage.read_document("one") == (1, b"kept")
