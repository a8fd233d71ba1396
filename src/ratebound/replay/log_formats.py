"""The formats of access logs by name, and how the format of a file is detected."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from ratebound.replay.entry import Entry
from ratebound.replay.log_file import LogError
from ratebound.replay.text_format import Part, TextFormat, literal, quoted, request_line, value


class LogFormat(Protocol):
    """A way to read lines."""

    @property
    def name(self) -> str: ...
    @property
    def resolution(self) -> int: ...
    def read(self, text: str) -> list[Entry]: ...


def _common() -> list[Part]:
    return [
        value("address"),
        literal(" "),
        Part(r"[^ \n]+"),
        literal(" "),
        value("user", r"[^ \n]+(?: [^ \[\n]+)*"),
        literal(" ["),
        Part(r"([^\]\n]+)", ("local time",)),
        literal('] "'),
        request_line(),
        literal('" '),
        value("status", r"[0-9]{3}"),
        Part(r" (?:[0-9]+|-)"),
    ]


def _combined() -> list[Part]:
    return [*_common(), literal(" "), quoted("=referer"), literal(" "), quoted("agent"), Part(r"(?: [^\n]*)?")]


Fields = Collection[str] | None
FORMATS: dict[str, Callable[[Fields], LogFormat]] = {
    "combined": lambda fields: TextFormat("combined", _combined(), fields=fields),
    "common": lambda fields: TextFormat("common", _common(), fields=fields),
}


def detect_format(lines: Sequence[str], *, fields: Fields = None) -> LogFormat:
    """Return the format that fits the most of the lines. Raises LogError if none does."""
    best: LogFormat | None = None
    most = 0
    for make in FORMATS.values():
        candidate = make(fields)
        fitting = sum(_fits(candidate, line) for line in lines)
        if fitting > most:
            best, most = candidate, fitting
    if best is None:
        raise LogError(f"no known format fits. Give one of: {', '.join(FORMATS)}")
    return best


def make_format(name: str, *, fields: Fields = None) -> LogFormat:
    """Return the format of this name. Raises LogError if there is none."""
    if name not in FORMATS:
        raise LogError(f"unknown log format {name!r}. Give one of: auto, {', '.join(FORMATS)}")
    return FORMATS[name](fields)


def _fits(candidate: LogFormat, line: str) -> bool:
    try:
        return bool(candidate.read(line + "\n"))
    except ValueError:
        return False
