"""The states of a zone: locks, the clock, and decisions. Compiled.

Bounded memory that is not a bypass (law 7): a new key takes a free cell of its two buckets, an expired one, or that of
the least used key that does not deny. If all of them deny, it shares an overflow state with others. If there is no room
for that either, or no block for a state that grows, the group is answered by the failure mode. A strike that finds no
room is not counted.

A cell does not know its limit, so its worth says until when the state denies (see `worth_of`). It is told when the
state is written, and when a limit denies it that did not before: a stricter tier's limit, or a lowered one.
"""

from collections.abc import Callable
from struct import error as StructError
from time import monotonic
from typing import Final

from ratebound.decision import Decision, OneKeyDecision, OneLimitDecision, Plan, StoredRow
from ratebound.errors import StorageError
from ratebound.kernels.concurrency import Slots
from ratebound.kernels.gcra import Bucket
from ratebound.kernels.group_law import evaluate, peek, spend_one_key
from ratebound.kernels.packing import packed, unpacked
from ratebound.kernels.penalty import Strikes
from ratebound.kernels.quota import QuotaWindow
from ratebound.kernels.state import State
from ratebound.limit import Extra, Group, Limit, Mode
from ratebound.numbers import MAX_COUNT, Numbers
from ratebound.outcome import Row
from ratebound.storage.blame import Blameless, is_programs_own
from ratebound.storage.quick_states import QuickStates
from ratebound.storage.shared_memory.cells import (
    CLEAN,
    DROPPED,
    LINKED,
    CellChange,
    Cells,
    Damaged,
    Place,
    Spot,
    ZoneFull,
)
from ratebound.storage.shared_memory.layout import (
    CELL,
    COPIES,
    COPY_B,
    ENTRIES,
    INLINE,
    OVERFLOWED,
    WORD_A,
    WORDS,
    WRITTEN,
)
from ratebound.storage.shared_memory.locks import OWN, Locks

_words: Final = WORDS.unpack_from

UNKNOWN: Final = -1  # whether a lock was taken: an exception of a signal handler comes between any two steps
QUICK: Final = 0.001  # seconds for which a lock is waited for where nothing may wait long
FULL: Final = (
    "the zone is full, and every state that could be dropped for this key denies: make the zone larger, for example"
    " shm://name?size=128mb"
)
DAMAGES: Final = (Damaged, StructError, IndexError, ValueError, TypeError, OverflowError, ZeroDivisionError)
INTERRUPTED: Final = "a signal handler needs a lock of the zone that the code which it interrupted has"


class ZoneDropped(Exception):
    """The zone was dropped: the next one of its name is to be opened."""


class Busy(Exception):
    """A lock of the zone was not free in time."""


class Zone:
    """One mapped zone: its cells, its locks and its clock. `owner` is the object that keeps it mapped."""

    __slots__ = ("_anchor", "_free", "_handles", "_locks", "_marks", "_ticks", "_try", "cells", "owner")

    def __init__(self, cells: Cells, locks: Locks, ticks: Callable[[], int], anchor: int, owner: object) -> None:
        self.cells = cells
        self.owner = owner
        self._locks = locks
        self._try = locks.try_take
        self._free = locks.release
        self._handles = locks.handles
        self._marks = [cells.mark_at(shard) for shard in range(len(locks.handles))]
        self._ticks = ticks
        self._anchor = anchor

    def now(self) -> int:
        """Return the time of the zone's clock."""
        return self._ticks() // 1000 + self._anchor

    def hit(self, plan: Plan, key: str, cost: int) -> Decision | None:
        """Spend for a key that has states already. Return None if that takes more than a moment, or more than this."""
        limit = plan.only
        if limit is None:
            return self._hit_several(plan, key, cost)
        cells = self.cells
        scope = cells.scopes.get(limit.scope) or cells.scope(limit.scope)
        spot = scope.spots.get(key) or cells.spot(key, scope)
        memory, shard = cells.memory, spot.shard
        handle = self._handles[shard]
        code = UNKNOWN
        try:
            code = self._try(handle)
            if code:
                tried, code = code, UNKNOWN
                code = self._locks.wait(handle, tried, QUICK)
                if code:
                    return None
            if memory[self._marks[shard]]:  # a killed process left something to repair
                return None
            now = self._ticks() // 1000 + self._anchor  # read under the lock: groups see time in the order they run
            cell = spot.cell
            if cell < 0 or memory[cells.tags_at + cell] != spot.tag:
                cell = cells.locate(spot)
                if cell < 0:
                    return None
            at = cells.cells_at + cell * CELL
            word_a, identity, word_b = _words(memory, at + WORD_A)
            if identity != spot.identity:  # the cell has another state now
                spot.cell = -1
                return None
            is_a = word_a > word_b
            word, other = (word_a, word_b) if is_a else (word_b, word_a)
            n: int = word & 255
            if n > INLINE or other & 255 > INLINE:
                return self._hit_chained(plan, limit, key, cost, now)
            values: tuple[int, ...] = COPIES[n].unpack_from(memory, at if is_a else at + COPY_B)
            state = unpacked(limit, values[1:])
            row = state.spend(limit, now, cost, None, 0)
            # A repair after the clock stepped back is stored as well, and that a state denies under this limit.
            if row[0] or state.expires != values[1] or (not row[1] and -values[0] <= now):
                after, remaining, worth = state.pack(limit), row[1], values[0]
                n = len(after)
                if n > INLINE:
                    return self._hit_chained(plan, limit, key, cost, now)
                if n < 6 and remaining > 0 and worth >= 0:  # neither a quota nor a bucket with holes
                    worth = limit.burst - remaining
                else:
                    worth = worth_of(limit, state, now, remaining, worth)
                WRITTEN[n].pack_into(memory, at + COPY_B if is_a else at, worth, *after, ((word >> 8) + 1) << 8 | n)
            return OneLimitDecision(key, plan, cost, row)
        finally:
            if code == UNKNOWN:
                self._locks.abandon(handle)
            elif not code:
                try:
                    self._free(handle)
                except BaseException:  # of a signal handler, before the lock was released or after it
                    self._free(handle)
                    raise

    def _hit_chained(self, plan: Plan, limit: Numbers, key: str, cost: int, now: int) -> Decision | None:
        """Spend from a state that has, had or will have blocks. The caller has the lock."""
        cells = self.cells
        place = cells.known_place(key, cells.scope(limit.scope))
        numbers = place.numbers if cells.find(place) else None
        if numbers is None:
            return None
        state = unpacked(limit, numbers)
        row = state.spend(limit, now, cost, None, 0)
        if row[0] or state.expires != numbers[0] or (not row[1] and -place.worth <= now):
            after = state.pack(limit)
            blocks = cells.new_blocks(place, len(after))
            if blocks and not cells.make_blocks(place.shard, blocks, {place.cell}, now):
                return None
            cells.write(place, after, worth_of(limit, state, now, row[1], place.worth))
        return OneLimitDecision(key, plan, cost, row)

    def _hit_several(self, plan: Plan, key: str, cost: int) -> Decision | None:
        """Spend for a key that has a state under each of several limits. All of them are in one shard."""
        cells, limits = self.cells, plan.numbers
        if len(limits) > ENTRIES:
            return None
        spots: list[Spot] = []
        for limit in limits:
            scope = cells.scopes.get(limit.scope) or cells.scope(limit.scope)
            spots.append(scope.spots.get(key) or cells.spot(key, scope))
        memory, shard = cells.memory, spots[0].shard
        taken: list[int] = []
        try:
            if self._enter(shard, QUICK, taken) or memory[self._marks[shard]]:
                return None
            now = self._ticks() // 1000 + self._anchor
            states: list[State] = []
            before: list[tuple[int, ...]] = []  # worth and numbers of each state
            targets: list[int] = []  # the copies to be written
            entries: list[int] = [len(spots)]  # of the journal: cell and word of each
            fit = True
            for i, spot in enumerate(spots):
                cell = spot.cell
                if cell < 0 or memory[cells.tags_at + cell] != spot.tag:
                    cell = cells.locate(spot)
                    if cell < 0:
                        return None
                at = cells.cells_at + cell * CELL
                word_a, identity, word_b = _words(memory, at + WORD_A)
                if identity != spot.identity or cell in entries[1::2]:  # another state; or one that is asked for twice
                    spot.cell = -1
                    return None
                is_a = word_a > word_b
                word, other = (word_a, word_b) if is_a else (word_b, word_a)
                n: int = word & 255
                if n > INLINE or other & 255 > INLINE:
                    return self._hit_several_chained(plan, key, cost, now)
                values: tuple[int, ...] = COPIES[n].unpack_from(memory, at if is_a else at + COPY_B)
                state = unpacked(limits[i], values[1:])
                if fit and not state.fits(limits[i], now, cost):
                    fit = False
                states.append(state)
                before.append(values)
                targets.append(at + COPY_B if is_a else at)
                entries.append(cell)
                entries.append(word)
            answers: list[StoredRow] = []
            fit = spend_one_key(limits, states, fit, now, cost, answers)
            copies: list[tuple[int, ...]] = []
            for i, state in enumerate(states):
                row = answers[i].row
                if not fit and state.expires == before[i][1] and (row[1] or -before[i][0] > now):
                    continue
                after = state.pack(limits[i])
                if not fit or len(after) > INLINE:  # a repair, a state that denies from now on, or one that grows
                    return self._hit_several_chained(plan, key, cost, now)
                remaining, worth = row[1], before[i][0]
                if len(after) < 6 and remaining > 0 and worth >= 0:
                    worth = limits[i].burst - remaining
                else:
                    worth = worth_of(limits[i], state, now, remaining, worth)
                copies.append((worth, *after))
            if fit:
                cells.write_copies(shard, entries, targets, copies)
            return OneKeyDecision(key, plan, cost, answers, fit)
        finally:
            try:
                self._leave(taken)
            except BaseException:
                self._leave(taken)
                raise

    def _hit_several_chained(self, plan: Plan, key: str, cost: int, now: int) -> Decision | None:
        """Do what `_hit_several` does for states of any size. The caller has the lock."""
        cells, limits = self.cells, plan.numbers
        places = [cells.known_place(key, cells.scope(limit.scope)) for limit in limits]
        states: list[State] = []
        fit = True
        for i, place in enumerate(places):
            if not cells.find(place):
                return None
            state = unpacked(limits[i], place.numbers)
            states.append(state)
            if fit and not state.fits(limits[i], now, cost):
                fit = False
        used = {place.cell for place in places}
        if len(used) < len(places):
            return None
        answers: list[StoredRow] = []
        fit = spend_one_key(limits, states, fit, now, cost, answers)
        remaining = [answer.row[1] if fit or not answer.row[1] else -1 for answer in answers]
        try:
            self._store(limits, places, states, remaining, used, now)
        except ZoneFull:
            return None
        return OneKeyDecision(key, plan, cost, answers, fit)

    def evaluate(self, group: Group, mode: Mode, seconds: float) -> list[Row]:
        """Decide a group. Raises Busy if a lock is not free in time, ZoneDropped, and StorageError without room."""
        places, order = self._places(group)
        shards = sorted({place.shard for place in places})
        taken: list[int] = []
        try:
            self._enter_all(shards, seconds, taken)
            return self._evaluate(group, mode, places, order)
        except ZoneFull as error:
            raise StorageError(str(error) or FULL, undone=True, outage=False) from None
        finally:
            try:
                self._leave(taken)
            except BaseException:
                self._leave(taken)
                raise

    def reset(self, group: Group, seconds: float) -> None:
        """Forget the states of each ask's key and limits. Raises Busy and ZoneDropped."""
        for place in self._places(group)[0]:
            taken: list[int] = []
            try:
                self._enter_all([place.shard], seconds, taken)
                if self.cells.find(place):
                    self.cells.remove(place.cell)
            finally:
                try:
                    self._leave(taken)
                except BaseException:
                    self._leave(taken)
                    raise

    def holders(self, key: str, limit: Limit, seconds: float) -> list[tuple[int, int]]:
        """Return (id, expiry) of each slot of a key that is held now. Raises Busy and ZoneDropped."""
        ((place,), _) = self._places(((key, (limit,), 0, None, None),))
        taken: list[int] = []
        try:
            self._enter_all([place.shard], seconds, taken)
            state = unpacked(limit.numbers, place.numbers if self.cells.find(place) else None)
            return state.holders(self.now()) if isinstance(state, Slots) else []
        finally:
            try:
                self._leave(taken)
            except BaseException:
                self._leave(taken)
                raise

    # Locks

    def enter(self, shard: int, seconds: float) -> bool:
        """Take the lock of a shard. Return False if it is not free in time, or if this thread has it already."""
        return not self._enter(shard, seconds, [])

    def leave(self, shard: int) -> None:
        """Release the lock of a shard."""
        self._free(self._handles[shard])

    def _enter(self, shard: int, seconds: float, taken: list[int]) -> int:
        """Take the lock of a shard, and add it to `taken`. Return 0, or another number if it is not free in time.

        It is OWN if this thread has the lock already: a signal handler must not go on before the thread is done.
        The lock is in `taken`, or free, whenever an exception comes. The caller leaves what is in `taken`, and leaves
        it again if an exception came meanwhile.
        """
        handle = self._handles[shard]
        code = UNKNOWN
        try:
            code = self._try(handle)
            if code:
                tried, code = code, UNKNOWN
                code = self._locks.wait(handle, tried, seconds)
            if not code:
                taken.append(handle)
        finally:
            if code == UNKNOWN:
                self._locks.abandon(handle)
        return code

    def _leave(self, taken: list[int]) -> None:
        """Release locks. Those that are released already stay so."""
        for handle in taken:
            self._free(handle)

    def _enter_all(self, shards: list[int], seconds: float, taken: list[int]) -> None:
        """Take the locks of shards, which are in order, and repair what a killed process left.

        Raises Busy if one of them is not free in time, Blameless if this thread has it already, and ZoneDropped if the
        zone was dropped.
        """
        memory, mark_at = self.cells.memory, self.cells.mark_at
        ends = monotonic() + seconds
        link = -1
        while True:
            for shard in shards:
                code = self._enter(shard, max(ends - monotonic(), 0.0), taken)
                if code:
                    raise _refusal(code)
                mark = memory[mark_at(shard)]
                if mark == DROPPED:
                    raise ZoneDropped
                if mark >= LINKED:
                    link = mark - LINKED
                    if self._handles[link] not in taken:
                        break
                    memory[mark_at(shard)] = CLEAN  # that shard is in order, so nothing was begun
                elif mark != CLEAN:
                    self.cells.repair(shard)
            else:
                return
            self._leave(taken)
            taken.clear()
            self._unlink(link, max(ends - monotonic(), 0.0))

    def _unlink(self, first: int, seconds: float) -> None:
        """Repair the shards that a killed process wrote together: `first` is the smallest of them."""
        cells = self.cells
        taken: list[int] = []
        try:
            code = self._enter(first, seconds, taken)
            if code:
                raise _refusal(code)
            if cells.memory[cells.mark_at(first)] == DROPPED:
                raise ZoneDropped
            cells.repair(first)
            for shard in range(len(self._handles)):
                if cells.memory[cells.mark_at(shard)] == LINKED + first:  # it was killed before it began
                    cells.memory[cells.mark_at(shard)] = CLEAN
        finally:
            try:
                self._leave(taken)
            except BaseException:
                self._leave(taken)
                raise

    # Decisions

    def _places(self, group: Group) -> tuple[list[Place], list[int]]:
        """Return the places of a group's states, and for each limit of each ask the index of its place."""
        cells = self.cells
        indexes: dict[bytes, int] = {}
        places: list[Place] = []
        order: list[int] = []
        for key, limits, *_ in group:
            digest = cells.digest(key)
            for limit in limits:
                place = cells.place(digest, cells.scope(limit.scope))
                index = indexes.setdefault(place.identity, len(places))
                if index == len(places):
                    places.append(place)
                order.append(index)
        return places, order

    def _evaluate(self, group: Group, mode: Mode, places: list[Place], order: list[int]) -> list[Row]:
        """Decide a group by the group law. The caller has the locks."""
        cells = self.cells
        now = self.now()
        for place in places:
            cells.find(place)
        spare = {place.cell for place in places if place.cell >= 0}
        limits: list[Numbers] = []
        shared: dict[tuple[int, str], int] = {}  # from the shard and scope of an overflow state to its index
        overflows: list[Place] = []
        overflow_limits: list[Numbers] = []
        asked = 0
        for _, each, cost, _, extras in group:
            for i, limit in enumerate(each):
                numbers, index = limit.numbers, order[asked]
                if index == len(limits):
                    limits.append(numbers)
                limits[index] = numbers
                place = places[index]
                if self._overflows(place, numbers, cost, None if extras is None else extras[i], spare, now, mode):
                    index = shared.setdefault((place.shard, numbers.scope), len(overflows))
                    if index == len(overflows):
                        overflows.append(self._overflow(place.shard, numbers, spare, now, mode))
                        overflow_limits.append(numbers)
                    order[asked] = len(places) + index
                    place = overflows[index]
                if place.cell >= 0:
                    spare.add(place.cell)
                asked += 1
        places = places + overflows
        limits += overflow_limits
        states = [unpacked(limits[i], place.numbers) for i, place in enumerate(places)]
        rows = evaluate(group, mode, order, states, now, not shared)  # denials of an overflow state are nobody's fault
        remaining = [-1] * len(places)
        if mode == "spend":
            for i, row in zip(order, rows, strict=True):
                remaining[i] = row[1] if row[0] or not row[1] else -1
        for index in self._store(limits, places, states, remaining, spare, now):
            for i, other in enumerate(order):
                if other == index:  # the strike was not counted, so the row must not say that it was
                    rows[i] = Strikes().answer(limits[index], now, 0)
        return rows

    def _overflows(
        self, place: Place, limit: Numbers, cost: int, extra: Extra | None, spare: set[int], now: int, mode: Mode
    ) -> bool:
        """Return True if the overflow state answers for a key. Otherwise choose a cell for a new key that needs one."""
        if extra is not None and not limit.plain and limit.algorithm != "penalty":
            shared = self.cells.overflow_place(place.shard, self.cells.scope(limit.scope))
            state = unpacked(limit, shared.numbers if self.cells.find(shared) else None)
            if isinstance(state, Slots) and extra[0] in state.held:
                return True  # a slot stays where it was taken, until it is released there
        # A refund needs no room, and a penalty only at its first strike.
        if place.cell >= 0 or cost <= 0 or limit.algorithm == "penalty":
            return False
        return not self.cells.make_room(place, spare, now, mode == "peek")

    def _overflow(self, shard: int, limit: Numbers, spare: set[int], now: int, mode: Mode) -> Place:
        """Return the place of the overflow state of a limit in a shard. Raises ZoneFull."""
        cells = self.cells
        shared = cells.overflow_place(shard, cells.scope(limit.scope))
        if not cells.find(shared) and not cells.make_room(shared, spare, now, mode == "peek"):
            raise ZoneFull
        if mode != "peek":
            cells.count(shard, OVERFLOWED)
        return shared

    def _store(
        self,
        limits: list[Numbers],
        places: list[Place],
        states: list[State],
        remaining: list[int],
        spare: set[int],
        now: int,
    ) -> list[int]:
        """Write the states that have changed: all of them, or none. `remaining` is as in `worth_of`.

        Where it is 0, a state that has not changed is written as well if its worth does not say yet that it denies.
        Return the indexes of penalties for whose first strike there is no room. Raises ZoneFull.
        """
        cells = self.cells
        changes: list[CellChange] = []
        emptied: list[int] = []
        uncounted: list[int] = []
        needed: dict[int, int] = {}
        for i, place in enumerate(places):
            limit, state = limits[i], states[i]
            numbers = packed(limit, state)
            if numbers == place.numbers and (numbers is None or remaining[i] != 0 or -place.worth > now):
                continue
            if numbers is None:  # nothing is left of it: first this is written with the others, then the cell is freed
                emptied.append(place.cell)
                changes.append(CellChange(place, state.pack(limit), 0))
                continue
            if place.cell < 0:
                if state.expires < now:
                    continue
                if not cells.make_room(place, spare, now, False):
                    if limit.algorithm == "penalty":
                        cells.count(place.shard, OVERFLOWED)
                        uncounted.append(i)
                        continue
                    raise ZoneFull
                spare.add(place.cell)
            blocks = cells.new_blocks(place, len(numbers))
            if blocks:
                needed[place.shard] = needed.get(place.shard, 0) + blocks
            changes.append(CellChange(place, numbers, worth_of(limit, state, now, remaining[i], place.worth)))
        for shard, blocks in needed.items():
            if not cells.make_blocks(shard, blocks, spare, now):
                raise ZoneFull
        if len(changes) > 1 or (changes and not emptied):
            cells.write_together(changes)
        for cell in emptied:
            cells.remove(cell)
        return uncounted


class ZoneStates(QuickStates):
    """The states of a zone, for one process. If the zone is dropped, `reopen` goes on with the one that follows it."""

    __slots__ = ("_open", "_zone")

    def __init__(self, open_zone: Callable[[], Zone]) -> None:
        self._open = open_zone
        self._zone = open_zone()

    @property
    def zone(self) -> Zone:
        """The zone."""
        return self._zone

    def reopen(self) -> Zone:
        """Open the zone that has the name now, or make it. Return the one before. Raises StorageError.

        Compiled code drops the old value of an attribute before it stores the new one, and other threads run while a
        zone is unmapped: they would find a zone that is gone. So the old one is kept until the new one is stored.
        """
        opened = self._open()
        before = self._zone
        self._zone = opened
        return before

    def hit(self, plan: Plan, key: str, cost: int) -> Decision | None:
        """Spend for a known key, or return None."""
        try:
            zone = self._zone  # kept alive here: another thread may open the next one meanwhile
            return zone.hit(plan, key, cost)
        except DAMAGES as error:
            if is_programs_own(error):
                raise
            return None  # `evaluate` says what is wrong

    def evaluate(self, group: Group, mode: Mode, seconds: float) -> list[Row]:
        """Decide a group. Raises Busy, ZoneDropped, Damaged and StorageError."""
        try:
            zone = self._zone  # see `hit`
            return zone.evaluate(group, mode, seconds)
        except DAMAGES as error:
            raise _damage(error) from error

    def reset(self, group: Group, seconds: float) -> None:
        """Forget the states of each ask's key and limits. Raises Busy, ZoneDropped and Damaged."""
        try:
            zone = self._zone
            zone.reset(group, seconds)
        except DAMAGES as error:
            raise _damage(error) from error

    def holders(self, key: str, limit: Limit, seconds: float) -> list[tuple[int, int]]:
        """Return (id, expiry) of each slot of a key that is held now. Raises Busy, ZoneDropped and Damaged."""
        try:
            zone = self._zone
            return zone.holders(key, limit, seconds)
        except DAMAGES as error:
            raise _damage(error) from error


def worth_of(limit: Numbers, state: State, now: int, remaining: int, before: int) -> int:
    """Return whether a state may be dropped to make room: its use, or minus the instant until which it must stay.

    A state stays while it denies and while it has waiters. `remaining` is what is left after a spend, or -1 if that is
    not known. `before` is the worth until now: a denial under another limit, like that of another tier, stays in force.
    """
    worth = 0
    if isinstance(state, Strikes):
        if state.until > now:
            return -state.until
        worth = MAX_COUNT if state.step else 1  # its next block would be the shortest again
    elif remaining > 0 and not (isinstance(state, Bucket) and state.more is not None):
        worth = state.used + state.granted if isinstance(state, QuotaWindow) else limit.burst - remaining
    else:
        row = peek(limit, state.copy(), now, 1)
        ahead = row[3] - limit.refill_us - 1 if isinstance(state, Bucket) else 0
        if not row[0]:
            wait = row[3] if row[2] is None else row[2]
            return -(now + max(wait, ahead))  # behind the first free place of a line there may be more waiters
        if ahead > 0:
            return -(now + ahead)
        worth = row[6] + row[7] if isinstance(state, QuotaWindow) else limit.burst - row[1]
    return before if -before > now else worth


def _damage(error: Exception) -> Exception:
    """Return the exception for what bytes that cannot be have led to, and one of the program itself as it is."""
    if isinstance(error, Damaged) or is_programs_own(error):
        return error
    return Damaged(f"{type(error).__name__}: {error}")


def _refusal(code: int) -> Exception:
    """Return the exception for a lock that was not taken, for the reason that `_enter` returned."""
    return Blameless(INTERRUPTED, undone=True) if code == OWN else Busy()
