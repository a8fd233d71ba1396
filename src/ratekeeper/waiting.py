"""Waiting for a turn, written once as a generator of steps; the two limiters drive it, each in its own way.

Where every limit is a bucket, a waiter takes a place in the future and sleeps until it comes: no polling,
fair between all who share the storage. Other limits have no places, so waiters on one key stand in line
inside this process, and the first of them sleeps for retry_after. No waiter ever holds up another key.
"""

import threading
from collections import deque
from collections.abc import Generator, Hashable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from ratekeeper import switch
from ratekeeper.clock import microseconds, seconds
from ratekeeper.decision import Decision, RateLimited, Row
from ratekeeper.fork import renew_in_children
from ratekeeper.limit import BUCKETS, Ask, Group, Limit, Mode
from ratekeeper.settling import settlement


class Ticket(Protocol):
    """A threading.Event or an asyncio.Event: set when its holder has become the first in line."""

    def set(self) -> None: ...


class Evaluate(NamedTuple):
    """Step: ask the storage; send back its answer."""

    groups: Sequence[Group]
    mode: Mode = "spend"


class Sleep(NamedTuple):
    seconds: float


class Turn(NamedTuple):
    """Step: wait until the ticket is set; send back after how many seconds that was, or None if it was not in time."""

    ticket: Ticket
    seconds: float


Step = Evaluate | Sleep | Turn
Flow = Generator[Step, object, Decision]


class Lines:
    """Who stands in line for what, and for how much. The lock is held only to look, or to step in or out."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Nobody stands in line. In a child process those who did are not there."""
        self._lock = threading.Lock()
        self._lines: dict[Hashable, deque[tuple[Ticket, int]]] = {}

    def enter(self, place: Hashable, ticket: Ticket, cost: int) -> bool:
        """Whether the ticket is the first in its line."""
        with self._lock:
            line = self._lines.setdefault(place, deque())
            line.append((ticket, cost))
            return len(line) == 1

    def cost_up_to(self, place: Hashable, ticket: Ticket) -> int:
        """What those in front of the ticket cost, and its own holder."""
        total = 0
        with self._lock:
            for other, cost in self._lines[place]:
                total += cost
                if other is ticket:
                    break
        return total

    def leave(self, place: Hashable, ticket: Ticket) -> None:
        """Whoever is first then is told so, also when the one that leaves was never served."""
        with self._lock:
            line = self._lines[place]
            line.remove(next(entry for entry in line if entry[0] is ticket))
            if line:
                line[0][0].set()
            else:
                del self._lines[place]


def reserves(limits: tuple[Limit, ...]) -> bool:
    """Whether all of them have places in the future."""
    return all(limit.algorithm in BUCKETS for limit in limits)


def wait_by_place(key: str, limits: tuple[Limit, ...], cost: int, timeout: int) -> Flow:
    """Take a place at most `timeout` microseconds away, and sleep until it comes."""
    group = ((key, limits, cost, timeout, None),)
    decision = yield from _evaluate(group)
    if not decision.allowed:
        raise RateLimited(decision)
    yield from _hold_back(decision)
    return decision


def wait_in_line(
    key: str, limits: tuple[Limit, ...], cost: int, timeout: int, lines: Lines, place: Hashable, ticket: Ticket
) -> Flow:
    """Come to the front of the line, then try, sleep for retry_after and try again."""
    first = lines.enter(place, ticket, cost)
    try:
        if first:
            decision = yield from _evaluate(_patient(key, limits, cost, timeout))
            deadline = decision.at + timeout
        else:
            decision = yield from _with_those_in_front(key, limits, cost, lines.cost_up_to(place, ticket), timeout)
            deadline = decision.at + timeout
            _refuse_if_late(decision, timeout)
            waited = yield Turn(ticket, seconds(timeout))
            left = max(timeout - microseconds(waited, timeout), 0) if isinstance(waited, float) else 0
            if waited is None:
                # If there is room for all in front and for this one, their turn has come and they are about to go.
                decision = yield from _with_those_in_front(key, limits, cost, lines.cost_up_to(place, ticket), left)
                if not decision.allowed:
                    raise RateLimited(decision)
            decision = yield from _evaluate(_patient(key, limits, cost, left))
        while not decision.allowed:
            _refuse_if_late(decision, deadline - decision.at)
            if not switch.sleeping:
                return (yield from _evaluate(_patient(key, limits, cost, timeout), "force"))
            wait = decision.retry_after or 0.0
            yield Sleep(wait)
            left = deadline - decision.at - microseconds(wait, timeout)
            decision = yield from _evaluate(_patient(key, limits, cost, left))
        yield from _hold_back(decision)
        return decision
    finally:
        lines.leave(place, ticket)


def _with_those_in_front(key: str, limits: tuple[Limit, ...], cost: int, total: int, timeout: int) -> Flow:
    """What would be said to all of them at once, or to as much of them as the limits can ever give."""
    most = max(min(limit.burst for limit in limits), cost)
    return _evaluate(_patient(key, limits, min(total, most), timeout), "peek")


def _patient(key: str, limits: tuple[Limit, ...], cost: int, timeout: int) -> Group:
    """A leaky bucket may hold back for no longer than `timeout`; the other limits say yes now or not at all."""
    queues = tuple(limit for limit in limits if limit.queues)
    others = tuple(limit for limit in limits if not limit.queues)
    group: list[Ask] = [(key, others, cost, None, None)]
    if queues:
        group.append((key, queues, cost, timeout, None))
    return group


def _evaluate(group: Group, mode: Mode = "spend") -> Flow:
    answers: list[Sequence[Row]] = yield Evaluate((group,), mode)  # type: ignore[assignment]
    return Decision(group, answers[0])


def _refuse_if_late(decision: Decision, left: int) -> None:
    if not decision.allowed:
        wait = decision.retry_after
        late = wait is None or wait > seconds(left)
        # A queue that is too long for the time that is left will be so later, too: both shrink alike.
        pairs = zip(decision.limits, decision.outcomes, strict=True)
        if late or any(limit.queues and not outcome.allowed for limit, outcome in pairs):
            raise RateLimited(decision)


def _hold_back(decision: Decision) -> Generator[Step, object, None]:
    """Sleep the delay; a waiter that is cancelled or interrupted gives its place back."""
    if decision.delay:
        try:
            yield Sleep(decision.delay)
        except BaseException:
            with suppress(Exception):  # a storage that fails now must not hide why the waiter goes
                yield Evaluate((settlement(decision.asks, decision.rows, [0] * len(decision.asks)),), "force")
            raise
