"""The most limited clients, in a list of bounded size: the space-saving sketch. Also the clients that are blocked now.

It has `size` counters. A client with a counter increments it. A new client, if all counters are taken, takes over the
smallest one, continues from its value, and records that value as its possible error. So of N denials no count is too
small, none is too large by more than its error, no error exceeds N / size, and every client that was denied more than N
/ size times is in the list. Two sketches, of the current window and the previous one, let old clients leave.
"""

import threading
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from ratebound.clock import SECOND, Clock, ticking
from ratebound.decision import Decision
from ratebound.duration import Duration, as_seconds
from ratebound.events import Decided, Event
from ratebound.fork import renew_in_children
from ratebound.limit import MAX_PERIOD
from ratebound.observe.client import denied_keys, naming


class LimitedClient(NamedTuple):
    """A client that was denied at most `denials` times, and at least `denials` - `error`.

    Attributes:
        client: The digest of its key, or the key.
        denials: The most denials that it can have had.
        error: How many of them may be another client's.
    """

    client: str
    denials: int
    error: int


class BlockedClient(NamedTuple):
    """A client that a penalty blocks.

    Attributes:
        client: The digest of its key, or the key.
        limit: The name of the penalty.
        seconds: The time until the block ends.
    """

    client: str
    limit: str
    seconds: float


class Sketch:
    """The space-saving sketch of one window. It is not thread-safe: the listener holds the lock."""

    __slots__ = ("counts", "errors", "heap", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.counts: dict[str, int] = {}
        self.errors: dict[str, int] = {}
        self.heap: list[tuple[int, str]] = []  # once full, one entry per client; its count may lag behind `counts`

    def add(self, client: str, denials: int = 1) -> None:
        """Count denials of a client."""
        counts = self.counts
        if client in counts:
            counts[client] += denials
        elif len(counts) < self.size:
            counts[client] = denials
            self.errors[client] = 0
        else:
            least = self.least()
            out = self.heap[0][1]
            del counts[out], self.errors[out]
            counts[client] = least + denials
            self.errors[client] = least
            heapreplace(self.heap, (least + denials, client))

    def least(self) -> int:
        """Return the smallest count and put it on top of the heap; 0 while there is room."""
        if len(self.counts) < self.size:
            return 0
        if not self.heap:
            self.heap = [(count, client) for client, count in self.counts.items()]
            heapify(self.heap)
        while self.heap[0][0] != self.counts[self.heap[0][1]]:
            client = self.heap[0][1]
            heapreplace(self.heap, (self.counts[client], client))
        return self.heap[0][0]


class TopListener:
    """A listener that counts the denials of each client in the last one to two windows.

    Denials because of an outage are not counted: clients did not cause them. It also notes the ends of up to `size`
    blocks.

    Args:
        size: The clients that are told apart in a window: it has 2 × `size` counters.
        window: Seconds or a timedelta.
        clear: True shows keys as clear text instead of digests. They may be personal.
        secret: The secret that digests are made with, so that they stay the same in other processes. None means a
            random one.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        ValueError: An option is out of bounds.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.observe import TopListener
        >>> top = TopListener(clear=True)
        >>> limiter = Limiter("1/minute", listeners=[top])
        >>> decisions = limiter.hit_many(["user:42"] * 4)
        >>> top.top(1)
        [LimitedClient(client='user:42', denials=3, error=0)]
    """

    def __init__(
        self,
        size: int = 100,
        *,
        window: Duration = 3600.0,
        clear: bool = False,
        secret: str | bytes | None = None,
        clock: Clock | None = None,
    ) -> None:
        if type(size) is not int or size < 1:
            raise ValueError(f"size must be a positive whole number, not {size!r}")
        seconds = as_seconds("window", window, positive=True, most=MAX_PERIOD / SECOND)
        self._size = size
        self._window = max(1, round(seconds * SECOND))
        self._name = naming(secret, clear=clear)
        self._ticks, self._anchor = ticking(clock)
        self._lock = threading.Lock()
        self._begin = self._now()
        self._running, self._before = Sketch(size), Sketch(size)
        self._blocks: dict[tuple[str, str], int] = {}  # the end of the block of a client by a penalty
        self._ends: list[tuple[int, str, str]] = []  # the same in a heap
        renew_in_children(self)

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Decided) or event.decision.allowed:
            return
        if event.decision.unavailable or event.decision.shed:  # not the client's fault
            return
        self.add(dict.fromkeys(denied_keys(event.decision), 1))
        if event.decision.blocked:
            for key, limit, seconds in blocks_of(event.decision):
                self.note_block(key, limit, seconds)

    def add(self, denials: Mapping[str, int]) -> None:
        """Count denials, by the keys of clients.

        Args:
            denials: The number of denials of each key.
        """
        clients = [(self._name(key), many) for key, many in denials.items()]
        with self._lock:
            self._roll()
            for client, many in clients:
                self._running.add(client, many)

    def note_block(self, key: str, limit: str, seconds: float) -> None:
        """Note that a penalty blocks a key. If there are too many blocks, drop the one that ends first.

        A block is noted once: later denials tell the same end, give or take the difference of two clocks.

        Args:
            key: The key that is blocked.
            limit: The name of the penalty.
            seconds: The time until the block ends.
        """
        client = self._name(key)
        with self._lock:
            now = self._now()
            while self._ends and self._ends[0][0] <= now:
                del self._blocks[heappop(self._ends)[1:]]
            if (client, limit) in self._blocks:
                return
            end = now + round(seconds * SECOND)
            self._blocks[client, limit] = end
            heappush(self._ends, (end, client, limit))
            if len(self._ends) > self._size:
                del self._blocks[heappop(self._ends)[1:]]

    def top(self, n: int = 10) -> list[LimitedClient]:
        """Return the `n` most limited clients, by the most possible denials, then by the most certain ones.

        Args:
            n: The most clients to return.
        """
        with self._lock:
            self._roll()
            sketches = [
                (dict(sketch.counts), dict(sketch.errors), sketch.least()) for sketch in (self._running, self._before)
            ]
        found = []
        for client in sketches[0][0].keys() | sketches[1][0].keys():
            # A client without a counter was denied at most as often as the smallest counter says, perhaps never.
            denials = sum(counts.get(client, least) for counts, _, least in sketches)
            error = sum(errors.get(client, least) for _, errors, least in sketches)
            found.append(LimitedClient(client, denials, error))
        return sorted(found, key=lambda limited: (-limited.denials, limited.error, limited.client))[:n]

    def blocked(self, n: int = 10) -> list[BlockedClient]:
        """Return the `n` clients that are blocked for longest from now, of those that this listener has seen denied.

        A block that is lifted stays in the list until its end.

        Args:
            n: The most clients to return.
        """
        with self._lock:
            now = self._now()
            found = [
                BlockedClient(client, limit, (end - now) / SECOND)
                for (client, limit), end in self._blocks.items()
                if end > now
            ]
        return sorted(found, key=lambda blocked: (-blocked.seconds, blocked.client, blocked.limit))[:n]

    def renew(self) -> None:
        """Start with an empty list and a new lock in a forked child."""
        self._lock = threading.Lock()
        self._blocks, self._ends = {}, []
        self._running, self._before = Sketch(self._size), Sketch(self._size)

    def _now(self) -> int:
        return self._ticks() // 1000 + self._anchor

    def _roll(self) -> None:
        passed = (self._now() - self._begin) // self._window
        if passed >= 1:
            self._before = self._running if passed == 1 else Sketch(self._size)
            self._running = Sketch(self._size)
            self._begin += passed * self._window


def blocks_of(decision: Decision) -> Iterator[tuple[str, str, float]]:
    """Yield the key, the name of the penalty and the seconds that are left of each block that denies."""
    rows = iter(decision.rows)
    for key, limits, *_ in decision.asks:
        for limit in limits:
            row = next(rows)
            if limit.is_penalty and not row[0]:
                yield key, limit.name, (row[2] or 0) / SECOND
