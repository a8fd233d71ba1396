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
from ratebound.loadtest.exchange import Exchange, Finish, LoadWire, now

MAX_IDLE = 4.0  # seconds. Common servers close idle connections after 5: a request must not meet that

CONNECT = ERROR_NUMBERS["connect"]
TLS = ERROR_NUMBERS["tls"]

NewWire = Callable[["WirePool", Finish], LoadWire]


class ConnectionCap:
    """The number of open connections of all pools, and the pools that wait for one."""

    __slots__ = ("most", "open", "peak", "starving", "was_reached")

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.peak = 0
        self.was_reached = False
        self.starving: dict[WirePool, None] = {}

    def take(self) -> bool:
        """Count one more connection. Return False if there may be no more."""
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
        "opened",
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
        self._ready: list[Any] = []  # connections with room; the one used last is at the end
        self._wires: set[LoadWire] = set()
        self._waiting: deque[Exchange] = deque()
        self._connecting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.opened = 0

    def send(self, exchange: Exchange) -> None:
        """Send a request now, or as soon as a connection has room for it."""
        ready = self._ready
        while ready:
            wire = ready[-1]
            if wire.room <= 0:
                ready.pop()
                continue
            wire.send(exchange)
            if wire.room <= 0:
                ready.pop()
            return
        self._waiting.append(exchange)
        self.grow()

    def grow(self) -> None:
        """Open a connection if more requests wait than the connections that are being opened can carry."""
        while len(self._waiting) > self._connecting * self._per_wire:
            if not self._cap.take():
                self._cap.starving[self] = None
                return
            self._connecting += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        wire: Any = self._new_wire(self, self._finish)
        origin, address = self._server
        error = CONNECT
        try:
            async with asyncio.timeout(self._timeout):
                name = origin.host if self._tls else None
                if address.startswith("/"):
                    await loop.create_unix_connection(lambda: wire, address, ssl=self._tls, server_hostname=name)
                else:
                    local = None if self._source is None else (self._source, 0)
                    await loop.create_connection(
                        lambda: wire, address, origin.port, ssl=self._tls, server_hostname=name, local_addr=local
                    )
            error = 0
        except ssl.SSLError:
            error = TLS
        except (OSError, TimeoutError):
            pass
        finally:
            self._connecting -= 1
            if error:
                wire.close()
        if error:
            self._failed(error)
        else:
            self.opened += 1
            self._wires.add(wire)
            if wire.room > 0:
                self.released(wire)

    def _failed(self, error: int) -> None:
        """Give the request that has waited longest this error, and try again for the others."""
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.is_over:
                self._finish(exchange, 0, error)
                break
        self._cap.give_back()
        self.grow()

    def released(self, wire: Any) -> None:
        """Use a connection that has room now."""
        waiting = self._waiting
        while waiting and wire.room > 0:
            exchange = waiting.popleft()
            if not exchange.is_over:
                wire.send(exchange)
        if wire.room > 0:
            if self._cap.starving and self not in self._cap.starving and wire.room >= self._per_wire:
                wire.close()  # another source address needs the place
                self.ended(wire)
            elif wire not in self._ready[-1:] and (self._per_wire == 1 or wire not in self._ready):
                self._ready.append(wire)

    def ended(self, wire: LoadWire) -> None:
        """Forget a connection that has ended."""
        if wire in self._wires:
            self._wires.discard(wire)
            if wire in self._ready:
                self._ready.remove(wire)
            self._cap.give_back()
            self.grow()

    def close_idle(self, older: float) -> None:
        """Close connections that were used last before this time, and carry nothing."""
        while self._ready and self._ready[0].used < older and self._ready[0].room >= self._per_wire:
            wire = self._ready[0]
            wire.close()
            self.ended(wire)

    def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        for wire in self._wires:
            wire.close()
        self._wires.clear()
        self._ready.clear()
        self._waiting.clear()

    @property
    def size(self) -> int:
        """The number of open connections."""
        return len(self._wires)


def oldest_useful() -> float:
    """Return the time before which an idle connection is too old."""
    return now() - MAX_IDLE
