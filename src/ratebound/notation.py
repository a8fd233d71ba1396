"""The notation of limits: `parse_limits` reads text, `str(limit)` writes it.

    limits  = limit { (";" | "," | "|") limit }
    limit   = count ("/" | "per") [multiple] unit { option }
    option  = "burst" number | algorithm | "large" | "as" name

It reads everything that the `limits` package reads, in one pass over at most 4096 characters. Invalid text raises
InvalidLimit in bounded time, with the position of the mistake and an example that works.
"""

import difflib
import re
from typing import NoReturn

from ratebound.errors import InvalidLimit
from ratebound.limit import ALGORITHMS, NAME, UNITS, Limit

MAX_TEXT = 4096
EXAMPLE = "expected for example '100/minute' or '10/second burst 20'"
TOKEN = re.compile(r"[0-9]+|[A-Za-z]+(?:-[A-Za-z]+)*|\S")
SHORT_UNITS = {
    "us": "microsecond",
    "ms": "millisecond",
    "msec": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
    "w": "week",
    "mo": "month",
    "y": "year",
    "yr": "year",
}
UNIT_NAMES = {
    **UNITS,
    **{f"{unit}s": length for unit, length in UNITS.items()},
    **{short: UNITS[unit] for short, unit in SHORT_UNITS.items()},
}
OPTIONS = ("burst", "as", "large", *ALGORITHMS)
# The names that other libraries use.
ALIASES = {"moving-window": "sliding-log", "sliding-window": "sliding-log", "leaking-bucket": "leaky-bucket"}


def parse_limit(text: str, *, default: str | None = None) -> Limit:
    """Return the one limit in `text`. Raises InvalidLimit if there is none, or more than one.

    `default` is the algorithm if the text names none and has no burst.
    """
    found = parse_limits(text, default=default)
    if len(found) != 1:
        raise InvalidLimit(f"expected one limit, found {len(found)} in {_shown(text)}: parse_limits reads several")
    return found[0]


def parse_limits(text: str, *, default: str | None = None) -> list[Limit]:
    """Return the limits in `text`. Raises InvalidLimit with the position of the first mistake.

    `default` is the algorithm for limits that name none and have no burst.
    """
    if default is not None and default not in ALGORITHMS:
        raise InvalidLimit(f"unknown algorithm {default!r}: expected one of {', '.join(ALGORITHMS)}")
    if not isinstance(text, str):
        raise InvalidLimit(f"cannot read limit {text!r}: it is not text; {EXAMPLE}")
    if len(text) > MAX_TEXT:
        raise InvalidLimit(f"cannot read limit {_shown(text)}: longer than {MAX_TEXT} characters; {EXAMPLE}")
    found, begin = [], 0
    for part in re.split("[;,|]", text):
        found.append(_LimitReader(text, begin, begin + len(part)).limit(default))
        begin += len(part) + 1
    return found


class _LimitReader:
    """A reader of one limit between two positions of a text. It knows the position for error messages."""

    def __init__(self, text: str, begin: int, end: int) -> None:
        self.text = text
        self.end = end
        self.place = begin
        self.token = ""
        self.step()

    def step(self, pattern: re.Pattern[str] = TOKEN) -> str:
        """Return the current token and move to the next one; '' at the end."""
        taken = self.token
        rest = self.place + len(taken)
        while rest < self.end and self.text[rest].isspace():
            rest += 1
        match = pattern.match(self.text, rest, self.end)
        self.place, self.token = rest, match.group() if match else ""
        return taken

    def limit(self, default: str | None) -> Limit:
        """Return the limit. Raises InvalidLimit."""
        begin = self.place
        count = self.number("a count", "a count cannot be zero")
        if self.token[:3].lower() == "per":
            self.token = self.token[:3]  # the period may follow without a space
        if self.token != "/" and self.token.lower() != "per":
            self.fail("expected '/' or 'per' after the count, which is a whole number")
        self.step()
        multiple = self.number("a number of units", "a period cannot be zero") if self.token.isdecimal() else 1
        period = multiple * self.unit()
        options = self.options()
        burst = int(options.get("burst", "0"))
        algorithm = options.get("algorithm") or ("token-bucket" if burst else default or "")
        try:
            return Limit(count, period, burst, algorithm, options.get("as", ""), large="large" in options)
        except InvalidLimit as error:
            self.place, self.token = begin, self.text[begin : self.end].rstrip()
            self.fail(str(error))

    def number(self, what: str, zero: str) -> int:
        """Return a positive number and step over it."""
        if not (self.token.isascii() and self.token.isdecimal()):
            self.fail(f"expected {what} in digits 0 to 9")
        if len(self.token.lstrip("0")) > 15:
            self.fail("this number is too large")
        if not self.token.strip("0"):
            self.fail(zero)
        return int(self.step())

    def unit(self) -> int:
        """Return the length of a unit in microseconds and step over it."""
        length = UNIT_NAMES.get(self.token.lower())
        if length is None:
            if not self.token:
                self.fail("expected a unit of time")
            near = difflib.get_close_matches(self.token[:40].lower(), UNIT_NAMES, 1)
            known = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(UNITS)}"
            self.fail(f"unknown unit {_shown(self.token)}: {known}")
        self.step()
        return length

    def options(self) -> dict[str, str]:
        """Return the options after the unit, up to the end of the text."""
        options: dict[str, str] = {}
        while self.token:
            place, word = self.place, self.token.lower()
            option = "algorithm" if word in ALGORITHMS else word
            if word not in OPTIONS:
                near = [ALIASES[word]] if word in ALIASES else difflib.get_close_matches(word[:40], OPTIONS, 1)
                known = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(OPTIONS)}"
                self.fail(f"unknown word {_shown(self.token)}: {known}")
            if option in options:
                self.fail(f"{option} is given twice")
            if word == "as":
                self.step(NAME)
                if not self.token:
                    self.fail("expected a name: letters, digits and _ . : / -")
                options[option] = self.step()
            elif word == "burst":
                self.step()
                options[option] = str(self.number("a number after 'burst'", "a burst cannot be zero"))
            else:
                options[option] = self.step().lower()
            if self.place == place:
                self.fail("unexpected character")
        return options

    def fail(self, why: str) -> NoReturn:
        """Raise InvalidLimit with the reason, and mark the position in the text."""
        begin = max(self.place - 40, 0)
        line = "".join(c if c.isprintable() else "?" for c in self.text[begin : self.place + 40])
        marks = "^" * min(max(len(self.token), 1), 40)
        raise InvalidLimit(
            f"cannot read limit {_shown(self.text)}: {why}, at position {self.place}\n"
            f"    {line}\n    {' ' * (self.place - begin)}{marks}\n{EXAMPLE}"
        )


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:60]!r}… ({len(text)} characters)"
