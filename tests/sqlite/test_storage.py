"""Group commits, sweeps, forks and signals: what is SQLite's own beside the contract."""

import asyncio
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter, StorageError, parse_limit
from ratebound.limit import Group
from ratebound.storage.blame import TooLate
from ratebound.storage.sqlite import connect, group_commit
from ratebound.storage.sqlite.storage import AsyncSqliteStorage, SqliteStorage
from ratebound.storage.stored_states import StoredGroup
from ratebound.testing import FakeClock

LIMIT = parse_limit("1000/hour fixed-window")
LONG = 30.0


def group(key: str = "k", *, cost: int = 1, text: str = "") -> Group:
    return ((key, (parse_limit(text) if text else LIMIT,), cost, None, None),)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


@pytest.fixture
def storage(path: Path) -> Iterator[SqliteStorage]:
    found = SqliteStorage(str(path), deadline=LONG, synchronous="off")
    found.evaluate([group("first")])
    yield found
    found.close()


def traced(storage: SqliteStorage) -> list[str]:
    """Return a list to which every statement of the writer is added."""
    statements: list[str] = []
    connection = storage._writer._connection
    assert connection is not None
    connection.set_trace_callback(statements.append)
    return statements


@contextmanager
def busy(storage: SqliteStorage) -> Iterator[None]:
    """The process's writer is at work."""
    turn = storage._writer.take_turn(LONG)
    assert turn is not None
    yield
    storage._writer.give_turn_back(turn)


def commits_in(statements: list[str]) -> int:
    return sum(statement == "COMMIT" for statement in statements)


def waiting(storage: SqliteStorage, count: int) -> None:
    """Wait until so many calls wait for the writer."""
    ends = time.monotonic() + LONG
    while len(storage.commits._waiting) < count:
        assert time.monotonic() < ends
        time.sleep(0.001)


# Group commits


def test_threads_that_wait_are_decided_in_one_transaction(storage: SqliteStorage) -> None:
    statements = traced(storage)
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.extend(storage.evaluate([group()]))) for _ in range(20)]
    with busy(storage):
        for thread in threads:
            thread.start()
        waiting(storage, 20)
    for thread in threads:
        thread.join(LONG)
    assert sorted(rows[0][1] for rows in answers) == list(range(980, 1000))
    assert commits_in(statements) == 1


def test_tasks_of_one_turn_of_the_loop_are_decided_in_few_transactions(storage: SqliteStorage) -> None:
    statements = traced(storage)

    async def main() -> list[Any]:
        twin = storage.async_twin()
        return await asyncio.gather(*(twin.evaluate([group()]) for _ in range(50)))

    answers = asyncio.run(main())
    assert sorted(rows[0][1] for (rows,) in answers) == list(range(950, 1000))
    assert 1 <= commits_in(statements) < 25


def test_a_mistake_of_one_caller_fails_no_other(storage: SqliteStorage) -> None:
    slots = parse_limit("3 concurrent")
    wrong: Group = (("k", (slots,), 1, None, None),)  # a slot without an id

    async def main() -> list[Any]:
        twin = storage.async_twin()
        asks = [twin.evaluate([group("a")]), twin.evaluate([wrong]), twin.evaluate([group("b")])]
        return await asyncio.gather(*asks, return_exceptions=True)

    first, mistake, last = asyncio.run(main())
    assert isinstance(mistake, ValueError)
    assert (first[0][0][1], last[0][0][1]) == (999, 999)


def test_a_failed_commit_fails_all_that_were_in_it_and_charges_none(storage: SqliteStorage) -> None:
    connection = storage._writer._connection
    assert connection is not None
    connection.execute("CREATE TEMP TRIGGER fails BEFORE INSERT ON states BEGIN SELECT raise(FAIL, 'no'); END")

    async def main() -> list[Any]:
        twin = storage.async_twin()
        return await asyncio.gather(*(twin.evaluate([group()]) for _ in range(5)), return_exceptions=True)

    errors = asyncio.run(main())
    assert all(isinstance(error, StorageError) and error.undone for error in errors), errors
    assert len(set(map(id, errors))) == 5, "each caller has an exception of its own"
    assert storage.evaluate([group()], "peek")[0][0][1] == 1000


def test_a_denial_writes_nothing(storage: SqliteStorage) -> None:
    storage.evaluate([group(text="1/hour")])
    storage.commits._next_sweep = time.monotonic() + LONG
    statements = traced(storage)
    assert not storage.evaluate([group(text="1/hour")])[0][0][0]
    assert [statement.partition(" ")[0] for statement in statements] == ["BEGIN", "SELECT", "COMMIT"]


def test_a_peek_waits_for_no_writer(storage: SqliteStorage, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with busy(storage):
        assert storage.evaluate([group()], "peek")[0][0][1] == 1000
        assert storage.holders("k", parse_limit("3 concurrent")) == []
    other.close()


# Sweeps


def rows_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    (count,) = connection.execute("SELECT count(*) FROM states").fetchone()
    connection.close()
    return int(count)


def test_expired_states_are_removed_by_whoever_comes_by(path: Path, clock: FakeClock) -> None:
    storage = SqliteStorage(str(path), deadline=LONG, synchronous="off", clock=clock)
    storage.evaluate([group(f"old {number}", text="5/minute fixed-window") for number in range(1000)])
    assert rows_of(path) == 1000
    clock.now += 120_000_000 + group_commit.KEPT_EXPIRED
    for number in range(1000):
        storage.evaluate([group(f"new {number}")])
    assert rows_of(path) == 1000, "each new state pays for a look at two others"
    storage.close()


def test_states_that_live_are_not_swept(path: Path, clock: FakeClock) -> None:
    storage = SqliteStorage(str(path), deadline=LONG, synchronous="off", clock=clock)
    for number in range(500):
        storage.evaluate([group(f"key {number}")])
        storage.commits._next_sweep = 0.0
    assert rows_of(path) == 500
    storage.close()


# Forks


def test_a_child_process_and_its_parent_go_on_with_connections_of_their_own(storage: SqliteStorage) -> None:
    storage.evaluate([group()])
    storage.evaluate([group()], "peek")
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            found = [storage.evaluate([group()])[0][0][1] for _ in range(100)]
            os.write(writing, b"ok" if len(set(found)) == 100 else b"no")
        finally:
            os._exit(0)
    mine = [storage.evaluate([group()])[0][0][1] for _ in range(100)]
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(reading, 10) == b"ok"
    os.close(reading)
    os.close(writing)
    assert len(set(mine)) == 100
    assert storage.evaluate([group()], "peek")[0][0][1] == 1000 - 201
    check = sqlite3.connect(storage.address.path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


def test_no_connection_is_open_while_a_process_forks(storage: SqliteStorage, path: Path) -> None:
    storage.evaluate([group()])
    pid = os.fork()
    if not pid:
        opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        os._exit(any(name.startswith(str(path)) for name in opened))
    assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_in_the_middle_of_many_calls_leaves_parent_and_child_at_work(storage: SqliteStorage) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                storage.evaluate([group("busy")])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            pid = os.fork()
            if not pid:
                try:
                    storage.evaluate([group("child")])
                    os._exit(0)
                except BaseException:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(LONG)
    assert errors == []
    assert storage.evaluate([group("child")], "peek")[0][0][1] == 995


def test_a_child_that_was_forked_in_the_middle_of_a_call_is_told_so(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "AT_FORK", 0.05)
    with busy(storage):
        pid = os.fork()
        if not pid:
            try:
                storage.evaluate([group()])
            except StorageError as error:
                os._exit(0 if "by 'spawn' instead of 'fork'" in str(error) and error.undone else 2)
            finally:
                os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert storage.evaluate([group()])[0][0][1] == 999


def test_threads_that_fork_at_once_give_back_only_what_they_have_closed_themselves(storage: SqliteStorage) -> None:
    """The second one closes the files while the first one is still giving them back."""
    writer, closed, has_forked = storage._writer, threading.Event(), threading.Event()

    def fork() -> None:
        connect._before_fork()
        closed.set()
        has_forked.wait(LONG)
        connect._in_parent()

    def wait() -> None:
        closed.wait(LONG)

    connect._before_fork()
    other = threading.Thread(target=fork)
    other.start()
    writer.when_free = wait
    connect._in_parent()
    turn = writer.take_turn()
    has_forked.set()
    other.join(LONG)
    assert turn is None, "the other thread is about to fork"


# Signals


class Alarm(Exception):
    """What the program's own handler raises."""


def test_signals_that_raise_lose_no_grant_and_leave_nothing_locked(storage: SqliteStorage) -> None:
    """Each spend of a caller that is interrupted is charged once or not at all, and those of others always."""

    def ring(*_: object) -> None:
        raise Alarm

    others: list[int] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            others.extend(rows[0][1] for rows in storage.evaluate([group("other", text="1000000/hour fixed-window")]))

    before = signal.signal(signal.SIGALRM, ring)
    thread = threading.Thread(target=work)
    thread.start()
    answered = interrupted = 0
    try:
        for number in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + number % 30 * 0.00003)
                for _ in range(100):
                    storage.evaluate([group("mine", text="1000000/hour fixed-window")])
                    answered += 1
            except Alarm:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
        stop.set()
        thread.join(LONG)
    left = storage.evaluate([group("mine", text="1000000/hour fixed-window")], "peek")[0][0][1]
    assert interrupted > 0
    assert answered <= 1_000_000 - left <= answered + interrupted
    assert sorted(others, reverse=True) == list(range(999_999, 999_999 - len(others), -1))


def test_a_turn_that_was_given_back_does_not_keep_a_later_one_from_coming_back(storage: SqliteStorage) -> None:
    kept = storage._writer.take_turn()  # as a traceback keeps it that the program stores
    assert kept is not None
    storage._writer.give_turn_back(kept)
    assert storage._writer.take_turn() is not None  # lost at once
    assert storage._writer.take_turn() is not None


def test_an_interrupted_decision_keeps_nothing_alive(storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Alarm] = [Alarm()]
    reference = weakref.ref(raised[0])

    def ring(*_: object) -> None:
        raise raised.pop()

    monkeypatch.setattr(storage.commits, "_begin", ring)
    gc.disable()
    try:
        with suppress(Alarm):
            storage.commits.decide(pending(storage, "a"))
        assert reference() is None
    finally:
        gc.enable()


def test_a_signal_just_after_the_commit_leaves_no_caller_without_its_answer(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    give = group_commit._give
    rings = [Alarm()]

    def give_or_ring(*arguments: Any) -> None:
        if rings:
            raise rings.pop()
        give(*arguments)

    monkeypatch.setattr(group_commit, "_give", give_or_ring)
    other = pending(storage, "other")
    storage.commits._waiting.append(other)
    with pytest.raises(Alarm):
        storage.commits.decide(pending(storage, "mine"))
    assert other.result()[0][0][0], "it was committed, so its caller must not decide it again"


def pending(storage: SqliteStorage, key: str) -> group_commit.PendingCall:
    return group_commit.PendingCall([StoredGroup(group(key), storage.names)], "spend", time.monotonic() + LONG)


def test_a_turn_that_is_lost_comes_back(storage: SqliteStorage) -> None:
    def lose() -> None:
        turn = storage._writer.take_turn()
        assert turn is not None
        storage._writer.connection(LONG).execute("BEGIN IMMEDIATE")

    lose()
    assert storage.evaluate([group()])[0][0][1] == 999


def test_a_call_in_the_middle_of_another_one_of_the_same_thread_ends_at_its_deadline(path: Path) -> None:
    storage = SqliteStorage(str(path), deadline=0.05)
    with busy(storage), pytest.raises(TooLate) as raised:
        storage.evaluate([group()])
    assert raised.value.undone


def test_a_task_gets_its_answer_though_the_thread_that_decided_for_it_was_interrupted_before_it_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(calls: Any, answers: Any) -> None:
        for call, answer in zip(calls, answers, strict=False):
            call.answer = answer  # and then a signal handler raises

    async def play() -> None:
        storage = AsyncSqliteStorage(str(path), deadline=0.2, synchronous="off")
        await storage.shared.async_twin().read_document("x")  # the file is there
        monkeypatch.setattr(group_commit, "_give", interrupted)
        async with asyncio.timeout(LONG):
            rows = await storage.evaluate([group()])
        assert rows[0][0][1] == 999
        await storage.close()

    asyncio.run(play())


def test_a_thread_that_has_answered_all_tasks_before_it_is_known_to_run_is_no_missing_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        storage = AsyncSqliteStorage(str(path), deadline=LONG, synchronous="off")
        queue = storage.shared.threads.queue

        def slow(function: Any) -> Any:
            job = queue(function)
            assert job is not None
            job.replies.get(timeout=LONG)
            return job

        monkeypatch.setattr(storage.shared.threads, "queue", slow)
        assert (await storage.evaluate([group()]))[0][0][1] == 999
        monkeypatch.undo()
        await storage.close()

    asyncio.run(play())


def test_an_unexpected_exception_in_the_thread_that_serves_tasks_fails_these_tasks_and_no_later_ones(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(ends: float) -> Any:
        raise RuntimeError("a mistake")

    async def play() -> None:
        storage = AsyncSqliteStorage(str(path), deadline=LONG, synchronous="off")
        monkeypatch.setattr(storage.shared._writer, "connection", broken)
        with pytest.raises(StorageError, match="could not be used .RuntimeError: a mistake") as caught:
            await storage.evaluate([group()])
        assert caught.value.undone
        monkeypatch.undo()
        assert (await storage.evaluate([group()]))[0][0][1] == 999
        await storage.close()

    asyncio.run(play())


# Restarts and closing


def test_counts_and_documents_outlast_a_restart(path: Path) -> None:
    storage = SqliteStorage(str(path))
    storage.evaluate([group(cost=7)])
    assert storage.write_document("d", b"content", 0)
    storage.close()
    again = SqliteStorage(str(path))
    assert again.evaluate([group()], "peek")[0][0][1] == 993
    assert again.read_documents(["none", "d"]) == [(0, b""), (1, b"content")]
    again.close()


def test_a_closed_storage_opens_its_file_again(storage: SqliteStorage) -> None:
    storage.close()
    storage.close()
    assert storage.evaluate([group()])[0][0][1] == 999


def test_a_limiter_for_tasks_and_one_for_threads_share_their_counts(path: Path) -> None:
    url = f"sqlite:///{path}?synchronous=off&timeout=5"

    async def main() -> int:
        async with AsyncLimiter("5/hour", storage=url) as limiter:
            return (await limiter.hit("k")).remaining

    with Limiter("5/hour", storage=url) as limiter:
        limiter.hit("k")
        assert asyncio.run(main()) == 3


def test_another_secret_counts_anew_and_keys_are_not_in_the_file(path: Path) -> None:
    for secret in ("", "one", "two"):
        storage = AsyncSqliteStorage(str(path), synchronous="off", secret=secret, deadline=5)
        assert asyncio.run(storage.evaluate([group("customer@example.com")]))[0][0][1] == 999
        asyncio.run(storage.close())
    assert b"customer" not in path.read_bytes()


def test_a_file_that_nobody_uses_any_more_is_closed(path: Path) -> None:
    def open_files() -> int:
        names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(name).startswith(str(path)) for name in names)

    storage = SqliteStorage(str(path), synchronous="off")
    storage.evaluate([group()])
    assert open_files() > 0
    del storage
    gc.collect()
    assert open_files() == 0


def test_an_sqlite_without_strict_tables_is_not_asked_for_them() -> None:
    """SQLite has them since 3.37. Python 3.11 runs on systems with an older one."""
    code = (
        "import sqlite3; sqlite3.sqlite_version_info = (3, 34, 1)\n"
        "from ratebound.ledger import sqlite_ledger\n"
        "from ratebound.storage.sqlite import tables\n"
        "print(*tables.MAKE, *sqlite_ledger.TABLES)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert made.count("CREATE TABLE") == 7
    assert "STRICT" not in made
