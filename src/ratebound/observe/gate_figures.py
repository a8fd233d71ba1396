"""The figures of a gate, kept up to date in the background: counted, published, read and viewed.

One round is a second: the view takes a new snapshot. Every two seconds the figures are published, if the storage is one
that other processes see, and theirs are read: as often while somebody looks, else every ten seconds or, with many
processes, less often. A Gate has a daemon thread for this. An AsyncGate has a timer in the event loop of its first
decision, and a task only while a round runs, so that a loop can be closed at any time.
"""

import asyncio
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from ratebound.errors import StorageError
from ratebound.events import log
from ratebound.flow import Flow, run, run_async
from ratebound.fork import renew_in_children
from ratebound.observe.decision_counts import DecisionCounts
from ratebound.observe.figures_snapshot import Snapshot
from ratebound.observe.figures_view import FiguresView
from ratebound.observe.live_figures import LiveFigures, is_shared
from ratebound.observe.shared_figures import SharedFigures
from ratebound.storage import keeps_documents
from ratebound.storage.workers import known_workers

ROUND: Final = 1.0  # seconds
PUBLISH_EVERY: Final = 2.0  # seconds
READ_EVERY: Final = 10.0  # seconds, while nobody looks
WATCHED_FOR: Final = 10.0  # seconds after a look
LEAVE_WITHIN: Final = 1.0  # seconds
ONE_OF_MANY: Final = "These are the figures of one of {} processes, the one that has answered: {}"
MEMORY: Final = "memory:// is not shared. Use shm://api on one host, or redis://host:6379/0 for several."
NO_DOCUMENTS: Final = "the storage keeps no shared documents."


class GateFigures:
    """The figures of one gate, a Gate or an AsyncGate.

    With `counts`, which are a listener of the gate already, no listener is added. With `keeps_view=False` it publishes,
    and reads only when it is asked to: the service views the figures of all workers elsewhere.

    `live` has the figures of this process, and `view` those of all processes that share the storage.
    """

    def __init__(
        self,
        gate: Any,
        *,
        counts: DecisionCounts | None = None,
        keeps_view: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.live = LiveFigures(counts)
        self.live.watch(gate)
        self._keeps_view = keeps_view
        self._clock = clock
        self._is_async = inspect.iscoroutinefunction(gate.storage.evaluate)
        shares = is_shared(gate.storage) and keeps_documents(gate.storage)
        self._publishing = SharedFigures(gate.storage, self.live, clock=clock) if shares else None
        self._reading = SharedFigures(gate.storage, self.live, clock=clock) if shares else None
        self._problem = ""
        self._watched: float | None = None
        self._has_failed = False
        self._alone = ""  # the sentence for operators if there are processes that are not shown
        workers = known_workers() or 1
        if not shares and workers > 1:
            self._alone = ONE_OF_MANY.format(workers, NO_DOCUMENTS if is_shared(gate.storage) else MEMORY)
        self.renew()
        renew_in_children(self)
        if self._is_async:
            self.live.counts.tell(self._look_at_loop, self._look_at_loop)
        if counts is None:
            gate._decider.listen(self.live.counts)

    def renew(self) -> None:
        """Begin again at the next event in a forked child, where no thread and no event loop of the parent runs. The
        parent is another process there, and a thread of it may have held the lock of the view."""
        self._view = FiguresView(clock=self._clock) if self._keeps_view else None
        self._others: list[Snapshot] = []
        self._published: float | None = None
        self._read: float | None = None
        self._shown: dict[str, Any] | None = None
        self._has_looked = False
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()  # set when the thread has to end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None  # an event loop keeps only weak references to tasks
        self._lock = threading.Lock()
        self._is_leaving = False
        self.live.counts.begin = self.begin

    def view(self) -> dict[str, Any]:
        """Return what a dashboard shows, as JSON can hold it. It changes once a second, and must not be changed."""
        assert self._view is not None
        self.begin()
        self._watched = self._clock()
        if not self._has_looked:
            self._look()
        if self._shown is None:
            self._shown = self._view.view()
        return self._shown

    def history(self) -> dict[str, Any]:
        """Return the history of the last hour, as JSON can hold it."""
        assert self._view is not None
        self.begin()
        return self._view.history()

    def names(self, digests: Iterable[str]) -> dict[str, str]:
        """Return the keys of clients that this process knows, by their digests. They may be personal."""
        return self.live.names(digests)

    def own(self) -> Snapshot:
        """Return the snapshot of this process."""
        return self.live.own()

    def others(self) -> Flow[list[Snapshot]]:
        """Read the snapshots of all other processes; none if the storage is memory. Raises StorageError."""
        if self._reading is None:
            return []
        return (yield from self._reading.reading())

    def begin(self) -> None:
        """Begin to work in the background, if this is not done already. It does nothing for an AsyncGate outside of an
        event loop."""
        with self._lock:
            if self._is_leaving:
                return
            if self._is_async:
                self._begin_in_loop()
            elif self._thread is None or not self._thread.is_alive():
                self._begin_in_thread()

    def stop(self) -> None:
        """End the work in the background. The next event begins it again."""
        with self._lock:
            self._ended.set()
            self._thread = None
            if self._timer is not None and self._loop is not None and not self._loop.is_closed():
                self._timer.cancel()
            self._timer = self._loop = None
            self.live.counts.begin = self.begin

    def leaving(self) -> Flow[None]:
        """End the work in the background, and free the place of this process, so that others stop to show it at once.
        The next event begins it again. If the storage does not answer, they stop ten seconds later."""
        thread, task = self._thread, self._task
        self._is_leaving = True  # calls to the storage are events, too
        try:
            self.stop()
            if thread is not None:
                yield partial(thread.join, LEAVE_WITHIN)
            if task is not None and not task.done() and task.get_loop() is asyncio._get_running_loop():
                yield partial(asyncio.wait, [task], timeout=LEAVE_WITHIN)
            if self._publishing is not None:
                with suppress(StorageError):
                    yield from self._publishing.leaving()
        finally:
            self._is_leaving = False

    def round(self) -> Flow[None]:
        """Do the work of one second. A storage that fails is a problem to show, and nothing else."""
        now = self._clock()
        if self._publishing is not None and self._is_due(self._published, PUBLISH_EVERY):
            self._published = now
            try:
                yield from self._publishing.publishing()
            except StorageError as error:
                self._problem = problem_of(error)
            else:
                self._problem = ""
        if self._view is None:
            return
        if self._reading is not None and self._is_due(self._read, self._read_every):
            self._read = now
            try:
                self._others = yield from self._reading.reading()
            except StorageError as error:
                self._problem = problem_of(error)
                self._others = []
        self._look()

    def _look(self) -> None:
        assert self._view is not None
        self._has_looked = True
        self._view.take([self.live.own()], self._others, self._problem or self._alone)
        self._shown = None

    @property
    def _read_every(self) -> float:
        watched = self._watched
        if watched is not None and self._clock() - watched < WATCHED_FOR:
            return PUBLISH_EVERY
        return max(READ_EVERY, len(self._others) / 2)

    def _is_due(self, last: float | None, every: float) -> bool:
        return last is None or self._clock() - last >= every - ROUND / 4  # rounds are never quite on time

    def _begin_in_thread(self) -> None:
        ended = self._ended = threading.Event()
        arguments = weakref.ref(self), ended
        thread = threading.Thread(target=_run_rounds, args=arguments, name="ratebound-figures", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the operating system allows no more threads, or the interpreter ends
            return
        self._thread = thread
        self.live.counts.begin = None

    def _begin_in_loop(self) -> None:
        loop = asyncio._get_running_loop()
        if loop is None or (self._loop is not None and not self._loop.is_closed()):
            return
        self._loop = loop
        self._timer = loop.call_later(0.0, _begin_round, weakref.ref(self))
        self.live.counts.begin = None

    def _look_at_loop(self, event: object) -> None:
        """Begin again in the running event loop if the one of the timer was closed."""
        if self._loop is not None and self._loop.is_closed():
            self.begin()

    def _start_round(self) -> None:
        loop, self._timer = self._loop, None
        if loop is not None:
            self._task = loop.create_task(self._round_in_loop(loop), name="ratebound-figures")

    def _log_failure(self) -> None:
        """Log the exception of a round, once: rounds go on, and should not fill a log."""
        if not self._has_failed:
            self._has_failed = True
            log.exception("figures for dashboards could not be made; the next rounds try again")

    async def _round_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await run_async(self.round())
        except Exception:
            self._log_failure()
        finally:
            if self._loop is loop and self._timer is None and not loop.is_closed():
                self._timer = loop.call_later(ROUND, _begin_round, weakref.ref(self))


def problem_of(error: StorageError) -> str:
    """Return a sentence for operators about a storage that failed."""
    what = "The storage does not answer" if error.outage else "The figures of other processes cannot be read"
    return f"{what}: {error}"


def _run_rounds(figures: "weakref.ref[GateFigures]", ended: threading.Event) -> None:
    """Run rounds in a thread until the figures are gone or stopped. It keeps no reference to them while it waits."""
    while (found := figures()) is not None:
        try:
            run(found.round())
        except Exception:
            found._log_failure()
        del found
        if ended.wait(ROUND):
            return


def _begin_round(figures: "weakref.ref[GateFigures]") -> None:
    found = figures()
    if found is not None:
        found._start_round()
