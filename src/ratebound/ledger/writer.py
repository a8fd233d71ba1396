"""The writer of a ledger: a thread that takes what was counted and adds it to the database.

A flush that fails is kept and repeated with the same number, and the database ignores a number that it knows: so a
flush whose answer was lost is counted once. Until it succeeds, new counts stay where they are counted, which is
bounded. A clean stop writes everything. A process that is killed loses what it has counted since its last flush.
"""

import heapq
import logging
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ratebound.errors import StorageError
from ratebound.fork import renew_in_children
from ratebound.ledger.audit_trail import AuditTrail
from ratebound.ledger.database import LedgerDatabase, capped
from ratebound.ledger.usage_counts import UsageCounts
from ratebound.ledger.usage_rows import LedgerState, UsageRecord

log = logging.getLogger("ratebound")

MOST_RECORDS = 1_000  # in one transaction: the file of a ledger may hold limits, too, and these wait for it
MAINTAINED_EVERY = 3600.0  # seconds
RETRIED_AFTER = 0.1  # seconds between two attempts while the ledger closes


class LedgerWriter:
    """Writes counts to a database every `every` seconds. `records` takes what was counted, and makes records of it.

    `begin` starts the thread, `close` ends it. In a forked child it has nothing to write, and no thread.
    """

    def __init__(
        self,
        database: LedgerDatabase,
        counts: UsageCounts,
        trail: AuditTrail,
        records: Callable[[], list[UsageRecord]],
        every: float,
        keep: int | None,
    ) -> None:
        self._database = database
        self._counts = counts
        self._trail = trail
        self._records = records
        self._every = every
        self._keep = keep
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin with nothing, as another writer: in a forked child, all that was counted is the parent's to write."""
        self.is_running = False
        self._id = os.urandom(16)
        self._number = 0
        self._pending: deque[tuple[int, list[UsageRecord]]] = deque()
        self._flushing = threading.Lock()
        self._starting = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._ends = math.inf  # when the time to write is over, once the ledger closes
        self._thread: threading.Thread | None = None
        self._maintained = 0.0  # when to maintain the database next
        self._flushes = self._failures = 0
        self._error = ""
        self._counts.clear()
        self._trail.renew()
        self._database.renew()

    def begin(self) -> None:
        """Start the thread, if it does not run."""
        with self._starting:
            if self.is_running or self._stopping:
                return
            thread = threading.Thread(target=self._run, name="ratebound-ledger", daemon=True)
            with suppress(RuntimeError):  # the operating system allows no more threads: the next event tries again
                thread.start()
                self._thread, self.is_running = thread, True

    def wake(self) -> None:
        """Have everything written soon: the room for counts is half full."""
        self._wake.set()

    @property
    def state(self) -> LedgerState:
        """The state of writing."""
        waiting = sum(len(records) for _, records in list(self._pending)) + self._trail.waiting
        return LedgerState(self._flushes, self._failures, waiting + len(self._counts), self._error)

    def flush(self) -> None:
        """Write all that was counted so far. Raises StorageError; then it is written later."""
        with self._flushing:
            self._write()

    def close(self, timeout: float) -> bool:
        """End the thread and write what is left, for at most `timeout` seconds. Return True if all is written."""
        ends = time.monotonic() + timeout
        with self._starting:
            self._stopping = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        self._ends = ends
        self._database.hurry(max(ends - time.monotonic(), RETRIED_AFTER))
        while True:
            left = ends - time.monotonic()
            if self._flushing.acquire(timeout=max(left, 0.0)):
                try:
                    self._try_to_write()
                    if not self._error:
                        self._database.disconnect()
                        return True
                finally:
                    self._flushing.release()
            if time.monotonic() + RETRIED_AFTER >= ends:
                return False
            time.sleep(RETRIED_AFTER)

    def _run(self) -> None:
        pause = self._every * random.random()  # so that processes that start together do not write together
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            if self._stopping:
                return
            with self._flushing:
                self._try_to_write()
            pause = self._every

    def _try_to_write(self) -> None:
        """Write, and note how it went. Log the first of several failures, and the first success after them."""
        try:
            self._write()
        except StorageError as error:
            self._fail(str(error))
        except Exception as error:
            if not self._error:
                log.exception("writing the ledger failed")
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        self._failures += 1
        if not self._error:
            log.warning("the ledger is not written; usage waits in this process for the next attempt: %s", reason)
        self._error = reason

    def _write(self) -> None:
        self._maintain()  # first, so that there is room for what is written
        self._write_pending()  # what failed before keeps its numbers
        self._take()
        self._write_pending()
        self._trail.copy(self._database)
        if self._error:
            log.warning("the ledger is written again")
            self._error = ""

    def _write_pending(self) -> None:
        if not self._pending:
            return
        while self._pending:
            if time.monotonic() > self._ends:
                raise StorageError("there was no time left to write")
            number, records = self._pending[0]
            self._database.write(self._id, number, records)
            self._pending.popleft()
        self._flushes += 1

    def _take(self) -> None:
        """Number what was counted. Nothing is pending before. A signal handler that raises here changes nothing."""
        # In one order for all writers: two that add to the same rows never wait for each other in a circle.
        records = _sorted(self._records())
        pending: deque[tuple[int, list[UsageRecord]]] = deque()
        for place in range(0, len(records), MOST_RECORDS):
            self._number += 1
            pending.append((self._number, records[place : place + MOST_RECORDS]))
        self._pending, self._counts.taken = pending, {}  # one statement without a call: see `UsageCounts.take`

    def _maintain(self) -> None:
        """Make room and remove what is old, now and then. A failure leaves what was written as it is."""
        if self._stopping or time.monotonic() < self._maintained:
            return
        self._maintained = time.monotonic() + MAINTAINED_EVERY
        try:
            if not self._database.maintain(int(time.time()), self._keep):
                self._maintained = 0.0
        except StorageError as error:
            log.warning("the ledger could not be maintained: %s", error)


def _sorted(records: Sequence[UsageRecord]) -> list[UsageRecord]:
    """Return records in order. One call of `sorted` for all would stop every thread: 0.1 s for 100 000 records."""
    parts = (sorted(records[place : place + MOST_RECORDS]) for place in range(0, len(records), MOST_RECORDS))
    return list(heapq.merge(*parts))


def merged(records: Sequence[UsageRecord]) -> list[UsageRecord]:
    """Return records of which no two are for the same bucket, client, rule and endpoint, with capped numbers."""
    found: dict[tuple[int, str, str, str], list[int]] = {}
    for record in records:
        sums = found.setdefault(record[:4], [0, 0, 0, 0])
        for place, number in enumerate(record[4:]):
            sums[place] += number
    return [UsageRecord(*key, *map(capped, sums)) for key, sums in found.items()]
