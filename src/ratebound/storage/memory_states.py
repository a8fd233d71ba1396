"""The states of a memory storage: tables, eviction and decisions. Compiled where that can be done.

Bounded memory that is not a bypass (law 7) lives here. A table holds the states of one scope, and a ring of the same
keys for constant-time access to any of them. Untouched states are swept without a thread: a new key pays for looking at
two others, and a little more is swept as time goes by. When all tables together are full, a new key evicts the least
used of a sample of the largest table, but never a key that is denying or has waiters. Only if the whole sample denies
do new keys share one overflow state, so a flood of keys neither grows memory nor frees a blocked client. Tiers and
overrides give the keys of one scope different limits: each key is judged by the limit of its last check, or by a
stricter limit of an earlier check that still denies it.

A block is kept while it holds, as long as all blocks are at most a quarter of the cap. When there are more and room is
needed, the one that ends soonest goes. A penalty that has blocked before is dropped only if all others of the samples
deny: its next block would be the shortest again. An allowed check needs no room for its penalty, and a strike makes
room. Where nothing can be dropped, blocks come on top of the cap: that is the only way to exceed it, by a quarter.

The cap counts weight. A state weighs 1, and a sliding log, slots, values or strikes 1 more for every 16 entries. A log
that grows is weighed when it is swept, so that a hit pays nothing for it: its weight lags by at most a minute of
traffic.
"""

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from random import random
from typing import Final

from ratebound.clock import Clock, ticking
from ratebound.compiling import COMPILED, i64
from ratebound.decision import Decision, OneKeyDecision, OneLimitDecision, Plan, StoredRow
from ratebound.kernels.concurrency import Slots
from ratebound.kernels.gcra import Bucket
from ratebound.kernels.group_law import denials, evaluate, peek, spend_one_key
from ratebound.kernels.packing import unpacked
from ratebound.kernels.penalty import Strikes
from ratebound.kernels.quota import QuotaWindow
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import Extra, Group, Limit, Mode
from ratebound.numbers import MAX_COUNT, Numbers
from ratebound.outcome import Row
from ratebound.storage.mutex import new_mutex
from ratebound.storage.quick_states import QuickStates
from ratebound.storage.workers import warn_of_many_workers

Key = str | bytes

MANY_TICKS: Final = 2**61  # nanoseconds, 73 years
LONG_KEY: Final = 256  # characters: a longer key is stored as its digest, in bytes, which never equals a text key
SAMPLE: Final = 8
ENTRIES: Final = 16  # of a log, slots, values or strikes that weigh as much as a state
BLOCKS_SHARE: Final = 4  # one in so many of the cap may be blocks that are never dropped while they hold
SWEEP_PERIOD: Final = 10_000  # microseconds between two sweeps
SWEEP_TABLES: Final = 8  # at most, in one sweep
SWEEP_SHARE: Final = 6_000  # a sweep looks at one in so many keys, so a minute of traffic covers all of them


class Weight:
    """The weight of all states of a storage beyond 1 for each: the entries of logs, slots, values and strikes."""

    __slots__ = ("extra",)

    def __init__(self) -> None:
        self.extra = 0


class Blocks:
    """The blocks of all penalties of a storage, in a heap: the one that ends soonest is first.

    `ends` has the end of each block, and the number of its entry in the heap. Other entries are of blocks that were
    forgotten.
    """

    __slots__ = ("_heap", "_number", "ends")

    def __init__(self) -> None:
        self.ends: dict[tuple[str, Key], tuple[int, int]] = {}
        self._heap: list[tuple[int, int, str, Key]] = []
        self._number = 0  # it also decides between equal ends: a key of text and one of bytes cannot be compared

    def note(self, scope: str, key: Key, until: int) -> None:
        """Remember the end of a block."""
        noted = self.ends.get((scope, key))
        if noted is not None and noted[0] == until:
            return
        self._number += 1
        heappush(self._heap, (until, self._number, scope, key))
        self.ends[(scope, key)] = (until, self._number)
        if len(self._heap) > len(self.ends) + len(self.ends) + 64:
            self._heap = [(*noted, *place) for place, noted in self.ends.items()]
            heapify(self._heap)

    def forget(self, scope: str, key: Key) -> None:
        """Forget the block of a key, if it has one."""
        self.ends.pop((scope, key), None)

    def held(self, now: int) -> int:
        """Return the number of blocks that hold. Those that are over are dropped."""
        while self._heap:
            until, number, scope, key = self._heap[0]
            if self.ends.get((scope, key)) == (until, number):
                if until > now:
                    break
                del self.ends[(scope, key)]
            heappop(self._heap)
        return len(self.ends)

    def soonest(self) -> tuple[str, Key]:
        """Return scope and key of the block that ends first. `held` must have returned more than 0."""
        return self._heap[0][2], self._heap[0][3]


class Table:
    """The states of one scope. The lock of `States` protects it.

    A key is judged by its limit in `others`, else by `limit`. `only` is `limit` while `others` is empty, else None, so
    that a hit needs one comparison to see that there is nothing to note. `heavy` has the keys that weigh more than 1,
    and by how much; `extra` is the sum of it.
    """

    __slots__ = (
        "blocks",
        "extra",
        "grows",
        "hand",
        "heavy",
        "is_penalty",
        "limit",
        "only",
        "others",
        "overflow",
        "ring",
        "states",
        "total",
    )

    def __init__(self, limit: Numbers, total: Weight, blocks: Blocks) -> None:
        self.total = total
        self.blocks = blocks
        self.extra = 0
        self.heavy: dict[Key, int] = {}
        self.grows = limit.algorithm in ("sliding-log", "concurrent", "distinct", "penalty")
        self.is_penalty = limit.algorithm == "penalty"
        self.limit = limit
        self.only: Numbers | None = limit
        self.others: dict[Key, Numbers] = {}
        self.states: dict[Key, State] = {}
        self.ring: list[Key] = []
        self.hand = 0
        self.overflow: State | None = None

    def add(self, key: Key, state: State, limit: Numbers) -> None:
        """Store the state of a new key."""
        if limit is not self.only:
            self.judge_by(key, limit)
        self.states[key] = state
        self.ring.append(key)
        if len(self.ring) > 2 * len(self.states) + 64:  # keys that were reset and came back are in the ring twice
            self.ring = list(self.states)

    def note(self, key: Key, limit: Numbers, now: int) -> None:
        """Judge a known key by the limit of its latest check, unless a stricter limit still denies it."""
        judge = self.others.get(key, self.limit)
        if limit is judge:
            return
        if limit.allows_more_than(judge) and not peek(judge, self.states[key].copy(), now, 1)[0]:
            return
        self.judge_by(key, limit)

    def judge_by(self, key: Key, limit: Numbers) -> None:
        """Judge a key by this limit from now on."""
        if limit.count != self.limit.count or limit.burst != self.limit.burst:  # a scope has one algorithm and period
            self.others[key] = limit
            self.only = None
            return
        self.others.pop(key, None)
        if not self.others:
            self.limit = self.only = limit

    def weigh(self, key: Key, entries: int) -> None:
        """Note the weight of a key whose state has so many entries."""
        extra = entries // ENTRIES
        more = extra - self.heavy.get(key, 0)
        if more:
            if extra:
                self.heavy[key] = extra
            else:
                del self.heavy[key]
            self.extra += more
            self.total.extra += more

    def remove(self, key: Key) -> int:
        """Forget a key. Return the number of states removed, 0 or 1."""
        if self.heavy:
            self.weigh(key, 0)
        if self.is_penalty:
            self.blocks.forget(self.limit.scope, key)
        if self.others and self.others.pop(key, None) is not None and not self.others:
            self.only = self.limit
        return 0 if self.states.pop(key, None) is None else 1

    def sweep(self, looks: int, now: int) -> int:
        """Look at the next `looks` keys of the ring and drop untouched states. Return how many were dropped."""
        ring, states, dropped = self.ring, self.states, 0
        for _ in range(min(looks, len(ring))):
            if self.hand >= len(ring):
                self.hand = 0
            key = ring[self.hand]
            state = states.get(key)
            if state is None or state.expires < now:
                dropped += self.drop(self.hand)
            elif self.grows:
                self.weigh(key, state.entries())
            self.hand += 1  # also past a key that filled a gap: it comes from the young end of the ring
        return dropped

    def victim(self, spare: set[Key], now: int, is_last: bool) -> int:
        """Return the ring index of the least used key of a sample; -1 if all deny, have waiters or are in `spare`.

        A penalty that has blocked before is returned only if `is_last`.
        """
        best, least = -1, MAX_COUNT
        for _ in range(SAMPLE):
            index = int(random() * len(self.ring))
            key = self.ring[index]
            state = self.states.get(key)
            if state is not None and key not in spare:
                if isinstance(state, Strikes) and state.step and not is_last:
                    continue
                limit = self.others.get(key, self.limit)
                row = peek(limit, state.copy(), now, 1)
                # Units that were granted would be lost, as much as those that were used would be given again.
                used = row[6] + row[7] if isinstance(state, QuotaWindow) else limit.burst - row[1]
                if row[0] and used < least and not _has_waiters(limit, state, row):
                    best, least = index, used
        return best

    def drop(self, index: int) -> int:
        """Remove one entry of the ring; the last entry fills the gap. Return the number of states removed, 0 or 1."""
        key, last = self.ring[index], self.ring.pop()
        if index < len(self.ring):
            self.ring[index] = last
        return self.remove(key)


class HeldStates:
    """The states of one key by a plan's limits, for a caller that spends for the same keys again and again.

    They are in their tables as long as `version` is that of `States` and none of them has expired.
    """

    __slots__ = ("key", "states", "version")

    def __init__(self, key: str) -> None:
        self.key = key
        self.states: list[State] = []
        self.version = -1


class States(QuickStates):
    """All states of a memory storage, and the decisions from them. Thread-safe."""

    __slots__ = (
        "_anchor",
        "_blocks",
        "_lock",
        "_recent",
        "_sweep_at",
        "_tables",
        "_ticks",
        "_turns",
        "_unwarned",
        "_version",
        "_weight",
        "documents",
        "evicted",
        "is_limiters",
        "keys",
        "max_keys",
        "overflowed",
        "sweep_period",
    )

    def __init__(self, max_keys: int, clock: Clock | None) -> None:
        self.max_keys = max_keys
        self.keys = 0
        self.evicted = 0  # keys dropped to make room
        self.documents: dict[str, tuple[int, bytes]] = {}  # replaced as a whole, so that readers need no lock
        self.overflowed = 0  # checks that were answered from a shared state
        self.is_limiters = False  # a limiter counts here: a child process that goes on with it is warned
        self._ticks, self._anchor = ticking(clock)
        self._lock = new_mutex()
        self._weight = Weight()
        self._blocks = Blocks()
        self._tables: dict[str, Table] = {}
        self._recent: Table | None = None  # the table of the last hit: most limiters have one limit and so one table
        self._turns: deque[str] = deque()  # scopes in the order in which they are swept
        self._sweep_at = 0
        self.sweep_period = SWEEP_PERIOD  # a replay, whose clock runs fast, takes another
        self._unwarned = False
        self._version = 0  # counts changes after which no held states can be used: see HeldStates

    @property
    def weight(self) -> int:
        """The weight of the states now.

        At most `max_keys`, except for logs that have grown since they were swept, and for blocks: see above.
        """
        return self.keys + self._weight.extra

    def hit(self, plan: Plan, key: str, cost: int) -> Decision:
        """Spend `cost` for one key: by far the most of all calls."""
        with self._lock:
            ticks = self._ticks()  # read under the lock: groups see time in the order they run
            if COMPILED and 0 <= ticks < MANY_TICKS:  # a machine word is divided faster
                now: int = i64(ticks) // 1000 + self._anchor
            else:
                now = ticks // 1000 + self._anchor
            if now >= self._sweep_at:
                self._sweep(now)
            limit = plan.only
            if limit is not None:
                table = self._recent
                if table is None or limit is not table.limit:
                    table = self._recent = self._tables.get(limit.scope)
                if table is not None:
                    state = table.states.get(key)
                    if state is not None:
                        answer = state.spend(limit, now, cost, None, 0)
                        if limit is not table.only:
                            self._judge(table, key, limit, now)
                        return OneLimitDecision(key, plan, cost, answer)
            return self._spend_one_key(plan, key, cost, now)

    def spend_held(self, plan: Plan, held: HeldStates, cost: int, now: int) -> int:
        """Spend `cost` for one key without rows. `now` is the time of the clock, which must not step back.

        Return 0 if all limits allow it, else one bit for each limit that denies; see `denials`. Return -1, having
        changed nothing, if `hit` must decide: for example, because the key has no state yet.
        """
        with self._lock:
            if now >= self._sweep_at:
                self._sweep(now)
            limits = plan.numbers
            if held.version != self._version and not self._hold(plan, held):
                return -1
            states = held.states
            fit = True
            for i, limit in enumerate(limits):
                if states[i].expires < now:  # it may have been swept
                    if not self._hold(plan, held):
                        return -1
                    states = held.states
                if fit and not states[i].fits(limit, now, cost):
                    fit = False
            if not fit:
                denying = denials(limits, states, now, cost)
                if denying:
                    return denying
            for i, limit in enumerate(limits):
                states[i].spend(limit, now, cost, None, 0)
            return 0

    def _hold(self, plan: Plan, held: HeldStates) -> bool:
        """Find the states of a key. Return False if one is missing, or if a key is judged by the limit of its last
        check, which has to be noted at each check."""
        states: list[State] = []
        for limit in plan.numbers:
            table = self._tables.get(limit.scope)
            state = None if table is None or limit is not table.only else table.states.get(held.key)
            if state is None:
                held.version = -1
                return False
            states.append(state)
        held.states = states
        held.version = self._version
        return True

    def _judge(self, table: Table, key: Key, limit: Numbers, now: int) -> None:
        """Note that a key was judged by a limit that is not the only one of its table."""
        self._version += 1
        table.note(key, limit, now)

    def _spend_one_key(self, plan: Plan, key: str, cost: int, now: int) -> Decision:
        """Spend for one key: nothing is changed before all of its limits allow.

        A key that there is no room for takes the general path.
        """
        limits = plan.numbers
        found: list[State] = []
        is_new = to_note = False
        fit = True
        for limit in limits:
            table = self._tables.get(limit.scope) or self._new_table(limit)
            state = table.states.get(key)
            if state is None:
                state = unpacked(limit, None)
                is_new = True
            elif limit is not table.only:
                to_note = True
            found.append(state)
            if fit and not state.fits(limit, now, cost):
                fit = False
        if is_new and (self.weight + len(limits) > self.max_keys or len(key) > LONG_KEY):
            group = ((key, plan.limits, cost, None, None),)
            return Decision(group, self._evaluate(group, "spend", now))
        answers: list[StoredRow] = []
        fit = spend_one_key(limits, found, fit, now, cost, answers)
        if to_note or (is_new and fit):
            self._note(plan, key, found, now, is_new and fit)
        if len(answers) == 1:
            return OneLimitDecision(key, plan, cost, answers[0].row)
        return OneKeyDecision(key, plan, cost, answers, fit)

    def _note(self, plan: Plan, key: str, found: list[State], now: int, is_new: bool) -> None:
        """Note by which limits a key is judged, and store its new states."""
        for i, limit in enumerate(plan.numbers):
            table = self._tables[limit.scope]
            if key not in table.states:
                if is_new:
                    self._add(table, key, limit, found[i], now)
            elif limit is not table.only:
                self._judge(table, key, limit, now)

    def at_once(self, group: Group) -> Sequence[Row]:
        """Spend one group, and return its rows."""
        return self.decide(group).rows

    def decide(self, group: Group) -> Decision:
        """Spend one group."""
        if len(group) == 1:
            key, limits, cost, patience, extras = group[0]
            if patience is None and extras is None and cost > 0:
                plan = Plan(limits)
                if plan.plain:
                    return self.hit(plan, key, cost)
        with self._lock:
            return Decision(group, self._evaluate(group, "spend", self._now()))

    def evaluate(self, groups: Sequence[Group], mode: Mode) -> list[Sequence[Row]]:
        """Answer each group by itself, in order. The lock is taken for each: others may come between two groups."""
        if mode == "spend":
            return [self.decide(group).rows for group in groups]
        with self._lock:
            now = self._now()
            return [self._evaluate(group, mode, now) for group in groups]

    def _now(self) -> int:
        """Return the time, and sweep if it is time for that. The caller holds the lock."""
        now = self._ticks() // 1000 + self._anchor
        if now >= self._sweep_at:
            self._sweep(now)
        return now

    def reset(self, group: Group) -> None:
        """Forget the states of each ask's key and limits."""
        with self._lock:
            self._version += 1
            for key, limits, *_ in group:
                for limit in limits:
                    table = self._tables.get(limit.scope)
                    if table is not None:
                        self.keys -= table.remove(_kept(key))

    def holders(self, key: str, limit: Limit) -> list[tuple[int, int]]:
        """Return (id, expiry) of each slot of a key that is held now, the earliest expiry first."""
        with self._lock:
            table = self._tables.get(limit.scope)
            state = None if table is None else table.states.get(_kept(key))
            return state.holders(self._now()) if isinstance(state, Slots) else []

    def now(self) -> int:
        """Return the time of this storage's clock."""
        return self._ticks() // 1000 + self._anchor

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document as `version` + 1, if `version` is the stored one. Return False if it is not."""
        with self._lock:
            known = self.documents.get(name)
            if version != (0 if known is None else known[0]):
                return False
            self.documents = {**self.documents, name: (version + 1, content)}
            return True

    def renew(self) -> None:
        """Replace the lock in a forked child: the thread that may have held it does not exist there."""
        self._lock = new_mutex()
        self._unwarned = self.is_limiters
        self._sweep_at = 0  # the first use in the child sweeps, and so warns

    def clear(self) -> None:
        """Forget everything, for use between tests."""
        with self._lock:
            self._recent = None
            self._version += 1
            self._tables.clear()
            self._turns.clear()
            self._weight = Weight()
            self._blocks = Blocks()
            self.keys = 0
            self.documents = {}

    def _evaluate(self, group: Group, mode: Mode, now: int) -> list[Row]:
        """Decide any group by the group law. The caller holds the lock."""
        indexes: dict[tuple[str, Key | None], int] = {}
        places: list[tuple[Table, Key | None, Numbers]] = []
        states: list[State] = []
        order: list[int] = []
        new = 0
        is_shared = False  # a state of this group is an overflow state, whose denials are nobody's fault
        spare = {_kept(key) for key, *_ in group}
        for asked, limits, cost, _, extras in group:
            kept = _kept(asked)
            for i, each in enumerate(limits):
                limit = each.numbers
                table = self._tables.get(limit.scope) or self._new_table(limit)
                state = table.states.get(kept)
                key: Key | None = kept
                # A refund needs no room, and a penalty only at its first strike.
                needs_room = state is None and (limit.scope, kept) not in indexes and cost > 0
                needs_room = needs_room and limit.algorithm != "penalty"
                if extras is not None and _has_slot(table.overflow, extras[i]):
                    key, state = None, table.overflow  # a slot stays where it was taken, until it is released there
                    is_shared = True
                elif needs_room and self.weight + new >= self.max_keys and not self._make_room(table, spare, mode, now):
                    key, state = None, table.overflow
                    is_shared = True
                    self.overflowed += 1
                index = indexes.setdefault((limit.scope, key), len(states))
                order.append(index)
                if index == len(states):
                    if state is None:
                        state = unpacked(limit, None)
                        new += limit.algorithm != "penalty"
                    places.append((table, key, limit))
                    states.append(state)
        before = states.copy()
        rows = evaluate(group, mode, order, states, now, not is_shared)
        for i, (table, key, limit) in enumerate(places):
            if states[i] is not before[i]:
                self._store(table, key, limit, states[i], now)
                if table.is_penalty and self.weight > self.max_keys:
                    self._make_room(table, spare, mode, now)
            if mode == "spend" and limit is not table.only and key is not None and key in table.states:
                self._judge(table, key, limit, now)
        if self.weight > self.max_keys and mode != "peek":
            self._shrink(spare, now)
        return rows

    def _add(self, table: Table, key: Key, limit: Numbers, state: State, now: int) -> None:
        if limit is not table.only:
            self._version += 1
        table.add(key, state, limit)
        self.keys += 1 - table.sweep(2, now)
        if table.grows:
            table.weigh(key, state.entries())

    def _store(self, table: Table, key: Key | None, limit: Numbers, state: State, now: int) -> None:
        self._version += 1
        if key is None:
            table.overflow = state
        elif state.expires == UNTOUCHED:
            self.keys -= table.remove(key)
        elif key in table.states:
            table.states[key] = state
            if table.grows:
                table.weigh(key, state.entries())
        elif state.expires >= now:  # else it was swept in the middle of its own group
            self._add(table, key, limit, state, now)
        if isinstance(state, Strikes) and state.until > now and key is not None:
            self._blocks.note(limit.scope, key, state.until)

    def _new_table(self, limit: Numbers) -> Table:
        self._turns.append(limit.scope)
        table = Table(limit, self._weight, self._blocks)
        self._tables[limit.scope] = table
        return table

    def _make_room(self, table: Table, spare: set[Key], mode: Mode, now: int) -> bool:
        """Drop one state: a block if there are too many, or one of the largest table, or else of the new key's own.

        A peek only checks that one can be dropped. Return True if there is room.
        """
        blocks = self._blocks
        if blocks.ends and blocks.held(now) > max(self.max_keys // BLOCKS_SHARE, 1):
            scope, key = blocks.soonest()
            if key not in spare:
                if mode != "peek":
                    self._version += 1
                    self.keys -= self._tables[scope].remove(key)
                    self.evicted += 1
                return True
        largest = self._largest(table, True)
        payers = [largest, table]
        if largest.is_penalty:
            payers.append(self._largest(table, False))
        for payer in payers:
            if self._drop_victim(payer, spare, mode, now, False):
                return True
        for payer in self._tables.values():
            if payer.is_penalty and self._drop_victim(payer, spare, mode, now, True):
                return True
        return False

    def _drop_victim(self, payer: Table, spare: set[Key], mode: Mode, now: int, is_last: bool) -> bool:
        """Drop a state of this table, or in a peek only look for one. Return False if none can be dropped."""
        index = payer.victim(spare, now, is_last) if payer.ring else -1
        if index >= 0 and mode != "peek":
            self._version += 1
            self.keys -= payer.drop(index)
            self.evicted += 1
        return index >= 0

    def _largest(self, table: Table, penalties: bool) -> Table:
        """Return the table with the largest weight, or the given one if there is none. Penalties are left out if asked.

        Of a few keys only the number counts: the one that has grown would be dropped, and given its whole quota again.
        """
        largest, most = table, -1
        for each in self._tables.values():
            if each.is_penalty and not penalties:
                continue
            weight = len(each.states)
            if weight > SAMPLE:
                weight += each.extra
            if weight > most:
                largest, most = each, weight
        return largest

    def _shrink(self, spare: set[Key], now: int) -> None:
        """Drop a few states if the weight exceeds the cap: a state has grown, or the cap was lowered."""
        for _ in range(SAMPLE):
            if self.weight <= self.max_keys:
                return
            table = self._largest(next(iter(self._tables.values())), True)
            if len(table.states) <= SAMPLE or not self._make_room(table, spare, "spend", now):
                return

    def _sweep(self, now: int) -> None:
        """Look at some keys of a few tables, in turn. Drop a table that has become empty."""
        self._sweep_at = now + self.sweep_period
        if self._unwarned:
            self._unwarned = False  # warn in a thread: the lock is held here, and a log handler may use a limiter
            with suppress(RuntimeError):  # the operating system allows no more threads, or the interpreter ends
                threading.Thread(target=warn_of_many_workers, name="ratebound warning").start()
        for _ in range(min(len(self._turns), SWEEP_TABLES)):
            scope = self._turns[0]  # it leaves last: an exception out of a signal handler must not take its turn away
            table = self._tables.get(scope)  # None if such an exception came before the table
            if table is not None:
                self.keys -= table.sweep(16 + len(table.ring) // SWEEP_SHARE, now)
                if table.ring or (table.overflow is not None and table.overflow.expires >= now):
                    self._turns.rotate(-1)
                    continue
                self._recent = None
                del self._tables[scope]
            self._turns.popleft()
        if self.weight > self.max_keys:
            self._shrink(set(), now)


def _has_waiters(limit: Numbers, state: State, row: Row) -> bool:
    """Return True if places further ahead than a whole burst are taken.

    A hole between them may still allow a request.
    """
    return isinstance(state, Bucket) and row[3] > limit.refill_us + 1


def _has_slot(state: State | None, extra: Extra) -> bool:
    """Return True if these are slots, and one of them has the id in `extra`."""
    return isinstance(state, Slots) and extra[0] in state.held


def _kept(key: str) -> Key:
    if len(key) <= LONG_KEY:
        return key
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
