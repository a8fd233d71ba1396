"""Standing in line, step by step: the flow is driven by hand, on a clock that stands still."""

import asyncio
import threading

import pytest

from ratebound import Limiter, MemoryStorage, RateLimited, parse_limit
from ratebound.clock import SECOND
from ratebound.rate_limited import Patience
from ratebound.testing import FakeClock, nothing_sleeps
from ratebound.waiting import Evaluate, Flow, Lines, Step, TicketWait, wait_in_line

TWO = (parse_limit("2/second"),)


def answered(flow: Flow, storage: MemoryStorage, step: Step) -> Step:
    assert isinstance(step, Evaluate)
    return flow.send(storage.evaluate(step.groups, step.mode))


@pytest.mark.parametrize(("missing", "passes"), [(1, False), (0, True)])
def test_who_is_late_by_a_microsecond_when_the_time_is_over_is_refused(
    missing: int, passes: bool, clock: FakeClock
) -> None:
    storage, lines = MemoryStorage(clock=clock), Lines()
    storage.evaluate(((("k", TWO, 2, None, None),),))
    lines.enter((None, "k"), threading.Event(), 1)
    patience = Patience("timeout", 1.0, SECOND)
    flow = wait_in_line("k", TWO, 1, None, patience, lines, (None, "k"), threading.Event())
    assert isinstance(answered(flow, storage, next(flow)), TicketWait)
    clock.now += SECOND - missing
    peek = flow.send(False)  # the turn did not come in time
    if passes:
        spend = answered(flow, storage, peek)
        with pytest.raises(StopIteration):
            answered(flow, storage, spend)
    else:
        with pytest.raises(RateLimited):
            answered(flow, storage, peek)


def test_a_refusal_says_what_is_left_and_when_the_same_wait_would_do(clock: FakeClock) -> None:
    limiter = Limiter("3/10 seconds", storage=MemoryStorage(clock=clock), sleep=clock.sleep)
    limiter.hit("k", cost=2)
    with pytest.raises(RateLimited) as caught:
        limiter.wait("k", cost=2, timeout=1)
    now = clock.now
    assert list(caught.value.decision.rows) == [(False, 1, 9 * SECOND, 10 * SECOND, 0, now, 0, 0, None)]


def test_where_nothing_sleeps_a_window_is_overdrawn_instead(clock: FakeClock) -> None:
    limiter = Limiter("1/second", storage=MemoryStorage(clock=clock), sleep=clock.sleep)
    limiter.hit("k")
    with nothing_sleeps():
        decision = limiter.wait("k", timeout=1)
    assert decision.allowed
    assert limiter.peek("k").retry_after == 1.0


def test_only_the_lines_of_closed_event_loops_are_forgotten() -> None:
    lines, tickets = Lines(), [threading.Event() for _ in range(4)]
    open_loop, closed, new = (asyncio.new_event_loop() for _ in range(3))
    closed.close()
    loops = (None, open_loop, closed, new)
    for loop, ticket in zip(loops, tickets, strict=True):
        assert lines.enter((loop, "k"), ticket, 1)
    assert list(lines._lines) == [None, open_loop, new]
    for loop, ticket in zip(loops, tickets, strict=True):
        lines.leave((loop, "k"), ticket)  # also one that was forgotten
    assert not lines._lines
    open_loop.close()
    new.close()
