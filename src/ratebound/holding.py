"""Held slots: renewed until they are released, by one thread for each process and one timer for each event loop.

A slot is renewed every third of its lease, so two renewals in a row may fail before it is lost. A renewal holds the
slot even above the count, because the work of its holder goes on; listeners are told of it as `SlotLost`.

A renewer has only weak references. If a holder is gone without a release, its slots end with their lease.
"""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final
from weakref import ref

from ratebound.arguments import in_parts
from ratebound.clock import SECOND
from ratebound.decision import Decision
from ratebound.events import SlotLost, log
from ratebound.fork import renew_in_children
from ratebound.late_asyncio import asyncio
from ratebound.limit import Ask, Group
from ratebound.outcome import DegradedRows, Row
from ratebound.telling import tell

IDLE: Final = 10.0  # seconds after which the thread looks whether anything is still held
NOT_RENEWED = "slots could not be renewed; the next round tries again: %s"

Renewing = Generator[Sequence[Group], Sequence[Sequence[Row]] | None, None]


class Held:
    """The slots of one decision. They are renewed until they are released, or until this object is gone.

    `interval` is the time between two renewals and `due` the instant of the next, by the renewer's clock, in seconds.
    `released` is also True in a forked child: the slots belong to its parent.
    """

    __slots__ = ("__weakref__", "_is_stored", "decider", "decision", "due", "interval", "released", "slots")

    def __init__(self, decider: Any, decision: Decision, slots: Sequence[Ask]) -> None:
        self.decider = decider
        self.decision = decision
        self.slots = slots
        self.interval = min(limit.period_us for ask in slots for limit in ask[1]) / SECOND / 3
        self.due = 0.0
        self.released = False
        self._is_stored = decision.degraded is None  # a storage cannot lose what it was never told of

    def renewed(self, rows: Sequence[Row]) -> None:
        """Take the answer to a renewal. Tell listeners if a slot was lost."""
        if isinstance(rows, DegradedRows):
            return
        if self._is_stored and any(row[6] for row in rows):
            tell(self.decider.listeners, SlotLost(self.decision))
        self._is_stored = True


class Renewals:
    """All slots that one renewer renews, by the id of the first slot of a decision. It has no clock and does no I/O.

    The collector may release slots in any thread at any moment, so no step here depends on the one before it.
    """

    def __init__(self) -> None:
        self._held: dict[int, ref[Held]] = {}

    def __bool__(self) -> bool:
        """True if something may be held: those who are gone are counted until the next renewal."""
        return bool(self._held)

    def add(self, held: Held, now: float) -> None:
        """Renew these slots from now on."""
        held.due = now + held.interval
        self._held[_id_of(held.slots)] = ref(held)

    def remove(self, slots: Sequence[Ask]) -> None:
        """Renew these slots no longer."""
        found = self._held.pop(_id_of(slots), None)
        held = found() if found is not None else None
        if held is not None:
            held.released = True

    def remove_all(self) -> None:
        """Renew nothing any more."""
        for held in self._alive():
            held.released = True
        self._held.clear()

    def next_due(self) -> float | None:
        """Return the instant of the next renewal; None if nothing is held."""
        return min((held.due for held in self._alive()), default=None)

    def take_due(self, now: float) -> list[Sequence[Held]]:
        """Return what to renew now, in batches for one call each, and set when each is due again.

        What would be due soon is renewed as well, so that slots are renewed together.
        """
        of_deciders: dict[int, list[Held]] = {}
        for held in self._alive():
            if held.due <= now + held.interval / 2:
                held.due = now + held.interval
                of_deciders.setdefault(id(held.decider), []).append(held)
        return [batch for each in of_deciders.values() for batch in in_parts(each)]

    def count(self, found: dict[str, int]) -> None:
        """Add how many slots are held to `found`, by the names of their limits."""
        for held in self._alive():
            for ask in held.slots:
                for limit in ask[1]:
                    found[limit.name] = found.get(limit.name, 0) + 1

    def _alive(self) -> list[Held]:
        """Return what is still held, and drop the rest."""
        found: list[Held] = []
        for number, each in list(self._held.items()):
            held = each()
            if held is not None:
                found.append(held)
            elif self._held.get(number) is each:
                self._held.pop(number, None)
        return found


def renewing(batch: Sequence[Held]) -> Renewing:
    """Renew a batch. Yields groups to force; send back their rows, or None if that failed."""
    held = [each for each in batch if not each.released]
    if not held:
        return
    answers = yield [each.slots for each in held]
    # A renewal that comes after the release has put the slot back.
    released = [_released(each.slots) for each in held if each.released]
    if released:
        yield released
    for each, rows in zip(held, answers or (), strict=False):
        if not each.released:
            each.renewed(rows)


class ThreadRenewer:
    """Renews the slots of all limiters for threads in this process. Its thread ends when nothing is held."""

    def __init__(self) -> None:
        self.renewals = Renewals()
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Forget all slots: in a forked child the thread does not exist, and the slots are the parent's."""
        self.renewals.remove_all()
        self._lock = threading.RLock()  # reentrant: a signal handler may hold slots
        self._inbox: SimpleQueue[Callable[[], object] | None] = SimpleQueue()  # its `put` is reentrant as well
        self._thread: threading.Thread | None = None
        self._wakes = 0.0  # when the thread looks next

    def hold(self, decider: Any, decision: Decision, slots: Sequence[Ask]) -> Held:
        """Renew slots from now on, until they are released or the returned object is gone."""
        held = Held(decider, decision, slots)
        self.renewals.add(held, time.monotonic())
        with self._lock:
            if self._thread is None:
                self._start()
            elif held.due < self._wakes:
                self._inbox.put(None)
        return held

    def forget(self, slots: Sequence[Ask]) -> None:
        """Renew these slots no longer."""
        self.renewals.remove(slots)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the thread, which exists while something is held."""
        self._inbox.put(function)

    @property
    def is_running(self) -> bool:
        """True if the thread exists."""
        return self._thread is not None

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="ratebound-renew", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the operating system allows no more threads, or the interpreter ends
            log.warning(NOT_RENEWED, error)
        else:
            self._thread = thread

    def _run(self) -> None:
        try:
            self._work()
        except BaseException:
            self._thread = None  # the next slot starts another thread
            raise

    def _work(self) -> None:
        while True:
            with self._lock:
                due = self.renewals.next_due()
                if due is None and self._inbox.empty():
                    self._thread = None
                    return
                now = time.monotonic()
                self._wakes = now + IDLE if due is None else min(due, now + IDLE)
            with suppress(Empty):
                function = self._inbox.get(timeout=max(self._wakes - now, 0.0))
                if function is not None:
                    function()
            self._renew_due()

    def _renew_due(self) -> None:
        """Renew what is due. It returns before the thread waits, so that the thread keeps no holder alive meanwhile."""
        now = time.monotonic()
        due = self.renewals.next_due()
        if due is not None and due <= now:
            for batch in self.renewals.take_due(now):
                _renew(batch)


class LoopRenewer:
    """Renews the slots that tasks of one event loop hold. A timer, and a task only while it renews."""

    def __init__(self, loop: "asyncio.AbstractEventLoop") -> None:
        self.renewals = Renewals()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None  # an event loop keeps only weak references to tasks
        self._is_renewing = False  # the task may have ended before `create_task` returns it

    def add(self, held: Held) -> None:
        """Renew these slots from now on."""
        self.renewals.add(held, self._loop.time())
        if not self._is_renewing and (self._timer is None or held.due < self._timer.when()):
            self._schedule()

    def remove(self, slots: Sequence[Ask]) -> bool:
        """Renew these slots no longer. Return True if nothing is held any more."""
        self.renewals.remove(slots)
        if self.renewals:
            return False
        self._stop()
        return True

    def _schedule(self) -> None:
        self._stop()
        due = self.renewals.next_due()
        if due is not None and not self._loop.is_closed():
            self._timer = self._loop.call_at(due, self._begin)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = None
        self._is_renewing = True
        self._task = self._loop.create_task(self._renew(), name="ratebound-renew")

    async def _renew(self) -> None:
        try:
            for batch in self.renewals.take_due(self._loop.time()):
                await _renew_async(batch)
        finally:
            self._is_renewing = False
            self._schedule()


class LoopRenewers:
    """The renewers of all event loops. One that holds nothing is dropped, and so are those of closed loops."""

    def __init__(self) -> None:
        self.of_loops: dict[asyncio.AbstractEventLoop, LoopRenewer] = {}
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Forget all slots: in a forked child they are the parent's."""
        for renewer in self.of_loops.values():
            renewer.renewals.remove_all()
        self.of_loops.clear()
        self._lock = threading.RLock()

    def hold(self, decider: Any, decision: Decision, slots: Sequence[Ask]) -> Held:
        """Renew slots in the running event loop; see `ThreadRenewer.hold`.

        Under another kind of event loop than asyncio's they are not renewed.
        """
        held = Held(decider, decision, slots)
        loop = asyncio._get_running_loop()
        if loop is None:
            return held
        with self._lock:
            if loop not in self.of_loops:
                for other in list(self.of_loops):
                    if other.is_closed():
                        del self.of_loops[other]
                self.of_loops[loop] = LoopRenewer(loop)
            self.of_loops[loop].add(held)
        return held

    def forget(self, slots: Sequence[Ask]) -> None:
        """Renew these slots no longer."""
        loop = asyncio._get_running_loop()
        with self._lock:
            renewer = self.of_loops.get(loop) if loop is not None else None
            if loop is not None and renewer is not None and renewer.remove(slots):
                del self.of_loops[loop]


def _renew(batch: Sequence[Held]) -> None:
    flow = renewing(batch)
    with suppress(StopIteration):
        groups = next(flow)
        while True:
            answers = None
            try:
                answers = batch[0].decider.evaluate(groups, "force")
            except Exception as error:
                log.debug(NOT_RENEWED, error)
            groups = flow.send(answers)


async def _renew_async(batch: Sequence[Held]) -> None:
    flow = renewing(batch)
    with suppress(StopIteration):
        groups = next(flow)
        while True:
            answers = None
            try:
                answers = await batch[0].decider.evaluate(groups, "force")
            except Exception as error:
                log.debug(NOT_RENEWED, error)
            groups = flow.send(answers)


def _id_of(slots: Sequence[Ask]) -> int:
    """Return the id of the first slot."""
    extras = slots[0][4]
    assert extras is not None
    return extras[0][0]


def _released(slots: Sequence[Ask]) -> Group:
    """Return what to force to release slots that `slots_of` holds."""
    return [(key, limits, -1, None, extras) for key, limits, _, _, extras in slots]


thread_renewer: Final = ThreadRenewer()
loop_renewers: Final = LoopRenewers()
