"""The size of memory storages, read when metrics are collected, so that decisions pay nothing for it."""

import threading
import weakref
from typing import NamedTuple

from ratebound.storage.memory import MemoryStorage

INSIDE = ("storage", "memory", "inner", "guard", "fallback")  # attributes of limiters and storages that hold another


class MemoryUse(NamedTuple):
    """The current size of a memory storage. `evicted` and `overflowed` only grow."""

    name: str
    keys: int
    max_keys: int
    evicted: int
    overflowed: int


class WatchedMemory:
    """The watched memory storages, by name. It keeps weak references: a collected storage is no longer reported."""

    def __init__(self) -> None:
        self._storages: dict[str, weakref.ref[MemoryStorage]] = {}
        self._lock = threading.Lock()

    def watch(self, owner: object, name: str) -> None:
        """Report the memory storage of `owner` under `name` from now on.

        Raises ValueError if it has none, or if another storage has that name.
        """
        memory = memory_of(owner)
        if memory is None:
            raise ValueError(
                f"{type(owner).__name__} has no memory storage: expected a MemoryStorage, or a limiter with one"
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


def memory_of(owner: object) -> MemoryStorage | None:
    """Return the memory storage of a limiter or storage, or None. A guarded storage has the one of its fallback."""
    if isinstance(owner, MemoryStorage):
        return owner
    for name in INSIDE:
        inner = getattr(owner, name, None)
        found = None if inner is None else memory_of(inner)
        if found is not None:
            return found
    return None
