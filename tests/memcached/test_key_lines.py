"""Lines of callers of one key: one swap at a time, and those that wait are decided together."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ratebound import StorageError
from ratebound.storage.blame import Blameless, TooLate
from ratebound.storage.memcached.key_lines import KeyLines
from tests.servers import wait_until

LONG = 20.0  # seconds: longer than any of these tests


def soon() -> float:
    return time.monotonic() + LONG


class Swaps:
    """Swaps that last until they are let go. It notes the jobs of each."""

    def __init__(self) -> None:
        self.done: list[list[Any]] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.fails: StorageError | None = None

    def __call__(self, jobs: list[Any], until: float) -> Sequence[Any]:
        self.done.append(list(jobs))
        self.begun.release()
        assert self.go.acquire(timeout=LONG)
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        return [f"answer {job}" for job in jobs]


class Caller(threading.Thread):
    def __init__(self, lines: KeyLines[Any], swaps: Swaps, jobs: list[Any], until: float) -> None:
        super().__init__(daemon=True)
        self.found: Any = None
        self._call: Callable[[], Any] = lambda: lines.run(b"k", jobs, until, swaps)
        self.start()

    def run(self) -> None:
        try:
            self.found = self._call()
        except StorageError as error:
            self.found = error


def in_line(lines: KeyLines[Any], count: int) -> None:
    wait_until(lambda: len(lines._lines[b"k"].waiting) == count, LONG, "callers in line")


def led(lines: KeyLines[Any], swaps: Swaps, *others: tuple[list[Any], float]) -> list[Caller]:
    """A caller whose swap is in flight, and others behind it."""
    callers = [Caller(lines, swaps, ["first"], soon())]
    assert swaps.begun.acquire(timeout=LONG)
    for place, (jobs, until) in enumerate(others, 1):
        callers.append(Caller(lines, swaps, jobs, until))
        in_line(lines, place)
    return callers


def test_those_that_wait_are_decided_in_one_swap_in_their_order() -> None:
    lines, swaps = KeyLines[Any](), Swaps()
    callers = led(lines, swaps, (["a"], soon()), (["b", "c"], soon()), (["d"], soon()))
    swaps.go.release(2)
    for caller in callers:
        caller.join(LONG)
    assert swaps.done == [["first"], ["a", "b", "c", "d"]]
    assert [caller.found for caller in callers[1:]] == [["answer a"], ["answer b", "answer c"], ["answer d"]]
    assert len(lines) == 0


def test_one_that_waits_too_long_has_certainly_changed_nothing() -> None:
    lines, swaps = KeyLines[Any](), Swaps()
    first, late = led(lines, swaps, (["late"], time.monotonic() + 0.5))
    late.join(LONG)
    assert isinstance(late.found, Blameless)
    assert late.found.undone
    swaps.go.release()
    first.join(LONG)
    assert (swaps.done, len(lines)) == ([["first"]], 0)


def test_of_one_whose_swap_is_in_flight_at_its_deadline_the_fate_is_unknown() -> None:
    lines, swaps = KeyLines[Any](), Swaps()
    first, second, late = led(lines, swaps, (["second"], soon()), (["late"], time.monotonic() + 0.5))
    swaps.go.release()
    assert swaps.begun.acquire(timeout=LONG)
    late.join(LONG)
    assert isinstance(late.found, TooLate)
    assert not late.found.undone
    swaps.go.release()
    for caller in (first, second):
        caller.join(LONG)
    assert (second.found, len(lines)) == (["answer second"], 0)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (TooLate("its time is up", undone=True), True),
        (StorageError("others were quicker", undone=True, outage=False), True),
        (StorageError("the server is gone", undone=True), False),
        (TooLate("no answer", undone=False), False),
    ],
)
def test_the_error_of_the_one_that_leads_is_that_of_the_others_unless_they_have_time_left(
    error: StorageError, again: bool
) -> None:
    lines, swaps = KeyLines[Any](), Swaps()
    callers = led(lines, swaps, (["second"], soon()), (["third"], soon()))
    swaps.go.release()
    assert swaps.begun.acquire(timeout=LONG)
    swaps.fails = error
    swaps.go.release()
    if again:
        assert swaps.begun.acquire(timeout=LONG)
        swaps.go.release()
    for caller in callers:
        caller.join(LONG)
    assert callers[1].found is error
    assert swaps.done == [["first"], ["second", "third"], *([["third"]] if again else [])]
    if again:
        assert callers[2].found == ["answer third"]
    else:
        assert (type(callers[2].found), callers[2].found.undone) == (type(error), error.undone)
        assert callers[2].found is not error, "each caller has an error of its own"
    assert len(lines) == 0


def test_a_signal_handler_that_raises_in_the_one_that_leads_or_waits_keeps_nobody_else_from_the_key() -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    lines, swaps = KeyLines[Any](), Swaps()
    before = signal.signal(signal.SIGALRM, stop)
    try:
        (first,) = led(lines, swaps)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Stop):  # it waits
            lines.run(b"k", ["interrupted"], soon(), swaps)
        swaps.go.release()
        first.join(LONG)
        assert len(lines) == 0
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Stop):  # it leads
            lines.run(b"k", ["interrupted"], soon(), Swaps())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(lines) == 0
    swaps.go.release()
    assert lines.run(b"k", ["next"], soon(), swaps) == ["answer next"]
