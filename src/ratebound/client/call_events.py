"""The events of calls that listeners of clients receive, and how they are told.

A listener is any function of one event. It runs in the thread or task of the call, so it must be quick and must not
block. An exception in a listener is logged and does not change the call. Events name an API by its origin only: paths,
queries, headers and texts of errors may hold secrets.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ratebound.errors import RateboundError

log: Final = logging.getLogger("ratebound.client")


class NotReplayable(RateboundError):
    """The body of the request was a stream that can be read once, so the request could not be sent again.

    Listeners receive it in `GaveUp.explanation`. It is not raised: the caller gets the refusal, or the connection
    error, of the attempt that was made.
    """

    def __str__(self) -> str:
        return (
            "not retried: the body of the request can be read only once. "
            "Pass bytes, a file that can seek, or ratebound.client.RepeatableBody(function)"
        )


class Attempted(NamedTuple):
    """A request was sent, and was answered or failed. `seconds` is the time until the headers of the answer came."""

    origin: str
    method: str
    attempt: int  # 1 is the first of a call
    status: int  # 0: no answer
    error: str  # the kind of a connection error, else ""
    seconds: float


class Retrying(NamedTuple):
    """A request will be sent again after `wait` seconds. `reason` is a status, a vendor's reason or a kind of error."""

    origin: str
    method: str
    attempt: int  # the one that failed
    reason: str
    wait: float
    server_wait: float | None  # what the server asked for


class GaveUp(NamedTuple):
    """A call that failed is not retried. The caller gets its last answer or error.

    `obstacle` is one of: "attempts" (all were made), "within" (the wait would take too long), "budget" (too many
    retries already), "circuit" (the API is down), "body" (it cannot be sent again), "method" (a retry is not safe),
    "server" (it says that a retry is of no use).
    """

    origin: str
    method: str
    attempts: int
    reason: str
    obstacle: str
    waited: float
    explanation: NotReplayable | None = None


# The obstacles of GaveUp in words.
BECAUSE: Final = {
    "attempts": "all attempts are made",
    "within": "the next wait would take too long",
    "budget": "too many of the last requests were retries",
    "circuit": "the API is down",
    "body": "the body of the request can be read only once",
    "method": "sending it again is not safe",
    "server": "the server says that a retry is of no use",
}


class BudgetExhausted(NamedTuple):
    """A retry was left out because too many of the last requests were retries."""

    origin: str


class CircuitOpened(NamedTuple):
    """The last calls to an API failed. It is not called again for about `retry_after` seconds."""

    origin: str
    retry_after: float


class CircuitClosed(NamedTuple):
    """An API answers again after `seconds`."""

    origin: str
    seconds: float


class Paced(NamedTuple):
    """A request waited `seconds` for its turn, so that it keeps within a limit."""

    origin: str
    seconds: float


CallEvent = Attempted | Retrying | GaveUp | BudgetExhausted | CircuitOpened | CircuitClosed | Paced
CallListener = Callable[[Any], object]


def tell_call(listeners: tuple[CallListener, ...], event: CallEvent) -> None:
    """Call every listener with an event. Log exceptions of listeners: they must not fail a call."""
    for listener in listeners:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed; the call goes on")
