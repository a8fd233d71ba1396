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
from ratebound.ledger.client_names import ClientNames, Way, storable
from ratebound.ledger.database import open_database
from ratebound.ledger.endpoint import EndpointNames
from ratebound.ledger.periods import Instant, Period, bucket_seconds
from ratebound.ledger.queries import (
    Order,
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
    """A listener that writes what was used to SQLite or PostgreSQL.

    It counts every decision of the limiters and gates that it listens to, and writes the counts in a thread of its own.
    Queries do not see what is not written yet: see `flush`. As a context manager it is closed at the end.

    `close`, and the end of the program, write what is left. A process that is killed loses what it has counted since
    its last flush: at most `every` seconds while the database answers. Nothing is counted twice. An outage of the
    database loses nothing as long as the process lives: up to 100 000 combinations of client, rule and endpoint wait in
    memory; the usage of further clients is then added up as "other".

    Args:
        url: The database, like `"sqlite:///usage.db"` or `"postgresql://host/database"`.
        clients: How clients are written: `"digest"` or `"name"`.
        secret: The secret of digests, which all processes share. `"digest"` needs one.
        every: The time between two flushes: seconds or a timedelta, up to an hour.
        bucket: The time that is added up: `"1 minute"`, `"5 minutes"`, `"15 minutes"`, `"1 hour"` or `"1 day"` in UTC.
        keep: The age at which buckets are removed, like `"400 days"`, at least a day. None keeps them.
        endpoints: False if all endpoints are counted together.
        writes: False for a ledger that only answers queries.

    Raises:
        ValueError: An argument cannot be read or is out of bounds.
        ModuleNotFoundError: The database needs a package that is not installed. The message says what to run.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.ledger import Ledger
        >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
        ...     limiter = Limiter("100/minute as api", listeners=[ledger])
        ...     decision = limiter.hit("user:42", cost=3)
        ...     ledger.flush()
        ...     [(usage.client, usage.units) for usage in ledger.top()]
        [('user:42', 3)]
    """

    ignores_verdicts: ClassVar[bool] = True

    def __init__(
        self,
        url: str,
        *,
        clients: Way = "digest",
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
        """Write all that was counted so far.

        Raises:
            StorageError: That is not possible now. It is tried again.
        """
        if self._writes:
            self._writer.flush()

    def forget(self, client: str) -> int:
        """Remove all usage of a client, and return how many rows that were.

        Totals of all clients together stay, and so does the audit. What other processes have counted and not written
        yet comes later, so forget again after their next flush.

        Args:
            client: A client as operators write it, like `"user:42"` or `"203.0.113.7"`; a key of a limiter as it is; or
                a digest that the ledger has told.

        Raises:
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound.ledger import Ledger
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     ledger.forget("user:42")
            0
        """
        name = self._names.asked(client)
        self.flush()
        return self._database.forget(name)

    def close(self, timeout: Duration = AT_EXIT) -> bool:
        """Write what is left, and count nothing from now on. Queries still work.

        Return True if everything was written. If not, what is lost is logged.

        Args:
            timeout: The longest time for it: seconds or a timedelta.

        Raises:
            ValueError: The timeout is negative, or no duration.

        Examples:
            >>> from ratebound.ledger import Ledger
            >>> Ledger("sqlite:///usage.db", clients="name").close(timeout=2)
            True
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
        by: Period = "day",
        since: Instant | None = None,
        until: Instant | None = None,
        rule: str | None = None,
        zone: str = "UTC",
    ) -> list[UsageInPeriod]:
        """Return what a client has used, by rule and period.

        Args:
            client: A client as operators write it, like `"user:42"` or `"203.0.113.7"`; a key of a limiter as it is; or
                a digest that the ledger has told.
            by: The period: `"day"`, `"month"`, `"hour"` or `"bucket"`.
            since: The beginning: a datetime, a date, or text like `"2026-11-16"` or `"2026-11"`. Without an offset it
                is of `zone`. None means the first entry.
            until: The end, which is not included, written like `since`. None means the last entry.
            rule: The name of the one rule to look at. None means all.
            zone: The time zone of days and months, like `"Europe/Berlin"`.

        Raises:
            ValueError: A time, a zone or another argument cannot be read.
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.ledger import Ledger
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     decision = Limiter("100/minute as api", listeners=[ledger]).hit("user:42", cost=3)
            ...     ledger.flush()
            ...     [(usage.rule, usage.units) for usage in ledger.usage("user:42", by="month")]
            [('api', 3)]
        """
        return self._answer(usage_query(self._names.asked(client), by, since, until, rule, zone))

    def totals(
        self,
        *,
        by: Period = "day",
        since: Instant | None = None,
        until: Instant | None = None,
        rule: str | None = None,
        zone: str = "UTC",
    ) -> list[UsageInPeriod]:
        """Return what all clients together have used, by rule and period.

        Args:
            by: The period: `"day"`, `"month"`, `"hour"` or `"bucket"`.
            since: The beginning: a datetime, a date, or text like `"2026-11-16"` or `"2026-11"`. Without an offset it
                is of `zone`. None means the first entry.
            until: The end, which is not included, written like `since`. None means the last entry.
            rule: The name of the one rule to look at. None means all.
            zone: The time zone of days and months, like `"Europe/Berlin"`.

        Raises:
            ValueError: A time, a zone or another argument cannot be read.
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.ledger import Ledger
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     decision = Limiter("100/minute as api", listeners=[ledger]).hit("user:42", cost=3)
            ...     ledger.flush()
            ...     [(day.rule, day.units) for day in ledger.totals(by="day", since="2020-01-01", zone="Europe/Berlin")]
            [('api', 3)]
        """
        return self._answer(totals_query(by, since, until, rule, zone))

    def top(
        self,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        by: Order = "units",
        most: int = 20,
        rule: str | None = None,
        zone: str = "UTC",
    ) -> list[ClientUsage]:
        """Return the clients that used most, by rule, the largest first.

        Args:
            since: The beginning: a datetime, a date, or text like `"2026-11-16"` or `"2026-11"`. Without an offset it
                is of `zone`. None means the first entry.
            until: The end, which is not included, written like `since`. None means the last entry.
            by: What to sort by: `"units"`, `"denied"`, `"allowed"` or `"overage"`.
            most: The most rows to return.
            rule: The name of the one rule to look at. None means all.
            zone: The time zone of days and months, like `"Europe/Berlin"`.

        Raises:
            ValueError: A time, a zone or another argument cannot be read.
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.ledger import Ledger
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     decision = Limiter("100/minute as api", listeners=[ledger]).hit("user:42", cost=3)
            ...     ledger.flush()
            ...     [(usage.client, usage.units) for usage in ledger.top(by="units", most=5)]
            [('user:42', 3)]
        """
        return self._answer(top_query(since, until, by, most, rule, zone))

    def endpoints(
        self,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        by: Order = "units",
        most: int = 20,
        client: str | None = None,
        zone: str = "UTC",
    ) -> list[EndpointUsage]:
        """Return the endpoints that were used most, of all clients or of one, the largest first.

        Args:
            since: The beginning: a datetime, a date, or text like `"2026-11-16"` or `"2026-11"`. Without an offset it
                is of `zone`. None means the first entry.
            until: The end, which is not included, written like `since`. None means the last entry.
            by: What to sort by: `"units"`, `"denied"`, `"allowed"` or `"overage"`.
            most: The most rows to return.
            client: The one client to look at, written as for `usage`. None means all.
            zone: The time zone of days and months, like `"Europe/Berlin"`.

        Raises:
            ValueError: A time, a zone or another argument cannot be read.
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.ledger import Ledger
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     decision = Limiter("100/minute as api", listeners=[ledger]).hit("user:42", cost=3)
            ...     ledger.flush()
            ...     [(usage.endpoint, usage.units) for usage in ledger.endpoints(client="user:42")]
            [('', 3)]
        """
        name = None if client is None else self._names.asked(client)
        return self._answer(endpoints_query(since, until, by, most, name, zone))

    def denials(
        self, *, since: Instant | None = None, until: Instant | None = None, zone: str = "UTC"
    ) -> list[RuleDenials]:
        """Return how often each rule allowed and denied.

        Args:
            since: The beginning: a datetime, a date, or text like `"2026-11-16"` or `"2026-11"`. Without an offset it
                is of `zone`. None means the first entry.
            until: The end, which is not included, written like `since`. None means the last entry.
            zone: The time zone of days and months, like `"Europe/Berlin"`.

        Raises:
            ValueError: A time, a zone or another argument cannot be read.
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.ledger import Ledger
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     decision = Limiter("100/minute as api", listeners=[ledger]).hit("user:42", cost=3)
            ...     ledger.flush()
            ...     ledger.denials(since="2020-01-01")
            [RuleDenials(rule='api', allowed=1, denied=0, rate=0.0)]
        """
        return self._answer(denials_query(since, until, zone))

    def overage(self, month: str, *, client: str | None = None, zone: str = "UTC") -> list[MonthlyOverage]:
        """Return who has used more than a metered quota in a month, by client and rule: for billing.

        Args:
            month: The month, like `"2026-11"`.
            client: The one client to look at, written as for `usage`. None means all.
            zone: The time zone of days and months, like `"Europe/Berlin"`.

        Raises:
            ValueError: A time, a zone or another argument cannot be read.
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.ledger import Ledger
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     decision = Limiter("100/minute as api", listeners=[ledger]).hit("user:42", cost=3)
            ...     ledger.flush()
            ...     ledger.overage("2026-11")
            []
        """
        return self._answer(overage_query(month, None if client is None else self._names.asked(client), zone))

    def months(self, *, zone: str = "UTC") -> list[str]:
        """Return the months of which the ledger knows something, the newest first.

        Args:
            zone: The time zone of days and months, like `"Europe/Berlin"`.

        Raises:
            ValueError: A time, a zone or another argument cannot be read.
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.ledger import Ledger
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     decision = Limiter("100/minute as api", listeners=[ledger]).hit("user:42", cost=3)
            ...     ledger.flush()
            ...     len(ledger.months())
            1
        """
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
        """Return changes that operators have made, the newest first.

        Args:
            since: The beginning: a datetime, a date, or text like `"2026-11-16"` or `"2026-11"`. Without an offset it
                is of `zone`. None means the first entry.
            until: The end, which is not included, written like `since`. None means the last entry.
            most: The most changes to return.
            by: The one operator to look at. None means all.
            action: The one action to look at, like `"block"`. None means all.
            target: The one client or rule to look at. None means all.
            zone: The time zone of days and months, like `"Europe/Berlin"`.

        Raises:
            ValueError: A time, a zone or another argument cannot be read.
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound.ledger import Ledger
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     gate = Gate(Policy(rules=[Rule("api", "100/minute")]), listeners=[ledger])
            ...     block = gate.block("203.0.113.7", for_="1 hour", reason="scraping", by="alice")
            ...     ledger.flush()
            ...     [(change.by, change.action) for change in ledger.audit(action="block")]
            [('alice', 'block')]
        """
        return self._answer(audit_query(since, until, most, by, action, target, zone))

    def record_changes(self, changes: Sequence[Change]) -> None:
        """Append changes of operators to the ledger, each once however often it is recorded.

        Args:
            changes: The changes, as `Gate.changes` returns them.

        Raises:
            StorageError: The database does not answer.

        Examples:
            >>> from ratebound.ledger import Ledger
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> gate = Gate(Policy(rules=[Rule("api", "100/minute")]))
            >>> block = gate.block("203.0.113.7", for_="1 hour", reason="scraping", by="alice")
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     ledger.record_changes(gate.changes())
            ...     [(change.by, change.action) for change in ledger.audit()]
            [('alice', 'block')]
        """
        self._trail.record(changes, self._database)

    def follow(self, gate: Any) -> None:
        """Copy the changes of operators from the storage of a gate, or an adapter, into the ledger with every flush.

        Changes that are made through a gate with this ledger among its listeners need none of this. Those that others
        have made, for example the command line, are read from the storage, which keeps the last 200 of each kind.

        Args:
            gate: A gate, or an adapter for a web framework.

        Examples:
            >>> from ratebound.ledger import Ledger
            >>> from ratebound.policy import Gate, Policy, Rule
            >>> with Ledger("sqlite:///usage.db", clients="name") as ledger:
            ...     ledger.follow(Gate(Policy(rules=[Rule("api", "100/minute")])))
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
            if self._finalizer is None and "multiprocessing.util" in sys.modules:  # its children end without atexit
                finalize: Any = sys.modules["multiprocessing.util"].Finalize
                self._finalizer = finalize(None, self._close_at_exit, exitpriority=0)
            self._writer.begin()
        self._is_ready = self._writer.is_running and self._trail.knows_loop()
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
