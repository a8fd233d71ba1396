"""The breaker by itself, on a clock that stands still, and against a plain model of what it promises."""

import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ratebound.breaker import Breaker


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(time: Time) -> Breaker:
    breaker = Breaker(failures=3, interval=1.0, lease=0.25, clock=time)
    for _ in range(3):
        breaker.failed(breaker.admit())
    assert not breaker.closed
    return breaker


def test_it_opens_after_some_outages_in_a_row_and_says_so_once() -> None:
    breaker = Breaker(failures=3, clock=Time())
    assert [breaker.failed(breaker.admit()) for _ in range(2)] == [False, False]
    assert breaker.succeeded(breaker.admit()) == 0.0
    assert [breaker.failed(breaker.admit()) for _ in range(3)] == [False, False, True]
    assert breaker.admit() == 0


def test_it_is_calm_only_while_nothing_has_failed_since_the_last_success() -> None:
    breaker = Breaker(failures=2, clock=Time())
    ticket = breaker.admit()
    assert breaker.calm == ticket
    assert breaker.succeeded(ticket) is None
    breaker.failed(ticket)
    assert breaker.closed
    assert not breaker.calm
    assert breaker.succeeded(breaker.admit()) == 0.0
    assert breaker.calm == breaker.admit()


def test_the_first_probe_comes_after_half_to_a_whole_interval_and_not_always_after_the_same() -> None:
    waits = {opened(Time()).probe_after() for _ in range(50)}
    assert all(0.5 <= round(wait, 9) <= 1.0 for wait in waits)
    assert len(waits) > 10


def test_one_caller_is_the_probe_and_the_others_are_not_held_up() -> None:
    time = Time()
    breaker = opened(time)
    time.now += 1.0
    assert breaker.admit()
    assert [breaker.admit() for _ in range(5)] == [0] * 5


def test_a_probe_that_succeeds_closes_it_and_tells_how_long_it_was_open() -> None:
    time = Time()
    breaker = opened(time)
    time.now += 7.5
    assert breaker.succeeded(breaker.admit()) == 7.5
    assert breaker.closed
    assert breaker.calm
    assert breaker.probe_after() == 0.0


def test_a_probe_that_fails_leaves_it_open_for_another_interval_and_is_no_news() -> None:
    time = Time()
    breaker = opened(time)
    time.now += 1.0
    assert breaker.failed(breaker.admit()) is False
    assert not breaker.closed
    assert 0.5 <= round(breaker.probe_after(), 9) <= 1.0


def test_a_probe_that_is_never_heard_of_again_makes_way_for_another() -> None:
    time = Time()
    breaker = opened(time)
    time.now += 1.0
    lost = breaker.admit()
    time.now += 0.25
    second = breaker.admit()
    assert second
    assert second != lost
    assert breaker.succeeded(lost) is None
    assert not breaker.closed
    assert breaker.succeeded(second)
    assert breaker.failed(lost) is False
    assert breaker.calm


def test_a_probe_that_was_not_used_may_be_taken_by_the_next_at_once() -> None:
    time = Time()
    breaker = opened(time)
    time.now += 1.0
    breaker.release(breaker.admit())
    assert breaker.admit()


def test_what_comes_back_late_from_before_it_opened_changes_nothing() -> None:
    time = Time()
    breaker = Breaker(failures=3, clock=time)
    early = breaker.admit()
    for _ in range(3):
        breaker.failed(breaker.admit())
    assert breaker.succeeded(early) is None
    assert not breaker.closed
    time.now += 1.0
    breaker.succeeded(breaker.admit())
    assert [breaker.failed(early) for _ in range(5)] == [False] * 5
    assert breaker.calm


def test_of_many_threads_exactly_one_becomes_the_probe() -> None:
    time = Time()
    for _ in range(20):
        breaker = opened(time)
        time.now += 1.0
        barrier = threading.Barrier(8)
        tickets: list[int] = []

        def ask(breaker: Breaker = breaker, barrier: threading.Barrier = barrier, into: list[int] = tickets) -> None:
            barrier.wait()
            into.append(breaker.admit())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(ticket > 0 for ticket in tickets) == 1


class BreakerModel(RuleBasedStateMachine):
    """Tickets are taken and come back in any order, or never. The oracle knows open or closed, failures in a row, and
    who is the probe since when."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.breaker = Breaker(failures=3, interval=1.0, lease=0.25, clock=self.time)
        self.tickets: list[tuple[int, str, int]] = []  # ticket, closed or probe, era in which it was given
        self.era = 0  # goes up with every change between open and closed
        self.open = False
        self.failures = 0
        self.probe: tuple[int, float] | None = None  # ticket, since when
        self.last = self.time.now  # when the last outage of the open breaker was

    @rule(seconds=st.sampled_from([0.01, 0.2, 0.25, 0.5, 1.0]))
    def wait(self, seconds: float) -> None:
        self.time.now += seconds

    @rule()
    def ask(self) -> None:
        ticket = self.breaker.admit()
        if not self.open:
            assert ticket
            self.tickets.append((ticket, "closed", self.era))
        elif ticket:
            assert self.probe is None or self.time.now >= self.probe[1] + 0.25 - 1e-9, "two probes at a time"
            assert self.time.now >= self.last + 0.5 - 1e-9, "too early"
            self.probe = (ticket, self.time.now)
            self.tickets.append((ticket, "probe", self.era))
        elif self.probe is None:
            assert self.time.now < self.last + 1.0, "nobody may probe, and nobody does"

    @rule(index=st.integers(0, 50), well=st.booleans())
    def answer(self, index: int, well: bool) -> None:
        if not self.tickets:
            return
        ticket, kind, era = self.tickets.pop(index % len(self.tickets))
        counts = era == self.era and (kind == "closed" or (self.probe is not None and self.probe[0] == ticket))
        if well:
            self.breaker.succeeded(ticket)
            if counts:
                self.failures = 0
                if self.open:
                    self.open, self.probe, self.era = False, None, self.era + 1
            return
        told = self.breaker.failed(ticket)
        if counts:
            self.failures += 1
            self.last, self.probe = self.time.now, None
            if not self.open and self.failures == 3:
                self.open, self.era = True, self.era + 1
                assert told
                return
        assert not told

    @invariant()
    def it_is_what_the_oracle_says(self) -> None:
        assert self.breaker.closed is not self.open
        assert bool(self.breaker.calm) is (not self.open and not self.failures)


TestBreakerModel = BreakerModel.TestCase
TestBreakerModel.settings = settings(stateful_step_count=60)
