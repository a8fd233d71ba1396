"""The address of a Redis and the options of its connections, from a URL or from a client that the user has.

Address and credentials are the user's; timeouts and retry rules are ours. They are short, and no spend is ever sent
twice, because the fate of the first one is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from ratebound.duration import as_seconds
from ratebound.storage.redis.keys import Keys
from ratebound.storage.secrecy import hidden, split_url

Kind = Literal["single", "sentinel", "cluster"]
SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
PORTS = {"single": 6379, "sentinel": 26379, "cluster": 6379}
EXAMPLES = (
    "expected for example redis://user:password@host:6379/0, unix:///run/redis.sock,"
    " redis+sentinel://host:26379,host2:26379/service or redis+cluster://host:6379"
)
OPTIONS = {  # with the function that reads the text of each
    "prefix": str,
    "secret": str,
    "old_secret": str,
    "slot": str,
    "timeout": float,
    "connect_timeout": float,
    "pool": int,
    "replicas": int,
    "db": int,
    "ssl_ca_certs": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_cert_reqs": str,
    "ssl_check_hostname": lambda text: text.lower() not in ("0", "no", "false"),
    "sentinel_username": str,
    "sentinel_password": str,
}
HOUR = 3600  # seconds: no timeout is longer
MOST_REPLICAS = 100
WAITS = 0.4  # of the deadline, for replicas: an idle server checks its clock every tenth of a second
# The options that are taken from a user's client. All others, timeouts and retries above all, are ours.
TAKEN = ("host", "port", "db", "username", "password", "path", "credential_provider")


@dataclass
class Address:
    """The hosts of a Redis, a Sentinel service or a Cluster, with the login, timeouts and key names to use there."""

    kind: Kind
    hosts: list[tuple[str, int]]
    keys: Keys
    service: str = ""
    tls: bool = False
    timeout: float = 0.25  # seconds to wait for an answer
    connect_timeout: float = 0.25
    pool: int = 50  # the maximum number of connections
    replicas: int = 0  # the number of replicas that must confirm a spend before it counts as granted
    login: dict[str, Any] = field(default_factory=dict, repr=False)  # username, password, db, ssl_…
    sentinel_login: dict[str, Any] = field(default_factory=dict, repr=False)
    sentinel_tls: bool = False

    def __post_init__(self) -> None:
        self.sentinel_tls = self.tls

    def check(self) -> None:
        """Read the timeouts. Raises ValueError if one, the pool size or the number of replicas is out of range."""
        self.timeout = as_seconds("timeout", self.timeout, positive=True, most=HOUR)
        self.connect_timeout = as_seconds("connect_timeout", self.connect_timeout, positive=True, most=HOUR)
        if type(self.pool) is not int or self.pool < 1:
            raise ValueError("pool must be a whole number, at least 1")
        if type(self.replicas) is not int or not 0 <= self.replicas <= MOST_REPLICAS:
            raise ValueError(
                f"replicas must be a whole number from 0 to {MOST_REPLICAS}: that many must confirm every spend"
            )

    @property
    def wait(self) -> tuple[Any, ...]:
        """The command that follows a spend if replicas must confirm it. It ends before the spend's own deadline."""
        return "WAIT", str(self.replicas), str(max(int(1000 * WAITS * self.timeout), 1))


def parse_url(url: str) -> Address:
    """Return the address in a URL. Raises ValueError without showing secrets of the URL."""
    parts = split_url(url)
    if parts.scheme not in SCHEMES or not url.startswith(f"{url[: len(parts.scheme)]}://"):
        raise ValueError(f"cannot open storage {hidden(url)}: {EXAMPLES}")
    if "#" in url or parts.netloc.count("@") > 1 or ("@" in parts.path and parts.scheme != "unix"):
        # The end of a password would be taken for a host, and shown wherever a host is.
        raise ValueError(f"cannot open storage {hidden(url)}: write '@', '/', '?' and '#' in a password as %40, %2F …")
    kind: Kind = "sentinel" if "sentinel" in parts.scheme else "cluster" if "cluster" in parts.scheme else "single"
    options = _options(url, parts.query)
    userinfo, _, hosts = parts.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    login = {"username": unquote(username) or None, "password": unquote(password) or None}
    path = [unquote(part) for part in parts.path.strip("/").split("/") if part]
    service = ""
    if parts.scheme in ("redis", "rediss") and "," in hosts:
        raise ValueError(
            f"cannot open storage {hidden(url)}: {parts.scheme}:// is one server; for several hosts write"
            f" {parts.scheme}+sentinel://host:26379,host2:26379/service or {parts.scheme}+cluster://host:6379,host2:6379"
        )
    if parts.scheme == "unix" and hosts:  # the beginning of a path or a password: it must not be shown as a host
        raise ValueError(f"cannot open storage {hidden(url)}: a socket has no host; write unix:///path/of/redis.sock")
    if parts.scheme == "unix":
        login["path"] = unquote(parts.path)
        path = []
    elif kind == "sentinel":
        if not path:
            raise ValueError(f"cannot open storage {hidden(url)}: no service name after the hosts; {EXAMPLES}")
        service = path.pop(0)
    if path:
        options.setdefault("db", _number(url, "database", path.pop(0)))
    if path or (kind == "cluster" and options.get("db")):
        raise ValueError(
            f"cannot open storage {hidden(url)}: a database is one number, and a Cluster has none; {EXAMPLES}"
        )
    address = Address(kind, _hosts(url, hosts, kind), _keys(options), service, parts.scheme.startswith("rediss"))
    address.login = {name: value for name, value in login.items() if value}
    for name in ("timeout", "connect_timeout", "pool", "replicas"):
        if name in options:
            setattr(address, name, options.pop(name))
    try:
        address.check()
    except ValueError as error:
        raise ValueError(f"cannot open storage {hidden(url)}: {error}") from None
    for name in ("username", "password"):
        if f"sentinel_{name}" in options:
            address.sentinel_login[name] = options.pop(f"sentinel_{name}")
    address.login |= options
    if not address.tls and any(name.startswith("ssl_") for name in options):
        raise ValueError(f"cannot open storage {hidden(url)}: ssl options need rediss://")
    if options.get("db", 0) < 0:
        raise ValueError(f"cannot open storage {hidden(url)}: db must be 0 or more")
    return address


def of_client(client: Any, options: Mapping[str, Any]) -> Address:
    """Return the address of a redis.Redis, redis.asyncio.Redis, or RedisCluster of either. Raises ValueError."""
    given = dict(options)
    keys = _keys(given)
    if hasattr(client, "nodes_manager"):
        manager = client.nodes_manager
        kwargs = dict(getattr(manager, "connection_kwargs", None) or client.connection_kwargs)
        hosts = [(node.host, int(node.port)) for node in manager.startup_nodes.values()]
        address = Address("cluster", hosts, keys)
    else:
        pool = client.connection_pool
        kwargs = dict(pool.connection_kwargs)
        if hasattr(pool, "sentinel_manager"):
            managers = pool.sentinel_manager.sentinels
            hosts = [
                (s.connection_pool.connection_kwargs["host"], int(s.connection_pool.connection_kwargs["port"]))
                for s in managers
            ]
            address = Address("sentinel", hosts, keys, pool.service_name)
            first = managers[0].connection_pool.connection_kwargs
            address.sentinel_login = {name: first[name] for name in ("username", "password") if first.get(name)}
            address.sentinel_tls = "SSL" in managers[0].connection_pool.connection_class.__name__
        else:
            address = Address("single", [(kwargs.get("host", "localhost"), int(kwargs.get("port", 6379)))], keys)
        address.tls = "SSL" in pool.connection_class.__name__ or bool(getattr(pool, "connection_kwargs", {}).get("ssl"))
    address.tls = address.tls or bool(kwargs.get("ssl"))
    taken = {
        name: value
        for name, value in kwargs.items()
        if (name in TAKEN or name.startswith("ssl_")) and value is not None
    }
    for name in ("host", "port"):
        taken.pop(name, None)
    if address.kind == "cluster":
        taken.pop("db", None)
    address.login = taken
    for name in ("timeout", "connect_timeout", "pool", "replicas"):
        if name in given:
            setattr(address, name, given.pop(name))
    if given:
        known = "prefix, secret, old_secret, slot, timeout, connect_timeout, pool, replicas"
        raise ValueError(f"unknown option {', '.join(given)}: with a client, the options are {known}")
    address.check()
    return address


def _hosts(url: str, text: str, kind: Kind) -> list[tuple[str, int]]:
    hosts = []
    for host in text.split(","):
        try:
            parts = split_url(f"//{host}")
            hosts.append((parts.hostname or "localhost", parts.port or PORTS[kind]))
        except ValueError:
            raise ValueError(f"cannot open storage {hidden(url)}: a port is a number up to 65535; {EXAMPLES}") from None
    return hosts


def _options(url: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for place, (name, text) in enumerate(parse_qsl(query, keep_blank_values=True), 1):
        if name not in OPTIONS:  # its name is not shown: it may be the rest of a secret that contains '&'
            near = get_close_matches(name, OPTIONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(OPTIONS)}"
            raise ValueError(f"cannot open storage {hidden(url)}: option {place} is unknown; {hint}")
        try:
            options[name] = OPTIONS[name](text)  # type: ignore[operator]
        except ValueError:
            raise ValueError(f"cannot open storage {hidden(url)}: {name} must be a number") from None
    return options


def _keys(options: dict[str, Any]) -> Keys:
    slot = options.pop("slot", "")
    if slot not in ("", "one"):
        raise ValueError("slot must be 'one', which puts all states in one hash slot of a Cluster, or absent")
    return Keys(
        prefix=options.pop("prefix", "rb"),
        secret=options.pop("secret", b""),
        old_secret=options.pop("old_secret", None),
        one_slot=slot == "one",
    )


def _number(url: str, what: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"cannot open storage {hidden(url)}: the {what} is not a number; {EXAMPLES}")
    return int(text)
