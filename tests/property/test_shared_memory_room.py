"""Room in a zone: which states must stay, against the rules of memory; and blocks of states that grow and shrink."""

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratebound import Limit
from ratebound.kernels.packing import unpacked
from ratebound.limit import (
    ALGORITHMS,
    BUCKETS,
    CALENDAR,
    CONCURRENT,
    DISTINCT,
    NOT_GIVEN,
    PENALTY,
    STRIKE,
    Ask,
    Extra,
    Group,
    Mode,
)
from ratebound.outcome import Row
from ratebound.settling import undoing
from ratebound.storage.memory_states import Blocks, Table, Weight
from ratebound.testing import FakeClock, slot
from tests.property.histories import Plain, to_the_next_window
from tests.property.strategies import START, costs, gaps, limits, near
from tests.shared_memory.room import check_blocks, evicted, stored
from tests.zones import fresh_zone

LONG = os.environ.get("RATEBOUND_LONG") == "1"
HOUR = 3_600_000_000


def must_stay_in_memory(limit: Limit, numbers: tuple[int, ...], now: int) -> bool:
    """Return True if a memory storage that is full would never drop this state."""
    table = Table(limit.numbers, Weight(), Blocks())
    table.add("k", unpacked(limit.numbers, numbers), limit.numbers)
    return table.victim(set(), now, True) < 0


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, CALENDAR, "metered", CONCURRENT, DISTINCT, PENALTY])
@settings(
    max_examples=max(settings().max_examples // 3, 1),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_a_state_stays_exactly_as_long_as_memory_would_keep_it(algorithm: str, data: st.DataObject) -> None:
    """Until now and at any later instant. After a refund it may stay for longer."""
    clock = FakeClock(START)
    limit = data.draw(limits((algorithm,)))
    given_back = False
    with fresh_zone(clock=clock) as storage:
        for _ in range(data.draw(st.integers(1, 8))):
            clock.now += data.draw(st.one_of(st.just(0), gaps(limit), to_the_next_window(limit, clock.now)))
            mode: Mode = data.draw(st.sampled_from(["spend", "spend", "spend", "force"]))
            cost = data.draw(st.one_of(st.just(1), costs(limit))) * (
                data.draw(st.sampled_from([1, -1])) if mode == "force" else 1
            )
            extra = NOT_GIVEN if limit.takes_cost else slot(data.draw(st.integers(0, 4)))
            if limit.is_penalty:
                extra = STRIKE if mode == "force" else NOT_GIVEN
            patience = None
            if limit.algorithm in BUCKETS and mode == "spend":
                patience = data.draw(st.one_of(st.none(), near(0, limit.period_us, 3 * limit.period_us)))
            ask: Ask = ("k", (limit,), cost, patience, None if extra == NOT_GIVEN else [extra])
            storage.evaluate(((ask,),), mode)
            given_back = given_back or cost < 0
            found = stored(storage, "k", limit)
            if found is None:
                continue
            for later in (0, data.draw(near(1, limit.period_us // limit.count, limit.period_us, 3 * limit.period_us))):
                now = clock.now + later
                if found.numbers[0] < now:
                    continue
                stays = -found.worth > now
                if must_stay_in_memory(limit, found.numbers, now):
                    assert stays, later
                elif not given_back:
                    assert not stays, later
            if found.worth >= 0 and not limit.is_penalty:
                row = storage.evaluate(((("k", (limit,), 1, None, None),),), "peek")[0][0]
                used = row[6] + row[7] if limit.is_quota else limit.burst - row[1]
                assert found.worth >= used, "it is told again only when it is written"


LOG = Limit(500, HOUR, algorithm="sliding-log", name="log")
SLOTS = Limit(300, HOUR, algorithm=CONCURRENT, name="slots")
VALUES = Limit(300, HOUR, algorithm=DISTINCT, name="values", values="v")
LINE = Limit(100, 100_000_000, 1, "token-bucket", "line")  # waiters that give their places back leave holes
POOL = (LOG, SLOTS, VALUES, LINE)


@pytest.mark.parametrize("seed", range(4 if LONG else 1))
def test_states_that_grow_and_shrink_lose_no_block_and_no_entry(seed: int) -> None:
    """Every step is answered as by the kernels over a dict, and after it each block is in exactly one chain."""
    choose = random.Random(seed)
    clock = FakeClock(START)
    python = Plain(clock)
    granted: list[tuple[Group, list[Row]]] = []
    longest = 0

    def extra_of(limit: Limit) -> list[Extra] | None:
        return [slot(choose.randrange(400))] if limit in (SLOTS, VALUES) else None

    with fresh_zone(clock=clock, size=8 << 20) as storage:
        free = check_blocks(storage)

        def same(group: Group, mode: Mode) -> list[Row]:
            (rows,) = python.evaluate([group], mode)
            assert [list(found) for found in storage.evaluate([group], mode)] == [rows]
            return rows

        for _ in range(250):
            clock.now += choose.choice([0, 1, 1, 1_000, 1_000_000, 60_000_000])
            kind = choose.choice(["grow", "grow", "grow", "both", "undo", "undo", "reset", "later"])
            key = choose.choice("ab")
            if kind == "grow":
                limit = choose.choice(POOL)
                for _ in range(choose.choice([1, 3, 20, 60])):
                    clock.now += 1
                    patience = 200_000_000 if limit is LINE else None
                    group: Group = ((key, (limit,), 1, patience, extra_of(limit)),)
                    rows = same(group, "spend")
                    if rows[0][0]:
                        granted.append((group, rows))
            elif kind == "both":
                group = [(name, (LOG,), choose.choice([1, 2]), None, None) for name in "ab"]
                rows = same(group, "spend")
                if rows[0][0]:
                    granted.append((group, rows))
            elif kind == "undo":
                for _ in range(choose.choice([1, 10, 100])):
                    if granted:
                        group, rows = granted.pop(choose.randrange(len(granted)))
                        same(undoing(group, rows), "force")
            elif kind == "reset" and choose.random() < 0.3:
                group = ((key, POOL, 1, None, None),)
                storage.reset(group)
                python.reset(group)
            elif choose.random() < 0.1:
                clock.now += 2 * HOUR
            left = check_blocks(storage)
            longest = max(longest, free - left)
        assert longest > 20, "many blocks were in use"
        assert evicted(storage) == 0
        storage.reset([(key, POOL, 1, None, None) for key in "ab"])
        assert check_blocks(storage) == free, "every block is free again"
