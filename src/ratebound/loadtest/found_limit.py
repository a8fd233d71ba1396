"""Find the limit of a server from its answers alone, without its headers.

For each algorithm the answers leave a range for each number: a grant says that a period is not longer, a refusal that
it is not shorter. The roundest limit in that range is a candidate, and `bounds` says which candidates explain every
answer. A token bucket and GCRA grant the same requests, so they are found as one; a leaky bucket answers later.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ratebound.clock import SECOND
from ratebound.errors import InvalidLimit
from ratebound.limit import MAX_PERIOD, Algorithm, Limit
from ratebound.loadtest.bounds import FOREVER, ClientSpans, Span, contradictions

CLIENTS = 3  # those with the most answers are looked at
ANSWERS = 4_000  # grants of a client, and refusals, that are looked at
QUEUES = 4  # times as long as refusals take grants that have waited in a queue
ROUND_PERIODS = (
    *(86_400 * SECOND, 3_600 * SECOND, 60 * SECOND, 30 * SECOND, 15 * SECOND, 10 * SECOND, 5 * SECOND),
    *(SECOND, 500_000, 250_000, 100_000, 50_000, 10_000, 5_000, 1_000, 100, 10, 1),
)
ROUND_COUNTS = (10_000, 1_000, 500, 100, 50, 25, 10, 5, 2, 1)


class FoundLimit(NamedTuple):
    """The limit that answers show. `limits` explain the answers best, one for each algorithm that does.

    Without limits, `at_once` requests were granted before the first refusal, and none in `silence` seconds after it.
    """

    limits: tuple[Limit, ...] = ()
    unexplained: int = 0  # answers that even the best limit does not explain
    at_once: int = 0
    silence: float = 0.0
    is_aligned: bool | None = None  # a fixed window: True if windows begin at multiples of the period in Unix time

    @property
    def words(self) -> str:
        """The limit in words."""
        if not self.at_once and not self.limits:
            return "unknown: requests of a client were never both granted and refused"
        if not self.limits:
            return f"{self.at_once} at once, then none for at least {self.silence:.1f} s"
        first = self.limits[0]
        same = [limit for limit in self.limits if (limit.count, limit.period_us) == (first.count, first.period_us)]
        names = " or ".join(_name(limit, self.is_aligned) for limit in same)
        burst = f", {first.burst} at once" if first.burst != first.count else ""
        doubt = f"; {self.unexplained} answers do not fit" if self.unexplained else ""
        return f"about {first.count} per {first.period_us / SECOND:g} s{burst}, {names}{doubt}"


def _name(limit: Limit, is_aligned: bool | None) -> str:
    if limit.algorithm == "fixed-window" and is_aligned is not None:
        return "fixed window, aligned to the clock" if is_aligned else "fixed window"
    return "token bucket or GCRA" if limit.algorithm == "token-bucket" else limit.algorithm.replace("-", " ")


def find_limit(seen: Mapping[int, ClientSpans], *, started: float = 0.0) -> FoundLimit:
    """Return the limit that explains the answers best. `started` is the Unix time of the spans' zero."""
    refused = [spans for spans in seen.values() if spans.refused and spans.granted]
    busiest = [_telling(spans) for spans in sorted(refused, key=_size, reverse=True)[:CLIENTS]]
    if not busiest:
        return FoundLimit()
    queued = _decided_at_once(busiest)
    if queued is not None:
        busiest = queued
    candidates = dict.fromkeys(limit for spans in busiest for limit in _candidates(spans, queued=queued is not None))
    best: dict[str, tuple[int, Limit]] = {}
    for limit in candidates:
        fewest = best.get(limit.algorithm, (math.inf, limit))[0]
        total = 0
        for spans in busiest:
            total += contradictions([limit], spans).total
            if total >= fewest:
                break
        else:
            best[limit.algorithm] = total, limit
    if not best:
        return _without_period(busiest[0])
    fewest = min(total for total, _ in best.values())
    limits = tuple(limit for total, limit in best.values() if total == fewest)
    aligned = [_is_aligned(limit, busiest, started) for limit in limits if limit.algorithm == "fixed-window"]
    return FoundLimit(limits, fewest, _at_once(busiest[0]), 0.0, aligned[0] if aligned else None)


def _size(spans: ClientSpans) -> int:
    return len(spans.granted) + len(spans.refused)


def _decided_at_once(clients: Sequence[ClientSpans]) -> list[ClientSpans] | None:
    """Return the answers as those of a queue, or None if they are not.

    A leaky bucket decides at once and answers later. So if grants take much longer than refusals, a grant is taken to
    be decided as soon as the slowest refusals are.
    """
    took = sorted(span.end - span.begin for spans in clients for span in spans.refused)
    grants = sorted(span.end - span.begin for spans in clients for span in spans.granted)
    usual = took[len(took) * 99 // 100]
    if grants[len(grants) // 2] < QUEUES * took[len(took) * 9 // 10]:
        return None
    return [
        spans._replace(granted=[Span(span.begin, min(span.end, span.begin + usual)) for span in spans.granted])
        for spans in clients
    ]


def _telling(spans: ClientSpans) -> ClientSpans:
    """Return the answers that tell most: the first grants, and the refusals nearest to a grant."""
    if len(spans.refused) + len(spans.granted) <= ANSWERS:
        return spans
    granted = sorted(spans.granted)[:ANSWERS]
    end = granted[-1].end if len(granted) < len(spans.granted) else FOREVER
    refused = [span for span in sorted(spans.refused) if span.begin <= end]
    begins = [span.begin for span in refused]
    near = {place + side for grant in granted for place in (bisect_left(begins, grant.begin),) for side in (-2, -1, 0)}
    every = math.ceil(len(refused) / ANSWERS) or 1
    kept = sorted(near.union(range(0, len(refused), every)) & set(range(len(refused))))
    return spans._replace(granted=granted, refused=[refused[place] for place in kept])


def _at_once(spans: ClientSpans) -> int:
    """Return how many were granted before the first refusal, or at the same time."""
    end = min(span.end for span in spans.refused)
    return sum(span.begin <= end for span in spans.granted)


def _without_period(spans: ClientSpans) -> FoundLimit:
    first = min(span.end for span in spans.refused)
    later = [span.begin for span in spans.granted if span.begin > first]
    until = min(later) if later else max(span.begin for span in spans.refused)
    return FoundLimit((), 0, _at_once(spans), max(until - first, 0) / SECOND)


def _candidates(spans: ClientSpans, *, queued: bool) -> Iterator[Limit]:
    if queued:
        yield from _buckets(spans, _at_once(spans), "leaky-bucket")
        return
    at_once = _at_once(spans)
    changes = _changes(spans)
    counts = _nearby([at_once])
    for count in counts:
        yield from _windows(count, "sliding-log", _log_period(spans, count))
        yield from _windows(count, "sliding-counter", _counter_period(spans, count))
    for count in _nearby([at_once, *_runs(spans, changes)]):
        yield from _windows(count, "fixed-window", _fixed_period(spans, changes, count))
    yield from _buckets(spans, at_once, "token-bucket")


def _nearby(counts: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(near for count in counts for near in (count, count - 1, count + 1) if near > 0))


def _windows(count: int, algorithm: Algorithm, period: tuple[float, float]) -> Iterator[Limit]:
    low, high = period
    if 0 <= low < high < MAX_PERIOD:
        yield Limit(count, _roundest(low, high), 0, algorithm, "", True)


def _roundest(low: float, high: float) -> int:
    """Return the roundest number of microseconds above `low` and up to `high`."""
    for step in ROUND_PERIODS:
        found = math.floor(high / step) * step
        if found > low and found > 0:
            middle = math.floor((low + high) / 2 / step) * step
            return middle if middle > low and middle > 0 else found
    return max(math.floor(high), 1)


def _log_period(spans: ClientSpans, count: int) -> tuple[float, float]:
    """Return the range of a sliding log's period: a grant comes one period after the grant `count` before it."""
    begins, ends = sorted(one.begin for one in spans.granted), sorted(one.end for one in spans.granted)
    high = min((ends[k + count] - begins[k] for k in range(len(begins) - count)), default=math.inf)
    low = 0.0
    for span in spans.refused:
        place = bisect_right(begins, span.end) - count
        if place < 0:
            return 0.0, 0.0
        low = max(low, span.begin - ends[place])
    return low, high


def _counter_period(spans: ClientSpans, count: int) -> tuple[float, float]:
    """Return the range of a sliding counter's period.

    The first window begins with the first grant. In the second, the j-th grant comes after j/count of the period.
    """
    begins, ends = sorted(one.begin for one in spans.granted), sorted(one.end for one in spans.granted)
    low, high = 0.0, math.inf
    for j in range(1, min(count, len(begins) - count)):
        high = min(high, (ends[count + j - 1] - begins[0]) / (1 + j / count))
    for span in spans.refused:
        second = bisect_right(begins, span.end) - count + 1  # the first of the second window that was not there yet
        if second < 1:
            return 0.0, 0.0
        if second < count:
            low = max(low, (span.begin - ends[0]) / (1 + second / count))
    return low, high


def _changes(spans: ClientSpans) -> list[Span]:
    """Return each time in which a refused client was granted again: after the refusal, up to the grant.

    The refusal certainly came before the grant.
    """
    refusals = sorted((span.end, span.begin) for span in spans.refused)
    found: list[Span] = []
    last = -1
    for grant in sorted(spans.granted, key=lambda span: span.end):
        place = bisect_left(refusals, (grant.begin, 0)) - 1
        if place > last:
            begin = max(begin for _, begin in refusals[last + 1 : place + 1])
            found.append(Span(begin, grant.end))
            last = place
    return found


def _runs(spans: ClientSpans, changes: Sequence[Span]) -> list[int]:
    """Return how many were granted between one change and the next, the usual numbers first."""
    begins = sorted(span.begin for span in spans.granted)
    places = [bisect_right(begins, change.begin) for change in changes]
    runs = [after - before for before, after in pairwise(places)]
    return sorted(set(runs), key=runs.count, reverse=True)[:3]


def _fixed_period(spans: ClientSpans, changes: Sequence[Span], count: int) -> tuple[float, float]:
    """Return the range of a fixed window's period: whole windows lie between two changes."""
    begins = sorted(span.begin for span in spans.granted)
    low, high = 0.0, math.inf
    for change in changes[1:]:
        first = changes[0]
        between = bisect_right(begins, change.begin) - bisect_right(begins, first.begin)
        windows = round(between / count)
        if not windows:
            continue  # another refusal from before the same boundary
        low = max(low, (change.begin - first.end) / windows)
        high = min(high, (change.end - first.begin) / windows)
    return low, high


def _is_aligned(limit: Limit, clients: Sequence[ClientSpans], started: float) -> bool:
    """Return True if a window can begin at a multiple of the period, in Unix time, at every change."""
    zero, period = round(started * SECOND), limit.period_us
    for spans in clients:
        for change in _changes(spans):
            until = -(zero + change.begin) % period  # the next multiple
            if until > change.end - change.begin:
                return False
    return True


def _buckets(spans: ClientSpans, at_once: int, algorithm: Algorithm) -> Iterator[Limit]:
    """Return buckets whose burst and rate the answers leave possible."""
    begins, ends = sorted(one.begin for one in spans.granted), sorted(one.end for one in spans.granted)
    first = min(span.end for span in spans.refused)
    later = [end for begin, end in zip(begins, ends, strict=True) if begin > first]
    if len(later) < 2:
        return
    step = (later[-1] - later[0]) / (len(later) - 1)
    guess = at_once - (first - begins[0]) / max(step, 1)
    bursts = sorted(range(1, at_once + 1), key=lambda burst: abs(burst - guess))[:8]
    for burst in bursts:
        # A bucket of one unit is full again before each grant: it grants what a log of one does
        low, high = _interval(spans, begins, ends, burst) if burst > 1 else _log_period(spans, 1)
        if low < high:
            limit = _rate(low, high, burst, algorithm)
            if limit is not None:
                yield limit


def _interval(spans: ClientSpans, begins: Sequence[int], ends: Sequence[int], burst: int) -> tuple[float, float]:
    """Return the range of the time between two units of a bucket that was never full again after the first grant."""
    high = min(((ends[j] - begins[0]) / (j + 1 - burst) for j in range(burst, len(ends))), default=math.inf)
    low = 0.0
    for span in spans.refused:
        before = bisect_right(begins, span.end)
        if before < burst:
            return 1.0, 0.0
        low = max(low, (span.begin - ends[0]) / (before - burst + 1))
    return low, high


def _rate(low: float, high: float, burst: int, algorithm: Algorithm) -> Limit | None:
    """Return the roundest bucket whose units are between `low` and `high` microseconds apart."""
    for period in (SECOND, 60 * SECOND, 3_600 * SECOND):
        least, most = math.ceil(period / high) if high < math.inf else 1, math.floor(period / max(low, 1e-6))
        for step in ROUND_COUNTS:
            count = math.ceil(least / step) * step
            if 0 < count <= most:
                try:
                    return Limit(count, period, burst, algorithm)
                except InvalidLimit:
                    return None
    return None
