"""A program that is interrupted: a timer's handler raises in the middle of decisions. Afterwards every state is whole.

    python -m tests.compiled.interrupted ALGORITHM INTERRUPTIONS

Exits with an error if a state is half changed or the lock is held.
"""

import random
import signal
import sys
from contextlib import suppress
from typing import Any

from ratebound import Check, Limit, Limiter, MemoryStorage, RateLimited
from ratebound.kernels.gcra import Bucket
from ratebound.kernels.sliding_log import Log
from ratebound.kernels.state import UNTOUCHED
from ratebound.limit import Algorithm
from ratebound.testing import FakeClock


class Interruption(KeyboardInterrupt):
    """Raised by the handler of the alarm, as control-C would raise it."""


def interrupt(*_: object) -> None:
    raise Interruption


def main(algorithm: Algorithm, interruptions: int) -> None:
    """Decide all the time, and look at the states after each interruption."""
    signal.signal(signal.SIGALRM, interrupt)
    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    one = Limit(50, 1_000_000, 0, algorithm)
    two = Limit(400, 60_000_000, 0, "sliding-log")
    limiters = [
        Limiter(one, storage=storage, sleep=clock.sleep),
        Limiter([one, two], storage=storage, sleep=clock.sleep, listeners=[lambda event: None]),
    ]
    seen = 0
    while seen < interruptions:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-6, 5e-4))
            for _ in range(200):  # not for ever: an interruption in a weak reference's callback is swallowed
                use(random.choice(limiters), clock, one)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interruption:
            seen += 1
        look_at(storage, {one.scope: one, two.scope: two}, clock.now)


def use(limiter: Limiter, clock: FakeClock, limit: Limit) -> None:
    """Do with a limiter what users do, on a clock that steps back now and then."""
    clock.now += random.choice((1, 10, 1_000, 100_000, -10, -50_000))
    key = random.choice(("a", "b"))
    decision = limiter.hit(key, cost=random.choice((1, 1, 3)))
    limiter.settle(decision, cost=random.choice((0, 2, 5)))
    limiter.check([Check("a", limit), Check("b", limit, 2)])
    limiter.peek(key)
    if random.random() < 0.1:
        limiter.reset(key)
    if limiter._reserves:  # windows are waited for in real lines
        with suppress(RateLimited):
            limiter.wait(key, cost=2, timeout=0.5)


def look_at(storage: MemoryStorage, limits: dict[str, Limit], now: int) -> None:
    """Fail unless every state is whole and the lock is free."""
    states: Any = storage.states
    assert not states._lock.locked(), "the lock is held"
    for scope, table in list(states._tables.items()):
        limit = limits[scope]
        for state in list(table.states.values()):
            if state.expires == UNTOUCHED:
                continue
            numbers = state.pack(limit.numbers)
            assert min(numbers) >= 0, numbers
            if isinstance(state, Log):
                instants, costs = numbers[2::2], numbers[3::2]
                assert state.used == sum(costs), numbers
                assert list(instants) == sorted(set(instants)), numbers
                assert min(costs) > 0, numbers
            if isinstance(state, Bucket):
                assert state.part < limit.count, numbers
                assert state.more is None or len(state.more) == 2 + 4 * (len(state.more[2:]) // 4), numbers
            state.copy().repair(limit.numbers, now)
            peeked = storage.evaluate([[("a", (limit,), 1, None, None)]], "peek")[0][0]
            assert 0 <= peeked[1] <= limit.burst


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))  # type: ignore[arg-type]
