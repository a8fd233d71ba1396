"""Benchmarks of Ratebound beside limits, throttled-py and pyrate-limiter: `python -m benchmarks`."""
