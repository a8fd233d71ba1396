"""The response to a denied request: status, header fields and body.

429 means that the client did too much, 503 that we failed: denial.py decides it. Bodies tell what the headers tell,
and nothing internal: no keys, no addresses, no storage errors. The adapter omits the body of a HEAD response and sets
Content-Length.
"""

import json
import logging
from collections.abc import Callable, Sequence
from random import randint
from typing import Any, Literal, NamedTuple

from ratebound.calendar_period import local_time
from ratebound.clock import SECOND
from ratebound.decision import Decision
from ratebound.http.denial import ABNORMAL_USAGE, QUOTA_EXCEEDED, REDUCED_CAPACITY, kind_of, longest_wait
from ratebound.http.header_plan import Pairs
from ratebound.http.headers import Headers, expose
from ratebound.http.shown import CONCURRENT_REQUESTS, Shown
from ratebound.outcome import Outcome

log = logging.getLogger("ratebound")

MAX_SHED_WAIT = 3  # seconds

Lines = Sequence[tuple[str, str]]
TYPES = "https://iana.org/assignments/http-problem-types#"
NO_STORE = ("Cache-Control", "no-store")  # a cache that does not know 429 might store it

FORBIDDEN = "forbidden"
TITLES = {
    QUOTA_EXCEEDED: "Quota Exceeded",
    REDUCED_CAPACITY: "Temporary Reduced Capacity",
    ABNORMAL_USAGE: "Abnormal Usage Detected",
    FORBIDDEN: "Forbidden",
}


class Rejection(NamedTuple):
    """The content of a rejection. A custom format is a function of it.

    Attributes:
        status: The status of the response.
        kind: quota-exceeded, temporary-reduced-capacity, abnormal-usage-detected, or forbidden.
        title: The kind in words.
        detail: The reason in a sentence.
        retry_after: The wait in whole seconds; None if no wait can help or none is known.
        violated: The names of the limits that denied, as in the headers.
        limits: Every limit that was checked, as in the headers.
        documentation: A link to an explanation, or None.
        decision: The denial; None for a client that is blocked or not taken.
    """

    status: int
    kind: str
    title: str
    detail: str
    retry_after: int | None
    violated: tuple[str, ...]
    limits: list[dict[str, Any]]
    documentation: str | None
    decision: Decision | None

    @property
    def type(self) -> str:
        """The registered problem type."""
        return "about:blank" if self.kind == FORBIDDEN else TYPES + self.kind


class Response(NamedTuple):
    """A response to send.

    Attributes:
        status: The status.
        headers: The headers, with Content-Type but without Content-Length.
        body: The body.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes


# Text, bytes, a dict or list for JSON, or a content type with text or bytes.
Written = str | bytes | dict[str, Any] | list[Any] | tuple[str, str | bytes]
Format = Callable[[Rejection], Written]
FormatName = Literal["problem+json", "jsonapi", "json", "text"]


def problem_json(rejection: Rejection) -> Written:
    """Return a body by RFC 9457, with the problem type that the RateLimit draft registers."""
    body: dict[str, Any] = {
        "type": rejection.type,
        "title": rejection.title,
        "status": rejection.status,
        "detail": rejection.detail,
    }
    if rejection.kind != FORBIDDEN:
        body["violated-policies"] = list(rejection.violated)
    return "application/problem+json", _json(body | _details(rejection))


def json_api(rejection: Rejection) -> Written:
    """Return a body by JSON:API 1.1, in which the status is text."""
    error: dict[str, Any] = {
        "status": str(rejection.status),
        "code": rejection.kind,
        "title": rejection.title,
        "detail": rejection.detail,
    }
    links = {"about": rejection.documentation, "type": None if rejection.kind == FORBIDDEN else rejection.type}
    if any(links.values()):
        error["links"] = {name: link for name, link in links.items() if link}
    meta = {key: value for key, value in _details(rejection).items() if key != "documentation"}
    if rejection.kind != FORBIDDEN:
        error["meta"] = {"violated-policies": list(rejection.violated)} | meta
    return "application/vnd.api+json", _json({"errors": [error]})


ERRORS = {
    QUOTA_EXCEEDED: "rate_limit_exceeded",
    REDUCED_CAPACITY: "temporarily_unavailable",
    ABNORMAL_USAGE: "abnormal_usage_detected",
    FORBIDDEN: "forbidden",
}


def plain_json(rejection: Rejection) -> Written:
    """Return `{"error": "rate_limit_exceeded", "message": …}`."""
    return "application/json", _json(
        {"error": ERRORS[rejection.kind], "message": rejection.detail} | _details(rejection)
    )


def plain_text(rejection: Rejection) -> Written:
    """Return the message, and the link to the documentation."""
    lines = [rejection.detail, *([f"See {rejection.documentation}"] if rejection.documentation else [])]
    return "text/plain; charset=utf-8", "\n".join(lines) + "\n"


FORMATS: dict[str, Format] = {
    "problem+json": problem_json,
    "jsonapi": json_api,
    "json": plain_json,
    "text": plain_text,
}


class RejectionFormat:
    """The form of rejections.

    Args:
        format: problem+json, jsonapi, json or text, or a function of a `Rejection` that returns text, bytes, a dict or
            list to be sent as JSON, or (content type, text or bytes). If it fails, the exception is logged and
            problem+json is sent.
        status: The status of requests over a limit.
        unavailable_status: The status while the storage is out of reach or the process is overloaded.
        blocked_status: The status of clients that are blocked, and of rules that deny.
        documentation: A link for all rejections. A rule's own replaces it; empty text means none.
        message: The reason for requests over a limit. A rule's own replaces it; empty text means none.
        headers: The header fields of rejections. None means `Headers()`.

    Raises:
        ValueError: An option is invalid.

    Examples:
        >>> from ratebound import Limiter
        >>> from ratebound.http import RejectionFormat
        >>> limiter = Limiter("1/minute")
        >>> decision = limiter.hit("user:42")
        >>> response = RejectionFormat("text").respond(limiter.hit("user:42"))
        >>> response.status, response.body.decode().strip()
        (429, 'Too many requests: try again in 60 seconds.')
    """

    def __init__(
        self,
        format: FormatName | Format = "problem+json",
        *,
        status: int = 429,
        unavailable_status: int = 503,
        blocked_status: int = 403,
        documentation: str | None = None,
        message: str | None = None,
        headers: Headers | None = None,
    ) -> None:
        self.format: Format
        if callable(format):
            self.format = format
        elif format in FORMATS:
            self.format = FORMATS[format]
        else:
            raise ValueError(f"unknown rejection format {format!r}: expected {', '.join(FORMATS)}, or a function")
        for label, value in (("status", status), ("unavailable", unavailable_status), ("blocked", blocked_status)):
            if type(value) is not int or not 400 <= value <= 599:
                raise ValueError(f"the {label} status must be an error status, 400 to 599, not {value!r}")
        for label, text in (("documentation", documentation), ("message", message)):
            if text is not None and not isinstance(text, str):
                raise ValueError(f"{label} must be text, not {text!r}")
            if text and not is_sendable(text):
                raise ValueError(f"{label} cannot be sent: {text!r} contains half of a surrogate pair; remove it")
        self.status = status
        self.unavailable_status = unavailable_status
        self.blocked_status = blocked_status
        self.documentation = documentation
        self.message = message
        self.headers = headers or Headers()

    def respond(
        self,
        decision: Decision,
        request_headers: Lines = (),
        *,
        message: str | None = None,
        documentation: str | None = None,
    ) -> Response:
        """Return the response to a denied request.

        The status is 503 if the storage is out of reach, or if limits are lowered because the process is overloaded,
        else 429 or the configured one.

        Args:
            decision: A denied decision.
            request_headers: The headers of the request: with an Origin, scripts of that origin may read the fields.
            message: The reason in words. None means that of the format.
            documentation: A link to an explanation. None means that of the format.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.http import RejectionFormat
            >>> denied = Limiter("1/minute").hit("user:42", cost=2)
            >>> RejectionFormat(status=420).respond(denied, message="Slow down.").status
            420
        """
        return self._written(*self._of_decision(decision, message, documentation), request_headers)

    def block(
        self,
        request_headers: Lines = (),
        *,
        message: str | None = None,
        documentation: str | None = None,
        wait: int | None = None,
    ) -> Response:
        """Return the response to a client that is blocked, or under a rule that denies.

        Args:
            request_headers: The headers of the request: with an Origin, scripts of that origin may read the fields.
            message: The reason in words. None means that of the format.
            documentation: A link to an explanation. None means that of the format.
            wait: The time until a block ends, in microseconds; None if it does not end by itself.

        Examples:
            >>> from ratebound.http import RejectionFormat
            >>> RejectionFormat().block(wait=60_000_000).status
            403
        """
        return self._written(*self._of_block(message, documentation, wait), request_headers)

    def shed(self, request_headers: Lines = ()) -> Response:
        """Return the response to a request that an overloaded process does not take.

        Args:
            request_headers: The headers of the request: with an Origin, scripts of that origin may read the fields.

        Examples:
            >>> from ratebound.http import RejectionFormat
            >>> RejectionFormat().shed().status
            503
        """
        return self._written(*self._of_overload(), request_headers)

    def _of_decision(
        self, decision: Decision, message: str | None = None, documentation: str | None = None
    ) -> tuple[Rejection, Pairs]:
        """Return the content of `respond`, and its fields: both tell the same wait."""
        spread = self.headers.spread()
        return self.rejection(decision, message, documentation, spread), self.headers.pairs(decision, spread)

    def _of_block(
        self, message: str | None = None, documentation: str | None = None, wait: int | None = None
    ) -> tuple[Rejection, Pairs]:
        """Return the content of `block`, and its fields."""
        kind = ABNORMAL_USAGE if self.blocked_status == 429 else FORBIDDEN
        detail = message or "This request is not allowed."
        link = documentation or self.documentation
        after = None if wait is None else -(-wait // SECOND)
        rejection = Rejection(self.blocked_status, kind, TITLES[kind], detail, after, (), [], link, None)
        return rejection, self.headers.retry_after(wait)

    def _of_overload(self) -> tuple[Rejection, Pairs]:
        """Return the content of `shed`, and its fields: both tell the same wait."""
        after = randint(1, MAX_SHED_WAIT)  # clients that come back at once, and together, would keep it overloaded
        kind, status, link = REDUCED_CAPACITY, self.unavailable_status, self.documentation
        rejection = Rejection(status, kind, TITLES[kind], _overloaded(after), after, (), [], link, None)
        return rejection, [("Retry-After", str(after))]

    def rejection(
        self, decision: Decision, message: str | None = None, documentation: str | None = None, spread: float = 1.0
    ) -> Rejection:
        """Return the content of the rejection of a denied decision.

        The reason that the service is not available is told in our own words, whatever `message` is.

        Args:
            decision: A denied decision.
            message: The reason in words. None means that of the format.
            documentation: A link to an explanation. None means that of the format.
            spread: The factor by which waits are lengthened; see `Headers.spread`.

        Examples:
            >>> from ratebound import Limiter
            >>> from ratebound.http import RejectionFormat
            >>> denied = Limiter("1/minute as api").hit("user:42", cost=2)
            >>> RejectionFormat().rejection(denied).violated
            ('api',)
        """
        link = documentation or self.documentation
        kind = kind_of(decision)
        wait = longest_wait(decision, kind, spread)
        after = None if wait is None else -(-wait // SECOND)
        status = self.unavailable_status if kind == REDUCED_CAPACITY else self.status
        violated: dict[str, None] = {}
        limits: list[dict[str, Any]] = []
        if kind == REDUCED_CAPACITY:
            detail = _overloaded(after or 1) if decision.shed else "The service cannot answer at the moment."
        elif kind == ABNORMAL_USAGE:
            detail = message or self.message or _blocked(after)
        else:
            detail = message or self.message or _detail(decision, after)
            for shown, outcome in zip(self.headers.asked(decision), decision.outcomes, strict=True):
                if not outcome.allowed:
                    violated[shown.name] = None
                if shown.is_advertised or not outcome.allowed:
                    limits.append(_entry(shown, outcome, spread))
        return Rejection(status, kind, TITLES[kind], detail, after, tuple(violated), limits, link, decision)

    def _written(self, rejection: Rejection, pairs: Pairs, request_headers: Lines = ()) -> Response:
        """Return the response of this form with a content and its fields."""
        try:
            content_type, body = content_of(self.format(rejection))
        except Exception:
            log.exception("the rejection format failed; problem+json is sent instead")
            content_type, body = content_of(problem_json(rejection))
        headers = [("Content-Type", content_type), NO_STORE, *pairs]
        if has(request_headers, "origin"):
            headers += expose(pairs)
        return Response(rejection.status, headers, body)


def _in_seconds(after: int | None) -> str:
    return f"in {after} second{'' if after == 1 else 's'}"


def _blocked(after: int | None) -> str:
    reason = "Blocked because of too many rejected or failed requests"
    return f"{reason}." if after is None else f"{reason}: try again {_in_seconds(after)}."


def _overloaded(after: int) -> str:
    return f"The service is overloaded: try again {_in_seconds(after)}."


def _detail(decision: Decision, after: int | None) -> str:
    """Return the reason in a sentence. `after` is the wait in seconds, None if no wait can help or none is known."""
    limit, wait = decision.limit, decision.retry_after
    seconds = _in_seconds(after)
    if limit.has_slots:
        again = "when one of them has ended" if after is None else seconds
        return f"Too many requests at the same time: at most {limit.count}. Try again {again}."
    if after is None or wait is None:
        return "This request exceeds the limit, so it is always denied: no wait will help."
    if limit.is_distinct:
        return f"Too many different values of '{limit.values}': try again {seconds}."
    if limit.calendar is not None and decision.degraded is None:
        begins = local_time(decision.at + round(wait * SECOND), limit.calendar.zone).isoformat(timespec="seconds")
        return f"The quota of this calendar {limit.calendar.unit} is used up: the next one begins at {begins}."
    return f"Too many requests: try again {seconds}."


def _entry(shown: Shown, outcome: Outcome, spread: float) -> dict[str, Any]:
    """Return one limit as the body of a rejection tells it."""
    limit = shown.limit
    entry: dict[str, Any] = {"policy": shown.name, "quota": shown.quota, "window": shown.window}
    wait = outcome.retry_after_us
    if limit.has_slots:
        entry["unit"] = CONCURRENT_REQUESTS
        wait = limit.retry_us or None
    elif limit.is_distinct:
        entry["unit"] = f"distinct {limit.values}"
    elif limit.calendar is not None:
        entry["period"] = str(limit.calendar)
    entry["remaining"] = outcome.remaining
    if not outcome.allowed and wait is not None:
        entry["retry_after"] = -(-int(wait * spread) // SECOND)
    return entry


def is_sendable(text: str) -> bool:
    """Return True if text can be written as UTF-8: half of a surrogate pair cannot."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def is_preflight(method: str, headers: Lines) -> bool:
    """Return True for a CORS preflight, by which a browser asks whether a script may send a request.

    Any client can send one, and an application may run a handler for it, so it counts like other requests.

    Args:
        method: The method of the request, in capitals.
        headers: The headers of the request.

    Examples:
        >>> from ratebound.http import is_preflight
        >>> is_preflight("OPTIONS", [("Origin", "https://example.com"), ("Access-Control-Request-Method", "PUT")])
        True
    """
    return method == "OPTIONS" and has(headers, "origin") and has(headers, "access-control-request-method")


def has(headers: Lines, wanted: str) -> bool:
    """Return True if the header is present and not empty. `wanted` is in lower case."""
    length = len(wanted)
    return any(len(name) == length and name.lower() == wanted and value for name, value in headers)


def _details(rejection: Rejection) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if rejection.retry_after is not None:
        details["retry_after"] = rejection.retry_after
    if rejection.limits:
        details["limits"] = rejection.limits
    if rejection.documentation:
        details["documentation"] = rejection.documentation
    return details


def content_of(written: Written) -> tuple[str, bytes]:
    """Return the content type and the bytes of what a format has written. Raises TypeError for anything else."""
    content_type, body = written if isinstance(written, tuple) else ("", written)
    if isinstance(body, dict | list):
        content_type, body = content_type or "application/json", _json(body)
    if isinstance(body, str):
        content_type, body = content_type or "text/plain; charset=utf-8", body.encode("utf-8", "replace")
    if not isinstance(body, bytes) or not isinstance(content_type, str):
        raise TypeError(f"expected text, bytes, a dict, a list or (content type, body), not {written!r}")
    return content_type or "application/octet-stream", body


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
