"""The types of a question to a storage: Limit, Check, Ask and Group.

A Limit computes the numbers that kernels need when it is made. It rejects a limit whose instants or counts could reach
2**53, beyond which doubles, and so Lua, are not exact.
"""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Final, Literal, get_args

from ratebound.calendar_period import LENGTHS, Calendar
from ratebound.errors import InvalidCost, InvalidKey, InvalidLimit
from ratebound.numbers import MAX_COUNT as MAX_COUNT
from ratebound.numbers import Numbers
from ratebound.share import read_share
from ratebound.windows import Windows

UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
    "month": 2_592_000_000_000,  # 30 days
    "year": 31_536_000_000_000,  # 365 days
}
# Of rates: three buckets, and three windows.
Algorithm = Literal["token-bucket", "gcra", "leaky-bucket", "fixed-window", "sliding-log", "sliding-counter"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
BUCKETS, WINDOWS = ALGORITHMS[:3], ALGORITHMS[3:]
CALENDAR: Final = "calendar"
CONCURRENT: Final = "concurrent"
DISTINCT: Final = "distinct"
PENALTY: Final = "penalty"
NOT_RATES: Final = (CALENDAR, CONCURRENT, DISTINCT, PENALTY)
NotRate = Literal["calendar", "concurrent", "distinct", "penalty"]
Failure = Literal["local", "open", "closed", "raise"]
Over = Literal["deny", "allow"]
FAILURES: tuple[Failure, ...] = get_args(Failure)

MAX_PERIOD = 10 * UNITS["year"]
MAX_SPAN = 100 * UNITS["year"]  # time to refill a whole burst: now + span + overdraft + patience stays under 2**53
LOG_COUNT = 10_000  # a sliding log stores every event: a larger count needs the word `large`
MAX_SLOTS = 10_000  # every slot is stored
LEASE = UNITS["minute"]  # of a slot, if the limit gives none
MAX_LEASE = UNITS["day"]
MAX_VALUES = 1_000  # every distinct value is stored: a larger count needs the word `large`
MAX_LARGE_VALUES = 10_000
MAX_STRIKES = 100
ONE_STRIKE: Final = UNITS["second"]  # denials within this time are one strike
MAX_BLOCKS = 8  # in the list of a penalty
MAX_BLOCK = UNITS["year"]
FORGET = 7 * UNITS["day"]  # a penalty forgets its blocks after this time, unless it gives another
SLICES_IN_PERIOD = 10  # a period is at least so many times as long as a slice of it lives
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")
VALUE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*")


def default_algorithm(count: int, *, burst: bool) -> Algorithm:
    """Return the algorithm for a limit that names none.

    Limits are exact where that is cheap: '5/minute' allows at most 5 in any minute.
    """
    if burst:
        return "token-bucket"
    return "sliding-log" if count <= 100 else "sliding-counter"


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a limit that a process takes from a shared storage at once, to decide from it without asking again.

    Args:
        share: The most that is taken, as a share of what remains: above 0, up to 1.
        for_us: The time within which it is used, in microseconds: from 1 millisecond to 1 hour.

    Raises:
        InvalidLimit: A number is out of range.

    Examples:
        >>> from ratebound import Limiter, Slice
        >>> limiter = Limiter("10000/minute", slice=Slice(share=0.1, for_us=500_000))
    """

    share: float = 0.05
    for_us: int = UNITS["second"]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "share", read_share(self.share))
        except ValueError as error:
            raise InvalidLimit(f"cannot read the share of a slice: {error}") from None
        if type(self.for_us) is not int or not UNITS["millisecond"] <= self.for_us <= UNITS["hour"]:
            raise InvalidLimit(f"a slice lives from 1 millisecond to 1 hour, not {self.for_us!r} microseconds")


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `count` units of cost per `period_us` microseconds, `burst` of them at once.

    `parse_limit` makes one from text, and `str(limit)` is that text. Limits with equal fields are equal.
    To change a limit without a name, use `dataclasses.replace(limit, name="", …)`: without `name=""` the old text
    becomes its name, and a named limit has a count of its own.

    Four algorithms are not rates:
    - "calendar" counts in periods of `calendar`, whose mean length is `period_us`.
    - "concurrent" allows `count` slots at the same time. `period_us` is the lease: the time for which a slot is held
      unless it is renewed or released.
    - "distinct" allows `count` different values of `values`. A value counts until `period_us` after its last allowed
      sight.
    - "penalty" blocks a key after `count` strikes within `period_us`: for the first time in `blocks_us`, then for the
      next; the last one repeats. `forget_us` after the end of a block, and after a strike, the list starts again.

    Args:
        count: The units of a period, slots, values or strikes: a whole number, 1 or more.
        period_us: The period in microseconds, at most ten years.
        burst: The units of a bucket that can be spent at once. 0 means `count`. Windows have none.
        algorithm: One of token-bucket, gcra, leaky-bucket, fixed-window, sliding-log and sliding-counter, or one of the
            four above. Empty selects the default.
        name: The name in headers, reports and `Usage`. Empty means the text of the limit.
        large: True allows a sliding log with a count above 10 000, or more than 1000 distinct values.
        failure: The failure mode of this limit: local, open, closed or raise. Empty means the limiter's.
        calendar: The calendar period of the algorithm "calendar".
        over: "allow" for a metered limit: a fixed window or a calendar period that counts what exceeds it, and denies
            nothing.
        retry_us: For slots, the time after which a client without a slot is told to try again. 0 means that it is told
            no time, because it is unknown when a slot will be free.
        values: The name of the values that "distinct" counts.
        blocks_us: The lengths of a penalty's blocks in microseconds, the first one first.
        forget_us: The time in microseconds after which a penalty forgets its blocks.
        warn: The share at which listeners are warned that the limit is nearly used up, like 0.8. 0 means never.
        slice: The part of the limit that each process takes from a shared storage at once. None means no part.
        deny_cache: True lets a process repeat a denial for up to a second without asking the storage.

    Raises:
        InvalidLimit: The numbers are out of range or do not go together.

    Examples:
        >>> from ratebound import Limit, parse_limit
        >>> limit = Limit(100, 60_000_000, algorithm="sliding-log")
        >>> str(limit), limit == parse_limit("100/minute")
        ('100/minute', True)
    """

    count: int
    period_us: int = 0
    burst: int = 0
    algorithm: Algorithm | NotRate | Literal[""] = ""
    name: str = ""
    large: InitVar[bool] = False
    failure: Failure | Literal[""] = field(default="", compare=False)
    calendar: Calendar | None = None
    over: Over = "deny"
    retry_us: int = 0
    values: str = ""
    blocks_us: tuple[int, ...] = ()
    forget_us: int = 0
    warn: float = field(default=0.0, compare=False)
    slice: Slice | None = field(default=None, compare=False)
    deny_cache: bool = field(default=False, compare=False)

    warns_at: int = field(init=False, repr=False, compare=False)  # the largest remainder that is warned of
    is_watched: bool = field(init=False, repr=False, compare=False)  # True if events may follow from a decision
    scope: str = field(init=False, repr=False, compare=False)  # names the state, see `state_scope`
    slice_place: str = field(init=False, repr=False, compare=False)  # names the slices; empty without slices
    numbers: Numbers = field(init=False, repr=False, compare=False)  # what kernels compute with

    def __post_init__(self, large: bool) -> None:
        if type(self.count) is not int or not 1 <= self.count <= MAX_COUNT:
            raise InvalidLimit(f"count must be a whole number from 1 to {MAX_COUNT}, not {self.count!r}")
        put = object.__setattr__
        if self.calendar is not None and not isinstance(self.calendar, Calendar):
            raise InvalidLimit(f"calendar must be a Calendar, not {self.calendar!r}: for example Calendar('month')")
        if not self.algorithm:
            put(self, "algorithm", self._default_algorithm())
        if (self.algorithm == CALENDAR) != (self.calendar is not None):
            raise InvalidLimit("a calendar belongs to the algorithm 'calendar': for example '10000/calendar-month'")
        if not self.period_us and (self.calendar is not None or self.algorithm == CONCURRENT):
            put(self, "period_us", LEASE if self.calendar is None else LENGTHS[self.calendar.unit])
        if self.calendar is not None and self.period_us != LENGTHS[self.calendar.unit]:
            raise InvalidLimit(f"period must not be given, since its calendar gives the period: not {self.period_us!r}")
        if type(self.period_us) is not int or not 1 <= self.period_us <= MAX_PERIOD:
            raise InvalidLimit(
                f"period must be a whole number of microseconds, at most ten years of them, not {self.period_us!r};"
                " parse_limit('10/60 seconds') takes seconds"
            )
        if type(self.burst) is not int or not 0 <= self.burst <= MAX_COUNT:
            raise InvalidLimit(f"burst must be a whole number from 1 to {MAX_COUNT}, not {self.burst!r}")
        if self.algorithm not in (*ALGORITHMS, *NOT_RATES):
            raise InvalidLimit(f"unknown algorithm {self.algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
        if self.burst and self.algorithm not in BUCKETS and self.burst != self.count:
            raise InvalidLimit(f"{self.algorithm} has no burst: use token-bucket, gcra or leaky-bucket")
        put(self, "burst", self.burst or self.count)
        self._check_kind(large)
        self._read_warn()
        if self.failure not in ("", *FAILURES):
            raise InvalidLimit(f"unknown failure mode {self.failure!r}: expected one of {', '.join(FAILURES)}")
        if self.burst * self.period_us > MAX_SPAN * self.count:
            raise InvalidLimit(
                f"a burst of {self.burst} takes more than 100 years to refill; use a smaller burst or period"
            )
        if not self.name:
            put(self, "name", self.text)
        elif not NAME.fullmatch(self.name) and self.name != self.text:
            # Names that begin with a digit are most likely those of a limit before `replace`.
            hint = "; to change a limit without a name, use dataclasses.replace(limit, name='', …)"
            raise InvalidLimit(
                f"name {self.name!r} is not allowed: expected 1 to 64 of A-Z a-z 0-9 _ . : / -,"
                f" and a letter or digit first{hint if self.name[:1].isdigit() else ''}"
            )
        put(self, "scope", state_scope(self))
        put(self, "slice_place", "" if self.slice is None else _slice_place(self, self.slice))
        kernel: str = self.algorithm
        windows = None
        if self.is_quota:
            kernel, windows = "quota", Windows(self.period_us, self.calendar)
        numbers = Numbers(
            self.count,
            self.period_us,
            self.burst,
            kernel,
            self.scope,
            windows,
            self.metered,
            self.blocks_us,
            self.forget_us,
            self.slice_place,
        )
        put(self, "numbers", numbers)

    def _default_algorithm(self) -> str:
        if self.calendar is not None:
            return CALENDAR
        return default_algorithm(self.count, burst=bool(self.burst))

    def _check_kind(self, large: bool) -> None:
        """Raise InvalidLimit for numbers and options that do not go with the algorithm."""
        if self.algorithm == "sliding-log" and self.count > LOG_COUNT and not large:
            raise InvalidLimit(
                f"a sliding log stores up to {self.count} entries for each key: use sliding-counter,"
                f" or allow it with '{self.count}/… sliding-log large'"
            )
        if self.over not in ("deny", "allow"):
            raise InvalidLimit(f"over must be 'deny' or 'allow', not {self.over!r}")
        if self.over == "allow" and self.algorithm not in ("fixed-window", CALENDAR):
            raise InvalidLimit(
                f"'over allow' needs windows, and {self.algorithm} has none: use a fixed-window limit,"
                " or a calendar period like '10000/calendar-month over allow'"
            )
        if type(self.retry_us) is not int or not 0 <= self.retry_us <= MAX_LEASE:
            raise InvalidLimit(f"retry_us must be microseconds, at most a day of them, not {self.retry_us!r}")
        if self.retry_us and self.algorithm != CONCURRENT:
            raise InvalidLimit("retry_us is for slots, like '3 concurrent': other limits know when a request passes")
        if self.algorithm == CONCURRENT:
            if self.count > MAX_SLOTS:
                raise InvalidLimit(f"at most {MAX_SLOTS} can be concurrent, not {self.count}: every slot is stored")
            if not UNITS["second"] <= self.period_us <= MAX_LEASE:
                raise InvalidLimit("a slot is held for a time from 1 second to 1 day: '3 concurrent for 10 minutes'")
        self._check_values(large)
        self._check_penalty()
        self._check_local()

    def _check_local(self) -> None:
        """Raise InvalidLimit if the limit cannot be decided without its storage, and was asked to be."""
        if self.slice is not None and not isinstance(self.slice, Slice):
            raise InvalidLimit(f"slice must be a Slice, not {self.slice!r}: for example Slice(share=0.05)")
        if type(self.deny_cache) is not bool:
            raise InvalidLimit(f"deny_cache must be True or False, not {self.deny_cache!r}")
        if self.slice is None and not self.deny_cache:
            return
        asked = "slice" if self.slice is not None else "deny_cache"
        if not self.takes_cost or self.algorithm == "leaky-bucket" or self.metered:
            raise InvalidLimit(
                f"{asked} is for rates and quotas that deny, and not for {self.text!r}: leave out {asked}, or the limit"
            )
        if self.slice is not None and self.period_us < SLICES_IN_PERIOD * self.slice.for_us:
            raise InvalidLimit(
                f"the period of {self.text!r} is too short for slices of {self.slice.for_us / UNITS['second']:g} s: it"
                f" must be at least {SLICES_IN_PERIOD} times as long as 'for', which can be"
                f" {self.period_us / SLICES_IN_PERIOD / UNITS['second']:g} s here at most"
            )

    def _check_values(self, large: bool) -> None:
        if (self.algorithm == DISTINCT) != bool(self.values):
            raise InvalidLimit("a limit of distinct values names them: '20 distinct account/hour'")
        if self.algorithm != DISTINCT:
            return
        if not isinstance(self.values, str) or len(self.values) > 64 or not VALUE_NAME.fullmatch(self.values):
            raise InvalidLimit(f"values must be a name like 'account' or 'user_id', not {self.values!r}")
        if self.values.lower() == "per":
            raise InvalidLimit("values cannot be named 'per', which comes before the period: use another name")
        if self.count > MAX_LARGE_VALUES:
            raise InvalidLimit(f"at most {MAX_LARGE_VALUES} values can be distinct, not {self.count}: each is stored")
        if self.count > MAX_VALUES and not large:
            raise InvalidLimit(
                f"a limit of {self.count} distinct values stores all of them for each key: allow it with"
                f" '{self.count} distinct {self.values}/… large'"
            )

    def _check_penalty(self) -> None:
        if self.algorithm != PENALTY:
            if self.blocks_us or self.forget_us:
                raise InvalidLimit("blocks_us and forget_us are for penalties, like '3 strikes/hour block 5 minutes'")
            return
        if not self.forget_us:
            object.__setattr__(self, "forget_us", FORGET)
        if self.count > MAX_STRIKES:
            raise InvalidLimit(f"a penalty counts at most {MAX_STRIKES} strikes, not {self.count}: each is stored")
        if self.period_us > MAX_BLOCK:
            raise InvalidLimit("strikes are counted within at most a year")
        if self.period_us <= (self.count - 1) * ONE_STRIKE:
            raise InvalidLimit(
                f"denials within one second are one strike, so {self.count} strikes take {self.count - 1} seconds:"
                " count them within a longer time"
            )
        blocks = self.blocks_us
        if not isinstance(blocks, tuple) or not 1 <= len(blocks) <= MAX_BLOCKS:
            raise InvalidLimit(
                f"a penalty blocks for 1 to {MAX_BLOCKS} times: '3 strikes/hour block 5 minutes then 1 hour'"
            )
        for length in (*blocks, self.forget_us):
            if type(length) is not int or not UNITS["second"] <= length <= MAX_BLOCK:
                raise InvalidLimit(f"the times of a penalty are from 1 second to 1 year, not {length!r} microseconds")

    def _read_warn(self) -> None:
        put = object.__setattr__
        if self.warn:
            if self.algorithm == PENALTY:
                raise InvalidLimit("warn is not for penalties: listeners receive Struck for each strike. Remove warn")
            put(self, "warn", checked_warn(self.warn))
        put(self, "warns_at", _without_share(self.burst, self.warn) if self.warn else -1)
        put(self, "is_watched", bool(self.warn) or self.algorithm == PENALTY)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy what the limit was made of."""
        name = self.name if self.named else ""
        numbers = (self.count, self.period_us, self.burst, self.algorithm, name, True, self.failure)
        return type(self), (
            *numbers,
            self.calendar,
            self.over,
            self.retry_us,
            self.values,
            self.blocks_us,
            self.forget_us,
            self.warn,
            self.slice,
            self.deny_cache,
        )

    @property
    def queues(self) -> bool:
        """True for a leaky bucket: allowed requests wait for their turn."""
        return self.numbers.queues

    @property
    def is_quota(self) -> bool:
        """True if the limit counts in numbered windows: periods of the calendar, or metered fixed windows."""
        return self.calendar is not None or self.over == "allow"

    @property
    def metered(self) -> bool:
        """True if the limit counts what exceeds it, and denies nothing."""
        return self.over == "allow"

    @property
    def has_slots(self) -> bool:
        """True if the limit is about requests at the same time. It takes no cost: a request has one slot."""
        return self.algorithm == CONCURRENT

    @property
    def is_distinct(self) -> bool:
        """True if the limit is about different values. It takes no cost: a request has one value."""
        return self.algorithm == DISTINCT

    @property
    def is_penalty(self) -> bool:
        """True for a penalty: it counts strikes, and blocks."""
        return self.algorithm == PENALTY

    @property
    def takes_cost(self) -> bool:
        """True for rates and quotas. A slot and a value are always one, and a penalty counts strikes."""
        return self.algorithm not in (CONCURRENT, DISTINCT, PENALTY)

    @property
    def is_told_last(self) -> bool:
        """True if an allowed client is told of this limit only where there is no other: see `Decision.limit`."""
        return self.metered or not self.takes_cost

    @property
    def refill_us(self) -> int:
        """The time from empty to full: burst * period / count."""
        return self.numbers.refill_us

    @property
    def text(self) -> str:
        """The limit in the notation, without its name."""
        if self.algorithm == CONCURRENT:
            return f"{self.count} concurrent" + ("" if self.period_us == LEASE else f" for {_shown(self.period_us)}")
        if self.calendar is not None:
            return f"{self.count}/{self.calendar}" + (" over allow" if self.metered else "")
        length = _shown(self.period_us)
        per = length.removeprefix("1 ")
        if self.algorithm == DISTINCT:
            return f"{self.count} distinct {self.values}/{per}" + (" large" if self.count > MAX_VALUES else "")
        if self.algorithm == PENALTY:
            forget = "" if self.forget_us == FORGET else f" forget {_shown(self.forget_us)}"
            blocks = " then ".join(map(_shown, self.blocks_us))
            return f"{self.count} {'strike' if self.count == 1 else 'strikes'}/{per} block {blocks}{forget}"
        text = f"{self.count}/{per}"
        if self.algorithm in BUCKETS and (self.burst != self.count or self.algorithm == "token-bucket"):
            text += f" burst {self.burst}"
        if self.algorithm != default_algorithm(self.count, burst=" burst " in text):
            text += f" {self.algorithm}"
        if self.algorithm == "sliding-log" and self.count > LOG_COUNT:
            text += " large"
        if self.metered:
            text += " over allow"
        return text

    @property
    def named(self) -> bool:
        """True if the name was given, False if it was derived from the limit."""
        return self.name != self.text

    def __str__(self) -> str:
        """Return text that parses back to this limit."""
        return f"{self.text} as {self.name}" if self.named else self.text


def _shown(period_us: int) -> str:
    """Return a time in the largest unit that divides it."""
    unit, length = [(unit, length) for unit, length in UNITS.items() if period_us % length == 0][-1]
    multiple = period_us // length
    return f"1 {unit}" if multiple == 1 else f"{multiple} {unit}s"


def state_scope(limit: Limit) -> str:
    """Return the name of the state that a limit uses under a key (law 10).

    Count and burst are not part of it, so changing them keeps the state. Algorithm and period are, so changing them
    starts a new state. Of a calendar only the unit is part of it, and of slots no lease: changing the time zone, the
    first day or the lease keeps the state. A penalty keeps its state whatever changes, so a reload frees nobody. An
    explicit name separates limits that would otherwise share a state.
    """
    name = limit.name if limit.named else ""  # a name holds no ';'
    if limit.calendar is not None:
        return f"{name};quota;{limit.calendar.unit}"
    if limit.has_slots:
        return f"{name};concurrent;"
    if limit.is_penalty:
        return f"{name};penalty;"
    if limit.is_distinct:
        return f"{name};distinct {limit.values};{limit.period_us}"
    return f"{name};{'quota' if limit.metered else limit.algorithm};{limit.period_us}"


def _slice_place(limit: Limit, part: Slice) -> str:
    """Return the name of a limit's slices under a key: the name of its state, and all that a slice depends on."""
    return f"{limit.scope};{limit.count};{limit.burst};{part.for_us};{limit.calendar!r}"


def limit_set(limits: Limit | Iterable[Limit]) -> tuple[Limit, ...]:
    """Return limits for one key as a tuple.

    Raises InvalidLimit if there are none, if one is not a Limit, or if two would share a state.
    """
    scopes: dict[str, Limit] = {}
    found: Iterable[object] = limits if isinstance(limits, Iterable) and not isinstance(limits, bytes) else (limits,)
    for limit in found:
        if not isinstance(limit, Limit):
            raise InvalidLimit(f"expected a Limit or several, not {limit!r}; make one with parse_limit('100/minute')")
        if limit.scope in scopes:
            raise InvalidLimit(
                f"'{scopes[limit.scope]}' and '{limit}' would share one count; remove one,"
                f" or name one: '{limit.text} as other'"
            )
        scopes[limit.scope] = limit
    if not scopes:
        raise InvalidLimit("expected at least one limit, for example '100/minute'")
    return tuple(scopes.values())


def _without_share(count: int, share: float) -> int:
    """Return what a share leaves of a count, rounded down. The share is taken as it is written: 0.07 of 100 is 7."""
    from fractions import Fraction  # takes a millisecond to import, and few limits warn

    return int(count * (1 - Fraction(str(share))))


def checked_warn(warn: object) -> float:
    """Return the share of a warning. Raises InvalidLimit if it cannot be read."""
    try:
        return read_share(warn)
    except ValueError as error:
        raise InvalidLimit(f"cannot read warn: {error}") from None


def warning_at(limits: tuple[Limit, ...], warn: float) -> tuple[Limit, ...]:
    """Return limits that warn at this share. Penalties, and limits that have a share of their own, stay as they are."""
    return tuple(
        limit
        if limit.warn or limit.is_penalty
        else replace(limit, name=limit.name if limit.named else "", large=True, warn=warn)
        for limit in limits
    )


def decided_locally(limits: tuple[Limit, ...], slice: Slice | None, deny_cache: bool) -> tuple[Limit, ...]:
    """Return limits with this slice, unless they have their own, and with a deny cache if one is asked for.

    Raises InvalidLimit for a limit that cannot have it.
    """
    if slice is None and not deny_cache:
        return limits
    return tuple(
        replace(
            limit,
            name=limit.name if limit.named else "",
            large=True,
            slice=limit.slice or slice,
            deny_cache=limit.deny_cache or deny_cache,
        )
        for limit in limits
    )


# An Ask is one question to a storage: (key, limits, cost, patience, extras). It is a plain tuple because every request
# makes one.
# `cost` is charged to rates and quotas. A slot and a value are always one, and a penalty costs nothing.
# `patience` is in microseconds. With it, a bucket allows a request that would pass within that time, charges it now and
# returns its delay. A peek with patience answers as if the asks before it passed first, one after the other.
# `extras` has four numbers for each limit, or None if no limit needs any:
# - For a slot, in every mode: its id, which the caller chooses, and three zeros.
# - For a value, its digest and three zeros (see values.py). To take back a sight of it in mode "force": the digest, the
#   expiry that this sight gave it, and the expiry that it had before, or 0 if it was new.
# - For a penalty: NOT_GIVEN. NO_STRIKE in mode "spend" counts no denial as a strike, and STRIKE in mode "force" is one.
#   (SPAN, before, after, 0) in mode "spend" counts denials of so many limits before and after it in the group, and not
#   those of its ask: limits that belong together may be in several asks, because patience belongs to an ask.
# - For a rate or a quota in mode "force", the spend to correct (see `spent_of`): its instant, the instant to which it
#   filled a bucket, that instant's fraction in 1/count microseconds, and the time that refunds had given back by then.
#   For a window the last number is the instant since which it counted. NOT_GIVEN is a correction without a spend, and
#   GRANT adds the cost to what the current window allows.
Extra = tuple[int, int, int, int]
Spent = Extra  # the spend to correct
Ask = tuple[str, tuple[Limit, ...], int, int | None, Sequence[Extra] | None]

NOT_GIVEN: Extra = (-1, -1, -1, -1)
GRANT: Extra = (-2, 0, 0, 0)
STRIKE: Extra = (-3, 0, 0, 0)
NO_STRIKE: Extra = (-4, 0, 0, 0)
SPAN: Final = -5

# Asks that are decided together: atomically, all or nothing.
Group = Sequence[Ask]

# spend: charge if every limit allows. peek: answer like a spend, change nothing. force: apply a signed cost always.
Mode = Literal["spend", "peek", "force"]


@dataclass(frozen=True, slots=True)
class Check:
    """A charge of `cost` units for `key` against one limit or several.

    Args:
        key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
        limits: One limit, or several: all allow, or nothing is charged.
        cost: The units to spend: a whole number from 1 to 10**12.
        values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.

    Raises:
        InvalidKey: The key is not a str.
        InvalidCost: The cost is not a whole number from 1 to 10**12.
        InvalidLimit: There is no limit, or two of them would share one count.

    Examples:
        >>> from ratebound import Check, Limiter, parse_limit
        >>> limiter = Limiter("100/minute")
        >>> limiter.check(Check("user:42", parse_limit("10/minute"), cost=3)).remaining
        7
    """

    key: str
    limits: Limit | Iterable[Limit]
    cost: int = 1
    values: Mapping[str, str | int] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        for name, value in zip(("key", "limits", "cost"), self.ask(), strict=False):
            object.__setattr__(self, name, value)

    def ask(self) -> Ask:
        """Return the validated check as a storage's Ask."""
        return checked_key(self.key), limit_set(self.limits), checked_cost(self.cost), None, None


def checked_key(key: object) -> str:
    """Return a key as plain text. Raises InvalidKey if it is not a str."""
    if isinstance(key, str):
        return str.__str__(key)  # a plain str, even if a subclass overrides __str__
    raise InvalidKey(f"key must be text, not {type(key).__name__}: for example 'user:42'")


def checked_cost(cost: object, *, least: int = 1) -> int:
    """Return a cost as an int. Integers of other types, such as numpy's, are accepted; bools are not.

    Raises InvalidCost if it is not a whole number from `least` to 10**12.
    """
    if not isinstance(cost, bool) and hasattr(cost, "__index__"):
        number = operator.index(cost)
        if least <= number <= MAX_COUNT:
            return number
    raise InvalidCost(
        f"cost must be a whole number from {least} to {MAX_COUNT}, not {cost!r};"
        " for fractions scale the unit: count milli-units against a limit a thousand times as large"
    )
