"""States in this process's memory: the default storage, with nothing to install.

The states and the decisions are in memory_states.py, which may be compiled. Here is what users subclass and replace.
"""

from collections.abc import Sequence

from ratebound.clock import Clock
from ratebound.fork import renew_in_children
from ratebound.limit import Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.storage import AtOnce, Document, HeldSlot, at_once_of
from ratebound.storage.memory_states import States


class MemoryStorage:
    """A storage in the memory of this process. It is thread-safe; `async_twin` serves tasks from the same states.

    A state counts as 1 of `max_keys`. A sliding log, or the slots, values or strikes of a key, count as 1 more for
    every 16 entries. Where all other states deny, blocks of penalties may exceed it by a quarter.

    Args:
        max_keys: The most states that are kept; above that, the states that matter least are dropped.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: `max_keys` is not a positive whole number.

    Examples:
        >>> from ratebound import Limiter, MemoryStorage
        >>> storage = MemoryStorage(max_keys=10_000)
        >>> limiter = Limiter("5/minute", storage=storage)
        >>> limiter.hit("user:42").allowed, storage.keys
        (True, 1)
    """

    def __init__(self, *, max_keys: int = 1_000_000, clock: Clock | None = None) -> None:
        if type(max_keys) is not int or max_keys < 1:
            raise ValueError(f"max_keys must be a positive whole number, not {max_keys!r}")
        self.states = States(max_keys, clock)
        renew_in_children(self)

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by itself, in order. The lock is taken for each: others may come between two groups.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.
        """
        return self.states.evaluate(groups, mode)

    def at_once(self, group: Group) -> Sequence[Row]:
        """Spend one group, and return its rows.

        Args:
            group: The asks to decide atomically, all or nothing.
        """
        return self.states.at_once(group)

    def reset(self, group: Group) -> None:
        """Forget the states of each ask's key and limits.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.
        """
        self.states.reset(group)

    def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return (id, expiry) of each slot of a key that is held now, the earliest expiry first.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.
        """
        return self.states.holders(key, limit)

    def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; (0, b"") if there is none.

        Args:
            name: The name of the document.
        """
        return self.states.documents.get(name, (0, b""))

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document as `version` + 1, if `version` is the stored one. Return False if it is not.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.
        """
        return self.states.write_document(name, content, version)

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self.states.renew()

    def clear(self) -> None:
        """Forget everything, for use between tests."""
        self.states.clear()

    def close(self) -> None:
        """Do nothing: memory holds nothing open."""

    def async_twin(self) -> "AsyncMemoryStorage":
        """Return a storage for tasks over the same states."""
        return AsyncMemoryStorage(self)

    @property
    def max_keys(self) -> int:
        """The largest weight of all states together: their number, if none has many entries. Another can be set."""
        return self.states.max_keys

    @max_keys.setter
    def max_keys(self, max_keys: int) -> None:
        self.states.max_keys = max_keys

    @property
    def keys(self) -> int:
        """The number of states now."""
        return self.states.keys

    @property
    def weight(self) -> int:
        """The part of `max_keys` that the states take: 1 for each, and 1 more for every 16 entries of one."""
        return self.states.weight

    @property
    def evicted(self) -> int:
        """The number of states that were dropped to make room."""
        return self.states.evicted

    @property
    def overflowed(self) -> int:
        """The number of checks that were answered from a shared state."""
        return self.states.overflowed


class AsyncMemoryStorage:
    """A storage for tasks, over the states of `memory` or of a memory of its own.

    It never waits, so it holds the event loop only for the decision itself.

    Args:
        memory: The storage for threads whose states are shared. None means a memory of its own.
        max_keys: The most states that are kept; above that, the states that matter least are dropped.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: `max_keys` is not a positive whole number.

    Examples:
        >>> import asyncio
        >>> from ratebound import AsyncLimiter, AsyncMemoryStorage
        >>> limiter = AsyncLimiter("5/minute", storage=AsyncMemoryStorage(max_keys=10_000))
        >>> asyncio.run(limiter.hit("user:42")).remaining
        4
    """

    def __init__(
        self, memory: MemoryStorage | None = None, *, max_keys: int = 1_000_000, clock: Clock | None = None
    ) -> None:
        self.memory = MemoryStorage(max_keys=max_keys, clock=clock) if memory is None else memory

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by itself; see `MemoryStorage.evaluate`.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.
        """
        return self.memory.evaluate(groups, mode)

    @property
    def at_once(self) -> AtOnce | None:
        """The memory's own `at_once`, which is not awaited."""
        return at_once_of(self.memory)

    async def reset(self, group: Group) -> None:
        """Forget the state of each ask's key and limits.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.
        """
        self.memory.reset(group)

    async def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return the slots of a key that are held now; see `MemoryStorage.holders`.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.
        """
        return self.memory.holders(key, limit)

    async def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; see `MemoryStorage.read_document`.

        Args:
            name: The name of the document.
        """
        return self.memory.read_document(name)

    async def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document; see `MemoryStorage.write_document`.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.
        """
        return self.memory.write_document(name, content, version)

    async def clear(self) -> None:
        """Forget everything; see `MemoryStorage.clear`."""
        self.memory.clear()

    async def close(self) -> None:
        """Do nothing: memory holds nothing open."""
        self.memory.close()


# As they are written here: a test of the application may have replaced them in the class.
_AT_ONCE = MemoryStorage.at_once
_AT_ONCE_OF_TASKS = AsyncMemoryStorage.at_once


def states_of(storage: object) -> States | None:
    """Return the states that a memory storage decides from; None for other storages.

    None as well if the storage, or its class, has an `evaluate` or an `at_once` of its own.
    """
    memory = storage.memory if isinstance(storage, AsyncMemoryStorage) else storage
    if not isinstance(memory, MemoryStorage) or at_once_of(storage) is None or at_once_of(memory) is None:
        return None
    if isinstance(storage, AsyncMemoryStorage) and type(storage).at_once is not _AT_ONCE_OF_TASKS:
        return None
    is_own = type(memory).at_once is _AT_ONCE and "at_once" not in vars(memory)
    return memory.states if is_own else None
