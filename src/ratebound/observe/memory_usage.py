"""What memory storages hold, read when somebody asks and not when it changes: decisions pay nothing for it."""

import threading
import weakref
from typing import NamedTuple

from ratebound.storage.memory import MemoryStorage

INSIDE = ("storage", "memory", "inner", "guard", "fallback")  # where a limiter or a storage has another inside


class MemoryUse(NamedTuple):
    """A memory storage as it is now; `evicted` and `overflowed` only grow."""

    name: str
    keys: int
    max_keys: int
    evicted: int
    overflowed: int


class WatchedMemory:
    """The memory storages that are watched. They are not kept alive: one that is gone is no longer told of."""

    def __init__(self) -> None:
        self._storages: dict[str, weakref.ref[MemoryStorage]] = {}
        self._lock = threading.Lock()

    def watch(self, owner: object, name: str) -> None:
        memory = memory_of(owner)
        if memory is None:
            raise ValueError(f"{type(owner).__name__} holds no memory storage: there is nothing to watch")
        with self._lock:
            known = self._storages.get(name)
            if known is not None and known() not in (None, memory):
                raise ValueError(f"another storage is watched as {name!r}: give each a name of its own")
            self._storages[name] = weakref.ref(memory)

    def now(self) -> list[MemoryUse]:
        with self._lock:
            alive = {name: found for name, known in self._storages.items() if (found := known()) is not None}
            self._storages = {name: self._storages[name] for name in alive}
        return [MemoryUse(name, m.keys, m.max_keys, m.evicted, m.overflowed) for name, m in alive.items()]


def memory_of(owner: object) -> MemoryStorage | None:
    """The memory storage that a limiter or a storage is, or has inside: of a guarded one, that which takes over."""
    if isinstance(owner, MemoryStorage):
        return owner
    for name in INSIDE:
        inner = getattr(owner, name, None)
        found = None if inner is None else memory_of(inner)
        if found is not None:
            return found
    return None
