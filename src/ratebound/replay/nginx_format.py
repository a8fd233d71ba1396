"""nginx: a log_format string, https://nginx.org/en/docs/http/ngx_http_log_module.html#log_format."""

import re
from collections.abc import Mapping

from ratebound.replay.format_string import LIST, LineParts, Piece, Variable, assemble

COMBINED = (
    '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"'
)
_MEANINGS = {
    "remote_addr": ("address", 0),
    "realip_remote_addr": ("address", 2),
    "remote_user": ("user", 0),
    "msec": ("epoch", 0),
    "time_iso8601": ("iso time", 1),
    "time_local": ("local time", 2),
    "request": ("request", 0),
    "request_method": ("method", 0),
    "request_uri": ("target", 0),
    "uri": ("path", 1),
    "document_uri": ("path", 2),
    "args": ("query", 0),
    "query_string": ("query", 1),
    "status": ("status", 0),
    "http_host": ("host", 0),
    "host": ("host", 1),
    "server_name": ("host", 2),
    "http_user_agent": ("agent", 0),
    "request_time": ("seconds", 0),  # nginx writes the time of the end
}
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z0-9_]+)\}|([A-Za-z0-9_]+))")
_DIRECTIVE = re.compile(r"\s*log_format\s+\S+\s+(?:escape=(?:default|json|none)\s+)?(.*?);?\s*", re.DOTALL)
_QUOTED_PIECE = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)


def nginx_line(text: str, *, mapping: Mapping[str, str] | None = None) -> LineParts:
    """Return what a line has that nginx writes with this log_format. The whole directive may be given, too.

    Raises LogError if the format has no time, or if two values cannot be told apart.
    """
    escaped = "escape=none" not in text
    if directive := _DIRECTIVE.fullmatch(text):
        text = "".join(quoted[1] or quoted[2] for quoted in _QUOTED_PIECE.finditer(directive[1]))
    pieces: list[Piece] = []
    start = 0
    for match in _VARIABLE.finditer(text):
        if match.start() > start:
            pieces.append(text[start : match.start()])
        pieces.append(_variable(match[1] or match[2]))
        start = match.end()
    if start < len(text):
        pieces.append(text[start:])
    return assemble(pieces, mapping=mapping, escaped=escaped)


def _variable(name: str) -> Variable:
    meaning, rank = _MEANINGS.get(name, ("", 0))
    field = name.removeprefix("http_").replace("_", "-") if name.startswith("http_") else name
    resolution = 1_000 if name == "msec" else 1_000_000
    if name == "is_args":
        return Variable("$is_args", name, pattern=r"\??")
    variable = Variable(f"${name}", field, meaning, rank, resolution)
    if name.startswith("upstream_"):  # one value for each server that was tried
        return variable._replace(pattern=LIST)
    return variable
