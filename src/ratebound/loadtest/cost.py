"""Requests that cost more than one unit: limits and headers in requests instead of units.

All requests of a test cost the same, so a server that charges `cost` units for each keeps a limit of requests: the same
one with all numbers divided by the cost. Everything else in a load test counts requests.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from ratebound.errors import InvalidLimit
from ratebound.http.quota import Quota
from ratebound.limit import BUCKETS, Limit
from ratebound.loadtest.answer import Answer


def limit_in_requests(limit: Limit, cost: int) -> Limit:
    """Return a limit in requests that cost so much each. Raises InvalidLimit if there is no such limit.

    Fixed windows and logs have room for whole requests only, so a rest of their count is never used. Buckets use that
    rest later, and weighted windows round units, which no limit in requests does.
    """
    if cost == 1:
        return limit
    if limit.burst < cost:
        raise InvalidLimit(f"a request that costs {cost} never fits into '{limit}'")
    if limit.algorithm in ("fixed-window", "sliding-log"):
        return Limit(limit.count // cost, limit.period_us, algorithm=limit.algorithm, large=True)
    if limit.algorithm not in BUCKETS:
        raise InvalidLimit(
            f"'{limit}' cannot be judged with --cost: expected a bucket, a fixed window or a sliding log"
        )
    if limit.burst % cost:
        raise InvalidLimit(
            f"'{limit}' cannot be judged with --cost {cost}: expected a burst that is a multiple of {cost}"
        )
    count, period = (
        (limit.count, limit.period_us * cost) if limit.count % cost else (limit.count // cost, limit.period_us)
    )
    return Limit(count, period, limit.burst // cost, limit.algorithm)


def answers_in_requests(answers: Iterable[Answer], cost: int) -> Iterator[Answer]:
    """Return answers whose quotas count requests. Quotas that are no multiple of the cost are left out."""
    for answer in answers:
        yield answer._replace(quotas=_in_requests(answer.quotas, cost)) if answer.quotas else answer


@lru_cache(maxsize=100_000)
def _in_requests(quotas: tuple[Quota, ...], cost: int) -> tuple[Quota, ...]:
    return tuple(
        quota._replace(
            limit=None if quota.limit is None else quota.limit // cost,
            remaining=None if quota.remaining is None else quota.remaining // cost,
        )
        for quota in quotas
        if not (quota.limit or 0) % cost
    )
