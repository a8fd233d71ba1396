"""The usage ledger: what was used, by client, rule and endpoint, in a database, for billing, reports and audits."""

from ratebound.ledger.ledger import Ledger
from ratebound.ledger.usage_rows import (
    ClientUsage,
    EndpointUsage,
    LedgerState,
    MonthlyOverage,
    RuleDenials,
    UsageInPeriod,
)
from ratebound.policy.runtime.operator_documents import Change

__all__ = [
    "Change",
    "ClientUsage",
    "EndpointUsage",
    "Ledger",
    "LedgerState",
    "MonthlyOverage",
    "RuleDenials",
    "UsageInPeriod",
]
