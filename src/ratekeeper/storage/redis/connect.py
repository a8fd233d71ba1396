"""redis-py, and nothing but redis-py: clients for an address, and what its errors mean."""

from typing import Any

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.retry
import redis.asyncio.sentinel
import redis.backoff
import redis.cluster
import redis.exceptions
import redis.retry
import redis.sentinel

from ratekeeper.errors import StorageError
from ratekeeper.storage.redis.address import Address
from ratekeeper.storage.redis.refusal import meaning_of

NoScript = redis.exceptions.NoScriptError


# redis-py takes the word that a refusal begins with away, and makes a class of it.
WORDS: dict[type[Exception], str] = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.AuthenticationError: "WRONGPASS",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
}


def storage_error(error: BaseException) -> StorageError:
    text = str(error)
    word = next((word for kind, word in WORDS.items() if isinstance(error, kind)), "")
    meaning = meaning_of(text) or meaning_of(f"{word} {text}")
    if meaning is not None:
        return StorageError(meaning)
    if isinstance(error, redis.exceptions.TimeoutError | TimeoutError):
        return StorageError(f"Redis did not answer in time; whether it has decided is not known ({text})")
    return StorageError(f"cannot speak to Redis ({type(error).__name__}: {text})")


def pools(client: Any) -> list[Any]:
    """All that a client holds connections in and does not close by itself, those to the sentinels included."""
    pool = getattr(client, "connection_pool", None)
    manager = getattr(pool, "sentinel_manager", None)
    return [
        found for found in (pool, *(s.connection_pool for s in getattr(manager, "sentinels", ()))) if found is not None
    ]


def _connection(address: Address, retry: Any) -> dict[str, Any]:
    return {
        **address.login,
        "socket_timeout": address.timeout,
        "socket_connect_timeout": address.connect_timeout,
        "retry": retry,
        "retry_on_error": [],
        "decode_responses": False,
        "protocol": 2,  # every server speaks it, and it needs no greeting
    }


def sync_client(address: Address) -> Any:
    never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    options = _connection(address, never)
    if address.kind == "cluster":
        nodes = [redis.cluster.ClusterNode(host, port) for host, port in address.hosts]
        options.pop("retry_on_error")
        return redis.cluster.RedisCluster(
            startup_nodes=nodes, max_connections=address.pool, ssl=address.tls, require_full_coverage=False, **options
        )
    if address.kind == "sentinel":
        known = {**_connection(address, never), **address.sentinel_login}
        for name in ("db", *(() if address.sentinel_login else ("username", "password"))):
            known.pop(name, None)
        sentinel = redis.sentinel.Sentinel(address.hosts, sentinel_kwargs=known, ssl=address.tls, **options)
        return sentinel.master_for(address.service, max_connections=address.pool)
    kind = (
        redis.SSLConnection
        if address.tls
        else redis.UnixDomainSocketConnection
        if "path" in options
        else redis.Connection
    )
    if "path" not in options:
        options["host"], options["port"] = address.hosts[0]
    pool = redis.BlockingConnectionPool(
        connection_class=kind,
        max_connections=address.pool,
        timeout=address.timeout,
        **options,
    )
    return redis.Redis(connection_pool=pool)


def async_client(address: Address) -> Any:
    never = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
    options = _connection(address, never)
    if address.kind == "cluster":
        nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in address.hosts]
        return redis.asyncio.cluster.RedisCluster(
            startup_nodes=nodes, max_connections=address.pool, ssl=address.tls, require_full_coverage=False, **options
        )
    if address.kind == "sentinel":
        known = {**_connection(address, never), **address.sentinel_login}
        for name in ("db", *(() if address.sentinel_login else ("username", "password"))):
            known.pop(name, None)
        sentinel = redis.asyncio.sentinel.Sentinel(address.hosts, sentinel_kwargs=known, ssl=address.tls, **options)
        return sentinel.master_for(address.service, max_connections=address.pool)
    plain = redis.asyncio.UnixDomainSocketConnection if "path" in options else redis.asyncio.Connection
    kind = redis.asyncio.SSLConnection if address.tls else plain
    if "path" not in options:
        options["host"], options["port"] = address.hosts[0]
    pool = redis.asyncio.BlockingConnectionPool(
        connection_class=kind,
        max_connections=address.pool,
        timeout=address.timeout,
        **options,
    )
    return redis.asyncio.Redis(connection_pool=pool)
