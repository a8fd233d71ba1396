"""Alerts come once, in order, and can neither break nor hold up a decision."""

import logging
import os
import signal
import threading

import pytest

from ratebound import Decision
from ratebound.events import Degraded, Recovered
from ratebound.observe import Alert, AlertListener
from ratebound.observe.alert import MAX_WAITING
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.observe.decisions import held_elsewhere, refusal, told

PATIENCE = 10.0  # seconds: far more than an alert takes


@pytest.fixture
def alerts() -> list[Alert]:
    return []


@pytest.fixture
def yes(clock: FakeClock) -> Decision:
    return limiter_of("1/hour", clock).hit("k")


@pytest.fixture
def no(clock: FakeClock) -> Decision:
    return refusal(limiter_of("1/hour", clock), "k")


def kinds(alerts: list[Alert]) -> list[str]:
    return [alert.kind for alert in alerts]


def test_an_outage_is_told_once_with_its_end(alerts: list[Alert]) -> None:
    listener = AlertListener(alerts.append)
    for event in [Degraded("a", "timed out")] * 3 + [Degraded("b", "refused")]:
        listener(event)
    for node in ("a", "a", "b", "never-lost"):
        listener(Recovered(node, 1.5, 3))
    assert listener.flush(PATIENCE)
    assert [(alert.kind, alert.node) for alert in alerts] == [
        ("degraded", "a"),
        ("degraded", "b"),
        ("recovered", "a"),
        ("recovered", "b"),
    ]
    assert alerts[0].text == "decisions are made without the storage a: timed out"
    assert alerts[2].text == "the storage a decides again after 1.5 s"
    listener(Degraded("a", "timed out"))
    assert listener.flush(PATIENCE)
    assert kinds(alerts)[4:] == ["degraded"], "a new outage is told again"


def test_outages_can_be_left_out(alerts: list[Alert]) -> None:
    listener = AlertListener(alerts.append, degraded=False)
    listener(Degraded("a", "timed out"))
    listener(Recovered("a", 1.5, 3))
    assert listener.flush(PATIENCE)
    assert alerts == []


def test_too_many_refusals_are_told_once_until_they_have_eased(
    alerts: list[Alert], yes: Decision, no: Decision, clock: FakeClock
) -> None:
    listener = AlertListener(alerts.append, denied_share=0.5, window=60, least=100, clock=clock)

    def decide(denied: int, allowed: int) -> list[str]:
        for decision in [yes] * allowed + [no] * denied:
            listener(told(decision))
        assert listener.flush(PATIENCE)
        return kinds(alerts)

    assert decide(50, 50) == [], "at the share, not above it"
    assert decide(1, 0) == ["denials"]
    assert alerts[0] == Alert("denials", "50% of the last 101 decisions were denials", share=51 / 101)
    assert decide(500, 0) == ["denials"]
    assert decide(0, 551) == ["denials"], "just below the share is not calm yet"
    assert decide(10, 0) == ["denials"]
    assert decide(0, 1000) == ["denials", "eased"]
    assert decide(2000, 0) == ["denials", "eased", "denials"]


def test_few_decisions_are_no_reason(alerts: list[Alert], no: Decision, clock: FakeClock) -> None:
    listener = AlertListener(alerts.append, least=100, clock=clock)
    for _ in range(99):
        listener(told(no))
    clock.advance(61)  # those have left the window
    for _ in range(99):
        listener(told(no))
    assert listener.flush(PATIENCE)
    assert alerts == []
    listener(told(no))
    assert listener.flush(PATIENCE)
    assert kinds(alerts) == ["denials"]


def test_the_window_moves_on(alerts: list[Alert], yes: Decision, no: Decision, clock: FakeClock) -> None:
    listener = AlertListener(alerts.append, window=60, least=10, clock=clock)
    for _ in range(100):
        listener(told(yes))
    for _ in range(9):
        clock.advance(5)
        for _ in range(10):
            listener(told(no))
    assert listener.flush(PATIENCE)
    assert alerts == [], "90 of 190"
    clock.advance(15)
    listener(told(no))
    assert listener.flush(PATIENCE)
    assert kinds(alerts) == ["denials"], "what was allowed has left the window, the refusals have not"
    assert alerts[0].share == 1.0


def test_refusals_leave_the_window_too(alerts: list[Alert], yes: Decision, no: Decision, clock: FakeClock) -> None:
    listener = AlertListener(alerts.append, window=60, least=10, clock=clock)
    for decision, times in [(no, 9), (yes, 0), (yes, 5), (yes, 5)]:
        for _ in range(times):
            listener(told(decision))
        clock.advance(30)
    listener(told(yes))
    assert listener.flush(PATIENCE)
    assert alerts == [], "when there were enough decisions, none of them was a refusal"


def test_nothing_of_a_whole_window_is_left_after_a_pause(
    alerts: list[Alert], yes: Decision, no: Decision, clock: FakeClock
) -> None:
    listener = AlertListener(alerts.append, window=60, least=10, clock=clock)
    for _ in range(12):
        clock.advance(5)
        for _ in range(50):
            listener(told(yes))
    clock.advance(61)
    for _ in range(10):
        listener(told(no))
    assert listener.flush(PATIENCE)
    assert [alert.share for alert in alerts] == [1.0]


def test_a_new_attack_after_silence_is_told_again(alerts: list[Alert], no: Decision, clock: FakeClock) -> None:
    listener = AlertListener(alerts.append, least=10, clock=clock)
    for _ in range(2):
        for _ in range(50):
            listener(told(no))
        clock.advance(3600)
    assert listener.flush(PATIENCE)
    assert kinds(alerts) == ["denials", "eased", "denials"]


def test_a_clock_that_steps_back_upsets_nothing(alerts: list[Alert], no: Decision, clock: FakeClock) -> None:
    listener = AlertListener(alerts.append, least=10, clock=clock)
    for _ in range(9):
        listener(told(no))
        clock.advance(-100)
    listener(told(no))
    assert listener.flush(PATIENCE)
    assert kinds(alerts) == ["denials"]


def test_a_function_that_fails_is_logged_and_called_again(
    alerts: list[Alert], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(alert: Alert) -> None:
        alerts.append(alert)
        raise SystemExit if alert.node == "b" else OSError("no network")

    listener = AlertListener(fail)
    for node in "abc":
        listener(Degraded(node, "timed out"))
    assert listener.flush(PATIENCE)
    assert [alert.node for alert in alerts] == ["a", "b", "c"]
    assert caplog.messages == ["the alert function failed; decisions are not affected"] * 3


def test_a_function_that_hangs_holds_up_nobody_and_loses_only_what_is_too_much(
    alerts: list[Alert], caplog: pytest.LogCaptureFixture
) -> None:
    begun, go = threading.Event(), threading.Event()

    def hang(alert: Alert) -> None:
        begun.set()
        assert go.wait(PATIENCE)
        alerts.append(alert)

    listener = AlertListener(hang)
    listener(Degraded("first", "timed out"))
    assert begun.wait(PATIENCE)
    for i in range(MAX_WAITING + 7):
        listener(Degraded(f"node{i}", "timed out"))
    assert not listener.flush(0.0)
    go.set()
    assert listener.flush(PATIENCE)
    assert [alert.node for alert in alerts] == ["first", *(f"node{i}" for i in range(MAX_WAITING))]
    assert caplog.messages == ["the alert function is too slow: 7 alerts were dropped"]
    assert caplog.records[0].levelno == logging.ERROR


def test_no_thread_is_left_when_all_is_told(alerts: list[Alert]) -> None:
    before = threading.active_count()
    listener = AlertListener(alerts.append)
    assert threading.active_count() == before
    listener(Degraded("a", "timed out"))
    assert listener.flush(PATIENCE)
    assert threading.active_count() == before


def test_the_function_may_use_what_it_is_told_about(alerts: list[Alert], no: Decision, clock: FakeClock) -> None:
    def call(alert: Alert) -> None:
        alerts.append(alert)
        listener(told(no))
        assert not listener.flush(PATIENCE), "from inside there is always something left to tell"

    listener = AlertListener(call, clock=clock)
    listener(Degraded("a", "timed out"))
    assert listener.flush(PATIENCE)
    assert kinds(alerts) == ["degraded"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # since 3.12: while there are threads
def test_a_child_of_a_fork_tells_by_itself_and_only_its_own() -> None:
    read, write = os.pipe()
    parent, begun, go = os.getpid(), threading.Event(), threading.Event()

    def call(alert: Alert) -> None:
        if os.getpid() == parent:
            begun.set()
            assert go.wait(PATIENCE)
        else:
            os.write(write, alert.node.encode())

    listener = AlertListener(call)
    for node in ("first", "second"):
        listener(Degraded(node, "timed out"))
    assert begun.wait(PATIENCE)
    with held_elsewhere(listener._lock):
        child = os.fork()
        if not child:
            signal.alarm(round(PATIENCE))
            listener(Degraded("child", "timed out"))
            os._exit(0 if listener.flush(PATIENCE) else 1)
    go.set()
    assert listener.flush(PATIENCE)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.read(read, 100) == b"child"
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    "options", [{"denied_share": 0}, {"denied_share": 1.5}, {"window": 0}, {"least": 0}, {"least": 1.5}]
)
def test_settings_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        AlertListener(print, **options)  # type: ignore[arg-type]
