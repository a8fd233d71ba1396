"""The group law: checks that are decided together are all charged, or none is (laws 2 and 3)."""

from collections.abc import Sequence
from typing import Final

from ratebound.decision import StoredRow
from ratebound.kernels.concurrency import Slots
from ratebound.kernels.gcra import Bucket
from ratebound.kernels.penalty import Strikes
from ratebound.kernels.quota import QuotaWindow
from ratebound.kernels.state import State
from ratebound.limit import MAX_SPAN, NO_STRIKE, NOT_GIVEN, SPAN, Extra, Group, Mode
from ratebound.numbers import Numbers, product
from ratebound.outcome import Row

MAX_ROUNDS: Final = 8  # of the search for an instant at which several buckets have room; after that, holes are ignored


class _Asked:
    """One limit of an ask, and the index of its state. `number` is that of its ask. `extra` is None if NOT_GIVEN."""

    __slots__ = ("cost", "extra", "limit", "number", "patience", "place")

    def __init__(
        self, number: int, place: int, limit: Numbers, cost: int, patience: int | None, extra: Extra | None
    ) -> None:
        self.number = number
        self.place = place
        self.limit = limit
        self.cost = cost
        self.patience = patience
        self.extra = extra

    def spend(self, state: State, now: int, lead: int) -> Row:
        """Charge the cost, or take the slot or count the value, if the limit allows it."""
        if isinstance(state, Slots):
            if self.extra is None:
                raise ValueError("a limit of slots or of distinct values needs an id in the extras of its ask")
            return state.take(self.limit, now, self.extra)
        return state.spend(self.limit, now, self.cost, self.patience, lead if self.patience is not None else 0)


def evaluate(
    group: Group, mode: Mode, places: Sequence[int], states: list[State], now: int, strikes: bool = True
) -> list[Row]:
    """Decide a group at one instant, all or nothing. Return one row for each limit of each ask, in order.

    `places` gives the index in `states` for each of them; equal checks share an index and see each other's spending.
    A group that is charged puts changed copies into `states`; the caller stores them. A denied group changes nothing
    except repairs after a step back of the clock, and its rows are those of a peek: every limit reports what remains
    now. Where a denied ask has a penalty, the penalty counts a strike, unless `strikes` is False; a changed copy is put
    into `states`.
    """
    asked: list[_Asked] = []
    for number, (_, limits, cost, patience, extras) in enumerate(group):
        for i, limit in enumerate(limits):
            extra = None if extras is None or extras[i] == NOT_GIVEN else extras[i]
            asked.append(_Asked(number, places[len(asked)], limit.numbers, cost, patience, extra))
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
            if strikes:
                _strike(group, asked, states, answers, now)
            return answers
        # Places in the future are taken for one instant, the same in every bucket that has patience. A bucket without
        # room at that instant moves it further. Equal checks come one after the other and would move it for ever.
        longest = max([row[4] for row in rows])
        if longest <= lead or len(rows) == 1 or (lead and len(set(places)) < len(places)):
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


def denials(limits: list[Numbers], states: list[State], now: int, cost: int) -> int:
    """Repair all states of one key. Return one bit for each limit that denies the cost: 1 for the first, 2 for the
    second, 4 for the third. Return 0 if all allow it."""
    denying = 0
    for i, state in enumerate(states):
        state.repair(limits[i], now)
        if not state.fits(limits[i], now, cost):
            denying |= 1 << i
    return denying


def spend_one_key(
    limits: list[Numbers], states: list[State], fit: bool, now: int, cost: int, answers: list[StoredRow]
) -> bool:
    """Spend from all states of one key, or from none. Return True if all limits allow it. Changes the states.

    `fit` is True if `fits` of all of them returned True. The rows are put into `answers`.
    """
    if not fit:  # a state that has to be repaired does not fit either, so look again
        fit = not denials(limits, states, now, cost)
    for i, state in enumerate(states):
        if fit:
            answers.append(StoredRow(state.spend(limits[i], now, cost, None, 0)))
        else:
            answers.append(StoredRow(peek(limits[i], state, now, cost)))
    return fit


def _spend(asked: list[_Asked], states: list[State], now: int, lead: int) -> list[Row]:
    """Spend until the first denial, which is then the last row. Changes the states."""
    rows: list[Row] = []
    for ask in asked:
        row = ask.spend(states[ask.place], now, lead)
        rows.append(row)
        if not row[0]:
            break
    return rows


def penalties_to_strike(group: Group, rows: Sequence[Row]) -> list[int]:
    """Return the penalties that count a strike if these are the rows of a denied group: their indices among the rows.

    These are the penalties of each ask with a denial that counts. No strike comes from slots, from a cost that never
    passes, from an ask with patience, with NO_STRIKE, or while a penalty of the group blocks. Where limits that belong
    together are in several asks, the extra of a penalty says which: see `limit.SPAN`.
    """
    guilty: list[bool] = []
    penalties: list[tuple[int, int, int]] = []  # index, first and last of the limits whose denials count
    for _, limits, _, patience, extras in group:
        begin = len(guilty)
        for n, limit in enumerate(limits):
            i = begin + n
            row = rows[i]
            algorithm = limit.numbers.algorithm
            is_penalty = algorithm == "penalty"
            guilty.append(not row[0] and row[2] is not None and algorithm != "concurrent" and not is_penalty)
            if is_penalty:
                if not row[0]:
                    return []
                extra = NOT_GIVEN if extras is None else extras[n]
                if extra[0] == SPAN:
                    penalties.append((i, i - extra[1], i + extra[2]))
                elif extra != NO_STRIKE and patience is None:
                    penalties.append((i, begin, begin + len(limits) - 1))
    return [i for i, first, last in penalties if any(guilty[first : last + 1])]


def _strike(group: Group, asked: list[_Asked], states: list[State], answers: list[Row], now: int) -> None:
    """Count the strikes of a denied group, and put the rows after them into `answers`.

    A penalty that is in several asks is struck once.
    """
    given: dict[int, int] = {}
    for i in penalties_to_strike(group, answers):
        ask = asked[i]
        if ask.place not in given:
            state = states[ask.place].copy()
            if isinstance(state, Strikes):
                given[ask.place] = state.strike(ask.limit, now)
                if given[ask.place]:
                    states[ask.place] = state
    for i, ask in enumerate(asked):
        state = states[ask.place]
        if ask.place in given and isinstance(state, Strikes):
            answers[i] = state.answer(ask.limit, now, given[ask.place])


def _force(asked: list[_Asked], states: list[State], now: int) -> list[Row]:
    rows: list[Row] = []
    for ask in asked:
        state = states[ask.place].copy()
        states[ask.place] = state
        rows.append(state.force(ask.limit, now, ask.cost, ask.extra))
    return rows


def _peek(asked: list[_Asked], states: list[State], now: int) -> list[Row]:
    """Return the rows of a peek. Changes states only by repairs.

    Equal checks ask for their costs together, so that `retry_after` is that of the whole group. With patience they ask
    one after the other. Slots are taken one after the other, of a copy.
    """
    before = [0] * len(states)
    taken: dict[int, State] = {}
    rows: list[Row] = []
    for ask in asked:
        state = states[ask.place]
        if isinstance(state, Slots) and ask.extra is not None:
            after = taken.setdefault(ask.place, state.copy())
            row = ask.spend(after, now, 0)
            if row[0]:
                remaining, reset_after = state.standing(ask.limit, now)
                row = (True, remaining, 0, reset_after, 0, now, 0, 0, None)
            rows.append(row)
            continue
        rows.append(peek(ask.limit, state, now, ask.cost, ask.patience, before[ask.place]))
        before[ask.place] += ask.cost
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
        row = (True, remaining, 0, reset_after, delay, now, 0, 0, None)
        return state.peeked(limit, now, row) if isinstance(state, QuotaWindow) else row
    remaining, reset_after = state.standing(limit, now)
    wait: int | None = None
    if product(limit.period_us, front) // limit.count <= MAX_SPAN:
        wait = state.turn_after(limit, now, front, cost)
    if wait is None:
        return (False, remaining, None, reset_after, 0, now, 0, 0, None)
    if wait <= patience:
        return (True, remaining, 0, reset_after, wait, now, 0, 0, None)
    return (False, remaining, wait - patience, reset_after, 0, now, 0, 0, None)
