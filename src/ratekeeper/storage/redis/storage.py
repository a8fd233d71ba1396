"""Redis as a storage, sync and async side by side. One call to the script decides, whatever it holds.

Concurrent callers of one event loop share calls: while one is under way the others gather, and go together next.
"""

import asyncio
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from ratekeeper.clock import Clock
from ratekeeper.decision import Row
from ratekeeper.errors import StorageError
from ratekeeper.limit import Group, Mode
from ratekeeper.storage.redis import connect, script, slots
from ratekeeper.storage.redis.address import Address, of_client, parse_url
from ratekeeper.storage.redis.lane import NO_LANE, Lanes, Refusal, pack_command
from ratekeeper.storage.threads import Threads

TOGETHER = 128  # groups in one call at most, so that no call holds the server up


def _address(redis: Any, options: dict[str, Any]) -> Address:
    if isinstance(redis, str):
        if options:
            raise ValueError("options of a URL go into the URL, behind '?'")
        return parse_url(redis)
    if isinstance(redis, Address):
        return redis
    return of_client(redis, options)


def _names(address: Address, group: Group) -> list[bytes]:
    keys, names = address.keys, []
    for key, limits, *_ in group:
        for subject in (keys.subject(key), keys.old_subject(key)):
            if subject is not None:
                names += [subject + limit.scope.encode() for limit in limits]
    return names


class RedisStorage:
    """`redis` is a URL, or a redis-py client whose address and credentials are used. `clock` is for tests."""

    def __init__(self, redis: Any, *, clock: Clock | None = None, **options: Any) -> None:
        self.address = _address(redis, options)
        self._clock = clock
        self._cluster: Any = None  # its client, when it is one
        self._threads = Threads()  # for what may run side by side
        self._free = threading.BoundedSemaphore(self.address.pool)  # redis-py does not wait for a connection there
        # Every call returns by then, connection included. On a Cluster that is left to who calls.
        self.deadline = None if self.address.kind == "cluster" else self.address.timeout
        if self.deadline is None:
            self.nodes_of = self._nodes_of
        else:
            self._connector = connect.Connector(self.address)
            self._lanes = Lanes(self._connector, self.address.pool, self.deadline)

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        if self.deadline is None:
            return [self._across(group, mode) for group in groups]
        return script.all_rows(self._call(groups, mode))

    def reset(self, group: Group) -> None:
        for name in _names(self.address, group):
            self._execute("DEL", name)

    def connect(self) -> None:
        """Make the first connection and load the script now, and not when the first request comes."""
        if self.deadline is None:
            self._execute("PING", target_nodes="primaries")
        else:
            self._execute("SCRIPT", "LOAD", script.SOURCE)

    def close(self) -> None:
        if self.deadline is not None:
            self._lanes.forget()
            self._connector.close()
        client, self._cluster = self._cluster, None
        if client is not None:
            client.close()
        self._threads.close()

    def for_tasks(self) -> "AsyncRedisStorage":
        """The same Redis and the same states, for an event loop."""
        return AsyncRedisStorage(self.address, clock=self._clock)

    def _nodes_of(self, group: Group) -> tuple[str, ...]:
        """Which nodes of a Cluster decide a group; one without a name as long as none is known."""
        client = self._cluster
        return ("",) if client is None else connect.nodes_of(client, _names(self.address, group))

    def _across(self, group: Group, mode: Mode) -> Sequence[Row]:
        rounds = slots.decide(group, mode, self.address.keys)
        try:
            calls = next(rounds)
            while True:
                try:
                    answers = self._side_by_side(calls)
                except StorageError as error:
                    calls = rounds.throw(error)
                else:
                    calls = rounds.send(answers)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def _side_by_side(self, calls: Sequence[slots.Call]) -> list[Sequence[Row]]:
        def work(call: slots.Call) -> Sequence[Row]:
            return script.all_rows(self._call(call[:1], call[1]))[0]

        others = [(call, self._threads.start(partial(work, call))) for call in calls[1:]]
        answers = [work(calls[0])]
        for call, replies in others:
            if replies is None:  # no thread to be had
                answers.append(work(call))
                continue
            reply = replies.get()
            if reply.error is not None:
                raise reply.error
            answers.append(reply.value)
        return answers

    def _call(self, groups: Sequence[Group], mode: Mode) -> list[list[Row] | StorageError]:
        now = None if self._clock is None else self._clock()
        arguments = script.arguments(groups, mode, self.address.keys, now)
        try:
            return script.answers(self._execute("EVALSHA", script.SHA, *arguments), len(groups))
        except connect.NoScript:  # the server was restarted, or its scripts were flushed: it has not decided yet
            return script.answers(self._execute("EVAL", script.SOURCE, *arguments), len(groups))

    def _execute(self, *command: Any, **options: Any) -> Any:
        try:
            if self.deadline is not None:
                return self._lanes.call(pack_command(command))
            if not self._free.acquire(timeout=self.address.timeout):
                raise StorageError(NO_LANE, undone=True)
            try:
                if self._cluster is None:
                    self._cluster = connect.cluster_client(self.address)
                return self._cluster.execute_command(*command, **options)
            finally:
                self._free.release()
        except (StorageError, connect.NoScript):
            raise
        except Refusal as refusal:
            if refusal.args[0].startswith("NOSCRIPT"):
                raise connect.NoScript from None
            raise connect.storage_error(refusal) from None
        except Exception as error:  # whatever redis-py lets out, a race in its own connections included
            raise connect.storage_error(error) from error


class AsyncRedisStorage:
    """The same for tasks. Each event loop has connections of its own."""

    def __init__(self, redis: Any, *, clock: Clock | None = None, **options: Any) -> None:
        self.address = _address(redis, options)
        self._clock = clock
        if self.address.kind == "cluster":
            self.nodes_of = self._nodes_of
        self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        if self.address.kind == "cluster":
            chains = slots.chains(groups, self.address.keys)
            found = await asyncio.gather(*(self._in_order([groups[i] for i in chain], mode) for chain in chains))
            rows = {
                i: rows
                for chain, answers in zip(chains, found, strict=True)
                for i, rows in zip(chain, answers, strict=True)
            }
            return [rows[i] for i in range(len(groups))]
        line = self._line()
        if line.busy:
            return script.all_rows(await line.join(groups, mode))
        line.busy = True
        try:
            return script.all_rows(await self._call(groups, mode))
        finally:
            line.busy = False
            if line.waiting:
                line.busy = True
                line.task = asyncio.create_task(self._serve(line))

    async def reset(self, group: Group) -> None:
        for name in _names(self.address, group):
            await self._execute("DEL", name)

    async def connect(self) -> None:
        """Make the first connection and load the script now, and not when the first request comes."""
        if self.address.kind == "cluster":
            await self._execute("PING", target_nodes="primaries")
        else:
            await self._execute("SCRIPT LOAD", script.SOURCE)

    async def close(self) -> None:
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.close()
            for pool in connect.pools(line.client):
                await pool.disconnect()

    def _nodes_of(self, group: Group) -> tuple[str, ...]:
        client = self._line().client
        return ("",) if client is None else connect.nodes_of(client, _names(self.address, group))

    async def _across(self, group: Group, mode: Mode) -> Sequence[Row]:
        rounds = slots.decide(group, mode, self.address.keys)
        try:
            calls = next(rounds)
            while True:
                try:
                    found = await asyncio.gather(*(self._call((part,), how) for part, how in calls))
                    answers = [script.all_rows(each)[0] for each in found]
                except StorageError as error:
                    calls = rounds.throw(error)
                else:
                    calls = rounds.send(answers)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def _in_order(self, groups: Sequence[Group], mode: Mode) -> list[Sequence[Row]]:
        return [await self._across(group, mode) for group in groups]

    async def _serve(self, line: "_Line") -> None:
        """Answer those who wait, many at a time, until nobody does."""
        try:
            while line.waiting:
                batch = line.take()
                try:
                    answers = await self._call([group for groups, _ in batch.asks for group in groups], batch.mode)
                except Exception as error:
                    batch.fail(error)
                except BaseException:  # cancelled: nobody is left waiting for an answer that will not come
                    batch.fail(StorageError("the storage was closed"))
                    raise
                else:
                    batch.answer(answers)
        finally:
            line.busy = False
            line.give_up()

    async def _call(self, groups: Sequence[Group], mode: Mode) -> list[list[Row] | StorageError]:
        now = None if self._clock is None else self._clock()
        arguments = script.arguments(groups, mode, self.address.keys, now)
        try:
            return script.answers(await self._execute("EVALSHA", script.SHA, *arguments), len(groups))
        except connect.NoScript:
            return script.answers(await self._execute("EVAL", script.SOURCE, *arguments), len(groups))

    async def _execute(self, *command: Any, **options: Any) -> Any:
        line = self._line()
        try:
            if line.client is None:
                line.client = connect.async_client(self.address)
                line.free = asyncio.Semaphore(self.address.pool)  # redis-py does not always wait for a connection
            async with line.free:
                return await line.client.execute_command(*command, **options)
        except connect.NoScript:
            raise
        except Exception as error:  # whatever redis-py lets out, a race in its own connections included
            raise connect.storage_error(error) from error

    def _line(self) -> "_Line":
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = _Line()
        return line


Answer = list[list[Row] | StorageError]
Asked = tuple[Sequence[Group], "asyncio.Future[Answer]"]


class _Batch:
    """Callers whose groups go in one call."""

    def __init__(self, asks: list[Asked], mode: Mode) -> None:
        self.asks = asks
        self.mode = mode

    def answer(self, answers: Answer) -> None:
        begin = 0
        for groups, future in self.asks:
            if not future.done():
                future.set_result(answers[begin : begin + len(groups)])
            begin += len(groups)

    def fail(self, error: Exception) -> None:
        for _, future in self.asks:
            if not future.done():
                future.set_exception(error)


class _Line:
    """What one event loop has: its client, and those who wait for the call under way to end."""

    def __init__(self) -> None:
        self.client: Any = None
        self.free: asyncio.Semaphore
        self.busy = False
        self.task: asyncio.Task[None] | None = None
        self.waiting: list[tuple[Sequence[Group], Mode, asyncio.Future[Answer]]] = []

    def join(self, groups: Sequence[Group], mode: Mode) -> "asyncio.Future[Answer]":
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.waiting.append((groups, mode, future))
        return future

    def take(self) -> _Batch:
        """The first who wait, as many as are of one mode and fit in a call. Who has gone meanwhile is left out."""
        mode, asks, size = self.waiting[0][1], [], 0
        while self.waiting and self.waiting[0][1] == mode and size < TOGETHER:
            groups, _, future = self.waiting.pop(0)
            if not future.done():
                asks.append((groups, future))
                size += len(groups)
        return _Batch(asks, mode)

    def give_up(self) -> None:
        """Who still waits when nobody serves any more is told so."""
        while self.waiting:
            self.take().fail(StorageError("the storage was closed"))

    async def close(self) -> None:
        if self.task is not None and not self.task.done():
            self.task.cancel()
        if self.client is not None:
            await self.client.aclose()
