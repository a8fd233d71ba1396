"""What is asked: a Limit, a Check of one key against its limits, a Group of asks decided together.

Numbers that the kernels need again and again are computed here, when a limit is made. A limit whose
instants or counts would not stay below 2**53, where doubles are exact, is refused here as well.
"""

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Literal

from ratebound.errors import InvalidCost, InvalidKey, InvalidLimit

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
BUCKETS = ("token-bucket", "gcra", "leaky-bucket")
WINDOWS = ("fixed-window", "sliding-log", "sliding-counter")
ALGORITHMS = BUCKETS + WINDOWS
FAILURES = ("local", "open", "closed", "raise")

MAX_COUNT = 10**12
MAX_PERIOD = 10 * UNITS["year"]
MAX_SPAN = 100 * UNITS["year"]  # time to refill a whole burst: now + span + overdraft + patience stays under 2**53
LOG_COUNT = 10_000  # a sliding log keeps every event: beyond this it must be asked for
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")


def default_algorithm(count: int, *, burst: bool) -> str:
    """Exact where that is cheap: '5/minute' means at most 5 in any minute."""
    if burst:
        return "token-bucket"
    return "sliding-log" if count <= 100 else "sliding-counter"


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `count` units of cost per `period_us` microseconds, `burst` of them at once.

    Without an algorithm the default is taken; without a burst, buckets hold `count`. `large` lets a
    sliding log count beyond 10 000. `failure` is what this limit falls to while the storage is out of reach, see
    `storage/guard/fallback.py`; without one, what the limiter says.
    """

    count: int
    period_us: int
    burst: int = 0
    algorithm: str = ""
    name: str = ""
    large: InitVar[bool] = False
    failure: str = field(default="", compare=False)

    scope: str = field(init=False, repr=False, compare=False)  # names the state, see `state_scope`
    queues: bool = field(init=False, repr=False, compare=False)  # a leaky bucket: admitted requests wait their turn
    unit: tuple[int, int, int, int] = field(init=False, repr=False, compare=False)  # see `spans`, for a cost of 1
    refill_us: int = field(init=False, repr=False, compare=False)  # burst * period / count: from empty to full
    full: int = field(init=False, repr=False, compare=False)  # a whole burst and a microsecond, in 1/count microseconds

    def __post_init__(self, large: bool) -> None:
        if type(self.count) is not int or not 1 <= self.count <= MAX_COUNT:
            raise InvalidLimit(f"count must be a whole number from 1 to {MAX_COUNT}, not {self.count!r}")
        if type(self.period_us) is not int or not 1 <= self.period_us <= MAX_PERIOD:
            raise InvalidLimit(
                f"period must be a whole number of microseconds, at most ten years of them, not {self.period_us!r};"
                " parse_limit('10/60 seconds') takes seconds"
            )
        if type(self.burst) is not int or not 0 <= self.burst <= MAX_COUNT:
            raise InvalidLimit(f"burst must be a whole number from 1 to {MAX_COUNT}, not {self.burst!r}")
        put = object.__setattr__
        if not self.algorithm:
            put(self, "algorithm", default_algorithm(self.count, burst=bool(self.burst)))
        if self.algorithm not in ALGORITHMS:
            raise InvalidLimit(f"unknown algorithm {self.algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
        if self.burst and self.algorithm in WINDOWS and self.burst != self.count:
            raise InvalidLimit(f"{self.algorithm} has no burst: use token-bucket, gcra or leaky-bucket")
        put(self, "burst", self.burst or self.count)
        if self.algorithm == "sliding-log" and self.count > LOG_COUNT and not large:
            raise InvalidLimit(
                f"a sliding log of {self.count} keeps up to as many entries for each key: use sliding-counter,"
                f" or ask for it with '{self.count}/… sliding-log large'"
            )
        if self.failure not in ("", *FAILURES):
            raise InvalidLimit(f"unknown failure mode {self.failure!r}: expected one of {', '.join(FAILURES)}")
        if self.burst * self.period_us > MAX_SPAN * self.count:
            raise InvalidLimit("the burst takes more than 100 years to come back; use a smaller burst or period")
        if not self.name:
            put(self, "name", self.text)
        elif not NAME.fullmatch(self.name):
            raise InvalidLimit(f"name {self.name!r}: expected 1 to 64 of A-Z a-z 0-9 _ . : / - with no mark in front")
        put(self, "scope", state_scope(self))
        put(self, "queues", self.algorithm == "leaky-bucket")
        put(self, "unit", spans(self, 1))
        put(self, "refill_us", self.burst * self.period_us // self.count)
        put(self, "full", self.burst * self.period_us + self.count - 1)

    @property
    def text(self) -> str:
        """The limit without its name."""
        unit, length = [(unit, length) for unit, length in UNITS.items() if self.period_us % length == 0][-1]
        multiple = self.period_us // length
        text = f"{self.count}/{unit}" if multiple == 1 else f"{self.count}/{multiple} {unit}s"
        if self.algorithm in BUCKETS and (self.burst != self.count or self.algorithm == "token-bucket"):
            text += f" burst {self.burst}"
        if self.algorithm != default_algorithm(self.count, burst=" burst " in text):
            text += f" {self.algorithm}"
        if self.algorithm == "sliding-log" and self.count > LOG_COUNT:
            text += " large"
        return text

    @property
    def named(self) -> bool:
        """Whether the name was given, not made from the limit."""
        return self.name != self.text

    def __str__(self) -> str:
        """Text that parses back to this limit."""
        return f"{self.text} as {self.name}" if self.named else self.text


def spans(limit: Limit, cost: int) -> tuple[int, int, int, int]:
    """What `cost` units take to come back, and the rest of the burst: (burst - cost) and cost times period / count.

    Each as whole microseconds and a remainder in 1/count microseconds, in the order room, room_part, step, step_part.
    """
    return divmod((limit.burst - cost) * limit.period_us, limit.count) + divmod(cost * limit.period_us, limit.count)


def state_scope(limit: Limit) -> str:
    """Which state of a key a limit owns (law 10).

    Count and burst are left out, so that changing them keeps the state; algorithm and period are in,
    so that changing them starts anew. A name that was given keeps apart what would otherwise be alike.
    """
    name = limit.name if limit.named else ""
    return f"{name};{limit.algorithm};{limit.period_us}"  # a name holds no ';'


def limit_set(limits: Limit | Iterable[Limit]) -> tuple[Limit, ...]:
    """Limits that go together on one key: at least one, each with a state of its own."""
    scopes: dict[str, Limit] = {}
    found: Iterable[object] = limits if isinstance(limits, Iterable) else (limits,)
    for limit in found:
        if not isinstance(limit, Limit):
            raise InvalidLimit(f"expected a Limit or several, not {limit!r}; parse_limit('100/minute') makes one")
        if limit.scope in scopes:
            raise InvalidLimit(
                f"'{scopes[limit.scope]}' and '{limit}' would share one count; leave one out,"
                f" or name one: '{limit.text} as other'"
            )
        scopes[limit.scope] = limit
    if not scopes:
        raise InvalidLimit("expected at least one limit, for example '100/minute'")
    return tuple(scopes.values())


# What a storage is asked: key, limits, cost, patience, spent. A plain tuple: one is made for each request.
# `patience` (microseconds) lets a bucket say yes to what would pass within that time: it is charged now and
# told its delay; a peek with patience tells when it would pass after the asks before it, one after the other. `spent`
# belongs to force: for each limit, of the spend that is corrected, its instant, the instant to which it filled a
# bucket, that instant's fraction in 1/count microseconds, and what the bucket had given back by then. A fixed window
# has there since when it counted.
Spent = tuple[int, int, int, int]
Ask = tuple[str, tuple[Limit, ...], int, int | None, Sequence[Spent] | None]

# Asks that are decided atomically, all or nothing.
Group = Sequence[Ask]

# How: charge if all allow; tell what a spend would say, and change nothing; apply a signed cost without asking.
Mode = Literal["spend", "peek", "force"]


@dataclass(frozen=True, slots=True)
class Check:
    """Ask `cost` units of each of `limits`, one or several, for `key`."""

    key: str
    limits: Limit | Iterable[Limit]
    cost: int = 1

    def __post_init__(self) -> None:
        for name, value in zip(("key", "limits", "cost"), self.ask(), strict=False):
            object.__setattr__(self, name, value)

    def ask(self) -> Ask:
        return checked_key(self.key), limit_set(self.limits), checked_cost(self.cost), None, None


def checked_key(key: object) -> str:
    if isinstance(key, str):
        return str.__str__(key)  # plain text, whatever a subclass makes of str()
    raise InvalidKey(f"a key is text, not {type(key).__name__}: for example 'user:42'")


def checked_cost(cost: object, *, least: int = 1) -> int:
    """A whole number that is not a bool; numbers that act as whole numbers, like numpy's, are taken as such."""
    if not isinstance(cost, bool) and hasattr(cost, "__index__"):
        number = operator.index(cost)
        if least <= number <= MAX_COUNT:
            return number
    raise InvalidCost(
        f"cost must be a whole number from {least} to {MAX_COUNT}, not {cost!r};"
        " for fractions scale the unit: count milli-units against a limit a thousand times as large"
    )
