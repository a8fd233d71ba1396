"""Sliding counter: two windows in a row, the older one weighted by how much of it the last period still covers.

State is (expires, current, previous). The current window ends one period before `expires`; the first one
begins with the first spend of an untouched key. The estimate of what the last period holds is
current + previous * (what is left of the current window) / period. It is rounded up, and a request passes
only if the estimate with its cost stays within the count: never above the limit by its own estimate, at
the price of at most one unit per period.
"""

from ratebound.decision import Row
from ratebound.limit import Limit, Spent

State = tuple[int, ...]

EXACT_WINDOWS = 16


def spend(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Patience is not for windows: there is no place in a window that has not begun."""
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
    """What the state means now that its current window is over, or not yet there: (state, left, current, previous)."""
    state = repair(limit, state, now)
    expires, current, previous = state
    left = expires - limit.period_us - now
    if left > 0:
        return state, left, current, previous
    if left > -limit.period_us:
        return state, left + limit.period_us, 0, current
    return state, limit.period_us, 0, 0


def _retry_after(limit: Limit, left: int, current: int, previous: int, cost: int) -> int:
    """Solve the estimate for time: first within this window, else within the next, where `current` is the older."""
    count, period = limit.count, limit.period_us
    if current + cost <= count:
        return left - (count - current - cost) * period // previous
    return left + period - (count - cost) * period // current


def turn_after(limit: Limit, state: State | None, now: int, front: int, cost: int) -> int | None:
    """Those in front go ahead one by one, as each window lets them; `cost` goes ahead after them, at once.

    Beyond EXACT_WINDOWS the windows are taken to give a whole count each, so the answer may be too short.
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
    if state is None:
        return limit.count, 0
    _, left, current, previous = _moved(limit, state, now)
    remaining = limit.count - current + -previous * left // limit.period_us
    return max(remaining, 0), left + limit.period_us if current else left if previous else 0


def force(limit: Limit, state: State | None, now: int, cost: int, spent: Spent | None) -> tuple[State | None, Row]:
    """Overdraw this window by at most one count, or refund the window that the spend was made in.

    A window is known by its end: one that began anew when the clock stepped back, or after a reset, has another.
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
    """A window that has not begun means that the clock stepped back: let it begin now, with all that it knew."""
    return (now + 2 * limit.period_us, *state[1:]) if state[0] > now + 2 * limit.period_us else state


def grows_after(limit: Limit, remaining: int, reset_after: int) -> int:
    """At the latest, and exact if the window before was empty: then the units of this one begin to leave at its end."""
    left = reset_after - limit.period_us
    if left <= 0 or remaining >= limit.count:
        return reset_after
    return left - limit.period_us // (remaining - limit.count)
