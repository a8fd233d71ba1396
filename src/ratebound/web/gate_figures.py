"""The figures that dashboards of one gate show: counted in this process, published, and read of other processes.

They are looked at once a second: in a thread for a gate for threads, in a task of the event loop for one for tasks.
That begins with the first decision in a process, so a process that is forked has its own. It ends with the gate.
"""

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ratebound.errors import StorageError
from ratebound.flow import Flow, run, run_async
from ratebound.fork import renew_in_children
from ratebound.observe.figures_view import FiguresView
from ratebound.observe.live_figures import LiveFigures, is_shared
from ratebound.observe.shared_figures import SharedFigures
from ratebound.storage import keeps_documents
from ratebound.storage.workers import known_workers

log = logging.getLogger("ratebound")

EVERY = 1.0  # seconds
SELDOM = 5  # looks: how often other processes are read while nobody has looked at the figures for a while
WATCHED_FOR = 60.0  # seconds
ONE_OF_MANY = "This page shows one of {} processes, the one that has answered: {}"
MEMORY = "memory:// is not shared. Use shm://api on one host, or redis://host:6379/0 for several."
NO_DOCUMENTS = "the storage keeps no shared documents."


class GateFigures:
    """The figures of one web gate. It is a listener of the gate, which starts the looks in each process."""

    ignores_verdicts = True
    logs = False

    def __init__(self, gate: Any, *, is_async: bool) -> None:
        self.live = LiveFigures()
        self.live.watch(gate.gate)
        self._view = FiguresView()
        self._others: list[Any] = []  # snapshots of other processes, as they were read last
        storage = gate.gate.storage
        self._shared = SharedFigures(storage, self.live) if is_shared(storage) and keeps_documents(storage) else None
        self._alone = ""  # the sentence for operators if there are processes that are not shown
        workers = known_workers() or 1
        if self._shared is None and workers > 1:
            self._alone = ONE_OF_MANY.format(workers, NO_DOCUMENTS if is_shared(storage) else MEMORY)
        self._is_async = is_async
        self._looks: _TaskLooks | _ThreadLooks | None = None
        self._lock = threading.Lock()
        self._count = 0
        self._watched = -WATCHED_FOR
        gate.listen(self.live.counts)
        gate.listen(self)
        renew_in_children(self)

    def renew(self) -> None:
        """Look anew in a forked child, which has its own thread or event loop."""
        self._looks = None
        self._lock = threading.Lock()
        self._count = 0

    def __call__(self, event: object) -> None:
        looks = self._looks
        if looks is None or looks.have_ended():
            self.start()

    def start(self) -> None:
        """Look once a second from now on, unless that has begun. For tasks, an event loop must run here."""
        with self._lock:  # two threads may have the first decisions
            looks = self._looks
            if looks is None or looks.have_ended():
                with suppress(RuntimeError):  # another kind of loop runs here, or the process ends
                    self._looks = _TaskLooks(self) if self._is_async else _ThreadLooks(self)

    def stop(self) -> None:
        """End the looks. The next decision starts them again."""
        looks, self._looks = self._looks, None
        if looks is not None:
            looks.end()

    async def leave(self) -> None:
        """End the looks of a task, and what this process has published: others do not show it any more."""
        looks = self._looks
        self.stop()
        if isinstance(looks, _TaskLooks):
            await looks.ended()
        if self._shared is not None:
            with suppress(StorageError):  # then it is forgotten a little later
                await run_async(self._shared.leaving())

    def view(self) -> dict[str, Any]:
        """Return the figures of now, for JSON. For a while, other processes are then read every second."""
        self._watched = time.monotonic()
        self.start()
        if not self._count:
            self._view.take([self.live.own()])
        return self._view.view()

    def history(self) -> dict[str, Any]:
        """Return the figures of the last hour, for JSON."""
        return self._view.history()

    def names(self, digests: Sequence[str]) -> dict[str, str]:
        """Return the keys of clients by their digests, those that this process has seen."""
        return self.live.names(digests)

    def look(self) -> Flow[None]:
        """Publish the figures of this process, read those of others, and take all of them into the view."""
        problem = self._alone
        if self._shared is not None:
            is_watched = time.monotonic() - self._watched < WATCHED_FOR
            try:
                yield from self._shared.publishing()
                if is_watched or self._count % SELDOM == 0:
                    self._others = yield from self._shared.reading()
            except StorageError as error:
                problem, self._others = f"The storage does not answer: {error}", []
        self._count += 1
        self._view.take([self.live.own()], self._others, problem)


class _ThreadLooks:
    """Looks in a thread, which ends with the figures that it looks at."""

    def __init__(self, figures: GateFigures) -> None:
        self._is_over = threading.Event()
        arguments = weakref.ref(figures), self._is_over
        self._thread = threading.Thread(target=_look_in_thread, args=arguments, name="ratebound-figures", daemon=True)
        self._thread.start()

    def have_ended(self) -> bool:
        """Return True if the thread has ended."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """Let the thread end."""
        self._is_over.set()


class _TaskLooks:
    """Looks in a task of the event loop that runs here, which ends with the figures that it looks at. Raises
    RuntimeError if none runs."""

    def __init__(self, figures: GateFigures) -> None:
        loop = asyncio.get_running_loop()
        looking = _look_in_task(weakref.ref(figures))
        self._loop = loop
        self._task = loop.create_task(looking, name="ratebound-figures")

    def have_ended(self) -> bool:
        """Return True if the task has ended, or its event loop."""
        return self._task.done() or self._loop.is_closed()

    def end(self) -> None:
        """Cancel the task."""
        with suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def ended(self) -> None:
        """Wait until the task has ended, if it is one of this event loop."""
        if self._loop is asyncio.get_running_loop():
            await asyncio.wait([self._task])


def _look_in_thread(found: "weakref.ref[GateFigures]", is_over: threading.Event) -> None:
    while (figures := found()) is not None:
        try:
            run(figures.look())
        except Exception:
            log.exception("the figures of the dashboard could not be read")
        del figures  # so that they can end while this thread sleeps
        if is_over.wait(EVERY):
            return


async def _look_in_task(found: "weakref.ref[GateFigures]") -> None:
    while (figures := found()) is not None:
        try:
            await run_async(figures.look())
        except Exception:
            log.exception("the figures of the dashboard could not be read")
        del figures
        await asyncio.sleep(EVERY)
