"""The seam between deciding and keeping: one verb, `evaluate`, beside `reset` and `close` (law 2).

Anything with these three methods is a storage. `ratebound.testing` has the contract that it must keep. A row of its
answers has all nine fields of `outcome.Row`: compiled code accepts no other. Optional are:

- `async_twin()` of a storage for threads: returns a storage for tasks over the same states. With it the storage serves
  AsyncLimiter, AsyncGate and decorated async functions, too.
- `at_once(group)`: spends one group and returns its rows without ever waiting. It is not awaited, for tasks either.
- `holders(key, limit)`: returns (id, expiry) of each slot that is held now, the earliest expiry first. Expiries are in
  microseconds of the storage's clock. A storage without it cannot list who holds the slots of a concurrent limit.
- `read_document(name)` and `write_document(name, content, version)`: keep a few small documents that all processes
  share, such as operators' blocks. Reading returns (version, content); (0, b"") for a document that was never written.
  Writing stores `content` as version + 1 and returns True, but only if `version` is still the stored one; else it
  changes nothing and returns False. Documents never expire, and `reset` does not touch them. `read_documents(names)`
  returns what `read_document` returns for each name, in one call: gates read several documents every second.
- `refusal_of(limit)`: returns why the storage does not keep a limit, in words for the person who wrote the limit; "" if
  it keeps it. Limiters, gates and policies ask it once for each limit that they are given, and raise InvalidLimit for
  one that is refused. `evaluate` raises InvalidLimit, too, and charges nothing. A storage without it keeps all limits.
- For its guard (see guarded.py): `deadline`, the seconds by which every call of it has ended; `nodes_of(group)`, the
  servers that a group is on; `nodes_of_document(name)`, those that a document is on; `loops` of a storage for tasks,
  the event loops in which it has something to close.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ratebound.errors import InvalidLimit
from ratebound.limit import Group, Limit, Mode
from ratebound.outcome import Row

AtOnce = Callable[[Group], Sequence[Row]]
Refusals = Callable[[Limit], str]  # why a storage does not keep a limit; "" if it does
Document = tuple[int, bytes]  # the version and the content of a shared document
HeldSlot = tuple[int, int]  # a slot that is held: its id, and its expiry in microseconds of the storage's clock


class Storage(Protocol):
    """A storage for threads. Anything with these three methods is one; the module says what is optional.

    Examples:
        >>> from ratebound import Limiter, MemoryStorage
        >>> class CountingStorage:
        ...     def __init__(self):
        ...         self.inner, self.calls = MemoryStorage(), 0
        ...     def evaluate(self, groups, mode="spend"):
        ...         self.calls += 1
        ...         return self.inner.evaluate(groups, mode)
        ...     def reset(self, group):
        ...         self.inner.reset(group)
        ...     def close(self):
        ...         self.inner.close()
        >>> storage = CountingStorage()
        >>> with Limiter("5/minute", storage=storage) as limiter:
        ...     limiter.hit("user:42").remaining, storage.calls
        (4, 1)
    """

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by itself, in order; each one is decided atomically, all or nothing.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.
        """

    def reset(self, group: Group) -> None:
        """Forget the state of each ask's key and limits; costs are ignored.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.
        """

    def close(self) -> None:
        """Let go of what is held open. Calling it twice is fine."""


class AsyncStorage(Protocol):
    """A storage for tasks: the names of `Storage`, with await.

    Examples:
        >>> import asyncio
        >>> from ratebound import AsyncLimiter, AsyncMemoryStorage
        >>> limiter = AsyncLimiter("5/minute", storage=AsyncMemoryStorage())
        >>> asyncio.run(limiter.hit("user:42")).remaining
        4
    """

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide like `Storage.evaluate`.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.
        """

    async def reset(self, group: Group) -> None:
        """Forget states like `Storage.reset`.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.
        """

    async def close(self) -> None:
        """Release resources like `Storage.close`."""


def at_once_of(storage: Any) -> AtOnce | None:
    """Return the storage's `at_once`, or None if it has none.

    None as well if a subclass or the object has an `evaluate` of its own, but the `at_once` of the class above, which
    knows nothing of that `evaluate`.
    """
    if "evaluate" in getattr(storage, "__dict__", ()):
        return None
    for kind in type(storage).__mro__:
        if "at_once" in vars(kind):
            return storage.at_once  # type: ignore[no-any-return]
        if "evaluate" in vars(kind):
            return None
    return None


def async_twin_of(storage: Any) -> AsyncStorage | None:
    """Return a storage for tasks over the same states, or None if the storage has no `async_twin`."""
    make = getattr(storage, "async_twin", None)
    return None if make is None else make()


def unguarded(storage: Any) -> Any:
    """Return the storage in a guard, or the storage itself if it has none."""
    while hasattr(storage, "inner"):
        storage = storage.inner
    return storage


def holders_of(storage: Any) -> Callable[[str, Limit], Any]:
    """Return the storage's `holders`. Raises TypeError if it has none."""
    found: Callable[[str, Limit], Any] | None = getattr(storage, "holders", None)
    if found is None:
        raise TypeError(f"{type(storage).__name__} cannot list the holders of slots: it has no method 'holders'")
    return found


def refusals_of(storage: Any) -> Refusals | None:
    """Return the `refusal_of` of a storage, or of the one in its guard; None if it keeps all limits."""
    found: Refusals | None = getattr(unguarded(storage), "refusal_of", None)
    return found


def refusal_of(storage: Any, limit: Limit) -> str:
    """Return why a storage does not keep a limit; "" if it does."""
    refusals = refusals_of(storage)
    return "" if refusals is None else refusals(limit)


def refuse_unkept(storage: Any, limits: Iterable[Limit]) -> None:
    """Raise InvalidLimit if a storage does not keep one of these limits."""
    refusals = refusals_of(storage)
    if refusals is None:
        return
    for limit in limits:
        reason = refusals(limit)
        if reason:
            raise InvalidLimit(f"{limit.text!r} cannot be counted in this storage. {reason}")


def keeps_documents(storage: Any) -> bool:
    """Return True if a storage keeps shared documents. A guard has an attribute that says it of the storage in it."""
    said: bool | None = getattr(storage, "keeps_documents", None)
    return hasattr(storage, "read_document") and hasattr(storage, "write_document") if said is None else said


def documents_of(storage: Any) -> Any:
    """Return the storage itself. Raises TypeError if it keeps no shared documents."""
    if not keeps_documents(storage):
        name = type(getattr(storage, "inner", storage)).__name__
        raise TypeError(f"{name} keeps no shared documents: it has no methods 'read_document' and 'write_document'")
    return storage


class RedisClient(Protocol):
    """A client of redis-py, of any kind. Its address and credentials are used, not its connections."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command. Ratebound never calls this; it tells a client from other objects."""
