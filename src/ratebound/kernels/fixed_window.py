"""Fixed window: a counter for each window, windows aligned to the clock.

State is (end, used, since): the instant at which the window ends, what was spent in it, and since when. A spend is told
`since`, as `given`. Only what has the same is refunded: what was spent before a reset, or before a clock that stepped
back entered the window again, is not in `used`. Simple and small, but a client may spend one full
count just before a boundary and another just after it.
"""

from ratebound.decision import Row
from ratebound.limit import Limit, Spent

State = tuple[int, ...]


def spend(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Patience is not for windows: there is no place in a window that has not begun."""
    count = limit.count
    end = now - now % limit.period_us + limit.period_us
    used, since = 0, now
    if state is not None and state[0] >= end:
        used, since = state[1], state[2]
        if state[0] > end:
            state = (end, used, since)
    if used + cost <= count:
        used += cost
        return (end, used, since), (True, count - used, 0, end - now, 0, now, since, 0)
    retry_after = end - now if cost <= count else None
    return state, (False, max(count - used, 0), retry_after, end - now if used else 0, 0, now, 0, 0)


def standing(limit: Limit, state: State | None, now: int) -> tuple[int, int]:
    if state is None or state[0] <= now or not state[1]:
        return limit.count, 0
    return max(limit.count - state[1], 0), state[0] - now


def force(limit: Limit, state: State | None, now: int, cost: int, spent: Spent | None) -> tuple[State | None, Row]:
    """Overdraw this window by at most one count, or refund what is in `used` of the spend."""
    end = now - now % limit.period_us + limit.period_us
    if state is not None:
        state = repair(limit, state, now) if state[0] >= end else None
    if cost > 0 or (state is not None and (spent is None or spent[3] == state[2])):
        used, since = (state[1], state[2]) if state is not None else (0, now)
        state = (end, max(min(used + cost, max(used, 2 * limit.count)), 0), since)
    remaining, reset_after = standing(limit, state, now)
    return state, (True, remaining, 0, reset_after, 0, now, 0, 0)


def repair(limit: Limit, state: State, now: int) -> State:
    """A window from the future means that the clock stepped back: what was spent counts in this window."""
    end = now - now % limit.period_us + limit.period_us
    return (end, state[1], state[2]) if state[0] > end else state


def turn_after(limit: Limit, state: State | None, now: int, front: int, cost: int) -> int | None:
    """What is left of this window is given now, and a count at the beginning of each that follows."""
    if cost > limit.count:
        return None
    late = front + cost - standing(limit, state, now)[0]
    if late <= 0:
        return 0
    return limit.period_us - now % limit.period_us + (late - 1) // limit.count * limit.period_us


def grows_after(limit: Limit, remaining: int, reset_after: int) -> int:
    """Exact: all comes back at the window's end."""
    return reset_after
