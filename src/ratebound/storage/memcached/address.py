"""The servers and options in a URL of Memcached. This file needs no driver."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl, unquote

from ratebound.duration import as_seconds
from ratebound.storage.secrecy import hidden, split_url
from ratebound.storage.stored_states import StateNames

PORT = 11211
DEADLINE = 0.25  # seconds
HOUR = 3600  # seconds: no timeout is longer
PREFIX = "rb1:"
TEXT_OF_PREFIX = re.compile(r"[!-~]{0,100}")  # what a name of Memcached may contain: no space, no control character
OPTIONS = ("timeout", "connect_timeout", "prefix", "secret")
EXAMPLES = "expected for example memcached://host:11211, memcached://host:11211,host2:11211 or memcached:///run/it.sock"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server: a host and a port, or the path of a socket. `name` tells it from others, and chooses its keys."""

    host: str
    port: int = 0
    path: str = ""

    @property
    def name(self) -> str:
        """The server as it is written in a URL."""
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MemcachedAddress:
    """The servers of a storage, the names of its items, and the seconds that a call may take."""

    servers: Sequence[ServerAddress]
    names: StateNames
    prefix: bytes = PREFIX.encode()
    timeout: float = DEADLINE
    connect_timeout: float = DEADLINE

    @property
    def url(self) -> str:
        """The servers as a URL, without options."""
        return f"memcached://{','.join(server.name for server in self.servers)}"


def read_url(url: str) -> MemcachedAddress:
    """Return the address in a URL. Raises ValueError, without secrets, for one that cannot be read."""
    parts = split_url(url)
    refused = f"cannot open storage {hidden(url)}"
    if parts.scheme != "memcached" or not url.startswith("memcached://") or "#" in url:
        raise ValueError(f"{refused}: {EXAMPLES}")
    if "@" in parts.netloc:
        raise ValueError(f"{refused}: a login is not supported, so leave out user and password; {EXAMPLES}")
    if parts.netloc and parts.path.strip("/"):
        raise ValueError(f"{refused}: Memcached has no databases, so leave out what comes after the hosts; {EXAMPLES}")
    options = _options(refused, parts.query)
    servers = _servers(refused, parts.netloc) if parts.netloc else [ServerAddress("", path=unquote(parts.path))]
    if servers[0].path in ("/", "") and not servers[0].host:
        raise ValueError(f"{refused}: no server; {EXAMPLES}")
    prefix = options.pop("prefix", PREFIX)
    if not TEXT_OF_PREFIX.fullmatch(prefix):
        raise ValueError(f"{refused}: prefix must be at most 100 printable characters of ASCII, without spaces")
    try:
        names = StateNames(options.pop("secret", ""))
        timeout = as_seconds("timeout", options.get("timeout", DEADLINE), positive=True, most=HOUR)
        connect = as_seconds("connect_timeout", options.get("connect_timeout", timeout), positive=True, most=HOUR)
    except ValueError as error:
        raise ValueError(f"{refused}: {error}") from None
    return MemcachedAddress(tuple(servers), names, prefix.encode(), timeout, connect)


def server_of(servers: Sequence[ServerAddress], digest: bytes) -> int:
    """Return the place of the server that keeps a key, by the digest of the key.

    Each server has a weight of its own for every key, and the heaviest keeps it (rendezvous hashing). So a server that
    is added or removed moves only its own share of the keys. A server that is dead keeps its keys: if they moved, their
    counts would start from zero, and once more when it is back.
    """
    if len(servers) == 1:
        return 0
    weights = [blake2b(digest, digest_size=8, key=_short(server.name)).digest() for server in servers]
    return weights.index(max(weights))


def _short(name: str) -> bytes:
    """Return the name of a server as the key of a digest, which takes at most 64 bytes."""
    name_bytes = name.encode("utf-8", "surrogatepass")
    return name_bytes if len(name_bytes) <= 64 else blake2b(name_bytes, digest_size=64).digest()


def _servers(refused: str, text: str) -> list[ServerAddress]:
    found: list[ServerAddress] = []
    for part in text.split(","):
        try:
            parts = split_url(f"//{part}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError(f"{refused}: a port is a number up to 65535; {EXAMPLES}") from None
        if not host or port == 0:
            raise ValueError(f"{refused}: a server without a host or with port 0; {EXAMPLES}")
        server = ServerAddress(host, port or PORT)
        if server in found:
            raise ValueError(f"{refused}: {server.name} is given twice")
        found.append(server)
    return found


def _options(refused: str, query: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, (name, text) in enumerate(parse_qsl(query, keep_blank_values=True), 1):
        if name not in OPTIONS or name in found:  # its name is not shown: it may be the rest of a secret with '&'
            raise ValueError(
                f"{refused}: option {place} is unknown or repeated, expected {', '.join(OPTIONS[:-1])} or {OPTIONS[-1]}"
            )
        found[name] = text
        if "timeout" in name:
            try:
                found[name] = float(text)
            except ValueError:
                raise ValueError(f"{refused}: {name} must be seconds, like 0.1") from None
    return found
