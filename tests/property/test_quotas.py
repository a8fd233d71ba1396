"""Quotas against an oracle of plain events, in any order and with a clock that steps in both directions.

The oracle keeps what was charged as a list, with the window in which each event counts. It knows three rules: events of
the next window count now, those of a window further ahead move to the present one, and everything before the last two
windows is forgotten when a new one begins.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limit, Outcome
from ratebound.calendar_period import Calendar
from ratebound.kernels import group_law
from ratebound.kernels.packing import packed, unpacked
from ratebound.kernels.quota import QuotaWindow
from ratebound.limit import GRANT, Mode, Over, Spent
from ratebound.settling import spent_of
from tests.property.strategies import COUNTS, PERIODS, START, costs, near

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def first_day(unit: str, day: datetime) -> datetime:
    """The midnight in UTC at which the period of a day begins."""
    if unit == "week":
        return day - timedelta(days=day.weekday())
    if unit == "month":
        return day.replace(day=1)
    return day.replace(month=1, day=1) if unit == "year" else day


def bounds(limit: Limit, now: int) -> tuple[int, int]:
    """The first instant of the window at `now`, and of the window after it."""
    if limit.calendar is None:
        begin = now - now % limit.period_us
        return begin, begin + limit.period_us
    unit = limit.calendar.unit
    day = (EPOCH + timedelta(microseconds=now)).replace(hour=0, minute=0, second=0, microsecond=0)
    begin_day = first_day(unit, day)
    longest = {"day": 1, "week": 7, "month": 31, "year": 366}[unit]
    end_day = first_day(unit, begin_day + timedelta(days=longest))
    return tuple((each - EPOCH) // timedelta(microseconds=1) for each in (begin_day, end_day))  # type: ignore[return-value]


def before(limit: Limit, begin: int) -> int:
    return bounds(limit, begin - 1)[0]


def after(limit: Limit, begin: int) -> int:
    return bounds(limit, begin)[1]


@dataclass(eq=False)
class Event:
    """Units that were charged, or granted. `window` is the first instant of the window in which they count."""

    window: int
    units: int
    granted: bool = False


@dataclass
class Plain:
    """What a quota means."""

    limit: Limit
    events: list[Event] = field(default_factory=list)
    window: int | None = None  # in which the latest event counts

    def look(self, now: int) -> int:
        """Return the window that counts at `now`. A window from further ahead than the next moves to the present."""
        present, end = bounds(self.limit, now)
        if self.window is not None and self.window > end:
            moves = {self.window: present, before(self.limit, self.window): before(self.limit, present)}
            self.events = [event for event in self.events if event.window in moves]
            for event in self.events:
                event.window = moves[event.window]
            self.window = present
        return end if self.window == end else present

    def begin(self, window: int) -> None:
        kept = (window, before(self.limit, window))
        self.events = [event for event in self.events if event.window in kept]
        self.window = window

    def used(self, window: int) -> int:
        return sum(event.units for event in self.events if event.window == window and not event.granted)

    def granted(self, window: int) -> int:
        return sum(event.units for event in self.events if event.window == window and event.granted)

    def total(self, window: int) -> int:
        return self.limit.count + self.granted(window)

    def over(self, window: int) -> int:
        return max(self.used(window) - self.total(window), 0)

    def left(self, window: int, now: int) -> tuple[int, int]:
        """(remaining, reset_after)"""
        touched = self.used(window) or self.granted(window)
        return max(self.total(window) - self.used(window), 0), after(self.limit, window) - now if touched else 0

    def counts(self, window: int) -> tuple[int, int, int]:
        """(granted, used, used in the window before)"""
        return self.granted(window), self.used(window), self.used(before(self.limit, window))


@st.composite
def quotas(draw: st.DrawFn) -> Limit:
    over = draw(st.sampled_from(get_args(Over)))
    if over == "allow" and draw(st.booleans()):
        return Limit(draw(COUNTS), max(draw(PERIODS), 2), algorithm="fixed-window", over=over)
    unit = draw(st.sampled_from(["day", "week", "month", "year"]))
    return Limit(draw(COUNTS), calendar=Calendar(unit), over=over)


class Walk:
    """A quota and its oracle on their way through the same calls."""

    def __init__(self, limit: Limit, data: st.DataObject) -> None:
        self.limit, self.draw = limit, data.draw
        self.plain = Plain(limit)
        self.state = unpacked(limit.numbers, None)
        self.now = START
        self.instants = {START}
        self.spends: list[tuple[Event, int, Spent]] = []

    def move(self) -> None:
        period = self.limit.period_us
        step = self.draw(near(0, 1, period // 2, period, 2 * period, 5 * period))
        self.now = max(self.now + (step if self.draw(st.integers(0, 2)) else -step), period)
        while self.now in self.instants:  # a window that begins at the same instant twice looks like one
            self.now += 1
        self.instants.add(self.now)

    def ask(self, cost: int, mode: Mode, spent: Spent | None = None) -> Outcome:
        states = [self.state]
        group = (("k", (self.limit,), cost, None, None if spent is None else [spent]),)
        (row,) = group_law.evaluate(group, mode, [0], states, self.now)
        self.state = states[0]
        return Outcome(*row)

    def spend(self) -> None:
        cost, window = self.draw(costs(self.limit)), self.plain.look(self.now)
        allowed = self.limit.metered or self.plain.used(window) + cost <= self.plain.total(window)
        before_it = self.plain.over(window)
        outcome = self.ask(cost, "spend")
        assert outcome.allowed is allowed
        if allowed:
            event = Event(window, cost)
            self.plain.begin(window)
            self.plain.events.append(event)
            assert outcome.part == self.plain.over(window) - before_it
            self.spends.append((event, cost, spent_of(outcome)))
            assert outcome.retry_after_us == 0
        else:
            end = after(self.limit, window) - self.now
            assert outcome.retry_after_us == (end if cost <= self.limit.count else None)
            assert (outcome.given, outcome.part, outcome.ahead_us) == self.plain.counts(window)
        assert (outcome.remaining, outcome.reset_after_us) == self.plain.left(window, self.now)

    def peek(self) -> None:
        cost, window = self.draw(costs(self.limit)), self.plain.look(self.now)
        outcome = self.ask(cost, "peek")
        assert outcome.allowed is (self.limit.metered or self.plain.used(window) + cost <= self.plain.total(window))
        assert (outcome.remaining, outcome.reset_after_us) == self.plain.left(window, self.now)
        assert (outcome.given, outcome.part, outcome.ahead_us) == self.plain.counts(window)

    def settle(self) -> None:
        """Correct a spend: what is charged on top is for the window that counts now; a refund is for its own."""
        if not self.spends:
            return
        event, charged, spent = self.spends.pop(self.draw(st.integers(0, len(self.spends) - 1)))
        cost = self.draw(st.sampled_from([0, charged // 2, charged, 2 * charged])) - charged
        self.force(cost, spent, event)

    def overdraw(self) -> None:
        self.force(self.draw(costs(self.limit)), None, None)

    def force(self, cost: int, spent: Spent | None, event: Event | None) -> None:
        window = self.plain.look(self.now)
        before_it = self.plain.over(window)
        outcome = self.ask(cost, "force", spent)
        if cost > 0:
            used = self.plain.used(window)
            most = used + cost if self.limit.metered else max(used, 2 * self.plain.total(window))
            self.plain.begin(window)
            self.plain.events.append(Event(window, min(used + cost, most) - used))
        elif event is not None and event in self.plain.events and event.window == window:
            event.units += cost
        assert outcome.allowed
        assert outcome.part == self.plain.over(window) - before_it
        assert (outcome.remaining, outcome.reset_after_us) == self.plain.left(window, self.now)

    def grant(self) -> None:
        units, window = self.draw(costs(self.limit)), self.plain.look(self.now)
        self.ask(units, "force", GRANT)
        self.plain.begin(window)
        self.plain.events.append(Event(window, units, granted=True))

    def reset(self) -> None:
        self.state = unpacked(self.limit.numbers, None)
        self.plain = Plain(self.limit)


@given(quotas(), st.data())
def test_a_quota_answers_as_a_list_of_events_does(limit: Limit, data: st.DataObject) -> None:
    walk = Walk(limit, data)
    acts = [walk.spend, walk.spend, walk.spend, walk.peek, walk.settle, walk.overdraw, walk.grant, walk.reset]
    for _ in range(data.draw(st.integers(1, 15))):
        walk.move()
        data.draw(st.sampled_from(acts[:-1] * 2 + acts[-1:]))()
        walk.peek()


@given(quotas(), st.data())
def test_no_window_holds_more_than_its_quota(limit: Limit, data: st.DataObject) -> None:
    """With a clock that goes forward, whatever is asked and refunded."""
    walk = Walk(limit, data)
    allowed: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 20))):
        walk.now += data.draw(near(0, 1, limit.period_us // 2, limit.period_us))
        cost = data.draw(costs(limit))
        outcome = walk.ask(cost, "spend")
        window = bounds(limit, walk.now)[0]
        allowed[window] = allowed.get(window, 0) + (cost - outcome.part if outcome.allowed else 0)
        assert allowed[window] <= limit.count
        assert outcome.allowed or not limit.metered


@given(quotas(), st.data())
def test_callers_whose_clocks_differ_share_one_quota(limit: Limit, data: st.DataObject) -> None:
    """One clock is behind by less than a window: together they get no more than one quota for each window."""
    behind = data.draw(st.integers(1, limit.period_us * 9 // 10))
    walk = Walk(limit, data)
    clock, taken = START, 0
    windows = {bounds(limit, START - behind)[0]}
    for _ in range(data.draw(st.integers(1, 20))):
        clock += data.draw(near(0, 1, limit.period_us // 4))
        walk.now = clock - behind * data.draw(st.integers(0, 1))
        cost = data.draw(costs(limit))
        windows.add(bounds(limit, clock)[0])
        windows.add(bounds(limit, walk.now)[0])
        outcome = walk.ask(cost, "spend")
        taken += cost - outcome.part if outcome.allowed else 0
    assert taken <= limit.count * len(windows)


@given(quotas(), st.data())
def test_a_state_that_has_expired_is_as_if_untouched(limit: Limit, data: st.DataObject) -> None:
    """Storages forget a state after `expires`: its answers must be those of a new one from then on."""
    walk = Walk(limit, data)
    for _ in range(data.draw(st.integers(1, 6))):
        walk.move()
        data.draw(st.sampled_from([walk.spend, walk.overdraw, walk.grant]))()
    assert isinstance(walk.state, QuotaWindow)
    if packed(limit.numbers, walk.state) is None:
        return
    now, cost = walk.state.expires, data.draw(costs(limit))
    old, new = walk.state.copy(), unpacked(limit.numbers, None)
    assert group_law.peek(limit.numbers, old, now, cost) == group_law.peek(limit.numbers, new, now, cost)
    allowed, *_ = row = old.spend(limit.numbers, now, cost, None, 0)
    assert row == new.spend(limit.numbers, now, cost, None, 0)
    assert old.expires == new.expires or not allowed
