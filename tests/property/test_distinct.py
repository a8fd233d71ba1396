"""Distinct values against an oracle of plain events: who was allowed to touch which value, and when."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limit, Outcome
from ratebound.kernels import group_law
from ratebound.kernels.packing import unpacked
from ratebound.limit import DISTINCT, NOT_GIVEN, Extra, Group, Mode
from ratebound.outcome import Row
from ratebound.settling import settlement, undoing
from tests.property.strategies import START, limits, near

VALUES = st.integers(0, 7)


class Sight:
    """An allowed sight of a value. `group` and `row` are what it takes to settle it."""

    def __init__(self, value: int, at: int, group: Group, row: Row) -> None:
        self.value, self.at, self.group, self.row = value, at, group, row


class Walk:
    """Values and their oracle on their way through the same calls."""

    def __init__(self, limit: Limit, data: st.DataObject) -> None:
        self.limit, self.draw = limit, data.draw
        self.state = unpacked(limit.numbers, None)
        self.now = START
        self.sights: list[Sight] = []

    def live(self) -> dict[int, int]:
        """The last sight of each value that counts."""
        return {sight.value: sight.at for sight in self.sights if sight.at > self.now - self.limit.period_us}

    def move(self) -> None:
        """Sights of one value at the same microsecond are one, so let time pass."""
        self.now += 1 + self.draw(near(0, self.limit.period_us // 3, self.limit.period_us))

    def ask(self, group: Group, mode: Mode) -> Row:
        states = [self.state]
        (row,) = group_law.evaluate(group, mode, [0], states, self.now)
        self.state = states[0]
        return row

    def group(self, cost: int, extra: Extra) -> Group:
        return (("k", (self.limit,), cost, None, [extra]),)

    def check(self, row: Row) -> None:
        outcome, live = Outcome(*row), self.live()
        assert outcome.remaining == max(self.limit.count - len(live), 0)
        assert outcome.reset_after_us == max((at + self.limit.period_us - self.now for at in live.values()), default=0)
        assert (outcome.delay_us, outcome.at_us) == (0, self.now)

    def see(self) -> None:
        value, live = self.draw(VALUES), self.live()
        group = self.group(self.draw(st.integers(1, 9)), (value, 0, 0, 0))
        row = self.ask(group, "spend")
        assert row[0] is (value in live or len(live) < self.limit.count)
        if row[0]:
            assert row[6] == (live[value] + self.limit.period_us if value in live else 0)
            self.sights.append(Sight(value, self.now, group, row))
            assert row[2] == 0
        else:
            self.check_wait(row[2], live)
        self.check(row)

    def check_wait(self, wait: int | None, live: dict[int, int]) -> None:
        """The first instant at which there is room, if nobody comes meanwhile."""
        assert wait is not None
        ends = [at + self.limit.period_us for at in live.values()]
        assert sum(end > self.now + wait for end in ends) < self.limit.count
        assert sum(end > self.now + wait - 1 for end in ends) >= self.limit.count

    def peek(self) -> None:
        value, live = self.draw(st.one_of(VALUES, st.none())), self.live()
        row = self.ask(self.group(1, NOT_GIVEN if value is None else (value, 0, 0, 0)), "peek")
        assert row[0] is (value in live or len(live) < self.limit.count)
        if not row[0]:
            self.check_wait(row[2], live)
        self.check(row)

    def take_back(self) -> None:
        """A sight after which nobody saw the value is as if it had not been; any other stays."""
        if not self.sights:
            return
        sight = self.draw(st.sampled_from(self.sights))
        correct: Callable[[Group, list[Row]], Group] = self.draw(
            st.sampled_from([undoing, lambda group, rows: settlement(group, rows, [0])])
        )
        row = self.ask(correct(sight.group, [sight.row]), "force")
        if not any(other.value == sight.value and other.at > sight.at for other in self.sights):
            self.sights.remove(sight)
        self.check(row)

    def settle(self) -> None:
        """A cost above 0 keeps the value."""
        if self.sights:
            sight = self.draw(st.sampled_from(self.sights))
            self.check(self.ask(settlement(sight.group, [sight.row], [self.draw(st.integers(1, 20))]), "force"))

    def force(self) -> None:
        """Count a value always. Without a digest, or without a cost, nothing changes."""
        value, cost = self.draw(st.one_of(VALUES, st.none())), self.draw(st.integers(-2, 2))
        group = self.group(cost, NOT_GIVEN if value is None else (value, 0, 0, 0))
        row = self.ask(group, "force")
        if value is not None and cost > 0:
            self.sights.append(Sight(value, self.now, group, row))
        self.check(row)

    def reset(self) -> None:
        self.state = unpacked(self.limit.numbers, None)
        self.sights = []


@given(limits((DISTINCT,)), st.data())
def test_values_answer_as_a_list_of_events_does(limit: Limit, data: st.DataObject) -> None:
    walk = Walk(limit, data)
    steps = [walk.see] * 5 + [walk.take_back] * 2 + [walk.peek, walk.settle, walk.force, walk.reset]
    for _ in range(data.draw(st.integers(1, 25))):
        walk.move()
        data.draw(st.sampled_from(steps))()


@given(st.integers(1, 4), st.data())
def test_no_window_of_one_period_holds_more_values_than_the_count(count: int, data: st.DataObject) -> None:
    walk = Walk(Limit(count, data.draw(st.sampled_from([10, 1_000_000])), 0, DISTINCT, values="v"), data)
    every: list[Sight] = []
    for _ in range(data.draw(st.integers(1, 40))):
        walk.move()
        walk.see()
        every += [sight for sight in walk.sights[-1:] if sight.at == walk.now]
    for last in every:
        window = [sight.value for sight in every if last.at - walk.limit.period_us < sight.at <= last.at]
        assert len(set(window)) <= count


@given(limits((DISTINCT,)), st.data())
def test_a_clock_that_steps_back_never_makes_room(limit: Limit, data: st.DataObject) -> None:
    """In real time no window holds more values than the count, whatever the clock says; it never jumps ahead."""
    walk = Walk(limit, data)
    real = 0
    seen: dict[int, int] = {}  # the real instant until which each value certainly counts
    for _ in range(data.draw(st.integers(1, 30))):
        gap = data.draw(near(0, limit.period_us // 3, limit.period_us))
        step = -data.draw(near(1, limit.period_us, 10**12)) if data.draw(st.integers(0, 5)) == 0 else 0
        real += gap
        walk.now = max(walk.now + gap + step, 1)
        seen = {value: end for value, end in seen.items() if end > real}
        value = data.draw(VALUES)
        if walk.ask(walk.group(1, (value, 0, 0, 0)), "spend")[0]:
            seen[value] = real + limit.period_us
        assert len(seen) <= limit.count
