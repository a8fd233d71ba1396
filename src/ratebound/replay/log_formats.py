"""The formats of access logs by name, format strings, and how the format of a file is detected."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from ratebound.replay.apache_format import COMBINED, COMMON, VHOST_COMBINED, apache_line
from ratebound.replay.aws_format import CLOUDFRONT_FIELDS, alb_line, cloudfront_line
from ratebound.replay.entry import Entry
from ratebound.replay.envoy_format import DEFAULT as ENVOY
from ratebound.replay.envoy_format import ISTIO, envoy_line, is_envoy_format
from ratebound.replay.format_string import LineParts
from ratebound.replay.json_format import JsonFormat
from ratebound.replay.log_file import LogError
from ratebound.replay.nginx_format import nginx_line
from ratebound.replay.text_format import Part, TextFormat

ADVICE = "Or give the server's own format string, such as nginx's log_format or Apache's LogFormat"


class LogFormat(Protocol):
    """A way to read lines."""

    @property
    def name(self) -> str:
        """Return the name that users see."""

    @property
    def resolution(self) -> int:
        """Return the resolution of the log's times, in microseconds."""

    def read(self, text: str) -> list[Entry]:
        """Return the entries of some lines, each with its line end. Raises ValueError if one does not fit."""


class WantedFields(NamedTuple):
    """The fields that a reader wants from a format."""

    fields: Collection[str] | None = None  # the names of fields that entries get; None: all
    mapping: Mapping[str, str] = {}  # names of fields for meanings


def _with_more(line: LineParts) -> LineParts:
    """Return a line to which a site may have added something at its end."""
    return LineParts([*line.parts, Part(r"(?: [^\n]*)?")], line.resolution)


def _cloudfront(lines: Sequence[str], mapping: Mapping[str, str]) -> LineParts:
    headers = [line.removeprefix("#Fields:") for line in lines if line.startswith("#Fields:")]
    return cloudfront_line(headers[-1] if headers else CLOUDFRONT_FIELDS, mapping=mapping)


TEXT_FORMATS: dict[str, Callable[[Sequence[str], Mapping[str, str]], LineParts]] = {
    # The first that fits is taken: combined fits lines of vhost_combined, too.
    "vhost_combined": lambda _, mapping: _with_more(apache_line(VHOST_COMBINED, mapping=mapping)),
    "combined": lambda _, mapping: _with_more(apache_line(COMBINED, mapping=mapping)),
    "common": lambda _, mapping: apache_line(COMMON, mapping=mapping),
    "envoy": lambda _, mapping: envoy_line(ENVOY, mapping=mapping),
    "istio": lambda _, mapping: envoy_line(ISTIO, mapping=mapping),
    "alb": lambda _, __: alb_line(),
    "cloudfront": _cloudfront,
}
JSON_FORMATS = ("caddy", "traefik", "json")  # they differ in their names only
FORMATS = (*TEXT_FORMATS, *JSON_FORMATS)


def make_format(name: str, lines: Sequence[str], wish: WantedFields) -> LogFormat:
    """Return the format of a file: by name, from a format string, or detected from its first lines with "auto".

    Raises LogError if there is no such format, or if none fits the lines.
    """
    if name == "auto":
        return _detect(lines, wish)
    if name in JSON_FORMATS:
        return JsonFormat(name, fields=wish.fields, mapping=wish.mapping, lines=lines)
    if name in TEXT_FORMATS:
        line = TEXT_FORMATS[name](lines, wish.mapping)
    elif "$" in name:
        name, line = "nginx", nginx_line(name, mapping=wish.mapping)
    elif is_envoy_format(name):
        name, line = "envoy", envoy_line(name, mapping=wish.mapping)
    elif "%" in name:
        name, line = "apache", apache_line(name, mapping=wish.mapping)
    else:
        raise LogError(f"unknown log format {name!r}. Give one of: auto, {', '.join(FORMATS)}. {ADVICE}")
    return TextFormat(name, line.parts, fields=wish.fields, resolution=line.resolution)


def _detect(lines: Sequence[str], wish: WantedFields) -> LogFormat:
    """Return the format that fits most of the lines; the first of several."""
    lines = [line for line in lines if line.strip()]
    best: LogFormat | None = None
    most = 0
    for name in [*TEXT_FORMATS, _json_name(lines)]:
        try:
            candidate = make_format(name, lines, wish)
        except LogError:  # it does not have a field that the mapping names
            continue
        fitting = sum(_fits(candidate, line) for line in lines)
        if fitting > most:
            best, most = candidate, fitting
    if best is None:
        raise LogError(f"no known format fits. The formats are: {', '.join(FORMATS)}. {ADVICE}")
    return best


def _json_name(lines: Sequence[str]) -> str:
    """Return the name of a JSON format by what its lines hold."""
    text = "\n".join(lines)
    if '"http.log.access' in text:
        return "caddy"
    return "traefik" if '"DownstreamStatus"' in text else "json"


def _fits(candidate: LogFormat, line: str) -> bool:
    try:
        return bool(candidate.read(line + "\n"))
    except ValueError:
        return False
