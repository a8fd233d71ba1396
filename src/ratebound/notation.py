"""The notation: text in, limits out. `str(limit)` is the way back.

    limits  = limit { (";" | "," | "|") limit }
    limit   = count ("/" | "per") [multiple] unit { option }
    option  = "burst" number | algorithm | "large" | "as" name

Reads everything that the `limits` package reads. One pass over at most 4096 characters, so that any text,
however bad, is refused in bounded time, with the place that is wrong and an example that works.
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
# What other libraries call them.
ALIASES = {"moving-window": "sliding-log", "sliding-window": "sliding-log", "leaking-bucket": "leaky-bucket"}


def parse_limit(text: str, *, default: str | None = None) -> Limit:
    """Read exactly one limit. `default` is the algorithm of a text that names none and has no burst."""
    found = parse_limits(text, default=default)
    if len(found) != 1:
        raise InvalidLimit(f"expected one limit, found {len(found)} in {_shown(text)}: parse_limits reads several")
    return found[0]


def parse_limits(text: str, *, default: str | None = None) -> list[Limit]:
    """Read one limit or several."""
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
    """Reads one limit between two places of a text; knows the place for its complaints."""

    def __init__(self, text: str, begin: int, end: int) -> None:
        self.text = text
        self.end = end
        self.place = begin
        self.token = ""
        self.step()

    def step(self, pattern: re.Pattern[str] = TOKEN) -> str:
        """Return the token at hand and go to the next; '' is the end."""
        taken = self.token
        rest = self.place + len(taken)
        while rest < self.end and self.text[rest].isspace():
            rest += 1
        match = pattern.match(self.text, rest, self.end)
        self.place, self.token = rest, match.group() if match else ""
        return taken

    def limit(self, default: str | None) -> Limit:
        begin = self.place
        count = self.number("a count", "a count cannot be zero")
        if self.token[:3].lower() == "per":
            self.token = self.token[:3]  # what follows may be written without a space
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
        if not (self.token.isascii() and self.token.isdecimal()):
            self.fail(f"expected {what} in digits 0 to 9")
        if len(self.token.lstrip("0")) > 15:
            self.fail("this number is too large")
        if not self.token.strip("0"):
            self.fail(zero)
        return int(self.step())

    def unit(self) -> int:
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
        options: dict[str, str] = {}
        while self.token:
            place, word = self.place, self.token.lower()
            option = "algorithm" if word in ALGORITHMS else word
            if word not in OPTIONS:
                near = [ALIASES[word]] if word in ALIASES else difflib.get_close_matches(word[:40], OPTIONS, 1)
                known = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(OPTIONS)}"
                self.fail(f"cannot make sense of {_shown(self.token)}: {known}")
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
                self.fail("cannot make sense of this")
        return options

    def fail(self, why: str) -> NoReturn:
        """Say what is wrong, and point at it."""
        begin = max(self.place - 40, 0)
        line = "".join(c if c.isprintable() else "?" for c in self.text[begin : self.place + 40])
        marks = "^" * min(max(len(self.token), 1), 40)
        raise InvalidLimit(
            f"cannot read limit {_shown(self.text)}: {why}, at position {self.place}\n"
            f"    {line}\n    {' ' * (self.place - begin)}{marks}\n{EXAMPLE}"
        )


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:60]!r}… ({len(text)} characters)"
