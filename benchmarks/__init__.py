"""Ratebound in memory, side by side with limits, throttled-py and pyrate-limiter: `python -m benchmarks`."""
