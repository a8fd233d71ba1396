"""The clients of a load test: how each one is told from the others, and which client sends the next request.

A client is known by a header, a query parameter, a bearer token, an address in X-Forwarded-For, or the address that it
connects from. Tokens are secrets: they are in no repr and no error.
"""

import random
import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle, repeat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

ASSIGNMENTS = ("round-robin", "random", "zipf")
KINDS = ("header", "query", "bearer", "forwarded", "source")
MAX_CLIENTS = 1_000_000
MAX_SOURCES = 250 * 250  # 127.0.0.2 to 127.0.x.y: Linux answers on all of 127.0.0.0/8
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
VALUE = re.compile(r"[ -~\x80-\xff]{0,8192}")
EXAMPLES = (
    "expected for example 'header:X-Api-Key=key-{n}', 'query:api_key=key-{n}', 'bearer:token-{n}',"
    " 'bearer:@tokens.txt' (one token per line), 'forwarded' or 'source'"
)


class ClientMarks(NamedTuple):
    """The headers and query of one client's requests, and the address that they come from."""

    headers: tuple[tuple[str, str], ...] = ()
    query: str = ""  # "api_key=key-3", encoded
    source: str | None = None


@dataclass(frozen=True, slots=True)
class IdentityMark:
    """One way to tell clients apart. `values` is a text with {n} for the number of the client, or a list."""

    kind: str
    name: str = ""
    values: str | tuple[str, ...] = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown identity {self.kind[:40]!r}: {EXAMPLES}")
        if self.kind == "header" and not NAME.fullmatch(self.name):
            raise ValueError(f"{self.name[:80]!r} is not the name of a header: {EXAMPLES}")
        if self.kind == "query" and not self.name:
            raise ValueError(f"the query parameter has no name: {EXAMPLES}")
        given = (self.values,) if isinstance(self.values, str) else self.values
        if self.kind in ("header", "query", "bearer") and not all(given):
            raise ValueError(f"the identity {self.kind!r} has an empty value: {EXAMPLES}")
        if not all(VALUE.fullmatch(value) for value in given):
            raise ValueError(f"a value of the identity {self.kind!r} has characters that no header may have")

    def value_of(self, client: int) -> str:
        """Return the value of a client."""
        if isinstance(self.values, str):
            return self.values.replace("{n}", str(client))
        return self.values[client % len(self.values)]


def parse_identity(text: str) -> IdentityMark:
    """Return the identity that a text describes. Raises ValueError if it cannot be read, OSError for a missing file."""
    kind, _, rest = text.partition(":")
    if kind in ("header", "query"):
        name, found, value = rest.partition("=")
        if not found:
            raise ValueError(f"the identity {kind!r} needs a name and a value: {EXAMPLES}")
        return IdentityMark(kind, name, value)
    if kind == "bearer" and rest.startswith("@"):
        try:
            lines = Path(rest[1:]).read_text("utf-8").splitlines()
        except UnicodeDecodeError:
            raise ValueError(f"the file {rest[1:]!r} is no text in UTF-8: expected one token per line") from None
        tokens = tuple(line.strip() for line in lines if line.strip())
        if not tokens:
            raise ValueError(f"the file {rest[1:]!r} has no tokens: expected one per line")
        return IdentityMark(kind, "", tokens)
    return IdentityMark(kind, "", rest)


@dataclass(frozen=True, slots=True)
class Clients:
    """`count` clients that differ by their marks. Without marks all requests look the same."""

    count: int = 1
    marks: Sequence[IdentityMark] = ()
    assignment: str = "round-robin"
    skew: float = 1.0  # of "zipf": client k sends in proportion to 1/(k + 1)^skew

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 1 <= self.count <= MAX_CLIENTS:
            raise ValueError(f"the number of clients must be from 1 to {MAX_CLIENTS}, not {self.count!r}")
        if self.assignment not in ASSIGNMENTS:
            expected = ", ".join(map(repr, ASSIGNMENTS))
            raise ValueError(f"unknown assignment {self.assignment[:40]!r}: expected one of {expected}")
        if not 0 <= self.skew <= 10:
            raise ValueError(f"the skew of zipf must be from 0 to 10, not {self.skew!r}")
        if any(mark.kind == "source" for mark in self.marks) and self.count > MAX_SOURCES:
            raise ValueError(f"there are only {MAX_SOURCES} source addresses: give fewer clients than {self.count}")

    def marks_of(self, client: int) -> ClientMarks:
        """Return what the requests of a client carry."""
        headers: list[tuple[str, str]] = []
        query: list[str] = []
        source = None
        for mark in self.marks:
            value = mark.value_of(client)
            if mark.kind == "header":
                headers.append((mark.name, value))
            elif mark.kind == "query":
                query.append(f"{quote(mark.name, safe='')}={quote(value, safe='')}")
            elif mark.kind == "bearer":
                headers.append(("Authorization", f"Bearer {value}"))
            elif mark.kind == "forwarded":
                headers.append(("X-Forwarded-For", value or _private_address(client)))
            else:
                source = _loopback_address(client)
        return ClientMarks(tuple(headers), "&".join(query), source)

    def assigned(self, seed: int = 0) -> Iterator[int]:
        """Yield the client of each request, without end. The seed fixes all of them."""
        if self.count == 1:
            return repeat(0)
        if self.assignment == "round-robin":
            return cycle(range(self.count))
        weights = repeat(1.0, self.count) if self.assignment == "random" else map(self._share, range(self.count))
        return weighted(list(weights), seed)

    def _share(self, client: int) -> float:
        return float((client + 1) ** -self.skew)


def weighted(weights: Sequence[float], seed: int) -> Iterator[int]:
    """Yield indexes in proportion to their weights, without end."""
    bounds = list(accumulate(weights))
    total, last = bounds[-1], len(bounds) - 1
    draw = random.Random(seed).random
    while True:
        yield bisect(bounds, draw() * total, 0, last)


def _private_address(client: int) -> str:
    number = client + 1
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _loopback_address(client: int) -> str:
    """Return 127.0.0.2 for the first client. The last number is never 0, 1 or 255."""
    return f"127.0.{client // 250}.{client % 250 + 2}"
