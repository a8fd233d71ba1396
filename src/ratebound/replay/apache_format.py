"""Apache: a LogFormat string, https://httpd.apache.org/docs/2.4/mod/mod_log_config.html#formats."""

import re
from collections.abc import Mapping

from ratebound.replay.format_string import LineParts, Piece, Variable, assemble
from ratebound.replay.log_file import LogError

COMMON = '%h %l %u %t "%r" %>s %b'
COMBINED = COMMON + ' "%{Referer}i" "%{User-Agent}i"'
VHOST_COMBINED = "%v:%p " + COMBINED
_MEANINGS = {
    "a": ("address", 0),
    "h": ("address", 1),
    "u": ("user", 0),
    "r": ("request", 0),
    "m": ("method", 0),
    "U": ("path", 0),
    "q": ("query", 0),
    "s": ("status", 1),
    "V": ("host", 1),
    "v": ("host", 2),
}
_HEADERS = {"user-agent": ("agent", 0), "host": ("host", 0)}
_FIELDS = {"l": "ident", "b": "bytes", "B": "bytes", "p": "port", "I": "bytes_received", "O": "bytes_sent"}
_EPOCHS = {"sec": 1_000_000, "msec": 1_000, "usec": 1}  # the resolution of each
_DIRECTIVE = re.compile(r"%(?:!?[0-9,]+)?([<>])?(?:\{([^}]*)\})?([<>])?(\^?[A-Za-z]{1,2}|%)")
_LINE = re.compile(r"""\s*LogFormat\s+"((?:[^"\\]|\\.)*)"(?:\s+\S+)?\s*""")


def apache_line(text: str, *, mapping: Mapping[str, str] | None = None) -> LineParts:
    """Return what a line has that Apache writes with this LogFormat. The whole directive may be given, too.

    Raises LogError if the format has no time, or one that replay cannot read.
    """
    if line := _LINE.fullmatch(text):
        text = line[1]
    text = text.replace('\\"', '"').replace("\\t", "\t")
    pieces: list[Piece] = []
    start = 0
    for match in _directives(text):
        _add_literal(pieces, text[start : match.start()])
        _add_directive(pieces, match)
        start = match.end()
    _add_literal(pieces, text[start:])
    return assemble(pieces, mapping=mapping)


def _directives(text: str) -> list[re.Match[str]]:
    found = []
    start = 0
    while match := _DIRECTIVE.search(text, start):
        letter = match[4]
        start = match.end()
        if not letter.startswith("^") and len(letter) == 2:  # only ^ti and ^to have two letters
            match = _DIRECTIVE.match(text, match.start(), match.end() - 1)
            assert match is not None
            start = match.end()
        found.append(match)
    return found


def _add_literal(pieces: list[Piece], text: str) -> None:
    if text and pieces and isinstance(pieces[-1], str):
        pieces[-1] += text
    elif text:
        pieces.append(text)


def _add_directive(pieces: list[Piece], match: re.Match[str]) -> None:
    argument, letter = match[2], match[4]
    spelling = match[0]
    if letter == "%":
        _add_literal(pieces, "%")
    elif letter == "t":
        _add_time(pieces, argument or "", spelling)
    elif letter == "i":
        name = (argument or "").lower()
        meaning, rank = _HEADERS.get(name, ("", 0))
        pieces.append(Variable(spelling, name, meaning, rank))
    elif letter in ("D", "T"):
        pieces.append(Variable(spelling, spelling.lstrip("%")))  # %t is the time of the start: no need to subtract
    else:
        meaning, rank = _MEANINGS.get(letter, ("", 0)) if argument is None else ("", 0)
        if letter == "s" and ">" in (match[1], match[3]):
            rank = 0
        pattern = "[0-9]+" if letter == "p" else ""
        pieces.append(Variable(spelling, argument or _FIELDS.get(letter, letter), meaning, rank, pattern=pattern))


def _add_time(pieces: list[Piece], argument: str, spelling: str) -> None:
    written = argument.removeprefix("begin:").removeprefix("end:")
    if not written:
        _add_literal(pieces, "[")
        pieces.append(Variable(spelling, "time", "local time", 2))
        _add_literal(pieces, "]")
    elif written in _EPOCHS:
        pieces.append(Variable(spelling, "time", "epoch", 0, _EPOCHS[written]))
    elif written in ("msec_frac", "usec_frac"):
        pieces.append(Variable(spelling, written))
    elif re.fullmatch(r"%(?:F|Y-%m-%d)[T ]%(?:T|H:%M:%S)(?:%z|Z)?", written):
        pieces.append(Variable(spelling, "time", "iso time", 1))
    elif written == "%d/%b/%Y:%H:%M:%S %z":
        pieces.append(Variable(spelling, "time", "local time", 2))
    else:
        raise LogError(f"cannot read times like {spelling}. Use %t, %{{sec}}t, %{{msec}}t, %{{usec}}t or ISO 8601")
