"""The arithmetic of every algorithm (law 1): pure functions of limit, state, now and cost.

A kernel has six functions:
- `spend` charges a cost if the limit allows it.
- `force` charges or refunds unconditionally.
- `standing` returns what remains.
- `repair` corrects a state after the clock stepped back.
- `turn_after` returns when a cost passes if other costs pass before it, each as early as it can.
- `grows_after` returns when more will remain than an answer said, if nothing is spent. It is never too early.

A state is a tuple of whole numbers; if its first number is before now, the state is as if untouched. `evaluate` decides
a group (laws 2 and 3).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ratebound.decision import Row
from ratebound.kernels import fixed_window, gcra, sliding_counter, sliding_log
from ratebound.limit import MAX_SPAN, Group, Limit, Mode, Spent

State = tuple[int, ...]
Spend = Callable[[Limit, State | None, int, int, int | None, int], tuple[State | None, Row]]
Force = Callable[[Limit, State | None, int, int, Spent | None], tuple[State | None, Row]]
Standing = Callable[[Limit, State | None, int], tuple[int, int]]
Repair = Callable[[Limit, State, int], State]
TurnAfter = Callable[[Limit, State | None, int, int, int], int | None]
GrowsAfter = Callable[[Limit, int, int], int]


class Kernel(NamedTuple):
    """The six functions of one algorithm; see the module."""

    spend: Spend
    force: Force
    standing: Standing
    repair: Repair
    turn_after: TurnAfter
    grows_after: GrowsAfter


_GCRA = Kernel(gcra.spend, gcra.force, gcra.standing, gcra.repair, gcra.turn_after, gcra.grows_after)
KERNELS: dict[str, Kernel] = {
    "token-bucket": _GCRA,
    "gcra": _GCRA,
    "leaky-bucket": _GCRA,
    "fixed-window": Kernel(
        fixed_window.spend,
        fixed_window.force,
        fixed_window.standing,
        fixed_window.repair,
        fixed_window.turn_after,
        fixed_window.grows_after,
    ),
    "sliding-counter": Kernel(
        sliding_counter.spend,
        sliding_counter.force,
        sliding_counter.standing,
        sliding_counter.repair,
        sliding_counter.turn_after,
        sliding_counter.grows_after,
    ),
    "sliding-log": Kernel(
        sliding_log.spend,
        sliding_log.force,
        sliding_log.standing,
        sliding_log.repair,
        sliding_log.turn_after,
        sliding_log.grows_after,
    ),
}
MAX_ROUNDS = 8  # of the search for an instant at which several buckets have room; after that, holes are ignored
SPEND: dict[str, Spend] = {algorithm: kernel.spend for algorithm, kernel in KERNELS.items()}


def evaluate(group: Group, mode: Mode, slots: Sequence[int], states: list[State | None], now: int) -> list[Row]:
    """Decide a group at one instant, all or nothing. Return one row for each limit of each ask, in order.

    `slots` gives the index in `states` for each of them; equal checks share an index and see each other's spending.
    `states` is changed in place to what must be stored. A denied group changes nothing except repairs after a step back
    of the clock, and its rows are those of a peek: every limit reports what remains now.
    """
    if mode == "force":
        return _force(group, slots, states, now)
    if mode == "peek":
        return _peek(group, slots, states, now)
    lead = rounds = 0
    searched = states
    while True:
        after = searched.copy()
        rows = _spend(group, slots, after, now, lead)
        if not rows[-1][0]:
            answers = _peek(group, slots, states, now)
            if answers[len(rows) - 1][0]:  # it would pass alone, but not after the checks before it
                answers[len(rows) - 1] = rows[-1]
            return answers
        # Places in the future are taken for one instant, the same in every bucket that has patience. A bucket without
        # room at that instant moves it further. Equal checks come one after the other and would move it for ever.
        longest = max([row[4] for row in rows])
        if longest <= lead or len(rows) == 1 or (lead and len(set(slots)) < len(slots)):
            break
        lead = longest
        rounds += 1
        if rounds == MAX_ROUNDS:
            searched = _without_holes(group, slots, states)
    if searched is not states:  # a place that is free at the ends of all lines is also free with their holes
        after = states.copy()
        rows = _spend(group, slots, after, now, lead)
    states[:] = after
    return rows


def _without_holes(group: Group, slots: Sequence[int], states: list[State | None]) -> list[State | None]:
    ends = states.copy()
    for slot, limit, _, _ in _asked(group, slots):
        state = ends[slot]
        if state is not None and KERNELS[limit.algorithm] is _GCRA:
            ends[slot] = gcra.without_holes(state)
    return ends


def _asked(group: Group, slots: Sequence[int]) -> Iterator[tuple[int, Limit, int, int | None]]:
    slot = iter(slots)
    return ((next(slot), limit, cost, patience) for _, limits, cost, patience, _ in group for limit in limits)


def _spend(group: Group, slots: Sequence[int], states: list[State | None], now: int, lead: int) -> list[Row]:
    """Spend until the first denial, which is then the last row. Changes `states`."""
    rows = []
    for slot, limit, cost, patience in _asked(group, slots):
        later = lead if patience is not None else 0
        states[slot], row = SPEND[limit.algorithm](limit, states[slot], now, cost, patience, later)
        rows.append(row)
        if not row[0]:
            break
    return rows


def _force(group: Group, slots: Sequence[int], states: list[State | None], now: int) -> list[Row]:
    rows = []
    slot = iter(slots)
    for _, limits, cost, _, spent in group:
        for i, limit in enumerate(limits):
            force, place = KERNELS[limit.algorithm].force, next(slot)
            states[place], row = force(limit, states[place], now, cost, None if spent is None else spent[i])
            rows.append(row)
    return rows


def _peek(group: Group, slots: Sequence[int], states: list[State | None], now: int) -> list[Row]:
    """Return the rows of a peek. Changes `states` only by repairs.

    Equal checks ask for their costs together, so that `retry_after` is that of the whole group. With patience they ask
    one after the other.
    """
    asked = [0] * len(states)
    rows = []
    for slot, limit, cost, patience in _asked(group, slots):
        states[slot], row = peek(limit, states[slot], now, cost, patience, asked[slot])
        asked[slot] += cost
        rows.append(row)
    return rows


def peek(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None = None, front: int = 0
) -> tuple[State | None, Row]:
    """Return the repaired state and a row: `allowed` and `retry_after` as of a spend, the rest as it is now.

    `front` is the cost that is asked before: together with this cost, or with patience before it. With patience a
    window also says whether its turn comes within that time, although a window has no places to take.
    """
    kernel = KERNELS[limit.algorithm]
    if state is not None:
        state = kernel.repair(limit, state, now)
    if patience is None:
        _, row = kernel.spend(limit, state, now, front + cost, None, 0)
        if row[0]:
            remaining, reset_after = kernel.standing(limit, state, now)
            row = (True, remaining, 0, reset_after, row[4], now, 0, 0)
        return state, row
    remaining, reset_after = kernel.standing(limit, state, now)
    wait = (
        None if front * limit.period_us // limit.count > MAX_SPAN else kernel.turn_after(limit, state, now, front, cost)
    )
    if wait is None:
        return state, (False, remaining, None, reset_after, 0, now, 0, 0)
    if wait <= patience:
        return state, (True, remaining, 0, reset_after, wait, now, 0, 0)
    return state, (False, remaining, wait - patience, reset_after, 0, now, 0, 0)
