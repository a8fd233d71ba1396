"""The limits that a server should keep: as the user gives them, or as the server's headers tell them.

Headers tell a quota and a window in whole seconds, rounded up, but no algorithm. Every algorithm is tried, and the one
that explains the answers best is taken. An answer contradicts the headers only if it contradicts every limit that they
can mean.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from ratebound.clock import SECOND
from ratebound.http.quota import Quota
from ratebound.limit import MAX_COUNT, MAX_PERIOD, Algorithm, Limit
from ratebound.loadtest.answer import Answer
from ratebound.loadtest.bounds import ClientSpans, contradictions
from ratebound.loadtest.found_limit import FoundLimit

TRIED: tuple[Algorithm, ...] = ("token-bucket", "sliding-log", "fixed-window", "sliding-counter")
CLIENTS = 5  # on which algorithms are tried
MOST_QUOTAS = 3


class ExpectedLimits(NamedTuple):
    """Limits and where they come from. Without limits, `source` says why."""

    limits: tuple[Limit, ...]
    source: str


def told_quotas(answers: Iterable[Answer]) -> list[Quota]:
    """Return the quotas that most answers name, without what changes from answer to answer."""
    seen: Counter[tuple[Quota, ...]] = Counter()
    for answer in answers:
        told = tuple(
            Quota(quota.name, quota.limit, None, quota.window)
            for quota in answer.quotas
            if quota.limit and quota.unit == "requests"
        )
        if told:
            seen[told] += 1
    return list(seen.most_common(1)[0][0]) if seen else []


def limits_of_headers(quotas: Sequence[Quota], found: FoundLimit, seen: Mapping[int, ClientSpans]) -> ExpectedLimits:
    """Return the limits that the headers tell, with the algorithms that explain the answers best."""
    if not quotas:
        return ExpectedLimits((), "the answers name no limit: give it with --limit")
    if len(quotas) > MOST_QUOTAS:
        return ExpectedLimits((), f"the answers name {len(quotas)} limits: give the one that matters with --limit")
    choices = [list(_readings(quota, found)) for quota in quotas]
    if not all(choices):
        return ExpectedLimits((), "the headers name a limit, but no window: give the limit with --limit")
    clients = sorted(seen.values(), key=lambda spans: len(spans.granted) + len(spans.refused), reverse=True)[:CLIENTS]
    best, fewest = None, None
    for limits in product(*choices):
        total = sum(contradictions(limits, spans).total for spans in clients)
        if fewest is None or total < fewest:
            best, fewest = limits, total
        if not fewest:
            break
    assert best is not None
    return ExpectedLimits(tuple(best), "the server's headers, which name no algorithm: the one that fits best is taken")


def _readings(quota: Quota, found: FoundLimit) -> Iterator[Limit]:
    """Return the limits that a header can mean. A bucket tells its burst, and the time to refill it, rounded up."""
    if quota.limit is None or not 0 < quota.limit <= MAX_COUNT:
        return
    for limit in found.limits:
        if limit.burst == quota.limit and (quota.window is None or -(-limit.refill_us // SECOND) == quota.window):
            yield limit
    if quota.window is None or quota.window * SECOND > MAX_PERIOD:
        return
    for algorithm in TRIED:
        yield Limit(quota.limit, quota.window * SECOND, 0, algorithm, "", True)


def can_be_meant(quotas: Sequence[Quota], spans: ClientSpans) -> bool:
    """Return True if a limit that the headers can mean may explain all answers of a client.

    The window is up to a second shorter than told, and its algorithm and its begin are not known. In every algorithm
    no more is granted than by a bucket of twice the quota, which fills at the rate of the shortest window. A refusal
    follows grants of a whole quota in two windows, the longest time that a weighted window looks back; or it comes from
    a queue.
    """
    explaining: list[Limit] = []
    for quota in quotas:
        if quota.limit is None or quota.window is None:
            return True
        window = quota.window * SECOND
        most = Limit(quota.limit, max(window - SECOND, 1), min(2 * quota.limit, MAX_COUNT), "token-bucket")
        if contradictions([most], spans).surplus:
            return False
        explaining.append(Limit(quota.limit, min(2 * window, MAX_PERIOD), 0, "sliding-log", "", True))
        explaining.append(Limit(quota.limit, window, 0, "leaky-bucket"))
    return not contradictions(explaining, spans).unfounded


def told_words(quotas: Sequence[Quota]) -> str:
    """Return the quotas of headers in words."""
    return "; ".join(
        f"{quota.limit}" + (f" per {quota.window} s" if quota.window else " (no window)") for quota in quotas
    )
