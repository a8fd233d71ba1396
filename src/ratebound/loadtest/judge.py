"""Judge whether a server kept its limits: what it granted to each client against what the limits allow."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ratebound.clock import SECOND
from ratebound.http.quota import Quota
from ratebound.limit import MAX_COUNT, Limit
from ratebound.loadtest.answer import Answer
from ratebound.loadtest.bounds import ClientSpans, Contradictions, Span, contradictions

EVERYONE = -1  # the client of a verdict on a limit that all clients share
EXAMPLES = 3  # contradictions of a client that are told in words
TOLERANCE = 0.001  # seconds by which the clocks of client and server may drift apart within a run
NEVER_SENT = ("connect", "tls", "unsent")  # errors of requests that cannot have reached the server
REFUSED = frozenset({429})


class ClientVerdict(NamedTuple):
    """The grants of one client, against what the limits allow.

    The limits explain at most `at_most` grants of these requests. Given the grants, they demand `at_least`.
    """

    client: int
    granted: int
    refused: int
    unknown: int
    at_least: int
    at_most: int
    too_many: int
    too_few: int
    settled: bool
    evidence: tuple[str, ...]
    longest_wait: float | None = None  # seconds; a leaky bucket refused what would have waited longer

    @property
    def is_wrong(self) -> bool:
        """True if answers contradict the limits."""
        return bool(self.too_many or self.too_few)

    @property
    def words(self) -> str:
        """The verdict in a few words."""
        if not self.too_many and not self.too_few:
            return "exact"
        found = [f"too many by {self.too_many}"] * bool(self.too_many) + [f"too few by {self.too_few}"] * bool(
            self.too_few
        )
        return " and ".join(found) + ("" if self.settled else " (not certain)")


def spans_by_client(
    answers: Iterable[Answer], *, refused: frozenset[int] = REFUSED, shared: bool = False
) -> dict[int, ClientSpans]:
    """Return what each client was answered; with `shared`, all clients as one.

    An error of the server (a 5xx that is no refusal) may or may not have been charged.
    """
    found: dict[int, tuple[list[Span], list[Span], list[Span]]] = {}
    firsts: dict[int, list[Answer]] = {}
    for answer in answers:
        if not answer.status and answer.error in NEVER_SENT:
            continue
        client = EVERYONE if shared else answer.client
        span = Span(math.floor((answer.sent - TOLERANCE) * SECOND), math.ceil((answer.done + TOLERANCE) * SECOND))
        granted, denied, unknown = found.setdefault(client, ([], [], []))
        if answer.status in refused:
            denied.append(span)
        elif 0 < answer.status < 500:
            granted.append(span)
        else:
            unknown.append(span)
        first = firsts.setdefault(client, [])
        if not first or answer.sent <= first[0].done:
            first.append(answer)
    return {
        client: ClientSpans(sorted(granted), sorted(denied), unknown, _units_used(firsts[client], refused))
        for client, (granted, denied, unknown) in sorted(found.items())
    }


def _units_used(first: Sequence[Answer], refused: frozenset[int]) -> int:
    """Return the units that may have been used before the test: what remains after the first answers tells it.

    `first` are the first answer and those that were on their way by then. The request that was decided first is one of
    them, and an unused limit leaves all units but one after it.
    """
    if all(answer.status in refused for answer in first):
        return MAX_COUNT
    used = 0
    told: dict[str, list[Quota]] = {}
    for answer in first:
        for quota in answer.quotas:
            if quota.limit and quota.remaining is not None and quota.unit == "requests":
                told.setdefault(quota.name, []).append(quota)
    for quotas in told.values():
        most = max(quota.remaining or 0 for quota in quotas)
        untold = len(first) - len(quotas)  # errors, which may have been charged first
        used = max(used, (quotas[0].limit or 0) - 1 - most - untold)
    return used


def judge_clients(limits: Sequence[Limit], seen: Mapping[int, ClientSpans]) -> list[ClientVerdict]:
    """Return the verdict on each client."""
    return [_verdict(client, spans, contradictions(limits, spans)) for client, spans in seen.items()]


def _verdict(client: int, spans: ClientSpans, found: Contradictions) -> ClientVerdict:
    granted, many, few = len(spans.granted), len(found.surplus), len(found.unfounded)
    evidence = [
        f"granted {_when(one.span)}, but the limit was used up until {_seconds(one.free_at)} at the earliest"
        for one in found.surplus[:EXAMPLES]
    ]
    evidence += [
        f"refused {_when(one.span)}, but the limit had room at every instant of that time"
        for one in found.unfounded[:EXAMPLES]
    ]
    return ClientVerdict(
        client,
        granted,
        len(spans.refused),
        len(spans.unknown),
        granted - many + few,
        found.at_most,
        many,
        few,
        found.settled,
        tuple(evidence),
        None if found.longest_wait is None else found.longest_wait / SECOND,
    )


def _when(span: Span) -> str:
    return f"between {_seconds(span.begin)} and {_seconds(span.end)}"


def _seconds(instant: int) -> str:
    return f"{max(instant, 0) / SECOND:.3f} s"
