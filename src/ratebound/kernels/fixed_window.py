"""Fixed window: one counter for each window; windows are aligned to the clock.

State is (end, used, since): the end of the window, the units spent in it, and the instant since which it counts. A row
returns `since` as `given`. A refund must bring the same `since`: a spend from before a reset, or from before a step
back of the clock, is not in `used`. Simple and small, but a client can spend one full count just before a boundary and
another just after it.
"""

from ratebound.decision import Row
from ratebound.limit import Limit, Spent

State = tuple[int, ...]


def spend(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Charge `cost` if the window has room. Patience is ignored: a window that has not begun has no places."""
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
    """Return (remaining, reset_after)."""
    if state is None or state[0] <= now or not state[1]:
        return limit.count, 0
    return max(limit.count - state[1], 0), state[0] - now


def force(limit: Limit, state: State | None, now: int, cost: int, spent: Spent | None) -> tuple[State | None, Row]:
    """Overdraw this window by at most one count, or refund a spend that is still in `used`."""
    end = now - now % limit.period_us + limit.period_us
    if state is not None:
        state = repair(limit, state, now) if state[0] >= end else None
    if cost > 0 or (state is not None and (spent is None or spent[3] == state[2])):
        used, since = (state[1], state[2]) if state is not None else (0, now)
        state = (end, max(min(used + cost, max(used, 2 * limit.count)), 0), since)
    remaining, reset_after = standing(limit, state, now)
    return state, (True, remaining, 0, reset_after, 0, now, 0, 0)


def repair(limit: Limit, state: State, now: int) -> State:
    """Return the state after a step back of the clock: spends of a window from the future count in this one."""
    end = now - now % limit.period_us + limit.period_us
    return (end, state[1], state[2]) if state[0] > end else state


def turn_after(limit: Limit, state: State | None, now: int, front: int, cost: int) -> int | None:
    """Return microseconds until `cost` passes after `front` units; None if it never does.

    The rest of this window is available now, and one count at the beginning of each window after it.
    """
    if cost > limit.count:
        return None
    late = front + cost - standing(limit, state, now)[0]
    if late <= 0:
        return 0
    return limit.period_us - now % limit.period_us + (late - 1) // limit.count * limit.period_us


def grows_after(limit: Limit, remaining: int, reset_after: int) -> int:
    """Return microseconds until more remains. Exact: a window refills at its end."""
    return reset_after
