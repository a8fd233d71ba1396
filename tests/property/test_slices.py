"""Slices of four processes, over a minute of random traffic in simulated time: no more passes than the limit gives, and
no more than a slice of each process is lost."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratebound import Slice
from tests.conftest import EXAMPLES
from tests.property.fleet import SECOND, START, Fleet, in_windows, limits_of, too_many, unmatched

MINUTE = 60 * SECOND
KINDS = [
    ("300/minute sliding-log",),
    ("300/minute sliding-counter",),
    ("300/minute fixed-window",),
    ("300/minute burst 40",),
    ("300/minute gcra",),
    ("300/calendar-day",),
    ("200/30 seconds", "300/minute fixed-window"),
    ("300/minute burst 100", "1000/calendar-day", "600/hour sliding-counter"),
]
PARTS = st.builds(Slice, st.sampled_from([0.01, 0.05, 0.3, 1.0]), st.sampled_from([100_000, SECOND, 3 * SECOND]))
kinds = pytest.mark.parametrize("texts", KINDS, ids=" and ".join)


def play(fleet: Fleet, seed: int, *, settles: bool = False, troubles: str = "") -> None:
    """Play a minute of traffic: two keys, costs from 1 to 9, rates that change from second to second."""
    random = Random(seed)
    while fleet.clock.now < START + MINUTE:
        rate = random.choice([1, 5, 20, 100])
        ends = fleet.clock.now + random.randrange(SECOND // 10, 2 * SECOND)
        keys, costs = random.choice(["a", "ab"]), random.choice([[1], [1, 1, 1, 5], [3, 9]])
        busy = random.choice([[0], [0, 1, 2, 3], [1, 3]])
        while fleet.clock.now < ends:
            fleet.hit(random.choice(busy), random.choice(keys), random.choice(costs))
            fleet.clock.now += random.randrange(2 * SECOND // rate)
            if settles and fleet.decisions and random.random() < 0.2:
                fleet.settle(random)
            if troubles and random.random() < 0.05:
                trouble(fleet, random.choice(troubles.split()), random)


def trouble(fleet: Fleet, kind: str, random: Random) -> None:
    """Let something happen to the fleet."""
    which = random.randrange(len(fleet.processes))
    process = fleet.processes[which]
    if kind == "kill":
        fleet.processes[which] = fleet.start()
        fleet.decisions = [one for one in fleet.decisions if one[0] is not process]
    elif kind == "fork":
        process._decider.renew()
    elif kind == "reload":
        process.limits = process.limits
    elif kind == "outage":
        fleet.remote.is_down = not fleet.remote.is_down
    elif kind == "reset":
        fleet.remote.is_down = False
        process.reset(random.choice("ab"))


def check(fleet: Fleet) -> None:
    """Check that each pass was charged at most `for_us` before it."""
    for key, passes in fleet.passes.items():
        for limit in fleet.limits:
            assert limit.slice is not None
            assert not unmatched(passes, fleet.charges(key, limit), limit.slice.for_us)


@kinds
@settings(max_examples=max(3, EXAMPLES // 20))
@given(part=PARTS, seed=st.integers(0, 2**32))
def test_no_more_passes_than_the_limit_gives_in_the_time_and_that_of_a_slice(
    texts: tuple[str, ...], part: Slice, seed: int
) -> None:
    fleet = Fleet(limits_of(texts, part), 4)
    play(fleet, seed)
    check(fleet)
    assert len(fleet.passes["a"]) > 20
    for passes in fleet.passes.values():
        for limit in fleet.limits:
            if limit.algorithm in ("fixed-window", "calendar"):
                assert max(in_windows(passes, limit.period_us).values()) <= limit.count
            else:
                assert not too_many(passes[:300], limit, part.for_us)


@kinds
@settings(max_examples=max(3, EXAMPLES // 20))
@given(part=PARTS, seed=st.integers(0, 2**32))
def test_the_same_holds_when_decisions_are_settled(texts: tuple[str, ...], part: Slice, seed: int) -> None:
    fleet = Fleet(limits_of(texts, part), 4)
    play(fleet, seed, settles=True)
    check(fleet)


@kinds
@pytest.mark.parametrize("troubles", ["kill", "fork reload", "outage", "reset", "kill fork reload outage reset"])
@settings(max_examples=max(1, EXAMPLES // 50))
@given(part=PARTS, seed=st.integers(0, 2**32))
def test_the_same_holds_when_processes_end_fork_and_reload_and_storages_fail(
    texts: tuple[str, ...], troubles: str, part: Slice, seed: int
) -> None:
    fleet = Fleet(limits_of(texts, part), 4)
    play(fleet, seed, settles=True, troubles=troubles)
    check(fleet)


@kinds
@settings(max_examples=max(2, EXAMPLES // 50))
@given(part=PARTS, seed=st.integers(0, 2**32))
def test_a_process_loses_no_more_than_a_slice_in_the_time_of_one(
    texts: tuple[str, ...], part: Slice, seed: int
) -> None:
    fleet = Fleet(limits_of(texts, part), 4)
    random = Random(seed)
    held: dict[tuple[int, str], int] = {}
    lost: dict[tuple[int, str], list[tuple[int, int]]] = {}

    def look(which: int) -> None:
        slices = fleet.processes[which]._decider.local.slices
        for limit in fleet.limits:
            found = slices._find(limit, "a")
            if found is None:
                continue
            place = which, limit.scope
            if fleet.clock.now >= found.ends and found.number != held.get(place):
                held[place] = found.number
                lost.setdefault(place, []).append((found.ends, found.tokens))

    while fleet.clock.now < START + MINUTE // 2:
        which = random.randrange(4)
        for each in range(4):
            look(each)
        fleet.hit(which, "a", random.choice([1, 1, 4]))
        fleet.clock.now += random.randrange(SECOND // 50)
    for (_, scope), losses in lost.items():
        (limit,) = (limit for limit in fleet.limits if limit.scope == scope)
        assert all(units <= max(1, part.share * limit.burst) for _, units in losses)
        if limit.algorithm not in ("fixed-window", "calendar"):  # a window may end soon after it
            ends = [instant for instant, units in losses if units]
            assert all(later - earlier >= part.for_us for earlier, later in pairwise(ends))
