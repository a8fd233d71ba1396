"""The address of a PostgreSQL database and the options of its connections, from a URL. No driver is needed here.

libpq's own options pass through. Timeouts are ours: every call ends by its deadline, with the time to connect.
"""

import os
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from ratebound.duration import as_seconds
from ratebound.storage.secrecy import hidden, split_url
from ratebound.storage.stored_states import MAX_SECRET

SCHEMES = ("postgresql", "postgres")
EXAMPLES = "expected for example postgresql://user:password@host:5432/database"
HOUR = 3600  # seconds: no timeout is longer
MOST_CONNECTIONS = 1000
OWN = ("timeout", "connect_timeout", "pool", "secret", "schema", "prepare", "synchronous_commit")
LIBPQ = (
    *("host", "port", "user", "password", "dbname", "passfile", "channel_binding", "require_auth", "options"),
    *("application_name", "fallback_application_name", "target_session_attrs", "load_balance_hosts"),
    *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"),
    *("sslmode", "sslnegotiation", "sslcert", "sslkey", "sslpassword", "sslcertmode", "sslrootcert", "sslcrl"),
    *("sslcrldir", "sslsni", "requirepeer", "ssl_min_protocol_version", "ssl_max_protocol_version"),
    *("gssencmode", "krbsrvname", "gsslib", "gssdelegation"),
)
COMMITS = ("on", "off", "local", "remote_write", "remote_apply")
SCHEMA_NAME = re.compile(r"[^\x00-\x1f\"\x7f]{1,63}")


@dataclass
class PostgresAddress:
    """The hosts of a PostgreSQL database, with the options of libpq, and ours."""

    hosts: list[tuple[str, str]]  # a host or the folder of a socket, and a port; "" for libpq's default
    login: dict[str, str] = field(default_factory=dict, repr=False)  # the other options of libpq
    timeout: float = 0.25  # seconds for a call
    connect_timeout: float | None = None  # seconds for a connection; never more than the call has left
    pool: int = 10  # the maximum number of connections, of one process or of one event loop
    secret: str = field(default="", repr=False)
    schema: str = ""  # of PostgreSQL; "" for that of the search_path
    prepare: bool = False  # use named prepared statements
    synchronous_commit: str = ""  # "" for the server's own setting

    def check(self) -> None:
        """Read the timeouts. Raises ValueError if an option is out of range."""
        self.timeout = as_seconds("timeout", self.timeout, positive=True, most=HOUR)
        if self.connect_timeout is not None:
            self.connect_timeout = as_seconds("connect_timeout", self.connect_timeout, positive=True, most=HOUR)
        if type(self.pool) is not int or not 1 <= self.pool <= MOST_CONNECTIONS:
            raise ValueError(f"pool must be a whole number from 1 to {MOST_CONNECTIONS}")
        if self.schema and not SCHEMA_NAME.fullmatch(self.schema):
            raise ValueError("schema must be the name of a schema of PostgreSQL")
        if self.synchronous_commit not in ("", *COMMITS):
            raise ValueError(f"synchronous_commit must be one of {', '.join(COMMITS)}")
        if len(self.secret.encode("utf-8", "surrogatepass")) > MAX_SECRET:
            raise ValueError(f"secret must have at most {MAX_SECRET} bytes")

    def table(self, name: str) -> str:
        """Return the name of a table for a statement: with the schema, if one was given."""
        return f'"{self.schema}".{name}' if self.schema else name

    @property
    def url(self) -> str:
        """The URL without a login and options except the schema, for messages and operators."""
        hosts = ",".join(_shown_host(host, port) for host, port in self.hosts)
        schema = f"?schema={quote(self.schema)}" if self.schema else ""
        return f"postgresql://{hosts}/{self.login.get('dbname', '')}{schema}"


def read_url(url: str) -> PostgresAddress:
    """Return the address in a URL. Raises ValueError without showing secrets of the URL."""
    parts = split_url(url)
    if parts.scheme not in SCHEMES or not url.startswith(f"{url[: len(parts.scheme)]}://"):
        raise ValueError(f"cannot open storage {hidden(url)}: {EXAMPLES}")
    if "#" in url or parts.netloc.count("@") > 1 or "@" in parts.path:
        # The end of a password would be taken for a host, and shown wherever a host is.
        raise ValueError(f"cannot open storage {hidden(url)}: write '@', '/', '?' and '#' in a password as %40, %2F …")
    own, login = _options(url, parts.query)
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    database = unquote(parts.path[1:])
    for name, value in (("user", unquote(user)), ("password", unquote(password)), ("dbname", database)):
        if value and name in login:
            raise ValueError(f"cannot open storage {hidden(url)}: {name} is given twice, before '?' and after it")
        if value:
            login[name] = value
    if hosts and ("host" in login or "port" in login):
        raise ValueError(f"cannot open storage {hidden(url)}: host or port is given twice, before '?' and after it")
    address = PostgresAddress(_hosts(url, hosts) if hosts else _other_hosts(url, login), login, **own)
    if len(address.hosts) > 1:
        address.login.setdefault("target_session_attrs", "read-write")
    try:
        address.check()
    except ValueError as error:
        raise ValueError(f"cannot open storage {hidden(url)}: {error}") from None
    return address


def _options(url: str, query: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return our options, and those of libpq."""
    own: dict[str, Any] = {}
    login: dict[str, str] = {}
    for place, (name, text) in enumerate(parse_qsl(query, keep_blank_values=True), 1):
        if name not in OWN and name not in LIBPQ:  # not shown: it may be the rest of a secret that contains '&'
            near = get_close_matches(name, (*OWN, *LIBPQ), 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(OWN)}, and those of libpq"
            raise ValueError(f"cannot open storage {hidden(url)}: option {place} is unknown; {hint}")
        if name in own or name in login:
            raise ValueError(f"cannot open storage {hidden(url)}: option {name} is given twice")
        if name in LIBPQ:
            login[name] = text
        else:
            own[name] = _own_option(url, name, text)
    return own, login


def _own_option(url: str, name: str, text: str) -> Any:
    try:
        if name in ("timeout", "connect_timeout"):
            return float(text)
        if name == "pool":
            return int(text)
    except ValueError:
        raise ValueError(f"cannot open storage {hidden(url)}: {name} must be a number") from None
    if name == "prepare":
        if text not in ("yes", "no"):
            raise ValueError(f"cannot open storage {hidden(url)}: prepare must be 'yes' or 'no'")
        return text == "yes"
    return text


def _hosts(url: str, text: str) -> list[tuple[str, str]]:
    """Return the hosts of a URL. The folder of a socket is written with %2F for '/'."""
    hosts = []
    for host in text.split(","):
        name, _, port = host.rpartition(":") if re.search(r":[^\]]*$", host) else (host, "", "")
        name = unquote(name)
        if name.startswith("[") and name.endswith("]"):
            name = name[1:-1]
        hosts.append((name, _port(url, port)))
    return hosts


def _other_hosts(url: str, login: dict[str, str]) -> list[tuple[str, str]]:
    """Return the hosts that libpq takes if the URL has none: of the options, or of the environment."""
    hosts = login.pop("host", os.environ.get("PGHOST", "")).split(",")
    ports = login.pop("port", os.environ.get("PGPORT", "")).split(",")
    if len(ports) not in (1, len(hosts)):
        raise ValueError(f"cannot open storage {hidden(url)}: expected one port, or as many ports as hosts")
    return [(host, _port(url, port)) for host, port in zip(hosts, ports * (len(hosts) // len(ports)), strict=True)]


def _port(url: str, text: str) -> str:
    if text and not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
        raise ValueError(f"cannot open storage {hidden(url)}: a port is a number up to 65535; {EXAMPLES}")
    return text


def _shown_host(host: str, port: str) -> str:
    shown = f"[{host}]" if ":" in host else host.replace("/", "%2F")
    return f"{shown}:{port}" if port else shown
