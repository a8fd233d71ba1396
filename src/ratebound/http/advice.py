"""A lenient reader of what servers say about their limits: the client's side of headers.py.

It knows the IETF's drafts (`ratelimit_fields.py`), the fields of vendors (`vendor_fields.py`) and bodies of refusals
(`refusal_body.py`). Fields that break their grammar are ignored, and so are all quotas of a response from a cache.
Nothing here is a promise: the remaining units may be gone by the next request, and a server may send any wait.
"""

from ratebound.http.quota import Advice, Quota
from ratebound.http.ratelimit_fields import MOST_QUOTAS, read_drafts
from ratebound.http.received import DELAY, Lines, ReceivedFields, capped, http_date
from ratebound.http.refusal_body import BodyAdvice, read_body
from ratebound.http.vendor_fields import in_words_of_vendor, read_vendor_fields, vendor_of

OVERLOADED = (503, 529)
SECONDARY_WAIT = 60.0  # seconds: GitHub's rule for a refusal that names no time
SECONDARY_WORDS = ("rate limit", "abuse detection")


def read_advice(status: int, headers: Lines, *, body: bytes | None = None, now: float | None = None) -> Advice:
    """Return what a response says about limits, in any known style. Never raises for what a server sends.

    Waits and resets are at most 366 days. The wait is that of `retry-after-ms`, else of Retry-After, else of the body,
    else the longest reset of a quota of which nothing remains. Without a refusal only the fields of a response with
    status 300 or more give one.

    Args:
        status: The status of the response.
        headers: The header lines as (name, value), in any letter case.
        body: The beginning of the response's body, if it was read: some vendors put the wait or the reason there. A
            body that is cut off, or longer than a megabyte, counts as none.
        now: The Unix time in seconds at which the response was received. None means the time of this machine.

    Examples:
        >>> from ratebound.http import read_advice
        >>> advice = read_advice(429, [("Retry-After", "30")])
        >>> advice.reason, advice.retry_after
        ('rate', 30.0)
    """
    received = ReceivedFields(headers, now)
    vendor = vendor_of(received)
    told = read_body(status, body)
    style, quotas = _quotas(received, vendor, told)
    is_concurrency = status == 429 and any(quota.limit == 0 and not quota.remaining for quota in quotas)
    reason = _reason(status, vendor, received, told, quotas)
    if is_concurrency and reason == "rate":
        reason = "concurrency"  # Okta reports a refusal of too many requests at once as a limit of 0
    refused = bool(reason)
    wait = _retry_after(received) if refused or status >= 300 else None
    if wait is None and refused:
        wait = told.retry_after
        if wait is None and reason in ("rate", "concurrency", "secondary"):
            wait = _last_reset(quotas, 0)
            if wait is None:
                wait = _last_reset(quotas, None)
        if wait is None and reason == "secondary":
            wait = SECONDARY_WAIT
    should_retry = told.should_retry
    if should_retry is None:
        should_retry = _should_retry(received)
    kept = tuple(quota for quota in quotas if quota.limit != 0)  # a limit of 0 is no limit of a rate
    return Advice(kept, wait, refused, should_retry, reason, vendor, style)


def parse_rate_limit(headers: Lines, *, now: float | None = None) -> list[Quota]:
    """Return the limits that a response reports, in any known style. The newest style in the response wins.

    Args:
        headers: The header lines as (name, value), in any letter case.
        now: The Unix time in seconds at which the response was received. None means the time of this machine.

    Examples:
        >>> from ratebound.http import parse_rate_limit
        >>> quota, = parse_rate_limit([("RateLimit-Policy", '"day";q=1000;w=86400'), ("RateLimit", '"day";r=12;t=60')])
        >>> quota.name, quota.limit, quota.remaining, quota.reset_after
        ('day', 1000, 12, 60.0)
    """
    return list(read_advice(200, headers, now=now).quotas)


def parse_retry_after(headers: Lines, *, now: float | None = None) -> float | None:
    """Return the seconds to wait, or None without a valid field. They are at most 366 days.

    The field is Retry-After (seconds, with or without a fraction, or a date), or one in milliseconds. A date is
    compared with the response's own Date, if present, because clocks differ.

    Args:
        headers: The header lines as (name, value), in any letter case.
        now: The Unix time in seconds at which the response was received. None means the time of this machine.

    Examples:
        >>> from ratebound.http import parse_retry_after
        >>> parse_retry_after([("Retry-After", "1.5")])
        1.5
    """
    return _retry_after(ReceivedFields(headers, now))


def is_limit_field(name: str) -> bool:
    """Return True for the name of a field that says something about limits, in any known style."""
    name = name.lower()
    words = ("ratelimit", "rate-limit", "retry-after", "should-retry", "api-call-limit", "anthropic-priority-")
    return any(word in name for word in words) or name.startswith(("x-app-limit-", "x-user-limit-"))


def _quotas(received: ReceivedFields, vendor: str, told: BodyAdvice) -> tuple[str, list[Quota]]:
    if received.age:  # a cache answered: the numbers are old, and may be another client's
        return "", []
    style, common = read_drafts(received)
    quotas = [in_words_of_vendor(vendor, received, quota) for quota in common]
    own = [*read_vendor_fields(received), *told.quotas]
    return style or (vendor if own else ""), [*quotas, *own][:MOST_QUOTAS]


def _retry_after(received: ReceivedFields) -> float | None:
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        wait = received.seconds(name, 0.001)
        if wait is not None:
            return wait
    text = received.get("retry-after")
    if DELAY.fullmatch(text):
        return capped(float(text) - received.age)
    instant = http_date(text)
    return None if instant is None else capped(instant - received.now)


def _last_reset(quotas: list[Quota], remaining: int | None) -> float | None:
    """Return the longest reset of the quotas of which this much remains."""
    found = [quota.reset_after for quota in quotas if quota.remaining == remaining]
    return max((reset for reset in found if reset is not None), default=None)


def _reason(status: int, vendor: str, received: ReceivedFields, told: BodyAdvice, quotas: list[Quota]) -> str:
    """Return why a request was refused, "" if it was not refused because of a limit."""
    if told.refused:
        return told.reason
    if status in OVERLOADED:
        return told.reason or "overloaded"
    if vendor == "GitHub" and status in (403, 429):
        return _reason_of_github(status, received, told, quotas)
    if status != 429:
        return ""
    if "concurrency" in received.get("stripe-rate-limited-reason").lower():
        return "concurrency"
    return told.reason or "rate"


def _reason_of_github(status: int, received: ReceivedFields, told: BodyAdvice, quotas: list[Quota]) -> str:
    """Tell a refusal of the limit that the fields report from one of a limit that they do not report.

    GitHub's 403 is a refusal if it says so, or if nothing remains. Any other 403 is about permissions.
    """
    if "secondary" in told.message or "abuse detection" in told.message:
        return "secondary"
    is_told = any(words in told.message for words in SECONDARY_WORDS)
    is_spent = any(quota.remaining == 0 for quota in quotas)
    if is_spent and (is_told or not told.message or status == 429):
        return "rate"
    if status == 429 or is_told or received.get("retry-after"):
        return "secondary"
    return ""


def _should_retry(received: ReceivedFields) -> bool | None:
    for name in ("stripe-should-retry", "x-should-retry"):
        text = received.get(name).lower()
        if text in ("true", "false"):
            return text == "true"
    return None
