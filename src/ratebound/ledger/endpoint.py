"""Names of endpoints in the ledger: a method, and the template of the route or the path without ids.

Clients choose paths freely, so what looks like an id is replaced, and the number of names is bounded.
"""

import re
from typing import Any

from ratebound.ledger.usage_counts import OTHER

MOST_ENDPOINTS = 1_000  # of one process; the others are "other"
MOST_PATHS = 5_000  # whose names are remembered
MOST_SEGMENTS = 10
LONGEST = 200  # characters of a name
ID = "{id}"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"})
# Numbers, UUIDs and dates (five digits or more), long hexadecimal digests, addresses of mail, and what is too long for
# a word.
LIKE_AN_ID = re.compile(r"\d+|(?:\D*\d){5}.*|[0-9A-Fa-f]{16,}|.*(?:@|%40).*|.{41,}", re.DOTALL)


class EndpointNames:
    """A function from a RequestView to the name of its endpoint: `GET /orders/{id}`."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str], str] = {}
        self._names: dict[str, str] = {}

    def __call__(self, request: Any) -> str:
        route: str | None = request.route
        key: tuple[str, str] = (request.method, request.path if route is None else route)
        try:
            return self._by_path[key]
        except KeyError:
            return self._remember(key, endpoint_name(*key, is_template=route is not None))

    def _remember(self, key: tuple[str, str], name: str) -> str:
        if name not in self._names and len(self._names) >= MOST_ENDPOINTS:
            name = OTHER
        name = self._names.setdefault(name, name)
        if len(self._by_path) >= MOST_PATHS:
            self._by_path = {}
        if len(key[1]) <= LONGEST:
            self._by_path[key] = name
        return name


def endpoint_name(method: str, path: str, *, is_template: bool = False) -> str:
    """Return the name of an endpoint. A template of a route is used as it is."""
    verb = method if method in METHODS else "OTHER"
    if not is_template:
        segments = path.partition("?")[0].split("/")
        shown = [ID if LIKE_AN_ID.fullmatch(segment) else segment for segment in segments[: MOST_SEGMENTS + 1]]
        path = "/".join([*shown, *(["…"] if len(segments) > MOST_SEGMENTS + 1 else [])])
    return f"{verb} {path}"[:LONGEST]
