"""The cells of a zone: finding, reading, writing and dropping states, and repair after a process was killed. Compiled.

Every method that takes a shard or a cell needs the lock of that shard.

One state is written by one store: see layout.py. Everything else sets the mark of the shard before, and clears it
after:

- MOVING: blocks are being chained or written. Repair finds the free blocks anew.
- OPEN: several cells are being written. The journal of the shard says which, and their words before. Repair takes the
  newer copies back, so all of them are as before, or none.
- CLOSED: all cells are written. Repair only clears the links.
- LINKED + n: cells of this shard are in the journal of shard n, the smallest of those that are written together. Repair
  is that of shard n, by a process that has its lock. Nobody touches a linked shard before.
- DROPPED: the zone is no longer in use.

The next process that takes the lock finds the mark, and repairs. It does not matter how the other one ended, or where:
a repair that is itself cut short is done again.
"""

from hashlib import blake2b
from mmap import mmap
from struct import Struct
from typing import Final

from ratebound.kernels.packing import Packed
from ratebound.numbers import MAX_COUNT
from ratebound.storage.shared_memory.layout import (
    BLOCK,
    BUCKET,
    CELL,
    CHAIN,
    CHAIN_WRITTEN,
    CHAINED,
    COPIES,
    COPY_B,
    ENTRIES,
    EVICTED,
    FOUR,
    FREE,
    HAND,
    HEAD,
    HEADER,
    IDENTITY,
    IN_BLOCK,
    INLINE,
    JOURNAL,
    MARK,
    ONE,
    RECOVERED,
    SHARDS,
    TWO,
    WORD_A,
    WORD_B,
    WORDS,
    WRITTEN,
    Geometry,
)

CLEAN: Final = 0
MOVING: Final = 1
OPEN: Final = 2
CLOSED: Final = 3
DROPPED: Final = 4
LINKED: Final = 16

MOST_SPOTS: Final = 16_384  # that a process remembers
LONGEST_KEY: Final = 256  # characters of a key that is remembered: clients may choose keys
FORGET_AFTER: Final = 100_000  # keys that were not remembered
LOOKS: Final = 256  # cells that one search for blocks looks at

_one: Final = ONE.unpack_from
_two: Final = TWO.unpack_from
_words: Final = WORDS.unpack_from
_chain: Final = CHAIN.unpack_from
_four: Final = FOUR.unpack


class ZoneFull(Exception):
    """There is no room, and every state that could be dropped denies. Or the text says what there is no room for."""


class Damaged(Exception):
    """The zone has bytes that no process writes there."""


class Spot:
    """Where a state is, or may be. `cell` is where it was found last, or -1."""

    __slots__ = ("bucket_a", "bucket_b", "cell", "identity", "shard", "tag")

    def __init__(self, shard: int, identity: bytes, tag: int, bucket_a: int, bucket_b: int) -> None:
        self.shard = shard
        self.identity = identity
        self.tag = tag
        self.bucket_a = bucket_a  # the first cell of a bucket
        self.bucket_b = bucket_b
        self.cell = -1


class Place(Spot):
    """A spot, and the state that was read there.

    `is_new` is True if there is none: then both words are 0, `numbers` is None, and `cell` is free, or -1.
    """

    __slots__ = ("is_new", "numbers", "word_a", "word_b", "worth")

    def __init__(self, shard: int, identity: bytes, tag: int, bucket_a: int, bucket_b: int) -> None:
        super().__init__(shard, identity, tag, bucket_a, bucket_b)
        self.word_a = 0
        self.word_b = 0
        self.worth = 0
        self.is_new = True
        self.numbers: Packed | None = None


class ScopePlace:
    """The part of a place that comes from the scope of a limit. `spots` has those of keys that this process met."""

    __slots__ = ("first", "name", "second", "spots", "tag")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.spots: dict[str, Spot] = {}
        self.tag = name[0]
        self.first = int.from_bytes(name[:4], "little")
        self.second = int.from_bytes(name[4:], "little")


class CellChange:
    """A state that is to be written at a place."""

    __slots__ = ("numbers", "place", "worth")

    def __init__(self, place: Place, numbers: Packed, worth: int) -> None:
        self.place = place
        self.numbers = numbers
        self.worth = worth


def _use(worth: int) -> int:
    """Return the use of a state that may be dropped. One that has denied until now has used all, or nearly all."""
    return worth if worth >= 0 else MAX_COUNT


class Cells:
    """The cells of one mapped zone: `buckets` and `cells` are numbers of a shard, `tags_at` and `cells_at` offsets."""

    __slots__ = (
        "_blocks",
        "_blocks_at",
        "_missed",
        "buckets",
        "cells",
        "cells_at",
        "memory",
        "plain_digest",
        "scopes",
        "tags_at",
    )

    def __init__(self, memory: mmap, geometry: Geometry, salt: bytes) -> None:
        self.memory = memory
        self.buckets = geometry.buckets
        self._blocks = geometry.blocks
        self.cells = geometry.cells
        self.tags_at = geometry.tags_at
        self.cells_at = geometry.cells_at
        self._blocks_at = geometry.blocks_at
        self.plain_digest = blake2b(digest_size=16, salt=salt)
        self.scopes: dict[str, ScopePlace] = {}
        self._missed = 0  # keys whose spots were looked up and not known

    # Places

    def digest(self, key: str) -> bytes:
        """Return the digest of a key."""
        digest = self.plain_digest.copy()
        digest.update(key.encode("utf-8", "surrogatepass"))
        return digest.digest()

    def shard_of(self, key: str) -> int:
        """Return the shard that a key belongs to."""
        shard: int = _four(self.digest(key))[0] & (SHARDS - 1)
        return shard

    def scope(self, scope: str) -> ScopePlace:
        """Return what a scope adds to the places of its states."""
        found = self.scopes.get(scope)
        if found is None:
            digest = self.plain_digest.copy()
            digest.update(b"scope " + scope.encode("utf-8", "surrogatepass"))
            found = ScopePlace(digest.digest()[:8])
            if len(self.scopes) >= 10_000:  # limits that are computed for each client
                self.scopes.clear()
            self.scopes[scope] = found
        return found

    def spot(self, key: str, scope: ScopePlace) -> Spot:
        """Return the spot of a state, and remember it if there is room. The fast path looks in `spots` first.

        Only a thread that has the lock of its shard may change a spot.
        """
        found = scope.spots.get(key)
        if found is None:
            place = self.place(self.digest(key), scope)
            found = Spot(place.shard, place.identity, place.tag, place.bucket_a, place.bucket_b)
            if len(key) > LONGEST_KEY:
                return found
            self._missed += 1
            if self._missed <= MOST_SPOTS:
                scope.spots[key] = found
            elif self._missed > FORGET_AFTER:  # other keys may be hot now
                self._missed = 0
                for each in list(self.scopes.values()):  # another thread may add one
                    each.spots.clear()
        return found

    def place(self, digest: bytes, scope: ScopePlace) -> Place:
        """Return the place of a state, which is not looked up yet."""
        zero, first, second, _ = _four(digest)
        shard: int = zero & (SHARDS - 1)
        start = shard * self.cells
        return Place(
            shard,
            digest + scope.name,
            (zero >> 8 ^ scope.tag) & 255 or 1,
            start + (first ^ scope.first) % self.buckets * BUCKET,
            start + (second ^ scope.second) % self.buckets * BUCKET,
        )

    def known_place(self, key: str, scope: ScopePlace) -> Place:
        """Return the place of a state whose spot may be known. It is not looked up yet."""
        spot = self.spot(key, scope)
        return Place(spot.shard, spot.identity, spot.tag, spot.bucket_a, spot.bucket_b)

    def overflow_place(self, shard: int, scope: ScopePlace) -> Place:
        """Return the place of the overflow state of a scope: in the last bucket of the shard."""
        last = shard * self.cells + self.buckets * BUCKET
        return Place(shard, bytes(16) + scope.name, scope.tag or 1, last, last)

    def find(self, place: Place) -> bool:
        """Look a place up, and read its state. Return False if there is none."""
        place.is_new = self.locate(place) < 0
        if place.is_new:
            place.word_a = place.word_b = place.worth = 0
            place.numbers = None
            return False
        self._read(place)
        return True

    def locate(self, spot: Spot) -> int:
        """Look a spot up. Return its cell, or -1 if it has none."""
        spot.cell = self._found_in(spot, spot.bucket_a)
        if spot.cell < 0:
            spot.cell = self._found_in(spot, spot.bucket_b)
        return spot.cell

    def _found_in(self, spot: Spot, bucket: int) -> int:
        memory = self.memory
        at = self.tags_at + bucket
        tags = memory[at : at + BUCKET]
        found = tags.find(spot.tag)
        while found >= 0:
            at = self.cells_at + (bucket + found) * CELL + IDENTITY
            if memory[at : at + 24] == spot.identity:
                return bucket + found
            found = tags.find(spot.tag, found + 1)
        return -1

    def _read(self, place: Place) -> None:
        at = self.cells_at + place.cell * CELL
        place.word_a, _, place.word_b = _words(self.memory, at + WORD_A)
        word = place.word_a
        if word < place.word_b:
            word = place.word_b
            at += COPY_B
        n = word & 255
        if n <= INLINE:
            values: tuple[int, ...] = COPIES[n].unpack_from(self.memory, at)
            place.worth = values[0]
            place.numbers = values[1:]
        else:
            place.worth, first, _, count = self._chain_at(at)
            place.numbers = self._chained(first, count)

    def _chain_at(self, at: int) -> tuple[int, int, int, int]:
        """Return the worth, the first block, and the numbers of blocks and of numbers, of a copy. Raises Damaged.

        Whatever the bytes are, nobody must follow a chain for ever: that would be with the lock of the shard.
        """
        worth, _, first, blocks, count = _chain(self.memory, at)
        if not 0 < blocks <= self._blocks or (count + IN_BLOCK - 1) // IN_BLOCK != blocks:
            raise Damaged(f"a state of {count} numbers has {blocks} blocks")
        return worth, first, blocks, count

    def _chained(self, first: int, count: int) -> Packed:
        memory, block = self.memory, first
        if count <= IN_BLOCK:
            return numbers_struct(count).unpack_from(memory, self._block_at(block) + 8)
        parts: list[bytes] = []
        for _ in range((count + IN_BLOCK - 1) // IN_BLOCK):
            at = self._block_at(block)
            parts.append(memory[at + 8 : at + BLOCK])
            block = _one(memory, at)[0]
        return numbers_struct(count).unpack_from(b"".join(parts))

    # Writing

    def write(self, place: Place, numbers: Packed, worth: int) -> None:
        """Write one state: at once, or not at all. Raises ZoneFull if there are too few blocks for it."""
        if len(numbers) > INLINE or place.word_a & 255 == CHAINED or place.word_b & 255 == CHAINED:
            self._write_chained(place, numbers, worth, self.memory[self.mark_at(place.shard)] == CLEAN)
        else:
            self._write_inline(place, numbers, worth)

    def _write_inline(self, place: Place, numbers: Packed, worth: int) -> None:
        n = len(numbers)
        memory, cell = self.memory, place.cell
        at = self.cells_at + cell * CELL
        if place.is_new:
            memory[at + IDENTITY : at + COPY_B] = place.identity
            ONE.pack_into(memory, at + WORD_B, 0)
            WRITTEN[n].pack_into(memory, at, worth, *numbers, 256 | n)
            memory[self.tags_at + cell] = place.tag  # from here on the cell is in use
        elif place.word_a < place.word_b:
            WRITTEN[n].pack_into(memory, at, worth, *numbers, ((place.word_b >> 8) + 1) << 8 | n)
        else:
            WRITTEN[n].pack_into(memory, at + COPY_B, worth, *numbers, ((place.word_a >> 8) + 1) << 8 | n)

    def _write_chained(self, place: Place, numbers: Packed, worth: int, marks: bool) -> None:
        """Write a copy whose numbers are, or were, in blocks. `marks` is False if the shard is marked already."""
        memory, cell = self.memory, place.cell
        at = self.cells_at + cell * CELL
        is_to_a = place.is_new or place.word_a < place.word_b
        copy_at, word_at, old = (at, at + WORD_A, place.word_a) if is_to_a else (at + COPY_B, at + WORD_B, place.word_b)
        needed = (len(numbers) + IN_BLOCK - 1) // IN_BLOCK if len(numbers) > INLINE else 0
        first = had = 0
        if not place.is_new and old & 255 == CHAINED:
            _, first, had, _ = self._chain_at(copy_at)
        marks = marks and (had > 0 or needed > 0)
        if marks:
            memory[self.mark_at(place.shard)] = MOVING
        if had:
            ONE.pack_into(memory, word_at, 0)  # repair must not follow the chain of a copy that is half written
        if had != needed:
            if had:
                self._push(place.shard, first, had)
            first = self._pop(place.shard, needed) if needed else 0
        word = ((max(place.word_a, place.word_b) >> 8) + 1) << 8
        if needed:
            self._fill(first, numbers)
        if place.is_new:
            memory[at + IDENTITY : at + COPY_B] = place.identity
            ONE.pack_into(memory, at + WORD_B, 0)
        if needed:
            CHAIN_WRITTEN.pack_into(memory, copy_at, worth, numbers[0], first, needed, len(numbers), word | CHAINED)
        else:
            WRITTEN[len(numbers)].pack_into(memory, copy_at, worth, *numbers, word | len(numbers))
        if place.is_new:
            memory[self.tags_at + cell] = place.tag
        if marks:
            memory[self.mark_at(place.shard)] = CLEAN

    def _fill(self, first: int, numbers: Packed) -> None:
        memory, block = self.memory, first
        if len(numbers) <= IN_BLOCK:
            numbers_struct(len(numbers)).pack_into(memory, self._block_at(block) + 8, *numbers)
            return
        data = numbers_struct(len(numbers)).pack(*numbers)
        for begin in range(0, len(data), BLOCK - 8):
            part = data[begin : begin + BLOCK - 8]
            at = self._block_at(block)
            memory[at + 8 : at + 8 + len(part)] = part
            block = _one(memory, at)[0]

    def new_blocks(self, place: Place, count: int) -> int:
        """Return how many free blocks a write of so many numbers takes, beside those of the copy that it fills."""
        needed = (count + IN_BLOCK - 1) // IN_BLOCK if count > INLINE else 0
        at, word = self.cells_at + place.cell * CELL, place.word_a
        if place.word_a > place.word_b:
            at, word = at + COPY_B, place.word_b
        return max(needed - self._chain_at(at)[2], 0) if word & 255 == CHAINED else needed

    def write_together(self, changes: list[CellChange]) -> None:
        """Write several states: all of them, or none if the process is killed meanwhile."""
        if len(changes) == 1:
            self.write(changes[0].place, changes[0].numbers, changes[0].worth)
            return
        if len(changes) > ENTRIES:
            raise ZoneFull(f"a decision changes at most {ENTRIES} states in shared memory, and this one {len(changes)}")
        memory = self.memory
        shards = sorted({change.place.shard for change in changes})
        entries: list[int] = [len(changes)]
        for change in changes:
            place = change.place
            entries.append(place.cell)
            entries.append(0 if place.is_new else max(place.word_a, place.word_b))
        numbers_struct(len(entries)).pack_into(memory, self.head_at(shards[0]) + JOURNAL, *entries)
        for shard in shards[1:]:
            memory[self.mark_at(shard)] = LINKED + shards[0]
        mark_at = self.mark_at(shards[0])
        memory[mark_at] = OPEN
        for change in changes:
            self.write(change.place, change.numbers, change.worth)
        memory[mark_at] = CLOSED  # from here on all of them count
        for shard in shards[1:]:
            memory[self.mark_at(shard)] = CLEAN
        memory[mark_at] = CLEAN

    def write_copies(self, shard: int, entries: list[int], targets: list[int], copies: list[tuple[int, ...]]) -> None:
        """Write several known states of one shard, none of which has blocks: all of them, or none.

        `entries` are those of the journal. A copy is a worth and numbers, and has its offset in `targets`.
        """
        memory, head = self.memory, HEADER + shard * HEAD
        numbers_struct(len(entries)).pack_into(memory, head + JOURNAL, *entries)
        memory[head + MARK] = OPEN
        for i, copy in enumerate(copies):
            n = len(copy) - 1
            WRITTEN[n].pack_into(memory, targets[i], *copy, ((entries[i + i + 2] >> 8) + 1) << 8 | n)
        memory[head + MARK] = CLEAN  # from here on all of them count

    def remove(self, cell: int) -> None:
        """Free a cell, and its blocks."""
        memory = self.memory
        at = self.cells_at + cell * CELL
        word_a, _, word_b = _words(memory, at + WORD_A)
        if word_a & 255 != CHAINED and word_b & 255 != CHAINED:
            memory[self.tags_at + cell] = 0
            return
        shard = cell // self.cells
        memory[self.mark_at(shard)] = MOVING
        memory[self.tags_at + cell] = 0
        for word, copy_at in ((word_a, at), (word_b, at + COPY_B)):
            if word & 255 == CHAINED:
                _, first, had, _ = self._chain_at(copy_at)
                self._push(shard, first, had)
        memory[self.mark_at(shard)] = CLEAN

    # Room

    def make_room(self, place: Place, spare: set[int], now: int, is_peek: bool) -> bool:
        """Choose the cell of a new state: a free one of the emptier bucket, an expired one, or the least used one.

        A state that denies, and a cell in `spare`, are left alone. A peek only looks. Return False if none is left.
        """
        memory, chosen, least = self.memory, -1, -1
        first, second = place.bucket_a, place.bucket_b
        if self._free_in(second) > self._free_in(first):
            first, second = second, first
        cells = [*range(first, first + BUCKET), *range(second, second + BUCKET)]
        cells = [cell for cell in cells if cell not in spare]
        for cell in cells:
            if not memory[self.tags_at + cell]:
                place.cell = cell
                return True
        for cell in cells:
            expires, worth = self._judged(cell)
            if expires < now:
                chosen, least = cell, -1
                break
            if -worth <= now and (chosen < 0 or _use(worth) < least):
                chosen, least = cell, _use(worth)
        if chosen < 0:
            return False
        place.cell = chosen
        if not is_peek:
            if self._judged(chosen)[0] >= now:
                self.count(place.shard, EVICTED)
            self.remove(chosen)
        return True

    def _free_in(self, bucket: int) -> int:
        return self.memory[self.tags_at + bucket : self.tags_at + bucket + BUCKET].count(0)

    def make_blocks(self, shard: int, needed: int, spare: set[int], now: int) -> bool:
        """See to it that so many blocks are free: drop expired states, then the least used that do not deny.

        Return False if there are still too few.
        """
        if self._has_free(shard, needed):
            return True
        memory, begin = self.memory, shard * self.cells
        hand: int = _one(memory, self.head_at(shard) + HAND)[0]
        looked: list[tuple[int, int]] = []
        for _ in range(min(LOOKS, self.cells)):
            hand = (hand + 1) % self.cells
            cell = begin + hand
            if not memory[self.tags_at + cell] or cell in spare or not self._is_chained(cell):
                continue
            expires, worth = self._judged(cell)
            if expires < now:
                self.remove(cell)
            elif -worth <= now:
                looked.append((_use(worth), cell))
        ONE.pack_into(memory, self.head_at(shard) + HAND, hand)
        looked.sort()
        for _, cell in looked:
            if self._has_free(shard, needed):
                return True
            self.count(shard, EVICTED)
            self.remove(cell)
        return self._has_free(shard, needed)

    def _judged(self, cell: int) -> tuple[int, int]:
        """Return `expires` and the worth of a state."""
        memory, at = self.memory, self.cells_at + cell * CELL
        word_a, _, word_b = _words(memory, at + WORD_A)
        if word_a < word_b:
            at += COPY_B
        worth, expires = _two(memory, at)
        return expires, worth

    def _is_chained(self, cell: int) -> bool:
        word_a, _, word_b = _words(self.memory, self.cells_at + cell * CELL + WORD_A)
        return CHAINED in (word_a & 255, word_b & 255)

    # Blocks: a list of those that are free, for each shard

    def _block_at(self, block: int) -> int:
        if not 0 < block <= SHARDS * self._blocks:  # outside of the blocks there may be a lock
            raise Damaged(f"there is no block {block}")
        return self._blocks_at + (block - 1) * BLOCK

    def _has_free(self, shard: int, needed: int) -> bool:
        memory = self.memory
        block: int = _one(memory, self.head_at(shard) + FREE)[0]
        for _ in range(needed):
            if not block:
                return False
            block = _one(memory, self._block_at(block))[0]
        return True

    def _pop(self, shard: int, needed: int) -> int:
        """Take blocks from the free ones, chained. Return the first."""
        memory, free_at = self.memory, self.head_at(shard) + FREE
        first: int = _one(memory, free_at)[0]
        block = first
        for _ in range(needed - 1):
            if block:
                block = _one(memory, self._block_at(block))[0]
        if not block:
            raise ZoneFull
        ONE.pack_into(memory, free_at, _one(memory, self._block_at(block))[0])
        return first

    def _push(self, shard: int, first: int, count: int) -> None:
        memory, free_at, last = self.memory, self.head_at(shard) + FREE, first
        for _ in range(count - 1):
            last = _one(memory, self._block_at(last))[0]
        ONE.pack_into(memory, self._block_at(last), _one(memory, free_at)[0])
        ONE.pack_into(memory, free_at, first)

    def free_all(self, shard: int) -> None:
        """Find the free blocks of a shard anew: those that no copy has."""
        memory, begin = self.memory, shard * self._blocks + 1
        used = bytearray(self._blocks)
        for cell in range(shard * self.cells, (shard + 1) * self.cells):
            if not memory[self.tags_at + cell]:
                continue
            at = self.cells_at + cell * CELL
            word_a, _, word_b = _words(memory, at + WORD_A)
            for word, copy_at in ((word_a, at), (word_b, at + COPY_B)):
                if word & 255 == CHAINED:
                    _, block, count, _ = self._chain_at(copy_at)
                    for _ in range(count):
                        at = self._block_at(block)
                        used[block - begin] = 1
                        block = _one(memory, at)[0]
        free = 0
        for i in range(self._blocks - 1, -1, -1):
            if not used[i]:
                ONE.pack_into(memory, self._block_at(begin + i), free)
                free = begin + i
        ONE.pack_into(memory, self.head_at(shard) + FREE, free)

    # Marks

    def head_at(self, shard: int) -> int:
        """Return the offset of the head of a shard."""
        return HEADER + shard * HEAD

    def mark_at(self, shard: int) -> int:
        """Return the offset of the mark of a shard."""
        return HEADER + shard * HEAD + MARK

    def count(self, shard: int, counter: int) -> None:
        """Add 1 to a counter of a shard."""
        at = self.head_at(shard) + counter
        ONE.pack_into(self.memory, at, _one(self.memory, at)[0] + 1)

    def counted(self, counter: int) -> int:
        """Return the sum of a counter over all shards. Needs no lock."""
        total = 0
        for shard in range(SHARDS):
            total += _one(self.memory, self.head_at(shard) + counter)[0]
        return total

    @property
    def used(self) -> int:
        """The number of cells that are in use, expired ones included. Needs no lock."""
        return self.total - self.memory[self.tags_at : self.cells_at].count(0)

    @property
    def total(self) -> int:
        """The number of cells."""
        return SHARDS * self.cells

    def repair(self, shard: int) -> None:
        """Repair a shard that is marked, and is not linked to another: the process that marked it was killed."""
        memory, mark_at = self.memory, self.mark_at(shard)
        mark = memory[mark_at]
        if mark == CLEAN:
            return
        self.count(shard, RECOVERED)
        linked = [other for other in range(SHARDS) if memory[self.mark_at(other)] == LINKED + shard]
        if mark == OPEN:
            at = self.head_at(shard) + JOURNAL
            number: int = _one(memory, at)[0]
            if not 0 <= number <= ENTRIES:
                raise Damaged(f"a journal has {number} entries")
            for entry in range(number):
                cell, before = _two(memory, at + 8 + entry * 16)
                self._take_back(cell, before)
            for other in linked:
                self.free_all(other)
        if mark != CLOSED:
            self.free_all(shard)
        memory[mark_at] = CLOSED  # nothing is to be taken back any more
        for other in linked:
            memory[self.mark_at(other)] = CLEAN
        memory[mark_at] = CLEAN

    def _take_back(self, cell: int, before: int) -> None:
        if not 0 <= cell < self.total:
            raise Damaged(f"there is no cell {cell}")
        memory, at = self.memory, self.cells_at + cell * CELL
        if not before:
            memory[self.tags_at + cell] = 0
            return
        word_a, _, word_b = _words(memory, at + WORD_A)
        if word_a > before:
            ONE.pack_into(memory, at + WORD_A, 0)
        if word_b > before:
            ONE.pack_into(memory, at + WORD_B, 0)


_structs: Final[dict[int, Struct]] = {}


def numbers_struct(count: int) -> Struct:
    """Return the struct of so many numbers."""
    found = _structs.get(count)
    if found is None:
        found = Struct(f"@{count}q")
        if count <= 512:
            _structs[count] = found
    return found
