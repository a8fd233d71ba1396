"""A limit as clients see it in headers and rejections."""

from ratebound.clock import SECOND
from ratebound.http.structured import write_integer, write_string
from ratebound.limit import UNITS, Limit

CONCURRENT_REQUESTS = "concurrent-requests"  # a quota unit that the RateLimit draft registers
KONG_UNITS = ("Second", "Minute", "Hour", "Day", "Month", "Year")


class Shown:
    """A limit as clients see it: at most `quota` units in `window` seconds.

    A bucket is advertised as its burst in its refill time: the rate is the same, and no more than the quota can remain.
    Fractions of a second are rounded up. Periods of the calendar differ in length, and slots have no period, so their
    `window` is None. `policy` is the limit in the syntax of draft-11. `numbers` are those that units come back by: of
    the limit itself, or of `lowered` while it is lowered. Distinct values and penalties are not advertised: they are
    for clients that misbehave.

    Args:
        limit: The limit.
        name: The name that clients see.
        lowered: The limit in force while the process is overloaded; None if it is not lowered.

    Examples:
        >>> from ratebound import parse_limit
        >>> from ratebound.http import Shown
        >>> shown = Shown(parse_limit("10/second burst 20"), "api")
        >>> shown.quota, shown.window, shown.policy
        (20, 2, '"api";q=20;w=2')
    """

    __slots__ = ("is_advertised", "is_rate", "limit", "name", "numbers", "policy", "quota", "quoted", "unit", "window")

    def __init__(self, limit: Limit, name: str, lowered: Limit | None = None) -> None:
        self.limit = limit
        self.numbers = (lowered or limit).numbers
        self.name = name
        self.quoted = write_string(name)
        self.quota = limit.burst
        self.is_advertised = limit.takes_cost or limit.has_slots
        self.is_rate = limit.takes_cost and not limit.is_quota
        self.window: int | None = None
        self.policy = f"{self.quoted};q={write_integer(self.quota)}"
        if limit.has_slots:
            self.unit = ""
            self.policy += f";qu={write_string(CONCURRENT_REQUESTS)}"
        elif limit.calendar is not None:
            named = limit.calendar.unit.capitalize()
            self.unit = named if named in KONG_UNITS else ""
        else:
            self.window = -(-limit.burst * limit.period_us // (limit.count * SECOND))
            span = limit.burst * limit.period_us
            known = KONG_UNITS if self.is_rate or limit.is_quota else ()
            self.unit = next((unit for unit in known if span == limit.count * UNITS[unit.lower()]), "")
            self.policy += f";w={write_integer(self.window)}"
