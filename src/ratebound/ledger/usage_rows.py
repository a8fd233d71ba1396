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
    """The usage of one rule in one period: a day, a month, an hour or a bucket.

    A request that several rules count is in the row of each.

    Attributes:
        begin: The beginning of the period.
        rule: The name of the rule, or of the limit.
        units: The units of cost that were charged.
        allowed: The requests that were allowed.
        denied: The requests that were denied.
        overage: The units above a metered quota.
    """

    begin: datetime
    rule: str
    units: int
    allowed: int
    denied: int
    overage: int


class ClientUsage(NamedTuple):
    """The usage of one rule by one client.

    Attributes:
        client: The name or the digest of the client, as the ledger was written.
        rule: The name of the rule, or of the limit.
        units: The units of cost that were charged.
        allowed: The requests that were allowed.
        denied: The requests that were denied.
        overage: The units above a metered quota.
    """

    client: str
    rule: str
    units: int
    allowed: int
    denied: int
    overage: int


class EndpointUsage(NamedTuple):
    """The usage of one rule at one endpoint.

    Attributes:
        endpoint: The method and the route, like `GET /orders/{id}`; empty for decisions without a request.
        rule: The name of the rule, or of the limit.
        units: The units of cost that were charged.
        allowed: The requests that were allowed.
        denied: The requests that were denied.
        overage: The units above a metered quota.
    """

    endpoint: str
    rule: str
    units: int
    allowed: int
    denied: int
    overage: int


class RuleDenials(NamedTuple):
    """The decisions of one rule.

    Attributes:
        rule: The name of the rule, or of the limit.
        allowed: The requests that were allowed.
        denied: The requests that were denied.
        rate: The denied part, from 0 to 1.
    """

    rule: str
    allowed: int
    denied: int
    rate: float


class MonthlyOverage(NamedTuple):
    """The usage of one rule by one client in one month.

    Attributes:
        month: The month, like `2026-11`.
        client: The name or the digest of the client, as the ledger was written.
        rule: The name of the rule, or of the limit.
        units: The units of cost that were charged.
        overage: The units above a metered quota.
    """

    month: str
    client: str
    rule: str
    units: int
    overage: int


class LedgerState(NamedTuple):
    """The state of writing in one process.

    Attributes:
        flushes: How often it has written.
        failures: How often it could not.
        pending: The entries that are not written yet.
        error: Why the last attempt to write failed; empty if it did not.
    """

    flushes: int
    failures: int
    pending: int
    error: str
