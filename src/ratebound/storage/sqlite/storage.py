"""The storage of states in a file of SQLite, for threads and for tasks: `sqlite:///limits.db`."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ratebound.clock import Clock, wall_clock
from ratebound.duration import Duration
from ratebound.errors import StorageError
from ratebound.limit import Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.storage import Document, HeldSlot
from ratebound.storage.blame import TooLate
from ratebound.storage.sqlite.address import DEADLINE, SqliteAddress, read_url
from ratebound.storage.sqlite.connect import SqliteFile, begin, until_free
from ratebound.storage.sqlite.group_commit import NO_THREAD, GroupCommit, PendingCall, resolve
from ratebound.storage.sqlite.tables import DELETE, make_tables, read_all_documents, read_states, replace_document
from ratebound.storage.stored_states import StateChange, StateNames, StoredGroup, holders_in
from ratebound.storage.threads import Reply, Threads

GRACE = 0.01  # seconds: the thread gives up at the deadline itself, and knows why
T = TypeVar("T")


class SqliteStorage:
    """A storage in a file that the threads and processes of one host share, with no server. States outlast restarts.

    Threads that call at the same time are decided together, in one transaction. Peeks and readers of documents wait for
    no writer.

    Args:
        path: The file. It is made on first use.
        deadline: The longest time of a call, unless the disk itself stalls: seconds or a timedelta.
        synchronous: `"full"`, `"normal"` or `"off"`: with `"full"` a decision is on the disk before it is answered.
        secret: A secret without which nobody can tell whose states the file has. Empty means none.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: An argument is out of range.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.storage.sqlite.storage import SqliteStorage
        >>> with Limiter("5/minute", storage=SqliteStorage("limits.db")) as limiter:
        ...     limiter.hit("user:42").remaining
        4
    """

    def __init__(
        self,
        path: str,
        *,
        deadline: Duration = DEADLINE,
        synchronous: str = "full",
        secret: str = "",
        clock: Clock | None = None,
    ) -> None:
        self.address = SqliteAddress(str(path), deadline, synchronous, secret)  # type: ignore[arg-type]
        self.deadline = self.address.timeout
        self.threads = Threads()  # for tasks
        self.names = StateNames(secret)
        self._clock = wall_clock if clock is None else clock  # all processes of the file share it
        prepare = partial(_prepare, self.address)
        self._writer = SqliteFile(self.address, prepare)
        self._reader = SqliteFile(self.address, prepare)
        self.commits = GroupCommit(self._writer, self._clock, self.threads)

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> "SqliteStorage":
        """Return a storage by its URL.

        Args:
            url: The URL of the storage.
            clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's
                clock.

        Raises:
            ValueError: The URL cannot be read.
        """
        found = read_url(url)
        return cls(found.path, deadline=found.timeout, synchronous=found.synchronous, secret=found.secret, clock=clock)

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
        """
        if len(groups) == 1 and mode != "peek":
            group = StoredGroup(groups[0], self.names)
            return self.commits.decide_alone(group, mode, time.monotonic() + self.deadline)
        stored = [StoredGroup(group, self.names) for group in groups]
        if mode == "peek":
            return self.peek(stored)
        return self.commits.decide(PendingCall(stored, mode, time.monotonic() + self.deadline))

    def peek(self, groups: Sequence[StoredGroup]) -> list[Sequence[Row]]:
        """Answer each group without a charge. Waits for no writer, and writes nothing.

        After a step back of the clock it writes the states that have to be repaired, if it can.

        Args:
            groups: The groups, as they are stored.

        Raises:
            StorageError: The storage could not answer.
        """
        ends = time.monotonic() + self.deadline
        with self._reader.connected(ends) as connection:
            found = [until_free(self.address, ends, partial(self._peeked, connection, group)) for group in groups]
        repaired = [group for group, (_, changes) in zip(groups, found, strict=True) if changes]
        if repaired:
            with suppress(StorageError):  # the answers are right anyway
                self.commits.decide(PendingCall(repaired, "peek", ends))
        return [rows for rows, _ in found]

    def reset(self, group: Group) -> None:
        """Delete the states of each ask's key and limits.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        names = [(name,) for name in StoredGroup(group, self.names).names]
        self._write(lambda connection: connection.executemany(DELETE, names))

    def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return (id, expiry) of each slot of a key that is held now, the earliest expiry first.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer.
        """
        name = self.names.of(key, limit.numbers)
        found: dict[bytes, bytes] = {}
        self._read(lambda connection: read_states(connection, [name], found))
        return holders_in(limit.numbers, found[name], self._clock())

    def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; (0, b"") if there is none.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage could not answer.
        """
        return self.read_documents([name])[0]

    def read_documents(self, names: Sequence[str]) -> list[Document]:
        """Return what `read_document` returns for each name, in one read.

        Args:
            names: The names of the documents.
        """
        return self._read(lambda connection: read_all_documents(connection, names))

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document as `version` + 1, if `version` is the stored one.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.

        Raises:
            StorageError: The storage could not answer.
        """
        return self._write(lambda connection: replace_document(connection, name, content, version))

    def close(self) -> None:
        """Close the file. The next call opens it again."""
        self._writer.close(self.deadline)
        self._reader.close(self.deadline)
        self.threads.close()

    def async_twin(self) -> "AsyncSqliteStorage":
        """Return a storage for tasks over the same states."""
        return AsyncSqliteStorage(shared=self)

    def _peeked(self, connection: sqlite3.Connection, group: StoredGroup) -> tuple[list[Row], list[StateChange]]:
        found: dict[bytes, bytes] = {}
        is_one = len(group.names) == 1
        if not is_one:
            connection.execute("BEGIN")  # one snapshot for all states of the group
        try:
            read_states(connection, group.names, found)
        finally:
            if not is_one:
                connection.execute("ROLLBACK")
        return group.decide(found, "peek", self._clock())

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        ends = time.monotonic() + self.deadline
        with self._reader.connected(ends) as connection:
            return until_free(self.address, ends, lambda: read(connection))

    def _write(self, write: Callable[[sqlite3.Connection], T]) -> T:
        ends = time.monotonic() + self.deadline
        with self._writer.connected(ends) as connection:
            begin(connection, self.address, ends)
            result = write(connection)
            connection.execute("COMMIT")
            return result


class AsyncSqliteStorage:
    """A storage for tasks: the names of `SqliteStorage`, with await. It is over the states of `shared`, if given.

    Calls run in threads. Tasks that call at the same time are decided together, in one transaction.

    Args:
        path: The file. It is made on first use.
        shared: The storage for threads whose states are shared. None means one of its own, from the other arguments.
        deadline: The longest time of a call, unless the disk itself stalls: seconds or a timedelta.
        synchronous: `"full"`, `"normal"` or `"off"`: with `"full"` a decision is on the disk before it is answered.
        secret: A secret without which nobody can tell whose states the file has. Empty means none.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: An argument is out of range.

    Examples:
        >>> import asyncio
        >>> from ratebound import AsyncLimiter
        >>> from ratebound.storage.sqlite.storage import AsyncSqliteStorage
        >>> async def main():
        ...     async with AsyncLimiter("5/minute", storage=AsyncSqliteStorage("limits.db", deadline=5)) as limiter:
        ...         return await limiter.hit("user:42")
        >>> asyncio.run(main()).remaining
        4
    """

    def __init__(
        self,
        path: str = "",
        *,
        shared: SqliteStorage | None = None,
        deadline: Duration = DEADLINE,
        synchronous: str = "full",
        secret: str = "",
        clock: Clock | None = None,
    ) -> None:
        if shared is None:
            shared = SqliteStorage(path, deadline=deadline, synchronous=synchronous, secret=secret, clock=clock)
        self.shared = shared
        self.address = shared.address
        self.deadline = shared.deadline

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> "AsyncSqliteStorage":
        """Return a storage by its URL; see `SqliteStorage.from_url`.

        Args:
            url: The URL of the storage.
            clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's
                clock.

        Raises:
            ValueError: The URL cannot be read.
        """
        return cls(shared=SqliteStorage.from_url(url, clock=clock))

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
        """
        stored = [StoredGroup(group, self.shared.names) for group in groups]
        if mode == "peek":
            return await self._in_thread(partial(self.shared.peek, stored))
        loop, commits = asyncio.get_running_loop(), self.shared.commits
        future: asyncio.Future[list[Sequence[Row]]] = loop.create_future()
        call = PendingCall(stored, mode, time.monotonic() + self.deadline, loop, future)
        timer = loop.call_later(self.deadline + GRACE, self._expire, call)
        try:
            commits.submit(call)
            return await future
        except asyncio.CancelledError:
            commits.withdraw(call)
            raise
        finally:
            timer.cancel()

    async def reset(self, group: Group) -> None:
        """Delete states; see `SqliteStorage.reset`.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        await self._in_thread(partial(self.shared.reset, group))

    async def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return the slots of a key that are held now; see `SqliteStorage.holders`.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer.
        """
        return await self._in_thread(partial(self.shared.holders, key, limit))

    async def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; see `SqliteStorage.read_document`.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage could not answer.
        """
        return await self._in_thread(partial(self.shared.read_document, name))

    async def read_documents(self, names: Sequence[str]) -> list[Document]:
        """Return what `read_document` returns for each name; see `SqliteStorage.read_documents`.

        Args:
            names: The names of the documents.
        """
        return await self._in_thread(partial(self.shared.read_documents, names))

    async def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document; see `SqliteStorage.write_document`.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.

        Raises:
            StorageError: The storage could not answer.
        """
        return await self._in_thread(partial(self.shared.write_document, name, content, version))

    async def close(self) -> None:
        """Close the file; see `SqliteStorage.close`."""
        with suppress(StorageError):  # then a thread goes on closing it
            await self._in_thread(self.shared.close)

    def _expire(self, call: PendingCall) -> None:
        """Give up at the deadline, unless the answer is there: a signal handler may have kept it from being told."""
        error = self.shared.commits.late(call)
        if call.answer is None:
            call.answer = error
        resolve([call])

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Return what a function returns in a thread. Raises TooLate at the deadline: then it may still be called."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                reply = Reply(function(), None)
            except BaseException as error:
                reply = Reply(None, error)
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(_deliver, future, reply)

        job = self.shared.threads.queue(work)
        if job is None:
            raise StorageError(NO_THREAD, undone=True)
        try:
            async with asyncio.timeout(self.deadline + GRACE):
                return await future
        except TimeoutError:
            self.shared.threads.withdraw(job)
            raise TooLate(
                f"{self.address.path} was not read or written within {self.deadline:g} s: the disk is too slow",
                undone=job.began is None,
            ) from None


def _deliver(future: "asyncio.Future[Any]", reply: Reply) -> None:
    if future.done():
        return
    if reply.error is not None:
        future.set_exception(reply.error)
    else:
        future.set_result(reply.value)


def _prepare(address: SqliteAddress, connection: sqlite3.Connection, ends: float) -> None:
    until_free(address, ends, lambda: make_tables(connection, address, ends))
