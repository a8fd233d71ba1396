"""What must be true of a zone in which nobody is at work."""

from ratebound.kernels.packing import Packed
from ratebound.kernels.state import UNTOUCHED
from ratebound.storage.shared_memory.cells import CLEAN, Cells, Place, ScopePlace
from ratebound.storage.shared_memory.layout import (
    BUCKET,
    CELL,
    CHAIN,
    CHAINED,
    COPY_B,
    FREE,
    IDENTITY,
    IN_BLOCK,
    INLINE,
    ONE,
    SHARDS,
    WORD_A,
    WORD_B,
    Geometry,
)

States = dict[bytes, Packed]


def states_of(cells: Cells) -> States:
    """Return all states of a zone, by their identities. The first number of each is its worth.

    A state of which nothing is left is as none.
    """
    found: States = {}
    for cell in range(SHARDS * cells.cells):
        if cells.memory[cells.tags_at + cell]:
            place = place_of(cells, cell)
            assert cells.find(place), f"cell {cell} is not found by its identity"
            assert place.cell == cell, f"cells {cell} and {place.cell} have the same identity"
            assert place.numbers is not None
            if place.numbers[0] != UNTOUCHED:
                found[place.identity] = (place.worth, *place.numbers)
    return found


def place_of(cells: Cells, cell: int) -> Place:
    """Return the place of the state in a cell, from its identity alone."""
    at = cells.cells_at + cell * CELL
    identity = cells.memory[at + IDENTITY : at + IDENTITY + 24]
    scope = ScopePlace(identity[16:])
    if identity[:16] == bytes(16):
        return cells.overflow_place(cell // cells.cells, scope)
    return cells.place(identity[:16], scope)


def check_zone(cells: Cells, geometry: Geometry) -> None:
    """Fail unless the zone is as it must be when nobody is at work, and nothing is left to repair."""
    memory = cells.memory
    for shard in range(SHARDS):
        assert memory[cells.mark_at(shard)] == CLEAN, f"shard {shard} is marked"
        blocks = _free_blocks(cells, geometry, shard)
        for cell in range(shard * cells.cells, (shard + 1) * cells.cells):
            if memory[cells.tags_at + cell]:
                blocks += _check_cell(cells, geometry, cell)
        first = shard * geometry.blocks + 1
        assert sorted(blocks) == list(range(first, first + geometry.blocks)), f"blocks of shard {shard} are not whole"


def _free_blocks(cells: Cells, geometry: Geometry, shard: int) -> list[int]:
    found: list[int] = []
    memory, blocks, blocks_at = cells.memory, geometry.blocks, geometry.blocks_at  # read once: they are computed
    block = ONE.unpack_from(memory, cells.head_at(shard) + FREE)[0]
    while block:
        found.append(block)
        assert len(found) <= blocks, f"the free blocks of shard {shard} have no end"
        block = ONE.unpack_from(memory, blocks_at + (block - 1) * 256)[0]
    return found


def _next(cells: Cells, geometry: Geometry, block: int) -> int:
    number: int = ONE.unpack_from(cells.memory, geometry.blocks_at + (block - 1) * 256)[0]
    return number


def _check_cell(cells: Cells, geometry: Geometry, cell: int) -> list[int]:
    """Check a cell in use. Return the blocks of both of its copies."""
    memory, at = cells.memory, cells.cells_at + cell * CELL
    place = place_of(cells, cell)
    assert place.tag == memory[cells.tags_at + cell], f"the tag of cell {cell} is not that of its identity"
    assert place.shard == cell // cells.cells
    assert cell - cell % BUCKET in (place.bucket_a, place.bucket_b), f"cell {cell} is in a wrong bucket"
    words = [ONE.unpack_from(memory, at + WORD_A)[0], ONE.unpack_from(memory, at + WORD_B)[0]]
    assert words[0] != words[1], f"both copies of cell {cell} have the word {words[0]}"
    blocks: list[int] = []
    for word, copy_at in zip(words, (at, at + COPY_B), strict=True):
        n = word & 255
        assert word == 0 or word >> 8 > 0
        assert n <= INLINE or n == CHAINED, f"a copy of cell {cell} has {n} numbers"
        if n != CHAINED:
            continue
        _, _, block, count, numbers = CHAIN.unpack_from(memory, copy_at)
        assert count == (numbers + IN_BLOCK - 1) // IN_BLOCK or word != max(words)
        for _ in range(count):
            blocks.append(block)
            assert 0 < block - shard_start(geometry, place.shard) <= geometry.blocks, f"cell {cell} has block {block}"
            block = _next(cells, geometry, block)
    return blocks


def shard_start(geometry: Geometry, shard: int) -> int:
    """Return the number of blocks before those of a shard."""
    return shard * geometry.blocks
