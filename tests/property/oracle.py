"""What the limits mean, written as plainly as possible: a list of admitted events and fractions, no state.

Slow and obvious on purpose. The kernels must agree with it to the unit.
"""

from fractions import Fraction
from math import ceil, floor

from ratebound import Limit
from ratebound.limit import BUCKETS

Event = tuple[int, int]  # instant, cost


def arrival(limit: Limit, events: list[Event]) -> Fraction:
    """The theoretical arrival time after these events."""
    interval = Fraction(limit.period_us, limit.count)
    tat = Fraction(0)
    for instant, cost in events:
        tat = max(tat, Fraction(instant)) + cost * interval
    return tat


def estimate(limit: Limit, events: list[Event], now: int) -> Fraction:
    """The sliding counter's own estimate of what the last period holds.

    Windows follow each other from the first event on; two windows without an event, and they begin anew.
    """
    begin = None
    for instant in [*(instant for instant, _ in events), now]:
        if begin is None or instant >= begin + 2 * limit.period_us:
            begin = instant
        while instant >= begin + limit.period_us:
            begin += limit.period_us
    assert begin is not None
    current = sum(cost for instant, cost in events if begin <= instant)
    previous = sum(cost for instant, cost in events if begin - limit.period_us <= instant < begin)
    return current + Fraction(previous * (begin + limit.period_us - now), limit.period_us)


def left(limit: Limit, events: list[Event], now: int) -> int:
    """How many units would pass now, one after the other."""
    if limit.algorithm == "fixed-window":
        begin = now - now % limit.period_us
        return limit.count - sum(cost for instant, cost in events if instant >= begin)
    if limit.algorithm == "sliding-log":
        return limit.count - sum(cost for instant, cost in events if instant > now - limit.period_us)
    if limit.algorithm == "sliding-counter":
        return limit.count - ceil(estimate(limit, events, now))
    interval = Fraction(limit.period_us, limit.count)
    ahead = max(arrival(limit, events), Fraction(now)) - now
    # n units conform while the whole microsecond of their instant is not after now
    return min(limit.burst, ceil((1 + limit.burst * interval - ahead) / interval) - 1)


def delay(limit: Limit, events: list[Event], now: int) -> int:
    """How long an admitted request of a leaky bucket stands in the queue."""
    if limit.algorithm != "leaky-bucket":
        return 0
    return max(floor(arrival(limit, events)) - now, 0)


def allows(limit: Limit, events: list[Event], now: int, cost: int) -> bool:
    if limit.algorithm in BUCKETS:
        interval = Fraction(limit.period_us, limit.count)
        start = max(arrival(limit, events), Fraction(now)) + (cost - limit.burst) * interval
        return cost <= limit.burst and floor(start) <= now
    return cost <= left(limit, events, now)


def keeps(limit: Limit, events: list[Event]) -> bool:
    """Return True if no stretch of time holds more than an exact window or a bucket allows."""
    events = sorted(events)
    return all(_keeps_from(limit, events[i:]) for i in range(len(events)))


def _keeps_from(limit: Limit, events: list[Event]) -> bool:
    begin, total = events[0][0], 0
    if limit.algorithm == "fixed-window":
        begin -= begin % limit.period_us
    for instant, cost in events:
        if limit.algorithm in BUCKETS:
            most = limit.burst + Fraction(
                limit.count * (instant + 1 - begin), limit.period_us
            )  # both ends count in full
        elif instant < begin + limit.period_us:
            most = Fraction(limit.count)
        else:
            break
        total += cost
        if total > most:
            return False
    return True
