"""Blocks of penalties that this process has seen in the answers of its storage. They hold while it is out of reach.

A block is remembered as the state of a penalty, by this process's clock. Only so many are kept; when there are more,
the soonest to end is forgotten.
"""

import threading
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from ratebound.clock import Clock
from ratebound.kernels.penalty import Strikes
from ratebound.limit import Limit
from ratebound.outcome import Row

MOST = 10_000  # blocks
LONG_KEY = 256  # characters: a longer key is kept as its digest

Place = tuple[str | bytes, str]  # the key, or its digest, and the scope of the penalty


class _Block(NamedTuple):
    """A block. `seen` and `ends` are instants of the storage's clock, the state has those of this process."""

    seen: int
    ends: int
    state: Strikes
    number: int  # tells its entry in the order from those of earlier blocks


class RememberedBlocks:
    """The blocks that this process knows of, `most` of them. It is thread-safe."""

    def __init__(self, clock: Clock, most: int = MOST) -> None:
        self._now = clock
        self._most = most
        self._lock = threading.Lock()
        self._blocks: dict[Place, _Block] = {}
        self._order: list[tuple[int, int, Place]] = []  # a heap by the end; has forgotten blocks, too
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._blocks)

    def saw(self, key: str, limit: Limit, row: Row) -> None:
        """Remember or forget a block, as the row of a penalty says, which must be the storage's own.

        An answer that is older than the sight of the block, and comes late, neither lifts nor replaces it.
        """
        place = _place(key, limit)
        known = self._blocks.get(place)
        if known is not None and row[5] < known.seen:
            return
        if row[0]:
            if known is not None:
                self._forget(place, known)
            return
        wait = row[2] or 0
        ends = row[5] + wait
        if known is None or known.ends != ends:
            now = self._now()
            self._remember(place, row[5], ends, Strikes(now + row[3], now, now + wait, 1), now)

    def forget(self, key: str, limit: Limit) -> None:
        """Forget the block of a key, if there is one."""
        self._forget(_place(key, limit))

    def state(self, key: str, limit: Limit) -> Strikes:
        """Return the state of a penalty as far as it is known: blocked, or untouched."""
        found = self._blocks.get(_place(key, limit))
        return Strikes() if found is None else found.state.copy()

    def renew(self) -> None:
        """Replace the lock in a forked child, which remembers what its parent did."""
        self._lock = threading.Lock()
        self._sort()  # the fork may have come in the middle of a change

    def _remember(self, place: Place, seen: int, ends: int, state: Strikes, now: int) -> None:
        with self._lock:
            number = next(self._numbers)
            heappush(self._order, (state.until, number, place))
            self._blocks[place] = _Block(seen, ends, state, number)
            while self._order and (self._order[0][0] <= now or len(self._blocks) > self._most):
                _, number, first = heappop(self._order)
                known = self._blocks.get(first)
                if known is not None and known.number == number:
                    del self._blocks[first]
            if len(self._order) > 2 * self._most:
                self._sort()

    def _forget(self, place: Place, known: _Block | None = None) -> None:
        """Forget the block of a place; with `known`, only if it is still this one."""
        with self._lock:
            if known is None or self._blocks.get(place) is known:
                self._blocks.pop(place, None)

    def _sort(self) -> None:
        self._order = [(block.state.until, block.number, place) for place, block in self._blocks.items()]
        heapify(self._order)


def _place(key: str, limit: Limit) -> Place:
    if len(key) <= LONG_KEY:
        return key, limit.scope
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest(), limit.scope
