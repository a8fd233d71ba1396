"""States in this process's memory: the default storage, with nothing to install.

Bounded memory that is not a bypass (law 7) lives here. A table holds the states of one scope, and a ring of the same
keys for constant-time access to any of them. Untouched states are swept without a thread: a new key pays for looking at
two others, and a little more is swept as time goes by. When all tables together are full, a new key evicts the least
used of a sample of the largest table, but never a key that is denying or has waiters. Only if the whole sample denies
do new keys share one overflow state, so a flood of keys neither grows memory nor frees a blocked client. Tiers and
overrides give the keys of one scope different limits: each key is judged by the limit of its last check, or by a
stricter limit of an earlier check that still denies it.
"""

import threading
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from random import random

from ratebound.clock import Clock, ticking
from ratebound.decision import Row
from ratebound.fork import renew_in_children
from ratebound.kernels import SPEND, State, evaluate, peek
from ratebound.limit import BUCKETS, MAX_COUNT, Group, Limit, Mode
from ratebound.storage import AtOnce, at_once_of
from ratebound.storage.workers import warn_of_many_workers

Key = str | bytes

LONG_KEY = 256  # characters: a longer key is stored as its digest, in bytes, which never equals a text key
SAMPLE = 8
SWEEP_PERIOD = 10_000  # microseconds between two sweeps
SWEEP_TABLES = 8  # at most, in one sweep
SWEEP_SHARE = 6_000  # a sweep looks at one in so many keys, so a minute of traffic covers all of them


class Table:
    """The states of one scope. The storage's lock protects it.

    A key is judged by its limit in `others`, else by `limit`. `only` is `limit` while `others` is empty, else None, so
    that a hit needs one comparison to see that there is nothing to note.
    """

    __slots__ = ("hand", "limit", "only", "others", "overflow", "ring", "states")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.only: Limit | None = limit
        self.others: dict[Key, Limit] = {}
        self.states: dict[Key, State] = {}
        self.ring: list[Key] = []
        self.hand = 0
        self.overflow: State | None = None

    def add(self, key: Key, state: State, limit: Limit) -> None:
        """Store the state of a new key."""
        if limit is not self.only:
            self.judge_by(key, limit)
        self.states[key] = state
        self.ring.append(key)
        if len(self.ring) > 2 * len(self.states) + 64:  # keys that were reset and came back are in the ring twice
            self.ring = list(self.states)

    def note(self, key: Key, limit: Limit, now: int) -> None:
        """Judge a known key by the limit of its latest check, unless a stricter limit still denies it."""
        judge = self.others.get(key, self.limit)
        if limit is judge or (limit.unit > judge.unit and not peek(judge, self.states[key], now, 1)[1][0]):
            return
        self.judge_by(key, limit)

    def judge_by(self, key: Key, limit: Limit) -> None:
        """Judge a key by this limit from now on."""
        if (limit.count, limit.burst) != (self.limit.count, self.limit.burst):  # a scope has one algorithm and period
            self.others[key] = limit
            self.only = None
            return
        self.others.pop(key, None)
        if not self.others:
            self.limit = self.only = limit

    def remove(self, key: Key) -> int:
        """Forget a key. Return the number of states removed, 0 or 1."""
        if self.others and self.others.pop(key, None) is not None and not self.others:
            self.only = self.limit
        return 0 if self.states.pop(key, None) is None else 1

    def sweep(self, looks: int, now: int) -> int:
        """Look at the next `looks` keys of the ring and drop untouched states. Return how many were dropped."""
        ring, states, dropped = self.ring, self.states, 0
        for _ in range(min(looks, len(ring))):
            if self.hand >= len(ring):
                self.hand = 0
            state = states.get(ring[self.hand])
            if state is None or state[0] < now:
                dropped += self.drop(self.hand)
            self.hand += 1  # also past a key that filled a gap: it comes from the young end of the ring
        return dropped

    def victim(self, spare: set[Key], now: int) -> int:
        """Return the ring index of the least used key of a sample; -1 if all deny, have waiters or are in `spare`."""
        best, least = -1, MAX_COUNT
        for _ in range(SAMPLE):
            index = int(random() * len(self.ring))
            key = self.ring[index]
            state = self.states.get(key)
            if state is not None and key not in spare:
                limit = self.others.get(key, self.limit)
                _, row = peek(limit, state, now, 1)
                used = limit.burst - row[1]
                if row[0] and used < least and not _has_waiters(limit, row):
                    best, least = index, used
        return best

    def drop(self, index: int) -> int:
        """Remove one entry of the ring; the last entry fills the gap. Return the number of states removed, 0 or 1."""
        key, last = self.ring[index], self.ring.pop()
        if index < len(self.ring):
            self.ring[index] = last
        return self.remove(key)


class MemoryStorage:
    """A storage of at most `max_keys` states in the memory of this process.

    It is thread-safe; `async_twin` serves tasks from the same states.
    """

    def __init__(self, *, max_keys: int = 1_000_000, clock: Clock | None = None) -> None:
        if type(max_keys) is not int or max_keys < 1:
            raise ValueError(f"max_keys must be a positive whole number, not {max_keys!r}")
        self.max_keys = max_keys
        self.keys = 0
        self.evicted = 0  # keys dropped to make room
        self.overflowed = 0  # checks that were answered from a shared state
        self._ticks, self._anchor = ticking(clock)
        self._lock = threading.Lock()
        self._tables: dict[str, Table] = {}
        self._turns: deque[str] = deque()  # scopes in the order in which they are swept
        self._sweep_at = 0
        self.is_limiters = False  # a limiter counts here: a child process that goes on with it is warned
        self._unwarned = False
        renew_in_children(self)

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by itself, in order. The lock is taken for each: others may come between two groups."""
        if mode == "spend":
            # Not self.at_once: one in a subclass may be written with this method.
            return [MemoryStorage.at_once(self, group) for group in groups]
        with self._lock:
            now = self._ticks() // 1000 + self._anchor
            if now >= self._sweep_at:
                self._sweep(now)
            return [self._evaluate(group, mode, now) for group in groups]

    def at_once(self, group: Group) -> Sequence[Row]:
        """Spend one group, and return its rows.

        A group of one ask is spent in a straight line; nothing is stored before all of its limits allow. The group law
        decides what takes more: several asks, no room for a new key, and a denial or a delay that the other limits
        have to know of.
        """
        with self._lock:
            now = self._ticks() // 1000 + self._anchor  # read under the lock: groups see time in the order they run
            if now >= self._sweep_at:
                self._sweep(now)
            if len(group) == 1:
                key, limits, cost, patience, _ = group[0]
                rows: list[Row] | None = None
                for limit in limits:
                    table = self._tables.get(limit.scope) or self._new_table(limit)
                    state = table.states.get(key)
                    if state is None and (self.keys + len(limits) > self.max_keys or len(key) > LONG_KEY):
                        break
                    after, row = SPEND[limit.algorithm](limit, state, now, cost, patience, 0)
                    if state is not None and len(limits) == 1 and (patience is None or row[0]):
                        if after is not state:
                            table.states[key] = after  # type: ignore[assignment]  # None only without a state before
                        if limit is not table.only:
                            table.note(key, limit, now)
                        return (row,)
                    if after is None or not row[0] or (row[4] and len(limits) > 1):
                        break
                    if rows is None:  # not before: most groups have one limit, and need no list
                        rows, stores = [], []
                    rows.append(row)
                    stores.append((table, limit, state, after))
                if rows is not None and len(rows) == len(limits):
                    for table, limit, state, after in stores:
                        if state is None:
                            self._add(table, key, limit, after, now)
                        else:
                            table.states[key] = after
                            if limit is not table.only:
                                table.note(key, limit, now)
                    return rows
            return self._evaluate(group, "spend", now)

    def reset(self, group: Group) -> None:
        """Forget the states of each ask's key and limits."""
        with self._lock:
            for key, limits, *_ in group:
                for limit in limits:
                    table = self._tables.get(limit.scope)
                    if table is not None:
                        self.keys -= table.remove(_kept(key))

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = threading.Lock()
        self._unwarned = self.is_limiters
        self._sweep_at = 0  # the first use in the child sweeps, and so warns

    def clear(self) -> None:
        """Forget everything, for use between tests."""
        with self._lock:
            self._tables.clear()
            self._turns.clear()
            self.keys = 0

    def close(self) -> None:
        """Do nothing: memory holds nothing open."""

    def async_twin(self) -> "AsyncMemoryStorage":
        """Return a storage for tasks over the same states."""
        return AsyncMemoryStorage(self)

    def _evaluate(self, group: Group, mode: Mode, now: int) -> list[Row]:
        """Decide any group by the group law. The caller holds the lock."""
        slots: dict[tuple[str, Key | None], int] = {}
        places: list[tuple[Table, Key | None, Limit]] = []
        states: list[State | None] = []
        order = []
        spare = {_kept(key) for key, *_ in group}
        for asked, limits, cost, *_ in group:
            kept = _kept(asked)
            for limit in limits:
                table = self._tables.get(limit.scope) or self._new_table(limit)
                state = table.states.get(kept)
                key: Key | None = kept
                if state is None and (limit.scope, kept) not in slots and cost > 0:  # a refund needs no room
                    new = sum(before is None for before in states)
                    if self.keys + new >= self.max_keys and not self._make_room(table, spare, mode, now):
                        key, state = None, table.overflow
                        self.overflowed += 1
                slot = slots.setdefault((limit.scope, key), len(states))
                order.append(slot)
                if slot == len(states):
                    places.append((table, key, limit))
                    states.append(state)
        before = states.copy()
        rows = evaluate(group, mode, order, states, now)
        for (table, key, limit), old, after in zip(places, before, states, strict=True):
            if after is not old:
                self._store(table, key, limit, after, now)
            if mode == "spend" and limit is not table.only and key is not None and key in table.states:
                table.note(key, limit, now)
        return rows

    def _add(self, table: Table, key: Key, limit: Limit, state: State, now: int) -> None:
        table.add(key, state, limit)
        self.keys += 1 - table.sweep(2, now)

    def _store(self, table: Table, key: Key | None, limit: Limit, state: State | None, now: int) -> None:
        if key is None:
            table.overflow = state
        elif state is None:
            self.keys -= table.remove(key)
        elif key in table.states:
            table.states[key] = state
        else:
            self._add(table, key, limit, state, now)

    def _new_table(self, limit: Limit) -> Table:
        self._turns.append(limit.scope)
        return self._tables.setdefault(limit.scope, Table(limit))

    def _make_room(self, table: Table, spare: set[Key], mode: Mode, now: int) -> bool:
        """Drop one state of the largest table, or else of the new key's own.

        A peek only checks that one can be dropped. Return True if there is room.
        """
        largest = max(self._tables.values(), key=lambda table: len(table.states))
        for payer in (largest, table):
            index = payer.victim(spare, now) if payer.ring else -1
            if index >= 0:
                if mode != "peek":
                    self.keys -= payer.drop(index)
                    self.evicted += 1
                return True
        return False

    def _sweep(self, now: int) -> None:
        """Look at some keys of a few tables, in turn. Drop a table that has become empty."""
        self._sweep_at = now + SWEEP_PERIOD
        if self._unwarned:
            self._unwarned = False  # warn in a thread: the lock is held here, and a log handler may use a limiter
            threading.Thread(target=warn_of_many_workers, name="ratebound warning").start()
        for _ in range(min(len(self._turns), SWEEP_TABLES)):
            scope = self._turns.popleft()
            table = self._tables[scope]
            self.keys -= table.sweep(16 + len(table.ring) // SWEEP_SHARE, now)
            if table.ring or (table.overflow is not None and table.overflow[0] >= now):
                self._turns.append(scope)
            else:
                del self._tables[scope]


def _has_waiters(limit: Limit, row: Row) -> bool:
    """Return True if places further ahead than a whole burst are taken.

    A hole between them may still allow a request.
    """
    return limit.algorithm in BUCKETS and row[3] > limit.refill_us + 1


def _kept(key: str) -> Key:
    if len(key) <= LONG_KEY:
        return key
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class AsyncMemoryStorage:
    """A storage for tasks, over the states of `memory` or of a memory of its own.

    It never waits, so it holds the event loop only for the decision itself.
    """

    def __init__(
        self, memory: MemoryStorage | None = None, *, max_keys: int = 1_000_000, clock: Clock | None = None
    ) -> None:
        self.memory = MemoryStorage(max_keys=max_keys, clock=clock) if memory is None else memory

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by itself; see `MemoryStorage.evaluate`."""
        return self.memory.evaluate(groups, mode)

    @property
    def at_once(self) -> AtOnce | None:
        """The memory's own `at_once`, which is not awaited."""
        return at_once_of(self.memory)

    async def reset(self, group: Group) -> None:
        """Forget the state of each ask's key and limits."""
        self.memory.reset(group)

    async def clear(self) -> None:
        """Forget everything; see `MemoryStorage.clear`."""
        self.memory.clear()

    async def close(self) -> None:
        """Do nothing: memory holds nothing open."""
        self.memory.close()
