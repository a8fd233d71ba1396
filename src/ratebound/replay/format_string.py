"""A format string of a server, such as nginx's log_format, becomes the parts of a line.

A server's own file names its variables; here is what all of them share: which of two variables with the same meaning
is used, and where a value ends.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ratebound.replay.log_file import LogError
from ratebound.replay.text_format import DURATIONS, QUOTED, SPELLINGS, TIMES, Part, literal, request_line

LIST = r"[^ ,\n]+(?:(?:, | : |,)[^ ,\n]+)*"
LOCAL_TIME = r"[0-9]{2}/[A-Za-z]{3}/[0-9]{4}:[0-9:]{8} [+-][0-9]{4}"
TIME, TARGET = "time", "target or path"
ONE_OF = {  # meanings of which a format uses one
    **dict.fromkeys(TIMES, TIME),
    **dict.fromkeys(DURATIONS, "duration"),
    **{meaning: usual for meaning, (usual, _) in SPELLINGS.items()},
    "target": TARGET,
    "path": TARGET,
}


class Variable(NamedTuple):
    """A variable of a format string."""

    spelling: str  # as the format string has it
    name: str  # of the field, if it is not used for its meaning
    meaning: str = ""  # of text_format.Part, or "request"; empty: a field
    rank: int = 0  # of several variables with the same meaning, the one with the lowest is used
    resolution: int = 1_000_000  # of a time, in microseconds
    pattern: str = ""  # a regular expression of the value; empty: it ends where the text after it starts


Piece = str | Variable
_NEVER_EMPTY = {"address", "method", "status", *TIMES, *DURATIONS}  # or "-" is read elsewhere


class LineParts(NamedTuple):
    """The parts of a line, and the resolution of its times."""

    parts: list[Part]
    resolution: int  # of its times, in microseconds


def assemble(pieces: Sequence[Piece], *, mapping: Mapping[str, str] | None = None, escaped: bool = True) -> LineParts:
    """Return the parts of a line. `escaped` is True if the server escapes quotes in values.

    `mapping` gives names of fields for meanings. Raises LogError if it names a field that the format does not have, if
    the format has no time, or if two values cannot be told apart.
    """
    pieces = _mapped(pieces, mapping or {})
    chosen = _chosen(pieces)
    parts = []
    resolution = 1_000_000
    for position, piece in enumerate(pieces):
        if isinstance(piece, str):
            parts.append(literal(piece))
            continue
        meaning = f"={piece.name}"
        if position in chosen:
            meaning = piece.meaning
            if meaning in TIMES:
                resolution = piece.resolution
        before = pieces[position - 1] if position else ""
        after = pieces[position + 1] if position + 1 < len(pieces) else ""
        parts.append(_part(piece, meaning, before, after, escaped))
    return LineParts(parts, resolution)


def _mapped(pieces: Sequence[Piece], mapping: Mapping[str, str]) -> list[Piece]:
    result = list(pieces)
    for meaning, name in mapping.items():
        for position, piece in enumerate(result):
            if isinstance(piece, Variable) and piece.name == name:
                meaning = "addresses" if meaning == "address" and name == "x-forwarded-for" else meaning
                result[position] = piece._replace(meaning=meaning, rank=-1)
                break
        else:
            names = ", ".join(sorted({piece.name for piece in pieces if isinstance(piece, Variable)}))
            raise LogError(f"the log format has no field {name!r} for {meaning}. Its fields: {names}")
    return result


def _chosen(pieces: Sequence[Piece]) -> set[int]:
    """Return the positions of the variables that are used for what they mean. All others are fields."""
    best: dict[str, tuple[int, int]] = {}
    for position, piece in enumerate(pieces):
        if isinstance(piece, Variable) and piece.meaning:
            group = ONE_OF.get(piece.meaning, piece.meaning)
            best[group] = min(best.get(group, (99, 0)), (piece.rank, position))
    if "request" in best:
        for group in ("method", "query", TARGET):
            best.pop(group, None)
    if TIME not in best:
        raise LogError(
            "the log format has no time. Replay needs one: $time_local, $time_iso8601 or $msec of nginx, %t of Apache, "
            "%START_TIME% of Envoy"
        )
    return {position for _, position in best.values()}


def _part(variable: Variable, meaning: str, before: Piece, after: Piece, escaped: bool) -> Part:
    if isinstance(after, Variable):
        pattern = variable.pattern or _pattern_before_variable(variable, after)
        return Part(f"({pattern})", (meaning,), pattern)
    end = after[:1]
    if meaning == "request":
        return request_line(end) if end in ('"', "]", "|", "\t", ";") else _request_with_protocol()
    if variable.pattern:
        pattern = variable.pattern
    elif end == '"' and isinstance(before, str) and before.endswith('"'):
        pattern = QUOTED if escaped else _bare_quoted(after)
    elif variable.meaning == "local time" and end == " ":
        pattern = LOCAL_TIME
    elif variable.meaning == "user" and after.startswith(" ["):
        pattern = r"[^ \n]+(?: [^ \[\n]*)*"
    else:
        pattern = rf"[^\n{re.escape(end)}]*"
    if meaning in _NEVER_EMPTY:
        return Part(f"({pattern})", (meaning,))
    stop = re.escape(end) if end else "$"
    return Part(f"(?:-(?={stop})|({pattern}))", (meaning,), f"(?:{pattern})")


def _bare_quoted(after: str) -> str:
    """Return the pattern of a value in quotes that are not escaped: it ends before the text `after`."""
    end = re.escape(after) if len(after) > 1 else f"{after}$"
    return rf'[^"\n]*(?:(?!{end})"[^"\n]*)*'


def _pattern_before_variable(variable: Variable, after: Variable) -> str:
    if after.spelling in ("$is_args", "%q"):
        return r'[^? "\n]*'
    if after.meaning in ("target", "path"):
        return r'[^/ "\n]*'
    raise LogError(
        f"cannot tell {variable.spelling} and {after.spelling} apart in the log format: there is nothing between them"
    )


def _request_with_protocol() -> Part:
    return Part(r"([A-Z][A-Z_-]*) ([^ \n]+) HTTP/[0-9.]+", ("method", "target"), r"[A-Z_-]+ [^ \n]+ HTTP/[0-9.]+")
