"""A storage that always answers in time: a guard around any other storage, sync and async side by side.

It has a deadline for every call, a breaker for every node, and answers of its own for outages (fallback.py), and it
writes back the units that it granted meanwhile. Everything except the calls themselves is in guard.py.
"""

import inspect
import logging
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from queue import Empty
from typing import Any

from ratebound.clock import Clock
from ratebound.duration import Duration, as_seconds
from ratebound.errors import RateboundError, StorageError
from ratebound.events import Listener
from ratebound.late_asyncio import asyncio
from ratebound.limit import Failure, Group, Limit, Mode
from ratebound.outcome import Row
from ratebound.settling import undoing
from ratebound.storage import (
    AsyncStorage,
    Document,
    HeldSlot,
    Storage,
    async_twin_of,
    documents_of,
    holders_of,
    keeps_documents,
    refusal_of,
)
from ratebound.storage.blame import STALLED, Blameless, LoopWatch, is_programs_own
from ratebound.storage.guard.guard import HOUR, ONE_NODE, Call, Guard, NodesOf, WriteBack, check_options
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage
from ratebound.storage.threads import Job, Threads
from ratebound.storage.workers import warn_of_many_workers

DEADLINE = 0.25  # seconds, for a storage that has no deadline of its own
CLOSED = Blameless("the storage is closed", undone=True)
LEFT = "a storage call failed after its caller had gone: %s"

log = logging.getLogger("ratebound")


def _deadline(inner: Any, given: Duration | None) -> Duration:
    """Return the deadline: the given one, the storage's own, its address's timeout, or the default."""
    for found in (given, getattr(inner, "deadline", None), getattr(getattr(inner, "address", None), "timeout", None)):
        if found is not None:
            return found
    return DEADLINE


def _bounds_itself(inner: object, deadline: float) -> bool:
    own = getattr(inner, "deadline", None)
    return own is not None and own <= deadline


def _nodes_of(inner: object) -> NodesOf | None:
    return getattr(inner, "nodes_of", None)


def _nodes_of_document(inner: Any, name: str) -> tuple[str, ...]:
    """Return the nodes that keep a document, where the storage has several."""
    find = getattr(inner, "nodes_of_document", None)
    return ONE_NODE if find is None else find(name) or ONE_NODE


def _reader_of_all(inner: Any, names: Sequence[str]) -> Callable[[Sequence[str]], Any] | None:
    """Return the storage's `read_documents`; None if it has none, or if the documents are not on the same nodes."""
    if len({_nodes_of_document(inner, name) for name in names}) != 1:
        return None
    return getattr(inner, "read_documents", None)


class GuardedStorage:
    """A storage that calls `inner` and answers by the deadline, whatever happens to it.

    Limiters and gates put a guard around every storage that is not memory. A guard of your own has more options.

    Units that were granted locally, and that the storage has certainly not seen, are charged there in the background
    once it is back, unless `write_back` is False. Requests that `open` allowed are not, nor spends whose fate is
    unknown. So in one period an outage gives a key at most workers × share on top of the count already spent; then the
    storage gives the rest of its count. A spend whose fate is unknown may be granted twice.

    A storage with an attribute `deadline` (seconds) promises that its calls end by then, and is called directly; others
    are called in threads that can be abandoned. A storage with `nodes_of(group)` has a breaker for each node.

    Args:
        inner: The storage to call.
        failure: What is decided while the storage is out of reach: `"local"` counts in this process, `"open"` allows,
            `"closed"` denies, `"raise"` raises StorageError.
        deadline: The longest time that a decision may take with the storage: seconds or a timedelta. None means the
            storage's own timeout, or 0.25 seconds.
        workers: The number of processes that share the limits, for the share of each while the storage is out of reach.
            None means the server's number, or 1.
        failures: The outages in a row after which a node is no longer called.
        probe_interval: The longest time between two probes of a node that is not called: seconds or a timedelta.
        write_back: False if units that were granted during an outage are not charged in the storage afterwards.
        listeners: Functions of one event that receive every decision; see `ratebound.events`.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        TypeError: The storage is for tasks.
        ValueError: An option is out of range.

    Examples:
        >>> from ratebound import GuardedStorage, Limiter, MemoryStorage
        >>> storage = GuardedStorage(MemoryStorage(), failure="closed", deadline=0.1)
        >>> Limiter("5/minute", storage=storage).hit("user:42").allowed
        True
    """

    def __init__(
        self,
        inner: Storage,
        *,
        failure: Failure = "local",
        deadline: Duration | None = None,
        workers: int | None = None,
        failures: int = 3,
        probe_interval: Duration = 1.0,
        write_back: bool = True,
        listeners: Iterable[Listener] = (),
        clock: Clock | None = None,
    ) -> None:
        if inspect.iscoroutinefunction(inner.evaluate):
            raise TypeError(
                f"{type(inner).__name__} is an async storage and GuardedStorage needs a sync one:"
                " use AsyncGuardedStorage"
            )
        self.inner = inner
        self.guard = Guard(
            failure=failure,
            deadline=_deadline(inner, deadline),
            workers=workers,
            failures=failures,
            probe_interval=probe_interval,
            write_back=write_back,
            listeners=listeners,
            parted=hasattr(inner, "nodes_of"),
            clock=clock,
        )
        self._inline = _bounds_itself(inner, self.guard.deadline)
        self._nodes_of = _nodes_of(inner)
        self._threads = Threads()
        self._twins: weakref.WeakSet[AsyncGuardedStorage] = weakref.WeakSet()
        self._writer: threading.Thread | None = None
        self._stop = threading.Event()  # of the writer
        self._left: set[threading.Event] = set()  # calls without callers: each is set once its spend is undone

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by the deadline.

        Failures of the storage raise only if a limit's failure mode is `raise`.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.
        """
        guard = self.guard
        if not (self._inline and (ticket := guard.calm(groups, mode))):
            return self._evaluate(groups, mode)
        try:
            return self.inner.evaluate(groups, mode)
        except Exception as error:
            if _is_callers(error):
                raise
            return guard.lost(groups, mode, self._nodes_of, ticket, error)

    def evaluate_or_undo(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Do what `evaluate` does, for a waiter that takes places.

        If a signal handler raises during the call (control-C, an alarm), that exception is raised at once. The call
        continues in its own thread and gives back its spend. Handlers run in the main thread only; other threads call
        directly.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.
        """
        if threading.current_thread() is not threading.main_thread():
            return self.evaluate(groups, mode)
        handed = threading.Lock()  # taken by the call when it has an answer, or by the caller when it leaves
        ended = threading.Event()
        found: list[list[Sequence[Row]]] = []

        def call() -> None:
            try:
                if mode == "spend" and handed.locked():
                    return
                found.append(self.evaluate(groups, mode))
                if not handed.acquire(blocking=False) and mode == "spend":
                    self.evaluate(_undoing(groups, found[0]), "force")
            except BaseException as error:
                if not handed.locked():
                    raise
                log.warning(LEFT, error)
            finally:
                ended.set()
                self._left.discard(ended)

        try:
            replies = self._threads.start(call)
            error = None if replies is None else replies.get().error
        except BaseException:
            if handed.acquire(blocking=False):
                self._left.add(ended)
            elif mode == "spend":
                with suppress(Exception):  # a storage that fails now must not hide the caller's exception
                    self.evaluate(_undoing(groups, found[0]), "force")
            raise
        if error is not None:
            raise error
        return found[0] if found else self.evaluate(groups, mode)  # no thread was available

    def reset(self, group: Group) -> None:
        """Forget the states here and in the storage.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage is out of reach, in every failure mode. Then only this process has forgotten them.
        """
        self.guard.fallback.reset(group)
        self._call_or_raise(self.guard.call_for(group, self._nodes_of), partial(self.inner.reset, group))
        self.guard.fallback.forget_blocks(group)  # another thread may have seen one meanwhile

    def force_or_raise(self, group: Group) -> None:
        """Force a group in the storage.

        Args:
            group: The asks to charge, with signed costs.

        Raises:
            StorageError: The storage is out of reach, in every failure mode. The call may have reached it, unless
                `undone` of the error is True.
        """
        call = self.guard.call_for(group, self._nodes_of)
        (rows,) = self._call_or_raise(call, partial(self.inner.evaluate, (group,), "force"))
        self.guard.fallback.saw(group, "force", rows, set())

    def refusal_of(self, limit: Limit) -> str:
        """Return why the storage does not keep a limit; "" if it does.

        Args:
            limit: The limit to look at.
        """
        return refusal_of(self.inner, limit)

    @property
    def keeps_documents(self) -> bool:
        """True if the storage keeps shared documents."""
        return keeps_documents(self.inner)

    def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; see `ratebound.storage`.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage is out of reach, in every failure mode.
            TypeError: The storage keeps no shared documents.
        """
        read = documents_of(self.inner).read_document
        call = self.guard.call_on(_nodes_of_document(self.inner, name))
        found: Document = self._call_or_raise(call, partial(read, name))
        return found

    def read_documents(self, names: Sequence[str]) -> list[Document]:
        """Return what `read_document` returns for each name, in one call if the storage can do that. Raises like it.

        Args:
            names: The names of the documents.
        """
        together = _reader_of_all(self.inner, names)
        if together is None:
            return [self.read_document(name) for name in names]
        call = self.guard.call_on(_nodes_of_document(self.inner, names[0]))
        found: list[Document] = self._call_or_raise(call, partial(together, names))
        return found

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document, if `version` is the stored one; see `ratebound.storage`.

        Raises like `read_document`. Then it is unknown whether the document was written, unless `undone` of the error
        is True.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.
        """
        write = documents_of(self.inner).write_document
        call = self.guard.call_on(_nodes_of_document(self.inner, name))
        written: bool = self._call_or_raise(call, partial(write, name, content, version))
        return written

    def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return (id, expiry) of each slot of a key that is held now; see `ratebound.storage`.

        While the storage is out of reach, return the slots that this process holds.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            TypeError: The storage cannot list holders.
        """
        guard, group = self.guard, ((key, (limit,), 0, None, None),)
        ask = partial(holders_of(self.inner), key, limit)
        try:
            call = guard.call_for(group, self._nodes_of)
        except StorageError as error:
            return guard.fallback.holders(group, error)
        result = self._answer(ask)
        guard.heard(call, result if isinstance(result, StorageError) else None)
        self._write_back()
        return guard.fallback.holders(group, result) if isinstance(result, StorageError) else result

    def close(self) -> None:
        """Close the storage and end background work, as far as it does not hang.

        Storages that `async_twin` returned are closed as well, by each event loop that still runs, as soon as it can.
        """
        ends = time.monotonic() + self.guard.deadline
        for ended in list(self._left):
            ended.wait(max(ends - time.monotonic(), 0.0))
        self._threads.close()
        writer, self._writer = self._writer, None
        if writer is not None and writer is not threading.current_thread():
            writer.join(self.guard.deadline)
        stop, self._stop = self._stop, threading.Event()
        stop.set()  # otherwise the writer would open the closed storage again
        self.inner.close()
        for twin in list(self._twins):
            twin._close_from_outside()

    def listen(self, listener: Listener) -> None:
        """Add a listener, once.

        Args:
            listener: A function of one event; see `ratebound.events`.
        """
        self.guard.listen(listener)

    def async_twin(self) -> "AsyncGuardedStorage | None":
        """Return a guarded storage for tasks around the twin of `inner`, or None if that has none.

        It has the same breakers, local states and listeners, and is closed when this one is.
        """
        inner = async_twin_of(self.inner)
        if inner is None:
            return None
        twin = AsyncGuardedStorage._sharing(inner, self.guard)
        self._twins.add(twin)
        return twin

    def _evaluate(self, groups: Sequence[Group], mode: Mode) -> list[Sequence[Row]]:
        guard = self.guard
        plan = guard.plan(groups, mode, self._nodes_of)
        if len(plan.calls) == 1 or self._inline:
            for call in plan.calls:
                guard.finish(plan, call, self._answer(partial(self.inner.evaluate, call.groups, mode)))
        else:  # side by side, so that all share one deadline
            ends = time.monotonic() + guard.deadline
            jobs = [self._threads.queue(partial(self.inner.evaluate, call.groups, mode)) for call in plan.calls]
            for call, job in zip(plan.calls, jobs, strict=True):
                guard.finish(plan, call, self._reply(job, ends))
        self._write_back()
        return plan.answers

    def _call_or_raise(self, call: Call, function: Callable[[], Any]) -> Any:
        result = self._answer(function)
        self.guard.heard(call, result if isinstance(result, StorageError) else None)
        self._write_back()
        if isinstance(result, StorageError):
            raise result
        return result

    def _answer(self, function: Callable[[], Any]) -> Any:
        """Return the storage's answer to one call, or a StorageError. Raises only the caller's own mistakes."""
        if not self._inline:
            return self._reply(self._threads.queue(function), time.monotonic() + self.guard.deadline)
        try:
            return function()
        except Exception as error:
            if _is_callers(error):
                raise
            return self.guard.as_storage_error(error)

    def _reply(self, job: Job | None, ends: float) -> Any:
        if job is None:
            return StorageError("the operating system allows no more threads to call the storage", undone=True)
        try:
            value, error = job.replies.get(timeout=max(ends - time.monotonic(), 0.0))
        except Empty:
            return self._unanswered(job)
        if error is None:
            return value
        if _is_callers(error):
            raise error
        return self.guard.as_storage_error(error)

    def _unanswered(self, job: Job) -> StorageError:
        """Return the error for a job without a reply.

        It is no outage if other calls are answered and this one waited for them.
        """
        guard = self.guard
        self._threads.withdraw(job)
        if job.stuck:
            return StorageError(f"{self._threads.alive} calls to the storage are already hanging", undone=True)
        if job.began is None:
            return guard.crowded(undone=True)
        late = time.monotonic() - job.began < guard.deadline / 2
        return guard.crowded(undone=False) if late else guard.too_late()

    def _write_back(self) -> None:
        """Start a write-back in its own thread, so that no request waits for it."""
        flow = self.guard.begin_write_back(self._nodes_of)
        if flow is None:
            return
        writing = (flow, self._stop)
        writer = threading.Thread(target=self._write, args=writing, name="ratebound-write-back", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # the operating system allows no more threads: try again later
            flow.close()
        else:
            self._writer = writer

    def _write(self, flow: WriteBack | None, stop: threading.Event) -> None:
        while flow is not None:
            with closing(flow), suppress(StopIteration):
                error = None
                while True:
                    groups = flow.send(error)
                    error = CLOSED if stop.is_set() else self._forced(groups)
            flow = None if stop.is_set() else self.guard.begin_write_back(self._nodes_of)

    def _forced(self, groups: Sequence[Group]) -> StorageError | None:
        try:
            result = self._answer(partial(self.inner.evaluate, groups, "force"))
        except RateboundError as error:  # it would fail again
            return StorageError(str(error), outage=False)
        return result if isinstance(result, StorageError) else None


class AsyncGuardedStorage:
    """A GuardedStorage for tasks, in any number of event loops, one after the other or side by side.

    A storage with an attribute `loops`, the event loops in which it holds something open, can be closed from outside
    them.

    Args:
        inner: The storage to call.
        failure: What is decided while the storage is out of reach: `"local"` counts in this process, `"open"` allows,
            `"closed"` denies, `"raise"` raises StorageError.
        deadline: The longest time that a decision may take with the storage: seconds or a timedelta. None means the
            storage's own timeout, or 0.25 seconds.
        workers: The number of processes that share the limits, for the share of each while the storage is out of reach.
            None means the server's number, or 1.
        failures: The outages in a row after which a node is no longer called.
        probe_interval: The longest time between two probes of a node that is not called: seconds or a timedelta.
        write_back: False if units that were granted during an outage are not charged in the storage afterwards.
        listeners: Functions of one event that receive every decision; see `ratebound.events`.
        clock: A function that returns microseconds since 1970. Tests give a `FakeClock`. None means the system's clock.

    Raises:
        TypeError: The storage can only be called by threads.
        ValueError: An option is out of range.

    Examples:
        >>> import asyncio
        >>> from ratebound import AsyncGuardedStorage, AsyncLimiter, AsyncMemoryStorage
        >>> storage = AsyncGuardedStorage(AsyncMemoryStorage(), failure="closed", deadline=0.1)
        >>> asyncio.run(AsyncLimiter("5/minute", storage=storage).hit("user:42")).allowed
        True
    """

    def __init__(
        self,
        inner: AsyncStorage,
        *,
        failure: Failure = "local",
        deadline: Duration | None = None,
        workers: int | None = None,
        failures: int = 3,
        probe_interval: Duration = 1.0,
        write_back: bool = True,
        listeners: Iterable[Listener] = (),
        clock: Clock | None = None,
    ) -> None:
        guard = Guard(
            failure=failure,
            deadline=_deadline(inner, deadline),
            workers=workers,
            failures=failures,
            probe_interval=probe_interval,
            write_back=write_back,
            listeners=listeners,
            parted=hasattr(inner, "nodes_of"),
            clock=clock,
        )
        self._begin(inner, guard)

    @classmethod
    def _sharing(cls, inner: AsyncStorage, guard: Guard) -> "AsyncGuardedStorage":
        """Return a storage with the guard of another, instead of one made from options."""
        twin = cls.__new__(cls)
        twin._begin(inner, guard)
        return twin

    def _begin(self, inner: AsyncStorage, guard: Guard) -> None:
        if not inspect.iscoroutinefunction(inner.evaluate):
            raise TypeError(
                f"{type(inner).__name__} is a sync storage and would block the event loop: use GuardedStorage"
            )
        self.inner = inner
        self.guard = guard
        self._inline = _bounds_itself(inner, guard.deadline)
        self._nodes_of = _nodes_of(inner)
        self._writers: set[asyncio.Task[None]] = set()
        self._closers: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Any]] = set()  # of waiters: an event loop keeps only weak references to tasks

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Answer each group by the deadline.

        Failures of the storage raise only if a limit's failure mode is `raise`.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.
        """
        guard = self.guard
        if not (self._inline and (ticket := guard.calm(groups, mode))):
            return await self._evaluate(groups, mode)
        try:
            return await self.inner.evaluate(groups, mode)
        except Exception as error:
            if _is_callers(error):
                raise
            return guard.lost(groups, mode, self._nodes_of, ticket, error)

    async def evaluate_or_undo(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        """Do what `evaluate` does, for a waiter that takes places.

        If the caller is cancelled, it returns at once. The call continues in its own task and gives back its spend. A
        call that has not begun by then is not made.

        Args:
            groups: The groups of asks. Each one is decided atomically, all or nothing.
            mode: `"spend"` charges if every limit allows, `"peek"` changes nothing, `"force"` always charges a signed
                cost.
        """
        answer: asyncio.Future[list[Sequence[Row]]] = asyncio.get_running_loop().create_future()
        self._start(self._answer_or_undo(groups, mode, answer))
        try:
            return await answer
        except asyncio.CancelledError:
            # The answer may have come in the same turn of the loop: then the call has left it here.
            if not answer.cancelled() and answer.exception() is None and mode == "spend":
                undo = self._start(self.evaluate(_undoing(groups, answer.result()), "force"))
                await asyncio.wait([undo])  # in a task of its own: the caller may be cancelled again
                undo.exception()  # a storage that fails now must not hide the cancellation
            raise

    def _start(self, call: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(call, name="ratebound-wait")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    async def _answer_or_undo(
        self, groups: Sequence[Group], mode: Mode, answer: "asyncio.Future[list[Sequence[Row]]]"
    ) -> None:
        if answer.cancelled() and mode == "spend":
            return
        try:
            rows = await self.evaluate(groups, mode)
            if not answer.cancelled():
                answer.set_result(rows)
            elif mode == "spend":
                await self.evaluate(_undoing(groups, rows), "force")
        except Exception as error:
            if answer.cancelled():
                log.warning(LEFT, error)
            else:
                answer.set_exception(error)
        finally:
            answer.cancel()  # an ending event loop cancels this task: the caller must not wait for ever

    async def reset(self, group: Group) -> None:
        """Forget the states here and in the storage; see `GuardedStorage.reset`.

        Args:
            group: The asks whose keys and limits are forgotten. Their costs do not matter.

        Raises:
            StorageError: The storage is out of reach, in every failure mode. Then only this process has forgotten them.
        """
        self.guard.fallback.reset(group)
        await self._call_or_raise(self.guard.call_for(group, self._nodes_of), self.inner.reset, group)
        self.guard.fallback.forget_blocks(group)

    async def force_or_raise(self, group: Group) -> None:
        """Force a group in the storage; see `GuardedStorage.force_or_raise`.

        Args:
            group: The asks to charge, with signed costs.

        Raises:
            StorageError: The storage is out of reach, in every failure mode. The call may have reached it, unless
                `undone` of the error is True.
        """
        call = self.guard.call_for(group, self._nodes_of)
        (rows,) = await self._call_or_raise(call, self.inner.evaluate, (group,), "force")
        self.guard.fallback.saw(group, "force", rows, set())

    def refusal_of(self, limit: Limit) -> str:
        """Return why the storage does not keep a limit; "" if it does.

        Args:
            limit: The limit to look at.
        """
        return refusal_of(self.inner, limit)

    @property
    def keeps_documents(self) -> bool:
        """True if the storage keeps shared documents."""
        return keeps_documents(self.inner)

    async def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document; see `GuardedStorage.read_document`.

        Args:
            name: The name of the document.

        Raises:
            StorageError: The storage is out of reach, in every failure mode.
            TypeError: The storage keeps no shared documents.
        """
        read = documents_of(self.inner).read_document
        call = self.guard.call_on(_nodes_of_document(self.inner, name))
        found: Document = await self._call_or_raise(call, read, name)
        return found

    async def read_documents(self, names: Sequence[str]) -> list[Document]:
        """Return what `read_document` returns for each name; see `GuardedStorage.read_documents`.

        Args:
            names: The names of the documents.
        """
        together = _reader_of_all(self.inner, names)
        if together is None:
            return [await self.read_document(name) for name in names]
        call = self.guard.call_on(_nodes_of_document(self.inner, names[0]))
        found: list[Document] = await self._call_or_raise(call, together, names)
        return found

    async def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document; see `GuardedStorage.write_document`.

        Args:
            name: The name of the document.
            content: The bytes to store. They replace the document.
            version: The version that was read; 0 if there was no document.
        """
        write = documents_of(self.inner).write_document
        call = self.guard.call_on(_nodes_of_document(self.inner, name))
        written: bool = await self._call_or_raise(call, write, name, content, version)
        return written

    async def holders(self, key: str, limit: Limit) -> list[HeldSlot]:
        """Return the slots of a key that are held now; see `GuardedStorage.holders`.

        Args:
            key: The key whose slots are listed.
            limit: The concurrent limit whose slots are listed.

        Raises:
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            TypeError: The storage cannot list holders.
        """
        guard, group = self.guard, ((key, (limit,), 0, None, None),)
        ask = holders_of(self.inner)
        try:
            call = guard.call_for(group, self._nodes_of)
        except StorageError as error:
            return guard.fallback.holders(group, error)
        result = await self._answer(ask, key, limit)
        guard.heard(call, result if isinstance(result, StorageError) else None)
        self._write_back()
        return guard.fallback.holders(group, result) if isinstance(result, StorageError) else result

    async def close(self) -> None:
        """Close the storage and end this event loop's background work."""
        loop = asyncio.get_running_loop()
        calls = [call for call in self._calls if call.get_loop() is loop]
        if calls:
            _, hanging = await asyncio.wait(calls, timeout=self.guard.deadline)
            for call in hanging:
                call.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)
        writers = [writer for writer in self._writers if writer.get_loop() is loop]
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        await self.inner.close()

    def listen(self, listener: Listener) -> None:
        """Add a listener, once.

        Args:
            listener: A function of one event; see `ratebound.events`.
        """
        self.guard.listen(listener)

    def _close_from_outside(self) -> None:
        """Let every event loop that holds something open here close it. An event loop that has ended holds nothing."""
        here = None
        with suppress(RuntimeError):  # no event loop runs here
            here = asyncio.get_running_loop()
            self._close_soon(here)
        for loop in getattr(self.inner, "loops", ()):
            if loop is not here:
                with suppress(RuntimeError):  # it has ended
                    loop.call_soon_threadsafe(self._close_soon, loop)

    def _close_soon(self, loop: "asyncio.AbstractEventLoop") -> None:
        closer = loop.create_task(self.close(), name="ratebound-close")
        self._closers.add(closer)
        closer.add_done_callback(self._closers.discard)

    async def _evaluate(self, groups: Sequence[Group], mode: Mode) -> list[Sequence[Row]]:
        guard = self.guard
        plan = guard.plan(groups, mode, self._nodes_of)
        if len(plan.calls) == 1:
            guard.finish(plan, plan.calls[0], await self._answer(self.inner.evaluate, plan.calls[0].groups, mode))
        elif plan.calls:
            answers = (self._answer(self.inner.evaluate, call.groups, mode) for call in plan.calls)
            for call, result in zip(plan.calls, await asyncio.gather(*answers), strict=True):
                guard.finish(plan, call, result)
        self._write_back()
        return plan.answers

    async def _call_or_raise(self, call: Call, function: Callable[..., Any], *arguments: Any) -> Any:
        result = await self._answer(function, *arguments)
        self.guard.heard(call, result if isinstance(result, StorageError) else None)
        self._write_back()
        if isinstance(result, StorageError):
            raise result
        return result

    async def _answer(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the storage's answer to one call, or a StorageError.

        Raises the caller's own mistakes and cancellation.
        """
        timeout = asyncio.timeout(None if self._inline else self.guard.deadline)
        watch = LoopWatch(self.guard.deadline / 4)
        try:
            with watch:
                async with timeout:
                    return await function(*arguments)
        except Exception as error:
            if timeout.expired():
                return Blameless(STALLED) if watch.stalled else self.guard.too_late()
            if _is_callers(error):
                raise
            return self.guard.as_storage_error(error)

    def _write_back(self) -> None:
        flow = self.guard.begin_write_back(self._nodes_of)
        if flow is not None:
            writer = asyncio.get_running_loop().create_task(self._write(flow), name="ratebound-write-back")
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)

    async def _write(self, flow: WriteBack | None) -> None:
        while flow is not None:
            with closing(flow), suppress(StopIteration):
                error = None
                while True:
                    error = await self._forced(flow.send(error))
            flow = self.guard.begin_write_back(self._nodes_of)

    async def _forced(self, groups: Sequence[Group]) -> StorageError | None:
        try:
            result = await self._answer(self.inner.evaluate, groups, "force")
        except RateboundError as error:
            return StorageError(str(error), outage=False)
        return result if isinstance(result, StorageError) else None


def guarded(
    storage: Any,
    kind: type[GuardedStorage] | type[AsyncGuardedStorage],
    failure: Failure,
    deadline: Duration | None,
    workers: int | None,
    listeners: Iterable[Listener],
) -> Any:
    """Return the storage in a guard. Storages that are guarded already, and memory, are returned as they are.

    Raises ValueError if an option is invalid, or is given beside a guarded storage.
    """
    check_options(failure, workers)
    if deadline is not None:
        as_seconds("deadline", deadline, positive=True, most=HOUR)
    if isinstance(storage, MemoryStorage | AsyncMemoryStorage):
        warn_of_many_workers()
        (storage.memory if isinstance(storage, AsyncMemoryStorage) else storage).states.is_limiters = True
        return storage
    if not isinstance(storage, GuardedStorage | AsyncGuardedStorage):
        return kind(storage, failure=failure, deadline=deadline, workers=workers, listeners=listeners)
    if (failure, deadline, workers) != ("local", None, None):
        raise ValueError("this storage is already guarded: pass failure, deadline and workers to its guard")
    for listener in listeners:
        storage.listen(listener)
    return storage


def _undoing(groups: Sequence[Group], answers: Sequence[Sequence[Row]]) -> list[Group]:
    """Return the groups to force so that nothing of these answers stays charged."""
    return [undoing(group, rows) for group, rows in zip(groups, answers, strict=True) if all(row[0] for row in rows)]


def _is_callers(error: BaseException) -> bool:
    """Return True for a mistake of the caller, or an exception of the program itself: neither is an outage."""
    if isinstance(error, RateboundError):
        return not isinstance(error, StorageError)
    return is_programs_own(error)
