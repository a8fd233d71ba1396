"""The seam between deciding and keeping: one verb, `evaluate`, beside `reset` and `close` (law 2).

Anything with these three methods is a storage. `ratebound.testing` has the contract that it must keep. What it may
have beside them: `at_once(group)`, the spend of one group from who never waits, and is not awaited either; and for its
guard (see guarded.py) `deadline`, seconds by which every call of it has ended, `nodes_of(group)`, which servers a group
is on, and `loops`, the event loops in which there is something to close.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ratebound.decision import Row
from ratebound.limit import Group, Mode

S = TypeVar("S")
AtOnce = Callable[[Group], Sequence[Row]]


class Storage(Protocol):
    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by itself, in order; each one is decided atomically, all or nothing."""

    def reset(self, group: Group) -> None:
        """Forget the state of each ask's key and limits; costs are ignored."""

    def close(self) -> None:
        """Let go of what is held open. Calling it twice is fine."""


class AsyncStorage(Protocol):
    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]: ...

    async def reset(self, group: Group) -> None: ...

    async def close(self) -> None: ...


def at_once_of(storage: Any) -> AtOnce | None:
    """Its `at_once`, if it has one that does what its `evaluate` does: who changed that may not know of the other."""
    if "evaluate" in getattr(storage, "__dict__", ()):
        return None
    for kind in type(storage).__mro__:
        if "at_once" in vars(kind):
            return storage.at_once  # type: ignore[no-any-return]
        if "evaluate" in vars(kind):
            return None
    return None


class StorageAttribute(Generic[S]):
    """The storage of a limiter or a gate, as its attribute; how it answers at once is looked up when it is set."""

    def __get__(self, owner: Any, kind: type | None = None) -> S:
        return owner._storage  # type: ignore[no-any-return]

    def __set__(self, owner: Any, storage: S) -> None:
        owner._storage = storage
        owner._at_once = at_once_of(storage)


class RedisClient(Protocol):
    """A client of redis-py, of any kind. Its address and credentials are used, not its connections."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...
