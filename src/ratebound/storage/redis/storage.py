"""Redis as a storage, sync and async side by side. One call of the script decides, however many limits it has.

A single server, or the master of a Sentinel service, is reached through sync_connections.py and async_connections.py; a
Cluster through redis-py.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from ratebound.clock import Clock
from ratebound.errors import StorageError
from ratebound.fork import renew_in_children
from ratebound.limit import Ask, Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.storage import Document, HeldSlot
from ratebound.storage.answers import all_rows
from ratebound.storage.blame import STALLED, Blameless, LoopWatch, is_programs_own
from ratebound.storage.redis import connect, documents, hash_slots, script
from ratebound.storage.redis.address import Address, of_client, parse_url
from ratebound.storage.redis.async_connections import LoopConnections
from ratebound.storage.redis.sync_connections import NO_CONNECTION, ConnectionPool, ErrorReply, pack_command
from ratebound.storage.threads import Threads

T = TypeVar("T")


def _address(redis: Any, options: dict[str, Any]) -> Address:
    if isinstance(redis, str):
        if options:
            raise ValueError(f"{', '.join(options)}: with a URL, put options into it, after '?', like ?timeout=0.1")
        return parse_url(redis)
    if isinstance(redis, Address):
        return redis
    return of_client(redis, options)


def _names(address: Address, ask: Ask) -> list[bytes]:
    """Return the names of an ask's states, under both secrets if there are two. They share a hash slot."""
    keys, (key, limits, *_) = address.keys, ask
    subjects = [subject for subject in (keys.subject(key), keys.old_subject(key)) if subject is not None]
    return [subject + limit.scope.encode() for subject in subjects for limit in limits]


class RedisStorage:
    """A storage on Redis, Valkey, a Cluster or behind Sentinel. It connects on first use.

    Args:
        redis: A URL like `"redis://host:6379/0"`, or a client of redis-py, whose address and credentials are used.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.
        **options: The options of a URL, like `timeout=0.1`, if a client is given.

    Raises:
        ValueError: The URL or an option cannot be read.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.storage.redis.storage import RedisStorage
        >>> storage = RedisStorage("redis://localhost:6379/0?timeout=0.1")
        >>> limiter = Limiter("5/minute", storage=storage)
    """

    def __init__(self, redis: Any, *, clock: Clock | None = None, **options: Any) -> None:
        self.address = _address(redis, options)
        self._clock = clock
        self._cluster: Any = None  # the client, if this is a Cluster
        self._threads = Threads()  # for calls side by side
        self.renew()
        renew_in_children(self)
        # Every call returns by then, including the time to connect. On a Cluster the guard enforces the deadline.
        self.deadline = None if self.address.kind == "cluster" else self.address.timeout
        if self.deadline is None:
            self.nodes_of = self._nodes_of
        else:
            self._connector = connect.Connector(self.address)
            self._connections = ConnectionPool(self._connector, self.address.pool, self.deadline)
            self._wait = pack_command(self.address.wait)

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
        """
        if self.deadline is not None:
            return all_rows(self._call(groups, mode))
        rows: list[Sequence[Row]] = []
        for group in groups:
            try:
                rows.append(self._across(group, mode))
            except StorageError as error:
                error.undone = error.undone and not rows  # the groups before it are decided
                raise
        return rows

    def renew(self) -> None:
        """Replace locks, also in a forked child: the threads that may have held them do not exist there."""
        self._making = threading.Lock()  # while the client of a Cluster is made
        self._free = threading.BoundedSemaphore(self.address.pool)  # redis-py does not wait for a connection there

    def reset(self, group: Group) -> None:
        """Delete the states of each ask's key and limits.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        for ask in group:
            self._execute("DEL", *_names(self.address, ask))

    def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return (id, expiry) of each slot of a key that is held now, the earliest expiry first.

        Expiries are in microseconds of the server's clock.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer.
        """
        now = None if self._clock is None else self._clock()
        arguments = script.holders_arguments(key, limit, self.address.keys, now)
        reply = self._run(arguments, monotonic())
        try:
            return script.holders(reply)
        except script.NotOurs:
            self._forget()
            raise

    def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; (0, b"") if there is none.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage could not answer.
        """
        reply = self._execute("GET", documents.document_key(self.address.keys, name))
        return self._trusted(documents.document_in, reply)

    def read_documents(self, names: Sequence[str]) -> list[Document]:
        """Return what `read_document` returns for each name: in one trip, unless this is a Cluster.

        Args:
            names: The names of the documents.
        """
        if self.deadline is None:
            return [self.read_document(name) for name in names]
        reply = self._execute("MGET", *(documents.document_key(self.address.keys, name) for name in names))
        return self._trusted(partial(documents.documents_in, count=len(names)), reply)

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document as `version` + 1, if `version` is the stored one. Return False if it is not.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.

        Raises:
            StorageError: The storage could not answer. It is unknown whether the document was written, unless `undone`
                of the error is True.
        """
        waits = self.address.replicas > 0
        reply = self._execute(*documents.write_command(self.address.keys, name, content, version), waits=waits)
        if waits:
            reply, replicas = reply
            script.check_replicas(replicas, self.address.replicas)
        return self._trusted(documents.is_written, reply)

    def nodes_of_document(self, name: str) -> tuple[str, ...]:
        """Return the node of a Cluster that keeps a shared document; one without a name if none is known yet.

        Args:
            name: The name of the document.
        """
        client = self._cluster
        return ("",) if client is None else connect.nodes_of(client, [documents.document_key(self.address.keys, name)])

    def _trusted(self, read: Callable[[Any], T], reply: Any) -> T:
        """Return what a reply says. One that is not ours closes the connections."""
        try:
            return read(reply)
        except script.NotOurs:
            self._forget()
            raise

    def connect(self) -> None:
        """Make the first connection and load the script now, instead of with the first request.

        Raises:
            StorageError: The storage could not answer.
        """
        if self.deadline is None:
            self._execute("PING", target_nodes="primaries")
        else:
            self._execute("SCRIPT", "LOAD", script.SOURCE)
            if self.address.replicas:
                script.check_replicas(self._execute(*self.address.wait), self.address.replicas)

    def close(self) -> None:
        """Close all connections. The next call opens them again."""
        if self.deadline is not None:
            self._connections.forget()
            self._connector.close()
        client, self._cluster = self._cluster, None
        if client is not None:
            client.close()
        self._threads.close()

    def async_twin(self) -> "AsyncRedisStorage":
        """Return a storage for tasks with the same states."""
        return AsyncRedisStorage(self.address, clock=self._clock)

    def _nodes_of(self, group: Group) -> tuple[str, ...]:
        """Return the nodes of a Cluster that decide a group; one without a name if none is known yet."""
        client = self._cluster
        return ("",) if client is None else connect.nodes_of(client, [_names(self.address, ask)[0] for ask in group])

    def _across(self, group: Group, mode: Mode) -> Sequence[Row]:
        rounds = hash_slots.decide(group, mode, self.address.keys)
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

    def _side_by_side(self, calls: Sequence[hash_slots.Call]) -> list[Sequence[Row]]:
        def work(call: hash_slots.Call) -> Sequence[Row]:
            return all_rows(self._call(call[:1], call[1]))[0]

        others = [(call, self._threads.start(partial(work, call))) for call in calls[1:]]
        answers = [work(calls[0])]
        for call, replies in others:
            if replies is None:  # no thread was available
                answers.append(work(call))
                continue
            reply = replies.get()
            if reply.error is not None:
                raise reply.error
            answers.append(reply.value)
        return answers

    def _call(
        self, groups: Sequence[Group], mode: Mode, at: int | None = None, until: float | None = None
    ) -> list[script.Found]:
        """Decide groups in one call. `at` is the server's time, if its clock was outside of the windows sent before."""
        now = None if self._clock is None else self._clock()
        arguments = script.arguments(groups, mode, self.address.keys, now, at)
        begin = monotonic()
        waits = self.address.replicas > 0 and mode != "peek"
        reply = self._run(arguments, begin, until, waits)
        replicas = None
        if waits:
            reply, replicas = reply
        try:
            found = script.answers(reply, groups)
        except script.NotOurs:
            self._forget()
            raise
        if isinstance(found, script.OutsideWindows):
            again: list[script.Found] | StorageError
            try:
                ends = begin + self.address.timeout
                again = found.refusal() if at is not None else self._call(found.undecided, mode, found.now, ends)
            except StorageError as error:
                again = error
            found = found.completed(again)
        return found if replicas is None else script.known_to_replicas(found, mode, replicas, self.address.replicas)

    def _run(self, arguments: list[Any], begin: float, until: float | None = None, waits: bool = False) -> Any:
        """Return the answer of the script by the deadline: `until`, or the timeout after `begin`."""
        try:
            return self._execute("EVALSHA", script.SHA, *arguments, until=until, waits=waits)
        except connect.NoScript:  # the server restarted, or its scripts were flushed: nothing is decided yet
            until = until or begin + self.address.timeout
            return self._execute("EVAL", script.SOURCE, *arguments, until=until, waits=waits)

    def _forget(self) -> None:
        """Close the connections: after a reply that is not ours, the next one may be wrong as well."""
        if self.deadline is not None:
            self._connections.forget()

    def _execute(self, *command: Any, until: float | None = None, waits: bool = False, **options: Any) -> Any:
        """Return the answer to a command. With `waits` return (answer, number of replicas that have its writes)."""
        if self.deadline is not None:
            try:
                if waits:
                    return self._connections.call(pack_command(command) + self._wait, until, two=True)
                return self._connections.call(pack_command(command), until)
            except ErrorReply as error:
                raise _told(error) from error
        try:
            free = self._free
            if not free.acquire(timeout=self.address.timeout):
                raise StorageError(NO_CONNECTION, undone=True, outage=False)
            try:
                with self._making:
                    if self._cluster is None:
                        self._cluster = connect.cluster_client(self.address)
                    client = self._cluster
                if waits:
                    return connect.call_and_wait(client, command, self.address.wait)
                return client.execute_command(*command, **options)
            finally:
                free.release()
        except (StorageError, connect.NoScript):
            raise
        except Exception as error:
            if is_programs_own(error):
                raise
            raise _told(error) from error


class AsyncRedisStorage:
    """A RedisStorage for tasks. Each event loop has its own connection, which its tasks share without waiting.

    Args:
        redis: A URL like `"redis://host:6379/0"`, or a client of redis-py, whose address and credentials are used.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.
        **options: The options of a URL, like `timeout=0.1`, if a client is given.

    Raises:
        ValueError: The URL or an option cannot be read.

    Examples:
        >>> from ratebound import AsyncLimiter
        >>> from ratebound.storage.redis.storage import AsyncRedisStorage
        >>> limiter = AsyncLimiter("5/minute", storage=AsyncRedisStorage("redis://localhost:6379/0"))
    """

    def __init__(self, redis: Any, *, clock: Clock | None = None, **options: Any) -> None:
        self.address = _address(redis, options)
        self._clock = clock
        self.deadline = None if self.address.kind == "cluster" else self.address.timeout
        if self.deadline is None:
            self.nodes_of = self._nodes_of
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Decide each group atomically, in order.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.

        Raises:
            StorageError: The storage could not answer.
        """
        if self.deadline is not None:
            return all_rows(await self._call(groups, mode))
        chains = hash_slots.chains(groups, self.address.keys)
        try:
            found = await asyncio.gather(*(self._in_order([groups[i] for i in chain], mode) for chain in chains))
        except StorageError as error:
            error.undone = error.undone and len(groups) == 1  # the other groups may be decided
            raise
        rows = {
            i: rows
            for chain, answers in zip(chains, found, strict=True)
            for i, rows in zip(chain, answers, strict=True)
        }
        return [rows[i] for i in range(len(groups))]

    async def reset(self, group: Group) -> None:
        """Delete the states of each ask's key and limits.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage could not answer.
        """
        for ask in group:
            await self._execute("DEL", *_names(self.address, ask))

    async def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return the slots of a key that are held now; see `RedisStorage.holders`.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer.
        """
        now = None if self._clock is None else self._clock()
        arguments = script.holders_arguments(key, limit, self.address.keys, now)
        reply = await self._run(arguments, asyncio.get_running_loop().time() + self.address.timeout)
        try:
            return script.holders(reply)
        except script.NotOurs as error:
            self._loop().forget(error)
            raise

    async def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; see `RedisStorage.read_document`.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage could not answer.
        """
        reply = await self._execute("GET", documents.document_key(self.address.keys, name))
        return self._trusted(documents.document_in, reply)

    async def read_documents(self, names: Sequence[str]) -> list[Document]:
        """Return what `read_document` returns for each name; see `RedisStorage.read_documents`.

        Args:
            names: The names of the documents.
        """
        if self.deadline is None:
            return [await self.read_document(name) for name in names]
        reply = await self._execute("MGET", *(documents.document_key(self.address.keys, name) for name in names))
        return self._trusted(partial(documents.documents_in, count=len(names)), reply)

    async def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document; see `RedisStorage.write_document`.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.

        Raises:
            StorageError: The storage could not answer. It is unknown whether the document was written, unless `undone`
                of the error is True.
        """
        waits = self.address.replicas > 0
        reply = await self._execute(*documents.write_command(self.address.keys, name, content, version), waits=waits)
        if waits:
            reply, replicas = reply
            script.check_replicas(replicas, self.address.replicas)
        return self._trusted(documents.is_written, reply)

    def nodes_of_document(self, name: str) -> tuple[str, ...]:
        """Return the node of a Cluster that keeps a shared document; see `RedisStorage.nodes_of_document`.

        Args:
            name: The name of the document.
        """
        client = self._loop().cluster
        return ("",) if client is None else connect.nodes_of(client, [documents.document_key(self.address.keys, name)])

    def _trusted(self, read: Callable[[Any], T], reply: Any) -> T:
        try:
            return read(reply)
        except script.NotOurs as error:
            self._loop().forget(error)
            raise

    async def connect(self) -> None:
        """Make the connection and load the script now, instead of with the first request.

        Raises:
            StorageError: The storage could not answer.
        """
        if self.deadline is None:
            await self._execute("PING", target_nodes="primaries")
        else:
            await self._execute("SCRIPT", "LOAD", script.SOURCE)
            if self.address.replicas:
                script.check_replicas(await self._execute(*self.address.wait), self.address.replicas)

    async def close(self) -> None:
        """Close the connections of the running event loop. Its next call opens them again."""
        loop = self._loops.pop(asyncio.get_running_loop(), None)
        if loop is not None:
            await loop.close()

    @property
    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """The event loops that hold connections open."""
        return list(self._loops)

    def _nodes_of(self, group: Group) -> tuple[str, ...]:
        client = self._loop().cluster
        return ("",) if client is None else connect.nodes_of(client, [_names(self.address, ask)[0] for ask in group])

    async def _across(self, group: Group, mode: Mode) -> Sequence[Row]:
        """Run all rounds of a group that spans hash slots.

        They go on if the caller is cancelled: the group must not stay half charged.
        """
        if hash_slots.is_one(group, self.address.keys):
            return all_rows(await self._call((group,), mode))[0]
        tasks = self._loop().tasks
        task = asyncio.get_running_loop().create_task(self._rounds(group, mode), name="ratebound-rounds")
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark it as retrieved
            raise

    async def _rounds(self, group: Group, mode: Mode) -> Sequence[Row]:
        rounds = hash_slots.decide(group, mode, self.address.keys)
        try:
            calls = next(rounds)
            while True:
                try:
                    found = await asyncio.gather(*(self._call((part,), how) for part, how in calls))
                    answers = [all_rows(each)[0] for each in found]
                except StorageError as error:
                    calls = rounds.throw(error)
                else:
                    calls = rounds.send(answers)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def _in_order(self, groups: Sequence[Group], mode: Mode) -> list[Sequence[Row]]:
        return [await self._across(group, mode) for group in groups]

    async def _call(
        self, groups: Sequence[Group], mode: Mode, at: int | None = None, due: float | None = None
    ) -> list[script.Found]:
        """Decide groups in one call; see `RedisStorage._call`."""
        now = None if self._clock is None else self._clock()
        arguments = script.arguments(groups, mode, self.address.keys, now, at)
        due = due or asyncio.get_running_loop().time() + self.address.timeout
        waits = self.address.replicas > 0 and mode != "peek"
        reply = await self._run(arguments, due, waits)
        replicas = None
        if waits:
            reply, replicas = reply
        try:
            found = script.answers(reply, groups)
        except script.NotOurs as error:
            self._loop().forget(error)
            raise
        if isinstance(found, script.OutsideWindows):
            again: list[script.Found] | StorageError
            try:
                again = found.refusal() if at is not None else await self._call(found.undecided, mode, found.now, due)
            except StorageError as error:
                again = error
            found = found.completed(again)
        return found if replicas is None else script.known_to_replicas(found, mode, replicas, self.address.replicas)

    async def _run(self, arguments: list[Any], due: float, waits: bool = False) -> Any:
        """Return the answer of the script."""
        try:
            return await self._execute("EVALSHA", script.SHA, *arguments, due=due, waits=waits)
        except connect.NoScript:
            return await self._execute("EVAL", script.SOURCE, *arguments, due=due, waits=waits)

    async def _execute(self, *command: Any, due: float | None = None, waits: bool = False, **options: Any) -> Any:
        loop = self._loop()
        try:
            if loop.connections is not None:
                due = due or asyncio.get_running_loop().time() + self.address.timeout
                return await loop.connections.call(pack_command(command), due, waits=waits)
            # redis-py's own timeout would close the connections of all callers to all nodes.
            watch = LoopWatch(self.address.timeout / 4)
            try:
                with watch:
                    async with asyncio.timeout(self.address.timeout), loop.free:
                        client = await loop.known_cluster()
                        if waits:
                            return await connect.call_and_wait_async(client, command, self.address.wait)
                        return await client.execute_command(*command, **options)
            except TimeoutError:
                if watch.stalled:
                    raise Blameless(STALLED) from None
                raise
        except (StorageError, connect.NoScript):
            raise
        except Exception as error:
            if is_programs_own(error):
                raise
            raise _told(error) from error

    def _loop(self) -> "_Loop":
        running = asyncio.get_running_loop()
        loop = self._loops.get(running)
        if loop is None:
            for old in list(self._loops):
                if old.is_closed():  # it ended without closing the storage
                    self._loops.pop(old, None)  # another thread may have done so just now
            loop = self._loops[running] = _Loop(self.address)
        return loop


class _Loop:
    """The connection of one event loop, or its client of a Cluster."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.cluster: Any = None
        self.looking: asyncio.Task[Any] | None = None  # for the nodes of a Cluster
        self.tasks: set[asyncio.Task[Sequence[Row]]] = set()  # of groups on a Cluster: loops keep weak references only
        self.free = asyncio.Semaphore(address.pool)  # redis-py does not wait for a connection to a node of a Cluster
        self.connections: LoopConnections | None = None
        if address.kind != "cluster":
            self.connector = connect.AsyncConnector(address)
            self.connections = LoopConnections(self.connector, pack_command(address.wait))

    async def known_cluster(self) -> Any:
        """Return the client once it knows the nodes.

        Looking for them runs in its own task; cancelling a caller does not end it.
        """
        if self.cluster is None:
            self.cluster = connect.async_cluster_client(self.address)
        if self.looking is None or (self.looking.done() and (self.looking.cancelled() or self.looking.exception())):
            self.looking = asyncio.get_running_loop().create_task(self.cluster.initialize(), name="ratebound-connect")
            self.looking.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark it as retrieved
        if not self.looking.done():
            await asyncio.shield(self.looking)
        return self.cluster

    def forget(self, error: StorageError) -> None:
        """Close the connection because of an error."""
        if self.connections is not None:
            self.connections.forget(str(error))

    async def close(self) -> None:
        """Close all connections and stop all tasks."""
        if self.connections is not None:
            await self.connections.close()
            await self.connector.close()
        tasks = {*self.tasks, *([] if self.looking is None else [self.looking])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.cluster is not None:
            await self.cluster.aclose()


def _told(error: Exception) -> Exception:
    """Return the exception to raise for one of redis-py, a connection or the server.

    redis-py's own races raise other types than its own, so every Exception becomes a StorageError.
    """
    if isinstance(error, ErrorReply) and error.args[0].startswith("NOSCRIPT"):
        return connect.NoScript()
    return connect.storage_error(error)
