"""The only module that uses pymemcache: connections to one server, and the meaning of their errors.

pymemcache writes commands and reads answers. Connecting is done here: pymemcache tries only the first address of a
host. Its timeout starts again with every piece of an answer, so it gets a socket that keeps one deadline for all.
"""

import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from queue import Empty
from select import POLLIN, poll
from time import monotonic
from typing import Any, NamedTuple

from pymemcache.client.base import Client
from pymemcache.exceptions import (
    MemcacheClientError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
)

from ratebound.errors import StorageError
from ratebound.storage.blame import TooLate, is_programs_own
from ratebound.storage.memcached.address import ServerAddress
from ratebound.storage.threads import Threads

MOST_IDLE = 16  # connections to one server that are kept for the next calls
MOST_RESOLVING = 4  # threads that look up the name of one server
NO_SWAP = b"0"  # the token of every item if a server runs without compare-and-swap


class Found(NamedTuple):
    """An item that was read: its bytes, and the token of this version of it. An absent item has neither."""

    data: bytes
    token: bytes


ABSENT = Found(b"", b"")


class TimedSocket:
    """A connected socket that sends and reads until `until`, an instant of the monotonic clock. Then it raises.

    `sent` is True once a whole command has left.
    """

    __slots__ = ("_poll", "_socket", "sent", "until")

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain
        self._poll = poll()
        self._poll.register(plain, POLLIN)
        self.until = 0.0
        self.sent = False

    def is_stale(self) -> bool:
        """Return True if the server has closed the connection, or sent something unexpected, while it was idle."""
        return bool(self._poll.poll(0))

    def sendall(self, data: bytes) -> None:
        """Send all bytes. Raises TimeoutError if that takes too long."""
        self._hurry()
        self._socket.sendall(data)
        self.sent = True

    def recv(self, size: int) -> bytes:
        """Return the next piece of an answer. Raises TimeoutError if none comes in time."""
        self._hurry()
        return self._socket.recv(size)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _hurry(self) -> None:
        rest = self.until - monotonic()
        if rest <= 0:
            raise TimeoutError("the time is up")
        self._socket.settimeout(rest)


class ServerConnections:
    """The connections to one server. It is thread-safe: each call has a connection of its own.

    Every call ends by `until`, an instant of the monotonic clock. Raises StorageError, whose `node` is the server.
    """

    def __init__(self, server: ServerAddress, connect_timeout: float) -> None:
        self.name = server.name
        self._server = server
        self._connect_timeout = connect_timeout
        self._resolving = Threads(MOST_RESOLVING)
        self._resolves = not server.path and not _is_number(server.host)
        self.renew()

    def renew(self) -> None:
        """Close this process's ends of idle connections in a forked child: the parent goes on with its own."""
        idle: deque[Client] = getattr(self, "_idle", deque())
        self._idle: deque[Client] = deque()
        for client in idle:
            client.close()

    def close(self) -> None:
        """Close idle connections. The next call opens one again."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:  # another thread has just taken it
                return
        self._resolving.close()

    def read(self, names: Sequence[bytes], until: float) -> dict[bytes, Found]:
        """Return the items that are there, by name, in one trip."""
        found = self._call(until, False, lambda client: client.gets_many(names))
        for _, token in found.values():
            if token == NO_SWAP:
                raise self._error(
                    f"Memcached at {self.name} runs without compare-and-swap: start it without the option -C",
                    undone=True,
                )
        return {name: Found(*pair) for name, pair in found.items()}

    def add(self, name: bytes, data: bytes, seconds: int, until: float) -> bool:
        """Write an item that is not there. Return False if it is."""
        return bool(self._call(until, True, lambda client: client.add(name, data, seconds, noreply=False)))

    def swap(self, name: bytes, data: bytes, seconds: int, token: bytes, until: float) -> bool:
        """Write an item if it is still the version with this token. Return False if it is not, or has gone."""
        return bool(self._call(until, True, lambda client: client.cas(name, data, token, seconds)))

    def _call(self, until: float, writes: bool, function: Callable[[Client], Any]) -> Any:
        client = self._free() or self._connected(until)
        timed: TimedSocket = client.sock
        timed.until, timed.sent = until, False
        try:
            answer = function(client)
        except BaseException as error:
            client.close()
            timed.close()
            if not isinstance(error, Exception) or is_programs_own(error):
                raise
            raise self._told(error, undone=not (writes and timed.sent)) from error
        if len(self._idle) < MOST_IDLE:
            self._idle.append(client)
        else:
            client.close()
        return answer

    def _free(self) -> Client | None:
        while True:
            try:
                client = self._idle.pop()  # the one used last, so that spare connections stay idle
            except IndexError:
                return None
            if not client.sock.is_stale():
                return client
            client.close()

    def _connected(self, until: float) -> Client:
        """Return a new connection. Raises StorageError if there is none in time."""
        ends = min(until, monotonic() + self._connect_timeout)
        client = Client(self._server.path or (self._server.host, self._server.port))
        try:
            client.sock = TimedSocket(self._open(ends))
        except StorageError:
            raise
        except OSError as error:
            if is_programs_own(error):
                raise
            if isinstance(error, TimeoutError):
                raise self._too_late("did not accept a connection in time", undone=True) from error
            raise self._error(f"cannot connect to Memcached at {self.name} ({error})", undone=True) from error
        return client

    def _open(self, ends: float) -> socket.socket:
        if self._server.path:
            return _joined(socket.AF_UNIX, self._server.path, ends)
        failed: OSError = OSError("the host has no address")
        for family, address in self._addresses(ends):
            try:
                return _joined(family, address, ends)
            except OSError as error:
                if is_programs_own(error):
                    raise
                failed = error
        raise failed

    def _addresses(self, ends: float) -> list[tuple[int, Any]]:
        """Return the addresses of the host. A name is looked up in a thread: the system's resolver has no deadline."""
        resolve = partial(_resolved, self._server.host, self._server.port)
        if not self._resolves:
            return resolve()
        job = self._resolving.queue(resolve)
        if job is None:
            raise self._error(f"no thread can look up {self._server.host}: the system allows no more", undone=True)
        try:
            found, error = job.replies.get(timeout=max(ends - monotonic(), 0.0))
        except Empty:
            self._resolving.withdraw(job)
            raise self._too_late("was not found in time by its name", undone=True) from None
        if error is not None:
            raise error
        return found  # type: ignore[no-any-return]

    def _told(self, error: Exception, *, undone: bool) -> StorageError:
        """Return what an exception means. `undone` is False if a command that writes may have arrived."""
        fate = "" if undone else "; it is unknown whether it decided"
        if isinstance(error, TimeoutError):
            return self._too_late(f"did not answer in time{fate}", undone=undone)
        if isinstance(error, MemcacheUnexpectedCloseError | OSError):
            return self._error(f"Memcached at {self.name} closed the connection{fate} ({_text(error)})", undone=undone)
        if isinstance(error, MemcacheUnknownCommandError):
            return self._error(
                f"Memcached at {self.name} refuses the command {_text(error)}: it has no more connections, or it is"
                " another program",
                undone=True,
            )
        text = _text(error)
        if isinstance(error, MemcacheServerError) and "too large" in text:
            return self._error(
                "the states of a key are larger than an item of Memcached may be: start it with a larger -I, or use"
                " sliding-counter instead of long sliding logs",
                undone=True,
                outage=False,
            )
        if isinstance(error, MemcacheServerError) and "out of memory" in text:
            return self._error(
                f"Memcached at {self.name} has no memory left: start it with a larger -m, and without -M", undone=True
            )
        if isinstance(error, MemcacheServerError | MemcacheClientError):  # it has read the command, and refused it
            return self._error(f"Memcached at {self.name} refuses the command ({text})", undone=True)
        return self._error(
            f"the answer of {self.name} is not one of Memcached{fate} ({type(error).__name__})", undone=undone
        )

    def _error(self, message: str, *, undone: bool, outage: bool = True) -> StorageError:
        return self._of_node(StorageError(message, undone=undone, outage=outage))

    def _too_late(self, what: str, *, undone: bool) -> StorageError:
        return self._of_node(TooLate(f"Memcached at {self.name} {what}", undone=undone))

    def _of_node(self, error: StorageError) -> StorageError:
        error.node = self.name  # type: ignore[attr-defined]  # the guard blames no other server for it
        return error


def _is_number(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _resolved(host: str, port: int) -> list[tuple[int, Any]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [(family, address) for family, _, _, _, address in found]


def _joined(family: int, address: Any, ends: float) -> socket.socket:
    """Return a socket that is connected to an address. Raises OSError if it is not by `ends`."""
    rest = ends - monotonic()
    if rest <= 0:
        raise TimeoutError("the time is up")
    plain = socket.socket(family, socket.SOCK_STREAM)
    try:
        plain.settimeout(rest)
        if family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.connect(address)
    except BaseException:
        plain.close()
        raise
    return plain


def _text(error: Exception) -> str:
    """Return the text of an exception. pymemcache passes on what the server said as bytes."""
    said = error.args[0] if error.args else type(error).__name__
    return said.decode("ascii", "replace") if isinstance(said, bytes) else str(said)
