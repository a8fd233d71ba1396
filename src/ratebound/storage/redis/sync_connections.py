"""The connection pool of a sync storage. Each connection carries one call at a time; threads of its own make them.

redis-py connects: address, TLS, login, Sentinel. A call then writes to the socket and reads from it until its deadline,
even if the server stops in the middle of an answer. (redis-py's `execute_command` takes about as long again as the
whole exchange, and its timeout starts again with every piece of an answer.)
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
LOOK_AGAIN = 0.05  # seconds: a place that an exception has freed is found only by looking
NO_CONNECTION = "no connection to Redis in time: it does not answer, or all connections of ?pool= are in use"


class PoolPlace:
    """The place of one connection in the pool, held by the connection and by the thread that makes it.

    The pool counts places that are still referenced. So a place is free as soon as nothing holds it, even if an
    exception from a signal handler came just before the connection was given back.
    """

    __slots__ = ("__weakref__",)


class ErrorReply(Exception):
    """An error reply of the server. Its text begins with the kind."""


class Connection:
    """One connection. `connection` is redis-py's, already connected."""

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
        """Return True if the connection was closed, or received unexpected data, while it was idle."""
        if not self.poll.poll(0):
            return False
        if isinstance(self.socket, ssl.SSLSocket):  # the data may be a key update or a ticket
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
        """Return the answer. Raises TimeoutError unless all of it arrives by `until`."""
        piece = self.socket.recv(PIECE)
        self.reader.feed(piece)
        answer = self.reader.gets()
        if answer is not False:  # False means incomplete: the protocol has no such value
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
        """Return the answer after the one that was received last."""
        answer = self.reader.gets()
        if answer is False:
            self.hurry(until)
            answer = self.receive(until)
        return answer

    def hurry(self, until: float) -> None:
        """Limit the next write or read to the time left until `until`. Raises TimeoutError if none is left."""
        rest = until - monotonic()
        if rest <= 0:
            raise TimeoutError
        self.socket.settimeout(rest)

    def close(self) -> None:
        """Close the connection. Never raises."""
        try:
            self.connection.disconnect()
        except Exception:  # the connection is gone either way
            return


Ticket = SimpleQueue[Connection | Exception]  # one caller waits on it for a connection


class ConnectionPool:
    """A thread-safe pool of at most `most` connections.

    A call waits for a free one; `timeout` is for the whole call.
    """

    def __init__(self, connect: Callable[[], Any], most: int, timeout: float) -> None:
        self.connect = connect
        self.most = most
        self.timeout = timeout
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Forget all connections: in a forked child they are the parent's."""
        self._lock = threading.Lock()  # for places, era and waiters; a free connection is taken without it
        self._idle: deque[Connection] = deque()
        self._waiting: deque[Ticket] = deque()
        self._places: Living[PoolPlace] = Living()  # of this era's connections, including those being made
        self._era = getattr(self, "_era", 0) + 1
        self._address: object = None

    def call(self, packed: bytes, until: float | None = None, *, two: bool = False) -> Any:
        """Send a command and return the server's answer.

        Raises ErrorReply if the answer is an error, StorageError if the connection fails. `until` is the deadline if
        that is sooner than `timeout` from now. With `two` the text holds two commands: return both answers, or raise
        the first error.
        """
        connection = self._free()
        hurried = connection is None or until is not None or len(packed) > PIECE or two
        if until is None:
            until = monotonic() + self.timeout
        if connection is None:
            connection = self._next(until)
        sent = False
        try:
            if hurried:
                connection.hurry(until)
            connection.socket.sendall(packed)
            sent = True
            if hurried:
                connection.hurry(until)
            answer = connection.receive(until)
            more = connection.receive_more(until) if two else None
            if hurried:
                connection.socket.settimeout(self.timeout)
        except BaseException as error:
            self._drop(connection)
            if not isinstance(error, OSError | hiredis.HiredisError) or is_programs_own(error):
                raise
            raise _lost(error, sent) from error
        if isinstance(answer, ErrorReply):
            if answer.args[0].startswith("READONLY"):  # a failover: no connection to this server is usable
                self.forget()
            self._give(connection)
            raise answer
        self._give(connection)
        if isinstance(more, ErrorReply):
            raise more
        return (answer, more) if two else answer

    def forget(self) -> None:
        """Close idle connections now; connections in use, or being made, are closed when they are given back."""
        with self._lock:
            idle = self._begin_era()
        _close(idle)

    def _begin_era(self) -> "deque[Connection]":
        """Return the connections that were idle and are unusable now. The caller holds the lock."""
        self._era += 1
        self._places = Living()
        idle, self._idle = self._idle, deque()
        return idle

    def _free(self) -> Connection | None:
        while True:
            try:
                connection = self._idle.pop()  # the one used last, so that spare connections stay idle
            except IndexError:
                return None
            if connection.era == self._era and not connection.stale():
                return connection
            self._drop(connection)

    def _next(self, until: float) -> Connection:
        """Return the next connection that is made or given back. Raises StorageError at `until`."""
        ticket: Ticket = SimpleQueue()
        self._waiting.append(ticket)
        try:
            place: ref[PoolPlace] | None = None
            while True:
                if place is None or place() is None:
                    place = self._grow(ticket)
                self._match()  # a connection may have been given back before this ticket was in line
                rest = until - monotonic()
                try:
                    found = ticket.get(timeout=max(min(rest, LOOK_AGAIN), 0))
                    break
                except Empty:
                    if rest <= LOOK_AGAIN:
                        raise
        except BaseException as error:  # the time is up, or a signal handler raised
            with self._lock:
                waits = ticket in self._waiting
                if waits:
                    self._waiting.remove(ticket)
            if not waits:  # the ticket has been served
                with suppress(Empty):  # the handler raised just after the get: then nothing holds the connection
                    late = ticket.get_nowait()
                    if isinstance(error, Empty) and isinstance(late, Connection):
                        return late
                    if isinstance(late, Connection):
                        self._give(late)
            if isinstance(error, Empty):
                raise StorageError(NO_CONNECTION, undone=True) from None
            raise
        if isinstance(found, Exception):
            raise found
        return found

    def _grow(self, ticket: Ticket) -> "ref[PoolPlace] | None":
        """Start to make one more connection if there is room, and return its place.

        A failure is put into `ticket` if it waits.
        """
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
            held.clear()  # the standard library keeps a reference to a thread that failed to start
            if (own := interrupted(error)) is not None:
                raise own from None
            # The operating system allows no more threads.
            self._failed(StorageError(f"cannot connect to Redis ({error})", undone=True), ticket, place)
        return ref(place)

    def _connect(self, era: int, ticket: Ticket, held: list[PoolPlace]) -> None:
        try:
            place = held.pop()
        except IndexError:
            return
        try:
            connection = Connection(self.connect(), self.timeout, era, place)
        except Exception as error:
            first = self._failed(error, ticket, place)
            if first is not None:
                self._grow(first)
            return
        old: deque[Connection] = deque()
        with self._lock:
            if self._address not in (None, connection.address):  # a failover: connections to the old master are useless
                old = self._begin_era()
                connection.era = self._era
                self._places.add(place)
            self._address = connection.address
        _close(old)
        self._give(connection)

    def _failed(self, error: Exception, ticket: Ticket, place: PoolPlace) -> Ticket | None:
        """Give back the place of a failed connection and pass the error on. Return the first waiting ticket, if any."""
        with self._lock:
            self._places.discard(place)
            if ticket in self._waiting:
                ticket.put(error)
                self._waiting.remove(ticket)
            return self._waiting[0] if self._waiting else None

    def _give(self, connection: Connection) -> None:
        if connection.era != self._era or connection.reader.has_data():  # outdated, or with unexpected data
            self._drop(connection)
            return
        self._idle.append(connection)
        if self._waiting:
            self._match()

    def _match(self) -> None:
        with self._lock:
            while self._waiting:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    return
                if connection.era == self._era:
                    self._waiting[0].put(connection)  # before the popleft: an exception in between must not lose it
                    self._waiting.popleft()
                else:
                    connection.close()

    def _drop(self, connection: Connection) -> None:
        connection.close()
        with self._lock:
            self._places.discard(connection.place)
            first = self._waiting[0] if self._waiting else None
        if first is not None:
            self._grow(first)


def _close(idle: "deque[Connection]") -> None:
    while True:
        try:
            connection = idle.pop()
        except IndexError:  # another thread may still take one, and will see that it is outdated
            return
        connection.close()


def _lost(error: Exception, sent: bool) -> StorageError:
    if not sent:
        return StorageError(f"cannot write to Redis ({type(error).__name__}: {error})", undone=True)
    if isinstance(error, TimeoutError):
        return StorageError("Redis did not answer in time; it is unknown whether it decided")
    return StorageError(
        f"Redis closed the connection; it is unknown whether it decided ({type(error).__name__}: {error})",
    )
