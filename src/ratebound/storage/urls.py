"""Open a storage by its URL, or by a client of redis-py. Each kind is opened by the one file that knows it."""

from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from ratebound.from_extra import from_extra
from ratebound.storage import AsyncStorage, Refusals, Storage
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage
from ratebound.storage.secrecy import hidden, split_url


class _Kind(NamedTuple):
    """A kind of storage: the module of its classes, and what to install if it cannot be imported."""

    module: str
    sync_class: str
    async_class: str
    reader: str  # the module of `read_url`, which imports no driver
    driver: str = ""  # the package that the module needs, and the extra that brings it
    extra: str = ""
    refusal: str = ""  # the module of `refusal`, if there are limits that it does not keep; it imports no driver


_STORAGE = "ratebound.storage"
_SQLITE = _Kind(f"{_STORAGE}.sqlite.storage", "SqliteStorage", "AsyncSqliteStorage", f"{_STORAGE}.sqlite.address")
_POSTGRES = _Kind(
    f"{_STORAGE}.postgres.storage",
    "PostgresStorage",
    "AsyncPostgresStorage",
    f"{_STORAGE}.postgres.address",
    "psycopg",
    "postgres",
)
_MEMCACHED = _Kind(
    f"{_STORAGE}.memcached.storage",
    "MemcachedStorage",
    "AsyncMemcachedStorage",
    f"{_STORAGE}.memcached.address",
    "pymemcache",
    "memcached",
    f"{_STORAGE}.memcached.refusal",
)
_REDIS = ("redis", "rediss", "unix")
_KINDS = {"sqlite": _SQLITE, "postgresql": _POSTGRES, "postgres": _POSTGRES, "memcached": _MEMCACHED}
SCHEMES = ("memory", "shm", *_REDIS, *_KINDS)  # of all URLs that open a storage


def open_storage(source: Any) -> Storage:
    """Open a storage for threads, without a guard.

    Args:
        source: A URL like `"redis://host:6379/0"`, or a client of redis-py.

    Raises:
        ValueError: The URL cannot be read.
        ModuleNotFoundError: The storage needs a package that is not installed. The message says what to run.

    Examples:
        >>> from ratebound.storage.urls import open_storage
        >>> type(open_storage("memory://?max_keys=10000")).__name__
        'MemoryStorage'
    """
    if _is_redis(source):
        return _redis().RedisStorage(source)  # type: ignore[no-any-return]
    if _is_shared(source):
        return _shared().SharedMemoryStorage.from_url(source)  # type: ignore[no-any-return]
    kind = _kind_of(source)
    if kind is not None:
        return getattr(_imported(kind), kind.sync_class).from_url(source)  # type: ignore[no-any-return]
    return MemoryStorage(max_keys=_max_keys(source))


def open_async_storage(source: Any) -> AsyncStorage:
    """Open a storage for tasks, without a guard.

    Args:
        source: A URL like `"redis://host:6379/0"`, or a client of redis-py.

    Raises:
        ValueError: The URL cannot be read.
        ModuleNotFoundError: The storage needs a package that is not installed. The message says what to run.

    Examples:
        >>> from ratebound.storage.urls import open_async_storage
        >>> type(open_async_storage("memory://")).__name__
        'AsyncMemoryStorage'
    """
    if _is_redis(source):
        return _redis().AsyncRedisStorage(source)  # type: ignore[no-any-return]
    if _is_shared(source):
        return _shared().AsyncSharedMemoryStorage.from_url(source)  # type: ignore[no-any-return]
    kind = _kind_of(source)
    if kind is not None:
        return getattr(_imported(kind), kind.async_class).from_url(source)  # type: ignore[no-any-return]
    return AsyncMemoryStorage(max_keys=_max_keys(source))


def check_storage_url(url: str) -> None:
    """Raise ValueError for a URL that cannot be read. Nothing is opened, and no driver is needed."""
    if _is_redis(url):
        from ratebound.storage.redis.address import parse_url  # not before: most programs never need it

        parse_url(url)
    elif _is_shared(url):
        _shared().read_url(url)
    else:
        kind = _kind_of(url)
        if kind is None:
            _max_keys(url)
        else:
            import_module(kind.reader).read_url(url)


def refusals_by_url(url: str) -> Refusals | None:
    """Return a function that tells why the storage of a URL does not keep a limit; None if it keeps all.

    Nothing is opened, and no driver is needed. Raises ValueError for a URL that cannot be read.
    """
    kind = _kind_of(url)
    return None if kind is None or not kind.refusal else import_module(kind.refusal).refusal


def check_storage_is_installed(url: str) -> None:
    """Raise ModuleNotFoundError, which says what to install, if a URL needs a package that is not there."""
    kind = _kind_of(url)
    if _is_redis(url):
        _redis()
    elif kind is not None:
        _imported(kind)


def check_is_made(url: str) -> None:
    """Raise StorageError if a URL names a zone or a file that no application has made, and ValueError if it cannot be
    read.

    A command that made it would do so for the wrong user, or of the wrong size.
    """
    if _is_shared(url):
        storage = _shared()
        storage.check_zone(**storage.read_url(url))
    elif _kind_of(url) is _SQLITE:
        import_module(_SQLITE.reader).check_file(url)


def _is_redis(source: Any) -> bool:
    return not isinstance(source, str) or split_url(source).scheme.partition("+")[0] in _REDIS


def _is_shared(source: str) -> bool:
    return split_url(source).scheme == "shm"


def _kind_of(source: str) -> _Kind | None:
    return _KINDS.get(split_url(source).scheme)


def _imported(kind: _Kind) -> Any:
    """Import the module of a storage: not before, because most programs never need it."""
    with from_extra(kind.extra, **{kind.driver: kind.driver}):
        return import_module(kind.module)


def _shared() -> Any:
    try:
        from ratebound.storage.shared_memory import storage  # not before: it needs what only POSIX systems have
    except ModuleNotFoundError as error:
        raise ValueError(
            f"shm:// needs {error.name}, which this system does not have: use memory:// or Redis"
        ) from None
    return storage


def _redis() -> Any:
    with from_extra("redis", redis="redis-py", hiredis="hiredis"):
        from ratebound.storage.redis import storage
    return storage


def _max_keys(url: str) -> int:
    parts = split_url(url)
    if parts.scheme != "memory" or parts.netloc or parts.path:
        raise ValueError(
            f"cannot open storage {hidden(url)}: expected 'memory://', 'memory://?max_keys=10000', 'shm://name',"
            " 'redis://host:6379/0', 'postgresql://host/database', 'sqlite:///file.db' or 'memcached://host:11211'"
        )
    max_keys = 1_000_000
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "max_keys" or not (value.isascii() and value.isdecimal() and 0 < len(value) < 16):
            raise ValueError(f"cannot open storage {hidden(url)}: expected no option but for example max_keys=10000")
        max_keys = int(value)
    if max_keys < 1:
        raise ValueError(f"cannot open storage {hidden(url)}: max_keys must be a positive whole number")
    return max_keys
