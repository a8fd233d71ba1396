"""The fields of a response as a client reads them: by name and bounded, with the numbers and times in them.

Every value is a stranger's. What breaks its grammar counts as absent, and no text is longer than MAX_FIELD.
"""

import math
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

Lines = Iterable[tuple[str, str]] | Mapping[str, str]

MAX_FIELD = 65_536  # characters, of all lines of one name
MAX_NAME = 128
MAX_NAMES = 1_000
MOST_SECONDS = 366 * 86_400.0  # of a wait: the longest window that anybody announces is a year
EPOCH = 1_000_000_000  # a number from here on is an instant and not a wait
WHOLE = re.compile(r"[0-9]{1,15}")
NUMBER = re.compile(r"[0-9]{1,16}(?:\.[0-9]{1,15})?")
DELAY = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
FIRST_NUMBER = re.compile(r"[ \t]*([0-9]{1,15})(?:\.[0-9]{1,15})?(?![0-9.])")
GO_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ns|us|µs|ms|s|m|h)")
GO_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?(?:[Zz]|([+-][0-9]{2}):?([0-9]{2}))?"
)
# The text of a JavaScript date: Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)
SCRIPT_DATE = re.compile(
    r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([0-9]{2}) ([0-9]{4}) ([0-9:]{8}) GMT([+-][0-9]{4})(?: \([^()]{0,60}\))?"
)
# Names that say nothing about limits or vendors are not kept.
WANTED = re.compile(
    r"rate|retry|limit|reset|quota|date|age|server|github|gitlab|okta|stripe|shop|apim|azure|x-ms-|openai|anthropic"
    r"|discord|zendesk|kong|docker|connection-hash|transaction-id"
)


class ReceivedFields:
    """The fields of one response by lower-case name. `now` is when it was received, on the server's clock if its Date
    tells it; `age` is the time that it spent in a cache."""

    __slots__ = ("_instant", "_now", "age", "fields")

    def __init__(self, headers: Lines, now: float | None = None) -> None:
        self.fields = _by_name(headers.items() if isinstance(headers, Mapping) else headers)
        self.age = self.whole("age") or 0
        self._now = now
        self._instant: float | None = None

    @property
    def now(self) -> float:
        """The Unix time at which the response was received."""
        if self._instant is None:
            date = http_date(self.get("date"))
            if date is not None:
                self._instant = date + self.age
            else:
                self._instant = time.time() if self._now is None else self._now
        return self._instant

    def get(self, name: str) -> str:
        """Return the value of a field, "" without one."""
        return self.fields.get(name, "")

    def whole(self, name: str) -> int | None:
        """Return a field that is a whole number of 0 or more."""
        text = self.get(name)
        return int(text) if WHOLE.fullmatch(text) else None

    def count(self, name: str) -> int | None:
        """Return the number at the beginning of a field, rounded down. Parameters and further items may follow."""
        match = FIRST_NUMBER.match(self.get(name))
        return int(match[1]) if match else None

    def seconds(self, name: str, factor: float = 1.0) -> float | None:
        """Return a field that is a number of seconds, or of something that lasts `factor` seconds."""
        text = self.get(name)
        return capped(float(text) * factor) if DELAY.fullmatch(text) else None

    def reset(self, name: str) -> float | None:
        """Return the seconds to the reset that a field names, in any form that servers use.

        A number is seconds, or from 1e9 on a Unix time: in milliseconds from 1e11, in microseconds from 1e14.
        """
        text = self.get(name)
        if not text:
            return None
        first = text.partition(",")[0].partition(";")[0].strip(" \t")
        if NUMBER.fullmatch(first):
            number = float(first)
            if number < EPOCH:
                return capped(number)
            scale = 1e6 if number >= 1e14 else 1e3 if number >= 1e11 else 1.0
            return capped(number / scale - self.now)
        wait = go_duration(first)
        if wait is not None:
            return wait
        instant = rfc_3339(text)
        if instant is None:
            instant = http_date(text)
        if instant is None:
            instant = _script_date(text)
        return None if instant is None else capped(instant - self.now)


def capped(seconds: float) -> float:
    """Return seconds within 0 and MOST_SECONDS."""
    return min(max(seconds, 0.0), MOST_SECONDS) if not math.isnan(seconds) else 0.0


def go_duration(text: str) -> float | None:
    """Return the seconds of a duration as Go writes it: `6m0s`, `12ms`, `1m30.5s`."""
    if not text or len(text) > 64:
        return None
    at, total = 0, 0.0
    while at < len(text):
        match = GO_PART.match(text, at)
        if match is None:
            return None
        total += float(match[1]) * GO_SECONDS[match[2]]
        at = match.end()
    return capped(total)


def rfc_3339(text: str) -> float | None:
    """Return the Unix time of `2026-01-27T12:00:30Z`. Without a zone it means UTC."""
    match = RFC_3339.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        return None
    day, clock, fraction, hours, minutes = match.groups()
    try:
        instant = datetime.fromisoformat(f"{day}T{clock}{f'{hours}:{minutes}' if hours else '+00:00'}").timestamp()
    except (ValueError, OverflowError):
        return None
    return instant + float(fraction or 0)


def http_date(text: str) -> float | None:
    """Return the Unix time of an HTTP date in any of its three forms; the oldest has no zone and means UTC."""
    if not text or len(text) > 64:
        return None
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    try:
        return (instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant).timestamp()
    except (ValueError, OverflowError):
        return None


def _script_date(text: str) -> float | None:
    match = SCRIPT_DATE.fullmatch(text) if len(text) <= 128 else None
    if match is None:
        return None
    month, day, year, clock, zone = match.groups()
    return http_date(f"{day} {month} {year} {clock} {zone}")


@lru_cache(2048)  # the same few names come with every response
def _wanted(name: str) -> str:
    """Return a name in lower case, "" if its field is not kept."""
    name = name.lower()
    return name if WANTED.search(name) else ""


def _by_name(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the wanted fields. The lines of a limit's field are joined; of others the first line counts."""
    found: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for name, value in headers:
        name = _wanted(name) if len(name) <= MAX_NAME else ""
        if not name:
            continue
        value = value.strip(" \t")
        if name not in found:
            if len(found) < MAX_NAMES:
                found[name], sizes[name] = [value], len(value)
        elif "ratelimit" in name and sizes[name] <= MAX_FIELD:
            found[name].append(value)
            sizes[name] += len(value) + 1
    return {name: ",".join(values) for name, values in found.items() if sizes[name] <= MAX_FIELD}
