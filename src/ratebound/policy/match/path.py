"""Paths: the spellings of a request's path, and the patterns that they are matched against.

No spelling of a path may evade a rule, and servers read unusual paths differently. So a path that is not plain is
matched in every way in which a server may read it: as received, without a scheme and a host, decoded once or twice,
with dot segments resolved or kept, with backslashes as slashes, without `;` parameters or trailing spaces, cut at `?`
and `#` or not, and as bytes that were read as latin-1. Case, doubled slashes and trailing slashes never matter.

If any spelling matches, a limit applies. What sets a request free needs more: only an exact match, in the spelling of
the pattern, exempts a request, ends the search, or keeps default rules away.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from urllib.parse import unquote, unquote_to_bytes

Segments = tuple[str, ...]

LETTERS = r"[A-Za-z0-9_~!$&'()*+,=:@-]+"
PLAIN = re.compile(rf"(?:/{LETTERS}(?:[.]+{LETTERS})*)+/?|/")  # a segment neither begins nor ends with a dot
ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\\]*")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
AUTHORITY = re.compile(r"//[^/?#]*")
BROWSERS_AUTHORITY = re.compile(r"[/\\]{2,}[^/\\?#]*")  # as browsers and Node read it: '///x', '/\x'
# Percent-encodings of characters that have a meaning in a path: '/', '\', '.', '%', ';', '#', '?', control characters.
HIDDEN = re.compile(r"%(?:2[fFeE35]|5[cC]|3[bBfF]|[01][0-9A-Fa-f]|7[fF])")
PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
CATCH_ALL = re.compile(r":path\b|path:|\*|\.\.\.")  # in a router's template: matches more than one segment
RUN = 32  # characters; no real letter has so many combining marks
REST = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\*\}|\*\*")


def spellings(path: str) -> Sequence[Segments]:
    """Return the ways in which a server may read a path, each as case-folded segments. A plain path has one."""
    return (_segments(path.lower()),) if PLAIN.fullmatch(path) else _odd_spellings(path)


@lru_cache(maxsize=4)  # called several times per request, whose path may be long
def _odd_spellings(path: str) -> Sequence[Segments]:
    readings: dict[str, None] = {}
    splits: dict[tuple[str, ...], None] = {}
    for whole in [cut for target in _targets(path) for cut in _cuts(target)]:
        splits[tuple(map(unquote, whole.split("/")))] = None  # an encoded '/' in a name
        taken = _latin_bytes(whole)
        if taken is not None:
            splits[tuple(_utf8(unquote_to_bytes(segment)) for segment in taken.split(b"/"))] = None
        for decoded in _decoded(whole):
            readings.update(dict.fromkeys(_cuts(decoded)))
    for reading in readings:
        parts = re.sub(";[^/]*", "", reading.replace("\\", "/")).split("/")
        for split in (reading.split("/"), parts, map(_trimmed, parts)):
            splits[tuple(split)] = None
    folds = {segment: _fold(segment) for segment in {segment for segments in splits for segment in segments if segment}}
    found: dict[Segments, None] = {}
    for segments in splits:
        folded = tuple([folds[segment] for segment in segments if segment])
        found[folded] = None
        found[_resolved(folded)] = None
    return tuple(found)


def _targets(text: str) -> Iterable[str]:
    """Return the target with and without a scheme and a host: some servers read 'x:/login' and '//x/login' as '/login'.
    Programs that parse targets as browsers do read '///x/login' and '/\\x/login' in that way, too.

    A server and the application behind it may each remove something, so this is repeated up to three times.
    """
    found = {text: None}
    left = [text]
    for _ in range(3):
        matches = [pattern.match(start) for start in left for pattern in (AUTHORITY, BROWSERS_AUTHORITY)]
        matches += [pattern.match(start.lstrip("/")) for start in left for pattern in (ABSOLUTE, SCHEME)]
        left = [match.string[match.end() :] for match in matches if match is not None]
        left = [rest for rest in left if rest not in found]
        found |= dict.fromkeys(left)
    return found


def _cuts(text: str) -> Iterable[str]:
    """Return the text with and without what looks like a query and a fragment."""
    if "?" not in text and "#" not in text:
        return (text,)
    path = text.partition("?")[0]
    return dict.fromkeys((text, path, text.partition("#")[0]))


def _decoded(text: str) -> Iterator[str]:
    """Yield the text as received, decoded once and decoded twice; and likewise its bytes if it was read as latin-1."""
    yield text
    if "%" in text:
        once = unquote(text)
        yield from (once, unquote(once))
    raw = _latin_bytes(text)
    if raw is not None:
        decoded = unquote_to_bytes(raw)
        yield from map(_utf8, (raw, decoded, unquote_to_bytes(decoded)))


def _latin_bytes(text: str) -> bytes | None:
    """Return the bytes of a non-ASCII text that may have been decoded as latin-1, as WSGI does; else None."""
    try:
        return None if text.isascii() else text.encode("latin-1")
    except UnicodeEncodeError:
        return None


def _utf8(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def is_clean(path: str) -> bool:
    """Return True if every server reads the path alike."""
    if PLAIN.fullmatch(path):
        return True
    if "//" in path or "\\" in path or ";" in path or "?" in path or "#" in path or HIDDEN.search(path):
        return False
    return path.startswith("/") and not any(segment in (".", "..") for segment in path.split("/"))


class Mixed:
    """A segment of literals and parameters, like `v{n}` or `{name}.{suffix}`. Each parameter is at least one character.

    `pieces` are the literals between the parameters. They are searched for one by one: a regular expression could take
    quadratic time.
    """

    __slots__ = ("pieces",)

    def __init__(self, pieces: tuple[str, ...]) -> None:
        self.pieces = pieces

    def matches(self, segment: str) -> bool:
        """Return True if a folded segment matches."""
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


Step = str | Mixed | None  # a literal, literals with parameters, or a parameter


class Pattern:
    """A pattern of paths: `/users/{id}`, `/v{n}/login`, `/files/{path*}`. `*` and `**` are parameters without a name.

    A parameter is at least one character; the rest of a path, `{path*}` or `**`, may be empty. Raises ValueError for a
    pattern that is invalid or can never match.
    """

    __slots__ = ("_spelled", "names", "segments", "text", "whole")

    def __init__(self, text: str) -> None:
        if not text.startswith("/"):
            raise ValueError(f"path {text!r} must begin with '/': for example '/users/{{id}}' or '/files/{{path*}}'")
        if any(mark in text for mark in ("?", "#", "\\", ";", "//")) or any(c < " " for c in text):
            raise ValueError(f"path {text!r} can never match: remove '?', '#', ';', '\\', '//' and control characters")
        parts = [part for part in text.split("/") if part]
        if any(part in (".", "..") for part in parts):
            raise ValueError(f"path {text!r} can never match: '.' and '..' are resolved first; write the resolved path")
        self.text = text
        self.whole = not (parts and REST.fullmatch(parts[-1]))  # False if it ends in {name*} or **
        steps = parts if self.whole else parts[:-1]
        for part in steps:
            if "**" in part or "{" in PARAMETER.sub("", part) or "}" in PARAMETER.sub("", part):
                raise ValueError(
                    f"path {text!r}: cannot read {part!r}: expected {{name}}, or {{name*}} or ** at the end of the path"
                )
        self.segments = [_step(part, folded=True) for part in steps]
        self._spelled = [_step(part, folded=False) for part in steps]
        # The segment of each parameter that has a name.
        self.names = {name: place for place, part in enumerate(steps) for name in PARAMETER.findall(part)}
        if not self.whole and parts[-1] != "**":
            self.names[parts[-1][1:-2]] = len(steps)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def matches(self, segments: Segments) -> bool:
        """Return True if the pattern matches one spelling of a path. index.py does so for many patterns at once."""
        return self._matches(self.segments, segments)

    def is_exact(self, path: str) -> bool:
        """Return True if a clean path is spelled like the pattern, apart from a trailing slash."""
        return self._matches(self._spelled, _segments(path))

    def parameter(self, path: str, name: str) -> str | None:
        """Return the segment of a clean path that holds a parameter, decoded; None if there is none, or if the pattern
        does not match. The parameter at the end, like `{path*}`, is the rest of the path. Raises UnicodeDecodeError."""
        place = self.names.get(name)
        if place is None:
            return None
        parts = [unquote(part, errors="strict") for part in _segments(path)]
        if not self.matches(tuple(map(_fold, parts))):
            return None
        return parts[place] if place < len(self.segments) else "/".join(parts[place:])

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
    return _composed(_composed(segment).casefold())


def _composed(text: str) -> str:
    """Return the text in NFC. Normalises short runs, since a long run of combining marks takes quadratic time."""
    parts, begin = [], 0
    while begin < len(text):
        end = begin + RUN
        while end < begin + 2 * RUN and end < len(text) and _joins(text[end]):
            end += 1
        parts.append(unicodedata.normalize("NFC", text[begin:end]))
        begin = end
    return "".join(parts)


def _joins(c: str) -> bool:
    """Return True if the character may combine with the one before it: marks, and the vowels and finals of Hangul."""
    return "\u1161" <= c <= "\u11c2" or unicodedata.category(c).startswith("M")


def _trimmed(segment: str) -> str:
    """Return the segment as file systems and C strings read it: without trailing spaces and dots, cut at a NUL."""
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
