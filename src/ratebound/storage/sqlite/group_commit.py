"""Group commit: the calls of one process that wait for the database are decided together, in one transaction.

A disk writes a transaction with a hundred decisions as fast as one with a single decision, and only one process may
write at a time. So a thread that has the connection decides for all that wait by then. Each group is decided by itself,
in Python and before anything is written, so that a group that fails does not concern the others. Nothing is answered
before the commit.
"""

import random
import sqlite3
import threading
import time
from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from ratebound.clock import Clock
from ratebound.errors import StorageError
from ratebound.fork import renew_in_children
from ratebound.limit import Mode
from ratebound.outcome import Row
from ratebound.storage.blame import TooLate, is_programs_own
from ratebound.storage.sqlite.connect import SqliteFile, begin, roll_back, storage_error
from ratebound.storage.sqlite.tables import read_states, sweep, write_states
from ratebound.storage.stored_states import StateChange, StoredGroup
from ratebound.storage.threads import Threads

MOST_GROUPS = 256  # in one transaction, so that the first of them does not wait for long
SWEEP_INTERVAL = 1.0  # seconds
SWEPT = 100  # states that one sweep looks at, at least
MOST_SWEPT = 400  # and at most, so that no decision waits for long
SWEPT_FOR_EACH = 2  # states that are looked at for each new one: so dead ones never outnumber the living by much
KEPT_EXPIRED = 60_000_000  # microseconds: a clock that steps back a little must not find its states gone
# A process that has one transaction after the other leaves no time for others, which look at its lock now and then. So
# a process that has had to wait for another one lately pauses regularly.
STREAK = 0.01  # seconds of transactions without a pause
REST = 0.0004  # seconds of a pause; also the time between two transactions that is none
LATELY = 1.0  # seconds
LOOK_AGAIN = 0.02  # seconds after which a waiting thread looks for itself: the one to wake it may be interrupted
NO_THREAD = "the operating system allows no more threads to call the database"


class PendingCall:
    """Groups to decide, and their answer. `claim` is taken once: by who decides the call, or by a caller who leaves.

    `ends` is by time.monotonic(). The caller is a task that waits for `future` in `loop`, or a thread that may wait for
    `wake`.
    """

    __slots__ = ("answer", "claim", "ends", "future", "groups", "loop", "mode", "wake")

    def __init__(
        self,
        groups: Sequence[StoredGroup],
        mode: Mode,
        ends: float,
        loop: AbstractEventLoop | None = None,
        future: "Future[list[Sequence[Row]]] | None" = None,
    ) -> None:
        self.groups = groups
        self.mode = mode
        self.ends = ends
        self.loop = loop
        self.future = future
        self.wake: SimpleQueue[None] | None = None
        self.claim = threading.Lock()
        self.answer: list[Sequence[Row]] | BaseException | None = None

    def result(self) -> list[Sequence[Row]]:
        """Return the rows, or raise the error."""
        if isinstance(self.answer, BaseException):
            raise self.answer
        assert self.answer is not None
        return self.answer


class GroupCommit:
    """The one writer of a process to a file. Calls come from any thread, and from tasks."""

    def __init__(self, file: SqliteFile, clock: Clock, threads: Threads) -> None:
        self._file = file
        self._clock = clock
        self._threads = threads
        self._swept_until = b""
        self._next_sweep = 0.0
        self._new_states = 0  # since the last sweep
        self._ended = 0.0  # when the last transaction ended
        self._streak_began = 0.0
        self._contended_until = 0.0  # 0 if no other process writes
        self.renew()
        renew_in_children(self)
        file.when_free = self.wake_next

    def renew(self) -> None:
        """Forget waiting calls, also in a forked child: their callers do not exist there."""
        self._waiting: deque[PendingCall] = deque()
        self._lock = threading.Lock()  # of `_is_served`
        self._is_served = False  # True while a thread decides the calls of tasks

    def decide_alone(self, group: StoredGroup, mode: Mode, ends: float) -> list[Sequence[Row]]:
        """Decide one group, in a transaction of its own if nobody else writes now. Raises StorageError.

        The fast path of `decide`: what is not usual goes there.
        """
        file = self._file
        turn = None if self._waiting or self._contended_until else file.take_turn()
        if turn is None:
            return self.decide(PendingCall([group], mode, ends))
        connection = None
        try:
            connection = file.connection(ends)
            connection.execute("BEGIN IMMEDIATE")
            found: dict[bytes, bytes] = {}
            read_states(connection, group.names, found)
            rows, changes = group.decide(found, mode, self._clock())
            for change in changes:
                self._new_states += not found[change.name]
            write_states(connection, changes)
            self._sweep_if_due(connection)
            connection.execute("COMMIT")
            return [rows]
        except (sqlite3.Error, MemoryError):  # nothing is charged: again, step by step
            pass
        finally:
            if connection is not None and connection.in_transaction:
                roll_back(connection)
            file.give_turn_back(turn)
        return self.decide(PendingCall([group], mode, ends))

    def decide(self, call: PendingCall) -> list[Sequence[Row]]:
        """Decide a call in this thread, or wait for a thread that decides it. Raises StorageError."""
        file = self._file
        turn = file.take_turn()
        try:
            if turn is None:
                call.wake = SimpleQueue()
                self._waiting.append(call)
                while (turn := file.take_turn()) is None:
                    if self._is_answered(call):
                        return call.result()
            if call.answer is None:
                call.claim.acquire(blocking=False)
                self._decide_waiting(call, call.ends)
        except BaseException:
            self.withdraw(call)  # nobody waits for it any more
            raise
        finally:
            if turn is not None:
                file.give_turn_back(turn)
        return call.result()

    def _is_answered(self, call: PendingCall) -> bool:
        """Wait until another thread has answered a call, or has given its turn back. Raises TooLate."""
        assert call.wake is not None
        left = call.ends - time.monotonic()
        try:
            call.wake.get(timeout=min(max(left, 0.0), LOOK_AGAIN))
        except Empty:
            if left <= 0:
                error = self.late(call)
                self.wake_next()  # this thread may have been woken in vain just now
                if call.answer is None:
                    raise error from None
        return call.answer is not None

    def wake_next(self) -> None:
        """Wake a thread that waits for the turn, which is free now."""
        if not self._waiting:
            return
        for call in self._waiting.copy():
            if call.wake is not None and not call.claim.locked():
                call.wake.put(None)
                return

    def submit(self, call: PendingCall) -> None:
        """Let a thread decide a call, and resolve its future. Raises StorageError if there is no thread."""
        self._waiting.append(call)
        if not self._is_serving():
            self.withdraw(call)
            raise StorageError(NO_THREAD, undone=True)

    def _is_serving(self) -> bool:
        """Start the thread that decides the calls of tasks, unless it runs. Return False if there is no thread."""
        starts = is_started = False
        try:
            with self._lock:
                starts = not self._is_served
                self._is_served = True
            # Not `self._is_served`: the thread may have decided all calls and ended before `queue` returns.
            is_started = not starts or self._threads.queue(self._serve) is not None
        finally:
            if starts and not is_started:  # there is no thread, or a signal handler raised
                self._is_served = False
        return is_started

    def withdraw(self, call: PendingCall) -> bool:
        """Return True if a call is not decided and will not be; False if a thread is deciding it."""
        if not call.claim.acquire(blocking=False):
            return False
        with suppress(ValueError):
            self._waiting.remove(call)
        return True

    def late(self, call: PendingCall) -> StorageError:
        """Return the error for a caller who leaves at its deadline."""
        if self.withdraw(call):
            return self._file.too_late()
        address = self._file.address
        return TooLate(
            f"{address.path} was not written within {address.timeout:g} s: it is unknown whether this was decided; the"
            " disk is too slow"
        )

    def _serve(self) -> None:
        """Decide the calls of tasks until none waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_served = False
                    return
            waiting = self._waiting.copy()
            try:
                if waiting:  # else another thread has just decided them all
                    self._decide_all(waiting[-1].ends)
            except StorageError as error:
                self._fail_tasks(waiting, error)
            except Exception as error:  # this thread must go on: no other one would take its place
                path = self._file.address.path
                failure = StorageError(f"{path} could not be used ({type(error).__name__}: {error})", undone=True)
                failure.__cause__ = error
                self._fail_tasks(waiting, failure)

    def _decide_all(self, ends: float) -> None:
        turn = self._file.take_turn(ends - time.monotonic())
        if turn is None:
            raise self._file.too_late()
        try:
            self._decide_waiting(None, ends)
        finally:
            self._file.give_turn_back(turn)

    def _decide_waiting(self, own: PendingCall | None, ends: float) -> None:
        """Decide the waiting calls in one transaction, `own` among them. The caller has the turn, and claimed `own`.

        Sets the answers of all that it claimed. Raises what is no fault of a waiting call.
        """
        file, calls, is_committing = self._file, [] if own is None else [own], False
        answers: list[list[Sequence[Row]] | BaseException] = []
        connection = None
        try:
            connection = file.connection(ends)
            self._begin(connection, ends)
            self._claim_waiting(calls)  # not before: who comes while another process writes joins in
            changes: dict[bytes, StateChange] = {}
            found: dict[bytes, bytes] = {}
            for call in calls:
                answers.append(self._decided(connection, call, found, changes))
            write_states(connection, changes.values())
            self._sweep_if_due(connection)
            is_committing = True
            connection.execute("COMMIT")
            self._ended = time.monotonic()
        except BaseException as error:
            is_undone = True
            if connection is not None:
                is_driver = isinstance(error, sqlite3.Error | MemoryError)
                is_undone = not is_committing or is_driver or connection.in_transaction
                roll_back(connection)
            if not is_undone:  # interrupted just after the commit
                _give(calls, answers)
                raise
            self._recover(connection, error)
            failure = storage_error(error, file.address)
            if isinstance(failure, StorageError):
                failure.__cause__ = None if failure is error else error
                _give(calls, [failure, *(_copied(failure) for _ in calls)])
                if own is None:
                    raise failure from failure.__cause__
                return
            del failure  # it is the error itself, whose traceback would keep this frame, and so itself, alive
            self._put_back([call for call in calls if call is not own])
            raise
        try:
            _give(calls, answers)
        except BaseException:  # of a signal handler: what is committed must not be decided again
            _give(calls, answers)
            raise

    def _begin(self, connection: sqlite3.Connection, ends: float) -> None:
        now = time.monotonic()
        if now > self._contended_until:
            self._contended_until = 0.0
        if now - self._ended > REST:
            self._streak_began = now
        elif self._contended_until and now - self._streak_began > STREAK:
            time.sleep(REST)
            self._streak_began = now
        if begin(connection, self._file.address, ends):
            self._contended_until = time.monotonic() + LATELY

    def _decided(
        self,
        connection: sqlite3.Connection,
        call: PendingCall,
        found: dict[bytes, bytes],
        changes: dict[bytes, StateChange],
    ) -> list[Sequence[Row]] | BaseException:
        """Return the rows of a call, or its error. Adds what it has read and changed to `found` and `changes`."""
        answers: list[Any] = []
        error: StorageError | None = None
        for group in call.groups:
            read_states(connection, group.names, found)
            try:
                rows, changed = group.decide(found, call.mode, self._clock())
            except StorageError as own:  # a damaged state
                answers.append(own)
                error = own
                continue
            except Exception as mistake:  # of the caller
                if is_programs_own(mistake):
                    raise
                return mistake
            answers.append(rows)
            for change in changed:
                if not found[change.name]:
                    self._new_states += 1
                found[change.name] = change.data
                changes[change.name] = change
        if error is None or len(answers) == 1:
            return error or answers
        together = StorageError(str(error), undone=False, outage=False)
        together.answers = answers
        return together

    def _claim_waiting(self, calls: list[PendingCall]) -> None:
        """Add waiting calls to `calls`, as many as fit in one transaction."""
        groups = sum(len(call.groups) for call in calls)
        while self._waiting and groups < MOST_GROUPS:
            try:
                call = self._waiting.popleft()
            except IndexError:
                return
            if call.claim.acquire(blocking=False):
                calls.append(call)
                groups += len(call.groups)

    def _put_back(self, calls: Sequence[PendingCall]) -> None:
        """Let calls wait again: the program's own exception interrupted the thread that was deciding them."""
        for call in reversed(calls):
            call.claim.release()
            self._waiting.appendleft(call)
        if any(call.loop is not None for call in calls):
            self._is_serving()

    def _fail_tasks(self, waiting: Iterable[PendingCall], error: StorageError) -> None:
        """Give an error to tasks that were waiting; one about a deadline only to those whose own deadline has passed.

        Threads that wait look for themselves.
        """
        now, is_late = time.monotonic(), isinstance(error, TooLate)
        calls = [call for call in waiting if call.loop is not None and (call.ends <= now or not is_late)]
        calls = [call for call in calls if self.withdraw(call)]
        _give(calls, [_copied(error) for _ in calls])

    def _sweep_if_due(self, connection: sqlite3.Connection) -> None:
        due = SWEPT_FOR_EACH * self._new_states
        if due < SWEPT and time.monotonic() < self._next_sweep:
            return
        self._sweep(connection, min(max(due, SWEPT), MOST_SWEPT))
        self._new_states = max(due - MOST_SWEPT, 0) // SWEPT_FOR_EACH
        self._next_sweep = time.monotonic() + random.uniform(0.5, 1.5) * SWEEP_INTERVAL

    def _sweep(self, connection: sqlite3.Connection, most: int) -> None:
        self._swept_until = sweep(connection, self._swept_until, most, self._clock() - KEPT_EXPIRED)

    def _recover(self, connection: sqlite3.Connection | None, error: BaseException) -> None:
        """Do what an error calls for: close a connection that is of no more use, free room in a full database."""
        self._file.failed(error)
        if connection is None or getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
            return
        try:
            connection.execute("PRAGMA wal_checkpoint")  # the next transaction begins the log again, which cannot grow
            # Otherwise expired states would stay for as long as every call is about a new one.
            connection.execute("BEGIN IMMEDIATE")
            self._sweep(connection, MOST_SWEPT)
            connection.execute("COMMIT")
        except sqlite3.Error:
            roll_back(connection)


def _give(calls: Sequence[PendingCall], answers: Sequence[list[Sequence[Row]] | BaseException]) -> None:
    """Set the answers of calls, and wake the tasks that wait for them, each event loop once."""
    loops: dict[AbstractEventLoop, list[PendingCall]] = {}
    for call, answer in zip(calls, answers, strict=False):
        call.answer = answer
        if call.wake is not None:
            call.wake.put(None)
        if call.loop is not None:
            loops.setdefault(call.loop, []).append(call)
    for loop, waiting in loops.items():
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(resolve, waiting)


def resolve(calls: Sequence[PendingCall]) -> None:
    """Give tasks the answers of their calls. Runs in their event loop."""
    for call in calls:
        if call.future is not None and not call.future.done():
            if isinstance(call.answer, BaseException):
                call.future.set_exception(call.answer)
            else:
                call.future.set_result(call.answer or [])


def _copied(error: StorageError) -> StorageError:
    """Return an error that another caller can raise: each exception has one traceback."""
    copy = type(error)(str(error), undone=error.undone, outage=error.outage)
    copy.__cause__ = error.__cause__
    return copy
