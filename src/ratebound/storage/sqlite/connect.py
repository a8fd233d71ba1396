"""Open a file of SQLite that is Ratebound's own, and turn the errors of SQLite into errors that say what to do.

A file is marked by its `application_id`, and `user_version` is the version of its tables. States, shared documents and
the usage ledger may share one file. Waiting for the lock of another process is ours: SQLite's own waits grow to a tenth
of a second, and a process that waits would starve beside one that does not.
"""

import contextlib
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet, ref

from ratebound.errors import StorageError
from ratebound.fork import close_locked_file
from ratebound.storage.blame import TooLate, is_programs_own
from ratebound.storage.sqlite.address import SqliteAddress

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

APPLICATION_ID = 0x5262_6E64  # "Rbnd": SQLite keeps it in the header of the file
VERSION = 1  # of all tables in a file
MARK = (f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}")
PAUSE = 0.0004  # seconds between two looks at the lock of another process, at most
JOURNAL_SIZE = 16 << 20  # bytes that the write-ahead log keeps on the disk at most while it is idle
LOOK = 0.005  # seconds between two looks whether the file was deleted or replaced
RESERVED = 0.02  # seconds for which a thread that waits reserves the next turn; then it does so again
AT_FORK = 2.0  # seconds that a fork waits for the calls of other threads
FOLLOWERS = ("-wal", "-shm", "-journal")  # files that SQLite puts beside a database

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
T = TypeVar("T")


def open_connection(address: SqliteAddress, ends: float) -> sqlite3.Connection:
    """Open the file, and make and mark it if it is not there. Tables are up to the caller.

    The connection is in autocommit mode, waits for no lock, and may be used by any thread, one at a time. Nothing takes
    longer than until `ends`, by time.monotonic(). Raises StorageError.

    It must not be open while the process forks: `SqliteFile` sees to that.
    """
    connection = None
    try:
        _make_file(address.path, ends)
        connection = sqlite3.connect(address.path, timeout=0, isolation_level=None, check_same_thread=False)
        until_free(address, ends, lambda: _check_mark(connection, address))
        connection.execute(f"PRAGMA synchronous = {address.synchronous}")
        journal = until_free(address, ends, lambda: connection.execute("PRAGMA journal_mode = wal").fetchone()[0])
        if journal != "wal":
            raise StorageError(
                f"{address.path} cannot have a write-ahead log: put it on a local disk, not on a network file system",
                undone=True,
            )
        connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_SIZE}")
        until_free(address, ends, lambda: _mark(connection, address, ends))
    except BaseException as error:
        if connection is not None:
            connection.close()
        raise_for(error, address)
    return connection


def begin(connection: sqlite3.Connection, address: SqliteAddress, ends: float) -> bool:
    """Begin a transaction that writes, as soon as no other process writes. Raises TooLate at `ends`.

    Return True if another process was writing.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        return False
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
    until_free(address, ends, lambda: connection.execute("BEGIN IMMEDIATE"))
    return True


def until_free(address: SqliteAddress, ends: float, call: Callable[[], T]) -> T:
    """Return the result of a call that may find the database locked by another process. Raises TooLate at `ends`.

    The call is made at least once.
    """
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        if time.monotonic() >= ends:
            raise TooLate(
                f"another process had the lock of {address.path} for longer than {address.timeout:g} s: perhaps it is"
                " stopped, or it has a long transaction open",
                undone=True,
            )
        time.sleep(random.uniform(0.1, 1.0) * PAUSE)


def is_busy(error: BaseException) -> bool:
    """Return True if another process has a lock, so that the call may succeed a little later."""
    return _code(error) in _BUSY


def is_lasting(error: BaseException) -> bool:
    """Return True if a connection should be opened again after this error: it is not about a lock or a full disk."""
    return isinstance(error, sqlite3.Error) and _code(error) not in (*_BUSY, sqlite3.SQLITE_FULL)


def storage_error(error: BaseException, address: SqliteAddress) -> BaseException:
    """Return the StorageError for an exception of SQLite, which says what to do.

    Exceptions that are no fault of the database, such as those of the program's own signal handlers, are returned as
    they are, and so is a StorageError.
    """
    if isinstance(error, StorageError) or not isinstance(
        error, sqlite3.Error | sqlite3.Warning | OSError | MemoryError
    ):
        return error
    if is_programs_own(error):
        return error
    advice = _advice(error, address.path)
    return StorageError(f"{advice} ({str(error) or type(error).__name__})", undone=True)


def raise_for(error: BaseException, address: SqliteAddress) -> NoReturn:
    """Raise the StorageError for an exception of SQLite, or the exception itself; see `storage_error`."""
    told = storage_error(error, address)
    if told is error:
        raise error
    raise told from error


def _advice(error: BaseException, path: str) -> str:
    code, extended = _code(error), getattr(error, "sqlite_errorcode", None) or 0
    if isinstance(error, OSError) or code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return f"cannot open {path}: check that its folder is there, and that this user may write to it"
    if code == sqlite3.SQLITE_FULL:
        return f"{path} cannot grow: the disk is full, or the database has reached its max_page_count; free some space"
    if code == sqlite3.SQLITE_NOTADB:
        return f"{path} is not a database of SQLite: name another file, or move this one away"
    if code == sqlite3.SQLITE_CORRUPT:
        return f"{path} is damaged: stop its processes, and restore it from a backup or move it away"
    if code == sqlite3.SQLITE_READONLY:
        return f"{path} is read-only: this user must be allowed to write to the file and to its folder"
    if code == sqlite3.SQLITE_PROTOCOL or (code == sqlite3.SQLITE_IOERR and extended in _SHARED_MEMORY):
        return f"{path} cannot be locked or mapped: put it on a local disk, not on a network file system"
    if code == sqlite3.SQLITE_IOERR:
        return f"the disk of {path} fails: check the disk, and that nobody has replaced the files of the database"
    return f"SQLite cannot use {path}"


_SHARED_MEMORY = tuple(
    getattr(sqlite3, f"SQLITE_IOERR_{name}") for name in ("SHMOPEN", "SHMSIZE", "SHMLOCK", "SHMMAP", "LOCK")
)


def _code(error: BaseException) -> int | None:
    """Return the primary result code of SQLite; None if the error has none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _check_mark(connection: sqlite3.Connection, address: SqliteAddress) -> bool:
    """Return True if the file is marked. Raises StorageError if it belongs to another program or a later version."""
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if mark != APPLICATION_ID:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables or mark or version:
            raise StorageError(
                f"{address.path} is a database of another program: give Ratebound a file of its own", undone=True
            )
        return False
    if version > VERSION:
        raise StorageError(
            f"{address.path} was written by a later version of Ratebound (its tables have version {version}, this one"
            f" reads {VERSION}): upgrade all processes that use it",
            undone=True,
        )
    return True


def _mark(connection: sqlite3.Connection, address: SqliteAddress, ends: float) -> None:
    if _check_mark(connection, address):
        return
    begin(connection, address, ends)
    try:
        if not _check_mark(connection, address):  # another process may have done it meanwhile
            for statement in MARK:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction without its writes. Does nothing if SQLite has ended it already."""
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _make_file(path: str, ends: float) -> None:
    """Make an empty file if there is none, which only this user may read.

    Files that a deleted database has left beside it would be taken for those of the new one. They are removed under a
    lock on the folder, so that no process removes those of a database that another one has just made.
    """
    if os.path.exists(path):
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY) if fcntl is not None else None
    try:
        if folder is not None:
            _lock_folder(folder, path, ends)
        if not os.path.lexists(path):
            for name in FOLLOWERS:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path + name)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    finally:
        if folder is not None:
            close_locked_file(folder)


def _lock_folder(folder: int, path: str, ends: float) -> None:
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= ends:
                raise TooLate(f"another process has been making {path} for too long", undone=True) from None
        time.sleep(PAUSE)


class TurnToken:
    """The right to use the connection of a file. There is one for each file: the thread that refers to it has the turn.

    One that is lost comes back by itself: a signal handler may raise at any moment, also just before a turn is given
    back. So nothing may refer to it but the turn of a thread: a traceback that somebody keeps refers to all variables.
    """

    __slots__ = ("__weakref__", "_file")

    def __init__(self, file: "SqliteFile") -> None:
        self._file = ref(file)

    def __del__(self) -> None:
        file = self._file()
        if file is not None:
            file.give_turn_back([TurnToken(file)])


Turn = list[TurnToken]  # a turn that a thread has; empty once it was given back


class SqliteFile:
    """One connection to a file, which is opened on first use and which one thread has at a time.

    `prepare(connection, ends)` is called after each opening; it makes tables. The connection is closed before a fork,
    and opened again in both processes: one that crosses a fork corrupts the file. It is opened again, too, if somebody
    has deleted or replaced the file.
    """

    def __init__(
        self, address: SqliteAddress, prepare: Callable[[sqlite3.Connection, float], None] | None = None
    ) -> None:
        self.address = address
        self.when_free: Callable[[], None] | None = None  # called after the turn was given back
        self._prepare = prepare
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)  # device and inode of the file that is open
        self._next_look = 0.0  # at the file, by time.monotonic()
        # While a thread waits, others that do not wait get no turn: they would come first again and again.
        self._reserved_until = 0.0
        self._is_broken = False  # by a fork
        self._turns: SimpleQueue[TurnToken] = SimpleQueue()
        self._turns.put(TurnToken(self))
        _files.add(self)

    def take_turn(self, timeout: float = 0.0) -> Turn | None:
        """Return the turn, or None if another thread does not give it back within `timeout` seconds.

        A thread that has it may call `connection`, `failed` and `close_now`.
        """
        try:
            if timeout <= 0:
                is_reserved = self._reserved_until and time.monotonic() < self._reserved_until
                return None if is_reserved else [self._turns.get_nowait()]
            ends = time.monotonic() + timeout
            while (now := time.monotonic()) < ends:
                self._reserved_until = now + RESERVED
                with contextlib.suppress(Empty):
                    turn = [self._turns.get(timeout=min(ends - now, RESERVED))]
                    self._reserved_until = 0.0
                    return turn
            return None
        except Empty:
            return None

    def give_turn_back(self, turn: Turn) -> None:
        """Let another thread have the connection, unless the turn was given back before."""
        while turn:
            self._turns.put(turn.pop())
        if self.when_free is not None:
            self.when_free()

    @contextlib.contextmanager
    def connected(self, ends: float) -> Iterator[sqlite3.Connection]:
        """Have the connection to oneself. A transaction that is left open is rolled back. Raises StorageError.

        Exceptions of SQLite become a StorageError, whose `undone` is True.
        """
        turn = self.take_turn(ends - time.monotonic())
        if turn is None:
            raise self.too_late()
        try:
            connection = self.connection(ends)
            try:
                yield connection
            except BaseException as error:
                roll_back(connection)
                self.failed(error)
                raise_for(error, self.address)
            roll_back(connection)
        finally:
            self.give_turn_back(turn)

    def connection(self, ends: float) -> sqlite3.Connection:
        """Return the open connection. The caller has the turn. Raises StorageError."""
        if self._is_broken:
            raise StorageError(
                f"this process was forked while a thread used {self.address.path}, so it cannot use SQLite: start it by"
                " 'spawn' instead of 'fork'",
                undone=True,
            )
        connection = self._connection
        if connection is not None:
            if connection.in_transaction:  # of a thread that lost its turn
                roll_back(connection)
            now = time.monotonic()
            if now < self._next_look:
                return connection
            try:
                found = os.stat(self.address.path)
                if (found.st_dev, found.st_ino) == self._identity:
                    self._next_look = now + LOOK
                    return connection
            except OSError:  # it was deleted: then a new one is made
                pass
            self.close_now()
        connection = open_connection(self.address, ends)
        try:
            found = os.stat(self.address.path)
            if self._prepare is not None:
                self._prepare(connection, ends)
        except BaseException as error:
            connection.close()
            raise_for(error, self.address)
        self._identity = (found.st_dev, found.st_ino)
        self._next_look = 0.0
        self._connection = connection
        return connection

    def failed(self, error: BaseException) -> None:
        """Close the connection if an error says that it is of no more use. The caller has the turn."""
        if is_lasting(error):
            self.close_now()

    def close_now(self) -> None:
        """Close the connection. The caller has the turn."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def close(self, timeout: float) -> None:
        """Close the connection as soon as no thread has it, but wait no longer than `timeout` seconds for that."""
        turn = self.take_turn(timeout)
        if turn is not None:
            try:
                self.close_now()
            finally:
                self.give_turn_back(turn)

    def too_late(self) -> TooLate:
        """Return the error for a call that waited for others until its deadline."""
        return TooLate(
            f"{self.address.path} was not free within {self.address.timeout:g} s: another process has it locked, or the"
            " disk is too slow for so many calls",
            undone=True,
        )

    def before_fork(self) -> Turn | None:
        """Close the connection and return the turn; None if another thread does not give it back in time."""
        turn = self.take_turn(AT_FORK)
        if turn is not None:
            self.close_now()
        return turn

    def in_child(self) -> None:
        """Begin anew. A connection that is still open is the parent's: it must not be closed here, nor collected.

        SQLite may be locked for ever then, by a thread that does not exist here.
        """
        self._turns = SimpleQueue()
        self._turns.put(TurnToken(self))
        if self._connection is not None:
            _abandoned.append(self._connection)
            self._connection = None
            self._is_broken = True


_files: "WeakSet[SqliteFile]" = WeakSet()  # of this process
# Of each thread that forks now: the files that it has closed, with their turns.
_forking: dict[int, list[tuple[SqliteFile, Turn]]] = {}
_abandoned: list[Any] = []


def _before_fork() -> None:
    closed = _forking.setdefault(threading.get_ident(), [])
    for file in list(_files):
        turn = file.before_fork()
        if turn is not None:
            closed.append((file, turn))


def _in_parent() -> None:
    for file, turn in _forking.pop(threading.get_ident(), ()):
        file.give_turn_back(turn)


def _in_child() -> None:
    _abandoned.extend(_forking.values())  # a turn of the parent must not come back here
    _forking.clear()
    for file in list(_files):
        file.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
