"""Expired rows are removed in the background, by one process at a time, and no row that is locked or still counts."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from ratebound import parse_limit
from ratebound.limit import Group
from ratebound.storage import threads
from ratebound.storage.postgres import transactions
from ratebound.storage.postgres.storage import AsyncPostgresStorage, PostgresStorage
from ratebound.testing import Blocking, FakeClock
from tests.databases import Postgres
from tests.postgres.tables import make_tables

SECOND, HOUR = parse_limit("10/second"), parse_limit("10/hour")


def groups(count: int, limit: object, name: str = "") -> list[Group]:
    return [[(f"{name}{number}", (limit,), 1, None, None)] for number in range(count)]  # type: ignore[list-item]


@pytest.fixture
def url(postgres: Postgres) -> str:
    """A database of its own: a sweep looks at all rows."""
    url = postgres.new_database()
    make_tables(url)
    return f"{url}?timeout=20"


@pytest.fixture(autouse=True)
def _short_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BATCH", 100)
    monkeypatch.setattr(transactions, "WORTHWHILE", 25)


@pytest.fixture
def rows(postgres: Postgres, url: str) -> Iterator[Callable[[], int]]:
    with closing(postgres.connect(url.rpartition("/")[2].partition("?")[0])) as connection:

        def count() -> int:
            found = connection.execute("SELECT count(*) FROM ratebound_states").fetchone()
            assert found is not None
            return int(str(found[0]))

        yield count


def test_a_sweep_removes_what_has_expired_and_nothing_else(url: str, rows: Callable[[], int], clock: FakeClock) -> None:
    with closing(PostgresStorage(url, clock=clock)) as storage:
        for batch in range(3):
            storage.evaluate(groups(100, SECOND, f"short {batch} "))
        storage.evaluate(groups(30, HOUR))
        assert rows() == 330
        assert storage.sweep() == 0
        clock.now += 10_000_000
        removed = 0
        for _ in range(6):  # a sweep ends at the last row, and the next one begins again
            removed += storage.sweep()
        assert (removed, rows()) == (300, 30)
        assert [row[0][1] for row in storage.evaluate(groups(30, HOUR))] == [8] * 30, "they were not touched"


def test_a_sweep_for_tasks_does_the_same(url: str, rows: Callable[[], int], clock: FakeClock) -> None:
    storage = AsyncPostgresStorage(url, clock=clock)
    with closing(Blocking(storage)) as blocking:
        blocking.evaluate(groups(50, SECOND))
        clock.now += 10_000_000
        assert blocking._runner.run(storage.sweep()) == 50
        assert rows() == 0


def test_a_locked_row_and_a_sweep_of_another_process_are_skipped(
    postgres: Postgres, url: str, rows: Callable[[], int], clock: FakeClock
) -> None:
    with (
        closing(PostgresStorage(url, clock=clock)) as storage,
        closing(postgres.connect(url.rpartition("/")[2].partition("?")[0])) as holder,
    ):
        storage.evaluate(groups(10, SECOND))
        clock.now += 10_000_000
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM ratebound_schema FOR UPDATE")
        assert storage.sweep() == 0, "another process sweeps"
        holder.execute("ROLLBACK")
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM ratebound_states ORDER BY name LIMIT 1 FOR UPDATE")
        assert storage.sweep() == 9
        holder.execute("ROLLBACK")
        storage.sweep()
        storage.sweep()
        assert rows() == 0


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_decision_starts_a_sweep_beside_it_from_time_to_time(
    kind: str, url: str, rows: Callable[[], int], clock: FakeClock
) -> None:
    inner = PostgresStorage(url, clock=clock) if kind == "threads" else AsyncPostgresStorage(url, clock=clock)
    with closing(inner if isinstance(inner, PostgresStorage) else Blocking(inner)) as storage:
        storage.evaluate(groups(10, SECOND))
        clock.now += 10_000_000
        storage.evaluate(groups(1, HOUR))
        assert rows() == 11, "not with every decision"
        inner._calls._sweep_at = 0.0
        ends = time.monotonic() + 20
        while rows() > 1:
            assert time.monotonic() < ends
            storage.evaluate(groups(1, HOUR))
            time.sleep(0.01)


def test_closing_ends_the_thread_of_the_sweeps(url: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE", 3600.0)
    storage = PostgresStorage(url, clock=clock)
    storage._calls._sweep_at = 0.0
    before = set(threading.enumerate())
    storage.evaluate(groups(1, HOUR))
    (thread,) = set(threading.enumerate()) - before
    storage.close()
    thread.join(30)
    assert not thread.is_alive()


def test_a_sweep_that_fails_is_logged_once(
    postgres: Postgres, url: str, caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    with closing(PostgresStorage(url, clock=clock)) as storage:
        storage.evaluate(groups(1, HOUR))
        with postgres.connect(url.rpartition("/")[2].partition("?")[0]) as connection:
            connection.execute("DROP TABLE ratebound_schema")
        with caplog.at_level(logging.WARNING, "ratebound"):
            storage._sweep()
            storage._sweep()
    assert [record.getMessage()[:29] for record in caplog.records] == ["expired rows could not be rem"]
