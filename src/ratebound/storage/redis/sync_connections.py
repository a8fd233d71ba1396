"""Connections of a sync storage. Each carries one call at a time, and none is made by the one who asks.

redis-py makes them: address, TLS, login, Sentinel. A call then writes to the socket and reads from it until its
deadline and no longer, whatever the server does in the middle of an answer. (redis-py's own `execute_command` takes
about as long again as the whole exchange, and its timeout begins anew with every piece of an answer.)
"""

import ssl
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from select import POLLIN, poll
from time import monotonic
from typing import Any
from weakref import ref

import hiredis
from hiredis import pack_command as pack_command

from ratebound.errors import StorageError
from ratebound.fork import renew_in_children
from ratebound.storage.blame import Living, interrupted, is_programs_own

PIECE = 65536  # bytes to read at a time
LOOK_AGAIN = 0.05  # seconds: nobody tells of a place that an exception has set free
NO_LANE = "no connection to Redis in time: it does not answer, or all that ?pool= allows are in use"


class PoolPlace:
    """One connection's place in the pool, held by the connection and by the thread that makes it.

    The pool counts those that somebody holds. So a place is free again when nobody holds it any more, also when an
    exception out of a signal handler came just before the connection was given back.
    """

    __slots__ = ("__weakref__",)


class ErrorReply(Exception):
    """The server's answer is an error; its text begins with the kind."""


class Connection:
    """One connection. `connection` is redis-py's, connected."""

    __slots__ = ("address", "connection", "era", "place", "poll", "reader", "socket", "timeout")

    def __init__(self, connection: Any, timeout: float, era: int, place: PoolPlace) -> None:
        self.connection = connection
        self.place = place
        self.address = (getattr(connection, "host", ""), getattr(connection, "port", 0))
        self.timeout = timeout
        self.era = era
        self.socket = connection._sock
        self.socket.settimeout(timeout)
        self.reader = hiredis.Reader(replyError=ErrorReply)
        self.poll = poll()
        self.poll.register(self.socket, POLLIN)

    def stale(self) -> bool:
        """Whether it was closed, or holds what nobody asked for, while it lay idle."""
        if not self.poll.poll(0):
            return False
        if isinstance(self.socket, ssl.SSLSocket):  # a key update or a ticket is no answer
            self.socket.settimeout(0)
            try:
                self.socket.recv(1)
            except ssl.SSLWantReadError:
                self.socket.settimeout(self.timeout)
                return False
            except OSError:
                return True
        return True

    def receive(self, until: float) -> Any:
        """The answer, if all of it comes by `until`."""
        piece = self.socket.recv(PIECE)
        self.reader.feed(piece)
        answer = self.reader.gets()
        if answer is not False:  # there is no False in this protocol: the rest is still to come
            return answer
        while answer is False:
            if not piece:
                raise ConnectionError("the server closed the connection")
            self.hurry(until)
            piece = self.socket.recv(PIECE)
            self.reader.feed(piece)
            answer = self.reader.gets()
        self.socket.settimeout(self.timeout)
        return answer

    def receive_more(self, until: float) -> Any:
        """The answer behind the one that was received last."""
        answer = self.reader.gets()
        if answer is False:
            self.hurry(until)
            answer = self.receive(until)
        return answer

    def hurry(self, until: float) -> None:
        """The next write or read has to end by then."""
        rest = until - monotonic()
        if rest <= 0:
            raise TimeoutError
        self.socket.settimeout(rest)

    def close(self) -> None:
        try:
            self.connection.disconnect()
        except Exception:  # it is gone either way
            return


Ticket = SimpleQueue[Connection | Exception]  # what somebody waits at


class ConnectionPool:
    """At most `most` connections; who finds none free waits for one, no longer than `timeout` for all of a call."""

    def __init__(self, connect: Callable[[], Any], most: int, timeout: float) -> None:
        self.connect = connect
        self.most = most
        self.timeout = timeout
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Know nothing of older connections. After a fork they are the parent's."""
        self._lock = threading.Lock()  # for the places, the era and the waiting; a free lane is taken without it
        self._idle: deque[Connection] = deque()
        self._waiting: deque[Ticket] = deque()
        self._places: Living[PoolPlace] = Living()  # of this era's connections, those being made included
        self._era = getattr(self, "_era", 0) + 1
        self._address: object = None

    def call(self, packed: bytes, until: float | None = None, *, two: bool = False) -> Any:
        """The server's answer. A refusal is raised, as is everything that goes wrong with the connection.

        `until` is when the whole has to end, where that is sooner than `timeout` from now. With `two` it is two
        commands that are sent at once: returns both answers, or raises the first that is a refusal.
        """
        lane = self._free()
        hurried = lane is None or until is not None or len(packed) > PIECE or two
        if until is None:
            until = monotonic() + self.timeout
        if lane is None:
            lane = self._next(until)
        sent = False
        try:
            if hurried:
                lane.hurry(until)
            lane.socket.sendall(packed)
            sent = True
            if hurried:
                lane.hurry(until)
            answer = lane.receive(until)
            more = lane.receive_more(until) if two else None
            if hurried:
                lane.socket.settimeout(self.timeout)
        except BaseException as error:
            self._drop(lane)
            if not isinstance(error, OSError | hiredis.HiredisError) or is_programs_own(error):
                raise
            raise _lost(error, sent) from error
        if isinstance(answer, ErrorReply):
            if answer.args[0].startswith("READONLY"):  # a master no longer: what else is connected to it is of no use
                self.forget()
            self._give(lane)
            raise answer
        self._give(lane)
        if isinstance(more, ErrorReply):
            raise more
        return (answer, more) if two else answer

    def forget(self) -> None:
        """Close what is idle; what is in use, or being made, is closed when it is given back."""
        with self._lock:
            idle = self._begin_era()
        _close(idle)

    def _begin_era(self) -> "deque[Connection]":
        """What was idle and is of no use now. The lock is held."""
        self._era += 1
        self._places = Living()
        idle, self._idle = self._idle, deque()
        return idle

    def _free(self) -> Connection | None:
        while True:
            try:
                lane = self._idle.pop()  # the one used last, so that those that are not needed stay idle
            except IndexError:
                return None
            if lane.era == self._era and not lane.stale():
                return lane
            self._drop(lane)

    def _next(self, until: float) -> Connection:
        """The next that is made or given back."""
        ticket: Ticket = SimpleQueue()
        self._waiting.append(ticket)
        try:
            place: ref[PoolPlace] | None = None
            while True:
                if place is None or place() is None:
                    place = self._grow(ticket)
                self._match()  # one may have been given back before we stood in line
                rest = until - monotonic()
                try:
                    found = ticket.get(timeout=max(min(rest, LOOK_AGAIN), 0))
                    break
                except Empty:
                    if rest <= LOOK_AGAIN:
                        raise
        except BaseException as error:  # the time is up; or an exception out of a signal handler
            with self._lock:
                waits = ticket in self._waiting
                if waits:
                    self._waiting.remove(ticket)
            if not waits:  # somebody has served it
                with suppress(Empty):  # the handler came just behind the get: then nobody holds that connection now
                    late = ticket.get_nowait()
                    if isinstance(error, Empty) and isinstance(late, Connection):
                        return late
                    if isinstance(late, Connection):
                        self._give(late)
            if isinstance(error, Empty):
                raise StorageError(NO_LANE, undone=True) from None
            raise
        if isinstance(found, Exception):
            raise found
        return found

    def _grow(self, ticket: Ticket) -> "ref[PoolPlace] | None":
        """One connection more, if there may be one: its place. What goes wrong is told to `ticket`, if that waits."""
        place = PoolPlace()
        with self._lock:
            if len(self._places) >= self.most:
                return None
            self._places.add(place)
            era = self._era
        held = [place]
        work = (era, ticket, held)
        thread = threading.Thread(target=self._connect, args=work, name="ratebound-connect", daemon=True)
        try:
            thread.start()
        except BaseException as error:
            held.clear()  # the standard library keeps a thread that did not come to start
            if (own := interrupted(error)) is not None:
                raise own from None
            # The system gives no more threads.
            self._failed(StorageError(f"cannot connect to Redis ({error})", undone=True), ticket, place)
        return ref(place)

    def _connect(self, era: int, ticket: Ticket, held: list[PoolPlace]) -> None:
        try:
            place = held.pop()
        except IndexError:
            return
        try:
            lane = Connection(self.connect(), self.timeout, era, place)
        except Exception as error:
            first = self._failed(error, ticket, place)
            if first is not None:
                self._grow(first)
            return
        old: deque[Connection] = deque()
        with self._lock:
            if self._address not in (None, lane.address):  # a failover: what leads to the old master is of no use
                old = self._begin_era()
                lane.era = self._era
                self._places.add(place)
            self._address = lane.address
        _close(old)
        self._give(lane)

    def _failed(self, error: Exception, ticket: Ticket, place: PoolPlace) -> Ticket | None:
        """Who waits first now, if somebody does."""
        with self._lock:
            self._places.discard(place)
            if ticket in self._waiting:
                ticket.put(error)
                self._waiting.remove(ticket)
            return self._waiting[0] if self._waiting else None

    def _give(self, lane: Connection) -> None:
        if lane.era != self._era or lane.reader.has_data():  # of another era, or it says more than it was asked
            self._drop(lane)
            return
        self._idle.append(lane)
        if self._waiting:
            self._match()

    def _match(self) -> None:
        with self._lock:
            while self._waiting:
                try:
                    lane = self._idle.pop()
                except IndexError:
                    return
                if lane.era == self._era:
                    self._waiting[0].put(lane)  # before it leaves the line: else it might be left with nothing
                    self._waiting.popleft()
                else:
                    lane.close()

    def _drop(self, lane: Connection) -> None:
        lane.close()
        with self._lock:
            self._places.discard(lane.place)
            first = self._waiting[0] if self._waiting else None
        if first is not None:
            self._grow(first)


def _close(idle: "deque[Connection]") -> None:
    while True:
        try:
            lane = idle.pop()
        except IndexError:  # somebody else may still take one, and will find that it is old
            return
        lane.close()


def _lost(error: Exception, sent: bool) -> StorageError:
    if not sent:
        return StorageError(f"cannot write to Redis ({type(error).__name__}: {error})", undone=True)
    if isinstance(error, TimeoutError):
        return StorageError("Redis did not answer in time; whether it has decided is not known")
    return StorageError(
        f"Redis broke off; whether it has decided is not known ({type(error).__name__}: {error})",
    )
