"""What every kernel promises of its states: what is pure, what changes, and what copies and packed numbers keep.

The states are reached by spends with and without patience, places ahead of others, forced costs, grants, slots taken
and released, values seen and taken back, strikes, settlements in any order, and steps of the clock in both directions.
"""

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limit, MemoryStorage
from ratebound.decision import Plan
from ratebound.kernels import group_law
from ratebound.kernels.concurrency import Slots
from ratebound.kernels.distinct import Values
from ratebound.kernels.packing import packed, unpacked
from ratebound.kernels.penalty import Strikes
from ratebound.kernels.state import UNTOUCHED, State
from ratebound.limit import CALENDAR, GRANT, NOT_GIVEN, STRIKE, Spent
from ratebound.settling import spent_of
from ratebound.testing import FakeClock
from tests.property.strategies import ALL_KINDS, KINDS, METERED, START, costs, for_each, gaps, limits, slots


class Walk:
    """One state on its way through random calls. `now` is the instant of the call that comes next."""

    def __init__(self, limit: Limit, data: st.DataObject) -> None:
        self.limit, self.draw = limit, data.draw
        self.state: State = unpacked(limit.numbers, None)
        self.now = START
        self.spends: list[tuple[int, Spent]] = []

    def __iter__(self) -> Iterator[int]:
        """Yield the cost to ask for at each reached state."""
        for _ in range(self.draw(st.integers(1, 12))):
            step = self.draw(gaps(self.limit))
            self.now = max(self.now + (step if self.draw(st.integers(0, 3)) else -step), 1)
            yield self.draw(costs(self.limit))
            self.move()

    def move(self) -> None:
        """Change the state in one of the ways that storages do."""
        numbers, cost, period = self.limit.numbers, self.draw(costs(self.limit)), self.limit.period_us
        way = self.draw(st.sampled_from(["spend", "spend", "patient", "settle", "force"]))
        if isinstance(self.state, Strikes):
            if way == "force":
                self.state.force(numbers, self.now, cost, self.draw(st.sampled_from([STRIKE, NOT_GIVEN])))
            else:
                self.state.repair(numbers, self.now)
                self.state.strike(numbers, self.now)
        elif isinstance(self.state, Values) and way == "settle" and self.spends:
            _, sight = self.spends.pop(self.draw(st.integers(0, len(self.spends) - 1)))
            self.state.force(numbers, self.now, -1, sight)
        elif isinstance(self.state, Slots):
            extra = self.draw(slots(self.limit))
            if way in ("spend", "patient"):
                row = self.state.take(numbers, self.now, extra)
                if row[0]:
                    self.spends.append((1, (extra[0], max(row[6], self.now + period), row[6], 0)))
            else:
                self.state.force(numbers, self.now, cost if way == "force" else -cost, extra)
        elif way == "force" and self.limit.is_quota and self.draw(st.booleans()):
            self.state.force(numbers, self.now, cost, GRANT)
        elif way == "spend":
            self.keep(cost, self.state.spend(numbers, self.now, cost, None, 0))
        elif way == "patient":
            patience = self.draw(st.sampled_from([0, period, 5 * period]))
            lead = self.draw(st.sampled_from([0, 0, period // 2, 2 * period]))
            self.keep(cost, self.state.spend(numbers, self.now, cost, patience, lead))
        elif way == "settle" and self.spends:
            charged, spent = self.spends.pop(self.draw(st.integers(0, len(self.spends) - 1)))
            settled = self.draw(st.sampled_from([0, charged // 2, 2 * charged]))
            self.state.force(numbers, self.now, settled - charged, spent)
        else:
            self.state.force(numbers, self.now, cost, None)

    def keep(self, cost: int, row: Any) -> None:
        if row[0]:
            self.spends.append((cost, spent_of(row)))

    def pack(self, state: State | None = None) -> tuple[int, ...]:
        return (self.state if state is None else state).pack(self.limit.numbers)


@for_each(ALL_KINDS)
def test_questions_change_nothing_and_fits_says_what_a_spend_does(limit: Limit, data: st.DataObject) -> None:
    walk, numbers = Walk(limit, data), limit.numbers
    for cost in walk:
        before = walk.pack()
        fits = walk.state.fits(numbers, walk.now, cost)
        assert walk.pack() == before
        repaired = walk.state.copy()
        repaired.repair(numbers, walk.now)
        after_repair = walk.pack(repaired)
        exact = repaired.fits(numbers, walk.now, cost)
        repaired.standing(numbers, walk.now)
        repaired.turn_after(numbers, walk.now, cost, cost)
        assert walk.pack(repaired) == after_repair
        assert exact is walk.state.copy().spend(numbers, walk.now, cost, None, 0)[0]
        assert exact or not fits
        assert fits is exact or before != after_repair


@for_each(ALL_KINDS)
def test_a_denial_changes_nothing_but_what_a_repair_does(limit: Limit, data: st.DataObject) -> None:
    walk, numbers = Walk(limit, data), limit.numbers
    for cost in walk:
        patience = data.draw(st.sampled_from([None, None, 0, limit.period_us]))
        repaired, spent = walk.state.copy(), walk.state.copy()
        repaired.repair(numbers, walk.now)
        if not spent.spend(numbers, walk.now, cost, patience, 0)[0]:
            assert walk.pack(spent) == walk.pack(repaired)
        again = repaired.copy()
        again.repair(numbers, walk.now)
        assert walk.pack(again) == walk.pack(repaired)


@for_each(ALL_KINDS)
def test_a_copy_shares_nothing_with_its_state(limit: Limit, data: st.DataObject) -> None:
    walk = Walk(limit, data)
    for _ in walk:
        copy, before = walk.state.copy(), walk.pack()
        walk.move()
        assert walk.pack(copy) == before
        moved, walk.state = walk.state, copy
        after = walk.pack(moved)
        walk.move()
        assert walk.pack(moved) == after


@for_each(ALL_KINDS)
def test_a_packed_state_is_unpacked_as_it_was(limit: Limit, data: st.DataObject) -> None:
    walk, numbers = Walk(limit, data), limit.numbers
    for cost in walk:
        kept = packed(numbers, walk.state)
        assert (kept is None) is (walk.state.expires == UNTOUCHED)
        found = unpacked(numbers, kept)
        assert packed(numbers, found) == kept
        for patience in (None, limit.period_us):
            mine, other = walk.state.copy(), found.copy()
            rows = [state.spend(numbers, walk.now, cost, patience, 0) for state in (mine, other)]
            assert rows[0] == rows[1]
            assert packed(numbers, mine) == packed(numbers, other)


@given(drawn=st.lists(limits((*KINDS[:6], CALENDAR, METERED)), min_size=1, max_size=4), data=st.data())
def test_memory_decides_one_key_as_the_group_law_does(drawn: list[Limit], data: st.DataObject) -> None:
    """The limits of one key are decided without copies; a group that is denied or repaired must not show that."""
    held = tuple({limit.scope: limit for limit in drawn}.values())
    clock = FakeClock()
    storage, plan = MemoryStorage(clock=clock), Plan(held)
    storage.states._sweep_at = 2**60  # a state that was swept is forgotten, should the clock step back to it
    states = [unpacked(limit.numbers, None) for limit in held]
    for _ in range(data.draw(st.integers(1, 12))):
        scale = data.draw(st.sampled_from(held))
        step = data.draw(gaps(scale))
        clock.now = max(clock.now + (step if data.draw(st.integers(0, 3)) else -step), 1)
        group = (("k", held, data.draw(costs(scale)), None, None),)
        if data.draw(st.integers(0, 9)) == 0:
            rows = list(storage.evaluate([group], "force")[0])
            assert rows == group_law.evaluate(group, "force", range(len(held)), states, clock.now)
        else:
            decision = storage.states.hit(plan, "k", group[0][2])
            rows = group_law.evaluate(group, "spend", range(len(held)), states, clock.now)
            assert list(decision.rows) == rows
            assert decision.allowed is all(row[0] for row in rows)
        for limit, state in zip(held, states, strict=True):
            found = storage.states._tables[limit.scope].states.get("k")
            assert (None if found is None else found.pack(limit.numbers)) == packed(limit.numbers, state)
