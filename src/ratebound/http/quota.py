"""Values: one limit as a server reports it, and all that one response says about limits."""

from typing import NamedTuple


class Quota(NamedTuple):
    """One limit as a server reports it; None for absent fields. Durations are seconds from now.

    A request costs one unit of "requests"; what it costs in another unit is not known before it is answered.

    Attributes:
        name: The name that the server gives it; empty if it has none.
        limit: The units of a window.
        remaining: The units that are left.
        window: The length of the window in seconds.
        reset_after: The seconds until spent units are back.
        unit: What is counted: "requests", "tokens", "percent", ….
        partition: The key under which the server counts, if it tells one.
        kind: How spent units come back: "window" if all come back at `reset_after`, "bucket" if they come back steadily
            and all are back at `reset_after`, and "" if that is not known.
    """

    name: str
    limit: int | None = None
    remaining: int | None = None
    window: int | None = None
    reset_after: float | None = None
    unit: str = "requests"
    partition: bytes | None = None
    kind: str = ""


class Advice(NamedTuple):
    """All that one response says about limits and about the next attempt.

    `reason` is "" for a response that was not refused, else one of:

    - "rate": too many requests or units in a time
    - "concurrency": too many requests at once
    - "secondary": a limit that the fields do not report (GitHub)
    - "quota": credit or a quota is spent that does not come back by waiting
    - "abuse": blocked for a while because of abnormal usage
    - "lock": another request holds the object (Stripe)
    - "overloaded": the server has no capacity; this client did nothing wrong

    Attributes:
        quotas: The limits that the response reports.
        retry_after: The wait in seconds that the server asks for; None if it names none: then the client waits by its
            own rules.
        refused: True if the request was refused because of a limit or an overload.
        should_retry: False if waiting cannot help, True if the server says that it does, and None if it says neither.
        reason: Why the request was refused; see above.
        vendor: The service whose fields these are ("GitHub"); others may copy them.
        style: The convention of the quotas: a style of `Headers` ("draft-11", "x-ratelimit", …), "draft-next",
            "x-rate-limit", or the vendor's own.
    """

    quotas: tuple[Quota, ...] = ()
    retry_after: float | None = None
    refused: bool = False
    should_retry: bool | None = None
    reason: str = ""
    vendor: str = ""
    style: str = ""
