"""Envoy: a format string of its access log.

https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage
"""

import re
from collections.abc import Mapping

from ratebound.replay.format_string import LineParts, Piece, Variable, assemble
from ratebound.replay.log_file import LogError

DEFAULT = (
    '[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% '
    "%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "
    '"%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"'
)
ISTIO = (
    '[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% '
    '%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" '
    "%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "
    '"%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" '
    "%UPSTREAM_CLUSTER% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% "
    "%REQUESTED_SERVER_NAME% %ROUTE_NAME%"
)
_MEANINGS = {
    "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT": ("address", 0),
    "DOWNSTREAM_REMOTE_ADDRESS": ("address and port", 1),
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT": ("address", 2),
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS": ("address and port", 3),
    "REQ(X-FORWARDED-FOR)": ("addresses", 4),
    "REQ(:METHOD)": ("method", 0),
    "REQ(X-ENVOY-ORIGINAL-PATH?:PATH)": ("target", 0),
    "REQ(:PATH)": ("target", 1),
    "REQ(:AUTHORITY)": ("host", 0),
    "REQ(HOST)": ("host", 1),
    "REQ(USER-AGENT)": ("agent", 0),
    "RESPONSE_CODE": ("status", 0),
}
_OPERATOR = re.compile(r"%([A-Z][A-Z0-9_]{2,})(\([^)]*\))?(?::[0-9]+)?%")


def is_envoy_format(text: str) -> bool:
    """Return True if the text has an operator of Envoy, such as %START_TIME%."""
    return _OPERATOR.search(text) is not None


def envoy_line(text: str, *, mapping: Mapping[str, str] | None = None) -> LineParts:
    """Return what a line has that Envoy writes with this format string.

    Raises LogError if the format has no time, or if two values cannot be told apart.
    """
    pieces: list[Piece] = []
    start = 0
    for match in _OPERATOR.finditer(text):
        if match.start() > start:
            pieces.append(text[start : match.start()])
        pieces.append(_variable(match[0], match[1], (match[2] or "")[1:-1]))
        start = match.end()
    if start < len(text):
        pieces.append(text[start:])
    return assemble(pieces, mapping=mapping, escaped=False)


def _variable(spelling: str, name: str, argument: str) -> Variable:
    if name == "START_TIME":
        return _time(spelling, argument)
    if name == "REQ":
        header = argument.upper()
        meaning, rank = _MEANINGS.get(f"REQ({header})", ("", 0))
        return Variable(spelling, header.partition("?")[0].lower(), meaning, rank)
    meaning, rank = _MEANINGS.get(name, ("", 0))
    return Variable(spelling, f"{name}({argument})".lower() if argument else name.lower(), meaning, rank)


def _time(spelling: str, argument: str) -> Variable:
    written = argument.partition(",")[0]
    if not written:
        return Variable(spelling, "start_time", "iso time", 1, 1_000)
    if fraction := re.fullmatch(r"%s(?:\.%([36])f)?", written):
        digits = int(fraction[1] or 0)
        return Variable(spelling, "start_time", "epoch", 0, 10 ** (6 - digits))
    if fraction := re.fullmatch(r"%(?:F|Y-%m-%d)[T ]%(?:T|H:%M:%S)(?:\.%([369])f)?(?:%z|Z)?", written):
        digits = min(int(fraction[1] or 0), 6)
        return Variable(spelling, "start_time", "iso time", 1, 10 ** (6 - digits))
    raise LogError(f"cannot read times like {spelling}. Use %START_TIME%, or ISO 8601, or %START_TIME(%s.%3f)%")
