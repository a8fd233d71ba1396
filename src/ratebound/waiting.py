"""Waiting for a turn, written once as a generator of steps; the two limiters drive it, each in its own way.

Where every limit is a bucket, a waiter takes a place in the future and sleeps until it comes: no polling,
fair between all who share the storage. Other limits have no places, so waiters on one key stand in line
inside this process, and the first of them sleeps for retry_after. A waiter that cannot pass in time, behind all those
in front, is refused at once, as far as `_after_those_in_front` can tell. No waiter ever holds up another key.

Nobody can know when a slot is released, so a waiter for a slot is not refused before its timeout. The first in line
tries again when a slot is released in this process, and every now and then for the sake of other processes.
"""

import threading
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import suppress
from random import uniform
from typing import Final, NamedTuple, Protocol

from ratebound.clock import seconds
from ratebound.decision import Decision
from ratebound.errors import StorageError
from ratebound.fork import renew_in_children
from ratebound.late_asyncio import asyncio
from ratebound.limit import BUCKETS, Ask, Extra, Group, Limit, Mode
from ratebound.outcome import DegradedRows, Row
from ratebound.rate_limited import Patience, RateLimited
from ratebound.settling import undoing
from ratebound.slots import slots_of
from ratebound.switch import switch

FIRST_PAUSE: Final = 0.005  # seconds between two tries for a slot
LONGEST_PAUSE: Final = 0.25


class Ticket(Protocol):
    """A threading.Event or an asyncio.Event: set when its holder has become the first in line.

    A waiter for a slot clears its ticket then. It is set again when a slot is released.
    """

    def set(self) -> None:
        """Wake the holder."""

    def clear(self) -> None:
        """Let the holder wait again."""


class Evaluate(NamedTuple):
    """Step: ask the storage; send back its answer."""

    groups: Sequence[Group]
    mode: Mode = "spend"


class Sleep(NamedTuple):
    """Step: sleep."""

    seconds: float


class TicketWait(NamedTuple):
    """Step: wait until the ticket is set; send back whether that was in time."""

    ticket: Ticket
    seconds: float


class Pause(NamedTuple):
    """Step: wait until the ticket is set, or sleep if that is simulated."""

    ticket: Ticket
    seconds: float


Step = Evaluate | Sleep | TicketWait | Pause
Place = tuple[
    "asyncio.AbstractEventLoop | None", str
]  # one line for each key and event loop: a ticket is set in its own
Flow = Generator[Step, object, Decision]
Extras = Sequence[Extra] | None


class Line:
    """The waiters on one key, in order. Entering, leaving and counting take logarithmic time, so that thousands in one
    line do not hold up the event loop.

    `_sums` is a Fenwick tree over the costs, in the order in which they came: the sum of all up to any of them.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[Ticket, tuple[int, int]] = OrderedDict()  # number in the tree, cost
        self._sums = [0]

    def __len__(self) -> int:
        return len(self._entries)

    def first(self) -> Ticket:
        """Return the ticket of the waiter whose turn it is."""
        return next(iter(self._entries))

    def append(self, ticket: Ticket, cost: int) -> None:
        """Add a waiter at the end."""
        if len(self._sums) > 2 * len(self._entries) + 64:  # most of those in the tree have left
            staying, self._entries, self._sums = self._entries, OrderedDict(), [0]
            for other, (_, its_cost) in staying.items():
                self._add(other, its_cost)
        self._add(ticket, cost)

    def _add(self, ticket: Ticket, cost: int) -> None:
        number, step = len(self._sums), 1
        self._entries[ticket] = number, cost
        while step < number & -number:
            cost += self._sums[number - step]
            step *= 2
        self._sums.append(cost)

    def remove(self, ticket: Ticket) -> None:
        """Take a waiter out, wherever in the line it stands."""
        number, cost = self._entries.pop(ticket)
        while number < len(self._sums):
            self._sums[number] -= cost
            number += number & -number

    def in_front_of(self, ticket: Ticket) -> int:
        """Return what those in front of the ticket cost."""
        number, total = self._entries[ticket][0] - 1, 0
        while number:
            total += self._sums[number]
            number -= number & -number
        return total


class Lines:
    """All lines of a limiter, by event loop and key. The lock is held only to look, or to step in or out.

    A line keeps its event loop alive. Lines of closed loops are dropped when the first waiter of another loop comes.
    """

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Forget all waiters. A child process has none of its parent's."""
        # Reentrant: under the lock the collector may destroy waiters of a closed loop, and they leave.
        self._lock = threading.RLock()
        self._lines: dict[asyncio.AbstractEventLoop | None, dict[str, Line]] = {}

    def enter(self, place: Place, ticket: Ticket, cost: int) -> bool:
        """Put the ticket at the end of its line. Return True if it is the first."""
        loop, key = place
        with self._lock:
            if loop not in self._lines:
                for other in list(self._lines):
                    if other is not None and other.is_closed():
                        del self._lines[other]
                self._lines[loop] = {}
            line = self._lines[loop].setdefault(key, Line())
            line.append(ticket, cost)
            return len(line) == 1

    def in_front_of(self, place: Place, ticket: Ticket) -> int:
        """Return what those in front of the ticket cost."""
        loop, key = place
        with self._lock:
            return self._lines[loop][key].in_front_of(ticket)

    def leave(self, place: Place, ticket: Ticket) -> None:
        """Take the ticket out of its line, served or not, and set the ticket that is first then."""
        loop, key = place
        with self._lock:
            lines = self._lines.get(loop)
            if lines is None:  # the loop is closed and its lines are dropped
                return
            line = lines[key]
            line.remove(ticket)
            if len(line):
                with suppress(RuntimeError):  # the event loop of those in line is closed: nobody waits any more
                    line.first().set()
                return
            del lines[key]
            if not lines:
                del self._lines[loop]


class SlotWaiters:
    """All waiters of this process that try for a slot, by key. Limiters share one object: they may share slots."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Forget all waiters. A child process has none of its parent's."""
        self._lock = threading.RLock()  # reentrant for the same reason as the lock of `Lines`
        self._waiting: dict[str, dict[Ticket, asyncio.AbstractEventLoop | None]] = {}

    def enter(self, place: Place, ticket: Ticket) -> None:
        """Set the ticket from now on whenever a slot of the key is released."""
        loop, key = place
        with self._lock:
            self._waiting.setdefault(key, {})[ticket] = loop

    def leave(self, place: Place, ticket: Ticket) -> None:
        """Set the ticket no longer."""
        with self._lock:
            waiting = self._waiting.get(place[1], {})
            waiting.pop(ticket, None)
            if not waiting:
                self._waiting.pop(place[1], None)

    def wake(self, group: Group) -> None:
        """Wake the waiters for slots of these keys: some were released."""
        for key, *_ in group if self._waiting else ():
            with self._lock:
                waiting = list(self._waiting.get(key, {}).items())
            for ticket, loop in waiting:
                if loop is None:
                    ticket.set()
                else:
                    with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                        loop.call_soon_threadsafe(ticket.set)


slot_waiters: Final = SlotWaiters()


def reserves(limits: tuple[Limit, ...]) -> bool:
    """Return True if all limits have places in the future: they are buckets."""
    return all(limit.algorithm in BUCKETS for limit in limits)


def wait_by_place(key: str, limits: tuple[Limit, ...], cost: int, patience: Patience) -> Flow:
    """Take a place no further away than `patience`, and sleep until it comes."""
    group = ((key, limits, cost, patience.microseconds, None),)
    decision = yield from _evaluate(group)
    if not decision.allowed:
        raise RateLimited(decision, patience)
    yield from _hold_back(decision)
    return decision


def wait_in_line(
    key: str,
    limits: tuple[Limit, ...],
    cost: int,
    extras: Extras,
    patience: Patience,
    lines: Lines,
    place: Place,
    ticket: Ticket,
) -> Flow:
    """Come to the front of the line, then try, sleep for retry_after and try again."""
    left = patience.microseconds
    group = _at_once(key, limits, cost, extras)
    first = lines.enter(place, ticket, cost)
    try:
        if first:
            decision = yield from _evaluate(group)
        else:
            asked = yield from _after_those_in_front(group, cost, lines.in_front_of(place, ticket))
            _refuse_if_late(asked, left, patience)
            in_time = yield TicketWait(ticket, seconds(left))
            if not in_time:
                # If there is room for all in front and for this one, their turn has come and they are about to go.
                decision = yield from _after_those_in_front(group, cost, lines.in_front_of(place, ticket))
                _refuse_if_late(decision, 0, patience)
            decision = yield from _evaluate(group)
            left = left - _passed(asked, decision) if in_time else 0
        while not decision.allowed:
            _refuse_if_late(decision, left, patience)
            if not switch.sleeping:
                return (yield from _evaluate(group, "force"))
            yield Sleep(decision.retry_after or 0.0)
            before, decision = decision, (yield from _evaluate(group))
            left -= _passed(before, decision)
        return decision
    finally:
        lines.leave(place, ticket)


def wait_for_slots(
    key: str,
    limits: tuple[Limit, ...],
    cost: int,
    extras: Extras,
    patience: Patience,
    lines: Lines,
    place: Place,
    ticket: Ticket,
) -> Flow:
    """Come to the front of the line, then try until every limit allows it and a slot is free.

    All tries name the same slots: if the answer to one was lost, the next one finds the slots that it took.
    """
    left = patience.microseconds
    group = _at_once(key, limits, cost, extras)
    before: Decision | None = None
    in_doubt = False  # the storage may hold slots of a try that it did not answer
    first = lines.enter(place, ticket, cost)
    try:
        if not first:
            before = yield from _after_those_in_front(group, cost, lines.in_front_of(place, ticket))
            _refuse_if_late(before, left, patience)
            in_time = yield TicketWait(ticket, seconds(left))
            if not in_time:
                left = 0  # one try, past those who wait
        slot_waiters.enter(place, ticket)
        pause = FIRST_PAUSE
        while True:
            ticket.clear()  # before the try: a release during it must not be missed
            decision = yield from _evaluate(group)
            in_doubt = in_doubt or decision.degraded is not None
            if decision.allowed:
                return decision
            left -= 0 if before is None else _passed(before, decision)
            before = decision
            wait = _refuse_if_late(decision, left, patience)
            if not switch.sleeping:
                return (yield from _evaluate(group, "force"))
            if wait:
                yield Sleep(seconds(wait))
            else:
                pauses = uniform(pause / 2, pause), seconds(left), decision.retry_after or 0.0
                yield Pause(ticket, min(pauses))
                pause = min(2 * pause, LONGEST_PAUSE)
    except GeneratorExit:
        raise
    except BaseException as error:
        if in_doubt or isinstance(error, StorageError):
            with suppress(Exception):  # a storage that fails now must not hide why the waiter goes
                yield Evaluate((slots_of(group, -1),), "force")
        raise
    finally:
        slot_waiters.leave(place, ticket)
        lines.leave(place, ticket)


def _after_those_in_front(group: Group, cost: int, front: int) -> Flow:
    """Ask when the turn comes if all in front are served first, each as soon as it may.

    Those in front are one sum, which each limit may divide as it likes, and each limit is asked alone. So the answer is
    exact for one limit and costs of 1. Otherwise it may be too short, and never too long: nobody is refused in error.
    Slots and values are left out, where there is another limit: a slot may be released, and a value may count already.
    """
    key = group[0][0]
    limits = tuple(limit for _, its, *_ in group for limit in its if not limit.has_slots and not limit.is_distinct)
    if not limits:
        return (yield from _evaluate(group, "peek"))
    asks: list[Ask] = [(key, limits, units, 0, None) for units in (front, cost) if units]
    rows = (yield from _evaluate(asks, "peek")).rows
    return Decision(asks[-1:], _like(rows, rows[-len(limits) :]))


def _at_once(key: str, limits: tuple[Limit, ...], cost: int, extras: Extras) -> Group:
    """Return a group that passes only if it may go ahead now.

    A window counts no other instant than now, so a leaky bucket must not hold back: it says when it would not.
    """
    queues = tuple(limit for limit in limits if limit.queues)
    others = tuple(limit for limit in limits if not limit.queues)
    if extras is not None:
        extras = [extra for limit, extra in zip(limits, extras, strict=True) if not limit.queues]
    group: list[Ask] = [(key, others, cost, None, extras)]
    if queues:
        group.append((key, queues, cost, 0, None))
    return group


def _evaluate(group: Group, mode: Mode = "spend") -> Flow:
    answers: list[Sequence[Row]] = yield Evaluate((group,), mode)  # type: ignore[assignment]
    return Decision(group, answers[0])


def _passed(before: Decision, decision: Decision) -> int:
    """Return the time between two decisions; 0 if the storage's clock has stepped back. Else a wait would not end."""
    return max(decision.at - before.at, 0)


def _refuse_if_late(decision: Decision, left: int, patience: Patience) -> int:
    """Return how long the rates and quotas of a denial want to be waited for; 0 if only slots deny it.

    Raises RateLimited if that is more than `left`, or if nothing is left; it says when the same wait would do. A slot
    says when its lease ends, since it can be released earlier.
    """
    longest = 0
    rows: list[Row] = []
    late = False
    for limit, row in zip(decision.limits, decision.rows, strict=True):
        wait = row[2]
        if row[0] or limit.has_slots:
            late = late or (not row[0] and left <= 0)
            rows.append(row)
        elif wait is None:
            late = True
            rows.append(row)
        else:
            late = late or wait > left
            longest = max(longest, wait)
            rows.append((False, row[1], max(wait - patience.microseconds, 0), *row[3:]))
    if late:
        raise RateLimited(Decision(decision.asks, _like(decision.rows, rows)), patience)
    return longest


def _like(rows: Sequence[Row], made: Sequence[Row]) -> Sequence[Row]:
    """Return `made`, as degraded rows if `rows` are."""
    return DegradedRows(made, rows.reason, closed=rows.closed) if isinstance(rows, DegradedRows) else made


def _hold_back(decision: Decision) -> Generator[Step, object, None]:
    """Sleep the delay; a waiter that is cancelled or interrupted gives its place back."""
    if decision.delay:
        try:
            yield Sleep(decision.delay)
        except GeneratorExit:  # nobody drives this any more: the place comes back when its time has passed
            raise
        except BaseException:
            with suppress(Exception):  # a storage that fails now must not hide why the waiter goes
                yield Evaluate((undoing(decision.asks, decision.rows),), "force")
            raise
