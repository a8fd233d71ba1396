"""Daemon threads for calls that may never return, so that a caller can stop waiting at its deadline.

The standard library's executors wait for their threads at exit: a call that hangs would hang the program. These threads
do not, and they end after a while without work.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ratebound.fork import renew_in_children
from ratebound.storage.blame import Living, interrupted

IDLE = 10.0  # seconds after which an idle thread ends


class Reply(NamedTuple):
    """The result of a call: its value, or the exception that it raised."""

    value: Any
    error: BaseException | None


class Job:
    """A call, and the queue that receives its one reply."""

    __slots__ = ("began", "function", "replies", "seen", "stuck", "withdrawn")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.replies: SimpleQueue[Reply] = SimpleQueue()
        self.began: float | None = None  # by time.monotonic()
        self.withdrawn = False
        self.stuck = False  # withdrawn, and no call of any thread returned while it waited
        self.seen = 0  # number of calls that had returned when it was queued


Inbox = SimpleQueue[Job | None]


class Threads:
    """A pool that runs at most `most` calls at once, including calls that hang."""

    def __init__(self, most: int = 64) -> None:
        self.most = most
        self.returned = 0  # number of calls that have returned
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []
        self._waiting: OrderedDict[Job, None] = OrderedDict()  # empty while a thread is idle
        self._alive: Living[Inbox] = Living()  # of the threads; a thread that failed to start is not counted
        renew_in_children(self)

    def start(self, function: Callable[[], Any]) -> "SimpleQueue[Reply] | None":
        """Start a call and return the queue for its reply; None if all threads are busy."""
        job = Job(function)
        return job.replies if self._begin(job, waits=False) else None

    def queue(self, function: Callable[[], Any]) -> Job | None:
        """Start a call, or let it wait for the first free thread. Return None if there is no thread at all."""
        job = Job(function)
        return job if self._begin(job, waits=True) else None

    def withdraw(self, job: Job) -> None:
        """Cancel a job that has not begun. A job that has begun goes on."""
        with self._lock:
            if job in self._waiting:
                del self._waiting[job]
                job.stuck = job.seen == self.returned
            job.withdrawn = True

    def close(self) -> None:
        """End idle threads now, and the others when they have no more work."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def renew(self) -> None:
        """Forget all threads: in a forked child they do not exist."""
        self._lock, self._idle, self._waiting, self._alive = threading.Lock(), [], OrderedDict(), Living()

    @property
    def alive(self) -> int:
        """The number of threads."""
        return len(self._alive)

    def _begin(self, job: Job, *, waits: bool) -> bool:
        with self._lock:
            job.seen = self.returned
            if self._idle:
                self._idle[-1].put(job)  # the last one to become idle, so that the others can end
                self._idle.pop()  # after the put: a signal handler that raises in between must not lose a thread
            elif self.alive < self.most and self._grow(job):
                pass
            elif waits and self.alive:
                self._waiting[job] = None
            else:
                return False
            return True

    def _grow(self, job: Job) -> bool:
        inbox: Inbox = SimpleQueue()
        inbox.put(job)
        self._alive.add(inbox)
        try:
            threading.Thread(target=_serve, args=(self, inbox), name="ratebound-call", daemon=True).start()
        except BaseException as error:
            self._alive.discard(inbox)  # the standard library keeps a reference to a thread that failed to start
            if (own := interrupted(error)) is not None:
                raise own from None
            return False  # the operating system allows no more threads
        return True

    def _starts(self, job: Job) -> bool:
        with self._lock:
            if not job.withdrawn:
                job.began = time.monotonic()
            return not job.withdrawn

    def _next(self, inbox: Inbox) -> bool:
        """Count a returned call. Return True if the thread goes on: with a waiting job, or idle."""
        with self._lock:
            self.returned += 1
            if self._waiting:
                inbox.put(self._waiting.popitem(last=False)[0])
            elif self._closed:
                return False
            else:
                self._idle.append(inbox)
            return True


def _serve(threads: Threads, inbox: Inbox) -> None:
    try:
        while True:
            try:
                job = inbox.get(timeout=IDLE)
            except Empty:
                with threads._lock:
                    if inbox in threads._idle:
                        threads._idle.remove(inbox)
                        return
                continue  # a caller has just taken this thread: its job is about to arrive
            if job is None:
                return
            reply = None
            if threads._starts(job):
                try:
                    reply = Reply(job.function(), None)
                except BaseException as error:
                    reply = Reply(None, error)
            goes_on = threads._next(inbox)
            if reply is not None:
                job.replies.put(reply)
            if not goes_on:
                return
            del job, reply  # an idle thread keeps nothing alive
    finally:
        with threads._lock:
            threads._alive.discard(inbox)
