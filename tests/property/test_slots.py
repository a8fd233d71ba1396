"""Slots against an oracle of plain events: who took which, and when that ends."""

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limit, Outcome
from ratebound.clock import SECOND
from ratebound.kernels import group_law
from ratebound.kernels.packing import unpacked
from ratebound.limit import CONCURRENT, NOT_GIVEN, Extra, Mode
from ratebound.testing import slot
from tests.property.strategies import START, limits, near

IDS = st.integers(0, 7).map(slot)


class Walk:
    """Slots and their oracle on their way through the same calls. `ends` has the instant at which each slot ends."""

    def __init__(self, limit: Limit, data: st.DataObject) -> None:
        self.limit, self.draw = limit, data.draw
        self.state = unpacked(limit.numbers, None)
        self.now = START
        self.ends: list[tuple[Extra, int]] = []

    def live(self) -> dict[Extra, int]:
        return {extra: end for extra, end in self.ends if end > self.now}

    def move(self) -> None:
        self.now += self.draw(near(0, self.limit.period_us // 3, self.limit.period_us))

    def ask(self, cost: int, mode: Mode, extra: Extra) -> Outcome:
        states = [self.state]
        (row,) = group_law.evaluate((("k", (self.limit,), cost, None, [extra]),), mode, [0], states, self.now)
        self.state = states[0]
        outcome = Outcome(*row)
        assert (outcome.delay_us, outcome.at_us) == (0, self.now)
        return outcome

    def check(self, outcome: Outcome) -> None:
        live = self.live()
        assert outcome.remaining == max(self.limit.count - len(live), 0)
        assert outcome.reset_after_us == max((end - self.now for end in live.values()), default=0)

    def hold(self, extra: Extra) -> None:
        self.release(extra)
        self.ends.append((extra, self.now + self.limit.period_us))

    def release(self, extra: Extra) -> None:
        self.ends = [(other, end) for other, end in self.ends if other != extra]

    def take(self) -> None:
        extra, live = self.draw(IDS), self.live()
        outcome = self.ask(self.draw(st.integers(1, 9)), "spend", extra)
        assert outcome.allowed is (extra in live or len(live) < self.limit.count)
        if outcome.allowed:
            self.hold(extra)
            assert outcome.retry_after_us == 0
        else:
            # Nobody renews and nobody releases: then this is the first instant at which one is free.
            wait = outcome.retry_after_us
            assert wait is not None
            assert sum(end > self.now + wait for end in live.values()) < self.limit.count
            assert sum(end > self.now + wait - 1 for end in live.values()) >= self.limit.count
        self.check(outcome)

    def peek(self) -> None:
        extra, live = self.draw(st.one_of(IDS, st.just(NOT_GIVEN))), self.live()
        outcome = self.ask(1, "peek", extra)
        assert outcome.allowed is (extra in live or len(live) < self.limit.count)
        self.check(outcome)

    def force(self) -> None:
        extra, cost = self.draw(st.one_of(IDS, st.just(NOT_GIVEN))), self.draw(st.integers(-2, 2))
        outcome = self.ask(cost, "force", extra)
        if cost > 0 and extra != NOT_GIVEN:
            self.hold(extra)
        elif cost < 0:
            self.release(extra)
        assert outcome.allowed
        self.check(outcome)

    def reset(self) -> None:
        self.state = unpacked(self.limit.numbers, None)
        self.ends = []

    def change_lease(self) -> None:
        """Another lease keeps the slots. Then a new one may end before those that were taken earlier."""
        self.limit = Limit(self.limit.count, self.draw(st.integers(SECOND, 100 * SECOND)), algorithm=CONCURRENT)


@given(limits((CONCURRENT,)), st.data())
def test_slots_answer_as_a_list_of_events_does(limit: Limit, data: st.DataObject) -> None:
    walk = Walk(limit, data)
    steps = [walk.take, walk.take, walk.take, walk.force, walk.force, walk.peek, walk.reset, walk.change_lease]
    for _ in range(data.draw(st.integers(1, 25))):
        walk.move()
        data.draw(st.sampled_from(steps))()


@given(limits((CONCURRENT,)), st.data())
def test_no_more_than_the_count_are_taken_whatever_the_clock_does(limit: Limit, data: st.DataObject) -> None:
    """A clock that steps back keeps slots for longer; it never frees one."""
    walk = Walk(limit, data)
    real = 0  # the time that has passed
    held: dict[Extra, int] = {}  # the real instant until which each slot is certainly held
    for _ in range(data.draw(st.integers(1, 30))):
        gap = data.draw(near(0, limit.period_us // 3, limit.period_us))
        real += gap
        step = -data.draw(near(1, limit.period_us, 10**12)) if data.draw(st.integers(0, 5)) == 0 else 0
        walk.now = max(walk.now + gap + step, 0)
        held = {extra: end for extra, end in held.items() if end > real}
        extra = data.draw(IDS)
        if data.draw(st.integers(0, 3)) == 0:
            walk.ask(-1, "force", extra)
            held.pop(extra, None)
        elif walk.ask(1, "spend", extra).allowed:
            held[extra] = real + limit.period_us
        assert len(held) <= limit.count
