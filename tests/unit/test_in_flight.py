"""The limit that finds itself, against simulated servers whose capacity is known."""

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from ratebound.adaptive.in_flight import LONGEST_WINDOW, PROBE_COST, PROBE_EVERY, InFlight


class Server:
    """A server with `workers` that each take `service` seconds for a request, half more or less. Requests come as they
    like. `slower` multiplies the time from half of the run on."""

    def __init__(self, workers: int, service: float, *, limited: bool = True, slower: float = 1.0) -> None:
        self.workers, self.service, self.slower = workers, service, slower
        self.now = 0.0
        self.random = random.Random(7)
        self.limit = InFlight(now=lambda: self.now) if limited else None
        self.limits: list[int] = []
        self.shed = 0  # after ten seconds, in which it may shed some while it is new
        self.events: list[tuple[float, int, float]] = []  # when, a number, when the request of an end began

    @property
    def capacity(self) -> float:
        return self.workers / self.service

    def run(self, times_capacity: float, seconds: float = 60.0) -> float:
        """Return the answers within one second, as a share of what the server could do, after ten seconds."""
        rate = self.capacity * times_capacity
        free, queue, good, count, arrives = self.workers, deque[float](), 0, 0, 0.0
        while self.now < seconds:
            arrives_next = arrives <= (self.events[0][0] if self.events else arrives)
            count += 1
            if arrives_next:
                self.now, arrives = arrives, arrives + self.random.expovariate(rate)
                if self.limit is not None and not self.limit.enter():
                    self.shed += self.now > 10
                    continue
                queue.append(self.now)
            else:
                self.now, _, begin = heapq.heappop(self.events)
                free += 1
                good += self.now - begin <= 1.0 and self.now > 10
                if self.limit is not None:
                    self.limit.leave()
                    self.limit.note(self.now - begin)
                    self.limits.append(self.limit.limit)
            while free and queue:
                free -= 1
                takes = self.service * self.random.uniform(0.5, 1.5) * (self.slower if self.now > seconds / 2 else 1.0)
                heapq.heappush(self.events, (self.now + takes, count, queue.popleft()))
        return good / (seconds - 10) / self.capacity


@pytest.mark.parametrize(("workers", "service"), [(1, 0.02), (4, 0.2), (10, 0.05), (40, 0.05), (100, 0.3)])
@pytest.mark.parametrize("load", [2.0, 5.0])
def test_an_overloaded_server_goes_on_working(workers: int, service: float, load: float) -> None:
    assert Server(workers, service, limited=False).run(load) < 0.05
    assert Server(workers, service).run(load) > 0.9


@pytest.mark.parametrize(("workers", "service"), [(4, 0.2), (10, 0.05), (40, 0.05), (100, 0.3)])
def test_a_server_with_little_to_do_sheds_nothing_to_speak_of(workers: int, service: float) -> None:
    server = Server(workers, service)
    server.run(0.5)
    assert server.shed < 0.005 * len(server.limits)


def test_a_server_that_becomes_slower_finds_its_new_limit() -> None:
    server = Server(10, 0.05, slower=3.0)
    share = server.run(2.0, 120.0)
    assert share > 0.9 * (50 + 60 / 3.0) / 110
    assert server.limit is not None
    assert 10 <= server.limit.limit <= 60


Times = Callable[[random.Random], float]


def shed_without_need(*phases: tuple[float, float, Times]) -> float:
    """Return the share of requests that is shed in the last phase by a server that could work on all of them at once.
    A phase has its seconds, its requests per second, and the time that each of them takes."""
    dice, now, ends, end = random.Random(7), 0.0, list[tuple[float, float]](), 0.0
    limit = InFlight(now=lambda: now)
    for seconds, rate, takes in phases:
        arrives, end, came, shed = end, end + seconds, 0, 0
        while (now := min(arrives, ends[0][0] if ends else arrives)) < end:
            if now < arrives:
                limit.note(now - heapq.heappop(ends)[1])
                limit.leave()
                continue
            arrives += dice.expovariate(rate)
            came += 1
            if limit.enter():
                heapq.heappush(ends, (now + takes(dice), now))
            else:
                shed += 1
    return shed / came


def about(seconds: float) -> Times:
    return lambda dice: dice.uniform(0.8, 1.2) * seconds


def mixed(quick: float) -> Times:
    """Requests of 5 ms and of 800 ms. `quick` is the share of the first."""
    return lambda dice: about(0.005 if dice.random() < quick else 0.8)(dice)


def test_requests_that_take_ten_times_as_long_as_others_are_no_overload() -> None:
    assert shed_without_need((200.0, 100.0, lambda dice: dice.lognormvariate(-2.0, 1.2))) < 0.1


@pytest.mark.parametrize("quick", [0.9, 0.6, 0.3])
def test_a_mix_of_quick_and_slow_requests_is_no_overload(quick: float) -> None:
    assert shed_without_need((200.0, 50.0, mixed(quick))) < 0.2


def test_a_mix_that_changes_is_no_overload() -> None:
    assert shed_without_need((200.0, 50.0, mixed(0.9)), (120.0, 50.0, mixed(0.3))) < 0.3


def test_a_night_of_health_checks_does_not_make_the_morning_an_overload() -> None:
    assert shed_without_need((1800.0, 0.1, about(0.001)), (60.0, 33.0, about(0.3))) < 0.05


def test_a_backend_that_becomes_slow_at_once_is_no_overload() -> None:
    assert shed_without_need((60.0, 100.0, about(0.05)), (60.0, 100.0, about(1.0))) < 0.2


def test_the_limit_stays_within_its_bounds() -> None:
    server = Server(40, 0.05)
    server.limit = InFlight(least=5, first=8, most=12, now=lambda: server.now)
    server.run(5.0)
    assert set(server.limits) <= set(range(5, 13))
    assert max(server.limits) == 12


def test_requests_that_never_end_leave_the_limit_as_it_was() -> None:
    now = 0.0
    limit = InFlight(first=10, now=lambda: now)
    assert sum(limit.enter() for _ in range(50)) == 10
    assert (limit.now_in, limit.shed) == (10, 40)
    now += 100
    assert not limit.enter()
    limit.leave()
    assert limit.enter()


def test_a_probe_ends_although_requests_from_before_it_take_very_long() -> None:
    now = 0.0
    limit = InFlight(first=8, now=lambda: now)
    while not limit._is_probe:
        while limit.enter():
            pass
        now += 6.0
        for _ in range(20):
            limit.note(6.0)
    shed = limit.shed
    assert not limit.enter()
    assert limit.shed == shed + 1
    now += LONGEST_WINDOW + 1
    limit.note(PROBE_EVERY + 10)
    assert not limit._is_probe


def test_after_an_idle_hour_a_busy_process_is_probed_within_seconds() -> None:
    now = 0.0
    limit = InFlight(first=8, now=lambda: now)
    for _ in range(3):
        assert limit.enter()
        now += 3600.0
        limit.note(30.0)  # one slow request is all that it has seen
        limit.leave()
    began = now
    while not limit._is_probe:
        while limit.enter():
            pass
        now += 0.1
        for _ in range(limit.now_in):
            limit.note(0.1)
            limit.leave()
        assert now - began < 2 * (LONGEST_WINDOW + PROBE_EVERY)


def test_a_probe_in_which_nobody_came_for_an_hour_does_not_delay_the_next_for_a_day() -> None:
    now = 0.0
    limit = InFlight(first=8, most=8, now=lambda: now)

    def until_probe() -> None:
        began = now
        while not limit._is_probe:
            serve()
            assert now - began < 2 * PROBE_COST * LONGEST_WINDOW

    def serve() -> None:
        nonlocal now
        while limit.enter():
            pass
        now += 0.1
        for _ in range(limit.now_in):
            limit.note(0.1)
            limit.leave()

    until_probe()
    now += 3600.0
    while limit._is_probe:
        serve()
    until_probe()


def test_threads_never_exceed_it() -> None:
    limit = InFlight(least=3, first=3, most=3)
    most, lock, inside = 0, threading.Lock(), 0

    def work() -> None:
        nonlocal most, inside
        for _ in range(2000):
            if limit.enter():
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1
                limit.note(0.001)
                limit.leave()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most <= 3
    assert limit.now_in == 0


def test_a_request_that_the_collector_ends_while_another_is_noted_blocks_nobody() -> None:
    limit = InFlight(now=lambda: 0.0)
    assert limit.enter()
    limit._now = lambda: limit.leave() or 0.0  # type: ignore[func-returns-value]
    thread = threading.Thread(target=limit.note, args=(0.1,), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert limit.now_in == 0


@pytest.mark.parametrize(
    ("options", "bounds"),
    [({}, (4, 20, 1000)), ({"most": 10}, (4, 10, 10)), ({"most": 2}, (2, 2, 2)), ({"least": 30}, (30, 30, 1000))],
)
def test_what_is_not_given_follows_what_is(options: dict[str, Any], bounds: tuple[int, int, int]) -> None:
    made = InFlight(**options)
    assert (made.least, made.limit, made.most) == bounds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least": 0}, "least must be a whole number from 1 to 100000, not 0"),
        ({"most": 1.5}, "most must be a whole number"),
        ({"least": "x"}, "least must be a whole number from 1 to 100000, not 'x'"),
        ({"least": 30, "first": 20}, "expected least <= first <= most, not 30, 20 and 1000"),
        ({"least": 30, "most": 20}, "expected least <= first <= most, not 30, 20 and 20"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InFlight(**options)
