"""The weight of states in memory: one for each, and one more for every 16 entries of a sliding log or of slots."""

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limit, MemoryStorage
from ratebound.kernels.packing import packed
from ratebound.limit import CONCURRENT
from ratebound.settling import undoing
from ratebound.storage.memory_states import SWEEP_PERIOD
from ratebound.testing import FakeClock, slot
from tests.property.strategies import START

HOUR = 3_600_000_000
LOG = Limit(10_000, HOUR, algorithm="sliding-log", name="log")
SLOTS = Limit(10_000, HOUR, algorithm=CONCURRENT, name="slots")
POOL = (LOG, SLOTS, Limit(1_000, HOUR, 1_000, "gcra", "bucket"), Limit(1_000, HOUR, algorithm="fixed-window"))


def weight_of(storage: MemoryStorage) -> int:
    """The weight, counted state by state."""
    total = 0
    for scope, table in storage.states._tables.items():
        limit = next(limit for limit in POOL if limit.scope == scope)
        for state in table.states.values():
            numbers = packed(limit.numbers, state)
            assert numbers is not None
            entries = (len(numbers) - 2) // 2 if limit in (LOG, SLOTS) else 0
            total += 1 + entries // 16
    return total


def sweep_all(storage: MemoryStorage, clock: FakeClock) -> None:
    """Do what a minute of traffic does: look at every key once."""
    for _ in range(20):
        clock.now += SWEEP_PERIOD
        storage.evaluate(((("nobody", (POOL[2],), 1, None, None),),), "peek")


@given(st.data())
def test_the_weight_is_the_sum_over_the_states_once_they_are_swept_and_returns_to_nothing(data: st.DataObject) -> None:
    clock = FakeClock(START)
    storage = MemoryStorage(clock=clock)
    made = []
    for _ in range(data.draw(st.integers(1, 12))):
        limit, key = data.draw(st.sampled_from(POOL)), data.draw(st.sampled_from("abcdef"))
        act = data.draw(st.sampled_from(["fill", "fill", "fill", "undo", "reset", "time"]))
        if act == "fill":
            for number in range(data.draw(st.integers(1, 70))):
                clock.now += 1
                extras = [slot(number)] if limit is SLOTS else None
                group = ((key, (limit,), 1, None, extras),)
                made.append((group, storage.evaluate((group,))[0]))
        elif act == "undo":
            for group, rows in made[:: data.draw(st.integers(1, 3))]:
                storage.evaluate((undoing(group, rows),), "force")
            made.clear()
        elif act == "reset":
            storage.reset(((key, (limit,), 1, None, None),))
        else:
            clock.now += data.draw(st.sampled_from([HOUR // 2, HOUR + 1]))
        slots_and_others = [storage.states._tables.get(each.scope) for each in POOL[1:]]
        assert all(not table.heavy for table in slots_and_others[1:] if table is not None)
        sweep_all(storage, clock)
        assert storage.weight == weight_of(storage)
        assert storage.keys == sum(len(table.states) for table in storage.states._tables.values())
    clock.now += 3 * HOUR
    sweep_all(storage, clock)
    assert (storage.weight, storage.keys, weight_of(storage)) == (0, 0, 0)


@given(st.data())
def test_the_weight_stays_below_the_cap_and_no_key_that_denies_is_dropped(data: st.DataObject) -> None:
    most = data.draw(st.integers(20, 60))
    clock = FakeClock(START)
    storage = MemoryStorage(max_keys=most, clock=clock)
    one = Limit(1, HOUR, algorithm=CONCURRENT, name="slots")  # the state of SLOTS, judged by a stricter limit
    storage.evaluate(((("denied", (one,), 1, None, [slot(1)]),),))
    for number in range(data.draw(st.integers(1, 40))):
        limit, heavy = data.draw(st.sampled_from(POOL[:2])), data.draw(st.integers(0, 2)) == 0
        for entry in range(data.draw(st.integers(16, 64)) if heavy else 1):
            clock.now += 1
            storage.evaluate((((f"k{number}", (limit,), 1, None, [slot(entry)] if limit is SLOTS else None),),))
        sweep_all(storage, clock)
        assert storage.weight == weight_of(storage)
        assert storage.weight <= most or all(len(table.states) <= 8 for table in storage.states._tables.values())
    assert not storage.evaluate(((("denied", (one,), 1, None, [slot(2)]),),))[0][0][0]
