"""Fairness: did clients with the same demand get the same?

A client deserves what it asked for, but no more than the client that got most. Its share is what it got of that. Jain's
index of the shares is 1 if all are equal, and 1/n if one client of n gets everything.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from ratebound.clock import SECOND
from ratebound.loadtest.bounds import ClientSpans
from ratebound.loadtest.check import FAIL, PASS, UNKNOWN, LoadCheck

LEAST_SHARE = 0.5  # a client that gets less than this share of what it deserves is starved


class Fairness(NamedTuple):
    """Figures of how evenly the clients were served. `starved` has the clients below the least share."""

    jain: float
    least: int  # grants of the client with the fewest
    most: int
    starved: tuple[int, ...]
    longest_client: int  # the client that went longest without a grant
    longest_span: tuple[float, float]  # from when to when, in seconds


def fairness_of(seen: Mapping[int, ClientSpans]) -> Fairness:
    """Return how evenly the clients were served."""
    granted = {client: len(spans.granted) for client, spans in seen.items()}
    most = max(granted.values(), default=0)
    shares = {
        client: granted[client] / min(len(spans.granted) + len(spans.refused), most)
        for client, spans in seen.items()
        if most and (spans.granted or spans.refused)
    }
    squares = sum(share * share for share in shares.values())
    jain = sum(shares.values()) ** 2 / (len(shares) * squares) if squares else 1.0
    starved = tuple(client for client, share in shares.items() if share < LEAST_SHARE)
    longest = max(((*_longest_without(spans), client) for client, spans in seen.items()), default=(0.0, 0.0, 0.0, 0))
    return Fairness(jain, min(granted.values(), default=0), most, starved, longest[3], (longest[1], longest[2]))


def _longest_without(spans: ClientSpans) -> tuple[float, float, float]:
    """Return the longest time without a grant while the client sent requests: its length, begin and end."""
    every = [*spans.granted, *spans.refused]
    if not every:
        return 0.0, 0.0, 0.0
    first, last = min(span.begin for span in every), max(span.end for span in every)
    edges = [first, *(span.end for span in sorted(spans.granted)), last]
    length, begin = max((after - before, before) for before, after in pairwise(edges))
    return length / SECOND, begin / SECOND, (begin + length) / SECOND


def fairness_check(fairness: Fairness, clients: int) -> LoadCheck:
    """Return the check that no client was starved."""
    name = "All clients were served alike"
    if clients < 2:
        return LoadCheck(name, UNKNOWN, "there was one client")
    if not fairness.most:
        return LoadCheck(name, UNKNOWN, "nothing was granted")
    figures = f"{fairness.least} to {fairness.most} grants per client, Jain's index {fairness.jain:.3f}"
    if fairness.starved:
        some = ", ".join(map(str, fairness.starved[:5])) + (", …" if len(fairness.starved) > 5 else "")
        begin, end = fairness.longest_span
        return LoadCheck(
            name,
            FAIL,
            f"{len(fairness.starved)} of {clients} clients got less than half of what others got: {figures}",
            (
                f"starved: client {some}",
                f"client {fairness.longest_client} got nothing between {max(begin, 0):.3f} s and {end:.3f} s",
            ),
        )
    return LoadCheck(name, PASS, figures)
