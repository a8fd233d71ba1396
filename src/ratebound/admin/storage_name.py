"""The storage that a gate counts in, named for operators: its URL without a login and without options."""

from typing import Any

from ratebound.storage import unguarded
from ratebound.storage.memcached.address import MemcachedAddress
from ratebound.storage.memory import AsyncMemoryStorage, MemoryStorage
from ratebound.storage.postgres.address import PostgresAddress
from ratebound.storage.sqlite.address import SqliteAddress


def storage_name(storage: Any) -> str:
    """Return the storage as its URL would name it: `redis://cache:6379/0`. For one of the user's own, its class."""
    storage = unguarded(storage)
    if isinstance(storage, MemoryStorage | AsyncMemoryStorage):
        return "memory://"
    zone = getattr(getattr(storage, "shared", storage), "zone_name", None)
    if zone is not None:
        return f"shm://{zone.name}"
    address = getattr(storage, "address", None)
    if isinstance(address, PostgresAddress | SqliteAddress | MemcachedAddress):
        return address.url
    if address is not None and hasattr(address, "hosts"):
        return _redis_url(address)
    return type(storage).__name__


def _redis_url(address: Any) -> str:
    path = address.login.get("path")
    if path:
        return f"unix://{path}"
    scheme = "rediss" if address.tls else "redis"
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in address.hosts)
    if address.kind == "single":
        return f"{scheme}://{hosts}/{address.login.get('db', 0)}"
    return f"{scheme}+{address.kind}://{hosts}" + (f"/{address.service}" if address.service else "")
