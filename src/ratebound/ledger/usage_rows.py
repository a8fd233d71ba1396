"""The rows that queries of the ledger return, and those that are written."""

from datetime import datetime
from typing import NamedTuple


class UsageRecord(NamedTuple):
    """A row to add to the ledger: the usage of one client, rule and endpoint in one bucket.

    `bucket` is its beginning, in seconds since 1970. The numbers of a settlement may be negative.
    """

    bucket: int
    client: str
    rule: str
    endpoint: str
    units: int
    allowed: int
    denied: int
    overage: int


class UsageInPeriod(NamedTuple):
    """The usage of one rule in one period: a day, a month, an hour or a bucket, which begins at `begin`.

    A request that several rules count is in the row of each.
    """

    begin: datetime
    rule: str
    units: int
    allowed: int
    denied: int
    overage: int


class ClientUsage(NamedTuple):
    """The usage of one rule by one client. `client` is a name or a digest, as the ledger was written."""

    client: str
    rule: str
    units: int
    allowed: int
    denied: int
    overage: int


class EndpointUsage(NamedTuple):
    """The usage of one rule at one endpoint. `endpoint` is empty for decisions without a request."""

    endpoint: str
    rule: str
    units: int
    allowed: int
    denied: int
    overage: int


class RuleDenials(NamedTuple):
    """The decisions of one rule. `rate` is the denied part, from 0 to 1."""

    rule: str
    allowed: int
    denied: int
    rate: float


class MonthlyOverage(NamedTuple):
    """The usage of one rule by one client in one month, `2026-11`. `overage` units of it were above the quota."""

    month: str
    client: str
    rule: str
    units: int
    overage: int


class LedgerState(NamedTuple):
    """The state of writing in one process. `pending` entries are not written yet. `error` says why the last attempt to
    write failed; empty if it did not."""

    flushes: int
    failures: int
    pending: int
    error: str
