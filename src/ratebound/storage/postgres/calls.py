"""A call of a storage: a flow on a connection of the pool, again if the server undid it, until the deadline.

What fails before a COMMIT was sent is certainly undone. So a connection that was lost while it was idle is replaced by
a new one, and a deadlock is tried again, within the caller's deadline.
"""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from ratebound.errors import StorageError
from ratebound.storage.blame import TooLate
from ratebound.storage.postgres.address import PostgresAddress
from ratebound.storage.postgres.connect import Route
from ratebound.storage.postgres.failure import (
    AGAIN,
    READ_ONLY,
    LinkLate,
    LinkLost,
    ServerError,
    meaning_of,
    unreachable,
)
from ratebound.storage.postgres.migrations import newer
from ratebound.storage.postgres.pool import LinkPlace
from ratebound.storage.postgres.statements import ROLLBACK
from ratebound.storage.postgres.steps import Steps, pause
from ratebound.storage.postgres.tables import COMPONENT, VERSION
from ratebound.storage.postgres.transactions import Transactions, Work

T = TypeVar("T")
SWEEPS = 10.0  # seconds between two sweeps of a process, on average
SWEEP_DEADLINE = 5.0  # seconds
LONG_IDLE = 30.0  # seconds after which a connection is checked before it is used
PAUSE = 0.005  # seconds before a transaction is tried again
LATE = "PostgreSQL did not answer within {deadline:g} s, and nothing was charged"

log = logging.getLogger("ratebound")


class Calls:
    """The calls of a storage for one address. Threads may share it."""

    def __init__(self, address: PostgresAddress, transactions: Transactions) -> None:
        self.address = address
        self.transactions = transactions
        self._route = Route(address)
        self._checked = False  # the tables have a version that this program knows
        self._sweep_at = time.monotonic() + random.uniform(0.0, SWEEPS)
        self._has_warned = False

    def calling(self, place: LinkPlace, forget: Callable[[LinkPlace], None], work: Work[T], ends: float) -> Steps[T]:
        """Run a flow on the connection of a place, which is made if need be. Raises StorageError.

        `forget` closes all connections of the pool but that of the place: if one is lost, the others probably are, too.
        """
        turn, is_new = 0, False
        while True:
            turn += 1
            try:
                if place.link is None:
                    is_new = True
                    place.link = yield from self._route.connecting(ends)
                elif time.monotonic() - place.link.used_at > LONG_IDLE:
                    yield from self._check(place, ends)
                    continue
                place.clean = False
                if not self._checked:
                    yield from self._check_version(place, ends)
                found = yield from work(place.link, ends)
                place.clean = True
                return found
            except ServerError as error:
                if place.link is not None and not error.ends_link and error.sqlstate not in READ_ONLY:
                    self._roll_back(place)
                else:
                    place.drop()
                    forget(place)
                again = error.sqlstate in AGAIN or (
                    (error.ends_link or error.sqlstate in READ_ONLY) and (not is_new or turn < len(self.address.hosts))
                )
                if not again or time.monotonic() >= ends:
                    raise meaning_of(error, self.address.url, self.address.timeout) from error
                waits = error.sqlstate in AGAIN
            except LinkLost as error:
                place.drop()
                forget(place)
                if is_new:
                    raise unreachable(str(error), self.address.url) from error
                waits = False
            except LinkLate:
                place.drop()
                raise TooLate(LATE.format(deadline=self.address.timeout), undone=True) from None
            if waits:
                yield from pause(min(time.monotonic() + random.uniform(0.0, PAUSE * turn), ends))

    def _check(self, place: LinkPlace, ends: float) -> Steps[None]:
        """Use a connection that was idle for long, for a part of the time. One that does not answer is dropped."""
        assert place.link is not None
        place.clean = False
        now = time.monotonic()
        try:
            yield from self.transactions.version(place.link, now + (ends - now) / 4)
            place.clean, place.link.used_at = True, time.monotonic()
        except (LinkLost, LinkLate, ServerError):
            place.drop()

    def _check_version(self, place: LinkPlace, ends: float) -> Steps[None]:
        assert place.link is not None
        version = yield from self.transactions.version(place.link, ends)
        if version > VERSION:
            place.drop()
            raise StorageError(newer(COMPONENT, version, VERSION), undone=True)
        if version < VERSION:
            place.drop()
            raise StorageError(
                f"the tables of Ratebound are not there, or are old. Run: ratebound storage init {self.address.url}",
                undone=True,
            )
        self._checked = True

    def _roll_back(self, place: LinkPlace) -> None:
        """End the transaction that the server has undone, without waiting for the answer."""
        assert place.link is not None
        try:
            place.link.send_only((ROLLBACK,))
            place.clean = True
        except LinkLost:
            place.drop()

    def sweep_is_due(self) -> bool:
        """Return True if this process should sweep now. Then it should not again for a while."""
        now = time.monotonic()
        if now < self._sweep_at:
            return False
        self._sweep_at = now + random.uniform(0.5, 1.5) * SWEEPS
        return True

    def warn_of_sweep(self, error: StorageError) -> None:
        """Log that expired rows were not removed, once."""
        if not self._has_warned:
            self._has_warned = True
            log.warning("expired rows could not be removed from PostgreSQL: %s", error)
