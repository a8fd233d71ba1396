"""A program whose signal handler raises, hits or exits in the middle of hits. Afterwards the zone is whole.

    python -m tests.shared_memory.interrupted raise|hit DIRECTORY file|mutex INTERRUPTIONS

Exits with an error if a lock is held, a state is broken, or a grant was lost or made twice.
"""

import logging
import random
import signal
import sys
import threading

from ratebound import Check, Limit, Limiter
from ratebound.limit import ALGORITHMS, Failure
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.storage.shared_memory.zone_states import Zone
from tests.shared_memory.zone_check import check_zone

YEAR = 365 * 86_400 * 1_000_000
LIMITS = [Limit(500 if algorithm == "sliding-log" else 100_000, YEAR, 0, algorithm) for algorithm in ALGORITHMS]
LOG = LIMITS[ALGORITHMS.index("sliding-log")]


class Interruption(KeyboardInterrupt):
    """Raised by the handler of the alarm, as control-C would raise it."""


class Blamed(logging.Handler):
    """Collects what is logged: outages of the storage are."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.messages.append(record.getMessage())


def interrupt(*_: object) -> None:
    raise Interruption


class Interrupted:
    """Hits of one process, and what it was granted."""

    def __init__(self, storage: SharedMemoryStorage, failure: Failure) -> None:
        self.zone: Zone = storage.states.zone
        self.limiters = [Limiter(limit, storage=storage, failure=failure) for limit in LIMITS]
        self.several = Limiter(LIMITS[0], storage=storage, failure=failure)
        self.begun = dict.fromkeys(range(len(LIMITS)), 0)
        self.ended = dict.fromkeys(range(len(LIMITS)), 0)
        self.granted = dict.fromkeys(range(len(LIMITS)), 0)
        shard_of = self.zone.cells.shard_of
        self.probes = list({shard_of(f"any {n}"): f"any {n}" for n in range(400)}.values())

    def use(self) -> None:
        """Hit one key, or a group of keys in several shards, and use others in other ways."""
        asked = random.sample(range(len(LIMITS)), random.choice((1, 1, 3)))
        for number in asked:
            self.begun[number] += 1
        if len(asked) == 1:
            decision = self.limiters[asked[0]].hit(f"key {asked[0]}")
        else:
            decision = self.several.check([Check(f"key {number}", LIMITS[number]) for number in asked])
        for number in asked:
            self.granted[number] += decision.allowed and not decision.degraded
            self.ended[number] += 1
        noise = f"noise {random.randrange(9)}"
        self.several.check([Check(noise, LOG), Check(f"{noise}b", LOG)])
        if random.random() < 0.1:
            self.several.reset(noise, limits=[LOG])

    def check_locks(self) -> None:
        """Fail unless every lock is free, for another thread and so for other processes."""
        found: list[object] = []

        def look() -> None:
            for key in self.probes:
                try:
                    self.zone.evaluate([(key, (LOG,), 1, None, None)], "peek", 0.0)
                except Exception as error:
                    found.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert not found, f"a lock is held: {found}"

    def check(self) -> None:
        """Fail unless the zone is whole and has what was granted."""
        self.check_locks()
        check_zone(self.zone.cells, self.zone.owner.geometry)  # type: ignore[attr-defined]
        for number, limiter in enumerate(self.limiters):
            used = LIMITS[number].count - limiter.peek(f"key {number}").remaining
            cut_short = self.begun[number] - self.ended[number]
            assert self.granted[number] <= used <= self.granted[number] + cut_short, (number, used)


def with_a_handler_that_raises(storage: SharedMemoryStorage, interruptions: int) -> None:
    """Hit while an alarm raises, and look at the zone after each time."""
    hits, seen = Interrupted(storage, "raise"), 0
    signal.signal(signal.SIGALRM, interrupt)
    while seen < interruptions:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
            for _ in range(200):  # not for ever: an interruption in a weak reference's callback is swallowed
                hits.use()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interruption:
            seen += 1
            hits.check_locks()
    hits.check()


def with_a_handler_that_hits(storage: SharedMemoryStorage, interruptions: int) -> None:
    """Hit while an alarm hits the same keys: it may not wait for a lock that its own thread has."""
    hits, inner, seen, blamed = Interrupted(storage, "open"), Interrupted(storage, "open"), 0, Blamed()
    logging.getLogger("ratebound").addHandler(blamed)

    def hit(*_: object) -> None:
        nonlocal seen
        seen += 1
        for number, limiter in enumerate(inner.limiters):
            decision = limiter.hit(f"key {number}")
            inner.granted[number] += decision.allowed and not decision.degraded

    signal.signal(signal.SIGALRM, hit)
    while seen < interruptions:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
        hits.use()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert not blamed.messages, f"the storage is blamed for what the program did: {blamed.messages}"
    hits.check_locks()
    check_zone(hits.zone.cells, hits.zone.owner.geometry)  # type: ignore[attr-defined]
    for number, limiter in enumerate(Interrupted(storage, "raise").limiters):
        used = LIMITS[number].count - limiter.peek(f"key {number}").remaining
        assert hits.granted[number] + inner.granted[number] == used, (number, used)


if __name__ == "__main__":
    _, what, directory, locks, number = sys.argv
    opened = SharedMemoryStorage("interrupted", size=1 << 20, directory=directory, locks=locks)
    run = with_a_handler_that_raises if what == "raise" else with_a_handler_that_hits
    run(opened, int(number))
