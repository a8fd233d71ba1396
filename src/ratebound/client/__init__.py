"""Clients of limited APIs: retries that do not make an outage worse, and pacing that keeps within limits."""

from ratebound.client.pacer import AsyncPacer, AsyncTurn, Pacer, Turn

__all__ = ["AsyncPacer", "AsyncTurn", "Pacer", "Turn"]
