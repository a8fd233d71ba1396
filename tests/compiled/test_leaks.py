"""Decisions leave nothing behind: neither memory, nor references to keys, limits and plans."""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import ratebound
from ratebound import AsyncLimiter, Check, Limit, Limiter, MemoryStorage, RateLimited
from ratebound.limit import ALGORITHMS, Algorithm
from ratebound.testing import FakeClock
from tests.compiled.history import read

# Compiled code counts references by itself. Python's own code cannot miscount them: it is played for less long.
MORE = ratebound.compiled or os.environ.get("RATEBOUND_LONG") == "1"
ROUNDS = 500 if MORE else 150
HITS = 20_000 if MORE else 5_000
KEY = "a key that is kept in one place: " + "k" * 20


def use(limiter: Limiter, waiting: AsyncLimiter, clock: FakeClock, limits: tuple[Limit, ...]) -> Callable[[], None]:
    """Return a function that makes decisions of every kind, allowed and denied, and reads them."""

    def once() -> None:
        decision = limiter.hit(KEY)
        read(decision)
        limiter.settle(decision, cost=0)
        read(limiter.hit(KEY, cost=2))
        limiter.hit(KEY, cost=10**6)
        limiter.hit_many([KEY, KEY])
        read(limiter.peek(KEY))
        read(limiter.check([Check(KEY, limits), Check("another", limits, 2)]))
        for wrong in (0, None, 2**70):
            with suppress(ValueError):
                limiter.hit(KEY, cost=wrong)  # type: ignore[arg-type]
        try:
            limiter.wait(KEY, timeout=0.001)
        except RateLimited as error:
            str(error)
        coroutine = waiting.hit(KEY)
        try:
            coroutine.send(None)
        except StopIteration as done:
            read(done.value)
        clock.now += 700_000

    return once


def growth(once: Callable[[], None], times: int) -> int:
    """Return how many more blocks of memory are in use after calling a function."""
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(times):
        once()
    gc.collect()
    return sys.getallocatedblocks() - before


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_decisions_leave_nothing_behind(
    algorithm: Algorithm, several: bool, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("ratebound"), "disabled", True)  # the listener fails on purpose
    limits = (Limit(5, 1_000_000, 0, algorithm), Limit(40, 60_000_000, 0, algorithm))[: 2 if several else 1]
    storage = MemoryStorage(clock=clock)

    def fails(event: Any) -> None:
        raise ValueError("a listener that fails")

    limiter = Limiter(limits, storage=storage, sleep=clock.sleep, listeners=[fails])
    once = use(limiter, AsyncLimiter(limits, storage=storage), clock, limits)
    for _ in range(200):
        once()
    kept = [KEY, *limits, *(limit.numbers for limit in limits), limiter._plan, limits]
    gc.collect()
    counts = [sys.getrefcount(each) for each in kept]
    assert min(growth(once, ROUNDS) for _ in range(3)) < ROUNDS // 10
    assert [sys.getrefcount(each) for each in kept] == pytest.approx(counts, abs=20)


@pytest.mark.parametrize("text", ["5/second", "1000000/second burst 7", "5/second; 100/minute; 1000/day burst 2000"])
def test_many_hits_leave_nothing_behind(text: str, clock: FakeClock) -> None:
    limiter = Limiter(text, storage=MemoryStorage(clock=clock))

    async def tasks() -> None:
        waiting = AsyncLimiter(text, storage=MemoryStorage(clock=clock))
        for _ in range(2_000):
            await waiting.hit(KEY)

    def many() -> None:
        for number in range(HITS):
            limiter.hit(KEY)
            limiter.hit("other", cost=2)
            if number % 100 == 0:
                clock.now += 100_000
        asyncio.run(tasks())

    many()
    gc.collect()
    counts = [sys.getrefcount(each) for each in (KEY, limiter._plan)]
    assert min(growth(many, 1) for _ in range(3)) < 1_000
    assert [sys.getrefcount(each) for each in (KEY, limiter._plan)] == pytest.approx(counts, abs=20)
