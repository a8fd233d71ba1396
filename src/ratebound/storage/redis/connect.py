"""The only module that uses redis-py: connections and clients for an address, and the meaning of its errors."""

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
CHANGED = (  # errors after which a Cluster may have different masters
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.RedisClusterException,
)
FIRST_KEY = 3  # after EVALSHA, the digest and the number of keys


# redis-py removes the first word of an error reply and turns it into a class.
WORDS: dict[type[Exception], str] = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.AuthenticationError: "WRONGPASS",
    redis.exceptions.MasterDownError: "MASTERDOWN",  # before ClusterDownError, which is its base class
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
}


def storage_error(error: BaseException) -> StorageError:
    """Return a StorageError for an exception of redis-py, with the meaning of the server's reply if it is known."""
    text = str(error)
    word = next((word for kind, word in WORDS.items() if isinstance(error, kind)), "")
    meaning = meaning_of(text) or meaning_of(f"{word} {text}")
    if meaning is not None:
        return StorageError(meaning, undone=True, outage=not is_foreign(text))
    if isinstance(error, redis.exceptions.TimeoutError | TimeoutError):
        return TooLate(f"Redis did not answer in time; it is unknown whether it decided ({text})")
    undone = "connecting to" in text or isinstance(error, redis.exceptions.MaxConnectionsError)
    return StorageError(f"communication with Redis failed ({type(error).__name__}: {text})", undone=undone)


def pools(client: Any) -> list[Any]:
    """Return the connection pools of a client that it does not close itself, including those to the sentinels."""
    pool = getattr(client, "connection_pool", None)
    manager = getattr(pool, "sentinel_manager", None)
    return [
        found for found in (pool, *(s.connection_pool for s in getattr(manager, "sentinels", ()))) if found is not None
    ]


def _connection(address: Address, retry: Any) -> dict[str, Any]:
    login = dict(address.login)
    if address.tls:  # redis-py did not check the host name before version 6
        login.setdefault("ssl_check_hostname", str(login.get("ssl_cert_reqs", "required")).lower() != "none")
    return {
        **login,
        "socket_timeout": address.timeout,
        "socket_connect_timeout": address.connect_timeout,
        "retry": retry,
        "retry_on_error": [],
        "decode_responses": False,
        "protocol": 2,  # every server supports it, and it needs no HELLO
    }


def _sentinel_options(address: Address, retry: Any) -> dict[str, Any]:
    """Return the options of connections to the sentinels, which have no databases and their own login or none."""
    known = {**_connection(address, retry), **address.sentinel_login}
    for name in ("db", *(() if address.sentinel_login else ("username", "password"))):
        known.pop(name, None)
    return known | {"ssl": address.sentinel_tls}


class Connector:
    """A factory of connections: to the server, or to the current master of a Sentinel service."""

    def __init__(self, address: Address) -> None:
        never = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        options = _connection(address, never)
        self._client: Any = None  # of the sentinels, which find the master for new connections
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
        """Close the connections to the sentinels."""
        for pool in pools(self._client):
            pool.disconnect()


def cluster_client(address: Address) -> Any:
    """Return a client of a Cluster. It connects now."""
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
    """Return an async client of a Cluster. It connects on first use."""
    options = _connection(address, redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0))
    options["socket_timeout"] = 4 * address.timeout  # the caller's own timeout ends earlier
    nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in address.hosts]
    return redis.asyncio.cluster.RedisCluster(
        startup_nodes=nodes,
        max_connections=address.pool,
        ssl=address.tls,
        require_full_coverage=False,
        reinitialize_steps=0,
        **options,
    )


# A WAIT must use the connection that wrote, and redis-py does not let its caller choose one. So the functions below
# repeat its redirections on a Cluster, for two commands that are sent together.


def call_and_wait(client: Any, command: Sequence[Any], wait: Sequence[Any]) -> tuple[Any, int]:
    """Return the answer to a call of the script on a Cluster, and the number of replicas that have its writes."""
    asked = None  # the node that a hash slot is moving to
    for _ in range(REDIRECTIONS):
        try:
            node = asked or client.get_node_from_key(command[FIRST_KEY].decode())
            commands = [*([("ASKING",)] if asked else []), command, wait]
            answers = _exchange(client.get_redis_connection(node).connection_pool, commands)
            moved = _moved(answers)
        except CHANGED:
            with suppress(Exception):  # this fails while too few nodes answer
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
    """Return what `call_and_wait` returns, for an event loop."""
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
            client._initialize = True  # redis-py's own flag: the next call looks for the nodes again
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
    """Return the redirection if the call was answered with one. Raises any other error among the answers."""
    call = answers[-2]
    if isinstance(call, redis.exceptions.AskError):  # MovedError is a subclass
        return call
    for answer in (call, *answers):
        if isinstance(answer, Exception):
            raise answer
    return None


class AsyncConnector:
    """A `Connector` for an event loop."""

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
        """Close the connections to the sentinels."""
        for pool in pools(self._client):
            await pool.disconnect()


def nodes_of(client: Any, names: Sequence[bytes]) -> tuple[str, ...]:
    """Return the names of the nodes of a Cluster that hold these keys. `client` is sync or async."""
    try:
        return tuple({client.get_node_from_key(name.decode()).name for name in names})
    except Exception:  # no node is known for this hash slot at the moment
        return ("",)
