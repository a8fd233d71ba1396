"""Which rules a request meets: the conditions of one rule, in words.

index.py finds the rules of a request among many; it must say the same as `Match.failure` does for each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import parse_qsl

from ratekeeper.http.prefix import Address, Networks, parse_network
from ratekeeper.policy.path import Pattern, Segments, is_clean, spellings
from ratekeeper.policy.problem import Problems, as_texts, shown
from ratekeeper.policy.request import RequestView

T = TypeVar("T")

TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
MAX_QUERY = 8192  # characters
MAX_HOST = 262  # characters: a name of 253, a port and dots
OVERRIDES = ("x-http-method-override", "x-http-method", "x-method-override")


def methods_of(request: RequestView) -> tuple[str, ...]:
    """What a request may be carried out as: a POST can ask to be another method, and some servers listen."""
    method = request.method.upper()
    if method != "POST":
        return (method,)
    asked = [line.strip().upper() for name in OVERRIDES for line in request.header_lines(name)]
    if "_" in request.query or "%" in request.query:
        pairs = parse_qsl(request.query[:MAX_QUERY], errors="replace")
        asked += [value.strip().upper() for name, value in pairs if name.lower() == "_method"]
    return tuple(dict.fromkeys([method, *asked[:8]]))


def host_of(text: str) -> str:
    """A host without its port, in lower case, without the root's dot."""
    host = text.strip().lower()[-MAX_HOST:]
    if host.startswith("["):
        return host.partition("]")[0][1:]
    return host.partition(":")[0].rstrip(".")


@dataclass(frozen=True, slots=True)
class HeaderMatch:
    """True: it is there; False: it is not; else any of its lines is one of `values`, where `*` stands for anything."""

    name: str
    values: tuple[str, ...] | bool

    def holds(self, request: RequestView) -> bool:
        lines = request.header_lines(self.name)
        if isinstance(self.values, bool):
            return bool(lines) is self.values
        return any(_like(line.strip(), value) for line in lines for value in self.values)


@dataclass(frozen=True, slots=True)
class Match:
    """All that is given must hold; of several values in one condition, any. An empty match meets every request.

    `paths` are patterns like `/users/{id}` or `/files/{path*}`, `hosts` names or `*.example.com`, `headers` names with
    a value, several, or true and false for there and not there. GET includes HEAD.
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
            with problems.at(name):
                put(self, name, as_texts(name, getattr(self, name)))
        if problems.found:
            problems.check()
        for place, text in enumerate(self.paths):
            with problems.at("paths", place):
                patterns.append(Pattern(text))
        for place, method in enumerate(self.methods):
            if not set(method) <= TOKEN:
                problems.add(("methods", place), f"{shown(method)} is no method: expected for example GET")
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
        """Why a request does not meet this match, or None if it does."""
        if self.patterns and not any(pattern.matches(reading) for pattern in self.patterns for reading in readings):
            return f"the path is none of {', '.join(self.paths)}"
        if self.methods and not set(methods_of(request)) & set(self.methods):
            return f"the method is none of {', '.join(self.methods)}"
        if self.hosts and not any(host_matches(host, host_of(request.host)) for host in self.hosts):
            return f"the host is none of {', '.join(self.hosts)}"
        return self.condition(request, tier, address)

    def condition(self, request: RequestView, tier: str | None, address: Address | None) -> str | None:
        """The same for what is left when path, method and host are known to match."""
        for header in self.header_matches:
            if not header.holds(request):
                return f"the header {header.name} does not match"
        if self.networks is not None and (address is None or address not in self.networks):
            return f"the address is in none of {', '.join(self.addresses)}"
        if self.tiers and tier not in self.tiers:
            return f"the tier is none of {', '.join(self.tiers)}"
        return None

    def is_exact(self, request: RequestView) -> bool:
        """Whether the path is spelled as a pattern is, or the router says that it is this one."""
        if not self.patterns:
            return True
        if is_clean(request.path) and any(pattern.is_exact(request.path) for pattern in self.patterns):
            return True
        return request.route is not None and any(
            pattern.matches(reading) for reading in spellings(request.route) for pattern in self.patterns
        )


def host_matches(pattern: str, host: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


class Ranges(Generic[T]):
    """Values by address range: one look-up for each length of prefix that occurs, however many ranges there are."""

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
        """Of all ranges that hold the address, the narrowest first."""
        if address is not None:
            number = int(address)
            for shift, table in self._tables[address.version]:
                yield from table.get(number >> shift, ())


def _like(text: str, pattern: str) -> bool:
    """`*` stands for anything. In pieces, not a regular expression: no text makes it slow."""
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
    """A HEAD is answered like a GET, so it counts as one."""
    upper = dict.fromkeys(method.upper() for method in methods)
    return tuple({**upper, "HEAD": None} if "GET" in upper else upper)


def _check_host(text: str) -> None:
    name = text[2:] if text.startswith("*.") else text
    if not name or "*" in name or "/" in name or any(c.isspace() for c in name):
        raise ValueError(f"{shown(text)} is no host: expected for example 'api.example.com' or '*.example.com'")


def _header_matches(headers: object, problems: Problems) -> Iterator[HeaderMatch]:
    if not isinstance(headers, Mapping):
        raise ValueError(f"headers must be names with values, not {shown(headers)}")
    for name, value in headers.items():
        if not isinstance(name, str) or not name or not set(name) <= TOKEN:
            problems.add(("headers",), f"{shown(name)} is no name of a header")
        elif isinstance(value, bool):
            yield HeaderMatch(name.lower(), value)
        else:
            with problems.at("headers", name):
                values = as_texts("a header's value", value)
                if not values:
                    raise ValueError("expected a value, several, or true or false for there or not there")
                yield HeaderMatch(name.lower(), values)
