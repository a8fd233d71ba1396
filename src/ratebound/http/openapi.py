"""Rejections as OpenAPI describes responses: their headers, and their body as the format writes it."""

import json
from typing import Any

from ratebound.http.denial import QUOTA_EXCEEDED, REDUCED_CAPACITY
from ratebound.http.headers import FIELDS
from ratebound.http.rejection import FORMATS, TITLES, Rejection, RejectionFormat, content_of

Described = dict[str, Any]

TEXT_FIELDS = ("RateLimit", "RateLimit-Policy")  # all others are numbers
ABOUT = {
    "RateLimit": "What remains of each limit, and the seconds until more is available.",
    "RateLimit-Policy": "Each limit, with its quota and its window in seconds.",
    "Limit": "The quota.",
    "Remaining": "What remains of the quota.",
    "Reset": "When the quota is available again.",
}
LIMIT = {"policy": "default", "quota": 100, "window": 60, "remaining": 0, "retry_after": 30}
TYPES = {str: "string", int: "integer", list: "array", dict: "object"}


def describe_exceeded(format: RejectionFormat, *, has_own_body: bool = False) -> Described:
    """Return the response to a request that exceeds a limit. With `has_own_body` the application writes its body."""
    fields = [name for style in format.headers.styles for name in FIELDS[style]]
    described = {name: _field(name) for name in dict.fromkeys(fields)}
    return _described(format, QUOTA_EXCEEDED, "Too many requests: a rate limit is exceeded.", described, has_own_body)


def describe_unavailable(format: RejectionFormat, *, has_own_body: bool = False) -> Described:
    """Return the response to a request that is refused because the service is overloaded or cannot decide."""
    return _described(format, REDUCED_CAPACITY, "The service is overloaded, or cannot decide.", {}, has_own_body)


def _described(format: RejectionFormat, kind: str, text: str, fields: Described, has_own_body: bool) -> Described:
    wait = {"type": "string", "format": "http-date"} if format.headers.is_dated else {"type": "integer", "minimum": 0}
    about = "The time to retry at." if format.headers.is_dated else "The seconds to wait before a retry."
    described: Described = {"description": text, "headers": {"Retry-After": {"description": about, "schema": wait}}}
    described["headers"] |= fields
    if not has_own_body and format.format in FORMATS.values():  # what a function writes is not known
        described["content"] = _content(format, kind)
    return described


def _field(name: str) -> Described:
    about = ABOUT.get(name) or next(text for part, text in ABOUT.items() if f"-{part}" in name)
    return {"description": about, "schema": {"type": "string" if name in TEXT_FIELDS else "integer"}}


def _content(format: RejectionFormat, kind: str) -> Described:
    """Return the type of the body, with an example that the format has written itself."""
    is_quota = kind == QUOTA_EXCEEDED
    status = format.status if is_quota else format.unavailable_status
    detail = format.message if is_quota and format.message else "Too many requests: try again in 30 seconds."
    detail = detail if is_quota else "The service cannot answer at the moment."
    violated, limits = (("default",), [LIMIT]) if is_quota else ((), [])
    sample = Rejection(status, kind, TITLES[kind], detail, 30, violated, limits, format.documentation, None)
    media_type, body = content_of(format.format(sample))
    text = body.decode("utf-8")
    if "json" not in media_type:
        return {media_type: {"schema": {"type": "string"}, "example": text}}
    example = json.loads(text)
    return {media_type: {"schema": _schema(example), "example": example}}


def _schema(example: Any) -> Described:
    """Return a schema for values like the example. The window of a limit may also be null."""
    schema: Described = {"type": TYPES[type(example)]}
    if isinstance(example, dict):
        schema["properties"] = {name: {} if name == "window" else _schema(one) for name, one in example.items()}
    elif isinstance(example, list):
        schema["items"] = _schema(example[0]) if example else {}
    return schema
