"""What a zone has stored, and zones that are full."""

from typing import NamedTuple

from ratebound.limit import Limit
from ratebound.notation import parse_limit
from ratebound.storage.shared_memory.cells import CLEAN, Cells, Place
from ratebound.storage.shared_memory.layout import (
    BUCKET,
    CELL,
    CHAIN,
    CHAINED,
    COPIES,
    COPY_B,
    EVICTED,
    FREE,
    ONE,
    OVERFLOWED,
    SHARDS,
    WORD_A,
    WORDS,
)
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.testing import ask

FILLER = "1/day fixed-window as filler"


class Stored(NamedTuple):
    """The state of a key: its cell, its worth and its numbers."""

    cell: int
    worth: int
    numbers: tuple[int, ...]


def cells_of(storage: SharedMemoryStorage) -> Cells:
    return storage.states.zone.cells


def place_of(storage: SharedMemoryStorage, key: str, limit: Limit | str) -> Place:
    cells, limit = cells_of(storage), parse_limit(limit) if isinstance(limit, str) else limit
    return cells.place(cells.digest(key), cells.scope(limit.scope))


def stored(storage: SharedMemoryStorage, key: str, limit: Limit | str) -> Stored | None:
    """The state of a key as it is in the zone; None if there is none."""
    place = place_of(storage, key, limit)
    if not cells_of(storage).find(place):
        return None
    assert place.numbers is not None
    return Stored(place.cell, place.worth, tuple(place.numbers))


def counted(storage: SharedMemoryStorage, counter: int) -> int:
    """The sum of a counter over all shards."""
    cells = cells_of(storage)
    return sum(ONE.unpack_from(cells.memory, cells.head_at(shard) + counter)[0] for shard in range(SHARDS))


def evicted(storage: SharedMemoryStorage) -> int:
    return counted(storage, EVICTED)


def overflowed(storage: SharedMemoryStorage) -> int:
    return counted(storage, OVERFLOWED)


def free_cells(storage: SharedMemoryStorage) -> list[int]:
    """The cells that no state has, but those for overflow states."""
    cells = cells_of(storage)
    return [
        cell
        for shard in range(SHARDS)
        for cell in range(shard * cells.cells, shard * cells.cells + cells.buckets * BUCKET)
        if not cells.memory[cells.tags_at + cell]
    ]


def fill(storage: SharedMemoryStorage, text: str = FILLER) -> list[str]:
    """Spend for new keys until no cell is free. Return the keys."""
    keys: list[str] = []
    while free_cells(storage):
        assert len(keys) < 100_000, "the zone does not become full"
        for _ in range(500):
            keys.append(f"filler {len(keys)}")
            ask(storage, keys[-1], text)
    return keys


def check_blocks(storage: SharedMemoryStorage) -> int:
    """Check that every block is in one chain: of a copy, or of the free blocks. Return how many are free."""
    cells, found = cells_of(storage), 0
    memory, blocks = cells.memory, cells._blocks
    for shard in range(SHARDS):
        assert memory[cells.mark_at(shard)] == CLEAN
        seen: list[int] = []
        block: int = ONE.unpack_from(memory, cells.head_at(shard) + FREE)[0]
        while block:
            assert len(seen) <= blocks, "the free blocks are a circle"
            seen.append(block)
            block = ONE.unpack_from(memory, cells._block_at(block))[0]
        found += len(seen)
        for cell in range(shard * cells.cells, (shard + 1) * cells.cells):
            if not memory[cells.tags_at + cell]:
                continue
            at = cells.cells_at + cell * CELL
            word_a, _, word_b = WORDS.unpack_from(memory, at + WORD_A)
            assert word_a != word_b
            for word, copy_at in ((word_a, at), (word_b, at + COPY_B)):
                if word & 255 == CHAINED:
                    _, expires, block, length, count = CHAIN.unpack_from(memory, copy_at)
                    assert (length - 1) * 31 < count <= length * 31
                    if word == max(word_a, word_b):
                        assert ONE.unpack_from(memory, cells._block_at(block) + 8)[0] == expires
                    for _ in range(length):
                        seen.append(block)
                        block = ONE.unpack_from(memory, cells._block_at(block))[0]
                elif word:
                    assert COPIES[word & 255].unpack_from(memory, copy_at)
        first = shard * blocks + 1
        assert sorted(seen) == list(range(first, first + blocks)), "each block is in one chain"
    return found
