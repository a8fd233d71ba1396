"""The two drivers of a flow of waiting.py: one for threads, one for tasks. All that they do is I/O and sleep."""

import time
from collections.abc import Awaitable, Callable, Sequence

from ratebound.decision import Decision
from ratebound.events import Listener
from ratebound.late_asyncio import asyncio
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.rate_limited import RateLimited
from ratebound.switch import switch
from ratebound.telling import tell_decided
from ratebound.waiting import Evaluate, Flow, Pause, TicketWait

Ask = Callable[[Sequence[Group], Mode], Sequence[Sequence[Row]]]
AsyncAsk = Callable[[Sequence[Group], Mode], Awaitable[Sequence[Sequence[Row]]]]


def drive(flow: Flow, evaluate: Ask, sleep: Callable[[float], object], listeners: tuple[Listener, ...]) -> Decision:
    """Run a flow in this thread, and tell the listeners how it ended.

    Raises RateLimited if the turn does not come in time.
    """
    asking = 0.0
    try:
        step = next(flow)
        while True:
            try:
                result: object = None
                if isinstance(step, Evaluate):
                    begin = time.perf_counter()
                    result = evaluate(step.groups, step.mode)
                    asking += time.perf_counter() - begin
                elif isinstance(step, TicketWait) or (isinstance(step, Pause) and sleep is time.sleep):
                    result = _in_time(step)
                elif switch.sleeping:
                    sleep(step.seconds)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except (StopIteration, RateLimited) as done:
        return _told(done, asking, listeners)


async def drive_async(
    flow: Flow, evaluate: AsyncAsk, sleep: Callable[[float], Awaitable[object]], listeners: tuple[Listener, ...]
) -> Decision:
    """Run a flow in this task; see `drive`."""
    asking = 0.0
    try:
        step = next(flow)
        while True:
            try:
                result: object = None
                if isinstance(step, Evaluate):
                    begin = time.perf_counter()
                    result = await evaluate(step.groups, step.mode)
                    asking += time.perf_counter() - begin
                elif isinstance(step, TicketWait) or (isinstance(step, Pause) and sleep is asyncio.sleep):
                    result = await _in_time_async(step)
                elif switch.sleeping:
                    await sleep(step.seconds)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except (StopIteration, RateLimited) as done:
        return _told(done, asking, listeners)


def _told(done: StopIteration | RateLimited, asking: float, listeners: tuple[Listener, ...]) -> Decision:
    """Tell the listeners of the decision with which a wait ended, then return it or raise RateLimited."""
    decision: Decision = done.decision if isinstance(done, RateLimited) else done.value
    if listeners:
        tell_decided(listeners, decision, asking)
    if isinstance(done, RateLimited):
        raise done
    return decision


def _in_time(turn: TicketWait | Pause) -> bool:
    in_time: bool = turn.ticket.wait(turn.seconds)  # type: ignore[attr-defined]
    return in_time


async def _in_time_async(turn: TicketWait | Pause) -> bool:
    try:
        async with asyncio.timeout(turn.seconds):
            await turn.ticket.wait()  # type: ignore[attr-defined]
    except TimeoutError:
        return False
    return True
