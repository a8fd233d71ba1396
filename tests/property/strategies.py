"""What Hypothesis draws from: limits of all kinds and sizes, and gaps between requests."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratebound import Limit
from ratebound.calendar_period import LENGTHS, Calendar
from ratebound.limit import (
    ALGORITHMS,
    BUCKETS,
    CALENDAR,
    CONCURRENT,
    DISTINCT,
    FORGET,
    LEASE,
    LOG_COUNT,
    MAX_BLOCK,
    MAX_BLOCKS,
    MAX_LARGE_VALUES,
    MAX_LEASE,
    MAX_SLOTS,
    MAX_SPAN,
    MAX_STRIKES,
    NO_STRIKE,
    NOT_GIVEN,
    ONE_STRIKE,
    PENALTY,
    UNITS,
    Algorithm,
    Extra,
    Over,
)

START = 1_700_000_000_000_000
COUNTS = st.one_of(st.integers(1, 12), st.integers(1, 2_000), st.integers(1, 10**9))
PERIODS = st.one_of(
    st.sampled_from(sorted(UNITS.values())),
    st.integers(1, 2_000),
    st.integers(1_000, UNITS["hour"]),
    st.integers(1, UNITS["year"]),
)
METERED = "metered"  # fixed windows that deny nothing; among calendar periods some are metered
QUOTAS = (CALENDAR, METERED)
KINDS = (*ALGORITHMS, *QUOTAS, CONCURRENT)
ALL_KINDS = (*KINDS, DISTINCT, PENALTY)
# East, west and on the date line, with and without summer time, with changes of the clocks at midnight.
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Asia/Beirut",
    "America/Santiago",
    "Pacific/Apia",
    "Pacific/Pago_Pago",
    "Australia/Lord_Howe",
)


@st.composite
def calendars(draw: st.DrawFn, zones: tuple[str, ...] = ZONES) -> Calendar:
    unit = draw(st.sampled_from(sorted(LENGTHS)))
    most = {"week": 7, "month": 31}.get(unit, 1)
    return Calendar(unit, draw(st.sampled_from(zones)), draw(st.integers(1, most)))


def slots(limit: Limit) -> st.SearchStrategy[Extra]:
    """The extra of an ask for a limit: one of a few ids if it has slots or values, else none."""
    if limit.is_penalty:
        return st.sampled_from([NOT_GIVEN, NOT_GIVEN, NO_STRIKE])
    return st.just(NOT_GIVEN) if limit.takes_cost else st.tuples(st.integers(0, 5), *[st.just(0)] * 3)


@st.composite
def penalties(draw: st.DrawFn, name: str = "") -> Limit:
    """A penalty of few strikes or many, whose times are short, long, and anything between."""
    times = st.one_of(
        st.sampled_from([UNITS["second"], UNITS["minute"], UNITS["hour"], MAX_BLOCK]),
        st.integers(UNITS["second"], UNITS["hour"]),
    )
    count = draw(st.one_of(st.integers(1, 4), st.just(MAX_STRIKES)))
    period = max(draw(st.one_of(times, PERIODS)), (count - 1) * ONE_STRIKE + 1)
    blocks = draw(st.lists(times, min_size=1, max_size=MAX_BLOCKS))
    forget = draw(st.one_of(st.just(FORGET), times))
    return Limit(count, period, 0, PENALTY, name, blocks_us=tuple(blocks), forget_us=forget)


@st.composite
def value_limits(draw: st.DrawFn) -> Limit:
    """A limit of few values or many."""
    count = draw(st.one_of(st.integers(1, 4), st.sampled_from([1_000, 1_001, MAX_LARGE_VALUES])))
    name = draw(st.sampled_from(["account", "user_id", "x-api-key", "a1"]))
    return Limit(count, draw(PERIODS), 0, DISTINCT, large=True, values=name)


@st.composite
def limits(draw: st.DrawFn, algorithms: tuple[str, ...] = ALGORITHMS) -> Limit:
    algorithm = draw(st.sampled_from(algorithms))
    if algorithm == DISTINCT:
        return draw(value_limits())
    if algorithm == PENALTY:
        return draw(penalties())
    count, period = draw(COUNTS), draw(PERIODS)
    burst = 0
    if algorithm == CALENDAR:
        return Limit(count, calendar=draw(calendars()), over=draw(st.sampled_from(get_args(Over))))
    if algorithm == METERED:
        return Limit(count, period, algorithm="fixed-window", over="allow")
    if algorithm == CONCURRENT:
        lease = draw(st.one_of(st.just(LEASE), st.integers(UNITS["second"], MAX_LEASE)))
        return Limit(draw(st.one_of(st.integers(1, 4), st.just(MAX_SLOTS))), lease, algorithm=CONCURRENT)
    if algorithm in BUCKETS:
        most = min(10**9, MAX_SPAN * count // period)
        burst = min(draw(st.one_of(st.integers(1, 12), st.just(count), COUNTS)), most)
    if algorithm == "sliding-log":
        count = min(count, LOG_COUNT)
    return Limit(count, period, burst, algorithm)  # type: ignore[arg-type]  # a rate: the others have returned


def for_each(
    algorithms: tuple[str, ...] = ALGORITHMS,
) -> Callable[[Callable[[Limit, st.DataObject], None]], Any]:
    """Run a test for limits of each algorithm: drawn among all of them, the same few examples might leave one out."""

    def decorate(test: Callable[[Limit, st.DataObject], None]) -> Any:
        @pytest.mark.parametrize("algorithm", algorithms)
        @settings(max_examples=max(settings().max_examples // 3, 1))
        @given(data=st.data())
        def of_algorithm(algorithm: Algorithm, data: st.DataObject) -> None:
            test(data.draw(limits((algorithm,))), data)

        of_algorithm.__name__, of_algorithm.__doc__ = test.__name__, test.__doc__
        return of_algorithm

    return decorate


def near(*marks: int) -> st.SearchStrategy[int]:
    """Around one of these marks, or anywhere up to one of them; never below 0."""
    some = st.sampled_from(sorted(set(marks)))
    around = st.tuples(some, st.integers(-2, 2)).map(lambda pair: max(sum(pair), 0))
    return st.one_of(around, some.flatmap(lambda mark: st.integers(0, mark)))


def gaps(limit: Limit) -> st.SearchStrategy[int]:
    """Microseconds until the next request: nothing, one unit's worth, about a period, long."""
    interval = limit.period_us // limit.count
    return near(0, interval, 4 * interval, limit.period_us, 2 * limit.period_us)


def costs(limit: Limit) -> st.SearchStrategy[int]:
    return near(1, limit.burst, limit.burst // 2).map(lambda cost: max(cost, 1))


# Days on which something happens: the clocks change, at midnight in some zones; a leap day; ends of months and years.
DAYS = (
    "2023-02-28",
    "2023-04-28",
    "2023-10-27",
    "2024-02-29",
    "2024-03-10",
    "2024-03-31",
    "2024-04-30",
    "2024-10-27",
    "2024-12-31",
    "2017-10-15",
)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # its clocks changed at midnight
    "Africa/Cairo",  # so do these
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Kiritimati",
    "Pacific/Pago_Pago",
)
HOUR, DAY = UNITS["hour"], UNITS["day"]


def starts() -> st.SearchStrategy[int]:
    """An instant within two days of one of `DAYS`."""
    days = st.sampled_from(DAYS).map(lambda day: round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()))
    return st.tuples(days, st.integers(-2 * DAY, 2 * DAY)).map(lambda pair: pair[0] * 1_000_000 + pair[1])


@st.composite
def quotas(draw: st.DrawFn) -> Limit:
    """A quota by the calendar, or a metered fixed window."""
    count, over = draw(st.one_of(st.integers(1, 12), st.integers(1, 10**12))), draw(st.sampled_from(get_args(Over)))
    unit = draw(st.sampled_from(["day", "week", "month", "month", "year", ""]))
    if not unit:
        return Limit(count, draw(st.sampled_from([1_000, HOUR, DAY, 7 * DAY + 1])), 0, "fixed-window", over="allow")
    begin = draw(st.one_of(st.integers(1, 31), st.integers(28, 31))) if unit == "month" else 1
    begin = draw(st.integers(1, 7)) if unit == "week" else begin
    return Limit(count, calendar=Calendar(unit, draw(st.sampled_from(ZONES)), begin), over=over)


@st.composite
def slot_limits(draw: st.DrawFn) -> Limit:
    lease = draw(st.sampled_from([1_000_000, 60_000_000, DAY]))
    return Limit(draw(st.integers(1, 4)), lease, 0, "concurrent", draw(st.sampled_from(["", "", "other"])))
