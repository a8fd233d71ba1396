"""Ratekeeper: decides, for every request, whether it may go ahead now, and tells the client the truth about it."""

from ratekeeper.decision import Decision, Outcome, RateLimited
from ratekeeper.errors import InvalidCost, InvalidKey, InvalidLimit, RatekeeperError, StorageError
from ratekeeper.limit import Check, Limit
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.notation import parse_limit, parse_limits
from ratekeeper.storage.guarded import AsyncGuardedStorage, GuardedStorage
from ratekeeper.storage.memory import AsyncMemoryStorage, MemoryStorage

__all__ = [
    "AsyncGuardedStorage",
    "AsyncLimiter",
    "AsyncMemoryStorage",
    "Check",
    "Decision",
    "GuardedStorage",
    "InvalidCost",
    "InvalidKey",
    "InvalidLimit",
    "Limit",
    "Limiter",
    "MemoryStorage",
    "Outcome",
    "RateLimited",
    "RatekeeperError",
    "StorageError",
    "parse_limit",
    "parse_limits",
]
__version__ = "0.1.0"
