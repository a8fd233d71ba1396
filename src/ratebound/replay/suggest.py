"""Limits from evidence: percentiles of what clients used, and how many clients each limit would touch.

Limits are for honest clients. HONEST says which ones those are; the report prints it. A suggested limit is the largest
use of 99.9 % of them in one second, minute or hour, plus a quarter, rounded up. It names the algorithm by which peaks
were counted, so that a replay of the suggested policy denies exactly the clients that are told here.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ratebound.replay.client_peaks import PERIODS, CountHistogram, EndpointGroup, PeakTable
from ratebound.replay.outcome_counts import ClientTable

NAMES = ("second", "minute", "hour")
SHARES = (0.5, 0.9, 0.99, 0.999, 1.0)
HEAVIEST = 0.001  # the share of clients that are too heavy to count as honest
MOSTLY = 0.5
LEAST_REQUESTS = 20
HEADROOM = 1.25
MOST_GROUPS = 8  # endpoints in a report
NICE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
ALGORITHM = "sliding-counter"
HONEST = (
    "A client counts as honest unless it is one of the heaviest 0.1 % of all clients by requests, or more than half of"
    " its requests, of at least 20, were answered 401, 403, 404 or 429."
)


class Percentiles(NamedTuple):
    """The counts that 50, 90, 99, 99.9 and 100 % do not exceed."""

    p50: int
    p90: int
    p99: int
    p999: int
    most: int


class CandidateLimit(NamedTuple):
    """A limit, the clients that it would deny something, and the requests above it in all windows together."""

    limit: int
    honest_touched: int
    others_touched: int
    requests_over: int
    share_over: float


class PeriodEvidence(NamedTuple):
    """The requests of clients in one period. `windows` are all windows of all clients; `peaks` are the largest window
    of each honest client."""

    period: str
    windows: Percentiles
    peaks: Percentiles
    suggested: int
    candidates: tuple[CandidateLimit, ...]


class GroupEvidence(NamedTuple):
    """The requests of clients for one endpoint, or for all of them if the name is empty. `limits` are suggested, and
    touch so many clients together."""

    endpoint: str
    requests: int
    clients: int
    periods: tuple[PeriodEvidence, ...]
    limits: tuple[tuple[int, str], ...]
    honest_touched: int
    others_touched: int

    @property
    def text(self) -> str:
        """The suggested limits in the notation."""
        return "; ".join(f"{count}/{period} {ALGORITHM}" for count, period in self.limits)


class Suggestion(NamedTuple):
    """Limits for all endpoints together, and for those with the most requests. It is an estimate if more clients came
    than have counts of their own."""

    criterion: str
    honest: int
    too_heavy: int
    mostly_refused: int
    everything: GroupEvidence
    endpoints: tuple[GroupEvidence, ...]
    is_estimate: bool


def suggest(peaks: PeakTable, clients: ClientTable) -> Suggestion:
    """Return the evidence of a log, and the limits that follow from it."""
    by_requests = sorted(clients.by_name.values(), key=lambda one: (-one.requests, one.name))
    heavy = {one.name for one in by_requests[: math.floor(len(by_requests) * HEAVIEST)]}
    refused = {
        one.name
        for one in by_requests
        if one.requests >= LEAST_REQUESTS and one.refused > MOSTLY * one.requests and one.name not in heavy
    }
    excluded = heavy | refused
    everything = _evidence(peaks.everything, excluded)
    groups = [group for group in peaks.groups() if group.requests][:MOST_GROUPS]
    return Suggestion(
        HONEST,
        len(by_requests) - len(excluded),
        len(heavy),
        len(refused),
        everything,
        tuple(_evidence(group, excluded) for group in groups),
        bool(peaks.dropped or clients.dropped),
    )


def _evidence(group: EndpointGroup, excluded: set[str]) -> GroupEvidence:
    honest = [one.peaks() for name, one in group.clients.items() if name not in excluded]
    others = [one.peaks() for name, one in group.clients.items() if name in excluded]
    periods = tuple(_period(group, place, honest, others) for place in range(len(PERIODS)))
    limits = _without_needless([one.suggested for one in periods])
    places = [NAMES.index(period) for _, period in limits]
    chosen = [(place, count) for place, (count, _) in zip(places, limits, strict=True)]
    return GroupEvidence(
        group.name,
        group.requests,
        len(group.clients) + group.dropped[0].total,
        periods,
        limits,
        _touched(honest, chosen) + max([group.dropped[place].above(count) for place, count in chosen], default=0),
        _touched(others, chosen),
    )


def _touched(peaks: Iterable[Sequence[int]], limits: Sequence[tuple[int, int]]) -> int:
    return sum(any(each[place] > count for place, count in limits) for each in peaks)


def _period(
    group: EndpointGroup, place: int, honest: Sequence[Sequence[int]], others: Sequence[Sequence[int]]
) -> PeriodEvidence:
    histogram = CountHistogram()
    histogram.take(group.dropped[place])
    for each in honest:
        histogram.add(each[place])
    peaks = _percentiles(histogram)
    suggested = round_up(math.ceil(peaks.p999 * HEADROOM))
    windows, dropped = group.windows[place], group.dropped[place]
    counts = sorted({round_up(max(one, 1)) for one in peaks} | {suggested})
    candidates = tuple(
        CandidateLimit(
            count,
            _touched(honest, [(place, count)]) + dropped.above(count),
            _touched(others, [(place, count)]),
            windows.excess(count),
            windows.excess(count) / max(group.requests, 1),
        )
        for count in counts
    )
    return PeriodEvidence(NAMES[place], _percentiles(windows), peaks, suggested, candidates)


def _percentiles(histogram: CountHistogram) -> Percentiles:
    return Percentiles(*(histogram.percentile(share) for share in SHARES))


def _without_needless(suggested: Sequence[int]) -> tuple[tuple[int, str], ...]:
    """Return the limits without those that others keep anyway: 60/minute beside 1/second, 9/second beside 5/minute."""
    second, minute, hour = suggested
    limits = []
    if second < minute and second < hour:
        limits.append((second, "second"))
    if minute < hour and not (limits and minute >= 60 * second):
        limits.append((minute, "minute"))
    if hour < min([count * (3600 if period == "second" else 60) for count, period in limits], default=hour + 1):
        limits.append((hour, "hour"))
    return tuple(limits)


def round_up(value: int) -> int:
    """Return the next round number: 87 gives 100, 1041 gives 1200."""
    if value <= 10:
        return max(value, 1)
    power = int(10 ** (len(str(value)) - 1))
    return next(round(power * step) for step in NICE if round(power * step) >= value)
