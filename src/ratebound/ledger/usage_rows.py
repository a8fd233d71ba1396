"""The rows that queries of the ledger return, and those that are written."""

from datetime import datetime
from typing import NamedTuple


class UsageRecord(NamedTuple):
    """What is added to the ledger: the usage of one client, rule and endpoint in one bucket.

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
    """What was used of one rule in one period: a day, a month, an hour or a bucket, which begins at `begin`.

    A request that several rules count is in the row of each.
    """

    begin: datetime
    rule: str
    units: int
    allowed: int
    denied: int
    overage: int


class ClientUsage(NamedTuple):
    """What one client has used of one rule. `client` is a name or a digest, as the ledger was written."""

    client: str
    rule: str
    units: int
    allowed: int
    denied: int
    overage: int


class EndpointUsage(NamedTuple):
    """What was used of one rule at one endpoint. `endpoint` is empty for decisions without a request."""

    endpoint: str
    rule: str
    units: int
    allowed: int
    denied: int
    overage: int


class RuleDenials(NamedTuple):
    """How often one rule allowed and denied. `rate` is the denied part, from 0 to 1."""

    rule: str
    allowed: int
    denied: int
    rate: float


class MonthlyOverage(NamedTuple):
    """What one client has used of one rule in one month, `2026-11`, and how much of it was above the quota."""

    month: str
    client: str
    rule: str
    units: int
    overage: int


class LedgerState(NamedTuple):
    """How writing goes in this process. `pending` entries are not written yet. `error` is why the last attempt to write
    failed; empty if it did not."""

    flushes: int
    failures: int
    pending: int
    error: str
