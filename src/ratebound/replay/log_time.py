"""Times and durations of access logs as microseconds.

A busy log has many lines per second, so texts of times are read once and kept: looking a text up costs less than a
tenth of reading it. Each table is bounded.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone

SECOND = 1_000_000
KEPT = 50_000  # texts in one table
NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTHS = dict(zip(NAMES, range(1, 13), strict=True))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Kept(dict[str, int]):
    """A table from texts to numbers. It is a dict, because map(table.__getitem__, texts) then calls no Python code."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[str], int]) -> None:
        self._read = read

    def __missing__(self, text: str) -> int:
        number = self._read(text)
        if len(self) >= KEPT:
            self.clear()
        self[text] = number
        return number


def read_local_time(text: str) -> int:
    """Return the time of "16/Nov/2026:12:00:00 +0000". Raises ValueError if the text is none."""
    if len(text) != 26 or text[2] != "/" or text[6] != "/" or text[11] != ":" or text[20] != " ":
        raise ValueError(f"not a time: {text!r}")
    month = MONTHS.get(text[3:6])
    if month is None:
        raise ValueError(f"not a month: {text!r}")
    offset = timedelta(hours=int(text[22:24]), minutes=int(text[24:26]))
    zone = timezone(-offset if text[21] == "-" else offset)
    second = min(int(text[18:20]), 59)  # 60: a leap second
    moment = datetime(int(text[7:11]), month, int(text[:2]), int(text[12:14]), int(text[15:17]), second, tzinfo=zone)
    return _since_epoch(moment, text)


def read_iso_time(text: str) -> int:
    """Return a time in ISO 8601; without an offset it is in UTC. Raises ValueError if the text is none."""
    size = len(text)
    if 21 < size < 31 and text[19] == "." and text[-1] == "Z":
        part = text[20:-1]
        if part.isdecimal() and part.isascii():
            return _seconds[text[:19]] + int(part[:6].ljust(6, "0"))
    return _read_whole_iso_time(text)


def _read_whole_iso_time(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return _since_epoch(moment, text)


def _since_epoch(moment: datetime, text: str) -> int:
    at = (moment - EPOCH) // MICROSECOND
    if at < 0:
        raise ValueError(f"before 1970: {text!r}")
    return at


_seconds = Kept(_read_whole_iso_time)  # the same second is written with many fractions


def read_epoch(number: float) -> int:
    """Return the time of a number since the epoch: seconds, or milli-, micro- or nanoseconds if it is that large.

    Raises ValueError if the number is no time.
    """
    if not 0 <= number < 1e20:
        raise ValueError(f"not a time: {number!r}")
    if number < 1e11:
        return round(number * SECOND)
    if number < 1e14:
        return round(number * 1000)
    if number < 1e17:
        return round(number)
    return int(number) // 1000


def read_epoch_text(text: str) -> int:
    """Return the time of a number since the epoch that is written in decimals. Raises ValueError if it is none."""
    whole, point, part = text.partition(".")
    if point and len(whole) == 10 and len(part) in (3, 6) and whole.isdecimal() and part.isdecimal():
        return int(whole) * SECOND + int(part.ljust(6, "0"))
    return read_epoch(float(text))


def read_epoch_column(texts: Sequence[str]) -> list[int] | None:
    """Return the times of numbers like 1794830400.123, or None if some are written differently."""
    joined = ",".join(texts)
    count = len(texts)
    if len(joined) != 15 * count - 1 or joined[10::15] != "." * count or joined[14::15] != "," * (count - 1):
        return None
    digits = joined.replace(".", "")
    if not (digits.isascii() and digits.replace(",", "").isdecimal()):
        return None
    return [1000 * int(text) for text in digits.split(",")]


def read_iso_column(texts: Sequence[str]) -> list[int] | None:
    """Return the times of texts like 2026-11-16T12:00:00.123Z, or None if some are written differently."""
    count = len(texts)
    size = len(texts[0])
    joined = ",".join(texts)
    step = size + 1
    if (
        not 24 <= size <= 27
        or len(joined) != step * count - 1
        or joined[19::step] != "." * count
        or joined[size - 1 :: step] != "Z" * count
        or joined[size::step] != "," * (count - 1)
    ):
        return None
    seconds, scale = _seconds, 10 ** (27 - size)
    return [seconds[text[:19]] + int(text[20:-1]) * scale for text in texts]


def read_seconds(text: str) -> int:
    """Return a duration in seconds as microseconds: 0 if there is none ("-", or a negative number)."""
    return _duration(text, SECOND)


def read_milliseconds(text: str) -> int:
    """Return a duration in milliseconds as microseconds: 0 if there is none."""
    return _duration(text, 1000)


def read_microseconds(text: str) -> int:
    """Return a duration in microseconds: 0 if there is none."""
    return _duration(text, 1)


def _duration(text: str, unit: int) -> int:
    if text in ("", "-"):
        return 0
    number = float(text) * unit
    if not -1e15 < number < 1e15:  # also if it is not a number
        raise ValueError(f"not a duration: {text!r}")
    return max(round(number), 0)


def read_status(text: str) -> int:
    """Return the status, 0 if the line has none. Raises ValueError if the text is none."""
    if text in ("", "-"):
        return 0
    if not (text.isdecimal() and len(text) == 3):
        raise ValueError(f"not a status: {text!r}")
    return int(text)
