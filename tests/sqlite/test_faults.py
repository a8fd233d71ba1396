"""A file that is locked, full, damaged, deleted or of another program: a StorageError that says what to do, in time."""

import asyncio
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from ratebound import Limiter, StorageError, parse_limit
from ratebound.limit import Failure, Group
from ratebound.storage.blame import TooLate
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.sqlite import connect
from ratebound.storage.sqlite.connect import APPLICATION_ID, VERSION
from ratebound.storage.sqlite.storage import AsyncSqliteStorage, SqliteStorage
from ratebound.testing import Blocking, FakeClock
from tests.mounts import in_own_mounts
from tests.servers import dying_with_us

LIMIT = parse_limit("3/hour fixed-window")  # its state always takes the same room
FILES = ("", "-wal", "-shm")
LONG = 30.0  # seconds: nothing waits for so long unless it hangs


def group(key: str = "k") -> Group:
    return ((key, (LIMIT,), 1, None, None),)


@pytest.fixture(autouse=True)
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage looks in every transaction whether its file was deleted or replaced."""
    monkeypatch.setattr(connect, "LOOK", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


class Opened(Protocol):
    """Opens a storage that the end of the test closes: for threads, or for tasks."""

    def __call__(self, path: Path, *, deadline: float = 5.0, kind: str = "threads") -> Any: ...


@pytest.fixture
def opened() -> Iterator[Opened]:
    with ExitStack() as stack:

        def open_storage(path: Path, *, deadline: float = 5.0, kind: str = "threads") -> Any:
            storage: Any = SqliteStorage(str(path), deadline=deadline, synchronous="off")
            storage = storage if kind == "threads" else Blocking(storage.async_twin())
            stack.callback(storage.close)
            return storage

        yield open_storage


@pytest.fixture(params=["threads", "tasks"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def calls(storage: Any) -> dict[str, Callable[[], Any]]:
    return {
        "spend": lambda: storage.evaluate([group()]),
        "peek": lambda: storage.evaluate([group()], "peek"),
        "force": lambda: storage.evaluate([group()], "force"),
        "reset": lambda: storage.reset(group()),
        "read a document": lambda: storage.read_document("d"),
        "write a document": lambda: storage.write_document("d", b"x", 0),
    }


def check_all_fail(storage: Any, said: str) -> None:
    """Every call raises a StorageError that says so, and nothing was charged."""
    for name, call in calls(storage).items():
        with pytest.raises(StorageError, match=said) as raised:
            call()
        assert raised.value.undone, name


# Locks

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
sys.stdin.readline()
"""


@contextmanager
def locked(path: Path) -> Iterator[Callable[[], None]]:
    """Another process has the lock of the file, until the function is called."""
    command = dying_with_us([sys.executable, "-c", HOLDER, str(path)])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "locked\n"

        def free() -> None:
            assert process.stdin
            assert process.stdout
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "free\n"

        try:
            yield free
        finally:
            process.kill()


def test_a_lock_that_another_process_holds_ends_every_write_at_the_deadline(
    path: Path, kind: str, opened: Opened
) -> None:
    patient = opened(path, kind=kind)
    patient.evaluate([group()])
    storage = opened(path, deadline=0.1, kind=kind)
    with locked(path) as free:
        for name in ("spend", "force", "reset", "write a document"):
            begin = time.monotonic()
            with pytest.raises(TooLate, match="lock|not free|not read or written") as raised:
                calls(storage)[name]()
            # The thread of a task may be too late to say that it has written nothing.
            assert raised.value.undone or (kind == "tasks" and name in ("reset", "write a document")), name
            assert time.monotonic() - begin < LONG
        (rows,) = patient.evaluate([group()], "peek")
        assert rows[0][1] == 2, "readers do not wait for it, and nothing was charged"
        assert patient.read_document("d") == (0, b"")
        free()
        assert patient.evaluate([group()])[0][0][1] == 1
    storage.close()


def test_calls_that_wait_for_a_lock_are_decided_as_soon_as_it_is_free(path: Path, opened: Opened) -> None:
    storage = opened(path, deadline=LONG)
    storage.evaluate([group()])
    answers: list[Any] = []
    with locked(path) as free:
        threads = [threading.Thread(target=lambda: answers.extend(storage.evaluate([group()]))) for _ in range(6)]
        for thread in threads:
            thread.start()
        assert answers == []
        free()
        for thread in threads:
            thread.join(LONG)
    assert sorted(rows[0][0] for rows in answers) == [False] * 4 + [True] * 2
    storage.close()


def test_tasks_that_wait_for_a_lock_are_each_told_at_their_deadline(path: Path, opened: Opened) -> None:
    async def main() -> list[Any]:
        storage = AsyncSqliteStorage(str(path), deadline=0.1, synchronous="off")
        asks = [storage.evaluate([group()]) for _ in range(20)]
        found = await asyncio.gather(*asks, return_exceptions=True)
        await storage.close()
        return found

    opened(path).evaluate([group("other")])
    with locked(path) as free:
        found = asyncio.run(main())
        assert all(isinstance(error, TooLate) and error.undone for error in found), found
        free()
    assert opened(path).evaluate([group()], "peek")[0][0][1] == 3, "none of them is decided later"


def test_a_cancelled_task_that_waits_is_not_charged(path: Path, opened: Opened) -> None:
    async def main() -> None:
        storage = AsyncSqliteStorage(str(path), deadline=LONG, synchronous="off")
        with locked(path) as free:
            asking = asyncio.ensure_future(storage.evaluate([group()]))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            free()
        assert (await storage.evaluate([group()]))[0][0][1] == 2
        await storage.close()

    opened(path).evaluate([group("other")])
    asyncio.run(main())


# Room

PAGES = "PRAGMA max_page_count = {}"


def full(storage: SqliteStorage, pages: int) -> None:
    """Let the database have no more pages than it has, and some."""
    storage.evaluate([group("first")])
    connection = storage._writer._connection
    assert connection is not None
    (count,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(PAGES.format(count + pages))


def fill(storage: Any) -> int:
    """Spend for new keys until there is no more room. Return how many there was room for."""
    numbers = itertools.count()
    error = failure_of(lambda: storage.evaluate([group(f"key {next(numbers)}")]), 10_000)
    assert "free some space" in str(error)
    assert error.undone
    return next(numbers) - 1


def failure_of(call: Callable[[], Any], times: int) -> StorageError:
    """Return the first error of so many calls."""
    for _ in range(times):
        try:
            call()
        except StorageError as error:
            return error
    raise AssertionError("no call failed")


def test_a_full_database_charges_nothing_and_goes_on_with_the_keys_that_it_has(path: Path, kind: str) -> None:
    storage = SqliteStorage(str(path), deadline=5, synchronous="off")
    full(storage, 1)
    asked: Any = storage if kind == "threads" else Blocking(storage.async_twin())
    room = fill(asked)
    assert room > 10
    with pytest.raises(StorageError, match="free some space"):
        asked.write_document("d", bytes(100_000), 0)
    assert asked.evaluate([group("key 0")])[0][0][1] == 1, "a known key needs no room"
    assert asked.evaluate([group(f"key {room}")], "peek")[0][0][1] == 3, "the one that failed was not charged"
    asked.close()


def test_a_full_database_makes_room_by_removing_what_has_expired(path: Path, clock: FakeClock) -> None:
    storage = SqliteStorage(str(path), deadline=5, synchronous="off", clock=clock)
    full(storage, 2)
    room = fill(storage)
    clock.now += 2 * LIMIT.period_us + 120_000_000
    with pytest.raises(StorageError, match="free some space"):
        storage.evaluate([group("new")])  # it finds out, and makes room for the next ones
    for number in range(room):
        assert storage.evaluate([group(f"new {number}")])[0][0][0]
    storage.close()


FULL_DISK = """
import os, sys
from ratebound import StorageError, parse_limit
from ratebound.storage.sqlite.storage import SqliteStorage

storage = SqliteStorage("limits.db", deadline=30, synchronous="off")
limit = (parse_limit("1000/hour fixed-window"),)

def hit(number):
    return storage.evaluate([[(f"key {number % 20}", limit, 1, None, None)]])

for number in range(20):
    hit(number)
storage.close()  # all pages of the database are in its file now, and its log begins anew
for number in range(20):
    hit(number)
other = os.open("other", os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(other, bytes(4096))
except OSError:
    pass
granted, said = 40, ""
for number in range(200):
    try:
        hit(number)
        granted += 1
    except StorageError as error:
        said = str(error)
left = [storage.evaluate([[(f"key {number}", limit, 1, None, None)]], "peek")[0][0][1] for number in range(20)]
print(granted > 150, granted == 20_000 - sum(left), "free some space" in said)
"""


def test_a_disk_that_others_fill_leaves_room_for_the_keys_that_are_there(tmp_path: Path) -> None:
    """The log of the database cannot grow, so it is written into the database and begins again."""
    (tmp_path / "disk").mkdir()
    said = in_own_mounts(
        str(tmp_path / "disk"), "size=2m", f"import os; os.chdir({str(tmp_path / 'disk')!r})" + FULL_DISK
    )
    assert said.split() == ["True", "True", "True"], said


# Files


def test_a_file_that_is_no_database_is_named(path: Path, kind: str, opened: Opened) -> None:
    path.write_text("these are notes, and no database at all\n" * 100)
    before = path.read_bytes()
    storage = opened(path, kind=kind)
    check_all_fail(storage, "not a database of SQLite: name another file")
    assert path.read_bytes() == before
    storage.close()


def test_a_database_of_another_program_is_left_as_it_is(path: Path, kind: str, opened: Opened) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE documents (title TEXT)")
    before = path.read_bytes()
    storage = opened(path, kind=kind)
    check_all_fail(storage, "another program: give Ratebound a file of its own")
    assert path.read_bytes() == before
    storage.close()


def test_a_file_of_a_later_version_is_refused(path: Path, kind: str, opened: Opened) -> None:
    opened(path).evaluate([group()])
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    check_all_fail(opened(path, kind=kind), "written by a later version of Ratebound")


def test_a_file_is_marked_as_ours(path: Path, opened: Opened) -> None:
    opened(path).evaluate([group()])
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_missing_folder_is_named_and_the_storage_works_once_it_is_there(
    path: Path, kind: str, opened: Opened
) -> None:
    storage = opened(path.parent / "folder" / "limits.db", kind=kind)
    check_all_fail(storage, "check that its folder is there")
    (path.parent / "folder").mkdir()
    assert storage.evaluate([group()])[0][0][1] == 2
    storage.close()


def test_a_folder_in_place_of_the_file_is_an_error(path: Path, opened: Opened) -> None:
    path.mkdir()
    check_all_fail(opened(path), "cannot open")


def test_a_damaged_page_is_an_error_until_the_file_is_moved_away(path: Path, kind: str, opened: Opened) -> None:
    storage = opened(path, kind=kind)
    for number in range(300):
        storage.evaluate([group(f"key {number}")])
    storage.close()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    storage = opened(path, kind=kind)
    numbers = itertools.count()
    error = failure_of(lambda: storage.evaluate([group(f"key {next(numbers)}")]), 300)
    assert "is damaged: stop its processes" in str(error)
    for name in FILES:
        Path(f"{path}{name}").unlink(missing_ok=True)
    assert storage.evaluate([group()])[0][0][1] == 2
    storage.close()


def test_a_damaged_state_fails_alone(path: Path, kind: str, opened: Opened) -> None:
    storage = opened(path, kind=kind)
    storage.evaluate([group("a")])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE states SET state = x'ff00'")
    connection.close()
    with pytest.raises(StorageError, match="format 255") as raised:
        storage.evaluate([group("a")])
    assert not raised.value.outage
    assert storage.evaluate([group("b")])[0][0][1] == 2
    with pytest.raises(StorageError) as raised:
        storage.evaluate([group("b"), group("a"), group("b")])
    assert raised.value.answers is not None
    first, second, third = raised.value.answers
    assert (first[0][1], third[0][1]) == (1, 0)
    assert isinstance(second, StorageError)
    storage.reset(group("a"))
    assert storage.evaluate([group("a")])[0][0][1] == 2
    storage.close()


def test_a_deleted_file_is_made_anew_by_all_processes(path: Path, kind: str, opened: Opened) -> None:
    one, other = opened(path, kind=kind), opened(path)
    assert one.evaluate([group()])[0][0][1] == 2
    assert other.evaluate([group()])[0][0][1] == 1
    path.unlink()  # and what SQLite keeps beside it is left there
    assert one.evaluate([group()])[0][0][1] == 2
    assert other.evaluate([group()])[0][0][1] == 1
    assert one.evaluate([group()], "peek")[0][0][1] == 1
    one.close()
    other.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_file_that_is_replaced_by_a_copy_is_used_from_then_on(path: Path, kind: str, opened: Opened) -> None:
    before = opened(path)
    before.evaluate([group()])
    before.close()  # nothing is left beside the file
    shutil.copy(path, path.with_suffix(".backup"))
    storage = opened(path, kind=kind)
    storage.evaluate([group()])
    storage.evaluate([group()])
    before.close()
    os.replace(path.with_suffix(".backup"), path)
    for name in FILES[1:]:
        Path(f"{path}{name}").unlink(missing_ok=True)
    assert storage.evaluate([group()])[0][0][1] == 1
    storage.close()


def test_a_file_that_is_replaced_while_it_is_open_ends_in_an_answer_or_a_storage_error(
    path: Path, kind: str, opened: Opened
) -> None:
    storage = opened(path, kind=kind)
    storage.evaluate([group()])
    backup = path.with_suffix(".backup")
    opened(backup).evaluate([group()])
    os.replace(backup, path)
    for _ in range(5):
        try:
            storage.evaluate([group()])
        except StorageError:
            continue
    storage.close()


NOT_ROOT = """
import os, sys
from ratebound import Limiter, StorageError
limiter = Limiter("5/minute", storage=f"sqlite:///{sys.argv[1]}", failure="raise")
os.setgid(65534)
os.setuid(65534)
try:
    limiter.hit("k")
except StorageError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("is_there", [True, False], ids=["a file", "a folder"])
def test_a_file_or_folder_that_this_user_may_not_write_to_is_named(is_there: bool, opened: Opened) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "limits.db"
        os.chmod(folder, 0o755)
        if is_there:
            storage = opened(path)
            storage.evaluate([group()])
            storage.close()
            path.chmod(0o644)
        done = subprocess.run(
            [sys.executable, "-c", NOT_ROOT, str(path)], capture_output=True, text=True, timeout=60, cwd="/"
        )
    assert "must be allowed to write" in done.stdout or "this user may write to it" in done.stdout, done


def test_a_read_only_database_is_named(path: Path) -> None:
    storage = SqliteStorage(str(path), deadline=5, synchronous="off")
    storage.evaluate([group()])
    connection = storage._writer._connection
    assert connection is not None
    connection.execute("PRAGMA query_only = on")
    with pytest.raises(StorageError, match="read-only: this user must be allowed to write") as raised:
        storage.evaluate([group()])
    assert raised.value.undone
    storage.close()


# The guard


@pytest.mark.parametrize("failure", ["local", "open", "closed", "raise"])
def test_a_guard_answers_while_the_file_is_locked(path: Path, failure: Failure) -> None:
    storage = SqliteStorage(str(path), deadline=0.05, synchronous="off")
    limiter = Limiter("4/hour", storage=GuardedStorage(storage, failure=failure, workers=2))
    limiter.hit("known")
    with locked(path):
        if failure == "raise":
            with pytest.raises(StorageError):
                limiter.hit("k")
        else:
            answers = [limiter.hit("k").allowed for _ in range(4)]
            assert answers == {"local": [True, True, False, False], "open": [True] * 4, "closed": [False] * 4}[failure]
    limiter.close()


def test_what_a_guard_granted_while_the_file_was_locked_is_written_back(path: Path, opened: Opened) -> None:
    storage = SqliteStorage(str(path), deadline=0.05, synchronous="off")
    guarded = GuardedStorage(storage, workers=2, probe_interval=0.05)
    limiter = Limiter("10/hour", storage=guarded)
    limiter.hit("k")
    with locked(path) as free:
        granted = sum(limiter.hit("k").allowed for _ in range(8))
        assert granted == 5
        free()
        witness = Limiter("10/hour", storage=opened(path))
        ends = time.monotonic() + LONG
        while witness.peek("k").remaining != 4:
            assert time.monotonic() < ends, witness.peek("k")
            limiter.hit("another key")
            time.sleep(0.01)
    limiter.close()


def test_a_guard_for_tasks_answers_while_the_file_is_locked(path: Path, opened: Opened) -> None:
    async def main() -> list[bool]:
        storage = AsyncGuardedStorage(AsyncSqliteStorage(str(path), deadline=0.05, synchronous="off"), workers=2)
        rows = [(await storage.evaluate([((f"{n}", (LIMIT,), 1, None, None),)]))[0] for n in range(4)]
        await storage.close()
        return [row[0][0] for row in rows]

    opened(path).evaluate([group("other")])
    with locked(path):
        assert asyncio.run(main()) == [True] * 4
