"""Lines that one regular expression reads, a block of some thousand lines at a time.

Nothing is called for each line but C code: `findall` reads the lines, tables (log_time.Kept) make numbers of the
columns of its result, and `zip` makes the entries.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import sub
from typing import Any, NamedTuple

from ratebound.replay.entry import Entry
from ratebound.replay.log_time import (
    Kept,
    read_epoch_text,
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
DURATIONS: dict[str, Callable[[str], int]] = {
    "seconds": read_seconds,
    "milliseconds": read_milliseconds,
    "microseconds": read_microseconds,
}
QUOTED = r'[^"\\\n]*(?:\\.[^"\\\n]*)*'  # the text between two quotes; the server puts a backslash before quotes in it
ESCAPES = re.compile(r"""(?:\\x[0-9A-Fa-f]{2})+|\\u[0-9A-Fa-f]{4}|\\["\\/]""")

_new_entry: Callable[[Iterable[Any]], Entry] = partial(tuple.__new__, Entry)


class Malformed(ValueError):
    """A block has a line that does not have its format."""


class Part(NamedTuple):
    """A piece of a line: the regular expression, and the meaning of each of its groups.

    Meanings are "address", "user", "method", "target", "path", "query", "status", "host", "agent", those of TIMES and
    DURATIONS, and "=NAME" for all else, which becomes an entry's `fields`.
    """

    pattern: str
    meanings: tuple[str, ...] = ()
    plain: str = ""  # the pattern without groups, for a reader that does not want this field


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
    stop = re.escape(end)
    target = rf"[^ \\\n{stop}]+(?:(?:\\.| (?!HTTP/[0-9.]+{stop}))[^ \\\n{stop}]*)*"
    other = QUOTED if end == '"' else rf"[^\n{stop}]*"
    return Part(rf"(?:([A-Z][A-Z_-]*) ({target})(?: HTTP/[0-9.]+)?(?={stop})|{other})", ("method", "target"), other)


class TextFormat:
    """The format of lines that a regular expression reads."""

    __slots__ = ("_durations", "_fields", "_meanings", "_pattern", "_statuses", "_times", "name", "resolution")

    def __init__(
        self, name: str, parts: Iterable[Part], *, fields: Collection[str] | None = None, resolution: int = 1_000_000
    ) -> None:
        self.name = name
        self.resolution = resolution
        pattern = ""
        meanings: list[str] = []
        for part in parts:
            if part.meanings and _wanted(part.meanings[0], fields):
                pattern += part.pattern
                meanings += part.meanings
            else:
                pattern += part.plain or part.pattern
        self._pattern = re.compile(f"^{pattern}$", re.MULTILINE)
        self._meanings = tuple(meanings)
        self._fields = tuple(meaning[1:] for meaning in meanings if meaning.startswith("="))
        self._times = {name: Kept(read) for name, read in TIMES.items() if name in meanings}
        self._durations = {name: Kept(read) for name, read in DURATIONS.items() if name in meanings}
        self._statuses = Kept(read_status)

    def read(self, text: str) -> list[Entry]:
        """Return the entries of some lines, each with its line end. Raises ValueError if one does not fit."""
        found = self._pattern.findall(text)
        if len(found) != text.count("\n"):
            raise Malformed
        if not found:
            return []
        columns: dict[str, Sequence[str]] = dict(zip(self._meanings, zip(*found, strict=True), strict=True))
        if "\\" in text:
            _unescape_columns(columns)
        empty = repeat("", len(found))
        return list(
            map(
                _new_entry,
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

    def _arrivals(self, columns: Mapping[str, Sequence[str]]) -> Iterable[int]:
        for name, table in self._times.items():
            ends: Iterable[int] = map(table.__getitem__, columns[name])
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
