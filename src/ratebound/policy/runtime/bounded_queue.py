"""A leaky bucket tells each request its delay; nobody is made to wait for longer than a bound.

What would have to wait longer is refused by the kernel itself, in the same step, and so costs nothing.
"""

from collections.abc import Sequence

from ratebound.limit import Ask, Group, spans


def with_bounded_queues(groups: Sequence[Group], patience: int) -> Sequence[Group]:
    """The same groups, with queues that are no longer than `patience` microseconds; rows come in the same order."""
    for group in groups:
        for _, limits, *_ in group:
            for limit in limits:
                if limit.queues:
                    return [[part for ask in group for part in _parts(ask, patience)] for group in groups]
    return groups


def _parts(ask: Ask, patience: int) -> list[Ask]:
    """One ask for each limit, as patience is the ask's: other buckets would hand out places in the future."""
    key, limits, cost, _, spent = ask
    if not any(limit.queues for limit in limits):
        return [ask]
    return [
        (key, (limit,), cost, patience if limit.queues and patience < spans(limit, cost)[0] else None, spent)
        for limit in limits
    ]
