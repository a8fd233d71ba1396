"""Calls that may never return, made in daemon threads, so that who waits for them can go when the time is up.

The executors of the standard library wait for their threads when the interpreter ends: a call that hangs would
hang the program. These threads do not, and they leave by themselves when nobody needs them for a while.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ratebound.fork import renew_in_children
from ratebound.storage.blame import Living, interrupted

IDLE = 10.0  # seconds after which a thread that has nothing to do ends


class Reply(NamedTuple):
    """What came of a call: a value, or what it raised."""

    value: Any
    error: BaseException | None


class Job:
    """A call, and where its reply will come, once."""

    __slots__ = ("began", "function", "replies", "seen", "stuck", "withdrawn")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.replies: SimpleQueue[Reply] = SimpleQueue()
        self.began: float | None = None  # by time.monotonic()
        self.withdrawn = False
        self.stuck = False  # withdrawn, and no call of any thread has returned while it waited
        self.seen = 0  # calls that had returned when it came


Inbox = SimpleQueue[Job | None]


class Threads:
    """At most `most` calls at once, those that are stuck included."""

    def __init__(self, most: int = 64) -> None:
        self.most = most
        self.returned = 0  # calls, ever
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []
        self._waiting: OrderedDict[Job, None] = OrderedDict()  # only while none is idle
        self._alive: Living[Inbox] = Living()  # of the threads: none is counted that an exception kept from starting
        renew_in_children(self)

    def start(self, function: Callable[[], Any]) -> "SimpleQueue[Reply] | None":
        """Where the reply will come; None when all threads are busy."""
        job = Job(function)
        return job.replies if self._begin(job, waits=False) else None

    def queue(self, function: Callable[[], Any]) -> Job | None:
        """Start it, or have the first thread that is free do so. None when no thread can be had at all."""
        job = Job(function)
        return job if self._begin(job, waits=True) else None

    def withdraw(self, job: Job) -> None:
        """If it has not begun yet, it never will."""
        with self._lock:
            if job in self._waiting:
                del self._waiting[job]
                job.stuck = job.seen == self.returned
            job.withdrawn = True

    def close(self) -> None:
        """Idle threads end now, the others when there is nothing left to do."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def renew(self) -> None:
        """For a child process: the threads stayed behind."""
        self._lock, self._idle, self._waiting, self._alive = threading.Lock(), [], OrderedDict(), Living()

    @property
    def alive(self) -> int:
        """How many threads there are."""
        return len(self._alive)

    def _begin(self, job: Job, *, waits: bool) -> bool:
        with self._lock:
            job.seen = self.returned
            if self._idle:
                self._idle[-1].put(job)  # the last one to become idle: the others can end
                self._idle.pop()  # behind the put: a signal handler that raises between them must not lose a thread
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
            self._alive.discard(inbox)  # the standard library keeps a thread that did not come to start
            if (own := interrupted(error)) is not None:
                raise own from None
            return False  # the system gives no more of them
        return True

    def _starts(self, job: Job) -> bool:
        with self._lock:
            if not job.withdrawn:
                job.began = time.monotonic()
            return not job.withdrawn

    def _next(self, inbox: Inbox) -> bool:
        """Whether the thread goes on: with a job that waits, or idle until there is one."""
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
                continue  # somebody has just taken it: the job is on its way
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
            del job, reply  # nothing is kept alive while there is nothing to do
    finally:
        with threads._lock:
            threads._alive.discard(inbox)
