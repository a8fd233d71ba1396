"""The size of storages in memory, read when metrics are collected, so that decisions pay nothing for it."""

import threading
import weakref
from typing import Any, NamedTuple, Protocol

from ratebound.fork import renew_in_children
from ratebound.storage.memory import MemoryStorage

# Attributes of adapters, gates, limiters and storages that hold another
INSIDE = ("gate", "storage", "memory", "shared", "inner", "guard", "fallback")


class InMemory(Protocol):
    """A storage whose size is bounded: MemoryStorage and SharedMemoryStorage."""

    @property
    def keys(self) -> int:
        """The number of states now."""

    @property
    def max_keys(self) -> int:
        """The largest number."""

    @property
    def evicted(self) -> int:
        """The number of states that were dropped to make room."""

    @property
    def overflowed(self) -> int:
        """The number of checks that were answered from a shared state."""


class MemoryUse(NamedTuple):
    """The current size of a storage in memory. `evicted` and `overflowed` only grow."""

    name: str
    keys: int
    max_keys: int
    evicted: int
    overflowed: int


class WatchedMemory:
    """The watched storages, by name. It keeps weak references: a collected storage is no longer reported."""

    def __init__(self) -> None:
        self._storages: dict[str, weakref.ref[InMemory]] = {}
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = threading.Lock()

    def watch(self, owner: object, name: str) -> None:
        """Report the memory, or shared memory, of `owner` under `name` from now on.

        Raises ValueError if it has none, or if another storage has that name.
        """
        memory = memory_of(owner)
        if memory is None:
            raise ValueError(
                f"{type(owner).__name__} has no memory storage: expected a storage in memory or shared memory, or a"
                " limiter, a gate or the limits of an application that count there"
            )
        with self._lock:
            known = self._storages.get(name)
            if known is not None and known() not in (None, memory):
                raise ValueError(f"another storage is already watched as {name!r}: choose a different name")
            self._storages[name] = weakref.ref(memory)

    def now(self) -> list[MemoryUse]:
        """Return the current size of every watched storage that still exists."""
        with self._lock:
            alive = {name: found for name, known in self._storages.items() if (found := known()) is not None}
            self._storages = {name: self._storages[name] for name in alive}
        return [MemoryUse(name, m.keys, m.max_keys, m.evicted, m.overflowed) for name, m in alive.items()]


def memory_of(owner: Any) -> InMemory | None:
    """Return the storage in memory of a storage, a limiter, a gate or an adapter, or None.

    It is shared memory where that is used. Another guarded storage has the memory of its fallback.
    """
    if isinstance(owner, MemoryStorage) or (hasattr(owner, "max_keys") and hasattr(owner, "overflowed")):
        found: InMemory = owner
        return found
    for name in INSIDE:
        inner = getattr(owner, name, None)
        inside = None if inner is None else memory_of(inner)
        if inside is not None:
            return inside
    return None
