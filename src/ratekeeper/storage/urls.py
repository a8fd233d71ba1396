"""From a storage URL to a storage. Each scheme is opened by the one file that knows it."""

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ratekeeper.storage import AsyncStorage, Storage
from ratekeeper.storage.memory import AsyncMemoryStorage, MemoryStorage


def open_storage(url: str) -> Storage:
    if _is_redis(url):
        return _redis().RedisStorage(url)  # type: ignore[no-any-return]
    return MemoryStorage(max_keys=_max_keys(url))


def open_async_storage(url: str) -> AsyncStorage:
    if _is_redis(url):
        return _redis().AsyncRedisStorage(url)  # type: ignore[no-any-return]
    return AsyncMemoryStorage(max_keys=_max_keys(url))


def async_twin(storage: Storage) -> AsyncStorage | None:
    """A storage for tasks over the same states, where there is one."""
    if isinstance(storage, MemoryStorage):
        return AsyncMemoryStorage(storage)
    if type(storage).__name__ == "RedisStorage" and isinstance(storage, _redis().RedisStorage):
        return storage.for_tasks()  # type: ignore[no-any-return]
    return None


def _is_redis(url: str) -> bool:
    return urlsplit(url).scheme.partition("+")[0] in ("redis", "rediss", "unix")


def _redis() -> Any:
    try:
        from ratekeeper.storage.redis import storage
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "redis":
            raise
        raise ModuleNotFoundError("Redis needs redis-py: install Ratekeeper with its extra [redis]") from None
    return storage


def _max_keys(url: str) -> int:
    parts = urlsplit(url)
    if parts.scheme != "memory" or parts.netloc or parts.path:
        raise ValueError(
            f"cannot open storage {url!r}: expected 'memory://', 'memory://?max_keys=10000' or 'redis://host:6379/0'"
        )
    max_keys = 1_000_000
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "max_keys" or not (value.isascii() and value.isdecimal() and 0 < len(value) < 16):
            raise ValueError(f"cannot open storage {url!r}: option {name}={value}; expected for example max_keys=10000")
        max_keys = int(value)
    return max_keys
