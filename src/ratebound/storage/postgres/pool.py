"""Connections that wait for their next call: one pool for the threads of a process, and one for each event loop.

Connections are made when they are needed, by the call that needs them. The one that was used last is used next, so that
the others can be closed. One that a call did not leave in order is closed.
"""

import asyncio
import os
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue

from ratebound.errors import StorageError
from ratebound.storage.blame import Living
from ratebound.storage.postgres.connect import Link

NO_CONNECTION = "all connections of ?pool= were in use until the deadline: give the URL a larger pool, or more timeout"
MOST_IDLE = 300.0  # seconds after which an idle connection is closed
LOOK_AGAIN = 0.05  # seconds: a place that an exception lost is given back by nobody


class LinkPlace:
    """A place in a pool, held by one call: its connection, if there is one."""

    __slots__ = ("__weakref__", "clean", "link", "opened")

    def __init__(self, link: Link | None, opened: int) -> None:
        self.link = link
        self.clean = True  # no transaction is open, and no answer is on its way that nobody will read
        self.opened = opened  # which opening of the pool it is of

    def drop(self) -> None:
        """Close the connection."""
        link, self.link, self.clean = self.link, None, True
        if link is not None:
            link.close()


Ticket = SimpleQueue[LinkPlace]  # of a thread that waits; it gets one place


class _Links:
    """The idle connections of a pool, and the places that calls hold."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: list[Link] = []  # the last one was used last
        self._held: Living[LinkPlace] = Living()  # a place that an exception lost is not counted
        self._opened = 0

    def take(self) -> LinkPlace | None:
        """Return a place; None if all are held."""
        if len(self._held) >= self._most:
            return None
        place = LinkPlace(self._idle.pop() if self._idle else None, self._opened)
        self._held.add(place)
        return place

    def give(self, place: LinkPlace) -> None:
        """Take a place back. Its connection is kept, if it is clean and the pool was not closed meanwhile."""
        self._held.discard(place)
        if not place.clean or place.opened != self._opened:
            place.drop()
        elif place.link is not None:
            now = place.link.used_at = time.monotonic()
            self._idle.append(place.link)
            if now - self._idle[0].used_at > MOST_IDLE:
                self._idle.pop(0).close()

    def forget(self, place: LinkPlace | None = None) -> None:
        """Close idle connections now, and the others when their calls end, except a new one in `place`."""
        self._opened += 1
        if place is not None:
            place.opened = self._opened
        idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def abandon(self) -> None:
        """Close the sockets of all connections in a forked child, without a word to the server."""
        for link in (*self._idle, *(place.link for place in self._held)):
            if link is not None:
                with suppress(OSError):
                    os.close(link.socket)
        self._opened += 1
        self._idle, self._held = [], Living()


class ThreadPool:
    """The connections of the threads of a process. The first thread that waits is the first to get a place.

    It has no Condition and no Event of the standard library: a signal handler that raises inside one of them leaves its
    lock held for ever.
    """

    def __init__(self, most: int) -> None:
        self._links = _Links(most)
        self._lock = threading.Lock()
        self._waiting: deque[Ticket] = deque()

    def take(self, until: float) -> LinkPlace:
        """Return a place, as soon as one is free. Raises StorageError after `until`."""
        with self._lock:
            place = None if self._waiting else self._links.take()
            if place is not None:
                return place
            ticket: Ticket = SimpleQueue()
            self._waiting.append(ticket)
        try:
            while True:
                left = until - time.monotonic()
                with suppress(Empty):
                    return ticket.get(timeout=min(max(left, 0.0), LOOK_AGAIN))
                if left <= 0:
                    raise StorageError(NO_CONNECTION, undone=True, outage=False)
                with self._lock:
                    self._hand_out()
        except BaseException:
            self._leave(ticket)
            raise

    def _leave(self, ticket: Ticket) -> None:
        """Take back what a thread was given that waits no more."""
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
        with suppress(Empty):
            self.give(ticket.get_nowait())

    def give(self, place: LinkPlace) -> None:
        """Take a place back."""
        with self._lock:
            self._links.give(place)
            self._hand_out()

    def _hand_out(self) -> None:
        """Give free places to those who wait. The caller holds the lock."""
        while self._waiting and (place := self._links.take()) is not None:
            self._waiting.popleft().put(place)

    def forget(self, place: LinkPlace | None = None) -> None:
        """Close idle connections now, and the others when their calls end, except a new one in `place`."""
        with self._lock:
            self._links.forget(place)

    def renew(self) -> None:
        """Forget all connections, locks and waiting threads, in a forked child."""
        self._lock, self._waiting = threading.Lock(), deque()
        self._links.abandon()


class LoopPool:
    """The connections of the tasks of one event loop. The first task that waits is the first to get a place."""

    def __init__(self, most: int) -> None:
        self._links = _Links(most)
        self._waiters: deque[asyncio.Future[LinkPlace]] = deque()

    async def take(self, until: float) -> LinkPlace:
        """Return a place, as soon as one is free. Raises StorageError after `until`."""
        place = None if self._waiters else self._links.take()
        if place is not None:
            return place
        waiter: asyncio.Future[LinkPlace] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                return await waiter
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled():
                self.give(waiter.result())  # it got a place, and its task has left
            if isinstance(error, TimeoutError):
                raise StorageError(NO_CONNECTION, undone=True, outage=False) from None
            raise

    def give(self, place: LinkPlace) -> None:
        """Take a place back."""
        self._links.give(place)
        while self._waiters and (free := self._links.take()) is not None:
            waiter = self._waiters.popleft()
            if waiter.done():
                self._links.give(free)
            else:
                waiter.set_result(free)

    def forget(self, place: LinkPlace | None = None) -> None:
        """Close idle connections now, and the others when their calls end, except a new one in `place`."""
        self._links.forget(place)

    def abandon(self) -> None:
        """Close the sockets of all connections, in a forked child."""
        self._links.abandon()
