"""Paths: how a request may be spelled, and the patterns that it is matched against.

A spelling must not escape a rule, and servers differ in how they read one. So a path that is not plain is matched in
every way in which it may be read: as it came, decoded once or twice, with dot segments resolved or left, with
backslashes as slashes, without `;` parameters or trailing spaces; always without regard to case, doubled and trailing
slashes. A match in any reading binds. Only an exact match, in the spelling of the pattern, releases: exempts, ends the
search, keeps defaults away.
"""

import re
import unicodedata
from urllib.parse import unquote

Segments = tuple[str, ...]

LETTERS = r"[A-Za-z0-9_~!$&'()*+,=:@-]+"
PLAIN = re.compile(rf"(?:/{LETTERS}(?:[.]+{LETTERS})*)+/?|/")  # no dots at the ends of a segment
ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
# Encodings that hide what a path is made of: '/', '\', '.', '%', ';' and control characters.
HIDDEN = re.compile(r"%(?:2[fFeE5]|5[cC]|3[bB]|[01][0-9A-Fa-f]|7[fF])")
PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
REST = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\*\}|\*\*")


def spellings(path: str) -> list[Segments]:
    """The ways in which a path may be read, folded; a plain path has one."""
    if PLAIN.fullmatch(path):
        return [_segments(path.lower())]
    absolute = ABSOLUTE.match(path)
    raw = (path[absolute.end() :] if absolute else path).partition("?")[0].partition("#")[0]
    once = unquote(raw)
    readings = {
        raw: None,
        once: None,
        unquote(once): None,
    }
    found = {tuple(_fold(unquote(segment)) for segment in raw.split("/") if segment): None}  # an encoded '/' in a name
    for reading in readings:
        cut = re.sub(";[^/]*", "", reading.replace("\\", "/"))
        parts = cut.split("/")
        for split in (reading.split("/"), parts, map(_trimmed, parts)):
            segments = tuple(_fold(segment) for segment in split if segment)
            found[segments] = None
            found[_resolved(segments)] = None
    return list(found)


def is_clean(path: str) -> bool:
    """Whether every server reads it alike."""
    if PLAIN.fullmatch(path):
        return True
    if "//" in path or "\\" in path or ";" in path or "?" in path or "#" in path or HIDDEN.search(path):
        return False
    return path.startswith("/") and not any(segment in (".", "..") for segment in path.split("/"))


class Mixed:
    """A segment of literals and parameters, `v{n}` or `{name}.{suffix}`: each parameter is at least one character.

    Looked for piece by piece, not by a regular expression, so that no text makes it slow.
    """

    __slots__ = ("pieces",)

    def __init__(self, pieces: tuple[str, ...]) -> None:
        self.pieces = pieces

    def matches(self, segment: str) -> bool:
        first, *middle, last = self.pieces
        if not segment.startswith(first) or not segment.endswith(last):
            return False
        place, end = len(first), len(segment) - len(last)
        for piece in middle:
            place = segment.find(piece, place + 1, end)
            if place < 0:
                return False
            place += len(piece)
        return place < end


Step = str | Mixed | None  # a literal, literals and parameters, a parameter


class Pattern:
    """`/users/{id}`, `/v{n}/login`, `/files/{path*}`; `*` and `**` are the same without a name.

    A parameter is at least one character, the rest of a path may be nothing.
    """

    __slots__ = ("_spelled", "segments", "text", "whole")

    def __init__(self, text: str) -> None:
        if not text.startswith("/"):
            raise ValueError(f"path {text!r} must begin with '/': for example '/users/{{id}}' or '/files/{{path*}}'")
        if any(mark in text for mark in ("?", "#", "\\", ";", "//")) or any(c < " " for c in text):
            raise ValueError(
                f"path {text!r} can never match: leave out '?', '#', ';', '\\', '//' and control characters"
            )
        parts = [part for part in text.split("/") if part]
        if any(part in (".", "..") for part in parts):
            raise ValueError(f"path {text!r} can never match: dot segments are resolved before matching")
        self.text = text
        self.whole = not (parts and REST.fullmatch(parts[-1]))  # no rest
        steps = parts if self.whole else parts[:-1]
        for part in steps:
            if "**" in part or "{" in PARAMETER.sub("", part) or "}" in PARAMETER.sub("", part):
                raise ValueError(
                    f"path {text!r}: cannot read {part!r}; parameters are {{name}}, and {{name*}} or ** at the end"
                )
        self.segments = [_step(part, folded=True) for part in steps]
        self._spelled = [_step(part, folded=False) for part in steps]

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def matches(self, segments: Segments) -> bool:
        """Whether one reading of a path is matched; the index of rules does the same for many patterns at once."""
        return self._matches(self.segments, segments)

    def is_exact(self, path: str) -> bool:
        """Whether a clean path is spelled as the pattern is, but for a slash at its end."""
        return self._matches(self._spelled, _segments(path))

    def _matches(self, steps: list[Step], segments: Segments) -> bool:
        if len(segments) < len(steps) or (self.whole and len(segments) > len(steps)):
            return False
        for step, segment in zip(steps, segments, strict=False):
            if not (
                segment != "" if step is None else step == segment if isinstance(step, str) else step.matches(segment)
            ):
                return False
        return True


def _step(part: str, *, folded: bool) -> Step:
    if part == "*" or PARAMETER.fullmatch(part):
        return None
    pieces = re.split(r"\{[^}]*\}|\*", part)
    if folded:
        pieces = [_fold(unquote(piece)) for piece in pieces]
    return pieces[0] if len(pieces) == 1 else Mixed(tuple(pieces))


def _segments(text: str) -> Segments:
    parts = text.split("/")
    return tuple(parts[1:-1] if parts[-1] == "" else parts[1:])


def _fold(segment: str) -> str:
    if segment.isascii():
        return segment.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", segment).casefold())


def _trimmed(segment: str) -> str:
    """As file systems and C strings have it: no spaces and dots at the end, nothing behind a NUL."""
    return segment if segment in (".", "..") else segment.partition("\0")[0].rstrip(" .\t\r\n\v\f")


def _resolved(segments: Segments) -> Segments:
    found: list[str] = []
    for segment in segments:
        if segment == "..":
            if found:
                found.pop()
        elif segment != ".":
            found.append(segment)
    return tuple(found)
