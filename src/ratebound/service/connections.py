"""The open connections of a worker: how many there may be, how long a peer may take, and how they end.

Every wire format has the same bounds, and is stopped in the same way. What a request may hold is checked by the
protocol that reads it.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ratebound.http.client_ip import GONE


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a peer may send, hold open or keep waiting. Times are in seconds, sizes in bytes."""

    connections: int = 10_000  # of one worker, for each wire format
    idle: float = 75.0  # without a request
    request: float = 10.0  # from the first byte of a request to its last; and for a peer that does not read its answers
    head: int = 32 * 1024  # of a request's headers, its target included
    body: int = 1024 * 1024  # of a request
    batch: int = 100  # decisions in one call
    pending: int = 256  # requests of one connection that are not answered yet; then it is not read from


class ServiceConnection(Protocol):
    """An open connection, as its worker sees it."""

    def finish(self) -> None:
        """Answer what was received, then close. Take no new request. May be called twice."""

    def abort(self) -> None:
        """Close at once."""

    def expire(self, now: float) -> None:
        """Close if the peer is idle or too slow. Called about once a second with the time of the event loop."""


def peer_of(transport: Any) -> str | None:
    """Return the address of the other end of a connection; None on a Unix socket, GONE if it was reset already."""
    address = transport.get_extra_info("peername")
    if isinstance(address, tuple):
        return str(address[0])
    return GONE if isinstance(transport.get_extra_info("sockname"), tuple) else None


class Connections:
    """The open connections of one wire format in one worker.

    A protocol calls `add` in `connection_made`, and `remove` in `connection_lost`.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.is_ending = False  # the worker stops: an answer should be the last one of its connection
        self.is_finishing = False
        self._open: set[ServiceConnection] = set()
        self._empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: ServiceConnection) -> bool:
        """Return False if there are too many connections, or if the worker stops: then the protocol must refuse it."""
        if self.is_finishing or len(self._open) >= self.bounds.connections:
            return False
        self._open.add(connection)
        return True

    def remove(self, connection: ServiceConnection) -> None:
        """Forget a connection that is closed. One that was never added is ignored."""
        self._open.discard(connection)
        if not self._open:
            self._empty.set()

    def expire(self, now: float) -> None:
        """Close the connections of peers that are idle or too slow."""
        for connection in list(self._open):
            connection.expire(now)

    async def wind_down(self, seconds: float) -> None:
        """Let connections end with their next answer, for up to `seconds`: a request that is on its way to a connection
        that seems idle would be lost if it were closed now."""
        self.is_ending = True
        self._empty.clear()
        if self._open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), seconds)

    async def stop(self, seconds: float) -> None:
        """Let every connection answer what it has received, for up to `seconds`; then close those that are left."""
        self.is_ending = self.is_finishing = True
        self._empty.clear()
        for connection in list(self._open):
            connection.finish()
        if self._open:
            try:
                await asyncio.wait_for(self._empty.wait(), seconds)
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()
