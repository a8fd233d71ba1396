"""Open a storage by its URL, or by a client of redis-py. Each kind is opened by the one file that knows it."""

from typing import Any
from urllib.parse import parse_qsl

from ratebound.storage import AsyncStorage, Storage
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage
from ratebound.storage.secrecy import hidden, split_url


def open_storage(source: Any) -> Storage:
    """Open a storage for threads. Raises ValueError for a URL that cannot be read."""
    if _is_redis(source):
        return _redis().RedisStorage(source)  # type: ignore[no-any-return]
    if _is_shared(source):
        return _shared().SharedMemoryStorage.from_url(source)  # type: ignore[no-any-return]
    return MemoryStorage(max_keys=_max_keys(source))


def open_async_storage(source: Any) -> AsyncStorage:
    """Open a storage for tasks. Raises ValueError for a URL that cannot be read."""
    if _is_redis(source):
        return _redis().AsyncRedisStorage(source)  # type: ignore[no-any-return]
    if _is_shared(source):
        return _shared().AsyncSharedMemoryStorage.from_url(source)  # type: ignore[no-any-return]
    return AsyncMemoryStorage(max_keys=_max_keys(source))


def check_storage_url(url: str) -> None:
    """Raise ValueError for a URL that cannot be read. Nothing is opened, and redis-py is not needed."""
    if _is_redis(url):
        from ratebound.storage.redis.address import parse_url  # not before: most programs never need it

        parse_url(url)
    elif _is_shared(url):
        _shared().read_url(url)
    else:
        _max_keys(url)


def check_storage_is_installed(url: str) -> None:
    """Raise ModuleNotFoundError, which says what to install, if a URL needs a package that is not there."""
    if _is_redis(url):
        _redis()


def check_is_made(url: str) -> None:
    """Raise StorageError if a URL names a zone that no application has made, and ValueError if it cannot be read.

    A command that made it would do so for the wrong user, or of the wrong size.
    """
    if _is_shared(url):
        storage = _shared()
        storage.check_zone(**storage.read_url(url))


def _is_redis(source: Any) -> bool:
    return not isinstance(source, str) or split_url(source).scheme.partition("+")[0] in ("redis", "rediss", "unix")


def _is_shared(source: str) -> bool:
    return split_url(source).scheme == "shm"


def _shared() -> Any:
    try:
        from ratebound.storage.shared_memory import storage  # not before: it needs what only POSIX systems have
    except ModuleNotFoundError as error:
        raise ValueError(
            f"shm:// needs {error.name}, which this system does not have: use memory:// or Redis"
        ) from None
    return storage


def _redis() -> Any:
    try:
        from ratebound.storage.redis import storage
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "redis":
            raise
        raise ModuleNotFoundError('redis-py is not installed. Run: pip install "ratebound[redis]"') from None
    return storage


def _max_keys(url: str) -> int:
    parts = split_url(url)
    if parts.scheme != "memory" or parts.netloc or parts.path:
        raise ValueError(
            f"cannot open storage {hidden(url)}: expected 'memory://', 'memory://?max_keys=10000', 'shm://name' or"
            " 'redis://host:6379/0'"
        )
    max_keys = 1_000_000
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "max_keys" or not (value.isascii() and value.isdecimal() and 0 < len(value) < 16):
            raise ValueError(f"cannot open storage {hidden(url)}: expected no option but for example max_keys=10000")
        max_keys = int(value)
    if max_keys < 1:
        raise ValueError(f"cannot open storage {hidden(url)}: max_keys must be a positive whole number")
    return max_keys
