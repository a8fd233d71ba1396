"""A simulation of pacers: a clock, a network with jitter, several processes that share a storage, and a server that
decides with our own kernels. Time passes only between events, so hours take seconds, and every run can be repeated."""

import heapq
import itertools
import random
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from ratebound import Limiter
from ratebound.client.pacing import Granted, PacerCore, Wanted
from ratebound.clock import SECOND
from ratebound.http.advice import read_advice
from ratebound.http.headers import Headers
from ratebound.http.quota import Advice
from ratebound.limit import Limit
from ratebound.rate_limited import RateLimited
from ratebound.storage.memory import MemoryStorage
from ratebound.testing import FakeClock

ORIGIN = "https://api.example.com"


class SimulatedTicket:
    """A ticket that resumes its flow when it is set."""

    def __init__(self) -> None:
        self.is_set = False
        self.resume: Callable[[bool], None] | None = None

    def set(self) -> None:
        self.is_set = True
        if self.resume is not None:
            resume, self.resume = self.resume, None
            resume(True)

    def clear(self) -> None:
        self.is_set = False


class Call(NamedTuple):
    """A call of a pacer, which the simulation makes when its time comes."""

    kind: str
    make: Any
    seconds: float | None = None


class SimulatedCalls:
    """See `PacerCalls`: each call is handed to the simulation."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage

    def evaluate(self, groups: Any, mode: Any) -> Call:
        return Call("trip", lambda: self._storage.evaluate(groups, mode))

    def sleep(self, seconds: float) -> Call:
        return Call("sleep", None, seconds)

    def in_time(self, ticket: Any, seconds: float | None) -> Call:
        return Call("ticket", ticket, seconds)

    def read_document(self, name: str) -> Call:
        return Call("trip", lambda: self._storage.read_document(name))

    def write_document(self, name: str, content: bytes, version: int) -> Call:
        return Call("trip", lambda: self._storage.write_document(name, content, version))


class Arrival(NamedTuple):
    """A request at the server."""

    at: float  # seconds since the beginning
    allowed: bool


class Simulation:
    """`trip` and `network` are the shortest and the longest time of one way, in seconds."""

    def __init__(
        self,
        seed: int,
        *,
        trip: tuple[float, float] = (0.0001, 0.0005),
        network: tuple[float, float] = (0.001, 0.005),
        begin: int = 1_700_000_000 * SECOND,
    ) -> None:
        self.clock = FakeClock(begin)
        self.begin = begin
        self.storage = MemoryStorage(clock=self.clock)
        self.arrivals: list[Arrival] = []
        self.problems: list[BaseException] = []
        self._random = random.Random(seed)
        self._trip = trip
        self._network = network
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return (self.clock.now - self.begin) / SECOND

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        instant = self.clock.now + max(round(seconds * SECOND), 0)
        heapq.heappush(self._events, (instant, next(self._numbers), event))

    def run(self, until: float) -> None:
        end = self.begin + round(until * SECOND)
        while self._events and self._events[0][0] <= end:
            instant, _, event = heapq.heappop(self._events)
            self.clock.now = max(instant, self.clock.now)
            event()

    def network(self) -> float:
        return self._random.uniform(*self._network)

    def core(self, limits: tuple[Limit, ...] = (), **options: Any) -> PacerCore:
        """A pacer of another process, whose own clock began at another instant."""
        ahead = self._random.uniform(0, 1000)
        given: dict[str, Any] = {"name": "", "learn": True, "shares": True, "max_wait": 600.0} | options
        return PacerCore(limits, clock=lambda: self.now + ahead, **given)

    def drive(self, flow: Generator[Any, Any, Any], done: Callable[[Any], None], value: Any = None) -> None:
        try:
            call: Call = flow.send(value)()
        except StopIteration as end:
            return done(end.value)
        except RateLimited as error:
            self.problems.append(error)
            return None
        if call.kind == "sleep":
            assert call.seconds is not None
            late = self._random.uniform(0, 0.0005)
            return self.after(call.seconds + late, lambda: self.drive(flow, done))
        if call.kind == "ticket":
            ticket: SimulatedTicket = call.make
            if ticket.is_set:
                return self.drive(flow, done, True)
            ticket.resume = lambda _: self.after(0, lambda: self.drive(flow, done, True))
            return None
        there, back = self._random.uniform(*self._trip), self._random.uniform(*self._trip)

        def arrive() -> None:
            found = call.make()
            self.after(back, lambda: self.drive(flow, done, found))

        self.after(there, arrive)
        return None

    def worker(
        self,
        core: PacerCore,
        server: Callable[[], tuple[int, list[tuple[str, str]]]],
        *,
        think: Callable[[], float] = lambda: 0.0,
        cost: int = 1,
        tokens: int = 0,
        heard: Callable[[Advice], None] = lambda _: None,
    ) -> None:
        """Send requests one after the other for ever."""
        calls = SimulatedCalls(self.storage)

        def ask() -> None:
            wanted = Wanted(ORIGIN, cost, tokens, None)
            self.drive(core.coming(wanted, calls, SimulatedTicket(), None), send)

        def send(granted: Granted) -> None:
            self.after(self.network(), lambda: arrive(granted))

        def arrive(granted: Granted) -> None:
            status, headers = server()
            self.arrivals.append(Arrival(self.now, status < 300))
            self.after(self.network(), lambda: answer(granted, status, headers))

        def answer(granted: Granted, status: int, headers: list[tuple[str, str]]) -> None:
            advice = read_advice(status, headers, now=self.clock.now / SECOND)
            heard(advice)
            self.drive(core.answered(granted, advice, calls), lambda _: self.after(think(), ask))

        ask()

    def refused_after(self, begin: float) -> int:
        return sum(not allowed for at, allowed in self.arrivals if at >= begin)

    def accepted_within(self, begin: float, end: float) -> int:
        return sum(allowed for at, allowed in self.arrivals if begin <= at < end)


def limited_server(simulation: Simulation, limits: str) -> Callable[[], tuple[int, list[tuple[str, str]]]]:
    """A server that keeps these limits, with our own headers, and nothing else in common with the pacers."""
    limiter = Limiter(limits, storage=MemoryStorage(clock=simulation.clock))
    headers = Headers()

    def serve() -> tuple[int, list[tuple[str, str]]]:
        decision = limiter.hit("everybody")
        return 200 if decision.allowed else 429, [(name, value) for name, value in headers.pairs(decision)]

    return serve
