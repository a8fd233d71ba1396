"""The queries of the ledger, in SQL that SQLite and PostgreSQL both understand. No I/O here.

Each flow yields a statement and its parameters, and is sent the rows. Sums over long times come from the totals of
rules, which are written together with the usage of clients.
"""

from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, get_args

from ratebound.clock import EPOCH, SECOND, utc_datetime
from ratebound.ledger.periods import EARLIEST, LATEST, Instant, begin_of, instant, month_bounds, quantum
from ratebound.ledger.usage_rows import ClientUsage, EndpointUsage, MonthlyOverage, RuleDenials, UsageInPeriod
from ratebound.policy.runtime.operator_documents import Change

T = TypeVar("T")
Select = tuple[str, Sequence[Any]]
Query = Generator[Select, list[tuple[Any, ...]], T]

USAGE, TOTALS = "ratebound_usage", "ratebound_usage_totals"
SUMS = "sum(units), sum(allowed), sum(denied), sum(overage)"
Order = Literal["units", "denied", "overage", "allowed"]
ORDERS: tuple[Order, ...] = get_args(Order)
MOST_ROWS = 1_000_000  # that `most` may ask for


def usage_query(
    client: str, by: str, since: Instant | None, until: Instant | None, rule: str | None, zone: str
) -> Query[list[UsageInPeriod]]:
    """Return the usage of a client, by period and rule."""
    return _by_period(USAGE, client, by, since, until, rule, zone)


def totals_query(
    by: str, since: Instant | None, until: Instant | None, rule: str | None, zone: str
) -> Query[list[UsageInPeriod]]:
    """Return the usage of all clients, by period and rule."""
    return _by_period(TOTALS, None, by, since, until, rule, zone)


def _by_period(
    table: str, client: str | None, by: str, since: Instant | None, until: Instant | None, rule: str | None, zone: str
) -> Query[list[UsageInPeriod]]:
    begin = begin_of(by, zone)
    step = quantum(by, zone)
    where, given = _where(since, until, zone, client=client, rule=rule)
    rows = yield (
        f"SELECT bucket / {step} * {step}, rule, {SUMS} FROM {table} WHERE {where} GROUP BY 1, 2 ORDER BY 1, 2",
        given,
    )
    found: dict[tuple[float, str], list[int]] = {}
    starts: dict[float, datetime] = {}
    for at, name, *numbers in rows:
        start = begin(int(at))
        moment = start.timestamp()  # of two hours with one name, when clocks go back, datetimes are equal
        starts[moment] = start
        sums = found.setdefault((moment, name), [0, 0, 0, 0])
        for place, number in enumerate(numbers):
            sums[place] += int(number)
    return [UsageInPeriod(starts[moment], name, *sums) for (moment, name), sums in found.items()]


def top_query(
    since: Instant | None, until: Instant | None, by: str, most: int, rule: str | None, zone: str
) -> Query[list[ClientUsage]]:
    """Return the clients with the most of something, by rule, the largest first."""
    where, given = _where(since, until, zone, rule=rule)
    rows = yield (
        f"SELECT client, rule, {SUMS} FROM {USAGE} WHERE {where} GROUP BY 1, 2"
        f" HAVING sum({_order(by)}) > 0 ORDER BY sum({_order(by)}) DESC, 1, 2 LIMIT ?",
        [*given, checked_rows(most)],
    )
    return [ClientUsage(client, name, *map(int, numbers)) for client, name, *numbers in rows]


def endpoints_query(
    since: Instant | None, until: Instant | None, by: str, most: int, client: str | None, zone: str
) -> Query[list[EndpointUsage]]:
    """Return the endpoints with the most of something, by rule, the largest first."""
    where, given = _where(since, until, zone, client=client)
    rows = yield (
        f"SELECT endpoint, rule, {SUMS} FROM {USAGE} WHERE {where} GROUP BY 1, 2"
        f" HAVING sum({_order(by)}) > 0 ORDER BY sum({_order(by)}) DESC, 1, 2 LIMIT ?",
        [*given, checked_rows(most)],
    )
    return [EndpointUsage(endpoint, name, *map(int, numbers)) for endpoint, name, *numbers in rows]


def denials_query(since: Instant | None, until: Instant | None, zone: str) -> Query[list[RuleDenials]]:
    """Return how often each rule allowed and denied."""
    where, given = _where(since, until, zone)
    rows = yield (
        f"SELECT rule, sum(allowed), sum(denied) FROM {TOTALS} WHERE {where} GROUP BY 1 ORDER BY 1",
        given,
    )
    found = []
    for rule, allowed, denied in rows:
        yes, no = int(allowed), int(denied)
        found.append(RuleDenials(rule, yes, no, no / (yes + no) if yes + no else 0.0))
    return found


def overage_query(month: str, client: str | None, zone: str) -> Query[list[MonthlyOverage]]:
    """Return who has used more than a metered quota in a month, by client and rule."""
    begin, end = month_bounds(month, zone)
    where = "bucket >= ? AND bucket < ?"
    given: list[Any] = [begin, end]
    if client is not None:
        where, given = f"{where} AND client = ?", [*given, client]
    rows = yield (
        f"SELECT client, rule, sum(units), sum(overage) FROM {USAGE} WHERE {where} GROUP BY 1, 2"
        " HAVING sum(overage) > 0 ORDER BY 1, 2",
        given,
    )
    return [MonthlyOverage(month, name, rule, int(units), int(overage)) for name, rule, units, overage in rows]


def months_query(zone: str) -> Query[list[str]]:
    """Return the months of which the ledger knows something, the newest first."""
    begin = begin_of("month", zone)
    rows = yield f"SELECT DISTINCT bucket / {quantum('month', zone)} * {quantum('month', zone)} FROM {TOTALS}", []
    return sorted({begin(int(row[0])).strftime("%Y-%m") for row in rows}, reverse=True)


def audit_query(
    since: Instant | None,
    until: Instant | None,
    most: int,
    by: str | None,
    action: str | None,
    target: str | None,
    zone: str,
) -> Query[list[Change]]:
    """Return changes that operators have made, the newest first."""
    where, given = "at >= ? AND at < ?", _bounds(since, until, zone)
    values: list[Any] = [bound * SECOND for bound in given]
    for column, value in (('"by"', by), ("action", action), ("target", target)):
        if value is not None:
            where, values = f"{where} AND {column} = ?", [*values, value]
    rows = yield (
        f'SELECT at, "by", action, target, detail FROM ratebound_audit WHERE {where} ORDER BY at DESC, id DESC LIMIT ?',
        [*values, checked_rows(most)],
    )
    return [Change(utc_datetime(int(at)), *rest) for at, *rest in rows]


def checked_rows(most: object) -> int:
    """Return how many rows to return at most. Raises ValueError unless it is a positive whole number."""
    if type(most) is not int or not 1 <= most <= MOST_ROWS:
        raise ValueError(f"most must be a whole number from 1 to {MOST_ROWS}, not {most!r}")
    return most


def microseconds_at(at: datetime) -> int:
    """Return the instant of a change in microseconds."""
    since = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def _order(by: str) -> str:
    if by not in ORDERS:
        raise ValueError(f"cannot order by {by!r}: expected one of {', '.join(map(repr, ORDERS))}")
    return by


def _bounds(since: Instant | None, until: Instant | None, zone: str) -> list[int]:
    return [instant(since, zone, EARLIEST), instant(until, zone, LATEST)]


def _where(
    since: Instant | None, until: Instant | None, zone: str, *, client: str | None = None, rule: str | None = None
) -> tuple[str, list[Any]]:
    where, given = "bucket >= ? AND bucket < ?", [*_bounds(since, until, zone)]
    values: list[Any] = [*given]
    if client is not None:
        where, values = f"{where} AND client = ?", [*values, client]
    if rule is not None:
        where, values = f"{where} AND rule = ?", [*values, rule]
    return where, values
