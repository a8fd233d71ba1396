"""Limiters on a clock that stands still."""

from typing import Any

from ratebound import Limiter, MemoryStorage
from ratebound.testing import FakeClock


def limiter_of(text: str, clock: FakeClock, **options: Any) -> Limiter:
    return Limiter(text, storage=MemoryStorage(clock=clock), sleep=clock.sleep, **options)
