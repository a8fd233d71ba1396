"""The generic cell rate algorithm: token-bucket, gcra and leaky-bucket are this one.

State is (tat, part, last). `tat + part / count` is the theoretical arrival time: the instant at which the
bucket is untouched again. One unit moves it by period / count. It keeps its fraction, so that no rate
drifts, and a request conforms from the whole microsecond of its instant on. A request of cost c conforms
when the time then reached lies no further ahead than a whole burst. `last` is the instant of the last
write: an earlier `now` means that the clock stepped back, and by how much.

A leaky bucket admits the same requests, but sends each to the end of a queue: its delay is the time that
was ahead of it. With patience any bucket hands out places in the future: charged now, told the delay.
"""

from ratekeeper.decision import Row
from ratekeeper.limit import Limit, spans

State = tuple[int, ...]


def spend(
    limit: Limit, state: State | None, now: int, cost: int, patience: int | None, lead: int
) -> tuple[State | None, Row]:
    """Charge `cost` if it conforms, `lead` microseconds from now or later; a denial leaves the state as it is."""
    count = limit.count
    ahead, part = lead, 0  # how far ahead of now the arrival time lies
    if state is not None:
        tat, fraction, last = state
        if now < last:
            state = repair(limit, state, now)
            tat = state[0]
        gap = tat - now
        if gap >= lead:
            ahead, part = gap, fraction
            if part >= count:  # the count was lowered since: the old fraction means nothing
                ahead, part = gap + 1, 0
    if cost == 1:
        room, room_part, step, step_part = limit.unit
    elif cost <= limit.burst:
        room, room_part, step, step_part = spans(limit, cost)
    else:
        remaining, reset_after = standing(limit, state, now)
        return state, (False, remaining, None, reset_after, 0, now)
    early = ahead - room
    if part < room_part:  # rounded down: conforming from the whole microsecond on
        early -= 1
    delay = ahead if limit.queues else early if early > 0 else 0
    if patience is not None:
        early = delay - patience
    if early > 0:
        remaining, reset_after = standing(limit, state, now)
        return state, (False, remaining, early, reset_after, 0, now)
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
    return (now + ahead, part, now), (True, remaining, 0, ahead + 1 if part else ahead, delay, now)


def standing(limit: Limit, state: State | None, now: int) -> tuple[int, int]:
    """(remaining, reset_after) of a state that is not older than `last`."""
    if state is None or state[0] < now:
        return limit.burst, 0
    tat, part, _ = state
    remaining = (limit.full - (tat - now) * limit.count - part) // limit.period
    return min(max(remaining, 0), limit.burst), tat - now + (part > 0)


def force(
    limit: Limit, state: State | None, now: int, cost: int, spent: tuple[int, int] | None
) -> tuple[State | None, Row]:
    """Apply a signed cost without asking: overdraw by at most one count, or refund what is still owed."""
    if state is not None:
        state = repair(limit, state, now)
    tat, part = (now, 0) if state is None or state[0] < now else state[:2]
    span, span_part = divmod(abs(cost) * limit.period, limit.count)
    if cost > 0:
        most = max(tat, now + limit.depth + limit.period)  # max: places already reserved stay reserved
        tat, part = _add(limit, tat, part, span, span_part)
        if tat >= most:
            tat, part = most, 0
    elif state is not None:
        owed = _owed(limit, state, now, spent)
        if owed is not None and owed <= span:
            span, span_part = owed, 0
        tat, part = _add(limit, tat, part, -span, -span_part)
        if tat < now:
            tat, part = now, 0
    else:
        return None, (True, limit.burst, 0, 0, 0, now)
    state = (tat, part, now)
    remaining, reset_after = standing(limit, state, now)
    return state, (True, remaining, 0, reset_after, 0, now)


def _owed(limit: Limit, state: State, now: int, spent: tuple[int, int] | None) -> int | None:
    """How much of a spend's time is still ahead, so that giving it back mints nothing; None if all of it is.

    Debt is paid off oldest first, so a spend that filled the bucket up to `until` is owed at most
    `until - now`. While places in the future are taken, only the last one can be given back: a place
    in the middle would be handed out on top of those behind it.
    """
    if spent is None:
        return None
    at, until = spent
    tat, part, last = state
    ahead = tat - (limit.unit[2] if limit.queues else limit.depth) > now
    if (last == at and tat + (part > 0) == until) or (now == at and not ahead):
        return None  # nothing was spent since, or no time has passed
    if ahead:
        return 0
    return max(until - 1 - now, 0)


def repair(limit: Limit, state: State, now: int) -> State:
    """After a step back of the clock the debt is what it was: it moves back with the clock."""
    tat, part, last = state
    return (tat - (last - now), part, now) if now < last else state


def _add(limit: Limit, tat: int, part: int, span: int, span_part: int) -> tuple[int, int]:
    carry, part = divmod(part + span_part, limit.count)
    return tat + span + carry, part
