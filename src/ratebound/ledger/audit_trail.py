"""The audit trail: operators' changes of gates, copied into the ledger, where they stay for ever.

Changes come in two ways. A gate that the ledger listens to tells of each change that is made through it. And because
others may make changes, too, the writer asks each gate that it follows for those in its storage, which keeps the last
ones only. A change may come both ways, and from several processes: it is known by its content, and kept once.
"""

import asyncio
import inspect
import json
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from ratebound.ledger.client_names import storable
from ratebound.ledger.database import LedgerDatabase
from ratebound.ledger.queries import microseconds_at
from ratebound.policy.runtime.operator_documents import Change

log = logging.getLogger("ratebound")

PATIENCE = 2.0  # seconds for the changes of a gate for tasks
MOST_KNOWN = 10_000  # changes that are known to be in the ledger
MOST_WAITING = 10_000  # changes that wait for the ledger
AT_ONCE = 200  # changes in one transaction: the file of a ledger may hold limits, too, and these wait for it


class AuditTrail:
    """Copies the changes that it is told, and those of followed gates, into a ledger."""

    def __init__(self) -> None:
        self._gates: list[Any] = []
        self.renew()

    def renew(self) -> None:
        """Forget what a parent process has copied, and its event loop: called in a forked child."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._known: set[bytes] = set()
        self._failed = False
        self._noted: deque[Change] = deque()  # by any thread, also in a signal handler: so without a lock
        self._taken: list[Change] = []  # from there, by the writer
        self._is_full = False

    @property
    def waiting(self) -> int:
        """The number of changes that were told and are not in the ledger yet."""
        return len(self._noted) + len(self._taken)

    def note(self, change: Change) -> None:
        """Keep a change for the next flush. Beyond MOST_WAITING it is left out, which is logged."""
        if self.waiting < MOST_WAITING:
            self._noted.append(change)
        elif not self._is_full:
            self._is_full = True
            log.error("%d changes of operators wait for the ledger: further ones are not recorded there", MOST_WAITING)

    def follow(self, gate: Any) -> None:
        """Copy the changes of a gate from now on. Raises TypeError for an object without `changes`."""
        if not callable(getattr(gate, "changes", None)):
            raise TypeError(f"expected a gate, whose changes can be listed, not {gate!r}")
        self._gates.append(gate)

    def knows_loop(self) -> bool:
        """Note the running event loop, if there is one: there gates for tasks are asked. Return False if such a gate is
        followed and its loop is not known: then call this again with the next event."""
        if self._loop is None and any(map(_is_for_tasks, self._gates)):
            with suppress(RuntimeError):
                self._loop = asyncio.get_running_loop()
            return self._loop is not None
        return True

    def copy(self, database: LedgerDatabase) -> None:
        """Append what was noted, and new changes of all followed gates. Raises StorageError if the ledger cannot. A
        gate that does not answer is asked again next time."""
        while self._noted:
            self._taken.append(self._noted.popleft())
        self.record(self._taken, database)
        self._taken, self._is_full = [], False
        for gate in self._gates:
            try:
                changes = self._changes_of(gate)
            except Exception as error:  # also of a gate that is closed: usage is written whatever happens here
                if not self._failed:
                    log.warning(
                        "changes of operators could not be copied into the ledger; the next flush tries again: %s",
                        error or type(error),
                    )
                self._failed = True
            else:
                self._failed = False
                self.record(changes, database)

    def record(self, changes: Sequence[Change], database: LedgerDatabase) -> None:
        """Append changes that are not in the ledger. Raises StorageError."""
        found = {digest_of(change): change for change in map(_storable, changes)}
        new = [(digest, change) for digest, change in found.items() if digest not in self._known]
        new.sort(key=lambda one: (one[1], one[0]))
        for place in range(0, len(new), AT_ONCE):
            part = new[place : place + AT_ONCE]
            database.record(part)
            if len(self._known) >= MOST_KNOWN:
                self._known = set()
            self._known.update(digest for digest, _ in part)

    def _changes_of(self, gate: Any) -> Sequence[Change]:
        if not _is_for_tasks(gate):
            return gate.changes()  # type: ignore[no-any-return]
        loop = self._loop
        if loop is None or not loop.is_running() or _runs_here(loop):
            return []
        future = asyncio.run_coroutine_threadsafe(gate.changes(), loop)
        try:
            return future.result(PATIENCE)  # type: ignore[no-any-return]
        finally:
            future.cancel()


def digest_of(change: Change) -> bytes:
    """Return what a change is known by: the digest of its content."""
    content = [microseconds_at(change.at), *change[1:]]
    return sha256(json.dumps(content, ensure_ascii=True).encode()).digest()


def _storable(change: Change) -> Change:
    return Change(change.at, *map(storable, change[1:]))


def _is_for_tasks(gate: Any) -> bool:
    return inspect.iscoroutinefunction(gate.changes)


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
