"""The group law: checks that are decided together are all charged, or none is (laws 2 and 3)."""

from collections.abc import Sequence
from typing import Final

from ratebound.kernels.gcra import Bucket
from ratebound.kernels.state import State
from ratebound.limit import MAX_SPAN, Group, Mode, Spent
from ratebound.numbers import Numbers, product
from ratebound.outcome import Row

MAX_ROUNDS: Final = 8  # of the search for an instant at which several buckets have room; after that, holes are ignored


class _Asked:
    """One limit of an ask, and the index of its state."""

    __slots__ = ("cost", "limit", "patience", "slot", "spent")

    def __init__(self, slot: int, limit: Numbers, cost: int, patience: int | None, spent: Spent | None) -> None:
        self.slot = slot
        self.limit = limit
        self.cost = cost
        self.patience = patience
        self.spent = spent


def evaluate(group: Group, mode: Mode, slots: Sequence[int], states: list[State], now: int) -> list[Row]:
    """Decide a group at one instant, all or nothing. Return one row for each limit of each ask, in order.

    `slots` gives the index in `states` for each of them; equal checks share an index and see each other's spending.
    A group that is charged puts changed copies into `states`; the caller stores them. A denied group changes nothing
    except repairs after a step back of the clock, and its rows are those of a peek: every limit reports what remains
    now.
    """
    asked: list[_Asked] = []
    for _, limits, cost, patience, spent in group:
        for i, limit in enumerate(limits):
            each = None if spent is None else spent[i]
            asked.append(_Asked(slots[len(asked)], limit.numbers, cost, patience, each))
    if mode == "force":
        return _force(asked, states, now)
    if mode == "peek":
        return _peek(asked, states, now)
    lead = rounds = 0
    searched = states
    while True:
        after = [state.copy() for state in searched]
        rows = _spend(asked, after, now, lead)
        last = len(rows) - 1
        if not rows[last][0]:
            answers = _peek(asked, states, now)
            if answers[last][0]:  # it would pass alone, but not after the checks before it
                answers[last] = rows[last]
            return answers
        # Places in the future are taken for one instant, the same in every bucket that has patience. A bucket without
        # room at that instant moves it further. Equal checks come one after the other and would move it for ever.
        longest = max([row[4] for row in rows])
        if longest <= lead or len(rows) == 1 or (lead and len(set(slots)) < len(slots)):
            break
        lead = longest
        rounds += 1
        if rounds == MAX_ROUNDS:
            searched = [state.without_holes() if isinstance(state, Bucket) else state for state in states]
    if searched is not states:  # a place that is free at the ends of all lines is also free with their holes
        after = [state.copy() for state in states]
        rows = _spend(asked, after, now, lead)
    states[:] = after
    return rows


def _spend(asked: list[_Asked], states: list[State], now: int, lead: int) -> list[Row]:
    """Spend until the first denial, which is then the last row. Changes the states."""
    rows: list[Row] = []
    for ask in asked:
        later = lead if ask.patience is not None else 0
        row = states[ask.slot].spend(ask.limit, now, ask.cost, ask.patience, later)
        rows.append(row)
        if not row[0]:
            break
    return rows


def _force(asked: list[_Asked], states: list[State], now: int) -> list[Row]:
    rows: list[Row] = []
    for ask in asked:
        state = states[ask.slot].copy()
        states[ask.slot] = state
        rows.append(state.force(ask.limit, now, ask.cost, ask.spent))
    return rows


def _peek(asked: list[_Asked], states: list[State], now: int) -> list[Row]:
    """Return the rows of a peek. Changes states only by repairs.

    Equal checks ask for their costs together, so that `retry_after` is that of the whole group. With patience they ask
    one after the other.
    """
    before = [0] * len(states)
    rows: list[Row] = []
    for ask in asked:
        rows.append(peek(ask.limit, states[ask.slot], now, ask.cost, ask.patience, before[ask.slot]))
        before[ask.slot] += ask.cost
    return rows


def peek(limit: Numbers, state: State, now: int, cost: int, patience: int | None = None, front: int = 0) -> Row:
    """Repair a state and return a row: `allowed` and `retry_after` as of a spend, the rest as it is now.

    `front` is the cost that is asked before: together with this cost, or with patience before it. With patience a
    window also says whether its turn comes within that time, although a window has no places to take.
    """
    state.repair(limit, now)
    if patience is None:
        if not state.fits(limit, now, front + cost):
            return state.spend(limit, now, front + cost, None, 0)  # a denial, which changes nothing
        remaining, reset_after = state.standing(limit, now)
        delay = state.copy().spend(limit, now, front + cost, None, 0)[4] if limit.queues else 0
        return (True, remaining, 0, reset_after, delay, now, 0, 0, None)
    remaining, reset_after = state.standing(limit, now)
    wait: int | None = None
    if product(limit.period_us, front) // limit.count <= MAX_SPAN:
        wait = state.turn_after(limit, now, front, cost)
    if wait is None:
        return (False, remaining, None, reset_after, 0, now, 0, 0, None)
    if wait <= patience:
        return (True, remaining, 0, reset_after, wait, now, 0, 0, None)
    return (False, remaining, wait - patience, reset_after, 0, now, 0, 0, None)
