"""The connection of an event loop. Calls are pipelined: written one after the other and answered in that order.

All calls that tasks make in one turn of the loop go out in one write, and none waits for the answer to another, so one
connection is enough. redis-py connects (address, TLS, login, Sentinel) and hands the connection over.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from select import POLLIN, poll
from typing import Any

import hiredis

from ratebound.errors import StorageError
from ratebound.storage.blame import LENIENCE, STALLED, Blameless, LoopWatch, TooLate
from ratebound.storage.redis.sync_connections import NO_CONNECTION, ErrorReply

LOOK_EVERY = 0.01  # seconds between checks of the event loop while connecting
TURN = 0.001  # seconds. A timer that is set for then runs after sockets were read; call_soon runs before, and so do the
# timers of uvloop after the program has blocked it
TRIES = 3  # to connect, as long as the program itself blocks its event loop
NO_ANSWER = "Redis did not answer in time; it is unknown whether it decided"


class PipelinedConnection(asyncio.Protocol):
    """One connection. `lost` is the error that ended it, or None while it is usable."""

    def __init__(self, connection: Any, wait: bytes) -> None:
        self.loop = asyncio.get_running_loop()
        self._wait = wait  # a WAIT command, sent once after all calls of one turn of the loop if one of them needs it
        self._waited: asyncio.Future[Any] | None = None  # the answer to that WAIT while it is unsent
        self.lost: StorageError | None = None
        self._pending: deque[tuple[asyncio.Future[Any], float]] = deque()  # with the deadline of each
        self._unsent: list[bytes] = []
        self._unsent_since = 0.0  # by the loop's time
        self._reader = hiredis.Reader(replyError=ErrorReply)
        self._alarm: asyncio.Handle | None = None
        self._alarm_at = 0.0  # by the loop's time. A handle of uvloop does not tell when it runs if that is now
        # From here on the transport is ours. redis-py's objects would warn or close it when collected.
        self._writer = connection._writer
        connection._writer = connection._reader = None
        self._transport = self._writer.transport
        self._transport.set_protocol(self)
        self._poll = poll()
        self._poll.register(self._transport.get_extra_info("socket").fileno(), POLLIN)
        self._tls = self._transport.get_extra_info("ssl_object") is not None

    def ask(self, packed: bytes, due: float) -> "asyncio.Future[Any]":
        """Send a command and return the future of its answer, due by the loop's time `due`.

        Cancelling the future disturbs no other call. Raises StorageError if the connection is lost.
        """
        if self.lost is not None:
            raise StorageError(str(self.lost), undone=True)
        future: asyncio.Future[Any] = self.loop.create_future()
        if not self._unsent:
            self._unsent_since = self.loop.time()
            self.loop.call_soon(self._send)
        self._unsent.append(packed)
        self._pending.append((future, due))
        if self._alarm is None or due < self._alarm_at:
            self._set_alarm(due)
        return future

    def ask_and_wait(self, packed: bytes, due: float) -> "tuple[asyncio.Future[Any], asyncio.Future[Any]]":
        """Send a command and return the futures of its answer and of the WAIT after it.

        Calls share the second: shield it.
        """
        future = self.ask(packed, due)
        if self._waited is None:
            self._waited = self.loop.create_future()
            self._waited.add_done_callback(lambda done: done.cancelled() or done.exception())  # callers may be gone
        return future, self._waited

    def quiet(self) -> bool:
        """Return True if the connection looks usable: no unexpected data has arrived."""
        return self.lost is None and (bool(self._pending) or not self._poll.poll(0))

    async def fit(self) -> bool:
        """Return True if the connection is usable although data arrived while it was idle."""
        if self.lost is None and not self._tls:
            self.close("the server closed the connection")
        for _ in range(2):  # the data may be a TLS key update or ticket; the loop has read it after two turns
            await asyncio.sleep(0)
        return self.lost is None

    def close(self, why: str) -> None:
        """End the connection.

        All pending calls fail with StorageError, and it is unknown whether the server decided them.
        """
        if self.lost is None:
            self.lost = StorageError(why)
            self._transport.abort()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._waited is not None:
            self._pending.append((self._waited, 0.0))
            self._waited = None
        while self._pending:
            future, _ = self._pending.popleft()
            if not future.done():
                future.set_exception(StorageError(why))

    def data_received(self, data: bytes) -> None:
        """Pass answers to pending calls, in order."""
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                future, _ = self._pending.popleft()
                if not future.done():
                    future.set_result(answer)
        except (hiredis.ProtocolError, IndexError) as error:  # garbage, or an answer without a call
            self.close(f"the server does not answer like Redis ({error})")

    def connection_lost(self, error: Exception | None) -> None:
        """End the connection because the server closed it."""
        self.close(f"Redis closed the connection; it is unknown whether it decided ({error or 'closed'})")

    def _send(self) -> None:
        packed, self._unsent = self._unsent, []
        if self.lost is None:
            if self._waited is not None:
                packed.append(self._wait)
                self._pending.append((self._waited, self._pending[-1][1]))
                self._waited = None
            self._transport.write(b"".join(packed))
            late = self.loop.time() - self._unsent_since
            if late > LENIENCE:
                self._postpone(len(packed), late)

    def _postpone(self, last: int, late: float) -> None:
        """Extend the deadlines of the last calls: the program blocked the loop before they were written."""
        for i in range(-last, 0):
            future, due = self._pending[i]
            self._pending[i] = (future, due + late)

    def _set_alarm(self, due: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.loop.call_at(due, self._check, due)
        self._alarm_at = due

    def _check(self, due: float) -> None:
        """Close the connection if an answer is overdue, else set the alarm again."""
        self._alarm = None
        if not self._pending:
            return
        now = self.loop.time()
        sent = islice(self._pending, len(self._pending) - len(self._unsent))
        first = min((due for _, due in sent), default=now + TURN)
        if first > now:
            self._set_alarm(first)
        elif self._poll.poll(0) and due < first + LENIENCE:  # the answer has arrived; the loop was too busy to read it
            self._alarm = self.loop.call_later(TURN, self._check, first + LENIENCE)
            self._alarm_at = now + TURN
        else:
            self.close(NO_ANSWER)


class LoopConnections:
    """The connection of one event loop, made again after it is lost.

    Connecting runs in its own task; cancelling a caller does not cancel it.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], wait: bytes = b"") -> None:
        self._connect = connect
        self._wait = wait
        self._connection: PipelinedConnection | None = None
        self._making: asyncio.Task[PipelinedConnection] | None = None

    async def call(self, packed: bytes, due: float, *, waits: bool = False) -> Any:
        """Return the server's answer, due by the loop's time `due`. With `waits` return (answer, number of replicas).

        Raises ErrorReply if the server answers with an error, StorageError if it does not answer.
        """
        connection = self._connection
        if connection is None or not (connection.quiet() or await connection.fit()):
            connection = await self._next(due)
        if not waits:
            answer = await connection.ask(packed, due)
        else:
            first, second = connection.ask_and_wait(packed, due)
            answer = await first
        if isinstance(answer, ErrorReply):
            if answer.args[0].startswith("READONLY"):  # a failover has made this master a replica
                connection.close("the master is a replica now")
            raise answer
        if not waits:
            return answer
        waited = await asyncio.shield(second)
        if isinstance(waited, ErrorReply):
            raise waited
        return answer, waited

    def forget(self, why: str = "the storage was closed") -> None:
        """Close the connection. The next call makes another."""
        if self._connection is not None:
            self._connection.close(why)
            self._connection = None

    async def close(self) -> None:
        """Close the connection and stop connecting."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        self.forget()
        await asyncio.sleep(0)  # the transport closes in the next turn

    async def _next(self, due: float) -> PipelinedConnection:
        if self._connection is not None and self._connection.lost is None:  # another task has connected meanwhile
            return self._connection
        loop = asyncio.get_running_loop()
        if self._making is None:
            self._making = loop.create_task(self._make(), name="ratebound-connect")
            self._making.add_done_callback(self._made)
        with LoopWatch(LOOK_EVERY) as watch:
            done, _ = await asyncio.wait([self._making], timeout=max(due - loop.time(), 0))
        if not done:
            if watch.stalled:
                raise Blameless(STALLED, undone=True)
            raise StorageError(NO_CONNECTION, undone=True)
        (task,) = done
        if task.cancelled():
            raise StorageError("the storage was closed", undone=True)
        return task.result()

    async def _make(self) -> PipelinedConnection:
        for _ in range(TRIES):
            watch = LoopWatch(LOOK_EVERY)
            try:
                with watch:
                    return PipelinedConnection(await self._connect(), self._wait)
            except TooLate:
                if not watch.stalled:
                    raise
        raise Blameless(STALLED, undone=True)

    def _made(self, task: "asyncio.Task[PipelinedConnection]") -> None:
        self._making = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()
