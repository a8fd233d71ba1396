"""The storage of states in shared memory, for threads and for tasks: `shm://name`."""

import asyncio
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from ratebound.clock import Clock
from ratebound.duration import Duration, as_seconds
from ratebound.errors import StorageError
from ratebound.limit import Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.storage import Document, HeldSlot
from ratebound.storage.blame import TooLate
from ratebound.storage.secrecy import hidden, split_url
from ratebound.storage.shared_memory.cells import Damaged
from ratebound.storage.shared_memory.documents import Documents
from ratebound.storage.shared_memory.layout import EVICTED, OVERFLOWED
from ratebound.storage.shared_memory.zone_file import check_name, checked_size, open_zone, zone_name
from ratebound.storage.shared_memory.zone_states import QUICK, Busy, ZoneDropped, ZoneStates

DEADLINE = 0.25  # seconds
OPENINGS = 8  # of zones that are dropped one after the other
PAUSE = 0.001  # seconds, of a task between two looks at a lock
TEXT_OF_SIZE = re.compile(r"([0-9]{1,12})\s*(kb|mb|gb|)", re.IGNORECASE)
UNITS = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
LOCKS = ("mutex", "file")
T = TypeVar("T")


def read_url(url: str) -> dict[str, Any]:
    """Return the arguments of a storage from its URL. Raises ValueError for one that cannot be read."""
    parts = split_url(url)
    usual = "expected for example 'shm://api' or 'shm://api?size=64mb'"
    if parts.path.strip("/") or not parts.netloc or "@" in parts.netloc:
        raise ValueError(f"cannot open storage {hidden(url)}: {usual}")
    found: dict[str, Any] = {"name": parts.netloc}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in ("size", "directory", "timeout", "locks") or name in found:
            raise ValueError(
                f"cannot open storage {hidden(url)}: unknown or repeated option {name!r}, expected size, directory,"
                " timeout or locks"
            )
        found[name] = value
    check_name(found["name"])
    if "size" in found:
        found["size"] = read_size(found["size"])
    if "locks" in found and found["locks"] not in LOCKS:
        raise ValueError(f"cannot open storage {hidden(url)}: locks must be 'mutex' or 'file', not {found['locks']!r}")
    if "timeout" in found:
        try:
            found["deadline"] = checked_deadline(float(found.pop("timeout")))
        except ValueError:
            raise ValueError(f"cannot open storage {hidden(url)}: timeout must be seconds, like 0.1") from None
    return found


def read_size(text: str) -> int:
    """Return a size in bytes: '64mb', '1gb' or a number of bytes. Raises ValueError if it cannot be read."""
    found = TEXT_OF_SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"cannot read the size {text!r} of a zone: expected for example '64mb'")
    return checked_size(int(found[1]) * UNITS[found[2].lower()], text)


def check_zone(name: str, directory: str | None = None, **_: Any) -> None:
    """Raise StorageError if there is no such zone."""
    found = zone_name(name, directory)
    if not os.path.lexists(found.path):
        raise StorageError(
            f"there is no zone {name!r} in {found.directory}: start the application first, with storage='shm://{name}'",
            undone=True,
        )


def checked_deadline(deadline: Duration) -> float:
    """Return the deadline of a storage in seconds. Raises ValueError and TypeError for one that is none."""
    return as_seconds("deadline", deadline, positive=True, most=3600.0)


class SharedMemoryStorage:
    """A storage in memory that the processes of one host share, with no server.

    The first process makes the zone. It stays until it is dropped, or until the system is started again. It is
    thread-safe, and a child process may go on with it. `async_twin` serves tasks from the same states.

    Args:
        name: The name of the zone that the processes share.
        size: The bytes of the zone, if this process makes it. None means 32 MB, or what the zone has.
        directory: The folder of the zone, which exists. None means /dev/shm.
        deadline: The longest time of a call: seconds or a timedelta.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.
        locks: `"mutex"`, or `"file"` for file locks, which are slower, and which containers with process ids of their
            own need. None means mutexes where the system has robust ones.

    Raises:
        StorageError: The zone cannot be opened, or has another size than the given one.
        ValueError: An argument is out of range.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.storage.shared_memory.storage import SharedMemoryStorage
        >>> storage = SharedMemoryStorage("app", size=2_000_000, directory=".")
        >>> with Limiter("5/minute", storage=storage) as limiter:
        ...     limiter.hit("user:42").remaining
        4
    """

    def __init__(
        self,
        name: str,
        *,
        size: int | None = None,
        directory: str | None = None,
        deadline: Duration = DEADLINE,
        clock: Clock | None = None,
        locks: str | None = None,
    ) -> None:
        if locks is not None and locks not in LOCKS:
            raise ValueError(f"locks must be 'mutex' or 'file', not {locks!r}")
        self.deadline = checked_deadline(deadline)
        self.zone_name = zone_name(name, directory)
        self._clock = clock
        size = None if size is None else checked_size(size)
        self.states = ZoneStates(partial(open_zone, self.zone_name, size, clock, locks))  # no cycle keeps a zone mapped
        self.documents = Documents(self.zone_name.path, self.deadline)

    @property
    def quick_states(self) -> ZoneStates | None:
        """The states, which answer most hits at once; None if a subclass has an `evaluate` of its own."""
        return self.states if type(self).evaluate is _EVALUATE and "evaluate" not in vars(self) else None

    @classmethod
    def from_url(cls, url: str) -> "SharedMemoryStorage":
        """Open a storage by its URL.

        Args:
            url: The URL of the storage.

        Raises:
            ValueError: The URL cannot be read.
            StorageError: The zone cannot be opened.
        """
        return cls(**read_url(url))

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
        """
        ends = time.monotonic() + self.deadline
        rows: list[Sequence[Row]] = []
        for group in groups:
            try:
                rows.append(self._within(ends, partial(self.states.evaluate, group, mode)))
            except StorageError as error:
                error.undone = error.undone and not rows  # the groups before it are decided
                raise
        return rows

    def reset(self, group: Group) -> None:
        """Forget the states of each ask's key and limits.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        self._within(time.monotonic() + self.deadline, partial(self.states.reset, group))

    def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return (id, expiry) of each slot of a key that is held now, the earliest expiry first.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer.
        """
        ends = time.monotonic() + self.deadline
        return self._within(ends, partial(self.states.holders, key, limit))

    def nodes_of(self, group: Group) -> tuple[str, ...]:
        """Return the shards that a group is in: a worker that is stopped in one of them does not delay the others.

        Args:
            group: The asks.
        """
        cells = self.states.zone.cells
        return tuple(sorted({f"{self.zone_name.name}/{cells.shard_of(key)}" for key, *_ in group}))

    @property
    def keys(self) -> int:
        """The number of states in the zone now, with those that have expired and were not dropped yet."""
        return self.states.zone.cells.used

    @property
    def max_keys(self) -> int:
        """The number of states that the zone has cells for."""
        return self.states.zone.cells.total

    @property
    def evicted(self) -> int:
        """The number of states that were dropped to make room, by all processes."""
        return self.states.zone.cells.counted(EVICTED)

    @property
    def overflowed(self) -> int:
        """The number of checks that were answered from a shared state, in all processes."""
        return self.states.zone.cells.counted(OVERFLOWED)

    def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; (0, b"") if there is none.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage could not answer.
        """
        return self.documents.read(name)

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document as `version` + 1, if `version` is the stored one.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.

        Raises:
            StorageError: The storage could not answer.
        """
        return self.documents.write(name, content, version)

    def close(self) -> None:
        """Do nothing: a zone stays mapped until the storage is no longer in use."""

    def async_twin(self) -> "AsyncSharedMemoryStorage":
        """Return a storage for tasks over the same states."""
        return AsyncSharedMemoryStorage(shared=self)

    def _within(self, ends: float, call: Callable[[float], T]) -> T:
        for _ in range(OPENINGS):
            try:
                return call(max(ends - time.monotonic(), 0.0))
            except ZoneDropped:
                self.states.reopen()
            except Busy:
                break
            except Damaged as error:
                raise self.damaged(error) from error
        raise self.too_late()

    def too_late(self) -> StorageError:
        """Return the error for a lock that is not free in time."""
        return TooLate(
            f"a lock of zone {self.zone_name.name!r} was not free within {self.deadline:g} s: perhaps a process is"
            " stopped that has it",
            undone=True,
        )

    def damaged(self, error: Damaged) -> StorageError:
        """Return the error for a zone with bytes that no process writes.

        Args:
            error: What was found.
        """
        return StorageError(
            f"zone {self.zone_name.name!r} is damaged ({error}): something else has written to it. Run:"
            f" {self.zone_name.drop_command}"
        )


class AsyncSharedMemoryStorage:
    """A storage for tasks: the names of `SharedMemoryStorage`, with await. It is over the states of `shared`, if given.

    It holds the event loop for a decision, and for a millisecond at most while a lock is not free. Then other tasks
    run.

    Args:
        name: The name of the zone that the processes share.
        shared: The storage for threads whose states are shared. None means one of its own, from the other arguments.
        size: The bytes of the zone, if this process makes it. None means 32 MB, or what the zone has.
        directory: The folder of the zone, which exists. None means /dev/shm.
        deadline: The longest time of a call: seconds or a timedelta.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.
        locks: `"mutex"`, or `"file"` for file locks, which are slower, and which containers with process ids of their
            own need. None means mutexes where the system has robust ones.

    Raises:
        StorageError: The zone cannot be opened, or has another size than the given one.
        ValueError: An argument is out of range.

    Examples:
        >>> import asyncio
        >>> from ratebound import AsyncLimiter
        >>> from ratebound.storage.shared_memory.storage import AsyncSharedMemoryStorage
        >>> storage = AsyncSharedMemoryStorage("app", size=2_000_000, directory=".")
        >>> asyncio.run(AsyncLimiter("5/minute", storage=storage).hit("user:42")).remaining
        4
    """

    def __init__(
        self,
        name: str = "",
        *,
        shared: SharedMemoryStorage | None = None,
        size: int | None = None,
        directory: str | None = None,
        deadline: Duration = DEADLINE,
        clock: Clock | None = None,
        locks: str | None = None,
    ) -> None:
        if shared is None:
            shared = SharedMemoryStorage(
                name, size=size, directory=directory, deadline=deadline, clock=clock, locks=locks
            )
        self.shared = shared
        self.deadline = self.shared.deadline

    @property
    def quick_states(self) -> ZoneStates | None:
        """The states, which answer most hits at once; see `SharedMemoryStorage.quick_states`."""
        own = type(self).evaluate is _EVALUATE_FOR_TASKS and "evaluate" not in vars(self)
        return self.shared.quick_states if own else None

    @classmethod
    def from_url(cls, url: str) -> "AsyncSharedMemoryStorage":
        """Open a storage by its URL; see `SharedMemoryStorage.from_url`.

        Args:
            url: The URL of the storage.

        Raises:
            ValueError: The URL cannot be read.
            StorageError: The zone cannot be opened.
        """
        return cls(shared=SharedMemoryStorage.from_url(url))

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
        """
        ends = time.monotonic() + self.deadline
        rows: list[Sequence[Row]] = []
        for group in groups:
            try:
                rows.append(await self._within(ends, partial(self.shared.states.evaluate, group, mode)))
            except StorageError as error:
                error.undone = error.undone and not rows
                raise
        return rows

    async def reset(self, group: Group) -> None:
        """Forget the states of each ask's key and limits; see `SharedMemoryStorage.reset`.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        await self._within(time.monotonic() + self.deadline, partial(self.shared.states.reset, group))

    async def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return the slots of a key that are held now; see `SharedMemoryStorage.holders`.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer.
        """
        ends = time.monotonic() + self.deadline
        return await self._within(ends, partial(self.shared.states.holders, key, limit))

    def nodes_of(self, group: Group) -> tuple[str, ...]:
        """Return the shards that a group is in; see `SharedMemoryStorage.nodes_of`.

        Args:
            group: The asks.
        """
        return self.shared.nodes_of(group)

    async def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; see `SharedMemoryStorage.read_document`.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage could not answer.
        """
        return self.shared.read_document(name)

    async def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document; see `SharedMemoryStorage.write_document`. It is written in a thread.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.

        Raises:
            StorageError: The storage could not answer.
        """
        return await asyncio.to_thread(self.shared.write_document, name, content, version)

    async def close(self) -> None:
        """Do nothing; see `SharedMemoryStorage.close`."""

    async def _within(self, ends: float, call: Callable[[float], T]) -> T:
        while True:
            dropped = False
            try:
                return call(QUICK)
            except ZoneDropped:
                dropped = True
            except Busy:
                if time.monotonic() >= ends:
                    raise self.shared.too_late() from None
            except Damaged as error:
                raise self.shared.damaged(error) from error
            await (self._reopen(ends) if dropped else asyncio.sleep(PAUSE))

    async def _reopen(self, ends: float) -> None:
        """Open the next zone in a thread, which goes on if the caller leaves."""
        opening = asyncio.ensure_future(asyncio.to_thread(self.shared.states.reopen))
        opening.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits for it
        await asyncio.wait((opening,), timeout=max(ends - time.monotonic(), 0.0))
        if not opening.done():
            raise TooLate(
                f"zone {self.shared.zone_name.name!r} was dropped, and the next one was not opened within"
                f" {self.deadline:g} s",
                undone=True,
            )
        opening.result()


# As they are written here: a test of the application may have replaced them in the class.
_EVALUATE = SharedMemoryStorage.evaluate
_EVALUATE_FOR_TASKS = AsyncSharedMemoryStorage.evaluate
