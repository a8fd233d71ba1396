"""Bounded memory that is not a bypass (law 7), in a zone of the smallest size."""

from collections.abc import Iterator

import pytest

from ratebound import Limiter, parse_limit
from ratebound.clock import SECOND
from ratebound.limit import ALGORITHMS, BUCKETS
from ratebound.notation import parse_limits
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.testing import FakeClock, ask, ask_limits, slot
from tests.shared_memory.room import FILLER, check_blocks, evicted, fill, free_cells, overflowed, stored
from tests.zones import fresh_zone

HOUR = 3600 * SECOND


@pytest.fixture
def storage(clock: FakeClock) -> Iterator[SharedMemoryStorage]:
    with fresh_zone(clock=clock) as storage:
        yield storage


def full_text(algorithm: str, count: int, name: str = "") -> str:
    burst = f"burst {count} " if algorithm in BUCKETS else ""
    return f"{count}/hour {burst}{algorithm}{f' as {name}' if name else ''}"


def flood(storage: SharedMemoryStorage, text: str, cost: int = 1) -> None:
    for number in range(4_000):
        ask(storage, f"flood {number}", text, cost)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_flood_of_keys_neither_grows_the_zone_nor_frees_an_offender(
    algorithm: str, storage: SharedMemoryStorage
) -> None:
    limiter = Limiter(full_text(algorithm, 3), storage=storage, failure="raise")
    offenders = [f"offender {number}" for number in range(20)]
    for offender in offenders:
        assert [limiter.hit(offender).allowed for _ in range(4)] == [True, True, True, False]
    size = storage.zone_name.path
    for number in range(4_000):
        assert limiter.hit(f"flood {number}")
    assert not free_cells(storage)
    assert evicted(storage) > 1_000
    assert overflowed(storage) == 0
    assert [limiter.hit(offender).allowed for offender in offenders] == [False] * 20
    with open(size, "rb") as file:
        assert file.seek(0, 2) == 1 << 20
    check_blocks(storage)


@pytest.mark.parametrize("limits", ["2/day as first; 3/day as second", "2/day as first; 3/day as second; 4/day"])
def test_limits_of_one_key_that_overflow_have_an_overflow_state_each(limits: str, storage: SharedMemoryStorage) -> None:
    fill(storage)
    assert [all(answer.allowed for answer in ask_limits(storage, "new", limits)) for _ in range(3)] == [
        True,
        True,
        False,
    ]
    assert [answer.remaining for answer in ask_limits(storage, "new", limits, mode="peek")][:2] == [0, 1]
    assert overflowed(storage) > 0


def test_a_slot_is_released_in_the_overflow_state_although_its_key_has_a_cell_meanwhile(
    storage: SharedMemoryStorage, clock: FakeClock
) -> None:
    text = "2 concurrent for 10 hours"
    keys = fill(storage, "1/hour fixed-window as filler")
    assert ask(storage, "k", text, extra=slot(1)).allowed
    assert stored(storage, "k", text) is None, "the overflow state has the slot"
    storage.reset([(key, (parse_limit("1/hour fixed-window as filler"),), 1, None, None) for key in keys])
    assert ask(storage, "k", text, extra=slot(2)).allowed
    assert stored(storage, "k", text) is not None
    group = [("k", tuple(parse_limits(text)), -1, None, [slot(number)]) for number in (1, 2)]
    storage.evaluate((group,), "force")
    assert stored(storage, "k", text) is None
    fill(storage)
    assert [ask(storage, "k", text, extra=slot(number)).allowed for number in (3, 4, 5)] == [True, True, False]


@pytest.mark.parametrize("fast", [False, True])
def test_a_state_that_a_stricter_limit_denies_is_kept(fast: bool, storage: SharedMemoryStorage) -> None:
    """A tier that allows more has spent from it, and its limit would let the state go."""
    loose, strict = "1000/day fixed-window", "5/day fixed-window"
    for _ in range(10):
        assert ask(storage, "k", loose).allowed
    if fast:
        assert not Limiter(strict, storage=storage).hit("k")
    else:
        assert not ask(storage, "k", strict).allowed
    assert ask(storage, "k", loose).allowed, "it is spent from once more"
    flood(storage, "50/day fixed-window as others", 40)
    assert evicted(storage) > 1_000
    assert not ask(storage, "k", strict).allowed


def test_a_peek_under_a_stricter_limit_keeps_nothing(storage: SharedMemoryStorage) -> None:
    ask(storage, "k", "1000/day fixed-window", 10)
    before = stored(storage, "k", "5/day fixed-window")
    assert not ask(storage, "k", "5/day fixed-window", mode="peek").allowed
    assert stored(storage, "k", "5/day fixed-window") == before


def test_a_key_whose_denial_has_just_ended_is_not_the_first_to_go(
    storage: SharedMemoryStorage, clock: FakeClock
) -> None:
    """It has used nearly all: with an empty state it could spend all of that again."""
    text = "100/day burst 100 as heavy"
    for number in range(20):
        assert ask(storage, f"heavy {number}", text, 100).allowed
    clock.now += 86_400 * SECOND // 100
    assert ask(storage, "heavy 0", text, mode="peek").allowed, "one unit has come back"
    flood(storage, "50/day fixed-window as light")
    assert evicted(storage) > 1_000
    assert [ask(storage, f"heavy {number}", text, mode="peek").remaining for number in range(20)] == [1] * 20


def test_the_least_used_key_goes_first(storage: SharedMemoryStorage) -> None:
    text = "1000/day fixed-window"
    used = {f"key {number}": 1 + number % 50 for number in range(2_500)}
    for key, cost in used.items():
        ask(storage, key, text, cost)
    kept = [used[key] for key in used if stored(storage, key, text) is not None]
    gone = [used[key] for key in used if stored(storage, key, text) is None]
    assert len(kept) > 1_000
    assert len(gone) > 500
    assert sum(kept) / len(kept) > sum(gone) / len(gone) + 10
    assert max(gone) <= 50


def test_expired_cells_are_used_again_and_count_as_no_eviction(storage: SharedMemoryStorage, clock: FakeClock) -> None:
    fill(storage, "1/hour fixed-window as first")
    clock.now += 2 * HOUR
    before = overflowed(storage), evicted(storage)
    for number in range(300):
        assert ask(storage, f"new {number}", "1/hour fixed-window as second").allowed
    assert (overflowed(storage), evicted(storage)) == before


def test_new_keys_share_a_state_where_all_others_deny(storage: SharedMemoryStorage) -> None:
    """For each shard and limit there is one, so a flood of keys is granted its count once in each."""
    fill(storage)
    text = "5/day fixed-window as flood"
    granted = sum(ask(storage, f"flood {number}", text).allowed for number in range(2_000))
    assert granted == 5 * 16
    assert evicted(storage) == 0
    assert not ask(storage, "filler 0", FILLER).allowed


def test_a_denial_by_an_overflow_state_is_no_strike(storage: SharedMemoryStorage, clock: FakeClock) -> None:
    fill(storage)
    texts = "1/day fixed-window as rate; 1 strike/hour block 1 hour as guessing"
    for number in range(200):
        ask_limits(storage, f"flood {number}", texts)
        clock.now += 2 * SECOND
    answers = ask_limits(storage, "flood 0", texts, mode="peek")
    assert [answer.allowed for answer in answers] == [False, True]


@pytest.mark.parametrize("fast", [False, True])
def test_a_log_may_take_nearly_all_blocks_of_its_shard(
    fast: bool, storage: SharedMemoryStorage, clock: FakeClock
) -> None:
    """It has two copies. One is written over the blocks of the one before."""
    limiter, limit = Limiter("1100/day sliding-log", storage=storage, failure="raise"), "1100/day sliding-log"
    for _ in range(1_100):
        clock.now += 1
        assert limiter.hit("k") if fast else ask(storage, "k", limit).allowed
    assert not limiter.hit("k")
    check_blocks(storage)
