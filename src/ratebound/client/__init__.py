"""Clients of limited APIs: retries that do not make an outage worse, and pacing that keeps within limits."""

from ratebound.client.backoff import Backoff
from ratebound.client.body import AsyncRepeatableBody, RepeatableBody
from ratebound.client.call import CallReport
from ratebound.client.call_events import NotReplayable
from ratebound.client.circuit import CircuitBreaker, CircuitOpen
from ratebound.client.learned_origins import KnownLimit
from ratebound.client.pacer import AsyncPacer, AsyncTurn, Pacer, Turn
from ratebound.client.pacing import TurnNotInTime
from ratebound.client.retry import Retry
from ratebound.client.retry_budget import RetryBudget

__all__ = [
    "AsyncPacer",
    "AsyncRepeatableBody",
    "AsyncTurn",
    "Backoff",
    "CallReport",
    "CircuitBreaker",
    "CircuitOpen",
    "KnownLimit",
    "NotReplayable",
    "Pacer",
    "RepeatableBody",
    "Retry",
    "RetryBudget",
    "Turn",
    "TurnNotInTime",
]
