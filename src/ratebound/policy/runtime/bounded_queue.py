"""Bounds how long a leaky bucket may delay a request.

The kernel itself denies a request that would have to wait longer, in the same step, so that it is charged nothing.
"""

from collections.abc import Sequence

from ratebound.limit import NOT_GIVEN, SPAN, Ask, Extra, Group


def with_bounded_queues(groups: Sequence[Group], patience: int) -> Sequence[Group]:
    """Return the groups with queues of at most `patience` microseconds. The storage's rows keep their order."""
    for group in groups:
        for _, limits, *_ in group:
            for limit in limits:
                if limit.queues:
                    return [[part for ask in group for part in _parts(ask, patience)] for group in groups]
    return groups


def _parts(ask: Ask, patience: int) -> list[Ask]:
    """Return one ask for each queue that is bounded, and one for the limits before, between and after them. Patience
    belongs to an ask, and buckets that do not queue must not have it: they would hand out places in the future.

    A penalty counts denials of all of them.
    """
    key, limits, cost, *_ = ask
    parts: list[Ask] = []
    begin = 0
    for place, limit in enumerate(limits):
        if limit.queues and patience < limit.numbers.room_for(cost)[0]:
            parts += _part(ask, begin, place)
            parts.append((key, (limit,), cost, patience, None))
            begin = place + 1
    if not parts:
        return [ask]
    parts += _part(ask, begin, len(limits))
    return parts


def _spanning(ask: Ask) -> list[Extra] | None:
    """Return the extras of an ask that will be in parts."""
    _, limits, _, _, extras = ask
    if extras is None:
        return None
    last = len(limits) - 1
    return [
        (SPAN, place, last - place, 0) if limits[place].is_penalty and extra == NOT_GIVEN else extra
        for place, extra in enumerate(extras)
    ]


def _part(ask: Ask, begin: int, end: int) -> list[Ask]:
    key, limits, cost, *_ = ask
    extras = _spanning(ask)
    given = None if extras is None else extras[begin:end]
    if given is not None and all(extra == NOT_GIVEN for extra in given):
        given = None
    return [(key, limits[begin:end], cost, None, given)] if begin < end else []
