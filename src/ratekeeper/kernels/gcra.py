"""The generic cell rate algorithm: token-bucket, gcra and leaky-bucket are this one.

`tat + part / count` is the theoretical arrival time: the instant at which the bucket is untouched again. One unit
moves it by period / count. It keeps its fraction, so that no rate drifts, and a request conforms from the whole
microsecond of its instant on. A request of cost c conforms when the time then reached lies no further ahead
than a whole burst.

State is (tat, part, last, since, given). `last` is the instant of the last write: an earlier `now` means that the
clock stepped back, and by how much. `since` is when the bucket was last found untouched, and `given` the time
that was given back from then on; both are for refunds, see `_owed`. Instants from before a step back are not to
be compared with those after it, so `since` is then the first that was not used yet.

A leaky bucket admits the same requests, but sends each to the end of a queue: its delay is the time that
was ahead of it. With patience any bucket hands out places in the future: charged now, told the delay.
"""

from ratekeeper.decision import Row
from ratekeeper.limit import Limit, Spent, spans

State = tuple[int, ...]


def spend(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Charge `cost` if it conforms, `lead` microseconds from now or later; a denial leaves the state as it is."""
    count = limit.count
    if state is None:
        ahead, part, since, given, hole = lead, 0, now, 0, lead
    else:
        tat, part, last, since, given = state
        if now < last or part >= count:
            state = tat, part, last, since, given = repair(limit, state, now)
        ahead = tat - now  # how far ahead of now the arrival time lies
        hole = 0
        if ahead < lead:
            hole = lead - ahead - 1 if ahead >= 0 else lead
            if ahead < 0:
                since, given = max(since, now), 0
            ahead, part = lead, 0
    if cost == 1:
        room, room_part, step, step_part = limit.unit
    elif cost <= limit.burst:
        room, room_part, step, step_part = spans(limit, cost)
    else:
        remaining, reset_after = standing(limit, state, now)
        return state, (False, remaining, None, reset_after, 0, now, 0, 0)
    early = ahead - room
    if part < room_part:  # rounded down: conforming from the whole microsecond on
        early -= 1
    delay = ahead if limit.queues else early if early > 0 else 0
    if patience is not None:
        early = delay - patience
    if early > 0:
        remaining, reset_after = standing(limit, state, now)
        return state, (False, remaining, early, reset_after, 0, now, 0, 0)
    ahead += step
    part += step_part
    if part >= count:
        ahead += 1
        part -= count
    remaining = (limit.full - ahead * count - part) // limit.period
    if remaining < 0:
        remaining = 0  # a place in the future
    elif remaining > limit.burst:
        remaining = limit.burst  # more than one unit a microsecond
    reset_after = ahead + 1 if part else ahead
    return (now + ahead, part, now, since, given), (True, remaining, 0, reset_after, delay, now, given, hole)


def standing(limit: Limit, state: State | None, now: int) -> tuple[int, int]:
    """(remaining, reset_after) of a state that needs no repair."""
    if state is None or state[0] < now:
        return limit.burst, 0
    ahead, part = state[0] - now, state[1]
    remaining = (limit.full - ahead * limit.count - part) // limit.period
    return min(max(remaining, 0), limit.burst), ahead + (part > 0)


def force(limit: Limit, state: State | None, now: int, cost: int, spent: Spent | None) -> tuple[State | None, Row]:
    """Apply a signed cost without asking: overdraw by at most one count, or refund what is still owed."""
    if state is not None:
        state = repair(limit, state, now)
    if state is None or state[0] < now:
        if cost <= 0:
            return state, (True, limit.burst, 0, 0, 0, now, 0, 0)
        state = (now, 0, now, now, 0)
    tat, part, _, since, given = state
    span, span_part = divmod(abs(cost) * limit.period, limit.count)
    if cost > 0:
        most = max(tat, now + limit.depth + limit.period)  # max: places already reserved stay reserved
        tat, part = _add(limit, tat, part, span, span_part)
        if tat >= most:
            tat, part = most, 0
    else:
        owed = _owed(limit, state, now, spent)
        if owed is None:
            span += 0 if spent is None else spent[2]
        elif owed <= span:
            span, span_part = owed, 0
        tat, part = _add(limit, tat, part, -span, -span_part)
        if tat < now:
            tat, part = now, 0
        given += state[0] - tat
    state = (tat, part, now, since, given)
    remaining, reset_after = standing(limit, state, now)
    return state, (True, remaining, 0, reset_after, 0, now, given, 0)


def _owed(limit: Limit, state: State, now: int, spent: Spent | None) -> int | None:
    """How much of a spend's time is still ahead, so that giving it back mints nothing; None if all of it is.

    Debt is paid off oldest first, so a spend that filled the bucket up to `until` is owed at most `until - now`,
    and less by what was given back since: that moved it forward. What was spent before the bucket was last
    untouched is paid. While places in the future are taken, only the last one can be given back: one in the
    middle would be handed out on top of those behind it.
    """
    if spent is None:
        return None
    at, until, _ = spent
    tat, part, last, since, given = state
    ahead = tat - (limit.unit[2] if limit.queues else limit.depth) > now
    if last == at and tat + given + (part > 0) == until:
        return None  # nothing was spent since
    if at < since or ahead:
        return 0
    return None if now == at else max(until - given - 1 - now, 0)


def repair(limit: Limit, state: State, now: int) -> State:
    """After a step back of the clock the debt is what it was: it moves back with the clock. A fraction of a larger
    count, used before, is rounded up."""
    tat, part, last, since, given = state
    if part >= limit.count:
        tat, part = tat + 1, 0
    if now < last:
        return tat - (last - now), part, now, max(since, last + 1), given
    return (tat, part, last, since, given) if part != state[1] else state


def _add(limit: Limit, tat: int, part: int, span: int, span_part: int) -> tuple[int, int]:
    carry, part = divmod(part + span_part, limit.count)
    return tat + span + carry, part


def grows_after(limit: Limit, remaining: int, reset_after: int) -> int:
    """Exact to the microsecond: the debt that is left when the next unit is whole is that of all units above it."""
    if remaining >= limit.burst:
        return 0
    return reset_after + (limit.burst - remaining - 1) * limit.period // -limit.count
