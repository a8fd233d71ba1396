import asyncio
import gc
import logging
import math
import os
import threading
import weakref
from typing import Any

import pytest

from ratebound.adaptive import ErrorRate, Latency, LoopLag, Pressure, Reading
from ratebound.adaptive.sampling import Sampler
from ratebound.events import PressureChanged
from ratebound.testing import FakeClock
from tests.adaptive.gauges import Gauge, lower, pressure_of


class Decider:
    """All that a pressure knows of a decider."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.listeners = (self.heard.append,)


def test_it_falls_at_once_and_recovers_slowly() -> None:
    gauge = Gauge(2.0)
    pressure = pressure_of(gauge)
    pressure.include(["normal"])
    seen = []
    for _ in range(5):
        pressure.sample()
        seen.append(pressure.factors["normal"])
    assert seen == [0.5, 0.25, 0.1, 0.1, 0.1]
    gauge.value = 0.0
    samples = 0
    while not pressure.is_calm:
        pressure.sample()
        samples += 1
    assert samples == 38  # a quarter of a second each: 9.5 seconds


def test_a_fall_is_given_a_second_to_show() -> None:
    clock, gauge = FakeClock(), Gauge(2.0)
    pressure = pressure_of(gauge, clock=clock)
    pressure.include(["normal"])
    seen = []
    for _ in range(9):
        pressure.sample()
        seen.append(pressure.factors["normal"])
        clock.advance(0.25)
    assert seen == [0.5] * 4 + [0.25] * 4 + [0.1]


def test_it_grows_quickly_until_near_the_factor_that_was_too_much() -> None:
    clock, gauge = FakeClock(), Gauge(2.0)
    pressure = pressure_of(gauge, floor=0.05, clock=clock)
    pressure.include(["normal"])
    pressure.sample()  # to 0.5
    gauge.value = 0.0
    clock.advance(4)
    for _ in range(2):
        pressure.sample()
    assert pressure.factors["normal"] == 0.6
    gauge.value = 2.0
    pressure.sample()  # from 0.6, which was too much, to 0.3
    clock.advance(1)
    pressure.sample()  # it goes on to fall
    assert pressure.factors["normal"] == 0.15
    gauge.value = 0.0
    seen = []
    while pressure.factors["normal"] < 1:
        pressure.sample()
        seen.append(pressure.factors["normal"])
    assert seen[:6] == [0.2, 0.25, 0.3, 0.35, 0.4, 0.45]
    steps = {factor: seen.count(factor) for factor in (0.5, 0.55, 0.6, 0.75, 0.8, 0.9)}
    assert steps == {0.5: 5, 0.55: 5, 0.6: 5, 0.75: 1, 0.8: 1, 0.9: 1}


def test_more_load_falls_faster_within_bounds() -> None:
    after = {}
    for load in (1.01, 1.25, 1000.0, math.inf):
        gauge = Gauge(load)
        pressure = pressure_of(gauge)
        pressure.include(["normal"])
        pressure.sample()
        after[load] = pressure.factors["normal"]
    assert after == {1.01: 0.9, 1.25: 0.8, 1000.0: 0.5, math.inf: 0.5}


def test_the_lowest_priority_falls_to_its_floor_before_the_next_begins() -> None:
    gauge = Gauge(2.0)
    pressure = pressure_of(gauge, floor=0.3)
    pressure.include(["high", "low", "normal", "critical"])
    seen = []
    for _ in range(8):
        pressure.sample()
        seen.append([pressure.factors[priority] for priority in ("low", "normal", "high", "critical")])
    assert seen[:3] == [[0.5, 1, 1, 1], [0.3, 1, 1, 1], [0.3, 0.5, 1, 1]]
    assert seen[-1] == [0.3, 0.3, 0.3, 1]


def test_the_highest_load_counts() -> None:
    low, high = Gauge(0.1), Gauge(3.0)
    pressure = pressure_of(low, high)
    pressure.include(["normal"])
    pressure.sample()
    assert pressure.factors["normal"] == 0.5


def test_finished_requests_feed_latency_and_errors() -> None:
    clock = FakeClock()
    for signal, call in ((Latency(0.5), (1.2, False)), (ErrorRate(0.1), (0.1, True))):
        pressure = pressure_of(signal, clock=clock)
        pressure.include(["normal"])
        assert pressure.measures_requests
        for _ in range(20):
            pressure.finished(*call)
        pressure.sample()
        assert pressure.factors["normal"] == 0.5
        clock.advance(2)
        pressure.sample()
        assert pressure.factors["normal"] == 0.5  # nothing is known of those that came after the fall
        for _ in range(20):
            pressure.finished(*call)
        pressure.sample()
        assert pressure.factors["normal"] == 0.25
    assert not pressure_of(Gauge()).measures_requests


def test_a_signal_that_fails_is_ignored_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [ValueError("no"), ValueError("no"), math.nan, -3.0, 400.0, ValueError("again")]

    def read() -> float:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return float(answer)

    pressure = pressure_of(Reading("queue", read, 100.0))
    pressure.include(["normal"])
    factors = []
    while answers:
        pressure.sample()
        factors.append(pressure.factors["normal"])
    assert factors == [1, 1, 1, 1, 0.5, 0.55]
    assert caplog.text.count("the signal queue failed; it is ignored until it works again") == 2


@pytest.mark.parametrize("given", [None, "much", [3]])
def test_a_signal_that_gives_no_number_is_ignored_and_the_others_are_not(
    given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pressure = pressure_of(Gauge(given), Reading("queue", lambda: 200, 100))
    pressure.include(["normal"])
    pressure.sample()
    assert pressure.factors["normal"] == 0.5
    assert "the signal gauge failed; it is ignored until it works again" in caplog.text


def test_a_number_of_any_size_is_a_load() -> None:
    pressure = pressure_of(Gauge(10**400))
    pressure.include(["normal"])
    pressure.sample()
    assert pressure.factors["normal"] == 0.5


def test_where_no_thread_can_be_started_requests_go_on_and_the_next_one_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sampler = Sampler()
    monkeypatch.setattr("ratebound.adaptive.pressure.sampler", sampler)
    pressure = Pressure([Gauge()])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        pressure.begin(Decider())
        pressure.begin(Decider())
    assert not pressure.is_calm
    assert caplog.text.count("the load of this process is not sampled") == 1
    pressure.begin(Decider())
    assert pressure.is_calm
    assert sampler._thread is not None


def test_listeners_hear_of_each_change_and_the_log_of_begin_and_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock, gauge, decider = FakeClock(), Gauge(), Decider()
    pressure = pressure_of(gauge, floor=0.9, clock=clock)
    pressure.include(["low"])
    pressure.begin(decider)
    pressure.begin(decider)
    calm = {"low": 1.0, "normal": 1.0, "high": 1.0, "critical": 1.0}
    assert decider.heard == [PressureChanged(calm)]
    gauge.value = 1.5
    pressure.sample()
    pressure.sample()
    assert decider.heard == [PressureChanged(calm), PressureChanged({**calm, "low": 0.9})]
    assert caplog.messages == ["overload: limits are lowered, because gauge is at 150 % of its threshold"]
    gauge.value = 0.0
    while not pressure.is_calm:
        clock.advance(0.25)
        pressure.sample()
    assert decider.heard[-1] == PressureChanged(calm)
    assert caplog.messages[1:] == ["the overload is over: limits are as configured again, after 2.5 s"]


def test_it_is_not_calm_before_the_first_request_and_while_lowered() -> None:
    gauge = Gauge()
    pressure = pressure_of(gauge)
    pressure.include(["normal"])
    assert not pressure.is_calm
    pressure.begin(Decider())
    assert pressure.is_calm
    lower(pressure, gauge)
    assert not pressure.is_calm
    pressure.begin(Decider())
    assert not pressure.is_calm


def test_one_that_takes_the_place_of_another_begins_where_that_stands() -> None:
    gauge = Gauge()
    old, new = pressure_of(gauge, floor=0.1), pressure_of(gauge, floor=0.4)
    old.include(["normal"])
    lower(old, gauge)
    new.follow(old)
    assert new.factors["normal"] == 0.4
    new.sample()
    assert not new.is_calm


def test_an_event_loop_is_watched_from_the_first_request_on_and_so_is_the_next() -> None:
    lag = LoopLag(60.0)
    pressure = Pressure([lag], background=False)
    pressure.include(["normal"])

    async def main() -> None:
        assert not pressure.is_calm
        pressure.begin(Decider())
        assert lag.is_watching
        pressure.sample()
        assert pressure.is_calm

    for _ in range(2):
        asyncio.run(main())
        pressure.sample()
        assert not pressure.is_calm  # the next request brings its loop


def test_a_thread_samples_from_the_first_request_on_and_ends_when_nobody_is_left() -> None:
    sampled = threading.Event()

    class Counted:
        def sample(self) -> None:
            sampled.set()

    sampler, counted = Sampler(), Counted()
    sampler.add(counted)
    thread = sampler._thread
    assert thread is not None
    assert thread.daemon
    assert sampled.wait(20)
    del counted
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    sampler.add(again := Counted())  # another thread takes over
    sampled.clear()
    assert sampled.wait(20)
    assert again is not None


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_the_thread_goes_on_after_a_failure(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    sampled = threading.Semaphore(0)

    class Failing:
        def sample(self) -> None:
            sampled.release()
            raise error("as asked")

    sampler, failing = Sampler(), Failing()
    sampler.add(failing)
    assert sampled.acquire(timeout=20)
    assert sampled.acquire(timeout=20)
    assert failing is not None
    assert "the load of this process could not be sampled" in caplog.text


def test_a_pressure_in_the_background_is_freed() -> None:
    pressure = Pressure([Gauge()])
    pressure.begin(Decider())
    gone = weakref.ref(pressure)
    del pressure
    for _ in range(100):
        gc.collect()
        if gone() is None:
            return
        threading.Event().wait(0.05)  # the thread may be sampling it
    raise AssertionError("something holds it")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_samples_by_a_thread_of_its_own() -> None:
    sampled = threading.Event()

    class Noticed:
        name = "noticed"

        def load(self, now: float) -> float:
            sampled.set()
            return 0.0

    pressure = Pressure([Noticed()])
    pressure.begin(Decider())
    assert sampled.wait(20)
    child = os.fork()
    if not child:
        try:
            was_calm = pressure.is_calm
            sampled.clear()
            pressure.begin(Decider())
            os._exit(0 if not was_calm and sampled.wait(20) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
