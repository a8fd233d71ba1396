"""The guard around every storage but memory: deadline, circuit breaker, failure modes and write-back."""
