"""A limit as clients see it in headers and rejections."""

from ratebound.clock import SECOND
from ratebound.http.structured import write_string
from ratebound.limit import UNITS, Limit

KONG_UNITS = ("Second", "Minute", "Hour", "Day", "Month", "Year")


class Shown:
    """A limit as clients see it: at most `quota` units in `window` seconds.

    A bucket is advertised as its burst in its refill time: the rate is the same, and no more than the quota can remain.
    Fractions of a second are rounded up.
    """

    __slots__ = ("limit", "name", "quota", "quoted", "unit", "window")

    def __init__(self, limit: Limit, name: str) -> None:
        self.limit = limit
        self.name = name
        self.quoted = write_string(name)
        self.quota = limit.burst
        self.window = -(-limit.burst * limit.period_us // (limit.count * SECOND))
        span = limit.burst * limit.period_us
        self.unit = next((unit for unit in KONG_UNITS if span == limit.count * UNITS[unit.lower()]), "")
        if limit.calendar is not None and limit.calendar.unit.title() in KONG_UNITS:
            self.unit = limit.calendar.unit.title()
