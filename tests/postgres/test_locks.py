"""What PostgreSQL does for a decision: it locks rows in one order without writing them, and reads after the locks."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from ratebound import Limit, StorageError, parse_limit
from ratebound.limit import Group
from ratebound.storage.blame import TooLate
from ratebound.storage.postgres.storage import PostgresStorage
from ratebound.testing import FakeClock
from tests.databases import Postgres
from tests.postgres.tables import fresh_url

MINUTE = parse_limit("1000/minute")
HOUR = parse_limit("1000/hour fixed-window")


def group(*keys: str, cost: int = 1, limit: Limit = HOUR) -> Group:
    return [(key, (limit,), cost, None, None) for key in keys]


@pytest.fixture
def storage(postgres: Postgres) -> Iterator[PostgresStorage]:
    with closing(PostgresStorage(fresh_url(postgres))) as storage:
        yield storage


@pytest.fixture
def holder(postgres: Postgres) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """Another client, with a transaction open."""
    with closing(postgres.connect()) as connection:
        connection.execute("BEGIN")
        yield connection


def only_name(postgres: Postgres, storage: PostgresStorage, key: str) -> bytes:
    """The name of a key's state: the row that is new after a spend."""
    with closing(postgres.connect()) as connection:
        before = set(connection.execute("SELECT name FROM ratebound_states").fetchall())
        storage.evaluate([group(key)])
        ((name,),) = set(connection.execute("SELECT name FROM ratebound_states").fetchall()) - before
    assert isinstance(name, bytes)
    return name


def waits_for_a_lock(postgres: Postgres) -> bool:
    with closing(postgres.connect()) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%ratebound_states%'"
        ).fetchone()
    return found != (0,)


def until(condition: object) -> None:
    ends = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_a_decision_waits_for_the_lock_and_then_sees_what_was_written_and_the_time_of_after_it(
    postgres: Postgres, storage: PostgresStorage, holder: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    name = only_name(postgres, storage, "a")
    holder.execute("SELECT 1 FROM ratebound_states WHERE name = %s FOR UPDATE", (name,))
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(storage.evaluate([group("a")])[0][0][1]))
    other.start()
    until(lambda: waits_for_a_lock(postgres))
    assert found == [], "the row is locked"
    row = holder.execute("SELECT state, expires FROM ratebound_states WHERE name = %s", (name,)).fetchone()
    assert row is not None
    holder.execute("DELETE FROM ratebound_states WHERE name = %s", (name,))
    holder.execute("COMMIT")
    other.join()
    assert found == [999], "it decided from what was there after it got the lock: nothing"


def test_a_denied_group_locks_rows_and_writes_none(postgres: Postgres, storage: PostgresStorage) -> None:
    storage.evaluate([group("a", "b", cost=1000)])
    with closing(postgres.connect()) as connection:
        versions = "SELECT name, ctid, xmin FROM ratebound_states ORDER BY 1"
        before = connection.execute(versions).fetchall()
        ((*_,), (*_,)) = storage.evaluate([group("a", "b"), group("b")])
        assert connection.execute(versions).fetchall() == before


def test_a_peek_writes_nothing_and_waits_for_nobody(
    postgres: Postgres, storage: PostgresStorage, holder: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    name = only_name(postgres, storage, "a")
    holder.execute("SELECT 1 FROM ratebound_states WHERE name = %s FOR UPDATE", (name,))
    with closing(postgres.connect()) as connection:
        count = "SELECT count(*) FROM ratebound_states"
        before = connection.execute(count).fetchone()
        ((row,), (new,)) = storage.evaluate([group("a"), group("never seen")], "peek")
        assert (row[1], new[1]) == (999, 1000)
        assert connection.execute(count).fetchone() == before


def test_spends_update_in_place(postgres: Postgres, storage: PostgresStorage) -> None:
    for _ in range(50):
        storage.evaluate([group("hot")])
    with closing(postgres.connect()) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")

        def is_hot() -> bool:
            found = connection.execute(
                "SELECT sum(n_tup_hot_upd), sum(n_tup_upd) FROM pg_stat_all_tables"
                " WHERE relname LIKE 'ratebound_states%'"
            ).fetchone()
            return found is not None and bool(found[0]) and found[0] * 10 >= found[1] * 9  # type: ignore[operator]

        until(is_hot)


@pytest.mark.parametrize("there", [True, False], ids=["rows that are there", "new rows"])
def test_groups_that_overlap_in_any_order_never_deadlock(there: bool, postgres: Postgres) -> None:
    with closing(PostgresStorage(fresh_url(postgres))) as storage:
        keys = [f"k{number}" for number in range(8)]
        if there:
            storage.evaluate([group(*keys)])
        spent: dict[str, int] = dict.fromkeys(keys, 1 if there else 0)
        errors: list[BaseException] = []
        lock = threading.Lock()

        def work(seed: int) -> None:
            choose = random.Random(seed)
            try:
                for _ in range(40):
                    groups = [group(*choose.sample(keys, choose.randint(1, 5))) for _ in range(choose.randint(1, 3))]
                    storage.evaluate(groups)
                    with lock:
                        for each in groups:
                            for key, *_ in each:
                                spent[key] += 1
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'ratebound'"
        with closing(postgres.connect()) as connection:
            before = connection.execute(deadlocks).fetchone()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert errors == []
            assert connection.execute(deadlocks).fetchone() == before
        rows = storage.evaluate([group(*keys)], "peek")[0]
        assert {key: 1000 - row[1] for key, row in zip(keys, rows, strict=True)} == spent


def test_a_lock_that_is_not_free_by_the_deadline_ends_the_wait_and_charges_nothing(
    postgres: Postgres, holder: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    with closing(PostgresStorage(fresh_url(postgres, options="timeout=0.3"))) as storage:
        name = only_name(postgres, storage, "a")
        holder.execute("SELECT 1 FROM ratebound_states WHERE name = %s FOR UPDATE", (name,))
        with pytest.raises(TooLate, match="was not free within 0.3 s") as caught:
            storage.evaluate([group("a")])
        assert caught.value.undone
        assert not caught.value.outage
        assert storage.evaluate([group("b")])[0][0][0], "another key is not delayed"
        holder.execute("COMMIT")
        assert storage.evaluate([group("a")])[0][0][1] == 998


def test_a_wait_that_the_server_ends_charges_nothing_and_is_no_outage(
    postgres: Postgres, storage: PostgresStorage, holder: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    """On a hot key several waits, each shorter than lock_timeout, end by statement_timeout. No breaker may open."""
    name = only_name(postgres, storage, "a")
    holder.execute("SELECT 1 FROM ratebound_states WHERE name = %s FOR UPDATE", (name,))
    found: list[StorageError] = []

    def work() -> None:
        try:
            storage.evaluate([group("a")])
        except StorageError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: waits_for_a_lock(postgres))
    postgres.run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    thread.join(20)
    (error,) = found
    assert isinstance(error, TooLate)
    assert error.undone
    assert not error.outage
    holder.execute("COMMIT")
    assert storage.evaluate([group("a")])[0][0][1] == 998


def test_a_deadlock_made_by_hand_is_tried_again(postgres: Postgres) -> None:
    with closing(PostgresStorage(fresh_url(postgres, options="timeout=20"))) as storage:
        names = {}
        for key in "ab":
            names[only_name(postgres, storage, key)] = key
        first, last = sorted(names)
        with closing(postgres.connect()) as holder:
            holder.execute("SET deadlock_timeout = '30s'")  # the other side is to find it
            holder.execute("BEGIN")
            lock = "SELECT 1 FROM ratebound_states WHERE name = %s FOR UPDATE"
            holder.execute(lock, (last,))
            found: list[bool] = []
            other = threading.Thread(
                target=lambda: found.append(all(row[0] for row in storage.evaluate([group("a", "b")])[0]))
            )
            other.start()
            until(lambda: waits_for_a_lock(postgres))
            holder.execute(lock, (first,))  # waits until the storage's transaction is undone
            assert found == []
            holder.execute("COMMIT")
            other.join()
            assert found == [True]
        assert [row[1] for row in storage.evaluate([group("a", "b")], "peek")[0]] == [998, 998]


def test_a_process_that_stops_in_a_transaction_loses_its_locks_to_others(postgres: Postgres) -> None:
    url = fresh_url(postgres, options="timeout=0.5")
    with closing(PostgresStorage(url)) as stopped, closing(PostgresStorage(url.replace("0.5", "20"))) as other:
        stopped.connect()
        has_locks, goes_on = threading.Event(), threading.Event()
        transactions: Any = stopped._transactions
        decided = transactions._decided

        def stopping(*arguments: Any) -> Any:
            has_locks.set()
            goes_on.wait(30)  # as a stopped process does, with the locks
            return decided(*arguments)

        transactions._decided = stopping
        errors: list[BaseException] = []

        def work() -> None:
            try:
                stopped.evaluate([group("a")])
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        has_locks.wait(30)
        assert other.evaluate([group("a")])[0][0][1] == 999, "the server has undone the other's transaction"
        goes_on.set()
        thread.join()
        assert [type(error) for error in errors] == [StorageError]
        assert other.evaluate([group("a")], "peek")[0][0][1] == 999


def test_one_call_of_many_groups_takes_two_trips(postgres: Postgres, clock: FakeClock) -> None:
    with closing(PostgresStorage(fresh_url(postgres), clock=clock)) as storage:
        storage.evaluate([group("warm")])
        trips: list[int] = []
        link = storage._pool._links._idle[-1]
        exchange = type(link).exchange

        def counted(self: Any, bound: Any, until: Any) -> Any:
            if self is link:  # not the sweep of a storage of an earlier test
                trips.append(len(bound))
            return exchange(self, bound, until)

        type(link).exchange = counted  # type: ignore[method-assign]
        try:
            answers = storage.evaluate([group("x", f"y{number}") for number in range(100)])
        finally:
            type(link).exchange = exchange  # type: ignore[method-assign]
        assert [rows[0][1] for rows in answers] == list(range(999, 899, -1)), "decided one after the other"
        assert trips == [4, 2]
