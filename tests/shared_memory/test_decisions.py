"""Decisions of a zone: the contract of every storage, and what the fast path leaves to the general path."""

import asyncio
import fcntl
import os
import time
from pathlib import Path
from weakref import ref

import pytest

from ratebound import AsyncLimiter, Limiter, StorageError, parse_limit
from ratebound.decision import Plan
from ratebound.storage.shared_memory.cells import FORGET_AFTER, LONGEST_KEY, MOST_SPOTS, Spot
from ratebound.storage.shared_memory.layout import ENTRIES, JOURNAL, SHARDS
from ratebound.storage.shared_memory.storage import AsyncSharedMemoryStorage, SharedMemoryStorage
from ratebound.storage.shared_memory.zone_file import drop_zone
from ratebound.testing import STORAGE_CONTRACT, Claim, FakeClock, ask, slot
from tests.shared_memory.room import cells_of, check_blocks, stored
from tests.zones import PATIENT, SMALL, fresh_zone


@pytest.mark.parametrize("claim", STORAGE_CONTRACT, ids=lambda claim: claim.__name__)
def test_it_is_true_that(claim: Claim, clock: FakeClock) -> None:
    """The quickest of the storages in tests/contract: this is what tells a changed line of code."""
    with fresh_zone(clock=clock) as storage:
        claim(storage, clock)
        check_blocks(storage)


def test_a_hit_takes_the_general_path_for_a_new_key_and_for_several_limits(clock: FakeClock) -> None:
    one, two = (Plan(tuple(parse_limit(text) for text in texts)) for texts in (["3/day"], ["3/day", "9/day burst 9"]))
    with fresh_zone(clock=clock) as storage:
        states = storage.states
        assert states.hit(one, "k", 1) is None
        assert stored(storage, "k", "3/day") is None, "nothing was changed"
        assert ask(storage, "k", "3/day").allowed
        assert states.hit(two, "k", 1) is None, "it has no state under the second limit"
        decision = states.hit(one, "k", 1)
        assert decision is not None
        assert decision.allowed
        assert [outcome.remaining for outcome in decision.outcomes] == [1]
        denied = states.hit(one, "k", 2)
        assert denied is not None
        assert not denied.allowed


def test_the_fast_path_goes_on_where_a_state_was_moved_or_dropped_meanwhile(clock: FakeClock) -> None:
    limit = parse_limit("9/day fixed-window")
    plan = Plan((limit,))
    with fresh_zone(clock=clock) as storage:
        ask(storage, "k", limit)
        assert storage.states.hit(plan, "k", 1) is not None
        storage.reset((("k", (limit,), 1, None, None),))
        assert storage.states.hit(plan, "k", 1) is None
        cells = cells_of(storage)
        place = cells.scope(limit.scope).spots["k"]
        ask(storage, "k", limit)
        found = stored(storage, "k", limit)
        assert found is not None
        for wrong in (-1, found.cell ^ 1):
            place.cell = wrong
            decision = storage.states.hit(plan, "k", 1)
            assert decision is not None
            assert place.cell == found.cell, "it is remembered"
        assert ask(storage, "k", limit, mode="peek").remaining == 6


def test_places_of_many_keys_are_not_remembered_for_ever(clock: FakeClock) -> None:
    """At most so many are remembered, and after many keys that were not, others may take their place."""
    with fresh_zone(clock=clock) as storage:
        cells = cells_of(storage)
        scope = cells.scope("scope")
        most = 0
        for number in range(FORGET_AFTER + 1):
            cells.spot(f"key {number}", scope)
            most = max(most, len(scope.spots))
        assert most == MOST_SPOTS
        assert len(scope.spots) == 0
        cells.spot("hot", scope)
        assert list(scope.spots) == ["hot"]


def test_another_thread_may_meet_a_scope_while_places_are_forgotten(clock: FakeClock) -> None:
    class Met(dict[str, Spot]):
        def clear(self) -> None:
            cells.scope("of another thread")

    with fresh_zone(clock=clock) as storage:
        cells = cells_of(storage)
        cells.scope("first").spots = Met()
        for number in range(FORGET_AFTER + 1):
            cells.spot(f"key {number}", cells.scope("second"))
        assert not cells.scope("second").spots


def test_long_keys_are_not_kept_in_memory(clock: FakeClock) -> None:
    """A client may choose its key, and so how much memory a process needs to remember it."""
    with fresh_zone(clock=clock) as storage:
        cells, limiter = cells_of(storage), Limiter("9/day", storage=storage, failure="raise")
        short, long = "k" * LONGEST_KEY, "k" * (LONGEST_KEY + 1)
        assert [limiter.hit(key).remaining for key in (short, long, short, long)] == [8, 8, 7, 7]
        (scope,) = cells.scopes.values()
        assert list(scope.spots) == [short]


def test_more_limits_than_a_journal_has_entries_are_refused_and_no_byte_of_the_next_shard_is_written() -> None:
    limits = [parse_limit(f"{number}/day as n{number}") for number in range(9, ENTRIES + 29)]
    with fresh_zone(size=8 * SMALL) as storage:
        cells = cells_of(storage)
        for part in (limits[: len(limits) // 2], limits[len(limits) // 2 :]):
            assert Limiter(part, storage=storage, failure="raise").hit("k")
        others = [shard for shard in range(SHARDS) if shard != cells.shard_of("k")]
        heads = [cells.memory[cells.head_at(shard) : cells.head_at(shard) + JOURNAL] for shard in others]
        with pytest.raises(StorageError, match=f"at most {ENTRIES} states"):
            Limiter(limits, storage=storage, failure="raise").hit("k")
        assert heads == [cells.memory[cells.head_at(shard) : cells.head_at(shard) + JOURNAL] for shard in others]


def test_a_storage_goes_on_with_a_new_zone_when_its_own_was_dropped(clock: FakeClock) -> None:
    text = "1 concurrent for 1 hour"
    with fresh_zone(clock=clock) as storage:
        limiter = Limiter("1/day", storage=storage, failure="raise")
        assert [limiter.hit("k").allowed, limiter.hit("k").allowed] == [True, False]
        drop_zone(storage.zone_name)
        assert [limiter.hit("k").allowed, limiter.hit("k").allowed] == [True, False]
        assert ask(storage, "k", text, extra=slot(1)).allowed
        drop_zone(storage.zone_name)
        assert storage.holders("k", parse_limit(text)) == []
        assert ask(storage, "k", text, extra=slot(2)).allowed
        drop_zone(storage.zone_name)
        storage.reset((("k", (parse_limit(text),), 1, None, None),))
        assert ask(storage, "k", text, extra=slot(3)).allowed


def test_a_zone_is_unmapped_as_soon_as_no_storage_uses_it(tmp_path: Path) -> None:
    """Not when the garbage collector finds it: a zone may be large, and it is few objects."""
    storage = SharedMemoryStorage("short", size=SMALL, directory=str(tmp_path))
    mapped = ref(storage.states.zone.owner)
    assert mapped() is not None
    del storage
    assert mapped() is None


def test_tasks_go_on_while_a_zone_is_made_anew(tmp_path: Path) -> None:
    """Another process may be making a zone, for which this one waits: not with its event loop."""
    order: list[str] = []

    async def answered(limiter: AsyncLimiter) -> None:
        assert (await limiter.hit("k")).remaining == 2
        order.append("answered")

    async def in_turn() -> None:
        storage = AsyncSharedMemoryStorage("turn", size=SMALL, directory=str(tmp_path), deadline=PATIENT)
        async with AsyncLimiter("3/day", storage=storage, failure="raise") as limiter:
            await limiter.hit("k")
            drop_zone(storage.shared.zone_name)
            directory = os.open(tmp_path, os.O_RDONLY)
            fcntl.flock(directory, fcntl.LOCK_EX)  # as a process does that makes a zone
            asking = asyncio.create_task(answered(limiter))
            await asyncio.sleep(0.01)
            order.append("other tasks run")
            os.close(directory)
            await asking
            await asyncio.gather(limiter.usage("k"), limiter.reset("k"))

    asyncio.run(in_turn())
    assert order == ["other tasks run", "answered"]


def test_a_zone_that_is_not_made_in_time_is_answered_by_the_failure_mode(tmp_path: Path) -> None:
    async def in_turn() -> None:
        storage = AsyncSharedMemoryStorage("turn", size=SMALL, directory=str(tmp_path), deadline=0.05)
        async with AsyncLimiter("3/day", storage=storage, failure="closed") as limiter:
            await limiter.hit("k")
            drop_zone(storage.shared.zone_name)
            directory = os.open(tmp_path, os.O_RDONLY)
            fcntl.flock(directory, fcntl.LOCK_EX)
            assert "was not opened within 0.05 s" in str((await limiter.hit("k")).degraded)
            os.close(directory)

    asyncio.run(in_turn())


def test_a_subclass_with_an_evaluate_of_its_own_has_no_quick_states(clock: FakeClock) -> None:
    class Counting(SharedMemoryStorage):
        calls = 0

        def evaluate(self, groups, mode="spend"):  # type: ignore[no-untyped-def]
            self.calls += 1
            return super().evaluate(groups, mode)

    with fresh_zone(clock=clock) as zone:
        name = zone.zone_name
        storage = Counting(name.name, directory=name.directory, size=SMALL, clock=clock)
        assert storage.quick_states is None
        limiter = Limiter("9/day", storage=storage)
        for _ in range(3):
            assert limiter.hit("k")
        assert storage.calls == 3
        assert zone.quick_states is zone.states
        assert AsyncLimiter("9/day", storage=zone.async_twin()).storage is not None


def test_the_clock_of_a_zone_is_that_of_the_host_and_the_same_for_all_storages() -> None:
    with fresh_zone() as storage:
        name = storage.zone_name
        other = SharedMemoryStorage(name.name, directory=name.directory, size=SMALL)
        instants = [each.states.zone.now() for each in (storage, other, storage)]
        assert instants == sorted(instants)
        assert abs(instants[0] / 1e6 - time.time()) < 3600
        assert ask(storage, "k", "1/day").at_us <= ask(other, "k", "1/day").at_us
