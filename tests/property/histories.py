"""Histories of groups that a storage must answer like the kernels over a dict, to the unit."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from ratebound import Limit, parse_limit
from ratebound.kernels.concurrency import Slots
from ratebound.kernels.packing import unpacked
from ratebound.limit import GRANT, NO_STRIKE, NOT_GIVEN, STRIKE, UNITS, Ask, Extra, Group, Mode, Spent
from ratebound.outcome import Row
from ratebound.settling import settlement, spent_of, undoing
from ratebound.storage import Storage, holders_of
from ratebound.testing import FakeClock
from tests.packed_kernels import Packed, evaluate_rows
from tests.property.strategies import costs, gaps, near


class Plain:
    """The kernels over a dict that forgets nothing."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.states: dict[tuple[str, str], Packed | None] = {}

    def evaluate(self, groups: Sequence[Group], mode: Mode) -> list[list[Row]]:
        return [self._evaluate(group, mode) for group in groups]

    def _evaluate(self, group: Group, mode: Mode) -> list[Row]:
        names = [(limit.scope, key) for key, limits, *_ in group for limit in limits]
        slots = {name: slot for slot, name in enumerate(dict.fromkeys(names))}
        states = [self.states.get(name) for name in slots]
        rows = evaluate_rows(group, mode, [slots[name] for name in names], states, self.clock.now)
        self.states.update(zip(slots, states, strict=True))
        return rows

    def reset(self, group: Group) -> None:
        for key, asked, *_ in group:
            for limit in asked:
                self.states.pop((limit.scope, key), None)

    def holders(self, key: str, limit: Limit) -> list[tuple[int, int]]:
        state = unpacked(limit.numbers, self.states.get((limit.scope, key)))
        assert isinstance(state, Slots)
        return state.holders(self.clock.now)


def value_limits() -> st.SearchStrategy[Limit]:
    periods = st.sampled_from([1_000, UNITS["second"], UNITS["hour"], UNITS["year"]])
    return st.builds(lambda count, period: Limit(count, period, 0, "distinct", values="v"), st.integers(1, 3), periods)


@st.composite
def penalties(draw: st.DrawFn) -> Limit:
    times = st.one_of(
        st.sampled_from([UNITS["second"], UNITS["hour"], UNITS["year"]]), st.integers(UNITS["second"], UNITS["day"])
    )
    count = draw(st.integers(1, 4))
    return Limit(
        count,
        max(draw(times), (count - 1) * UNITS["second"] + 1),
        0,
        "penalty",
        draw(st.sampled_from(["", "other"])),
        blocks_us=tuple(draw(st.lists(times, min_size=1, max_size=8))),
        forget_us=draw(times),
    )


def as_it_is(group: Group) -> Group:
    return group


def check_history(
    before: Storage,
    after: Storage,
    clock: FakeClock,
    pool: list[Limit],
    data: st.DataObject,
    shaped: Callable[[Group], Group] = as_it_is,
) -> None:
    """Ask Python and a storage the same questions, with jumps of the clock, resets and settlements between them.

    From some step on `after` is asked instead of `before`: another storage over the same states, or the same one.
    `shaped` changes a group into one that the storage decides like Python.
    """
    python = Plain(clock)
    start = clock.now
    steps = data.draw(st.integers(1, 8))
    rotated_at = data.draw(st.integers(0, steps))
    spends: list[Spent] = [(start, start, 0, 0)]
    granted: list[tuple[Group, list[Row]]] = []
    for step in range(steps):
        storage = before if step < rotated_at else after
        limit = data.draw(st.sampled_from(pool))
        clock.now += data.draw(st.one_of(st.just(0), gaps(limit), to_the_next_window(limit, clock.now)))
        if data.draw(st.integers(0, 9)) == 0:
            clock.now -= data.draw(near(1, 1_000, limit.period_us, 3 * limit.period_us, 10**14))
        mode: Mode = data.draw(st.sampled_from(["spend", "spend", "spend", "force", "force", "peek"]))
        groups: list[Group] = [
            shaped([data.draw(asks(pool, mode, spends)) for _ in range(data.draw(st.integers(1, 3)))])
            for _ in range(data.draw(st.integers(1, 2)))
        ]
        if mode == "force" and granted and data.draw(st.booleans()):
            group, rows = data.draw(st.sampled_from(granted))
            if data.draw(st.booleans()):
                groups = [undoing(group, rows)]
            else:
                costs = [data.draw(near(0, cost, 2 * cost)) for _, _, cost, *_ in group]
                strikes = [data.draw(st.booleans()) for _ in group]
                groups = [settlement(group, rows, costs, strikes)]
        expected = python.evaluate(groups, mode)
        assert [list(rows) for rows in storage.evaluate(groups, mode)] == expected
        if limit.has_slots or limit.is_distinct:
            assert holders_of(storage)("a", limit) == python.holders("a", limit)
        spends = [spent_of(row) for rows in expected for row in rows]
        if mode == "spend":
            granted += [(g, rows) for g, rows in zip(groups, expected, strict=True) if all(row[0] for row in rows)]
        if data.draw(st.integers(0, 19)) == 0:
            storage.reset(groups[0])
            python.reset(groups[0])


def to_the_next_window(limit: Limit, now: int) -> st.SearchStrategy[int]:
    """Microseconds until a window of a quota ends, or until the one after it does. For other limits, an hour."""
    if limit.numbers.windows is None:
        return st.just(UNITS["hour"])
    _, end, after = limit.numbers.windows.at(now)
    return st.tuples(st.sampled_from([end - now, after - now]), st.integers(-1, 1)).map(lambda pair: max(sum(pair), 0))


@st.composite
def asks(draw: st.DrawFn, pool: list[Limit], mode: Mode, spends: list[Spent]) -> Ask:
    """Of one to three limits. Within an ask each has a state of its own; those of several asks may share one."""
    asked = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3, unique_by=lambda limit: limit.scope))
    limits, limit, key = tuple(asked), draw(st.sampled_from(asked)), draw(st.sampled_from("aaab"))
    cost = draw(costs(limit))
    if mode == "force":
        cost = draw(st.sampled_from([cost, -cost]))
        given = draw(st.booleans())
        extras = [draw(forced_extras(limit, cost, spends)) for limit in limits] if given else None
        return key, limits, cost, None, extras
    extras = None
    if not all(limit.numbers.plain for limit in limits) and (mode == "spend" or draw(st.booleans())):
        extras = [draw(spent_extras(limit)) for limit in limits]
    return key, limits, cost, draw(st.one_of(st.none(), near(0, limit.period_us, 3 * limit.period_us))), extras


SLOTS = st.sampled_from([0, 1, 2, 3, 2**53 - 1]).map(lambda slot: (slot, 0, 0, 0))


def spent_extras(limit: Limit) -> st.SearchStrategy[Extra]:
    if limit.is_penalty:
        return st.sampled_from([NOT_GIVEN, NOT_GIVEN, NOT_GIVEN, NO_STRIKE])
    return st.just(NOT_GIVEN) if limit.numbers.plain else SLOTS


def forced_extras(limit: Limit, cost: int, spends: list[Spent]) -> st.SearchStrategy[Extra]:
    if limit.is_penalty:
        return st.sampled_from([STRIKE, STRIKE, NO_STRIKE, NOT_GIVEN])
    if not limit.numbers.plain:
        return st.one_of(SLOTS, st.just(NOT_GIVEN))
    # Spends of other limits, too; but a fraction of a microsecond is always in parts of the limit's own count.
    fitting = [(at, till, part % limit.count, given) for at, till, part, given in spends]
    return st.sampled_from([*fitting, GRANT] if limit.is_quota and cost > 0 else fitting)


EVERY_KIND = [
    "3/2 seconds sliding-log",
    "4/3 seconds burst 2",
    "2/second leaky-bucket",
    "5/4 seconds fixed-window",
    "6/5 seconds sliding-counter",
    "9/calendar-day",
    "5/10 seconds fixed-window over allow",
    "2 concurrent for 3 seconds",
    "3 distinct account/4 seconds",
    "2 distinct account/4 seconds as few",
    "3 strikes/10 seconds block 2 seconds then 5 seconds then 20 seconds forget 30 seconds",
    "1 strike/second block 3 seconds forget 4 seconds as strict",
    "2 strikes/5 seconds block 1 second then 10 seconds forget 20 seconds as guessing",
    "4 strikes/20 seconds block 4 seconds forget 1 second as guessing",
]


def check_slots(storage: Storage, clock: FakeClock, seed: int) -> None:
    """Check groups with several slots of one key, some held and some not, with leases of two lengths."""
    choose = random.Random(seed)
    limits = [Limit(5, lease, 0, "concurrent") for lease in (10_000_000, 4_000_000)]
    python = Plain(clock)
    for _ in range(600):
        clock.now += choose.choice([0, 0, 1, 500_000, 1_000_000, 3_000_000, 12_000_000, -3_000_000, -12_000_000])
        mode: Mode = choose.choice(["spend", "spend", "peek", "force"])
        group: list[Ask] = []
        for _ in range(choose.randint(1, 4)):
            sign = choose.choice([-1, 0, 1, 1]) if mode == "force" else 1
            slots = [(choose.randrange(10), 0, 0, 0)]
            group.append(("k", (choose.choice(limits),), sign, None, slots))
        assert [list(rows) for rows in storage.evaluate([group], mode)] == python.evaluate([group], mode)
        assert holders_of(storage)("k", limits[0]) == python.holders("k", limits[0])


def check_every_kind(storage: Storage, clock: FakeClock, seed: int) -> None:
    """Check a long history of every kind of limit.

    It has few keys, values and slots and small counts, so that much is denied, struck and blocked.
    """
    choose = random.Random(seed)
    pool = [parse_limit(text) for text in EVERY_KIND]
    python = Plain(clock)
    granted: list[tuple[Group, list[Row]]] = []
    seen: Counter[str] = Counter()
    modes: list[Mode] = ["spend", "spend", "spend", "spend", "spend", "spend", "spend", "peek", "force"]

    def extra_of(limit: Limit, mode: Mode) -> Extra:
        if limit.is_penalty:
            return choose.choice([STRIKE, NOT_GIVEN] if mode == "force" else [NOT_GIVEN] * 5 + [NO_STRIKE])
        if limit.numbers.plain or (mode != "spend" and choose.random() < 0.2):
            return NOT_GIVEN
        return choose.randrange(6), 0, 0, 0

    def drawn(mode: Mode) -> Ask:
        limits = tuple({limit.scope: limit for limit in choose.sample(pool, choose.randint(1, 6))}.values())
        cost = choose.choice([1, 1, 1, 2, 7]) * (choose.choice([1, 0, -1]) if mode == "force" else 1)
        patience = choose.choice([None] * 6 + [2_000_000]) if mode != "force" else None
        return choose.choice("ab"), limits, cost, patience, [extra_of(limit, mode) for limit in limits]

    for _ in range(800):
        clock.now += choose.choice([0, 0, 1, 300_000, 1_000_000, 1_000_001, 2_500_000])
        if choose.random() < 0.03:
            clock.now += choose.choice([-1, -1_500_000, -4_000_000, -30_000_000, 15_000_000, 40_000_000])
        mode = choose.choice(modes)
        groups: list[Group] = [[drawn(mode) for _ in range(choose.randint(1, 3))]]
        if mode == "force" and granted and choose.random() < 0.7:
            group, rows = granted.pop(choose.randrange(max(len(granted) - 3, 0), len(granted)))
            costs = [choose.choice([0, 0, cost, 2 * cost]) for _, _, cost, *_ in group]
            strikes = [choose.random() < 0.5 for _ in group]
            groups = [undoing(group, rows) if choose.random() < 0.3 else settlement(group, rows, costs, strikes)]
        (expected,) = python.evaluate(groups, mode)
        assert [list(rows) for rows in storage.evaluate(groups, mode)] == [expected]
        for key in "ab":
            for limit in pool:
                if limit.has_slots or limit.is_distinct:
                    assert holders_of(storage)(key, limit) == python.holders(key, limit)
        if mode == "spend" and all(row[0] for row in expected):
            granted.append((groups[0], expected))
        asked = [limit for _, limits, *_ in groups[0] for limit in limits]
        for limit, row in zip(asked, expected, strict=True):
            if limit.is_penalty:
                seen[f"{mode}: {row[6]}"] += 1
                seen["blocked"] += not row[0] and not row[6]
            elif limit.is_distinct:
                seen[f"{mode}: value {'allowed' if row[0] else 'denied'}"] += 1
    for kind in (
        "spend: 1",
        "spend: 2",
        "force: 1",
        "force: 2",
        "blocked",
        "spend: value denied",
        "force: value allowed",
    ):
        assert seen[kind] > 5, f"too little of this history is about {kind}: {seen}"


def check_long_log(storage: Storage, clock: FakeClock, seed: int, most: int) -> None:
    """Check a log of far more entries than fit together: refunds, charges and denials, some of it expired."""
    choose = random.Random(seed)
    limit = Limit(1_500, 10**6, 0, "sliding-log")
    python = Plain(clock)
    granted: list[tuple[Group, list[Row]]] = []

    def same(groups: list[Group], mode: Mode = "spend") -> list[Row]:
        (rows,) = python.evaluate(groups, mode)
        assert [list(found) for found in storage.evaluate(groups, mode)] == [rows]
        if mode == "spend" and rows[0][0]:
            granted.append((groups[0], rows))
        return rows

    for step in range(900):
        clock.now += choose.choice([0, 1, 900, 1_100])
        same([[("k", (limit,), choose.randint(1, most), None, None)]])
        kind = choose.randrange(12)
        if kind == 0:
            same([[("k", (limit,), choose.randint(1, 1_500), None, None)]], choose.choice(["spend", "peek"]))
        elif kind == 1:
            same([[("k", (limit,), choose.choice([-1, 1, 40, 5_000]), None, None)]], "force")
        elif kind < 5 and granted:
            place = choose.choice([-1, -2, -30, 0, choose.randrange(len(granted))])
            group, rows = granted.pop(max(place, -len(granted)))
            same([settlement(group, rows, [choose.choice([0, 0, 0, 1, 7])])], "force")
        elif kind == 5 and step > 700:
            clock.now += 300_000
        elif kind == 6 and granted:  # two in one call
            group, rows = granted.pop()
            twice = [*settlement(group, rows, [0]), ("k", (limit,), 2, None, None)]
            same([twice], "force")
