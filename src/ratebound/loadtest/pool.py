"""Connections to one server from one source address, as many as the open load needs.

A request takes a connection with room. If there is none it waits for the first that gets room, and a new one is opened
for it: a slow server makes the pool grow, never the schedule wait. All pools share one cap.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from ratebound.loadtest.addresses import CheckedServer
from ratebound.loadtest.answer import ERROR_NUMBERS
from ratebound.loadtest.exchange import Finish, LoadExchange, LoadWire, now

MAX_IDLE = 4.0  # seconds. Common servers close idle connections after 5: a request must not meet that
SETTINGS_LOOK = 0.05  # seconds

CONNECT = ERROR_NUMBERS["connect"]
TLS = ERROR_NUMBERS["tls"]

NewWire = Callable[["WirePool", Finish], LoadWire]


class ConnectionCap:
    """The number of open connections of all pools, and the pools that wait for one."""

    __slots__ = ("idle", "most", "open", "peak", "starving", "was_reached")

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.peak = 0
        self.was_reached = False
        self.starving: dict[WirePool, None] = {}
        self.idle: dict[LoadWire, WirePool] = {}  # the one that is idle longest is first

    def take(self) -> bool:
        """Count one more connection, if need be instead of an idle one. Return False if there may be no more."""
        if self.open >= self.most and self.idle:
            wire, pool = next(iter(self.idle.items()))
            pool.drop(wire)
        if self.open >= self.most:
            self.was_reached = True
            return False
        self.open += 1
        self.peak = max(self.peak, self.open)
        return True

    def give_back(self) -> None:
        """Count one connection less, and let a pool that waits for one have it."""
        self.open -= 1
        if self.starving:
            pool = next(iter(self.starving))
            del self.starving[pool]
            pool.grow()


class WirePool:
    """The connections to one server from one source address."""

    __slots__ = (
        "_cap",
        "_connecting",
        "_finish",
        "_new_wire",
        "_per_wire",
        "_ready",
        "_server",
        "_source",
        "_tasks",
        "_timeout",
        "_tls",
        "_waiting",
        "_wires",
    )

    def __init__(
        self,
        server: CheckedServer,
        source: str | None,
        new_wire: NewWire,
        finish: Finish,
        cap: ConnectionCap,
        *,
        tls: ssl.SSLContext | None,
        timeout: float,
        per_wire: int = 1,
    ) -> None:
        self._server = server
        self._source = source
        self._new_wire = new_wire
        self._finish = finish
        self._cap = cap
        self._tls = tls
        self._timeout = timeout
        self._per_wire = per_wire  # exchanges that a new connection is expected to carry at once
        self._ready: dict[LoadWire, None] = {}  # connections with room; the one used last is at the end
        self._wires: set[LoadWire] = set()
        self._waiting: deque[LoadExchange] = deque()
        self._connecting: set[LoadWire] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, exchange: LoadExchange) -> None:
        """Send a request now, or as soon as a connection has room for it."""
        ready = self._ready
        while ready:
            wire, _ = ready.popitem()
            self._cap.idle.pop(wire, None)
            if wire.room > 0:
                wire.send(exchange)
                if wire.room > 0:
                    ready[wire] = None
                return
        self._waiting.append(exchange)
        self.grow()

    def grow(self) -> None:
        """Open a connection if more requests wait than the connections that are being opened can carry."""
        while len(self._waiting) > len(self._connecting) * self._per_wire:
            if not self._cap.take():
                self._cap.starving[self] = None
                return
            wire = self._new_wire(self, self._finish)
            self._connecting.add(wire)
            task = asyncio.get_running_loop().create_task(self._connect(wire))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, wire: Any) -> None:
        loop = asyncio.get_running_loop()
        origin, address = self._server
        name = origin.host if self._tls else None
        try:
            async with asyncio.timeout(self._timeout):
                if address.startswith("/"):
                    await loop.create_unix_connection(lambda: wire, address, ssl=self._tls, server_hostname=name)
                else:
                    local = None if self._source is None else (self._source, 0)
                    await loop.create_connection(
                        lambda: wire, address, origin.port, ssl=self._tls, server_hostname=name, local_addr=local
                    )
                while wire in self._connecting:  # HTTP/2 begins with the server's settings
                    await asyncio.sleep(SETTINGS_LOOK)
        except ssl.SSLError:
            self._not_made(wire, TLS)
        except (OSError, TimeoutError):
            self._not_made(wire, CONNECT)

    def _not_made(self, wire: LoadWire, error: int) -> None:
        wire.close()
        self.ended(wire, error)

    def made(self, wire: LoadWire) -> None:
        """Use a new connection. It can carry requests from now on."""
        self._connecting.discard(wire)
        self._wires.add(wire)
        self.released(wire)

    def released(self, wire: LoadWire) -> None:
        """Use a connection that has room now."""
        waiting = self._waiting
        while waiting and wire.room > 0:
            exchange = waiting.popleft()
            if not exchange.is_over:
                wire.send(exchange)
        if wire.room > 0:
            if self._cap.starving and self not in self._cap.starving and wire.is_idle:
                self.drop(wire)  # another source address needs the place
            else:
                self._ready[wire] = None
                if wire.is_idle:
                    self._cap.idle[wire] = self

    def ended(self, wire: LoadWire, error: int) -> None:
        """Forget a connection that has ended. If it carried nothing yet, the oldest waiting request gets the error."""
        if wire in self._connecting:
            self._connecting.discard(wire)
            self._fail_oldest(error)
        elif wire in self._wires:
            self._wires.discard(wire)
            self._ready.pop(wire, None)
            self._cap.idle.pop(wire, None)
        else:
            return
        self._cap.give_back()
        self.grow()

    def _fail_oldest(self, error: int) -> None:
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.is_over:
                self._finish(exchange, 0, error)
                return

    def drop(self, wire: LoadWire) -> None:
        """Close an idle connection."""
        wire.close()
        self.ended(wire, 0)

    def close_idle(self, older: float) -> None:
        """Close connections that were used last before this time, and carry nothing."""
        for wire in list(self._ready):
            if wire.used >= older:
                break
            if wire.is_idle:
                self.drop(wire)

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        for wire in (*self._wires, *self._connecting):
            wire.close()
        self._wires.clear()
        self._connecting.clear()
        self._ready.clear()
        self._waiting.clear()
        if self._tasks:
            await asyncio.wait(self._tasks)


def oldest_useful() -> float:
    """Return the time before which an idle connection is too old."""
    return now() - MAX_IDLE
