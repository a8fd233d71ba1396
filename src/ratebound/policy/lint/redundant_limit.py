"""Limits that never deny because another limit on the same key always denies first.

A limit is described by the most that it can admit in any span of time. True is certain; False may mean "not known".
"""

from ratebound.limit import BUCKETS, Limit


def most_within(limit: Limit, span: int) -> int:
    """Return the most that the limit can admit to one client in any `span` of microseconds."""
    if limit.algorithm in BUCKETS:
        return limit.burst + limit.count * span // limit.period_us
    windows = max(-(-span // limit.period_us), 1)
    if limit.algorithm == "sliding-log":
        return limit.count * windows
    return limit.count * (windows + 1)  # the end of one window and the beginning of the next


def is_redundant(weak: Limit, strict: Limit, *, alike: bool) -> bool:
    """Return True if `weak` never denies a request that `strict` allows. `alike` means that both are charged for
    exactly the same requests."""
    if alike and weak.algorithm == strict.algorithm and weak.period_us == strict.period_us:
        return strict.count <= weak.count and strict.burst <= weak.burst
    if weak.algorithm in BUCKETS:
        slower = strict.count * weak.period_us <= weak.count * strict.period_us
        return slower and most_within(strict, 1) <= weak.burst
    if weak.algorithm == strict.algorithm == "fixed-window" and weak.period_us % strict.period_us == 0:
        return strict.count * (weak.period_us // strict.period_us) <= weak.count  # the windows are aligned
    most = most_within(strict, weak.period_us)
    if weak.algorithm == "sliding-counter":
        most += most_within(strict, 1)  # its estimate may be too high by what is admitted at one instant
    return most <= weak.count
