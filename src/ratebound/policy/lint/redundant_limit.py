"""Whether a limit can ever refuse beside another on the same key. A yes is certain, a no may mean 'not known'.

Every limit is seen by the most that it admits in any stretch of time; one that admits at least that much is idle.
"""

from ratebound.limit import BUCKETS, Limit


def most_within(limit: Limit, span: int) -> int:
    """No client is ever admitted more than this in `span` microseconds, wherever they begin."""
    if limit.algorithm in BUCKETS:
        return limit.burst + limit.count * span // limit.period_us
    windows = max(-(-span // limit.period_us), 1)
    if limit.algorithm == "sliding-log":
        return limit.count * windows
    return limit.count * (windows + 1)  # the end of one window and the beginning of the next


def never_bites(weak: Limit, strict: Limit, *, alike: bool) -> bool:
    """Whether `strict` always refuses first. `alike`: both see exactly the same requests."""
    if alike and weak.algorithm == strict.algorithm and weak.period_us == strict.period_us:
        return strict.count <= weak.count and strict.burst <= weak.burst
    if weak.algorithm in BUCKETS:
        slower = strict.count * weak.period_us <= weak.count * strict.period_us
        return slower and most_within(strict, 1) <= weak.burst
    if weak.algorithm == strict.algorithm == "fixed-window" and weak.period_us % strict.period_us == 0:
        return (
            strict.count * (weak.period_us // strict.period_us) <= weak.count
        )  # aligned windows lie inside each other
    most = most_within(strict, weak.period_us)
    if weak.algorithm == "sliding-counter":
        most += most_within(strict, 1)  # its estimate runs ahead of the truth by what came at once
    return most <= weak.count
