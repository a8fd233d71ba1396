"""Limits that never deny because another limit on the same key always denies first.

A limit is described by the most that it can admit in any span of time. True is certain; False may mean "not known".
"""

from ratebound.limit import BUCKETS, UNITS, Limit

# The shortest and the longest that a period of the calendar can be, changes of the clocks included.
SHORTEST = {"day": 22 * UNITS["hour"], "week": 6 * UNITS["day"], "month": 27 * UNITS["day"], "year": 364 * UNITS["day"]}
LONGEST = {"day": 26 * UNITS["hour"], "week": 8 * UNITS["day"], "month": 32 * UNITS["day"], "year": 367 * UNITS["day"]}
# How many days, or months from the first, a longer period of the same zone has at most.
HELD = {("day", "week"): 7, ("day", "month"): 31, ("day", "year"): 366, ("month", "year"): 12}


def most_within(limit: Limit, span: int) -> int:
    """Return the most that the limit can admit to one client in any `span` of microseconds."""
    if limit.algorithm in BUCKETS:
        return limit.burst + limit.count * span // limit.period_us
    windows = max(-(-span // _shortest(limit)), 1)
    if limit.algorithm == "sliding-log":
        return limit.count * windows
    return limit.count * (windows + 1)  # the end of one window and the beginning of the next


def _shortest(limit: Limit) -> int:
    return limit.period_us if limit.calendar is None else SHORTEST[limit.calendar.unit]


def is_redundant(weak: Limit, strict: Limit, *, alike: bool) -> bool:
    """Return True if `weak` never denies a request that `strict` allows. `alike` means that both are charged for
    exactly the same requests."""
    if weak.metered or strict.metered:
        return False  # the one is there to count, and the other denies nothing
    if not (weak.takes_cost and strict.takes_cost):
        is_same = weak.algorithm == strict.algorithm and weak.values == strict.values
        is_same = is_same and (weak.has_slots or weak.period_us == strict.period_us)
        return alike and is_same and not weak.is_penalty and strict.count <= weak.count
    same_windows = weak.period_us == strict.period_us and weak.calendar == strict.calendar
    if alike and weak.algorithm == strict.algorithm and same_windows:
        return strict.count <= weak.count and strict.burst <= weak.burst
    if weak.warn:
        return False  # it tells of what the other limit does not see
    if weak.calendar is not None and strict.calendar is not None and weak.calendar.zone == strict.calendar.zone:
        held = HELD.get((strict.calendar.unit, weak.calendar.unit))
        if held is not None and (strict.calendar.unit == "day" or strict.calendar.begin == 1):
            return strict.count * held <= weak.count  # the windows are aligned
    if weak.algorithm in BUCKETS:
        slower = strict.count * weak.period_us <= weak.count * _shortest(strict)
        return slower and most_within(strict, 1) <= weak.burst
    if weak.algorithm == strict.algorithm == "fixed-window" and weak.period_us % strict.period_us == 0:
        return strict.count * (weak.period_us // strict.period_us) <= weak.count  # the windows are aligned
    most = most_within(strict, weak.period_us if weak.calendar is None else LONGEST[weak.calendar.unit])
    if weak.algorithm == "sliding-counter":
        most += most_within(strict, 1)  # its estimate may be too high by what is admitted at one instant
    return most <= weak.count
