"""Tables of what the fast path remembers of requests, bounded together: memory is not the client's to fill."""

from collections import deque
from typing import Any, TypeVar
from weakref import ref

MAX_KNOWN = 32_768  # in all tables together
K = TypeVar("K")
V = TypeVar("V")


class BoundedMemo(dict[K, V]):
    """A table whose entries are put in by `remember`. It is freed with its policy: `_order` holds it weakly."""

    __slots__ = ("__weakref__",)


_order: deque[tuple[ref[dict[Any, Any]], Any]] = deque()  # what is remembered in this process, the oldest first


def remember(table: dict[K, V], key: K, value: V) -> V:
    """Put a value into a BoundedMemo, and return it. If there are MAX_KNOWN entries, the oldest of all tables is
    dropped."""
    table[key] = value
    _order.append((ref(table), key))
    if len(_order) > MAX_KNOWN:
        held, gone = _order.popleft()
        oldest = held()
        if oldest is not None:
            oldest.pop(gone, None)
    return value
