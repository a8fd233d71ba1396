"""Bounds how long a leaky bucket may delay a request.

The kernel itself denies a request that would have to wait longer, in the same step, so that it is charged nothing.
"""

from collections.abc import Sequence

from ratebound.limit import Ask, Group


def with_bounded_queues(groups: Sequence[Group], patience: int) -> Sequence[Group]:
    """Return the groups with queues of at most `patience` microseconds. The storage's rows keep their order."""
    for group in groups:
        for _, limits, *_ in group:
            for limit in limits:
                if limit.queues:
                    return [[part for ask in group for part in _parts(ask, patience)] for group in groups]
    return groups


def _parts(ask: Ask, patience: int) -> list[Ask]:
    """Return one ask for each limit. Patience belongs to an ask, and buckets that do not queue must not have it: they
    would hand out places in the future."""
    key, limits, cost, _, extras = ask
    if not any(limit.queues for limit in limits):
        return [ask]
    return [
        (
            key,
            (limit,),
            cost,
            patience if limit.queues and patience < limit.numbers.room_for(cost)[0] else None,
            None if extras is None else [extras[i]],
        )
        for i, limit in enumerate(limits)
    ]
