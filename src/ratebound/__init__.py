"""Exact rate limiting for Python: one atomic decision, correct Retry-After."""

from ratebound.compiling import COMPILED
from ratebound.decision import Decision
from ratebound.errors import InvalidCost, InvalidKey, InvalidLimit, InvalidValue, RateboundError, StorageError
from ratebound.limit import Check, Limit, Slice
from ratebound.limiter import AsyncLimiter, Limiter
from ratebound.notation import parse_limit, parse_limits
from ratebound.outcome import Outcome
from ratebound.rate_limited import RateLimited
from ratebound.reservation import AsyncReservation, Reservation
from ratebound.slots import Holder
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage
from ratebound.usage import Usage

__all__ = [
    "AsyncGuardedStorage",
    "AsyncLimiter",
    "AsyncMemoryStorage",
    "AsyncReservation",
    "Check",
    "Decision",
    "GuardedStorage",
    "Holder",
    "InvalidCost",
    "InvalidKey",
    "InvalidLimit",
    "InvalidValue",
    "Limit",
    "Limiter",
    "MemoryStorage",
    "Outcome",
    "RateLimited",
    "RateboundError",
    "Reservation",
    "Slice",
    "StorageError",
    "Usage",
    "compiled",
    "parse_limit",
    "parse_limits",
]
__version__ = "0.1.0"

compiled: bool = COMPILED
"""True if the compiled modules run, False if this is pure Python."""
