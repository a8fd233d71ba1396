"""Which attempts of a call are retried, and when. Pure rules: no clock, no I/O.

A retry must be safe: the server must not do the same thing twice.

| what happened | retried for |
|---|---|
| 429, 529, and a refusal under another status (GitHub's 403) | every method: the server did not do it |
| 503 with a wait (Retry-After or a vendor's own field) | every method: the server refused on purpose |
| 503 without one | idempotent requests: a proxy may send it for a request that a server behind it has done |
| 502, 504, and other statuses of `statuses` | idempotent requests |
| a connection that failed before anything was sent (refused, no address) | every method |
| a connection that failed later (reset, time-out) | idempotent requests |

A request is idempotent by its method, or by an Idempotency-Key header. A server that says itself that a retry is of no
use (`Advice.should_retry`) is believed.
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from ratebound.client.backoff import LONGEST, Backoff
from ratebound.duration import Duration, as_seconds
from ratebound.http.quota import Advice

IDEMPOTENT: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
STATUSES: Final = frozenset((429, 502, 503, 504, 529))
REFUSED: Final = 429  # a refusal under a status of its own, like GitHub's 403, counts as this
UNAVAILABLE: Final = 503
OVERLOADED: Final = 529


class Failure(NamedTuple):
    """A connection error, as an adapter reports it. `kind` is a short word: "connect", "timeout", "closed"."""

    kind: str
    sent: bool = True  # False only if nothing of the request can have reached the server


class Wish(NamedTuple):
    """The result of the rules for one attempt: retry because of `reason`, unless `obstacle` is not empty.

    `reason` is empty if there is nothing to retry.
    """

    reason: str = ""
    obstacle: str = ""


FINAL: Final = Wish()


class Retry:
    """When a call is retried. It has no state, so one object can be used for any number of calls.

    | option | default | meaning |
    |---|---|---|
    | attempts | 4 | requests sent for one call, the first one included; 1 is never to retry |
    | within | 60.0 | seconds from the beginning of a call, waits included, in which attempts may begin |
    | statuses | 429, 502, 503, 504, 529 | the statuses that are retried |
    | methods | GET, HEAD, OPTIONS, TRACE, PUT, DELETE | the idempotent methods |
    | connection_errors | True | connection errors are retried |
    | backoff | Backoff("full", first=0.5, most=30.0) | waits where the server names none |
    """

    __slots__ = ("attempts", "backoff", "connection_errors", "methods", "statuses", "within")

    def __init__(
        self,
        *,
        attempts: int = 4,
        within: Duration = 60.0,
        statuses: Collection[int] = STATUSES,
        methods: Collection[str] = IDEMPOTENT,
        connection_errors: bool = True,
        backoff: Backoff | None = None,
    ) -> None:
        if type(attempts) is not int or not 1 <= attempts <= 100:
            raise ValueError(f"attempts is {attempts!r}: expected a whole number from 1 (never retry) to 100")
        wrong = [status for status in statuses if type(status) is not int or not 100 <= status <= 599]
        if isinstance(statuses, str | bytes) or wrong:
            raise ValueError(f"statuses has {wrong or statuses!r}: expected statuses of HTTP, for example (429, 503)")
        if isinstance(methods, str) or not all(isinstance(method, str) for method in methods):
            raise ValueError(f"methods is {methods!r}: expected names of methods, for example ('GET', 'PUT')")
        if backoff is not None and not isinstance(backoff, Backoff):
            raise ValueError(f"backoff is {backoff!r}: expected a Backoff, for example Backoff('full', first=0.5)")
        self.attempts: Final = attempts
        self.within: Final = float(as_seconds("within", within, most=LONGEST))
        self.statuses: Final = frozenset(statuses)
        self.methods: Final = frozenset(method.upper() for method in methods)
        self.connection_errors: Final = bool(connection_errors)
        self.backoff: Final = Backoff() if backoff is None else backoff

    def __repr__(self) -> str:
        return f"Retry(attempts={self.attempts}, within={self.within}, backoff={self.backoff})"

    def after_answer(self, status: int, advice: Advice, *, idempotent: bool) -> Wish:
        """Return whether an answer calls for a retry, and whether that is safe."""
        counts_as = REFUSED if advice.refused and status not in (UNAVAILABLE, OVERLOADED) else status
        if counts_as not in self.statuses and advice.should_retry is not True:
            return FINAL
        reason = advice.reason or str(status)
        if advice.should_retry is False:
            return Wish(reason, "server")
        refused = counts_as == REFUSED or status == OVERLOADED
        if refused or idempotent or (status == UNAVAILABLE and advice.retry_after is not None):
            return Wish(reason)
        return Wish(reason, "method")

    def after_failure(self, failure: Failure, *, idempotent: bool) -> Wish:
        """Return whether a connection error calls for a retry, and whether that is safe."""
        if not self.connection_errors:
            return FINAL
        return Wish(failure.kind, "" if idempotent or not failure.sent else "method")

    def wait(
        self, retry: int, before: float | None, server: float | None, left: float, random: Callable[[], float]
    ) -> float | None:
        """Return the seconds to wait before a retry, None if it would not end within the `left` seconds of the call.

        `retry` is 0 for the first; `before` is the wait before it, `server` the wait that the server named. The wait is
        never shorter than that one.
        """
        if server is None:
            wait = self.backoff.wait(retry, before, random)
            return wait if wait <= left else None
        return min(self.backoff.after(server, random), left) if 0 <= server <= left else None
