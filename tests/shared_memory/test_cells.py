"""The layout of a zone, and cells that are written, chained, dropped and found again."""

from collections.abc import Iterator

import pytest

from ratebound.storage.shared_memory.cells import CellChange, Cells, Place
from ratebound.storage.shared_memory.layout import (
    BLOCK,
    BUCKET,
    CELL,
    COPY_B,
    ENTRIES,
    HEAD,
    HEADER,
    HEADER_FIELDS,
    IDENTITY,
    IN_BLOCK,
    INLINE,
    JOURNAL,
    LEAST_SIZE,
    LOCK,
    SHARDS,
    WORD_A,
    WORD_B,
    divided,
)
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.testing import FakeClock
from tests.shared_memory.room import cells_of, check_blocks
from tests.zones import fresh_zone

LENGTHS = [1, 3, INLINE - 1, INLINE, INLINE + 1, IN_BLOCK, IN_BLOCK + 1, 2 * IN_BLOCK, 3 * IN_BLOCK + 5]


@pytest.mark.parametrize("size", [LEAST_SIZE, LEAST_SIZE + 1, 32 << 20, (32 << 20) + 4_097, 1 << 36])
def test_the_parts_of_a_zone_fill_it_and_do_not_overlap(size: int) -> None:
    zone = divided(size)
    assert zone.buckets > 8
    assert zone.blocks > 100
    assert HEADER_FIELDS.size <= HEADER
    assert zone.tags_at == HEADER + SHARDS * HEAD
    assert zone.cells_at == zone.tags_at + SHARDS * zone.cells
    assert zone.blocks_at == zone.cells_at + SHARDS * zone.cells * CELL
    end = zone.blocks_at + SHARDS * zone.blocks * BLOCK
    assert size - SHARDS * (BLOCK + 1) < end <= size
    assert zone.cells % BUCKET == 0
    share = SHARDS * zone.cells * (CELL + 1) / size
    assert 0.2 < share <= 1 / 3


def test_the_parts_of_a_head_and_of_a_cell_do_not_overlap() -> None:
    assert LOCK + 64 <= JOURNAL
    assert JOURNAL + 8 + 16 * ENTRIES <= HEAD
    assert WORD_A == 8 * (INLINE + 1)
    assert IDENTITY == WORD_A + 8
    assert COPY_B == IDENTITY + 24
    assert WORD_B == COPY_B + 8 * (INLINE + 1)
    assert CELL == WORD_B + 8
    assert BLOCK == 8 + 8 * IN_BLOCK


@pytest.fixture
def storage(clock: FakeClock) -> Iterator[SharedMemoryStorage]:
    with fresh_zone(clock=clock) as storage:
        yield storage
        check_blocks(storage)


def place(cells: Cells, key: str = "k") -> Place:
    return cells.place(cells.digest(key), cells.scope("scope"))


def written(cells: Cells, key: str, numbers: tuple[int, ...], worth: int = 0) -> Place:
    """Write a state as the zone does, and read it again."""
    found = place(cells, key)
    if not cells.find(found):
        assert cells.make_room(found, set(), numbers[0], False)
    assert cells.make_blocks(found.shard, cells.new_blocks(found, len(numbers)), {found.cell}, numbers[0])
    cells.write(found, numbers, worth)
    again = place(cells, key)
    assert cells.find(again)
    assert (again.cell, again.numbers, again.worth) == (found.cell, numbers, worth)
    return again


@pytest.mark.parametrize("before", LENGTHS)
@pytest.mark.parametrize("after", LENGTHS)
def test_a_state_of_any_length_may_become_one_of_any_other(
    before: int, after: int, storage: SharedMemoryStorage
) -> None:
    cells = cells_of(storage)
    free = check_blocks(storage)
    for number, length in enumerate((before, after, after, before, before, 1, 1)):
        numbers = tuple(10**15 + number + i for i in range(length))
        found = written(cells, "k", numbers, number - 3)
        assert max(found.word_a, found.word_b) >> 8 == number + 1, "the sequence grows by one"
        check_blocks(storage)
    assert check_blocks(storage) == free
    cells.remove(found.cell)
    assert not cells.find(place(cells))
    assert check_blocks(storage) == free


@pytest.mark.parametrize("length", LENGTHS)
def test_the_blocks_of_a_state_that_is_removed_are_free(length: int, storage: SharedMemoryStorage) -> None:
    cells = cells_of(storage)
    free = check_blocks(storage)
    for _ in range(2):
        found = written(cells, "k", tuple(range(5, 5 + length)))
    used = 2 * -(-length // IN_BLOCK) if length > INLINE else 0
    assert check_blocks(storage) == free - used
    cells.remove(found.cell)
    assert check_blocks(storage) == free


def test_states_that_are_written_together_are_all_written(storage: SharedMemoryStorage) -> None:
    cells = cells_of(storage)
    keys = [f"key {number}" for number in range(40)]
    for number, length in enumerate((1, 40, 3, 70, 2)):
        changes: list[CellChange] = []
        spare: set[int] = set()
        for key in keys:
            found = place(cells, key)
            if not cells.find(found):
                assert cells.make_room(found, spare, 1, False)
            spare.add(found.cell)
            changes.append(CellChange(found, (number + 1,) * length, number))
        cells.write_together(changes)
        for key in keys:
            found = place(cells, key)
            assert cells.find(found)
            assert (found.numbers, found.worth) == ((number + 1,) * length, number)
        check_blocks(storage)
    assert len({change.place.shard for change in changes}) > 4


def test_a_cell_that_is_used_again_starts_anew(storage: SharedMemoryStorage) -> None:
    cells = cells_of(storage)
    for _ in range(5):
        found = written(cells, "k", (9,) * 50)
    cells.remove(found.cell)
    again = written(cells, "k", (9, 9))
    assert again.cell == found.cell
    assert (again.word_a, again.word_b) == (1 << 8 | 2, 0)


def test_equal_keys_of_other_scopes_and_long_keys_have_states_of_their_own(storage: SharedMemoryStorage) -> None:
    cells = cells_of(storage)
    keys = ["", "k", "k" * 100_000, "k" * 100_001, "\ud800", "scope"]
    for number, key in enumerate(keys):
        written(cells, key, (10**15, number))
    for number, key in enumerate(keys):
        found = place(cells, key)
        assert cells.find(found)
        assert found.numbers == (10**15, number)
        assert not cells.find(cells.place(cells.digest(key), cells.scope("other")))
        assert cells.shard_of(key) == found.shard == found.cell // cells.cells
