"""PostgreSQL as a storage, for threads and for tasks: `postgresql://host/database`.

One row is one state, and the kernels run in Python between two trips; see transactions.py. The database's clock counts.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from ratebound.clock import Clock
from ratebound.errors import StorageError
from ratebound.fork import renew_in_children
from ratebound.limit import Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.storage import Document, HeldSlot
from ratebound.storage.blame import STALLED, Blameless, LoopWatch, TooLate
from ratebound.storage.postgres.address import PostgresAddress, read_url
from ratebound.storage.postgres.calls import SWEEP_DEADLINE, Calls
from ratebound.storage.postgres.pool import LoopPool, ThreadPool
from ratebound.storage.postgres.steps import run, run_async
from ratebound.storage.postgres.transactions import Transactions, Work
from ratebound.storage.threads import Threads

T = TypeVar("T")


class PostgresStorage:
    """A storage on PostgreSQL.

    Its tables are made by `ratebound storage init`. No call takes longer than the timeout of the URL, with the time to
    connect. It is thread-safe, and a child process may go on with it. `async_twin` serves tasks from the same states.

    Args:
        address: A URL like `"postgresql://host/database"`, or what `read_url` returns.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: The URL cannot be read.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.storage.postgres.storage import PostgresStorage
        >>> storage = PostgresStorage("postgresql://localhost/app?timeout=0.5")
        >>> limiter = Limiter("5/minute", storage=storage)
    """

    def __init__(self, address: str | PostgresAddress, *, clock: Clock | None = None) -> None:
        self.address = read_url(address) if isinstance(address, str) else address
        self.deadline = self.address.timeout
        self._clock = clock
        self._transactions = Transactions(self.address, clock)
        self._calls = Calls(self.address, self._transactions)
        self._pool = ThreadPool(self.address.pool)
        self._threads = Threads(1)  # for sweeps
        renew_in_children(self)

    @classmethod
    def from_url(cls, url: str) -> "PostgresStorage":
        """Open a storage by its URL.

        Args:
            url: The URL of the storage.

        Raises:
            ValueError: The URL cannot be read.
        """
        return cls(url)

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
        """
        rows = self._call(self._transactions.deciding(groups, mode))
        if self._calls.sweep_is_due():
            self._threads.start(self._sweep)
        return rows

    def reset(self, group: Group) -> None:
        """Forget the states of each ask's key and limits.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        self._call(self._transactions.resetting(group))

    def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return (id, expiry) of each slot of a key that is held now, the earliest expiry first.

        Expiries are in microseconds of the database's clock.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer.
        """
        return self._call(self._transactions.listing_holders(key, limit))

    def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; (0, b"") if there is none.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage could not answer.
        """
        return self.read_documents([name])[0]

    def read_documents(self, names: Sequence[str]) -> list[Document]:
        """Return what `read_document` returns for each name, in one trip.

        Args:
            names: The names of the documents.
        """
        return self._call(self._transactions.reading_documents(names))

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document as `version` + 1, if `version` is the stored one. Return False if it is not.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.

        Raises:
            StorageError: The storage could not answer. It is unknown whether the document was written, unless `undone`
                of the error is True.
        """
        return self._call(self._transactions.writing_document(name, content, version))

    def connect(self) -> None:
        """Make the first connection and check the tables now, instead of with the first request.

        Raises:
            StorageError: The storage could not answer, or the tables are not there.
        """
        self._call(self._transactions.version)

    def sweep(self) -> int:
        """Remove expired rows now, as far as it is worthwhile. Return their number.

        It is not needed: processes that use the storage do it from time to time, one of them at a time.

        Raises:
            StorageError: The storage could not answer.
        """
        removed, goes_on = 0, True
        while goes_on:
            more, goes_on = self._call(self._transactions.sweep, SWEEP_DEADLINE)
            removed += more
        return removed

    def close(self) -> None:
        """Close all connections. The next call opens them again."""
        self._pool.forget()
        self._threads.close()

    def renew(self) -> None:
        """Forget all connections, in a forked child: they belong to the parent."""
        self._pool.renew()

    def async_twin(self) -> "AsyncPostgresStorage":
        """Return a storage for tasks over the same states."""
        return AsyncPostgresStorage(self.address, clock=self._clock)

    def _call(self, work: Work[T], deadline: float | None = None) -> T:
        ends = time.monotonic() + (deadline or self.deadline)
        place = self._pool.take(ends)
        try:
            return run(self._calls.calling(place, self._pool.forget, work, ends))
        finally:
            self._pool.give(place)

    def _sweep(self) -> None:
        try:
            self.sweep()
        except StorageError as error:
            self._calls.warn_of_sweep(error)


class AsyncPostgresStorage:
    """A PostgresStorage for tasks. Each event loop has its own connections.

    Args:
        address: A URL like `"postgresql://host/database"`, or what `read_url` returns.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: The URL cannot be read.

    Examples:
        >>> from ratebound import AsyncLimiter
        >>> from ratebound.storage.postgres.storage import AsyncPostgresStorage
        >>> limiter = AsyncLimiter("5/minute", storage=AsyncPostgresStorage("postgresql://localhost/app"))
    """

    def __init__(self, address: str | PostgresAddress, *, clock: Clock | None = None) -> None:
        self.address = read_url(address) if isinstance(address, str) else address
        self.deadline = self.address.timeout
        self._transactions = Transactions(self.address, clock)
        self._calls = Calls(self.address, self._transactions)
        self._loops: dict[asyncio.AbstractEventLoop, _PostgresLoop] = {}
        renew_in_children(self)

    @classmethod
    def from_url(cls, url: str) -> "AsyncPostgresStorage":
        """Open a storage by its URL; see `PostgresStorage.from_url`.

        Args:
            url: The URL of the storage.

        Raises:
            ValueError: The URL cannot be read.
        """
        return cls(url)

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
        """
        rows = await self._call(self._transactions.deciding(groups, mode))
        if self._calls.sweep_is_due():
            self._loop().start(self._sweep())
        return rows

    async def reset(self, group: Group) -> None:
        """Forget the states of each ask's key and limits; see `PostgresStorage.reset`.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        await self._call(self._transactions.resetting(group))

    async def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return the slots of a key that are held now; see `PostgresStorage.holders`.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer.
        """
        return await self._call(self._transactions.listing_holders(key, limit))

    async def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; see `PostgresStorage.read_document`.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage could not answer.
        """
        return (await self.read_documents([name]))[0]

    async def read_documents(self, names: Sequence[str]) -> list[Document]:
        """Return what `read_document` returns for each name; see `PostgresStorage.read_documents`.

        Args:
            names: The names of the documents.
        """
        return await self._call(self._transactions.reading_documents(names))

    async def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document; see `PostgresStorage.write_document`.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.

        Raises:
            StorageError: The storage could not answer. It is unknown whether the document was written, unless `undone`
                of the error is True.
        """
        return await self._call(self._transactions.writing_document(name, content, version))

    async def connect(self) -> None:
        """Make the first connection and check the tables now; see `PostgresStorage.connect`.

        Raises:
            StorageError: The storage could not answer, or the tables are not there.
        """
        await self._call(self._transactions.version)

    async def sweep(self) -> int:
        """Remove expired rows now; see `PostgresStorage.sweep`.

        Raises:
            StorageError: The storage could not answer.
        """
        removed, goes_on = 0, True
        while goes_on:
            more, goes_on = await self._call(self._transactions.sweep, SWEEP_DEADLINE)
            removed += more
        return removed

    async def close(self) -> None:
        """Close the connections of the running event loop. Its next call opens them again."""
        loop = self._loops.pop(asyncio.get_running_loop(), None)
        if loop is not None:
            await loop.close()

    def renew(self) -> None:
        """Forget all connections, in a forked child: they belong to the parent."""
        loops, self._loops = self._loops, {}
        for loop in loops.values():
            loop.pool.abandon()

    @property
    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """The event loops that hold connections open."""
        return list(self._loops)

    async def _call(self, work: Work[T], deadline: float | None = None) -> T:
        ends = time.monotonic() + (deadline or self.deadline)
        pool = self._loop().pool
        with LoopWatch(self.deadline / 4) as watch:
            try:
                place = await pool.take(ends)
                try:
                    return await run_async(self._calls.calling(place, pool.forget, work, ends))
                finally:
                    pool.give(place)
            except TooLate as error:
                if watch.stalled:
                    raise Blameless(STALLED, undone=error.undone) from None
                raise

    async def _sweep(self) -> None:
        try:
            await self.sweep()
        except StorageError as error:
            self._calls.warn_of_sweep(error)

    def _loop(self) -> "_PostgresLoop":
        running = asyncio.get_running_loop()
        loop = self._loops.get(running)
        if loop is None:
            for old in list(self._loops):
                if old.is_closed():  # it ended without closing the storage
                    self._loops.pop(old, None)  # another thread may have done so just now
            loop = self._loops[running] = _PostgresLoop(self.address.pool)
        return loop


class _PostgresLoop:
    """The connections of one event loop, and its sweep."""

    def __init__(self, most: int) -> None:
        self.pool = LoopPool(most)
        self._sweeps: set[asyncio.Task[Any]] = set()  # loops keep weak references only

    def start(self, sweep: Any) -> None:
        """Start a sweep beside the calls."""
        task = asyncio.get_running_loop().create_task(sweep, name="ratebound-sweep")
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)

    async def close(self) -> None:
        """Stop the sweep, and close all connections."""
        for task in list(self._sweeps):
            task.cancel()
        await asyncio.gather(*self._sweeps, return_exceptions=True)
        self.pool.forget()
