"""Values of a request that a policy names: `body.username`, `path.id`, `query.q`, `header.x-device`, `cookie.cart`.

A client chooses these freely. They are what a limit of distinct values counts, and the target of a request that a rate
may count by. They never say who the client is.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl

from ratebound.policy.match.path import Pattern, is_clean
from ratebound.policy.match.reading import texts_of
from ratebound.policy.match.request import RequestView, cookies_in
from ratebound.policy.match.request_body import MAX_FIELDS, UnreadableRequest, field_of_body, is_utf_8

NAMES: Final = {  # of each part of a request
    "body": re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*"),
    "path": re.compile(r"[A-Za-z_][A-Za-z0-9_]*"),
    "query": re.compile(r"[A-Za-z0-9_.\[\]-]+"),
    "header": re.compile(r"[A-Za-z0-9_-]+"),
    "cookie": re.compile(r"[A-Za-z0-9_.-]+"),
}
TARGETS: Final = ("body", "path", "query")  # parts that a rate may count by
MAX_NAME: Final = 64
MAX_QUERY: Final = 65_536  # characters


def part_of(text: str) -> str:
    """Return the part of a request that a text like 'body.username' names; "" if it names none."""
    part, dot, _ = text.partition(".")
    return part if dot and part in NAMES else ""


class RequestValue:
    """One value of a request, by its name. It is a function of the request that returns text, or None if it is absent.

    `patterns` are the patterns of the rule. A parameter of the path is taken from the route if the adapter knows it, or
    else from a pattern. A call raises UnreadableRequest if the value cannot be read, or can be read in several ways.
    Raises ValueError for an unknown name.
    """

    __slots__ = ("_name", "_part", "_patterns", "reads_body", "text")

    def __init__(self, text: str, patterns: Sequence[Pattern] = ()) -> None:
        part, _, name = text.partition(".")
        if part not in NAMES or len(name) > MAX_NAME or not NAMES[part].fullmatch(name):
            raise ValueError(
                f"cannot read {text[:80]!r}: expected for example 'body.username', 'path.id', 'query.q',"
                " 'header.x-device' or 'cookie.cart'"
            )
        if part == "path" and patterns and not any(name in pattern.names for pattern in patterns):
            raise ValueError(f"no path of this rule has the parameter {name!r}: write for example '/users/{{{name}}}'")
        self.text = text
        self.reads_body = part == "body"  # adapters read the body only for functions with this attribute
        self._part = part
        self._name = name.lower() if part == "header" else name
        self._patterns = patterns

    def __repr__(self) -> str:
        return f"RequestValue({self.text!r})"

    def __call__(self, request: RequestView) -> str | None:
        name = self._name
        if self._part == "body":
            return field_of_body(request, name.split("."))
        if self._part == "path":
            return self._parameter(request)
        if self._part == "query":
            if not all(map(is_utf_8, request.header_lines("content-type"))):  # Django decodes the query by it, too
                raise UnreadableRequest("The query must be UTF-8.")
            return _only(_in_query(request.query, name))
        if self._part == "header":
            return _only(request.header_lines(name))
        return _only(cookies_in(request, name))

    def only_value(self, request: RequestView) -> str | None:
        """Return the value; None if it is absent or cannot be read."""
        try:
            return self(request)
        except UnreadableRequest:
            return None

    def _parameter(self, request: RequestView) -> str | None:
        given = request.path_params.get(self._name)
        if given is not None:
            return str(given)
        found: dict[str, None] = {}
        paths = request.paths
        prefixes = () if isinstance(paths, str) else paths.prefixes
        for text in texts_of(paths) if self._patterns else ():
            if not is_clean(text):
                raise UnreadableRequest("The path can be read in several ways.")
            for path in (text, *(prefix + text for prefix in prefixes)):
                for pattern in self._patterns:
                    try:
                        value = pattern.parameter(path, self._name)
                    except UnicodeDecodeError:
                        raise UnreadableRequest("The path must be UTF-8.") from None
                    if value is not None:
                        found[value] = None
        return _only(list(found))


@lru_cache(maxsize=256)
def reader_of(name: str) -> RequestValue:
    """Return the value of that name, for every request. Raises ValueError for an unknown name."""
    return RequestValue(name)


def _in_query(query: str, name: str) -> list[str]:
    if len(query) > MAX_QUERY:
        raise UnreadableRequest("The query is too long.")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError:
        raise UnreadableRequest("The query cannot be read.") from None
    return [value for key, value in pairs if key == name]


def _only(found: Sequence[str]) -> str | None:
    if len(found) > 1:
        raise UnreadableRequest("A value occurs twice, or can be read in several ways.")
    return found[0] if found else None
