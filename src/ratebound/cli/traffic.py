"""Simulated traffic: the instants of requests, and the kernels' answers to them. No drawing here.

The demo and the pictures in the docs play the same traffic. Instants are whole microseconds from 0, where a window of
every length begins.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ratebound.kernels.group_law import evaluate
from ratebound.kernels.packing import unpacked
from ratebound.kernels.state import State
from ratebound.limit import BUCKETS, Algorithm, Limit

# The order of the output: windows first, then buckets.
SHOWN: tuple[Algorithm, ...] = (
    "fixed-window",
    "sliding-log",
    "sliding-counter",
    "token-bucket",
    "gcra",
    "leaky-bucket",
)

CYCLE = 4  # periods, after which the traffic repeats
# (begin, length, requests): begin and length in periods, requests in counts. A full count on each side of a boundary,
# a phase of one and a half times the rate, a spike of twice the count, and a pause.
WAVES = ((0.75, 0.25, 1.0), (1.0, 0.25, 1.0), (1.75, 0.75, 1.125), (3.125, 0.25, 2.0))


class Event(NamedTuple):
    """One request: its arrival, its answer, the instant at which it goes ahead, and the state after it."""

    arrives: int
    allowed: bool
    goes: int
    state: State


def variants(limit: Limit) -> dict[str, Limit]:
    """Return the same count and period under every algorithm; buckets keep the burst."""
    return {
        algorithm: Limit(
            limit.count, limit.period_us, limit.burst if algorithm in BUCKETS else 0, algorithm, large=True
        )
        for algorithm in SHOWN
    }


def bursty(limit: Limit, until: int) -> list[int]:
    """Return the instants of requests before `until`; the same on every run."""
    arrivals = []
    for cycle in range(0, until // limit.period_us + 1, CYCLE):
        for begin, length, share in WAVES:
            many = max(round(share * limit.count), 1)
            first = (cycle + begin) * limit.period_us
            arrivals += [int(first + length * limit.period_us * (i + 0.5) / many) for i in range(many)]
    return [arrives for arrives in arrivals if arrives < until]


def play(limit: Limit, arrivals: Sequence[int]) -> list[Event]:
    """Spend one unit at each arrival and return the events."""
    states = [unpacked(limit.numbers, None)]
    events = []
    for now in arrivals:
        allowed, _, _, _, delay, *_ = evaluate([("demo", (limit,), 1, None, None)], "spend", [0], states, now)[0]
        events.append(Event(now, allowed, now + delay, states[0].copy()))
    return events


def standing_at(limit: Limit, events: Sequence[Event], now: int) -> tuple[int, int]:
    """Return (remaining, reset_after) at an instant between the events."""
    before = bisect_right(events, now, key=lambda event: event.arrives)
    state = events[before - 1].state if before else unpacked(limit.numbers, None)
    return state.standing(limit.numbers, now)


def busiest(instants: Sequence[int], period: int) -> tuple[int, int]:
    """Return the most instants within less than one period, and the first of them."""
    best, begin, first = 0, 0, 0
    for last, instant in enumerate(instants):
        while instants[first] <= instant - period:
            first += 1
        if last - first + 1 > best:
            best, begin = last - first + 1, instants[first]
    return best, begin
