"""A fleet in simulated time: processes with slices on one storage, and random traffic. What passed is checked against
plain lists of what the storage was charged, and of what the limits give."""

from collections import deque
from collections.abc import Iterable
from random import Random

from ratebound import Limit, Limiter, MemoryStorage, Slice
from ratebound.decision import Decision
from ratebound.limit import BUCKETS
from ratebound.outcome import SLICED
from ratebound.testing import FakeClock
from tests.remote import RemoteStorage, sliced

SECOND = 1_000_000
START = 1_700_000_040 * SECOND  # the beginning of a minute
Pass = tuple[int, int]  # instant, units


class Fleet:
    """Processes that share a storage. `passes` has what each key was allowed by the storage or from slices."""

    def __init__(self, limits: Iterable[Limit], processes: int, failure: str = "closed") -> None:
        self.limits = tuple(limits)
        self.clock = FakeClock(START)
        self.remote = RemoteStorage(MemoryStorage(clock=self.clock), self.clock)
        self.failure = failure
        self.processes = [self.start() for _ in range(processes)]
        self.passes: dict[str, list[Pass]] = {}
        self.decisions: list[tuple[Limiter, str, int, Decision]] = []

    def start(self) -> Limiter:
        """Return a new process."""
        limiter = sliced("1/hour", self.remote, slice=None, failure=self.failure)
        limiter.limits = self.limits
        return limiter

    def hit(self, process: int, key: str, cost: int) -> Decision:
        """Hit, and note what has passed."""
        limiter = self.processes[process]
        decision = limiter.hit(key, cost=cost)
        if decision and decision.degraded is None:
            passes = self.passes.setdefault(key, [])
            passes.append((self.clock.now, cost))
            if all(row[7] == SLICED for row in decision.rows):
                self.decisions.append((limiter, key, len(passes) - 1, decision))
        return decision

    def settle(self, random: Random) -> None:
        """Settle one of the last decisions from slices: refund a part of it, or charge more."""
        limiter, key, number, decision = self.decisions.pop(random.randrange(len(self.decisions)))
        instant, charged = self.passes[key][number]
        cost = random.choice([0, charged // 2, charged, charged + random.randrange(5)])
        if not limiter.settle(decision, cost=cost).degraded:
            self.passes[key][number] = instant, min(cost, charged)
            if cost > charged:
                self.passes[key].append((self.clock.now, cost - charged))
        self.decisions = self.decisions[-20:]

    def charges(self, key: str, limit: Limit) -> list[Pass]:
        """Return what the storage was charged for a key and a limit, in order."""
        return [
            (instant, units)
            for instant, its, scope, units in self.remote.charges
            if its == key and scope == limit.scope and units > 0
        ]


def unmatched(passes: list[Pass], charges: list[Pass], lag: int) -> list[Pass]:
    """Return the passes for which the storage was not charged in the time `lag` before them. The law is that there are
    none: then in any time D no more passes than is charged in D + lag."""
    wrong = []
    rest = deque([instant, units] for instant, units in charges)
    for instant, units in sorted(passes):
        while units:
            while rest and (not rest[0][1] or rest[0][0] < instant - lag):
                rest.popleft()
            if not rest or rest[0][0] > instant:
                wrong.append((instant, units))
                break
            used = min(units, rest[0][1])  # the oldest first
            rest[0][1] -= used
            units -= used
    return wrong


def most(limit: Limit, length: int) -> int:
    """Return the most that a limit gives in any time of this length."""
    if limit.algorithm in BUCKETS:
        return limit.burst + -(-length * limit.count // limit.period_us)
    if limit.algorithm == "sliding-log":
        return limit.count * -(-length // limit.period_us)
    return limit.count * (-(-length // limit.period_us) + 1)  # windows that begin at any instant


def too_many(passes: list[Pass], limit: Limit, lag: int) -> list[tuple[int, int, int]]:
    """Return (begin, end, units) of all times in which more has passed than the limit gives in them and `lag`."""
    wrong = []
    ordered = sorted(passes)
    for first in range(len(ordered)):
        units = 0
        for instant, cost in ordered[first:]:
            units += cost
            if units > most(limit, instant - ordered[first][0] + 1 + lag):
                wrong.append((ordered[first][0], instant, units))
    return wrong


def in_windows(passes: list[Pass], period: int) -> dict[int, int]:
    """Return what has passed in each window of the clock."""
    found: dict[int, int] = {}
    for instant, units in passes:
        found[instant // period] = found.get(instant // period, 0) + units
    return found


def limits_of(texts: tuple[str, ...], part: Slice) -> list[Limit]:
    """Return the limits of texts with slices."""
    return list(Limiter(";".join(texts), slice=part).limits)
