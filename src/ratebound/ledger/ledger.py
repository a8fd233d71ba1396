"""The usage ledger: what clients have used, written in batches off the request path, and the queries about it."""

import atexit
import logging
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, Self, TypeVar

from ratebound.clock import SECOND
from ratebound.duration import Duration, as_seconds
from ratebound.fork import renew_in_children
from ratebound.ledger.audit_trail import AuditTrail
from ratebound.ledger.client_names import ClientNames, storable
from ratebound.ledger.database import open_database
from ratebound.ledger.endpoint import EndpointNames
from ratebound.ledger.periods import Instant, bucket_seconds
from ratebound.ledger.queries import (
    Query,
    audit_query,
    denials_query,
    endpoints_query,
    months_query,
    overage_query,
    top_query,
    totals_query,
    usage_query,
)
from ratebound.ledger.usage_counts import OTHER, UsageCounts
from ratebound.ledger.usage_rows import (
    ClientUsage,
    EndpointUsage,
    LedgerState,
    MonthlyOverage,
    RuleDenials,
    UsageInPeriod,
    UsageRecord,
)
from ratebound.ledger.writer import LedgerWriter, merged
from ratebound.policy.duration_text import read_seconds
from ratebound.policy.runtime.operator_documents import Change

log = logging.getLogger("ratebound")

T = TypeVar("T")
AT_EXIT = 5.0  # seconds to write what is left when the program ends
LONGEST = 400  # bytes of the name of a rule or an endpoint
LONGEST_EVERY = 3600.0  # seconds between two flushes


class Ledger:
    """A listener that writes what was used to SQLite or PostgreSQL: `Limiter("100/minute", listeners=[ledger])`.

    It counts every decision of the limiters and gates that it listens to, and writes the counts every `every` seconds
    in a thread of its own. It adds them up in buckets of time: '1 minute', '5 minutes', '15 minutes', '1 hour' or '1
    day' in UTC. Buckets older than `keep`, for example '400 days', are removed. `clients` is "digest" or "name": how
    clients are written. Digests need a `secret`, which all processes share. With `endpoints=False` all endpoints are
    counted together. A ledger with `writes=False` only answers queries.

    `close`, and the end of the program, write what is left. A process that is killed loses what it has counted since
    its last flush: at most `every` seconds while the database answers. Nothing is counted twice. An outage of the
    database loses nothing as long as the process lives: up to 100 000 combinations of client, rule and endpoint wait in
    memory; the usage of further clients is then added up as "other".

    Queries raise StorageError if the database does not answer. They do not see what is not written yet: see `flush`.
    """

    ignores_verdicts: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        *,
        clients: str = "digest",
        secret: str | bytes | None = None,
        every: Duration = 5.0,
        bucket: str = "1 hour",
        keep: str | Duration | None = None,
        endpoints: bool = True,
        writes: bool = True,
    ) -> None:
        self._names = ClientNames(clients, secret)
        self._bucket = bucket_seconds(bucket)
        seconds = as_seconds("every", every, positive=True, most=LONGEST_EVERY)
        self._database = open_database(url)
        self._writes = writes
        self._is_closed = False
        self._trail = AuditTrail()
        self._counts = UsageCounts(
            self._bucket * SECOND, EndpointNames() if endpoints else None, self._wake, on_change=self._trail.note
        )
        self._writer = LedgerWriter(
            self._database, self._counts, self._trail, self._records, seconds, _kept_seconds(keep)
        )
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start a writer with the next event: there is none yet, or it is the parent's in a forked child."""
        self._is_ready = False
        self._finalizer: Any = None

    def __call__(self, event: Any) -> None:
        if self._is_ready or self._begin():
            self._counts(event)

    def flush(self) -> None:
        """Write all that was counted so far. Raises StorageError if that is not possible now: it is tried again."""
        if self._writes:
            self._writer.flush()

    def forget(self, client: str) -> int:
        """Remove all usage of a client, written as for `usage`, and return how many rows that were.

        Totals of all clients together stay, and so does the audit. What other processes have counted and not written
        yet comes later, so forget again after their next flush. Raises StorageError.
        """
        name = self._names.asked(client)
        self.flush()
        return self._database.forget(name)

    def close(self, timeout: Duration = AT_EXIT) -> bool:
        """Write what is left, for at most `timeout` seconds, and count nothing from now on. Queries still work.

        Return True if everything was written. If not, what is lost is logged.
        """
        seconds = as_seconds("timeout", timeout)
        if self._is_closed:
            return True
        self._is_closed = True
        self._is_ready = False
        atexit.unregister(self._close_at_exit)
        if self._finalizer is not None:
            self._finalizer.cancel()
        if not self._writes:
            self._database.disconnect()
            return True
        is_done = self._writer.close(seconds)
        if not is_done:
            state = self._writer.state
            reason = state.error or "its database has not answered in time"
            log.error("the ledger could not be written, and %d entries are lost: %s", state.pending, reason)
        return is_done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def keeps_names(self) -> bool:
        """True if clients are written by name, and not as digests."""
        return self._names.is_clear

    @property
    def state(self) -> LedgerState:
        """The state of writing in this process."""
        return self._writer.state

    def usage(
        self,
        client: str,
        *,
        by: str = "day",
        since: Instant | None = None,
        until: Instant | None = None,
        rule: str | None = None,
        zone: str = "UTC",
    ) -> list[UsageInPeriod]:
        """Return what a client has used, by rule and by "day", "month", "hour" or "bucket" of a time zone.

        `client` is written as operators do: "user:42", "203.0.113.7"; a key of a limiter as it is; or a digest that the
        ledger has told. `since` and `until`, which is not included, are a datetime, a date, or text like "2026-11-16"
        or "2026-11". Without an offset they are of `zone`. Raises ValueError for what cannot be read.
        """
        return self._answer(usage_query(self._names.asked(client), by, since, until, rule, zone))

    def totals(
        self,
        *,
        by: str = "day",
        since: Instant | None = None,
        until: Instant | None = None,
        rule: str | None = None,
        zone: str = "UTC",
    ) -> list[UsageInPeriod]:
        """Return what all clients together have used, by rule and period; see `usage`."""
        return self._answer(totals_query(by, since, until, rule, zone))

    def top(
        self,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        by: str = "units",
        most: int = 20,
        rule: str | None = None,
        zone: str = "UTC",
    ) -> list[ClientUsage]:
        """Return the clients with the most "units", "denied", "allowed" or "overage", by rule, the largest first."""
        return self._answer(top_query(since, until, by, most, rule, zone))

    def endpoints(
        self,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        by: str = "units",
        most: int = 20,
        client: str | None = None,
        zone: str = "UTC",
    ) -> list[EndpointUsage]:
        """Return the endpoints with the most of something, of all clients or of one; see `top`."""
        name = None if client is None else self._names.asked(client)
        return self._answer(endpoints_query(since, until, by, most, name, zone))

    def denials(
        self, *, since: Instant | None = None, until: Instant | None = None, zone: str = "UTC"
    ) -> list[RuleDenials]:
        """Return how often each rule allowed and denied."""
        return self._answer(denials_query(since, until, zone))

    def overage(self, month: str, *, client: str | None = None, zone: str = "UTC") -> list[MonthlyOverage]:
        """Return who has used more than a metered quota in a month like "2026-11", by client and rule: for billing."""
        return self._answer(overage_query(month, None if client is None else self._names.asked(client), zone))

    def months(self, *, zone: str = "UTC") -> list[str]:
        """Return the months of which the ledger knows something, the newest first."""
        return self._answer(months_query(zone))

    def audit(
        self,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        most: int = 200,
        by: str | None = None,
        action: str | None = None,
        target: str | None = None,
        zone: str = "UTC",
    ) -> list[Change]:
        """Return changes that operators have made, the newest first."""
        return self._answer(audit_query(since, until, most, by, action, target, zone))

    def record_changes(self, changes: Sequence[Change]) -> None:
        """Append changes of operators to the ledger, each once however often it is recorded. Raises StorageError."""
        self._trail.record(changes, self._database)

    def follow(self, gate: Any) -> None:
        """Copy the changes of operators from the storage of a gate, or an adapter, into the ledger with every flush.

        Changes that are made through a gate with this ledger among its listeners need none of this. Those that others
        have made, for example the command line, are read from the storage, which keeps the last 200 of each kind.
        """
        self._trail.follow(gate)
        self._is_ready = False  # the next event may tell the event loop of the gate
        self._begin()

    def _answer(self, query: Query[T]) -> T:
        try:
            statement, parameters = next(query)
            query.send(self._database.select(statement, parameters))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        raise AssertionError("a query asks once")

    def _begin(self) -> bool:
        """Start writing in this process. Return False if nothing is to be counted."""
        if self._is_closed:
            return False
        if not self._writes:
            raise RuntimeError("this ledger is for reading: make one with writes=True to listen")
        if not self._writer.is_running:
            atexit.unregister(self._close_at_exit)  # a forked child has its parent's
            atexit.register(self._close_at_exit)
            if "multiprocessing.util" in sys.modules:  # its children end without atexit
                finalize: Any = sys.modules["multiprocessing.util"].Finalize
                self._finalizer = finalize(None, self._close_at_exit, exitpriority=0)
            self._writer.begin()
        self._is_ready = self._trail.knows_loop()
        return True

    def _close_at_exit(self) -> None:
        self.close()

    def _wake(self) -> None:
        self._writer.wake()

    def _records(self) -> list[UsageRecord]:
        """Take what was counted, with the names of clients."""
        names: dict[str, str] = {OTHER: OTHER}
        found: list[UsageRecord] = []
        for number, key, rule, endpoint, units, allowed, denied, overage in self._counts.take():
            client = names.get(key)
            if client is None:
                client = names[key] = self._names.under(key)
            names_of_place = storable(rule, LONGEST), storable(endpoint, LONGEST)
            found.append(UsageRecord(number * self._bucket, client, *names_of_place, units, allowed, denied, overage))
        return merged(found)


def _kept_seconds(keep: str | timedelta | float | None) -> int | None:
    if keep is None:
        return None
    try:
        seconds = read_seconds(keep)
    except ValueError:
        seconds = 0.0
    if seconds < 86_400:
        raise ValueError(f"cannot keep usage for {keep!r}: expected at least a day, for example '400 days'")
    return int(seconds)
