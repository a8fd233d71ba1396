"""A simulated client that always asks: how much it gets, and which limit holds it back when.

It is not played unit by unit. At each of a few hundred instants it takes all remaining units as one cost and then
computes when to come back. A limit that recovers faster than that is replaced by a `widened` one, so that nothing is
lost between two looks. So a year of 10/second takes as little time as a second of it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ratebound.kernels.group_law import evaluate
from ratebound.kernels.packing import unpacked
from ratebound.kernels.state import State
from ratebound.limit import BUCKETS, MAX_COUNT, WINDOWS, Limit

LOOKS = 300  # in one span
MANY_LOOKS = 3_000  # a sliding counter gives slightly less to a client that looks seldom
ZOOM = 16


class Look(NamedTuple):
    """The units allowed by `now`, and the index of the limit that says to wait."""

    now: int
    total: int
    binding: int


def recovery(limit: Limit) -> int:
    """Return the time in which a used-up limit recovers."""
    return max(limit.refill_us, 1) if limit.algorithm in BUCKETS else limit.period_us


def saturable(limit: Limit) -> Limit:
    """Return the limit as it can be saturated: a calendar quota as a fixed window of its mean length."""
    if limit.calendar is None:
        return limit
    return Limit(limit.count, limit.period_us, algorithm="fixed-window")


def saturate(
    limits: Sequence[Limit], span: int, start: int = 0, *, opened: bool = False, looks: int = LOOKS
) -> list[Look]:
    """Take all available units from `start` until `span` later, including the last microsecond before that.

    Return the looks. `opened` spends one unit at 0 first, so that windows that begin with a key's first request have
    begun.
    """
    pace = max(span // looks, 1)
    seen = tuple(widened(limit, pace) for limit in limits)
    states = [unpacked(wide.numbers, None) for wide in seen]
    for limit, wide, state in zip(limits, seen, states, strict=True):
        if wide is not limit:
            state.spend(wide.numbers, start, wide.burst - limit.burst, None, 0)
    if opened:
        evaluate([("client", seen, 1, None, None)], "spend", range(len(seen)), states, 0)
    taken, total, now, end = [], 0, start, start + span - 1
    while True:
        total += _take_all(seen, states, now)
        binding, wait = _held_back(seen, states, now)
        taken.append(Look(now - start, total, binding))
        if now >= end:
            return taken
        now = min(now + max(wait, pace), end)


def widened(limit: Limit, pace: int) -> Limit:
    """Return the limit for a client that looks every `pace` microseconds.

    It is a larger bucket if the limit would fill up in between. The caller empties it down to the true burst at once,
    so at every look it has given as much as the true limit.
    """
    if recovery(limit) >= 8 * pace or (pace == 1 and limit.algorithm in WINDOWS):  # a look at every microsecond
        return limit
    more = -(-limit.count * pace // limit.period_us)
    return Limit(limit.count, limit.period_us, min(limit.burst + more, MAX_COUNT), "token-bucket")


def first_bindings(limits: Sequence[Limit]) -> list[Look]:
    """Return the first look at which each limit says to wait, in order of time. A limit that never does is left out.

    The search covers spans from the shortest recovery to three times the longest.
    """
    found: dict[int, Look] = {}
    span, last = 2 * min(map(recovery, limits)), followed(limits)
    while len(found) < len(limits):
        span = min(span, last)
        before = 0
        for look in saturate(limits, span):
            if look.binding not in found:
                found[look.binding] = _look_closer(limits, before, look)
            before = look.now
        if span == last:
            break
        span *= ZOOM
    return sorted(found.values())


def followed(limits: Sequence[Limit]) -> int:
    """Return the time for which a client is followed to see which limits ever bind."""
    return 3 * max(map(recovery, limits))


def _look_closer(limits: Sequence[Limit], before: int, seen: Look) -> Look:
    """Return the first look with this binding, by bisection, to about a hundred thousandth of its instant."""
    while seen.now - before > 1 + seen.now // 100_000:
        middle = (before + seen.now) // 2
        look = saturate(limits, middle + 1)[-1]
        if look.binding == seen.binding:
            seen = look
        else:
            before = middle
    return seen


def steady(limits: Sequence[Limit]) -> tuple[int, int]:
    """Return (units, microseconds) of the long run, over whole periods of every limit if possible."""
    slowest = max(limits, key=recovery)
    whole = math.lcm(*(limit.period_us for limit in limits))
    if whole > 100 * recovery(slowest):
        whole = slowest.period_us
    span = 2 * -(-recovery(slowest) // whole) * whole
    early, late = (saturate(limits, length, looks=MANY_LOOKS)[-1].total for length in (span, 2 * span))
    return late - early, span


def most_in_one_period(limit: Limit) -> int:
    """Return the most units that pass within less than one period, for a client that begins at the worst instant."""
    last = limit.period_us - 1
    worst = [saturate((limit,), limit.period_us, start)[-1].total for start in (0, last)]
    if limit.algorithm in WINDOWS:
        worst.append(saturate((limit,), limit.period_us, last, opened=True)[-1].total)
    return max(worst)


def longest_delay(limit: Limit) -> int:
    """Return the delay of the last request of a whole burst."""
    state = unpacked(limit.numbers, None)
    if limit.burst > 1:
        state.spend(limit.numbers, 0, limit.burst - 1, None, 0)
    return state.spend(limit.numbers, 0, 1, None, 0)[4]


def used_up(limit: Limit) -> tuple[int, int]:
    """Return the units that pass at once from a window's beginning, and the time until the limit is untouched again."""
    states = [unpacked(limit.numbers, None)]
    _take_all((limit,), states, 0)
    at_once = saturate((limit,), 1)[-1].total  # a bucket above one unit per microsecond gives more than its burst
    return at_once, states[0].standing(limit.numbers, 0)[1]


def _take_all(limits: tuple[Limit, ...], states: list[State], now: int) -> int:
    slots = range(len(limits))
    left = min(row[1] for row in evaluate([("client", limits, 1, None, None)], "peek", slots, states, now))
    if left:
        evaluate([("client", limits, left, None, None)], "spend", slots, states, now)
    return left


def _held_back(limits: tuple[Limit, ...], states: list[State], now: int) -> tuple[int, int]:
    """Return the index of the limit that denies for longest, which a decision would name, and its wait."""
    rows = evaluate([("client", limits, 1, None, None)], "peek", range(len(limits)), states, now)
    wait, place = max((row[2] or 0, -place) for place, row in enumerate(rows))
    return -place, wait
