"""Limiters that ask Redis itself, with no guard between: what it answers or refuses is what the test sees."""

from collections.abc import Callable
from typing import Any

from ratebound import AsyncLimiter, Limiter
from ratebound.limit import Limit
from ratebound.storage import Storage
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from ratebound.testing import Blocking

KINDS: dict[str, Callable[..., Storage]] = {
    "threads": RedisStorage,
    "tasks": lambda *args, **options: Blocking(AsyncRedisStorage(*args, **options)),
}


def bare_limiter(limits: str | Limit, *, storage: str | Storage) -> Limiter:
    limiter = Limiter(limits)
    limiter.storage = RedisStorage(storage) if isinstance(storage, str) else storage
    return limiter


def bare_async_limiter(limits: str | Limit, *, storage: Any) -> AsyncLimiter:
    limiter = AsyncLimiter(limits)
    limiter.storage = AsyncRedisStorage(storage) if isinstance(storage, str) else storage
    return limiter
