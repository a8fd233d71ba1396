"""Penalties against an oracle of plain events: all tries of a strike, counted anew for each answer."""

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limit, MemoryStorage, Outcome, parse_limit
from ratebound.clock import SECOND
from ratebound.kernels import group_law
from ratebound.kernels.packing import unpacked
from ratebound.kernels.penalty import BLOCKED, STRUCK
from ratebound.limit import NO_STRIKE, NOT_GIVEN, STRIKE, Ask, Extra, Mode
from ratebound.testing import FakeClock
from tests.property.strategies import START, near, penalties


class History:
    """What a penalty has come to after strikes were tried at these instants."""

    def __init__(self, limit: Limit, tries: list[int]) -> None:
        self.limit = limit
        self.counted: list[int] = []  # strikes towards the next block
        self.last: int | None = None  # the last one that counted, towards whichever block
        self.blocks = 0
        self.end: int | None = None  # of the last block
        self.given = 0  # by the last try
        for at in tries:
            self.given = self.strike(at)

    def strike(self, at: int) -> int:
        if self.is_blocked(at) or (self.last is not None and at < self.last + SECOND):
            return 0
        if at >= self.forgotten():
            self.blocks = 0
        self.counted = [*self.live(at), at]
        self.last = at
        if len(self.counted) < self.limit.count:
            return STRUCK
        lengths = self.limit.blocks_us
        self.end = at + (lengths[self.blocks] if self.blocks < len(lengths) else lengths[-1])
        self.blocks += 1
        self.counted = []
        return BLOCKED

    def live(self, now: int) -> list[int]:
        return [at for at in self.counted if at + self.limit.period_us > now]

    def is_blocked(self, now: int) -> bool:
        return self.end is not None and now < self.end

    def forgotten(self) -> int:
        """The instant from which it is as if nothing had been: not while strikes count, nor before `forget` is over.

        That runs from the end of the last block, and from a strike after it.
        """
        if self.last is None:
            return 0
        found = self.last + self.limit.period_us if self.counted else 0
        if self.blocks:
            found = max(found, max(self.end or 0, self.last) + self.limit.forget_us)
        return found

    def row(self, now: int, given: int) -> Outcome:
        blocked = self.is_blocked(now)
        remaining = 0 if blocked else self.limit.count - len(self.live(now))
        wait = (self.end or 0) - now if blocked else 0
        return Outcome(not blocked, remaining, wait, max(self.forgotten() - now, 0), 0, now, given, 0, None)


def gaps(limit: Limit) -> st.SearchStrategy[int]:
    return near(0, 1, SECOND, limit.period_us, limit.blocks_us[0], limit.blocks_us[-1], limit.forget_us)


@given(penalties(), st.data())
def test_a_penalty_answers_as_a_list_of_strikes_does(limit: Limit, data: st.DataObject) -> None:
    state, tries, now = unpacked(limit.numbers, None), list[int](), START
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(gaps(limit))
        mode: Mode = data.draw(st.sampled_from(["force", "force", "force", "spend", "peek"]))
        extra: Extra = data.draw(st.sampled_from([STRIKE, STRIKE, STRIKE, NOT_GIVEN])) if mode == "force" else NOT_GIVEN
        if extra == STRIKE:
            tries.append(now)
        states = [state]
        cost = data.draw(st.integers(1, 9))
        (row,) = group_law.evaluate((("k", (limit,), cost, None, [extra]),), mode, [0], states, now)
        state = states[0]
        history = History(limit, tries)
        assert Outcome(*row) == history.row(now, history.given if extra == STRIKE else 0)


@given(penalties(), st.data())
def test_a_clock_that_steps_back_lifts_no_block_and_makes_none_longer(limit: Limit, data: st.DataObject) -> None:
    """In real time a block is never shorter than it was said to be, and never tells a longer wait than its length."""
    state = unpacked(limit.numbers, None)
    now, real, until, length = START, 0, 0, 0
    for _ in range(data.draw(st.integers(1, 30))):
        gap = data.draw(gaps(limit))
        step = (
            -data.draw(near(1, limit.period_us, limit.blocks_us[0], 10**12)) if data.draw(st.integers(0, 5)) == 0 else 0
        )
        real += gap
        now = max(now + gap + step, 1)
        row = state.copy().spend(limit.numbers, now, 1, None, 0)
        assert row[2] is not None
        assert row[2] <= length, "longer than the last block"
        assert row[0] is False or real >= until
        row = state.force(limit.numbers, now, 1, STRIKE)
        assert row[2] is not None
        if row[6] == BLOCKED:
            until, length = real + row[2], row[2]
            assert length in limit.blocks_us


RATE = parse_limit("2/10 seconds fixed-window as rate")
METERED = parse_limit("1/10 seconds fixed-window over allow as meter")
SLOTS = parse_limit("1 concurrent for 5 seconds")
VALUES = parse_limit("1 distinct account/10 seconds")
OTHERS = (RATE, METERED, SLOTS, VALUES)
KEYS = "ab"


@st.composite
def asks(draw: st.DrawFn, pool: list[Limit], patience: int | None) -> Ask:
    """Some limits of every kind, and some penalties, in any order."""
    chosen = draw(st.lists(st.sampled_from([*OTHERS, RATE, *pool]), min_size=1, max_size=5, unique=True))
    extras: list[Extra] = []
    for limit in chosen:
        if limit.is_penalty:
            extras.append(draw(st.sampled_from([NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NO_STRIKE])))
        else:
            extras.append(NOT_GIVEN if limit.takes_cost else (draw(st.integers(0, 5)), 0, 0, 0))
    cost = draw(st.sampled_from([1, 1, 1, 2, 3]))  # 3 never passes
    return draw(st.sampled_from(KEYS)), tuple(chosen), cost, patience, extras


@given(st.tuples(penalties("one"), penalties("two")), st.data())
def test_strikes_of_groups_of_all_kinds_are_counted_as_told(pool: tuple[Limit, Limit], data: st.DataObject) -> None:
    """The other limits say whether they deny. What is a strike, and of which penalty, is written here once more."""
    clock = FakeClock(START)
    storage = MemoryStorage(clock=clock)
    tries: dict[tuple[str, str], list[int]] = {(key, limit.name): [] for key in KEYS for limit in pool}
    for _ in range(data.draw(st.integers(1, 12))):
        clock.now += data.draw(st.one_of(near(0, SECOND, 10 * SECOND), gaps(data.draw(st.sampled_from(pool)))))
        mode: Mode = data.draw(st.sampled_from(["spend", "spend", "spend", "spend", "peek"]))
        patience = data.draw(st.sampled_from([None, None, None, None, 0, 20 * SECOND]))
        group = data.draw(st.lists(asks(list(pool), patience), min_size=1, max_size=3))
        before = {place: History(limit_of(pool, place[1]), found) for place, found in tries.items()}
        rows = iter(storage.evaluate((group,), mode)[0])
        answered = [[(limit, next(rows)) for limit in limits] for _, limits, *_ in group]
        asked = {(key, limit.name) for key, limits, *_ in group for limit in limits if limit.is_penalty}
        blocked = any(before[place].is_blocked(clock.now) for place in asked)
        struck = set()
        for (key, limits, _, _, extras), answers in zip(group, answered, strict=True):
            denied = [
                limit
                for limit, row in answers
                if not row[0] and row[2] is not None and not limit.has_slots and not limit.is_penalty
            ]
            if mode == "spend" and denied and patience is None and not blocked and extras is not None:
                named = zip(limits, extras, strict=True)
                struck |= {(key, limit.name) for limit, extra in named if limit.is_penalty and extra != NO_STRIKE}
        for place in struck:
            tries[place].append(clock.now)
        for (key, *_), answers in zip(group, answered, strict=True):
            for limit, row in answers:
                place = (key, limit.name)
                if limit.is_penalty and patience is None:  # a patient peek tells what passes within that time
                    history = History(limit, tries[place])
                    assert Outcome(*row) == history.row(clock.now, history.given if place in struck else 0)
        for key in KEYS:
            for limit in pool:
                (row,) = storage.evaluate(((((key, (limit,), 1, None, None),)),), "peek")[0]
                assert Outcome(*row) == History(limit, tries[key, limit.name]).row(clock.now, 0)


def limit_of(pool: tuple[Limit, Limit], name: str) -> Limit:
    return next(limit for limit in pool if limit.name == name)
