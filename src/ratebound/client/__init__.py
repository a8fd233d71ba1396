"""Clients of limited APIs: retries that do not make an outage worse, and pacing that keeps within limits."""
