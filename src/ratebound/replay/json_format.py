"""Logs with one JSON object on each line: Caddy, Traefik, Envoy and Istio, CloudFront, and what applications write.

Names of fields differ. Each meaning has a list of names, and the first that the object has is used. A name with dots
is a path: "request.remote_ip" is the field remote_ip of the object request.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, repeat
from typing import Any, cast

from ratebound.replay.entry import Entry
from ratebound.replay.log_file import LogError
from ratebound.replay.log_time import Kept, read_epoch, read_epoch_text, read_iso_time, read_local_time
from ratebound.replay.text_format import Malformed, last_address, new_entry, peer_address

MOST_FIELDS = 200  # of one line
LONGEST_VALUE = 4_096  # characters of a field
EARLIEST = 946_684_800_000_000  # the year 2000: smaller numbers are durations, or else

# A time at which the request came; then a time at which it was logged, from which a duration is subtracted.
STARTS = ("StartUTC", "StartLocal", "start_time", "startTime", "request_start")
ENDS = ("ts", "time", "timestamp", "@timestamp", "time_iso8601", "msec", "time_local", "datetime", "date", "t")
NAMES: dict[str, tuple[str, ...]] = {
    "time": STARTS + ENDS,
    "address": (
        *("request.remote_ip", "remote_addr", "remote_ip", "client_ip", "clientIp", "client_addr", "ClientHost"),
        *("request.client_ip", "httpRequest.remoteIp", "c-ip", "client.address", "source.ip", "remote_address"),
        *("remoteAddress", "remoteAddr", "downstream_remote_address", "ClientAddr", "http.client_ip", "ip", "client"),
        *("remote_host", "remote", "req.remoteAddress", "x_forwarded_for", "x-forwarded-for", "address"),
    ),
    "method": (
        *("request.method", "method", "request_method", "RequestMethod", "http_method", "httpRequest.requestMethod"),
        *("cs-method", "http.request.method", "http.method", "req.method", "verb"),
    ),
    "target": (
        *("request.uri", "request_uri", "RequestPath", "uri", "path", "url", "httpRequest.requestUrl", "http.url"),
        *("url.original", "req.url", "target", "request_path", "cs-uri-stem", "request_url", "url.path"),
        *("http.request.path", "endpoint", "request"),
    ),
    "query": ("args", "query_string", "query", "cs-uri-query", "url.query"),
    "status": (
        *("status", "status_code", "statusCode", "DownstreamStatus", "response_code", "code", "sc-status"),
        *("httpRequest.status", "http.response.status_code", "http.status_code", "response.status", "res.statusCode"),
        *("response_status", "http_status", "OriginStatus"),
    ),
    "host": (
        *("request.host", "http_host", "host", "RequestHost", "x-host-header", "authority", "server_name"),
        *("http.host", "url.domain", "vhost", "req.headers.host"),
    ),
    "user": (
        *("user_id", "remote_user", "ClientUsername", "user", "username", "user.name", "userId", "user.id"),
        "cs-username",
    ),
    "agent": (
        *("request.headers.User-Agent", "http_user_agent", "user_agent", "userAgent", "httpRequest.userAgent"),
        *("request_User-Agent", "cs(User-Agent)", "user_agent.original", "agent", "req.headers.user-agent"),
    ),
    "seconds": ("request_time", "time-taken", "duration_s", "duration_seconds", "httpRequest.latency", "latency_s"),
    "milliseconds": ("duration_ms", "latency_ms", "elapsed_ms", "responseTime", "response_time_ms", "durationMs"),
    "microseconds": ("duration_us", "latency_us", "elapsed_us"),
}
DURATION_UNITS = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}
# Fields without the query, which may be in a field of its own.
PLAIN_PATHS = {"RequestPath", "uri", "path", "cs-uri-stem", "url.path", "request_path"}
REQUEST_LINES = {"request", "request_line", "requestLine"}
HEADERS = ("request.headers.", "req.headers.", "headers.", "request_", "http_")
SECRETS = {"authorization", "proxy-authorization", "cookie", "x-api-key", "req.headers.cookie"}
_NOT_HEADERS = {"request_method", "request_uri", "request_time", "request_id", "request_length", "request_path"}
_EMPTY: dict[str, Any] = {}
_LINE_END = "\n"
_SUFFIXES = {"ns": 0.001, "us": 1.0, "µs": 1.0, "ms": 1_000.0, "s": 1_000_000.0, "m": 60_000_000.0}
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]*)?)(ns|us|µs|ms|s|m)?")
_REQUEST_LINE = re.compile(r"([A-Z][A-Z_-]*) (.+?)(?: HTTP/[0-9.]+)?")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)([^#]*)")
_SURROGATE = re.compile("[\ud800-\udfff]")

Record = dict[str, Any]
Path = tuple[str, ...]
MEANINGS = (*NAMES, "request")


class JsonFormat:
    """The format of lines that are JSON objects.

    `mapping` gives names of fields for meanings: those of NAMES, and "request" for a request line. `lines` are the
    first of the file; names are looked up there, and again until the fields of a request are found.
    """

    __slots__ = ("_fields", "_mapping", "_paths", "_scale", "_times", "name", "resolution")

    def __init__(
        self,
        name: str = "json",
        *,
        fields: Collection[str] | None = None,
        mapping: Mapping[str, str] | None = None,
        lines: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.resolution = 1_000_000
        self._fields = None if fields is None else frozenset(fields)
        self._mapping = dict(mapping or {})
        self._times = Kept(_read_time_text)
        self._paths: dict[str, Path] = {}
        self._scale = 0  # microseconds in one unit of the duration; 0: the log has none, or its time is the start
        for unknown in sorted(set(self._mapping) - set(MEANINGS)):
            raise LogError(f"cannot map {unknown!r}. Map one of: {', '.join(MEANINGS)}")
        self._learn([record for line in lines for record in _valid_records(line)])

    def read(self, text: str) -> list[Entry]:
        """Return the entries of some lines, each with its line end. Raises ValueError if one does not fit."""
        records = _records(text)
        if not records:
            return []
        try:
            if not self._complete():
                self._learn(records)
            entries = list(map(new_entry, zip(*self._columns(records), strict=True)))
        except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise Malformed from error
        if "\\ud" in text or "\\uD" in text:  # perhaps a lone surrogate, which can be neither shown nor written
            return [_without_surrogates(entry) for entry in entries]
        return entries

    def _complete(self) -> bool:
        return "time" in self._paths and ("request" in self._paths or "target" in self._paths)

    def _learn(self, records: list[Record]) -> None:
        """Find out which fields the log has."""
        requests = [record for record in records if _looks_like_request(record)] or records
        for meaning in MEANINGS:
            names = [self._mapping[meaning]] if meaning in self._mapping else NAMES.get(meaning, tuple(REQUEST_LINES))
            found = next((path for name in names if (path := _path(requests, name, meaning)) is not None), None)
            if found is not None:
                self._paths[meaning] = found
        is_caddy = self._paths.get("target") == ("request", "uri")
        if is_caddy and any("duration" in record for record in requests):  # other servers use other units
            self._paths.setdefault("seconds", ("duration",))
        if "time" in self._paths:
            self._learn_time(requests)

    def _learn_time(self, records: list[Record]) -> None:
        is_start = ".".join(self._paths["time"]) in STARTS
        self._scale = 0
        for meaning, scale in () if is_start else DURATION_UNITS.items():
            if meaning in self._paths:
                self._scale = scale
                self._paths["duration"] = self._paths[meaning]
                break
        times = []
        for moment in _column(records, self._paths["time"]):
            with suppress(ValueError, TypeError, OverflowError):
                times.append(self._time(moment))
        self.resolution = next((unit for unit in (1_000_000, 1_000) if all(at % unit == 0 for at in times)), 1)

    def _columns(self, records: list[Record]) -> tuple[Iterable[Any], ...]:
        """Return a column for each field of Entry. Raises if a record has no request."""
        paths = self._paths
        ends = list(map(self._time, _column(records, paths["time"])))
        if self._scale:
            ends = list(map(self._arrival, ends, _column(records, paths["duration"])))
        hosts = self._texts(records, "host")
        if "request" in paths:
            pairs = [_request(line) for line in _column(records, paths["request"])]
            methods, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        else:
            methods, targets = self._texts(records, "method"), self._texts(records, "target")
            if not all(targets):
                raise Malformed
            if "query" in paths and ".".join(paths["target"]) in PLAIN_PATHS:
                targets = list(map(_joined, targets, self._texts(records, "query")))
        if any(target[:1] != "/" for target in targets):
            split = [_split_url(target, host) for target, host in zip(targets, hosts, strict=True)]
            targets, hosts = [pair[0] for pair in split], [pair[1] for pair in split]
        return (
            ends,
            map(_address, self._texts(records, "address")),
            methods,
            targets,
            map(_status, _column(records, paths["status"])) if "status" in paths else repeat(0, len(records)),
            hosts,
            self._texts(records, "user"),
            self._texts(records, "agent"),
            repeat(None, len(records)) if self._fields == frozenset() else map(self._rest, records),
        )

    def _texts(self, records: list[Record], meaning: str) -> list[str]:
        path = self._paths.get(meaning)
        if path is None:
            return [""] * len(records)
        return [text if type(text) is str and text != "-" else _text(text) for text in _column(records, path)]

    def _time(self, moment: Any) -> int:
        if type(moment) is str:
            return self._times[moment]
        if type(moment) is float or type(moment) is int:
            return read_epoch(moment)
        raise Malformed

    def _arrival(self, end: int, duration: Any) -> int:
        if type(duration) is float or type(duration) is int:
            length = duration * self._scale
        elif type(duration) is str and (match := _WITH_UNIT.fullmatch(duration)):
            length = float(match[1]) * (_SUFFIXES[match[2]] if match[2] else self._scale)
        else:
            return end
        return end - round(length) if 0 <= length < 1e15 else end

    def _rest(self, record: Record) -> dict[str, str]:
        wanted = self._fields
        fields: dict[str, str] = {}
        for name, content in islice(_flat(record, ""), MOST_FIELDS):
            name = _field_name(name)
            if name in wanted if wanted is not None else name not in SECRETS:
                fields[name] = _text(content)[:LONGEST_VALUE]
        return fields


def _records(text: str) -> list[Record]:
    """Return the objects of some lines. Raises ValueError if a line is no object."""
    try:  # one call for all lines
        records = json.loads(f"[{text[:-1].replace(_LINE_END, ',')}]")
    except RecursionError as error:
        raise Malformed from error
    if len(records) != text.count("\n") or any(type(record) is not dict for record in records):
        raise Malformed
    return cast(list[Record], records)


def _valid_records(line: str) -> list[Record]:
    try:
        return _records(line + "\n")
    except ValueError:
        return []


def _path(records: list[Record], name: str, meaning: str) -> Path | None:
    """Return the path of a field that one of the records has, None if none has it."""
    for path in ((name,), tuple(name.split("."))):
        for record in records:
            content: Any = record
            for key in path:
                content = content.get(key) if type(content) is dict else None
            if content is not None and (type(content) is not dict) and _fits_meaning(content, meaning):
                return path
    return None


def _fits_meaning(content: Any, meaning: str) -> bool:
    if meaning == "request":
        return type(content) is str and _REQUEST_LINE.fullmatch(content) is not None
    if meaning == "time":
        try:
            return (_read_time_text(content) if type(content) is str else read_epoch(content)) >= EARLIEST
        except (ValueError, TypeError, OverflowError):
            return False
    return True


def _looks_like_request(record: Record) -> bool:
    names = (*NAMES["method"], *NAMES["status"], *REQUEST_LINES)
    return any(_path([record], name, "") is not None for name in names)


def _column(records: list[Record], path: Path) -> list[Any]:
    """Return the contents of a field, None where a record does not have it. Raises AttributeError if it cannot."""
    key = path[0]
    if len(path) == 1:
        return [record.get(key) for record in records]
    inner = [record.get(key) or _EMPTY for record in records]
    return _column(inner, path[1:])


def _read_time_text(text: str) -> int:
    if text[:1].isdecimal() and "-" not in text and "/" not in text:
        return read_epoch_text(text)
    if "/" in text:
        return read_local_time(text.strip("[]"))
    if text[10:11] == "T" or text[10:11] == " ":
        return read_iso_time(text)
    raise Malformed


def _text(content: Any) -> str:
    if content is None or content == "-" or type(content) is dict:
        return ""
    if type(content) is str:
        return content
    if type(content) is list:
        return ", ".join(_text(element) for element in content[:MOST_FIELDS])
    return str(content)[:LONGEST_VALUE]


@lru_cache(20_000)
def _address(text: str) -> str:
    text = last_address(text) if "," in text else text
    if text.startswith("[") or text.count(":") == 1:  # an IPv6 address without a port has more colons
        return peer_address(text)
    return text


def _status(content: Any) -> int:
    if type(content) is int and 0 <= content < 1000:
        return content
    if type(content) is str and content.isdecimal() and len(content) == 3:
        return int(content)
    if type(content) is float and content.is_integer() and 0 <= content < 1000:
        return int(content)
    return 0


def _request(line: Any) -> tuple[str, str]:
    if type(line) is not str:
        raise Malformed
    match = _REQUEST_LINE.fullmatch(line)
    return (match[1], match[2]) if match else ("", "")


def _joined(target: str, query: str) -> str:
    return f"{target}?{query.removeprefix('?')}" if query and "?" not in target else target


def _split_url(target: str, host: str) -> tuple[str, str]:
    """Return the path and the host of a target that may be a whole URL."""
    if match := _URL.fullmatch(target):
        path = match[2]
        return (path if path.startswith("/") else f"/{path}"), host or match[1].rpartition("@")[2]
    return target, host


def _flat(record: Record, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, content in record.items():
        if type(content) is dict:
            yield from _flat(content, f"{prefix}{name}.")
        else:
            yield prefix + name, content


def _field_name(name: str) -> str:
    """Return the lower-case name of a request header, or the name as it is."""
    for prefix in HEADERS:
        if name.startswith(prefix) and name not in _NOT_HEADERS:
            return name.removeprefix(prefix).lower().replace("_", "-")
    return name


def _without_surrogates(entry: Entry) -> Entry:
    fields = entry.fields and {_plain(name): _plain(text) for name, text in entry.fields.items()}
    return Entry(
        entry.at,
        _plain(entry.address),
        _plain(entry.method),
        _plain(entry.target),
        entry.status,
        _plain(entry.host),
        _plain(entry.user),
        _plain(entry.agent),
        fields,
    )


def _plain(text: str) -> str:
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
