"""From a storage URL to a storage. Each scheme is opened by the one file that knows it."""

from urllib.parse import parse_qsl, urlsplit

from ratekeeper.storage import AsyncStorage, Storage
from ratekeeper.storage.memory import AsyncMemoryStorage, MemoryStorage


def open_storage(url: str) -> Storage:
    return MemoryStorage(max_keys=_max_keys(url))


def open_async_storage(url: str) -> AsyncStorage:
    return AsyncMemoryStorage(max_keys=_max_keys(url))


def async_twin(storage: Storage) -> AsyncStorage | None:
    """A storage for tasks over the same states, where there is one."""
    return AsyncMemoryStorage(storage) if isinstance(storage, MemoryStorage) else None


def _max_keys(url: str) -> int:
    parts = urlsplit(url)
    if parts.scheme != "memory" or parts.netloc or parts.path:
        raise ValueError(f"cannot open storage {url!r}: expected 'memory://' or 'memory://?max_keys=10000'")
    max_keys = 1_000_000
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "max_keys" or not (value.isascii() and value.isdecimal() and 0 < len(value) < 16):
            raise ValueError(f"cannot open storage {url!r}: option {name}={value}; expected for example max_keys=10000")
        max_keys = int(value)
    return max_keys
