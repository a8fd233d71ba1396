"""The connection of an event loop. Calls are written one behind the other, and answered in that order.

What many tasks ask in one turn of the loop goes out in one write, and nobody waits for the answer to another: one
connection is enough for all of them. redis-py makes it (address, TLS, login, Sentinel) and hands it over.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from select import POLLIN, poll
from typing import Any

import hiredis

from ratebound.errors import StorageError
from ratebound.storage.blame import LENIENCE, STALLED, Blameless, LoopWatch, TooLate
from ratebound.storage.redis.sync_connections import NO_LANE, ErrorReply

LOOK_EVERY = 0.01  # seconds, while a connection is made
TRIES = 3  # to connect, as long as it is the program that blocks its event loop
NO_ANSWER = "Redis did not answer in time; whether it has decided is not known"


class PipelinedConnection(asyncio.Protocol):
    """One connection. `lost` says why it is of no use any more."""

    def __init__(self, connection: Any, wait: bytes) -> None:
        self.loop = asyncio.get_running_loop()
        self._wait = wait  # a command to send once behind all that is asked in one turn of the loop, if it is asked for
        self._waited: asyncio.Future[Any] | None = None  # the answer to it, of what is not sent yet
        self.lost: StorageError | None = None
        self._pending: deque[tuple[asyncio.Future[Any], float]] = deque()  # with the time by which it is due
        self._unsent: list[bytes] = []
        self._unsent_since = 0.0  # by the loop's time
        self._reader = hiredis.Reader(replyError=ErrorReply)
        self._alarm: asyncio.TimerHandle | None = None
        # From here on the transport is ours. redis-py would call it unclosed, and its writer close it, when they go.
        self._writer = connection._writer
        connection._writer = connection._reader = None
        self._transport = self._writer.transport
        self._transport.set_protocol(self)
        self._poll = poll()
        self._poll.register(self._transport.get_extra_info("socket").fileno(), POLLIN)
        self._tls = self._transport.get_extra_info("ssl_object") is not None

    def ask(self, packed: bytes, due: float) -> "asyncio.Future[Any]":
        """The answer to come, by the loop's time `due`. Who stops waiting for it disturbs nobody."""
        if self.lost is not None:
            raise StorageError(str(self.lost), undone=True)
        future: asyncio.Future[Any] = self.loop.create_future()
        if not self._unsent:
            self._unsent_since = self.loop.time()
            self.loop.call_soon(self._send)
        self._unsent.append(packed)
        self._pending.append((future, due))
        if self._alarm is None or due < self._alarm.when():
            self._set_alarm(due)
        return future

    def ask_and_wait(self, packed: bytes, due: float) -> "tuple[asyncio.Future[Any], asyncio.Future[Any]]":
        """The answer to come, and then that to `wait`, which others share: shield it."""
        future = self.ask(packed, due)
        if self._waited is None:
            self._waited = self.loop.create_future()
            self._waited.add_done_callback(lambda done: done.cancelled() or done.exception())  # all may have gone
        return future, self._waited

    def quiet(self) -> bool:
        """Whether it can be used, as far as is known: nothing has come in that nobody asked for."""
        return self.lost is None and (bool(self._pending) or not self._poll.poll(0))

    async def fit(self) -> bool:
        """Whether it can be used although something came in while it lay idle and the loop did something else."""
        if self.lost is None and not self._tls:
            self.close("the server closed the connection")
        for _ in range(2):  # a key update of TLS or a ticket is no answer; two turns, and the loop has read it
            await asyncio.sleep(0)
        return self.lost is None

    def close(self, why: str) -> None:
        """Everyone who still waits is told; whether the server has decided is not known."""
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
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                future, _ = self._pending.popleft()
                if not future.done():
                    future.set_result(answer)
        except (hiredis.ProtocolError, IndexError) as error:  # garbage, or an answer that nobody asked for
            self.close(f"what answers there is not Redis ({error})")

    def connection_lost(self, error: Exception | None) -> None:
        self.close(f"Redis broke off; whether it has decided is not known ({error or 'closed'})")

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
        """The program blocked the loop before these were written: that time is not the server's."""
        for i in range(-last, 0):
            future, due = self._pending[i]
            self._pending[i] = (future, due + late)

    def _set_alarm(self, due: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.loop.call_at(due, self._check, due)

    def _check(self, due: float) -> None:
        """Called when the first was due that was there when it was set."""
        self._alarm = None
        if not self._pending:
            return
        first = min(due for _, due in self._pending)
        if first > self.loop.time():
            self._set_alarm(first)
        elif self._poll.poll(0) and due < first + LENIENCE:  # it is in; the loop was too busy to read it
            self.loop.call_soon(self._check, first + LENIENCE)
        else:
            self.close(NO_ANSWER)


class LoopConnections:
    """The connection of one event loop, made again when it is lost. Nobody who asks makes it, or ends the making."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], wait: bytes = b"") -> None:
        self._connect = connect
        self._wait = wait
        self._stream: PipelinedConnection | None = None
        self._making: asyncio.Task[PipelinedConnection] | None = None

    async def call(self, packed: bytes, due: float, *, waits: bool = False) -> Any:
        """The server's answer, by the loop's time `due`. A refusal is raised. With `waits` that to `wait`, too."""
        stream = self._stream
        if stream is None or not (stream.quiet() or await stream.fit()):
            stream = await self._next(due)
        if not waits:
            answer = await stream.ask(packed, due)
        else:
            first, second = stream.ask_and_wait(packed, due)
            answer = await first
        if isinstance(answer, ErrorReply):
            if answer.args[0].startswith("READONLY"):  # a master no longer
                stream.close("the master is a replica now")
            raise answer
        if not waits:
            return answer
        waited = await asyncio.shield(second)
        if isinstance(waited, ErrorReply):
            raise waited
        return answer, waited

    def forget(self, why: str = "the storage was closed") -> None:
        if self._stream is not None:
            self._stream.close(why)
            self._stream = None

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        self.forget()
        await asyncio.sleep(0)  # the transport closes in the next turn

    async def _next(self, due: float) -> PipelinedConnection:
        if self._stream is not None and self._stream.lost is None:  # somebody else was quicker
            return self._stream
        loop = asyncio.get_running_loop()
        if self._making is None:
            self._making = loop.create_task(self._make(), name="ratebound-connect")
            self._making.add_done_callback(self._made)
        with LoopWatch(LOOK_EVERY) as watch:
            done, _ = await asyncio.wait([self._making], timeout=max(due - loop.time(), 0))
        if not done:
            if watch.stalled:
                raise Blameless(STALLED, undone=True)
            raise StorageError(NO_LANE, undone=True)
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
            self._stream = task.result()
