"""The conditions of one rule: path, method, host, headers, tiers and addresses.

index.py finds the rules of a request among many. It must agree with `Match.failure` for each of them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Generic, TypeVar
from urllib.parse import unquote_plus

from ratebound.http.prefix import Address, Networks, parse_network
from ratebound.policy.match.host import host_of, hosts_of, is_host
from ratebound.policy.match.path import CATCH_ALL, Pattern, Segments, is_clean, spellings
from ratebound.policy.match.reading import texts_of
from ratebound.policy.match.request import RequestView
from ratebound.policy.problem import Problems, as_texts, shown

T = TypeVar("T")

TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
METHODS = (
    *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY", "PURGE"),
    *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH", "LINK", "UNLINK"),
)
OVERRIDES = ("x-http-method-override", "x-http-method", "x-method-override")
# The form field `_method` with its value. Each letter may be plain or percent-encoded. In multipart bodies: its
# name, or the line after an empty line, which is the value of a part.
FIELD = re.compile(
    r"(?:^|[&;])(?:\+|%20)*" + "".join(f"(?:{c}|%{ord(c):x}|%{ord(c.upper()):x})" for c in "_method") + "=([^&;]*)",
    re.I,
)
JSON_FIELD = re.compile('"' + "".join(rf"(?:{c}|\\u00{ord(c):x})" for c in "_method") + r'"\s*:\s*"([^"]*)"', re.I)
PART = re.compile(r'name="?_method\b|\n\r?\n([^\r\n]*)', re.I)


def methods_of(request: RequestView) -> tuple[str, ...]:
    """Return the methods that a request may be handled as: its own first, then those of method overrides.

    Some frameworks let a POST override its method in a header, in the query or in the body. All overrides are returned,
    since any of them may be the one that counts. The body is searched only if an adapter has read it.
    """
    method = request.method.upper()
    if method != "POST":
        return (method,)
    overrides = [line for name in OVERRIDES for line in request.header_lines(name)]
    if request.query:
        overrides += map(unquote_plus, FIELD.findall(request.query))
    if request.body:
        overrides += _overrides_in_body(request.body.decode("latin-1"), (request.header("content-type") or "").lower())
    return tuple(dict.fromkeys([method, *(one.strip().upper() for one in overrides)])) if overrides else (method,)


def _overrides_in_body(body: str, kind: str) -> Iterator[str]:
    if "json" in kind:
        for value in JSON_FIELD.findall(body):
            yield re.sub(r"\\u00([0-9A-Fa-f]{2})", lambda code: chr(int(code[1], 16)), value)
    elif "multipart" in kind:
        named = False
        for found in PART.finditer(body):
            if named and found[1] is not None:
                yield found[1]
            named = found[1] is None
    else:
        yield from map(unquote_plus, FIELD.findall(body))


@dataclass(frozen=True, slots=True)
class HeaderMatch:
    """A condition on one header. `values` is True if it must be present, False if it must be absent; otherwise one of
    its lines must be one of the values, in which `*` stands for any text."""

    name: str
    values: tuple[str, ...] | bool

    def holds(self, request: RequestView) -> bool:
        """Return True if the request meets this condition."""
        lines = request.header_lines(self.name)
        if isinstance(self.values, bool):
            return bool(lines) is self.values
        return any(_matches_wildcard(line.strip(), value) for line in lines for value in self.values)


@dataclass(frozen=True, slots=True)
class Match:
    """The conditions of a rule or an exemption. An empty match matches every request.

    A request must meet all conditions that are given, with one of the values of each.

    Args:
        paths: Patterns like `/users/{id}` or `/files/{path*}`.
        methods: Names of methods. GET includes HEAD.
        hosts: Names, or `*.example.com`.
        headers: The names of headers, each with a value, a list of values, True (present) or False (absent).
        tiers: Names of tiers.
        addresses: Addresses and ranges of clients.

    Raises:
        PolicyError: The policy is invalid. It has every error, with its place.

    Examples:
        >>> from ratebound.policy import Match, Rule
        >>> rule = Rule("write", "10/minute", Match(paths=["/orders/{path*}"], methods=["POST", "PUT"]))
    """

    paths: Sequence[str] = ()
    methods: Sequence[str] = ()
    hosts: Sequence[str] = ()
    headers: Mapping[str, "str | bool | Iterable[str]"] = field(default_factory=dict)
    tiers: Sequence[str] = ()
    addresses: Sequence[str] = ()

    patterns: tuple[Pattern, ...] = field(init=False, repr=False, compare=False)
    header_matches: tuple[HeaderMatch, ...] = field(init=False, repr=False, compare=False)
    networks: Networks | None = field(init=False, repr=False, compare=False)
    is_plain: bool = field(init=False, repr=False, compare=False)  # no condition but path, method and host

    def __post_init__(self) -> None:
        problems, put = Problems(), object.__setattr__
        patterns: list[Pattern] = []
        for name in ("paths", "methods", "hosts", "tiers", "addresses"):
            given = getattr(self, name)
            put(self, name, ())  # stays empty if it cannot be read, so that the other conditions are checked too
            with problems.at(name):
                put(self, name, as_texts(name, given))
        for place, text in enumerate(self.paths):
            with problems.at("paths", place):
                patterns.append(Pattern(text))
        for place, method in enumerate(self.methods):
            near = get_close_matches(method.upper(), METHODS, 1, 0.7)
            if not set(method) <= TOKEN:
                problems.add(("methods", place), f"invalid method {shown(method)}: expected for example GET")
            elif near and method.upper() not in METHODS:
                problems.add(("methods", place), f"unknown method {shown(method)}: did you mean '{near[0]}'?")
        for place, host in enumerate(self.hosts):
            with problems.at("hosts", place):
                _check_host(host)
        for place, text in enumerate(self.addresses):
            with problems.at("addresses", place):
                parse_network(text)
        with problems.at("headers"):
            put(self, "header_matches", tuple(_header_matches(self.headers, problems)))
        problems.check()
        put(self, "methods", _with_head(self.methods))
        put(self, "hosts", tuple(host_of(host) for host in self.hosts))
        put(self, "patterns", tuple(patterns))
        put(self, "networks", Networks(self.addresses) if self.addresses else None)
        put(self, "is_plain", not (self.header_matches or self.addresses or self.tiers))

    def failure(
        self, request: RequestView, readings: list[Segments], tier: str | None, address: Address | None
    ) -> str | None:
        """Return the first condition that a request does not meet, in words; None if it matches.

        Args:
            request: The request.
            readings: The ways in which the path is read.
            tier: The tier of the client, if it is known.
            address: The address of the client, if it is known.
        """
        if self.patterns and not any(pattern.matches(reading) for pattern in self.patterns for reading in readings):
            return f"the path is none of {', '.join(self.paths)}"
        if self.methods and not set(methods_of(request)) & set(self.methods):
            return f"the method is none of {', '.join(self.methods)}"
        if self.hosts and not any(self._matches_host(host) for host in hosts_of(request)):
            return f"the host is none of {', '.join(self.hosts)}"
        return self.condition_failure(request, tier, address)

    def condition_failure(self, request: RequestView, tier: str | None, address: Address | None) -> str | None:
        """Return the first of the other conditions that a request does not meet: path, method and host are known to
        match. None if it matches.

        Args:
            request: The request.
            tier: The tier of the client, if it is known.
            address: The address of the client, if it is known.
        """
        for header in self.header_matches:
            if not header.holds(request):
                return f"the header {header.name} does not match"
        if self.networks is not None and (address is None or address not in self.networks):
            return f"the address is in none of {', '.join(self.addresses)}"
        if self.tiers and tier not in self.tiers:
            return f"the tier is none of {', '.join(self.tiers)}"
        return None

    def is_exact(self, request: RequestView) -> bool:
        """Return True if no server can read the request as one that does not match: all servers read its path alike,
        every reading is spelled like a pattern or was routed to one, and every host that it names is one of `hosts`.

        Args:
            request: The request.
        """
        if self.hosts and not all(self._matches_host(host) for host in hosts_of(request)):
            return False
        if not self.patterns:
            return True
        paths = request.paths
        groups: Sequence[Sequence[str]] = ((paths,),) if isinstance(paths, str) else paths.groups
        if not all(map(is_clean, texts_of(paths))):
            return False
        if all(self._is_spelled(group) for group in groups):
            return True
        if request.route is None:
            return False
        templates = [request.route, *([] if isinstance(paths, str) else [paths.prefix + request.route])]
        return any(self._is_routed(groups, template) for template in templates)

    def _is_spelled(self, group: Iterable[str]) -> bool:
        return any(pattern.is_exact(path) for path in group for pattern in self.patterns)

    def _is_routed(self, groups: Iterable[Sequence[str]], template: str) -> bool:
        """Return True if the router's template and every reading of the path match one pattern. The template alone is
        not enough: `/{path:path}` looks like one segment and matches all paths."""
        patterns = [
            pattern
            for pattern in self.patterns
            if not (pattern.whole and CATCH_ALL.search(template))
            and any(pattern.matches(reading) for reading in spellings(template))
        ]
        return bool(patterns) and all(
            any(pattern.matches(reading) for path in group for reading in spellings(path) for pattern in patterns)
            for group in groups
        )

    def _matches_host(self, host: str) -> bool:
        return any(host_matches(pattern, host) for pattern in self.hosts)


def host_matches(pattern: str, host: str) -> bool:
    """Return True if a host in its canonical form matches a name or `*.` and a domain."""
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


class Ranges(Generic[T]):
    """A table of values by address range. A search takes one look-up per prefix length, for any number of ranges."""

    def __init__(self, values: Iterable[tuple[str, T]]) -> None:
        tables: dict[tuple[int, int], dict[int, list[T]]] = {}
        for text, value in values:
            network = parse_network(text)
            shift = network.max_prefixlen - network.prefixlen
            table = tables.setdefault((network.version, shift), {})
            table.setdefault(int(network.network_address) >> shift, []).append(value)
        self._tables = {
            version: sorted((shift, table) for (other, shift), table in tables.items() if other == version)
            for version in (4, 6)
        }

    def __bool__(self) -> bool:
        return any(self._tables.values())

    def find(self, address: Address | None) -> Iterator[T]:
        """Yield the values of all ranges that contain the address, narrowest range first."""
        if address is not None:
            number = int(address)
            for shift, table in self._tables[address.version]:
                yield from table.get(number >> shift, ())


def _matches_wildcard(text: str, pattern: str) -> bool:
    """Return True if the text matches a pattern in which `*` stands for any text. Takes linear time, unlike a regular
    expression."""
    if "*" not in pattern:
        return text == pattern
    first, *middle, last = pattern.split("*")
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    place, end = len(first), len(text) - len(last)
    for piece in middle:
        place = text.find(piece, place, end)
        if place < 0:
            return False
        place += len(piece)
    return True


def _with_head(methods: Iterable[str]) -> tuple[str, ...]:
    """Return the methods in upper case, with HEAD if GET is among them: servers handle both alike."""
    upper = dict.fromkeys(method.upper() for method in methods)
    return tuple({**upper, "HEAD": None} if "GET" in upper else upper)


def _check_host(text: str) -> None:
    if "/" in text or not is_host(text):
        hint = ", without a scheme and a path" if "/" in text else ""
        raise ValueError(f"invalid host {shown(text)}: expected for example 'api.example.com' or '*.example.com'{hint}")
    bracket = text.rfind("]") + 1
    port = text.find(":", bracket)
    if port >= 0:  # raise, since ports are ignored: an exemption would apply to all ports
        raise ValueError(f"{shown(text)} has a port, but ports are ignored: write {shown(text[:port])}")


def _header_matches(headers: object, problems: Problems) -> Iterator[HeaderMatch]:
    if not isinstance(headers, Mapping):
        raise ValueError(f"headers must map names to values, not {shown(headers)}")
    for name, value in headers.items():
        if not isinstance(name, str) or not name or not set(name) <= TOKEN:
            problems.add(("headers",), f"invalid name of a header {shown(name)}: expected for example 'x-client'")
        elif isinstance(value, bool):
            yield HeaderMatch(name.lower(), value)
        else:
            with problems.at("headers", name):
                values = as_texts("a header's value", value)
                if not values:
                    raise ValueError("expected a value, a list of values, true (present) or false (absent)")
                yield HeaderMatch(name.lower(), values)
