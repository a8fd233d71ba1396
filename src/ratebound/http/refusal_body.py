"""Reads limits from the JSON body of a response: a wait, a reason, and the bucket of Shopify's GraphQL API."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ratebound.http.quota import Quota
from ratebound.http.received import capped, go_duration

MAX_BODY = 1_000_000  # bytes: a longer body is not read
MOST_ERRORS = 16
THROTTLE = b'"throttleStatus"'
PROBLEMS = {"temporary-reduced-capacity": "overloaded", "abnormal-usage-detected": "abuse", "quota-exceeded": "rate"}
# Refusals that no wait ends: credit is spent, or an account is not paid.
SPENT = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error", "access_terminated"}
SPENT_WORDS = ("spend limit", "spending limit", "credit balance", "specified api usage limits")


class BodyAdvice(NamedTuple):
    """The part of an advice that only a body tells. `message` is the server's text, in lower case."""

    retry_after: float | None = None
    reason: str = ""
    should_retry: bool | None = None
    quotas: tuple[Quota, ...] = ()
    refused: bool = False
    message: str = ""


def read_body(status: int, body: bytes | None) -> BodyAdvice:
    """Return what a body says about limits. The body of a success is read only if it may be Shopify's."""
    if not body or len(body) > MAX_BODY or (status < 400 and THROTTLE not in body):
        return BodyAdvice()
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return BodyAdvice()
    if not isinstance(document, dict):
        return BodyAdvice()
    if status < 400:
        return _of_throttle(document)
    message = " ".join(_texts(document, ("message", "detail", "description", "error_description"))).lower()
    codes = {code.lower() for code in _texts(document, ("code", "type", "reason", "status"))}
    reason, should_retry = "", None
    if codes & SPENT or any(words in message for words in SPENT_WORDS):
        reason, should_retry = "quota", False
    elif "lock_timeout" in codes:
        reason = "lock"
    elif codes & {"overloaded_error", "overloaded", "server_overloaded", "slowdown"}:
        reason = "overloaded"
    else:
        problem = next((code.rpartition("#")[2] for code in codes if "#" in code), "")
        reason = PROBLEMS.get(problem, "")
    return BodyAdvice(_wait(document), reason, should_retry, message=message)


def _of_throttle(document: Mapping[str, Any]) -> BodyAdvice:
    """Read the cost that Shopify's GraphQL API reports, and a refusal, which has the status 200."""
    cost = _inner(document, "extensions", "cost")
    throttle = _inner(cost, "throttleStatus")
    most, left, rate = (_amount(throttle.get(key)) for key in ("maximumAvailable", "currentlyAvailable", "restoreRate"))
    refused = any(_inner(error, "extensions").get("code") == "THROTTLED" for error in _errors(document))
    if most is None or left is None or not rate:
        return BodyAdvice(reason="rate" if refused else "", refused=refused)
    quota = Quota(
        "graphql",
        int(most),
        int(left),
        max(math.ceil(capped(most / rate)), 1),
        capped((most - left) / rate),
        "points",
        kind="bucket",
    )
    wanted = _amount(cost.get("requestedQueryCost"))
    if not refused:
        return BodyAdvice(quotas=(quota,))
    if wanted is not None and wanted > most:
        return BodyAdvice(None, "rate", False, (quota,), True)  # a query that costs more than the bucket holds
    wait = None if wanted is None else capped((wanted - left) / rate)
    return BodyAdvice(wait, "rate", None, (quota,), True)


def _wait(document: Mapping[str, Any]) -> float | None:
    """Return the first wait of the usual places, in seconds."""
    places = [document, _inner(document, "error"), _inner(document, "parameters"), _inner(document, "meta")]
    for error in _errors(document):
        places += [error, _inner(error, "meta"), _inner(error, "extensions")]
    for place in places:
        for key in ("retry_after", "retryAfter", "retry-after"):
            seconds = _amount(place.get(key))
            if seconds is not None:
                return capped(seconds)
    details = _inner(document, "error").get("details")
    for detail in details[:MOST_ERRORS] if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None  # google.rpc.RetryInfo
        if isinstance(delay, str):
            return go_duration(delay)
    return None


def _texts(document: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[str]:
    for place in (document, _inner(document, "error"), *_errors(document)):
        for key in keys:
            value = place.get(key)
            if isinstance(value, str):
                yield value[:2_000]


def _errors(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    errors = document.get("errors")
    return [error for error in errors[:MOST_ERRORS] if isinstance(error, dict)] if isinstance(errors, list) else []


def _inner(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = document.get(key)
        if not isinstance(inner, dict):
            return {}
        document = inner
    return document


def _amount(value: object) -> float | None:
    """Return a number of 0 or more that is no bool, nan or infinity, nor too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e15:
        return None
    return float(value)
