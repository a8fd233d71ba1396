"""Sliding log: every spend of the last period, exactly.

State is (expires, used, instant, cost, instant, cost, …) in one flat tuple, oldest first: one entry for each instant,
not one for each unit. An entry counts from its instant until one period later, so no window of one period, wherever it
begins, holds more than the count.
"""

from ratebound.decision import Row
from ratebound.limit import Limit, Spent

State = tuple[int, ...]


def spend(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Charge `cost` if the last period has room. Patience is ignored: the entries of a later instant are not known."""
    count, period = limit.count, limit.period_us
    if state is None:
        if cost <= count:
            return (now + period, cost, now, cost), (True, count - cost, 0, period, 0, now, 0, 0)
        return None, (False, count, None, 0, 0, now, 0, 0)
    if state[0] > now + period:
        state = repair(limit, state, now)
    oldest = now - period
    used, first = (state[1], 2) if state[2] > oldest else _live(state, oldest)  # no call where nothing has left
    if used + cost <= count:
        used += cost
        entries = state[first:]
        if state[0] == now + period and entries:
            entries, cost = entries[:-2], cost + entries[-1]
        return (now + period, used, *entries, now, cost), (True, count - used, 0, period, 0, now, 0, 0)
    reset_after = state[0] - now if used else 0
    retry_after = None if cost > count else _retry_after(limit, state, first, used + cost - count) - now
    return state, (False, max(count - used, 0), retry_after, reset_after, 0, now, 0, 0)


def _live(state: State, oldest: int) -> tuple[int, int]:
    """Return the units used after `oldest`, and the index of the first entry after it."""
    used, first = state[1], 2
    while first < len(state) and state[first] <= oldest:
        used -= state[first + 1]
        first += 2
    return used, first


def _retry_after(limit: Limit, state: State, first: int, excess: int) -> int:
    """Return the instant at which enough of the oldest entries have left."""
    while excess > state[first + 1]:
        excess -= state[first + 1]
        first += 2
    return state[first] + limit.period_us


def turn_after(limit: Limit, state: State | None, now: int, front: int, cost: int) -> int | None:
    """Return microseconds until `cost` passes after `front` units; None if it never does.

    In a line of single units, each passes one period after the unit that is a whole count in front of it.
    """
    if cost > limit.count:
        return None
    periods, units = divmod(front + cost - 1, limit.count)
    wait = periods * limit.period_us
    if state is not None:
        used, first = _live(state, now - limit.period_us)
        excess = used + units + 1 - limit.count
        if excess > 0:
            wait += _retry_after(limit, state, first, excess) - now
    return wait


def standing(limit: Limit, state: State | None, now: int) -> tuple[int, int]:
    """Return (remaining, reset_after)."""
    if state is None:
        return limit.count, 0
    used, _ = _live(state, now - limit.period_us)
    return max(limit.count - used, 0), state[0] - now if used else 0


def force(limit: Limit, state: State | None, now: int, cost: int, spent: Spent | None) -> tuple[State | None, Row]:
    """Overdraw by at most one count, or refund the entry of the spend's instant if it still counts."""
    entries: list[int] = []
    if state is not None:
        state = repair(limit, state, now)
        entries = list(state[_live(state, now - limit.period_us)[1] :])
    if cost > 0:
        cost = max(min(cost, 2 * limit.count - sum(entries[1::2])), 0)
        if entries and entries[-2] == now:
            entries[-1] += cost
        elif cost > 0:
            entries += [now, cost]
    else:
        at = now if spent is None else spent[0]
        for i in range(0, len(entries), 2):
            if entries[i] == at:
                entries[i + 1] = max(entries[i + 1] + cost, 0)
                if not entries[i + 1]:
                    del entries[i : i + 2]
                break
    state = (entries[-2] + limit.period_us, sum(entries[1::2]), *entries) if entries else None
    remaining, reset_after = standing(limit, state, now)
    return state, (True, remaining, 0, reset_after, 0, now, 0, 0)


def repair(limit: Limit, state: State, now: int) -> State:
    """Return the state after a step back of the clock: entries from the future count from now on."""
    if state[0] <= now + limit.period_us:
        return state
    early = [entry for i in range(2, len(state), 2) if state[i] < now for entry in state[i : i + 2]]
    late = state[1] - sum(early[1::2])
    return (now + limit.period_us, state[1], *early, now, late)


def grows_after(limit: Limit, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains, at the latest: the oldest entry may leave earlier."""
    return reset_after
