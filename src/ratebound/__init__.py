"""Exact rate limiting for Python: one atomic decision, correct Retry-After."""

from importlib.machinery import EXTENSION_SUFFIXES

from ratebound import clock as _clock
from ratebound.decision import Decision, Outcome, RateLimited
from ratebound.errors import InvalidCost, InvalidKey, InvalidLimit, RateboundError, StorageError
from ratebound.limit import Check, Limit
from ratebound.limiter import AsyncLimiter, Limiter
from ratebound.notation import parse_limit, parse_limits
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage

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
    "RateboundError",
    "StorageError",
    "compiled",
    "parse_limit",
    "parse_limits",
]
__version__ = "0.1.0"

compiled: bool = _clock.__file__.endswith(tuple(EXTENSION_SUFFIXES))
"""True if the compiled modules run, False if this is pure Python."""
