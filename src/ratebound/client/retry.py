"""Which attempts of a call are retried, and when. Pure rules: no clock, no I/O.

A retry must be safe: the server must not do the same thing twice.

| what happened | retried for |
|---|---|
| 429, 529, and a refusal under another status (GitHub's 403) | every method: the server did not do it |
| 503 with a wait (Retry-After or a vendor's own field) | every method: the server refused on purpose |
| 503 without one | idempotent requests: a proxy may send it for a request that a server behind it has done |
| 502, 504, and other statuses of `statuses` | idempotent requests |
| a connection that failed before anything was sent (refused, no address) | every method |
| a connection that failed later (reset, timeout) | idempotent requests |

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

    Args:
        attempts: The requests sent for one call, the first one included, up to 100; 1 is never to retry.
        within: The time from the beginning of a call, waits included, in which attempts may begin: seconds or a
            timedelta, up to a day.
        statuses: The statuses that are retried: 429, 502, 503, 504 and 529 by default.
        methods: The idempotent methods: GET, HEAD, OPTIONS, TRACE, PUT and DELETE by default.
        connection_errors: False if connection errors are not retried.
        backoff: The waits where the server names none. None means `Backoff("full", first=0.5, most=30.0)`.

    Raises:
        ValueError: An option is out of bounds.

    Examples:
        >>> import httpx
        >>> from ratebound.client import Backoff, Retry
        >>> from ratebound.client.httpx import PoliteTransport
        >>> retry = Retry(attempts=3, within=20, backoff=Backoff("equal", first=1))
        >>> client = httpx.Client(transport=PoliteTransport(retry=retry))
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
        """Return whether an answer calls for a retry, and whether that is safe.

        Args:
            status: The status of the response.
            advice: What the answer says about limits.
            idempotent: True if the same request may be sent twice.
        """
        counts_as = REFUSED if advice.refused and status not in (UNAVAILABLE, OVERLOADED) else status
        asks_for_it = advice.should_retry is True and status >= 400  # a success is never sent again
        if counts_as not in self.statuses and not asks_for_it:
            return FINAL
        reason = advice.reason or str(status)
        if advice.should_retry is False:
            return Wish(reason, "server")
        refused = counts_as == REFUSED or status == OVERLOADED
        if refused or idempotent or (status == UNAVAILABLE and advice.retry_after is not None):
            return Wish(reason)
        return Wish(reason, "method")

    def after_failure(self, failure: Failure, *, idempotent: bool) -> Wish:
        """Return whether a connection error calls for a retry, and whether that is safe.

        Args:
            failure: The connection error.
            idempotent: True if the same request may be sent twice.
        """
        if not self.connection_errors:
            return FINAL
        return Wish(failure.kind, "" if idempotent or not failure.sent else "method")

    def wait(
        self, retry: int, before: float | None, server: float | None, left: float, random: Callable[[], float]
    ) -> float | None:
        """Return the seconds to wait before a retry, None if it would not end in time. Never less than `server`.

        Args:
            retry: The number of the retry; 0 is the first.
            before: The wait before the retry before, in seconds; None if there was none.
            server: The wait that the server named, in seconds; None if it named none.
            left: The seconds that are left of the call.
            random: A function that returns numbers from 0 to 1.
        """
        if server is None:
            wait = self.backoff.wait(retry, before, random)
            return wait if wait <= left else None
        return min(self.backoff.after(server, random), left) if 0 <= server <= left else None
