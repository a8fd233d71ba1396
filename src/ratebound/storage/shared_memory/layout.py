"""The layout of a zone, in bytes.

A zone has a header, 16 shards, and for each shard cells and blocks. A key belongs to one shard, and each shard has a
lock: a shard is a small zone by itself.

- A **head** of a shard has its mark (see cells.py), its lock, the first of its free blocks, its counters and its
  journal.
- A **cell** has one state, twice: two copies with a word each. The copy with the larger word is the state. The other
  one is written next, its word last, so a process that is killed while it writes leaves the state as it was. Between
  the copies is the identity: digests of the key and of the scope.
- Each cell has a **tag**, one byte of the hash of its identity; 0 means that the cell is free. Cells are in buckets of
  eight, and an identity may be in two buckets: a look at eight tags finds it, or shows that it is not there.
- A **block** has numbers of a state that is too large for a copy. Blocks are chained.

A word is `sequence << 8 | n`: n numbers are in the copy, or CHAINED if they are in blocks. The first number of a copy
is its worth, which says whether the state may be dropped to make room (see `zone_states.worth_of`).
"""

from struct import Struct
from typing import Final, NamedTuple

MAGIC: Final = b"ratebound zone\r\n"
VERSION: Final = 1

SHARDS: Final = 16
HEADER: Final = 4096
HEAD: Final = 8192  # of a shard
BUCKET: Final = 8  # cells
CELL: Final = 168
BLOCK: Final = 256

# The header: magic, version, size, buckets and blocks of a shard, kind of locks, bytes of a lock, anchor of the clock,
# salt of the digests, the system's id of its last start, the namespace of process ids.
HEADER_FIELDS: Final = Struct("@16s7q16s36s4xq")

# Offsets in the head of a shard.
MARK: Final = 0
LOCK: Final = 64
FREE: Final = 192  # the first free block, counted from 1; 0 if there is none
HAND: Final = 200  # the cell at which the next search for room begins
EVICTED: Final = 208
OVERFLOWED: Final = 216
RECOVERED: Final = 224
JOURNAL: Final = 256  # the number of entries, then for each entry a cell and its word before
ENTRIES: Final = 490

# Offsets in a cell.
WORD_A: Final = 64
IDENTITY: Final = 72
COPY_B: Final = 96
WORD_B: Final = 160

INLINE: Final = 7  # numbers that fit into a copy, beside its worth
CHAINED: Final = 255
IN_BLOCK: Final = 31  # numbers in a block, beside the number of the next one

ONE: Final = Struct("@q")
TWO: Final = Struct("@2q")
FOUR: Final = Struct("@4I")  # a digest as numbers
WORDS: Final = Struct("@q24s64xq")  # from WORD_A: both words, and the identity between them
COPIES: Final = [Struct(f"@{n + 1}q") for n in range(INLINE + 1)]  # the worth and n numbers
WRITTEN: Final = [Struct(f"@{n + 1}q{8 * (INLINE - n)}xq") for n in range(INLINE + 1)]  # the same, and the word at last
CHAIN: Final = Struct("@5q")  # the worth, `expires`, first block, number of blocks, number of numbers
CHAIN_WRITTEN: Final = Struct("@5q24xq")


class Geometry(NamedTuple):
    """The parts of a zone: its size, and the numbers of buckets and blocks of a shard."""

    size: int
    buckets: int  # without the one for overflow states, which is behind them
    blocks: int

    @property
    def cells(self) -> int:
        """The number of cells of a shard."""
        return (self.buckets + 1) * BUCKET

    @property
    def tags_at(self) -> int:
        """The offset of the tags."""
        return HEADER + SHARDS * HEAD

    @property
    def cells_at(self) -> int:
        """The offset of the cells."""
        return self.tags_at + SHARDS * self.cells

    @property
    def blocks_at(self) -> int:
        """The offset of the blocks."""
        return self.cells_at + SHARDS * self.cells * CELL


LEAST_SIZE: Final = 1 << 20
MOST_SIZE: Final = 1 << 36


def divided(size: int) -> Geometry:
    """Return the parts of a zone of so many bytes: a third for cells, the rest for blocks."""
    room = (size - HEADER - SHARDS * HEAD) // SHARDS
    buckets = room // 3 // (BUCKET * (CELL + 1)) - 1
    blocks = (room - (buckets + 1) * BUCKET * (CELL + 1)) // BLOCK
    return Geometry(size, buckets, blocks)
