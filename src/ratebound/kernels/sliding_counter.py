"""Sliding counter: two windows in a row, the older one weighted by the part of it that the last period still covers.

State is (expires, current, previous). The current window ends one period before `expires`; the first window begins with
the first spend of an untouched key. The estimated use of the last period is current + previous * (rest of the current
window) / period, rounded up. A request passes only if the estimate plus its cost is within the count. So the limit is
never exceeded by its own estimate, at the price of at most one unit per period.
"""

from ratebound.decision import Row
from ratebound.limit import Limit, Spent

State = tuple[int, ...]

EXACT_WINDOWS = 16


def spend(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Charge `cost` if the estimate allows it. Patience is ignored: a window that has not begun has no places."""
    count, period = limit.count, limit.period_us
    left, current, previous = period, 0, 0
    if state is not None:
        expires, current, previous = state
        left = expires - period - now  # of the current window
        if left <= 0 or left > period:
            state, left, current, previous = _moved(limit, state, now)
    free = count - current - cost
    if previous:
        free -= -(-previous * left // period)  # the older window's share, rounded up
    if free >= 0:
        return (now + left + period, current + cost, previous), (True, free, 0, left + period, 0, now, 0, 0)
    remaining = free + cost
    reset_after = left + period if current else left if previous else 0
    retry_after = None if cost > count else _retry_after(limit, left, current, previous, cost)
    return state, (False, remaining if remaining > 0 else 0, retry_after, reset_after, 0, now, 0, 0)


def _moved(limit: Limit, state: State, now: int) -> tuple[State, int, int, int]:
    """Return (state, left, current, previous): the repaired state, and its windows as of `now`."""
    state = repair(limit, state, now)
    expires, current, previous = state
    left = expires - limit.period_us - now
    if left > 0:
        return state, left, current, previous
    if left > -limit.period_us:
        return state, left + limit.period_us, 0, current
    return state, limit.period_us, 0, 0


def _retry_after(limit: Limit, left: int, current: int, previous: int, cost: int) -> int:
    """Solve the estimate for time: within this window if possible, else in the next, where `current` is the older."""
    count, period = limit.count, limit.period_us
    if current + cost <= count:
        return left - (count - current - cost) * period // previous
    return left + period - (count - cost) * period // current


def turn_after(limit: Limit, state: State | None, now: int, front: int, cost: int) -> int | None:
    """Return microseconds until `cost` passes after `front` units; None if it never does.

    The units in front pass one by one as early as each window allows, and `cost` passes at once after them. Beyond
    EXACT_WINDOWS each window is taken to give a whole count, so the answer can be too short.
    """
    count, period = limit.count, limit.period_us
    if cost > count:
        return None
    wait, left, current, previous = 0, period, 0, 0
    if state is not None:
        _, left, current, previous = _moved(limit, state, now)
    for _ in range(EXACT_WINDOWS):
        gives = max(count - current + -previous // period, 0)  # until the last microsecond of this window
        if front <= gives:
            break
        front -= gives
        wait, left, current, previous = wait + left, period, 0, current + gives
    else:
        wait += front // count * period
        front %= count
    current += front
    if current + cost - -previous * left // period > count:
        wait += _retry_after(limit, left, current, previous, cost)
    return wait


def standing(limit: Limit, state: State | None, now: int) -> tuple[int, int]:
    """Return (remaining, reset_after)."""
    if state is None:
        return limit.count, 0
    _, left, current, previous = _moved(limit, state, now)
    remaining = limit.count - current + -previous * left // limit.period_us
    return max(remaining, 0), left + limit.period_us if current else left if previous else 0


def force(limit: Limit, state: State | None, now: int, cost: int, spent: Spent | None) -> tuple[State | None, Row]:
    """Overdraw this window by at most one count, or refund the window of the spend.

    A window is identified by its end: a window that began again after a step back of the clock, or after a reset, has a
    different one.
    """
    left, current, previous = limit.period_us, 0, 0
    if state is not None:
        _, left, current, previous = _moved(limit, state, now)
    end = now + left
    expires = end + limit.period_us if cost > 0 or spent is None else spent[1]
    if expires == end + limit.period_us:
        current = max(min(current + cost, max(current, 2 * limit.count)), 0)
    elif expires == end:
        previous = max(previous + cost, 0)
    if current:
        state = (end + limit.period_us, current, previous)
    else:  # as if this window had not begun
        state = (end, previous, 0) if previous else None
    remaining, reset_after = standing(limit, state, now)
    return state, (True, remaining, 0, reset_after, 0, now, 0, 0)


def repair(limit: Limit, state: State, now: int) -> State:
    """Return the state after a step back of the clock: a window from the future begins now, with all its units."""
    return (now + 2 * limit.period_us, *state[1:]) if state[0] > now + 2 * limit.period_us else state


def grows_after(limit: Limit, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains, at the latest.

    Exact if the previous window was empty: then the units of this one begin to leave at its end.
    """
    left = reset_after - limit.period_us
    if left <= 0 or remaining >= limit.count:
        return reset_after
    return left - limit.period_us // (remaining - limit.count)
