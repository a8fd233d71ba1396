"""A zone that something else has written to: every call ends, with an answer or with a StorageError that says so."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ratebound import Limiter, StorageError
from ratebound.storage.shared_memory.cells import LINKED, OPEN, Cells
from ratebound.storage.shared_memory.layout import (
    CELL,
    CHAIN,
    CHAINED,
    COPY_B,
    FREE,
    HEAD,
    HEADER,
    JOURNAL,
    LOCK,
    ONE,
    SHARDS,
    WORD_A,
    WORD_B,
)
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from tests.shared_memory.kinds_of_locks import LOCKS

LOG = "50/hour sliding-log"
HUGE = 1 << 58


@pytest.fixture(params=LOCKS)
def storage(tmp_path: Path, request: pytest.FixtureRequest) -> SharedMemoryStorage:
    return SharedMemoryStorage("damaged", size=1 << 20, directory=str(tmp_path), locks=request.param)


def chained_copies(cells: Cells) -> list[int]:
    """Return the offsets of all copies that have blocks."""
    found = []
    for cell in range(cells.total):
        at = cells.cells_at + cell * CELL
        if cells.memory[cells.tags_at + cell]:
            copies = ((at, at + WORD_A), (at + COPY_B, at + WORD_B))
            found += [copy for copy, word in copies if ONE.unpack_from(cells.memory, word)[0] & 255 == CHAINED]
    return found


def with_chain(cells: Cells, **fields: int) -> None:
    names = ("worth", "expires", "first", "blocks", "count")
    for at in chained_copies(cells):
        chain = dict(zip(names, CHAIN.unpack_from(cells.memory, at), strict=True))
        CHAIN.pack_into(cells.memory, at, *{**chain, **fields}.values())


def with_loops(cells: Cells) -> None:
    """Let every block be followed by itself, and every chain be endless."""
    for at in chained_copies(cells):
        _, _, first, *_ = CHAIN.unpack_from(cells.memory, at)
        ONE.pack_into(cells.memory, cells.cells_at + cells.total * CELL + (first - 1) * 256, first)
    with_chain(cells, blocks=HUGE, count=HUGE * 31)


def with_open_journals(cells: Cells) -> None:
    for shard in range(SHARDS):
        ONE.pack_into(cells.memory, cells.head_at(shard) + JOURNAL, HUGE)
        cells.memory[cells.mark_at(shard)] = OPEN


def with_marks(cells: Cells) -> None:
    for shard in range(SHARDS):
        cells.memory[cells.mark_at(shard)] = LINKED + 200


def with_no_free_block(cells: Cells) -> None:
    for shard in range(SHARDS):
        ONE.pack_into(cells.memory, cells.head_at(shard) + FREE, -5)
    with_chain(cells, first=-7)


DAMAGES: dict[str, Callable[[Cells], None]] = {
    "endless chains": with_loops,
    "chains of a negative length": lambda cells: with_chain(cells, blocks=-1, count=-31),
    "chains that begin nowhere": lambda cells: with_chain(cells, first=HUGE),
    "no free blocks": with_no_free_block,
    "endless journals": with_open_journals,
    "marks that nobody sets": with_marks,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_zone_is_an_error_that_says_what_to_run(damage: str, storage: SharedMemoryStorage) -> None:
    limiter = Limiter(LOG, storage=storage, failure="raise")
    for _ in range(9):
        limiter.hit("user:1")
    DAMAGES[damage](storage.states.zone.cells)
    with pytest.raises(StorageError, match="is damaged .* ratebound zone drop damaged"):
        limiter.hit("user:1")
    with pytest.raises(StorageError, match="is damaged"):
        storage.reset((("user:1", limiter.limits, 1, None, None),))


def test_the_failure_mode_answers_for_a_damaged_zone_until_it_is_dropped(storage: SharedMemoryStorage) -> None:
    limiter = Limiter(LOG, storage=storage, failure="closed")
    for _ in range(9):
        limiter.hit("user:1")
    with_chain(storage.states.zone.cells, first=HUGE)
    denied = limiter.hit("user:1")
    assert denied.degraded
    assert not denied


@pytest.mark.parametrize("seed", range(6))
def test_bytes_changed_at_random_lead_to_answers_and_storage_errors_only(
    seed: int, storage: SharedMemoryStorage
) -> None:
    draw = random.Random(seed)
    limits = ["5/minute", LOG, "5/minute sliding-counter", "5/minute fixed-window", "2 concurrent", "9/second; 50/hour"]
    limiters = [Limiter(limit, storage=storage, failure="raise") for limit in limits]
    keys = [f"user:{number}" for number in range(40)]
    for _ in range(400):
        draw.choice(limiters).hit(draw.choice(keys))
    cells = storage.states.zone.cells
    used = [cell for cell in range(cells.total) if cells.memory[cells.tags_at + cell]]
    for _ in range(200):
        at = cells.cells_at + draw.choice(used) * CELL + draw.randrange(CELL)
        if draw.random() < 0.3:
            at = HEADER + draw.randrange(cells.memory.size() - HEADER)
        in_head = (at - HEADER) % HEAD
        if at >= HEADER + SHARDS * HEAD or not LOCK <= in_head < FREE:  # the locks are the C library's
            cells.memory[at] = draw.randrange(256)
    answered = 0
    for _ in range(600):
        limiter, key = draw.choice(limiters), draw.choice(keys)
        try:
            limiter.reset(key) if draw.random() < 0.1 else limiter.hit(key, cost=draw.choice([1, 3]))
            answered += 1
        except StorageError:
            pass
    assert answered
