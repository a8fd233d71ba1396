"""redis-py, and nothing but redis-py: connections and clients for an address, and what its errors mean."""

from collections.abc import Sequence
from contextlib import suppress
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

from ratebound.errors import StorageError
from ratebound.storage.blame import TooLate
from ratebound.storage.redis.address import Address
from ratebound.storage.redis.error_reply import is_foreign, meaning_of

NoScript = redis.exceptions.NoScriptError
REDIRECTIONS = 5
CHANGED = (  # after which a Cluster may have other masters
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.RedisClusterException,
)
FIRST_KEY = 3  # behind EVALSHA, the digest and the number of keys


# redis-py takes the word that a refusal begins with away, and makes a class of it.
WORDS: dict[type[Exception], str] = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.AuthenticationError: "WRONGPASS",
    redis.exceptions.MasterDownError: "MASTERDOWN",  # which is a ClusterDownError there
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
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
        return StorageError(meaning, undone=True, outage=not is_foreign(text))
    if isinstance(error, redis.exceptions.TimeoutError | TimeoutError):
        return TooLate(f"Redis did not answer in time; whether it has decided is not known ({text})")
    undone = "connecting to" in text or isinstance(error, redis.exceptions.MaxConnectionsError)
    return StorageError(f"cannot speak to Redis ({type(error).__name__}: {text})", undone=undone)


def pools(client: Any) -> list[Any]:
    """All that a client holds connections in and does not close by itself, those to the sentinels included."""
    pool = getattr(client, "connection_pool", None)
    manager = getattr(pool, "sentinel_manager", None)
    return [
        found for found in (pool, *(s.connection_pool for s in getattr(manager, "sentinels", ()))) if found is not None
    ]


def _connection(address: Address, retry: Any) -> dict[str, Any]:
    login = dict(address.login)
    if address.tls:  # redis-py did not look at the name before version 6
        login.setdefault("ssl_check_hostname", str(login.get("ssl_cert_reqs", "required")).lower() != "none")
    return {
        **login,
        "socket_timeout": address.timeout,
        "socket_connect_timeout": address.connect_timeout,
        "retry": retry,
        "retry_on_error": [],
        "decode_responses": False,
        "protocol": 2,  # every server speaks it, and it needs no greeting
    }


def _sentinel_options(address: Address, retry: Any) -> dict[str, Any]:
    """How to speak to the sentinels: they have no databases, and a login of their own or none."""
    known = {**_connection(address, retry), **address.sentinel_login}
    for name in ("db", *(() if address.sentinel_login else ("username", "password"))):
        known.pop(name, None)
    return known | {"ssl": address.sentinel_tls}


class Connector:
    """Makes connections: to the server, or to the one that the sentinels call the master at that moment."""

    def __init__(self, address: Address) -> None:
        never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        options = _connection(address, never)
        self._client: Any = None  # knows the sentinels; its connections ask through it
        if address.kind == "sentinel":
            known = _sentinel_options(address, never)
            sentinel = redis.sentinel.Sentinel(address.hosts, sentinel_kwargs=known, ssl=address.tls, **options)
            self._client = sentinel.master_for(address.service)
            pool = self._client.connection_pool
            self._kind, self._options = pool.connection_class, pool.connection_kwargs
        else:
            plain = redis.UnixDomainSocketConnection if "path" in options else redis.Connection
            self._kind, self._options = redis.SSLConnection if address.tls else plain, options
            if "path" not in options:
                options["host"], options["port"] = address.hosts[0]

    def __call__(self) -> Any:
        connection = self._kind(**self._options)
        try:
            connection.connect()
        except Exception as error:
            connection.disconnect()
            failed = storage_error(error)
            failed.undone = True
            raise failed from error
        return connection

    def close(self) -> None:
        for pool in pools(self._client):
            pool.disconnect()


def cluster_client(address: Address) -> Any:
    options = _connection(address, redis.retry.Retry(redis.backoff.NoBackoff(), 0))
    options.pop("retry_on_error")
    nodes = [redis.cluster.ClusterNode(host, port) for host, port in address.hosts]
    return redis.cluster.RedisCluster(
        startup_nodes=nodes,
        max_connections=address.pool,
        ssl=address.tls,
        require_full_coverage=False,
        reinitialize_steps=0,
        **options,
    )


def async_cluster_client(address: Address) -> Any:
    options = _connection(address, redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0))
    options["socket_timeout"] = 4 * address.timeout  # who calls has given up before
    nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in address.hosts]
    return redis.asyncio.cluster.RedisCluster(
        startup_nodes=nodes,
        max_connections=address.pool,
        ssl=address.tls,
        require_full_coverage=False,
        reinitialize_steps=0,
        **options,
    )


# A WAIT is of use only on the connection that wrote, and redis-py gives no say in which that is. So what follows is its
# way through a Cluster once more, for two commands that are sent at once.


def call_and_wait(client: Any, command: Sequence[Any], wait: Sequence[Any]) -> tuple[Any, int]:
    """Return the answer to a call of the script on a Cluster, and how many replicas have what it wrote."""
    asked = None  # a node that a slot is moving to
    for _ in range(REDIRECTIONS):
        try:
            node = asked or client.get_node_from_key(command[FIRST_KEY].decode())
            commands = [*([("ASKING",)] if asked else []), command, wait]
            answers = _exchange(client.get_redis_connection(node).connection_pool, commands)
            moved = _moved(answers)
        except CHANGED:
            with suppress(Exception):  # it fails as long as too few nodes answer
                client.nodes_manager.initialize()
            raise
        if moved is None:
            return answers[-2], answers[-1]
        asked = None
        if isinstance(moved, redis.exceptions.MovedError):
            client.nodes_manager.move_slot(moved)
        else:
            asked = client.get_node(host=moved.host, port=moved.port)
    raise redis.exceptions.ClusterDownError("CLUSTERDOWN sent from node to node")


async def call_and_wait_async(client: Any, command: Sequence[Any], wait: Sequence[Any]) -> tuple[Any, int]:
    """`call_and_wait` for an event loop."""
    asked = None
    for _ in range(REDIRECTIONS):
        if client._initialize:
            await client.initialize()
        try:
            node = asked or client.get_node_from_key(command[FIRST_KEY].decode())
            commands = [*([("ASKING",)] if asked else []), command, wait]
            sent = [redis.asyncio.cluster.PipelineCommand(i, *each) for i, each in enumerate(commands)]
            await node.execute_pipeline(sent)
            answers: list[Any] = [each.result for each in sent]
            moved = _moved(answers)
        except CHANGED:
            client._initialize = True  # redis-py's own note for the next call
            raise
        if moved is None:
            return answers[-2], answers[-1]
        asked = None
        if isinstance(moved, redis.exceptions.MovedError):
            await client.nodes_manager.move_slot(moved)
        else:
            asked = client.get_node(host=moved.host, port=moved.port)
    raise redis.exceptions.ClusterDownError("CLUSTERDOWN sent from node to node")


def _exchange(pool: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    connection = pool.get_connection()
    try:
        connection.send_packed_command(connection.pack_commands(commands))
        return [_answer(connection) for _ in commands]
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.exceptions.ResponseError as error:
        return error


def _moved(answers: Sequence[Any]) -> Any:
    """The redirection, if the call was answered with one. Any other error among the answers is raised."""
    call = answers[-2]
    if isinstance(call, redis.exceptions.AskError):  # which MovedError is one of
        return call
    for answer in (call, *answers):
        if isinstance(answer, Exception):
            raise answer
    return None


class AsyncConnector:
    """`Connector` for an event loop."""

    def __init__(self, address: Address) -> None:
        never = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
        options = _connection(address, never)
        self._client: Any = None
        if address.kind == "sentinel":
            known = _sentinel_options(address, never)
            sentinel = redis.asyncio.sentinel.Sentinel(address.hosts, sentinel_kwargs=known, ssl=address.tls, **options)
            self._client = sentinel.master_for(address.service)
            pool = self._client.connection_pool
            self._kind, self._options = pool.connection_class, pool.connection_kwargs
        else:
            plain = redis.asyncio.UnixDomainSocketConnection if "path" in options else redis.asyncio.Connection
            self._kind, self._options = redis.asyncio.SSLConnection if address.tls else plain, options
            if "path" not in options:
                options["host"], options["port"] = address.hosts[0]

    async def __call__(self) -> Any:
        connection = self._kind(**self._options)
        try:
            await connection.connect()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if not isinstance(error, Exception):
                raise
            failed = storage_error(error)
            failed.undone = True
            raise failed from error
        return connection

    async def close(self) -> None:
        for pool in pools(self._client):
            await pool.disconnect()


def nodes_of(client: Any, names: Sequence[bytes]) -> tuple[str, ...]:
    """The names of the nodes that hold these keys, of a Cluster's client, sync or async."""
    try:
        return tuple({client.get_node_from_key(name.decode()).name for name in names})
    except Exception:  # it does not know a node for this slot, at this moment
        return ("",)
