"""Adaptive limits in front of a simulated server whose capacity is known: most of what it can do is done."""

import heapq
from collections import deque
from random import Random

import pytest

from ratebound import Limit, parse_limit
from ratebound.adaptive import Latency, Pressure
from ratebound.kernels.packing import unpacked
from ratebound.lowered import STEPS, lowered_limit

WORKERS, SERVICE = 10, 0.05  # each request takes half more or less
CAPACITY = WORKERS / SERVICE
LIMIT = parse_limit("400/second burst 20")  # twice of what the server can do


class Server:
    """A server with a queue, behind a limit that its pressure lowers. Requests come as they like."""

    def __init__(self, target: float) -> None:
        self.now = 0.0
        self.pressure = Pressure([Latency(target)], background=False, clock=lambda: self.now)
        self.pressure.include(["normal"])
        self.limits: list[Limit] = [lowered_limit(LIMIT, step, 1) for step in range(1, STEPS + 1)]
        self.state = unpacked(LIMIT.numbers, None)
        self.random = Random(3)

    def admits(self) -> bool:
        limit = self.limits[self.pressure.step("normal") - 1]
        return self.state.spend(limit.numbers, int(self.now * 1e6), 1, None, 0)[0]

    def goodput(self, load: float, *, adaptive: bool = True) -> float:
        """Return the answers within one second, as a share of the capacity, from second 20 to 60."""
        free, queue, good, number = WORKERS, deque[float](), 0, 0
        events: list[tuple[float, int, str, float]] = [(0.0, 0, "arrival", 0.0), (0.25, 0, "sample", 0.0)]
        while self.now < 60:
            self.now, _, what, begin = heapq.heappop(events)
            number += 1
            if what == "arrival":
                heapq.heappush(events, (self.now + self.random.expovariate(CAPACITY * load), number, what, 0.0))
                if self.admits():
                    queue.append(self.now)
            elif what == "sample":
                heapq.heappush(events, (self.now + 0.25, number, what, 0.0))
                if adaptive:
                    self.pressure.sample()
            else:
                free += 1
                self.pressure.finished(self.now - begin, False)
                good += self.now > 20 and self.now - begin <= 1.0
            while free and queue:
                free -= 1
                takes = SERVICE * self.random.uniform(0.5, 1.5)
                heapq.heappush(events, (self.now + takes, number, "end", queue.popleft()))
        return good / 40 / CAPACITY


@pytest.mark.parametrize("target", [0.2, 0.5])
@pytest.mark.parametrize("load", [1.5, 2.0, 4.0])
def test_an_overloaded_server_goes_on_working(target: float, load: float) -> None:
    assert Server(target).goodput(load, adaptive=False) < 0.05
    assert Server(target).goodput(load) > 0.85


def test_a_server_that_is_not_overloaded_loses_nothing() -> None:
    assert Server(0.5).goodput(0.8) == Server(0.5).goodput(0.8, adaptive=False) > 0.75
