"""Calls that may never return, made in daemon threads, so that who waits for them can go when the time is up.

The executors of the standard library wait for their threads when the interpreter ends: a call that hangs would
hang the program. These threads do not, and they leave by themselves when nobody needs them for a while.
"""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ratekeeper.fork import renew_in_children

IDLE = 10.0  # seconds after which a thread that has nothing to do ends


class Reply(NamedTuple):
    """What came of a call: a value, or what it raised."""

    value: Any
    error: BaseException | None


class Job(NamedTuple):
    function: Callable[[], Any]
    replies: "SimpleQueue[Reply]"


Inbox = SimpleQueue[Job | None]


class Threads:
    """At most `most` calls at once, those that are stuck included."""

    def __init__(self, most: int = 32) -> None:
        self.most = most
        self.alive = 0
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[Inbox] = []
        renew_in_children(self)

    def start(self, function: Callable[[], Any]) -> "SimpleQueue[Reply] | None":
        """Where the reply will come, once; None when all threads are busy."""
        replies: SimpleQueue[Reply] = SimpleQueue()
        with self._lock:
            if self._idle:
                inbox = self._idle.pop()  # the last one to become idle: the others can end
            elif self.alive < self.most:
                inbox = SimpleQueue()
                try:
                    threading.Thread(target=_serve, args=(self, inbox), name="ratekeeper-call", daemon=True).start()
                except RuntimeError:  # the system gives no more of them
                    return None
                self.alive += 1
            else:
                return None
        inbox.put(Job(function, replies))
        return replies

    def close(self) -> None:
        """Idle threads end now, the others when their call does."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def renew(self) -> None:
        """For a child process: the threads stayed behind."""
        self._lock, self._idle, self.alive = threading.Lock(), [], 0


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
            try:
                reply = Reply(job.function(), None)
            except BaseException as error:
                reply = Reply(None, error)
            with threads._lock:
                closed = threads._closed
                if not closed:
                    threads._idle.append(inbox)
            job.replies.put(reply)
            if closed:
                return
            del job, reply  # nothing is kept alive while there is nothing to do
    finally:
        with threads._lock:
            threads.alive -= 1
