"""The notation of limits: `parse_limits` reads text, `str(limit)` writes it.

    limits  = limit { (";" | "," | "|") limit }
    limit   = count ("/" | "per") [multiple] unit { option }
            | count ("/" | "per") calendar { "in" zone | "from" day | option }
            | count "concurrent" [ "for" [multiple] unit ] { option }
            | count "distinct" value ("/" | "per") [multiple] unit { option }
            | count ("strike" | "strikes") ("/" | "per") [multiple] unit
              "block" time { "then" time } [ "forget" time ] [ "as" name ]
    time    = [multiple] unit
    option  = "burst" number | algorithm | "large" | "over" ("allow" | "deny") | "as" name
    calendar = "calendar-day" | "calendar-week" | "calendar-month" | "calendar-year"

It reads everything that the `limits` package reads, in one pass over at most 4096 characters. Invalid text raises
InvalidLimit in bounded time, with the position of the mistake and an example that works.
"""

import difflib
import re
from typing import Any, NoReturn

from ratebound.calendar_period import LENGTHS, WEEKDAYS, Calendar, zone_of
from ratebound.clock import SECOND
from ratebound.errors import InvalidLimit
from ratebound.limit import (
    ALGORITHMS,
    CALENDAR,
    CONCURRENT,
    DISTINCT,
    LEASE,
    MAX_COUNT,
    NAME,
    PENALTY,
    UNITS,
    VALUE_NAME,
    Algorithm,
    Limit,
)

MAX_TEXT = 4096
EXAMPLE = "expected for example '100/minute' or '10/second burst 20'"
CALENDAR_EXAMPLE = "expected for example '10000/calendar-month in Europe/Berlin from 15'"
SLOT_EXAMPLE = "expected for example '3 concurrent' or '3 concurrent for 10 minutes'"
DISTINCT_EXAMPLE = "expected for example '20 distinct account/hour'"
STRIKE_EXAMPLE = "expected for example '3 strikes/hour block 5 minutes then 1 hour then 1 day forget 7 days'"
TOKEN = re.compile(r"[0-9]+|[A-Za-z]+(?:-[A-Za-z]+)*|\S")
SEPARATED = re.compile(r"(?:[_,'][0-9]{3})+(?=\s*/|\s+per)")
FRACTION = re.compile(r"[0-9]+\.[0-9]")
SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([a-z]+)")
ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]*")
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
CALENDAR_NAMES = {f"calendar-{unit}": unit for unit in LENGTHS}
OPTIONS = ("burst", "as", "large", "over", *ALGORITHMS)
CALENDAR_OPTIONS = ("in", "from", "over", "as")
SLOT_OPTIONS = ("for", "as")
DISTINCT_OPTIONS = ("large", "as")
PENALTY_OPTIONS = ("block", "forget", "as")
STRIKES = ("strike", "strikes")
# Words of one kind of limit, for those who write them behind another kind.
BELONGS_TO = {
    "burst": "it belongs to rates, like '10/second burst 20'",
    "in": "it belongs to periods of the calendar, like '500/calendar-day in Europe/Berlin'",
    "from": "it belongs to periods of the calendar, like '10000/calendar-month from 15'",
    "over": "it belongs to quotas, like '10000/calendar-month over allow'",
    "for": "it belongs to slots, like '3 concurrent for 10 minutes'",
    "block": "it belongs to penalties, like '3 strikes/hour block 5 minutes'",
    "forget": "it belongs to penalties, like '3 strikes/hour block 5 minutes forget 7 days'",
    "then": "it belongs behind 'block', like '3 strikes/hour block 5 minutes then 1 hour'",
}
# Words that people write for the word that names a kind of limit.
SYNONYMS = {"different": DISTINCT, "unique": DISTINCT, "parallel": CONCURRENT, "simultaneous": CONCURRENT}
SIZE = re.compile(r"(?:([kmg])(i?)b|(kilo|mega|giga)?bytes?)", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
KIND_EXAMPLES = {CONCURRENT: SLOT_EXAMPLE, DISTINCT: DISTINCT_EXAMPLE, "strikes": STRIKE_EXAMPLE}
# The names that other libraries use.
ALIASES = {"moving-window": "sliding-log", "sliding-window": "sliding-log", "leaking-bucket": "leaky-bucket"}


def parse_span(text: str) -> float:
    """Return seconds. Raises ValueError if the text is no length of time like '30s', '2m' or '0.5 seconds'."""
    match = SPAN.fullmatch(" ".join(text[:200].lower().split()))
    if match and match[2] in UNIT_NAMES:
        span = float(match[1]) * UNIT_NAMES[match[2]] / SECOND
        if span > 0:
            return span
    raise ValueError(f"cannot read duration {text[:80]!r}: expected for example '30s', '2m' or '500ms'")


def parse_limit(text: str, *, default: Algorithm | None = None) -> Limit:
    """Return the one limit in `text`.

    Args:
        text: The notation, like `"100/minute"` or `"10/second burst 20"`; at most 4096 characters.
        default: The algorithm of limits that name none and have no burst. None means sliding-log up to a count of 100,
            and sliding-counter above.

    Raises:
        InvalidLimit: The text cannot be read, or has no limit or more than one. The message shows the position.

    Examples:
        >>> from ratebound import parse_limit
        >>> limit = parse_limit("10/second burst 20")
        >>> limit.count, limit.burst, limit.algorithm
        (10, 20, 'token-bucket')
    """
    found = parse_limits(text, default=default)
    if len(found) != 1:
        raise InvalidLimit(f"expected one limit, found {len(found)} in {_shown(text)}: parse_limits reads several")
    return found[0]


def parse_limits(text: str, *, default: Algorithm | None = None) -> list[Limit]:
    """Return the limits in `text`, separated by `;`, `,` or `|`.

    Args:
        text: The notation, like `"100/minute"` or `"10/second burst 20"`; at most 4096 characters.
        default: The algorithm of limits that name none and have no burst. None means sliding-log up to a count of 100,
            and sliding-counter above.

    Raises:
        InvalidLimit: The text cannot be read. The message shows the position of the first mistake.

    Examples:
        >>> from ratebound import parse_limits
        >>> [str(limit) for limit in parse_limits("5/second; 1000/day")]
        ['5/second', '1000/day']
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
        self.example = EXAMPLE
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

    def limit(self, default: Algorithm | None) -> Limit:
        """Return the limit. Raises InvalidLimit."""
        begin = self.place
        count = self.number("a count", "a count cannot be zero")
        try:
            if self.token.lower() == CONCURRENT:
                return self.slots(count)
            if self.token.lower() == DISTINCT:
                return self.distinct(count)
            if self.token.lower() in STRIKES:
                return self.penalty(count)
            if self.token[:3].lower() == "per":
                self.token = self.token[:3]  # the period may follow without a space
            if self.token != "/" and self.token.lower() != "per":
                self.fail_after_count(count)
            self.step()
            if self.token.lower() in CALENDAR_NAMES:
                return self.quota(count)
            if self.token.lower() == CONCURRENT:
                self.example = SLOT_EXAMPLE
                self.fail(f"slots have no period: write '{count} {CONCURRENT}'")
            return self.rate(count, default)
        except _Unfit as error:
            self.place, self.token = begin, self.text[begin : self.end].rstrip()
            self.fail(str(error))

    def fail_after_count(self, count: int) -> NoReturn:
        """Raise InvalidLimit for what is neither '/' nor 'per', nor a kind of limit."""
        word = self.token[:40].lower()
        near = [SYNONYMS[word]] if word in SYNONYMS else difflib.get_close_matches(word, KIND_EXAMPLES, 1)
        if near:
            self.example = KIND_EXAMPLES[near[0]]
            self.fail(f"unknown word {_shown(self.token)}: did you mean '{near[0]}'?")
        if word in UNIT_NAMES:
            self.fail(
                f"expected '/' or 'per' between the count and '{word}'; the times of a penalty are joined by 'then',"
                " like 'block 5 minutes then 1 hour'"
            )
        size = SIZE.fullmatch(self.token)
        if size is not None:
            power = POWERS[(size[1] or size[3] or "")[:1].lower()]
            units = count * (1024 if size[2] else 1000) ** power
            if units <= MAX_COUNT:
                self.fail(f"limits count units: write '{units}/…', and 'charge: bytes' in the rule")
        separated = SEPARATED.match(self.text, self.place)
        if separated is not None:
            digits = "".join(filter(str.isdecimal, f"{count}{separated.group()}"))
            self.fail(f"write the count without separators: '{digits}'")
        self.fail(
            "expected '/' or 'per' after the count, which is a whole number, or 'concurrent', 'distinct' or 'strikes'"
        )

    def rate(self, count: int, default: Algorithm | None) -> Limit:
        """Return a limit per period of time."""
        period = self.period()
        options = self.options(OPTIONS)
        burst = int(options.get("burst", "0"))
        algorithm = options.get("algorithm") or ("token-bucket" if burst else default or "")
        return _limit(
            count,
            period,
            burst,
            algorithm,
            options.get("as", ""),
            large="large" in options,
            over=options.get("over", "deny"),
        )

    def quota(self, count: int) -> Limit:
        """Return a limit per period of the calendar."""
        self.example = CALENDAR_EXAMPLE
        unit = CALENDAR_NAMES[self.step().lower()]
        options = self.options(CALENDAR_OPTIONS)
        day = options.get("from", "1")
        begin = WEEKDAYS.index(day) + 1 if day in WEEKDAYS else int(day)
        if "from" in options and unit in ("day", "year"):
            raise _Unfit(f"a calendar {unit} takes no 'from'")
        if "from" in options and (day in WEEKDAYS) != (unit == "week"):
            expected = "a weekday, like 'from monday'" if unit == "week" else "a day of the month, like 'from 15'"
            raise _Unfit(f"a calendar {unit} takes {expected}")
        try:
            calendar = Calendar(unit, options.get("in", "UTC"), begin)
        except InvalidLimit as error:
            raise _Unfit(str(error)) from None
        name, over = options.get("as", ""), options.get("over", "deny")
        return _limit(count, algorithm=CALENDAR, name=name, calendar=calendar, over=over)

    def slots(self, count: int) -> Limit:
        """Return a limit of requests at the same time."""
        self.example = SLOT_EXAMPLE
        self.step()
        options = self.options(SLOT_OPTIONS)
        lease = int(options.get("for", str(LEASE)))
        return _limit(count, lease, algorithm=CONCURRENT, name=options.get("as", ""))

    def distinct(self, count: int) -> Limit:
        """Return a limit of different values."""
        self.example = DISTINCT_EXAMPLE
        self.step(VALUE_NAME)
        if not self.token or self.token.lower() == "per":
            self.fail("expected the name of the values that are counted")
        values = self.step()
        period = self.per_period()
        options = self.options(DISTINCT_OPTIONS)
        name = options.get("as", "")
        return _limit(count, period, algorithm=DISTINCT, name=name, large="large" in options, values=values)

    def penalty(self, count: int) -> Limit:
        """Return a penalty."""
        self.example = STRIKE_EXAMPLE
        self.step()
        period = self.per_period()
        options = self.options(PENALTY_OPTIONS)
        if "block" not in options:
            self.fail("expected 'block' and how long to block")
        blocks = tuple(map(int, options["block"].split()))
        forget = int(options.get("forget", "0"))
        name = options.get("as", "")
        return _limit(count, period, algorithm=PENALTY, name=name, blocks_us=blocks, forget_us=forget)

    def per_period(self) -> int:
        """Return the time in microseconds after '/' or 'per', and step over it."""
        if self.token[:3].lower() == "per":
            self.token = self.token[:3]
        if self.token != "/" and self.token.lower() != "per":
            self.fail("expected '/' or 'per' and a period")
        self.step()
        return self.period()

    def period(self) -> int:
        """Return a time in microseconds, like '10 minutes', and step over it."""
        has_multiple = self.token.isdecimal()
        multiple = self.number("a number of units", "a period cannot be zero") if has_multiple else 1
        if self.token.lower() in CALENDAR_NAMES:
            if has_multiple and self.example == EXAMPLE:
                self.fail("a calendar period takes no number: it is one day, week, month or year")
            self.fail("expected a length of time, which a calendar period is not")
        return multiple * self.unit()

    def number(self, what: str, zero: str) -> int:
        """Return a positive number and step over it."""
        if not (self.token.isascii() and self.token.isdecimal()):
            self.fail(f"expected {what} in digits 0 to 9")
        if len(self.token.lstrip("0")) > 15:
            self.fail("this number is too large")
        if FRACTION.match(self.text, self.place):
            self.fail("numbers are whole: write '1/2 seconds' for 0.5 per second, and '500ms' for 0.5 seconds")
        if not self.token.strip("0"):
            self.fail(zero)
        return int(self.step())

    def unit(self) -> int:
        """Return the length of a unit in microseconds and step over it."""
        length = UNIT_NAMES.get(self.token.lower())
        if length is None:
            if not self.token:
                self.fail("expected a unit of time")
            self.fail(f"unknown unit {_shown(self.token)}: {_unit_hint(self.token[:40].lower())}")
        self.step()
        return length

    def options(self, known: tuple[str, ...]) -> dict[str, str]:
        """Return the options after the period, up to the end of the text."""
        options: dict[str, str] = {}
        while self.token:
            place, word = self.place, self.token.lower()
            option = "algorithm" if word in ALGORITHMS else word
            if word not in known:
                self.fail(f"unknown word {_shown(self.token)}: {_hint(word, known)}")
            if option in options:
                self.fail(f"{option} is given twice")
            options[option] = self.option(word)
            if self.place == place:
                self.fail("unexpected character")
        return options

    def option(self, word: str) -> str:
        """Return the value of an option and step over it."""
        if word == "as":
            self.step(NAME)
            if not self.token:
                self.fail("expected a name: letters, digits and _ . : / -")
            return self.step()
        if word == "in":
            self.step(ZONE)
            if not self.token:
                self.fail("expected a time zone, like Europe/Berlin")
            try:
                zone_of(self.token)
            except InvalidLimit as error:
                self.fail(str(error))
            return self.step()
        if word not in ("burst", "from", "for", "over", "block", "forget"):
            return self.step().lower()
        self.step()
        if word == "burst":
            return str(self.number("a number after 'burst'", "a burst cannot be zero"))
        if word in ("for", "forget"):
            return str(self.period())
        if word == "block":
            blocks = [str(self.period())]
            while self.token.lower() == "then":
                self.step()
                blocks.append(str(self.period()))
            if self.token.isdecimal() or self.token.lower() == "and":
                self.fail("write 'then' before the next time")
            return " ".join(blocks)
        if word == "over":
            if self.token.lower() not in ("allow", "deny"):
                self.fail("expected 'allow' or 'deny' after 'over'")
            return self.step().lower()
        if self.token.lower() in WEEKDAYS:
            return self.step().lower()
        what = "a day of the month or a weekday after 'from'"
        if not self.token.isdecimal():
            self.fail(f"expected {what}{_weekday_hint(self.token[:40].lower())}")
        return str(self.number(what, "a day cannot be zero"))

    def fail(self, why: str) -> NoReturn:
        """Raise InvalidLimit with the reason, and mark the position in the text."""
        begin = max(self.place - 40, 0)
        line = "".join(c if c.isprintable() else "?" for c in self.text[begin : self.place + 40])
        marks = "^" * min(max(len(self.token), 1), 40)
        raise InvalidLimit(
            f"cannot read limit {_shown(self.text)}: {why}, at position {self.place}\n"
            f"    {line}\n    {' ' * (self.place - begin)}{marks}\n{self.example}"
        )


class _Unfit(Exception):
    """Numbers and words that can be read, but do not make a limit."""


def _limit(count: int, *args: Any, **options: Any) -> Limit:
    """Return a Limit. Raises _Unfit instead of InvalidLimit, so that the reader adds the position."""
    try:
        return Limit(count, *args, **options)
    except InvalidLimit as error:
        raise _Unfit(str(error)) from None


def _unit_hint(word: str) -> str:
    if word.startswith("calend"):
        near = difflib.get_close_matches(word, CALENDAR_NAMES, 1, cutoff=0.85)
        *most, last = CALENDAR_NAMES
        return f"did you mean '{near[0]}'?" if near else f"expected {', '.join(most)} or {last}"
    near = difflib.get_close_matches(word, UNIT_NAMES, 1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(UNITS)}"


def _weekday_hint(word: str) -> str:
    near = [day for day in WEEKDAYS if len(word) > 1 and (day.startswith(word) or word.startswith(day))]
    near = near or difflib.get_close_matches(word, WEEKDAYS, 1)
    return f": did you mean '{near[0]}'?" if near else ", like 'from 15' or 'from monday'"


def _hint(word: str, known: tuple[str, ...]) -> str:
    if word in BELONGS_TO:
        return BELONGS_TO[word]
    near = [ALIASES[word]] if ALIASES.get(word) in known else difflib.get_close_matches(word[:40], known, 1)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 80 else f"{text[:60]!r}… ({len(text)} characters)"
