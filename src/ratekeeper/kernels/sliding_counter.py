"""Sliding counter: two fixed windows, the older one weighted by how much of it the sliding window still covers.

State is (expires, current, previous); the current window ends one period before `expires`. The estimate of
what the last period holds is current + previous * (what is left of the current window) / period. It is
rounded up, and a request passes only if the estimate with its cost stays within the count: never above
the limit by its own estimate, at the price of at most one unit per period.
"""

from ratekeeper.decision import Row
from ratekeeper.limit import Limit

State = tuple[int, ...]


def spend(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Patience is not for windows: there is no place in a window that has not begun."""
    count, period = limit.count, limit.period
    left = period - now % period  # of the current window
    expires = now + left + period
    current = previous = 0
    if state is not None:
        if state[0] > expires:
            state = repair(limit, state, now)
        if state[0] == expires:
            _, current, previous = state
        elif state[0] == expires - period:
            previous = state[1]
    free = count - current - cost + -previous * left // period  # rounds the older window's share up
    if free >= 0:
        current += cost
        return (expires, current, previous), (True, free, 0, left + period, 0, now)
    remaining = free + cost
    reset_after = left + period if current else left if previous else 0
    retry_after = _retry_after(limit, current, previous, left, cost)
    return state, (False, remaining if remaining > 0 else 0, retry_after, reset_after, 0, now)


def _retry_after(limit: Limit, current: int, previous: int, left: int, cost: int) -> int | None:
    """Solve the estimate for time: first within this window, else within the next, where `current` is the older."""
    count, period = limit.count, limit.period
    if cost > count:
        return None
    if current + cost <= count:
        return left - (count - current - cost) * period // previous
    return left + period - (count - cost) * period // current


def standing(limit: Limit, state: State | None, now: int) -> tuple[int, int]:
    period = limit.period
    left = period - now % period
    expires = now + left + period
    if state is None or state[0] < expires - period:
        return limit.count, 0
    current, previous = (state[1], state[2]) if state[0] == expires else (0, state[1])
    remaining = limit.count - current + -previous * left // period
    return max(remaining, 0), left + period if current else left if previous else 0


def force(
    limit: Limit, state: State | None, now: int, cost: int, spent: tuple[int, int] | None
) -> tuple[State | None, Row]:
    """Overdraw this window by at most one count, or refund the window that the spend was made in."""
    period = limit.period
    expires = now - now % period + 2 * period
    current = previous = 0
    if state is not None:
        state = repair(limit, state, now)
        if state[0] == expires:
            _, current, previous = state
        elif state[0] == expires - period:
            previous = state[1]
    at = now if cost > 0 or spent is None else spent[0]
    if expires - 2 * period <= at < expires - period:
        current = min(max(current + cost, 0), 2 * limit.count)
    elif expires - 3 * period <= at:
        previous = max(previous + cost, 0)
    state = (expires, current, previous) if current or previous else None
    remaining, reset_after = standing(limit, state, now)
    return state, (True, remaining, 0, reset_after, 0, now)


def repair(limit: Limit, state: State, now: int) -> State:
    """A window from the future means that the clock stepped back: all that it knew counts in this window."""
    expires = now - now % limit.period + 2 * limit.period
    return (expires, min(state[1] + state[2], 2 * limit.count), 0) if state[0] > expires else state
