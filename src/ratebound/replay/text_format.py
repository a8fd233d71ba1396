"""Lines that one regular expression reads, a block of some thousand lines at a time.

Nothing is called for each line but C code: `findall` reads the lines, tables (log_time.Kept) make numbers of the
columns of its result, and `zip` makes the entries.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import repeat
from operator import sub
from typing import Any, NamedTuple
from urllib.parse import unquote

from ratebound.replay.entry import Entry
from ratebound.replay.log_time import (
    Kept,
    read_epoch_column,
    read_epoch_text,
    read_iso_column,
    read_iso_time,
    read_local_time,
    read_microseconds,
    read_milliseconds,
    read_seconds,
    read_status,
)

TIMES: dict[str, Callable[[str], int]] = {
    "local time": read_local_time,
    "iso time": read_iso_time,
    "epoch": read_epoch_text,
}
TIME_COLUMNS = {"epoch": read_epoch_column, "iso time": read_iso_column}
DURATIONS: dict[str, Callable[[str], int]] = {
    "seconds": read_seconds,
    "milliseconds": read_milliseconds,
    "microseconds": read_microseconds,
}
KEPT_SPELLINGS = 20_000
QUOTED = r'[^"\\\n]*(?:\\.[^"\\\n]*)*'  # the text between two quotes; the server puts a backslash before quotes in it
REQUEST = (
    r'(?:([A-Z][A-Z_-]*) ([^ \\\n"]+(?:(?:\\.| (?!HTTP/[0-9.]+"))[^ \\\n"]*)*)(?: HTTP/[0-9.]+)?(?=")'
    rf"|{QUOTED})"
)
# A class of one character, such as [^"], is matched several times as fast as a class of three.
_FASTER = {
    QUOTED: '[^"]*',
    r"[^\n\ ]": "[^ ]",
    r"[^ \n]": "[^ ]",
    r"[^\n\]]": r"[^\]]",
    "[^\\n\\\t]": r"[^\t]",
    r'[^\n"]': '[^"]',
    r'[^"\n]': '[^"]',
}
ESCAPES = re.compile(r"""(?:\\x[0-9A-Fa-f]{2})+|\\u[0-9A-Fa-f]{4}|\\["\\/]""")

new_entry: Callable[[Iterable[Any]], Entry] = partial(tuple.__new__, Entry)


def peer_address(text: str) -> str:
    """Return the address of an address with a port, such as 192.0.2.1:443 or [2001:db8::1]:443."""
    address, _, port = text.rpartition(":")
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return address if port.isdecimal() and address else text


def last_address(text: str) -> str:
    """Return the last address of X-Forwarded-For: the one that the nearest proxy saw."""
    return text.rpartition(",")[2].strip()


def usual_host(text: str) -> str:
    """Return the host of a URL without the usual ports."""
    return text.removesuffix(":443").removesuffix(":80")


def decode_percent(text: str) -> str:
    """Return the text of a value in percent-encoding. Control characters stay encoded."""
    plain = unquote(text, errors="strict") if text.isascii() else text
    return plain if plain.isprintable() else text


# Other spellings of what an entry has: the meaning, and the function that makes the usual text of it.
SPELLINGS: dict[str, tuple[str, Callable[[str], str]]] = {
    "address and port": ("address", peer_address),
    "addresses": ("address", last_address),
    "host and port": ("host", usual_host),
    "encoded agent": ("agent", decode_percent),
}


class Malformed(ValueError):
    """A block has a line that does not have its format."""


class Part(NamedTuple):
    """A piece of a line: the regular expression, and the meaning of each of its groups.

    Meanings are "address", "user", "method", "target", "path", "query", "status", "host", "agent", those of TIMES,
    DURATIONS and SPELLINGS, and "=NAME" for all else, which becomes an entry's `fields`.
    """

    pattern: str
    meanings: tuple[str, ...] = ()
    plain: str = ""  # the pattern without groups, for a reader that does not want this field
    fast: str = ""  # the pattern for usual lines only; empty: the general one, with faster classes of characters


def literal(text: str) -> Part:
    """Return the part of a line that is always the same."""
    return Part(re.escape(text))


def value(meaning: str, pattern: str = r"[^ \n]+", *, end: str = " ") -> Part:
    """Return a part that is one value. "-" stands for no value; `end` is the character after it."""
    stop = re.escape(end) if end else "$"
    return Part(f"(?:-(?={stop})|({pattern}))", (meaning,), f"(?:{pattern})")


def quoted(meaning: str) -> Part:
    """Return a part that is one value in quotes."""
    return Part(f'"(?:-(?=")|({QUOTED}))"', (meaning,), f'"{QUOTED}"')


def request_line(end: str = '"') -> Part:
    """Return the part of a request line, such as GET / HTTP/1.1, up to the character `end`.

    A space belongs to the target unless the protocol follows. A line without an HTTP request has an empty method.
    """
    if end == '"':
        fast = r'(?:([A-Z][A-Z_-]*) ([^ ]+) HTTP/[0-9.]+(?=")|(?![A-Z])[^"]*)'
        return Part(REQUEST, ("method", "target"), QUOTED, fast)
    stop = re.escape(end)
    target = rf"[^ \n{stop}]+(?: (?!HTTP/[0-9.]+{stop})[^ \n{stop}]*)*"
    other = rf"[^\n{stop}]*"
    return Part(rf"(?:([A-Z][A-Z_-]*) ({target})(?: HTTP/[0-9.]+)?(?={stop})|{other})", ("method", "target"), other)


class TextFormat:
    """The format of lines that a regular expression reads."""

    __slots__ = (
        "_durations",
        "_fast_pattern",
        "_fields",
        "_meanings",
        "_pattern",
        "_spellings",
        "_statuses",
        "_times",
        "name",
        "resolution",
    )

    def __init__(
        self, name: str, parts: Iterable[Part], *, fields: Collection[str] | None = None, resolution: int = 1_000_000
    ) -> None:
        self.name = name
        self.resolution = resolution
        general = fast = ""
        meanings: list[str] = []
        for part in parts:
            pattern = part.plain or part.pattern
            if part.meanings and _wanted(part.meanings[0], fields):
                pattern = part.pattern
                meanings += part.meanings
            general += pattern
            fast += part.fast or _faster(pattern)
        self._pattern = re.compile(rf"^{general}\n", re.MULTILINE)
        self._fast_pattern = re.compile(rf"^{fast}\n", re.MULTILINE)
        self._meanings = tuple(meanings)
        self._fields = tuple(meaning[1:] for meaning in meanings if meaning.startswith("="))
        self._times = {name: Kept(read) for name, read in TIMES.items() if name in meanings}
        self._durations = {name: Kept(read) for name, read in DURATIONS.items() if name in meanings}
        self._spellings = [
            (meaning, usual, lru_cache(KEPT_SPELLINGS)(function))
            for meaning, (usual, function) in SPELLINGS.items()
            if meaning in meanings
        ]
        self._statuses = Kept(read_status)

    def read(self, text: str) -> list[Entry]:
        """Return the entries of some lines, each with its line end. Raises ValueError if one does not fit."""
        found = self._found(text)
        if not found:
            return []
        columns: dict[str, Sequence[str]] = dict(zip(self._meanings, zip(*found, strict=True), strict=True))
        if "\\" in text:
            _unescape_columns(columns)
        for meaning, usual, function in self._spellings:
            columns[usual] = list(map(function, columns[meaning]))
        empty = repeat("")
        return list(
            map(
                new_entry,
                zip(
                    self._arrivals(columns),
                    columns.get("address", empty),
                    columns.get("method", empty),
                    self._targets(columns, empty),
                    self._column(columns, "status", self._statuses),
                    columns.get("host", empty),
                    columns.get("user", empty),
                    columns.get("agent", empty),
                    self._rest(columns),
                    strict=False,
                ),
            )
        )

    def _found(self, text: str) -> list[tuple[str, ...]]:
        """Return the groups of each line. Raises Malformed if a line does not fit.

        The fast pattern knows neither escaped quotes nor unusual requests, and a value could go on in the next line. A
        match has at least one whole line, so that there are as many matches as lines only if each line is one match.
        """
        lines = text.count("\n")
        if "\\" not in text or '\\"' not in text:  # the first is much faster to find
            found: list[tuple[str, ...]] = self._fast_pattern.findall(text)
            if len(found) == lines:
                return found
        found = self._pattern.findall(text)
        if len(found) != lines:
            raise Malformed
        return found

    def _arrivals(self, columns: Mapping[str, Sequence[str]]) -> Iterable[int]:
        ends: Iterable[int] | None = None
        for name, table in self._times.items():
            read_column = TIME_COLUMNS.get(name)
            if read_column is None or (ends := read_column(columns[name])) is None:
                ends = map(table.__getitem__, columns[name])
        assert ends is not None
        for name, table in self._durations.items():
            ends = map(sub, ends, map(table.__getitem__, columns[name]))
        return ends

    def _targets(self, columns: Mapping[str, Sequence[str]], empty: Iterable[str]) -> Iterable[str]:
        if "target" in columns:
            return columns["target"]
        if "query" in columns:
            return map(_joined_target, columns.get("path", empty), columns["query"])
        return columns.get("path", empty)

    def _column(self, columns: Mapping[str, Sequence[str]], name: str, table: Kept) -> Iterable[int]:
        return map(table.__getitem__, columns[name]) if name in columns else repeat(0)

    def _rest(self, columns: Mapping[str, Sequence[str]]) -> Iterable[Mapping[str, str] | None]:
        names = self._fields
        if not names:
            return repeat(None)
        return map(dict, map(zip, repeat(names), zip(*(columns[f"={name}"] for name in names), strict=True)))


def _wanted(meaning: str, fields: Collection[str] | None) -> bool:
    return fields is None or not meaning.startswith("=") or meaning[1:] in fields


def _faster(pattern: str) -> str:
    for general, fast in _FASTER.items():
        pattern = pattern.replace(general, fast)
    return pattern


def _joined_target(path: str, query: str) -> str:
    return f"{path}?{query.removeprefix('?')}" if query not in ("", "-") else path


def _unescape_columns(columns: dict[str, Sequence[str]]) -> None:
    for name, column in columns.items():
        if name not in TIMES and name not in DURATIONS:
            columns[name] = [unescape(text) if "\\" in text else text for text in column]


def unescape(text: str) -> str:
    r"""Return the text with \x22, \" and \\ replaced. Control characters stay written as escapes."""
    return ESCAPES.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    escape = match[0]
    if escape[1] == "x":
        try:
            plain = bytes.fromhex(escape.replace("\\x", "")).decode()
        except UnicodeDecodeError:
            return escape
    elif escape[1] == "u":
        plain = chr(int(escape[2:], 16))
    else:
        plain = escape[1]
    return plain if plain.isprintable() else escape
