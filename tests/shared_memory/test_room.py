"""Bounded memory that is not a bypass (law 7), in a zone of the smallest size."""

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from ratebound import Limiter, parse_limit
from ratebound.clock import SECOND
from ratebound.errors import StorageError
from ratebound.kernels.sliding_log import Log
from ratebound.limit import ALGORITHMS, BUCKETS, STRIKE, Group
from ratebound.notation import parse_limits
from ratebound.settling import undoing
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.storage.shared_memory.zone_file import SIZE
from ratebound.testing import FakeClock, ask, ask_limits, slot
from tests.shared_memory.room import (
    FILLER,
    cells_of,
    check_blocks,
    evicted,
    fill,
    free_cells,
    overflowed,
    place_of,
    stored,
)
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


LOG = "600/day sliding-log as log"


def grow(storage: SharedMemoryStorage, clock: FakeClock, key: str, entries: int, text: str = LOG) -> None:
    for _ in range(entries):
        clock.now += 1
        assert ask(storage, key, text).allowed


def keys_of_shard(storage: SharedMemoryStorage, shard: int, number: int) -> list[str]:
    cells, found = cells_of(storage), []
    for name in itertools.count():
        if cells.shard_of(f"log {name}") == shard:
            found.append(f"log {name}")
            if len(found) == number:
                return found
    raise AssertionError


def test_a_log_of_ten_thousand_entries_fits_the_zone_that_users_get(clock: FakeClock) -> None:
    limit = parse_limit("10000/day sliding-log")
    older = [clock.now - 20_000 + at for at in range(9_998)]
    log = Log(older[-1] + limit.period_us, 9_998, 1, older[:-1])
    with fresh_zone(clock=clock, size=SIZE) as storage:
        assert ask(storage, "k", limit).allowed
        cells, place = cells_of(storage), place_of(storage, "k", limit)
        assert cells.find(place)
        numbers = log.pack(limit.numbers)
        assert cells.make_blocks(place.shard, cells.new_blocks(place, len(numbers)), set(), clock.now)
        cells.write(place, numbers, 1)
        limiter = Limiter(limit, storage=storage, failure="raise")
        assert [limiter.hit("k").remaining, ask(storage, "k", limit).remaining] == [1, 0]
        assert not limiter.hit("k")
        check_blocks(storage)


def test_the_least_used_log_goes_where_no_block_is_free(storage: SharedMemoryStorage, clock: FakeClock) -> None:
    """A shard of this zone has 149 blocks. A log of 400 entries takes 26, and as many for its other copy."""
    first, second, third = keys_of_shard(storage, 3, 3)
    grow(storage, clock, first, 300)
    grow(storage, clock, second, 400)
    grow(storage, clock, third, 500)
    assert evicted(storage) == 1
    assert [ask(storage, key, LOG, mode="peek").remaining for key in (first, second, third)] == [600, 200, 100]
    check_blocks(storage)


def test_an_expired_log_goes_first(storage: SharedMemoryStorage, clock: FakeClock) -> None:
    first, second, third = keys_of_shard(storage, 3, 3)
    grow(storage, clock, first, 400, "600/hour sliding-log as short")
    clock.now += 2 * HOUR
    grow(storage, clock, second, 300)
    grow(storage, clock, third, 500)
    assert evicted(storage) == 0
    assert [ask(storage, key, LOG, mode="peek").remaining for key in (second, third)] == [300, 100]
    check_blocks(storage)


@pytest.mark.parametrize("failure", ["local", "open", "closed"])
def test_where_no_block_is_free_and_all_logs_deny_the_failure_mode_answers_and_no_breaker_opens(
    failure: Any, storage: SharedMemoryStorage, clock: FakeClock, request: pytest.FixtureRequest
) -> None:
    denying, other, plain = keys_of_shard(storage, 3, 3)
    grow(storage, clock, denying, 1_100, "1100/day sliding-log as log")
    limiter = Limiter("600/day sliding-log as other", storage=storage, failure=failure)
    request.addfinalizer(limiter.close)  # or it would go on to write back what it has granted
    for _ in range(300):
        clock.now += 1
        decision = limiter.hit(other)
        if decision.degraded:
            break
    assert decision.degraded, "the zone has no room for the log"
    assert decision.allowed is (failure != "closed")
    for _ in range(50):
        assert limiter.hit(other).degraded
    assert not limiter.hit(plain).degraded, "no breaker is open: another key of the shard is decided by the zone"
    assert not ask(storage, denying, "1100/day sliding-log as log").allowed
    assert evicted(storage) == 0
    check_blocks(storage)


def test_what_a_full_zone_has_no_room_for_is_not_written_back_again_and_again(
    storage: SharedMemoryStorage, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write-back would fail as the hits did, at once, and for ever. In a task it would never let others run."""
    denying, other = keys_of_shard(storage, 3, 2)
    grow(storage, clock, denying, 1_100, "1100/day sliding-log as log")
    limiter = Limiter("600/day sliding-log as other", storage=storage)
    forced: list[Any] = []
    evaluate = storage.evaluate

    def watched(groups: Any, mode: Any = "spend") -> Any:
        if mode == "force":
            forced.append(groups)
        return evaluate(groups, mode)

    monkeypatch.setattr(storage, "evaluate", watched)
    degraded = 0
    while degraded < 20:
        clock.now += 1
        degraded += bool(limiter.hit(other).degraded)
    assert forced == []
    limiter.close()


def test_where_all_overflow_states_of_a_shard_deny_the_failure_mode_answers(storage: SharedMemoryStorage) -> None:
    fill(storage)
    (key,) = keys_of_shard(storage, 3, 1)
    for number in range(8):  # of overflow states there are 8, and the limit of the fillers may have one
        with suppress(StorageError):
            ask(storage, key, f"1/day fixed-window as limit{number}")
    with pytest.raises(StorageError, match="make the zone larger") as caught:
        ask(storage, key, "1/day fixed-window as another")
    assert caught.value.undone
    assert not caught.value.outage
    assert ask(storage, key, "1/day fixed-window as another", -1, "force").allowed, "a refund needs no room"
    limiter = Limiter("1/day fixed-window as another", storage=storage, failure="open")
    assert all(limiter.hit(key).degraded for _ in range(30))
    assert not ask(storage, "filler 0", FILLER).allowed


def test_a_peek_drops_nothing(storage: SharedMemoryStorage) -> None:
    keys = fill(storage, "5/day fixed-window as filler")
    before = [stored(storage, key, "5/day fixed-window as filler") for key in keys]
    gone = evicted(storage)
    for number in range(200):
        assert ask(storage, f"new {number}", "1/day", mode="peek") == ask(storage, "new", "1/day", mode="peek")
    assert [stored(storage, key, "5/day fixed-window as filler") for key in keys] == before
    assert (evicted(storage), overflowed(storage)) == (gone, 0)


def test_blocks_of_penalties_are_kept_and_those_that_are_over_go_last(
    storage: SharedMemoryStorage, clock: FakeClock
) -> None:
    penalty = "1 strike/hour block 1 hour then 1 day forget 30 days as guessing"
    keys = [f"blocked {number}" for number in range(20)]
    for key in keys:
        ask(storage, key, penalty, 1, "force", extra=STRIKE)
    flood(storage, "50/day fixed-window as others", 40)
    assert [ask(storage, key, penalty, mode="peek").allowed for key in keys] == [False] * 20
    clock.now += HOUR
    for number in range(3_000):
        ask(storage, f"second flood {number}", "50/day fixed-window as others", 40)
    assert [ask(storage, key, penalty, mode="peek").allowed for key in keys] == [True] * 20
    for key in keys:
        ask(storage, key, penalty, 1, "force", extra=STRIKE)
    answers = [ask(storage, key, penalty, mode="peek") for key in keys]
    assert {answer.retry_after_us for answer in answers} == {24 * HOUR}, "the second block is the longer one"


def test_a_strike_that_finds_no_room_is_not_counted_and_the_denial_stands(storage: SharedMemoryStorage) -> None:
    texts = f"{FILLER}; 1 strike/hour block 1 hour as guessing"
    keys = fill(storage)
    key = next(key for key in keys if stored(storage, key, FILLER) is not None)
    answers = ask_limits(storage, key, texts)
    assert [answer.allowed for answer in answers] == [False, True]
    assert answers[1].given == 0
    assert ask_limits(storage, key, texts, mode="peek")[1].allowed, "it is not blocked"
    assert overflowed(storage) > 0


def test_slots_of_an_overflow_state_are_held_and_released_there(storage: SharedMemoryStorage) -> None:
    fill(storage)
    text = "2 concurrent for 1 hour"
    first, second = keys_of_shard(storage, 3, 2)
    assert ask(storage, first, text, extra=slot(1)).allowed
    assert ask(storage, second, text, extra=slot(2)).allowed
    assert not ask(storage, second, text, extra=slot(3)).allowed, "they share its two slots"
    assert ask(storage, first, text, extra=slot(1)).allowed, "it is renewed"
    assert ask(storage, first, text, -1, "force", extra=slot(1)).remaining == 1
    assert ask(storage, second, text, extra=slot(3)).allowed


def test_a_line_of_waiters_is_kept_when_the_first_free_place_in_it_has_come(
    storage: SharedMemoryStorage, clock: FakeClock
) -> None:
    """Two places were given back. Until then the line denies, and after it there are still waiters behind."""
    limit = parse_limit("1/minute burst 1")
    group: Group = (("k", (limit,), 1, HOUR, None),)
    places = [(group, storage.evaluate((group,))[0]) for _ in range(40)]
    storage.evaluate((undoing(*places[2]), undoing(*places[3])), "force")
    clock.now += 130 * SECOND
    assert ask(storage, "k", limit, mode="peek").allowed
    fill(storage)
    flood(storage, "50/day fixed-window as others")
    assert evicted(storage) == 0
    assert ask(storage, "k", limit, mode="peek").reset_after_us > 30 * 60 * SECOND


# Cells


def test_a_state_is_found_in_either_bucket(storage: SharedMemoryStorage) -> None:
    text = "5/day fixed-window"
    seen: Counter[str] = Counter()
    for number in range(1_200):
        assert ask(storage, f"key {number}", text).allowed
    for number in range(1_200):
        place = place_of(storage, f"key {number}", text)
        if cells_of(storage).find(place):
            in_first = place.bucket_a <= place.cell < place.bucket_a + 8
            seen["first" if in_first else "second"] += 1
            assert ask(storage, f"key {number}", text, mode="peek").remaining == 4
    assert seen["first"] > 100
    assert seen["second"] > 20


def test_states_with_equal_tags_in_one_bucket_are_told_apart(storage: SharedMemoryStorage) -> None:
    """A tag is one byte, so keys of one bucket have equal tags now and then."""
    text = "9/day fixed-window"
    found: dict[tuple[int, int], list[str]] = {}
    for number in itertools.count():
        place = place_of(storage, f"key {number}", text)
        same = found.setdefault((place.bucket_a, place.tag), [])
        same.append(f"key {number}")
        if len(same) == 3:
            break
    for number, key in enumerate(same):
        assert ask(storage, key, text, number + 1).allowed
    cells = [stored(storage, key, text) for key in same]
    assert len({cell.cell for cell in cells if cell is not None}) == 3
    limiter = Limiter(text, storage=storage)
    assert [limiter.hit(key).remaining for key in same] == [7, 6, 5]
    storage.reset(((same[0], (parse_limit(text),), 1, None, None),))
    assert [ask(storage, key, text, mode="peek").remaining for key in same] == [9, 6, 5]
