"""Plans of load tests: requests, servers and bounds. Everything is checked when a plan is made."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from ratebound.duration import as_seconds
from ratebound.loadtest.arrivals import Arrivals
from ratebound.loadtest.identities import NAME, VALUE, ClientMarks, Clients

METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}")
MAX_BODY = 16 * 1024 * 1024
MAX_TARGETS = 10_000
DEFAULTS = (("Accept", "*/*"), ("User-Agent", "ratebound-loadtest"))
RESERVED = ("connection", "content-length", "host", "transfer-encoding")  # these belong to the connection


class Origin(NamedTuple):
    """A server: the part of a URL that a connection belongs to."""

    is_tls: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of Host: without the default port, IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """One kind of request: a URL with its method, headers and body. A weight of 2 is chosen twice as often as 1."""

    url: str
    method: str = "GET"
    headers: Sequence[tuple[str, str]] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)
    weight: float = 1.0

    def __post_init__(self) -> None:
        origin_of(self.url)
        if not METHOD.fullmatch(self.method) or self.method.upper() == "CONNECT":
            raise ValueError(f"{self.method[:40]!r} is not a method of HTTP that can be sent")
        for name, value in self.headers:
            if not NAME.fullmatch(name) or not VALUE.fullmatch(value):
                raise ValueError(f"the header {name[:80]!r} has characters that no header may have")
            if name.lower() in RESERVED:
                raise ValueError(f"the header {name!r} is set by the load test: leave it out")
        if len(self.body) > MAX_BODY:
            raise ValueError(f"the body must have at most {MAX_BODY} bytes, not {len(self.body)}")
        if not 0 < self.weight < 1e9:
            raise ValueError(f"the weight of a URL must be more than 0, not {self.weight!r}")

    @property
    def origin(self) -> Origin:
        """The server of this URL."""
        return origin_of(self.url)

    def lines(self, marks: ClientMarks) -> list[tuple[str, str]]:
        """Return the headers of a client's request, without Host. Those of the client replace those of the URL."""
        replaced = {name.lower() for name, _ in marks.headers}
        own = [*(pair for pair in self.headers if pair[0].lower() not in replaced), *marks.headers]
        given = {name.lower() for name, _ in own}
        lines = [*(pair for pair in DEFAULTS if pair[0].lower() not in given), *own]
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            lines.append(("Content-Length", str(len(self.body))))
        return lines

    def path(self, query: str = "") -> str:
        """Return the request target: path and query, with `query` added."""
        parts = urlsplit(self.url)
        joined = "&".join(part for part in (parts.query, query) if part)
        return f"{parts.path or '/'}{'?' if joined else ''}{joined}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load test. `run_load` performs it.

    The bounds `max_rate` and `max_duration` guard against typing errors: raise them for a larger test. Only addresses
    of this machine's loopback are accepted unless `allow_remote` is true.
    """

    targets: Sequence[LoadTarget]
    arrivals: Arrivals
    clients: Clients = field(default_factory=Clients)
    seed: int = 0
    timeout: float = 10.0  # seconds from the time that a request is sent to the end of its answer
    http2: bool = False
    obey: bool = False  # a refused client waits as Retry-After says, then sends one probe
    probe_within: float = 0.0  # seconds after the end of the schedule in which probes are still sent
    allow_remote: bool = False
    ca_file: str | None = None  # certificates of a private authority
    insecure: bool = False  # do not verify certificates. For loopback only
    unix_socket: str | None = None  # connect to this path instead of the URL's host
    max_connections: int = 1024
    max_in_flight: int = 20_000
    max_answers: int = 5_000_000
    max_rate: float = 20_000.0
    max_duration: float = 600.0
    stop_after_errors: float = 5.0  # the run stops if all answers in so many seconds are errors

    def __post_init__(self) -> None:
        if not 1 <= len(self.targets) <= MAX_TARGETS:
            raise ValueError(f"a load test needs from 1 to {MAX_TARGETS} URLs, not {len(self.targets)}")
        as_seconds("timeout", self.timeout, positive=True, most=3600)
        as_seconds("probe_within", self.probe_within, most=self.max_duration)
        as_seconds("stop_after_errors", self.stop_after_errors, positive=True)
        if self.arrivals.duration > self.max_duration:
            raise ValueError(
                f"the load test would take {self.arrivals.duration:g} s: at most {self.max_duration:g} s are allowed."
                " Raise max_duration if this is meant"
            )
        if self.arrivals.peak > self.max_rate:
            raise ValueError(
                f"the load test would send {self.arrivals.peak:g} requests per second: at most {self.max_rate:g} are"
                " allowed. Raise max_rate if this is meant"
            )
        for name in ("max_connections", "max_in_flight", "max_answers"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a positive whole number, not {getattr(self, name)!r}")
        if self.unix_socket is not None and any(mark.kind == "source" for mark in self.clients.marks):
            raise ValueError("clients cannot have source addresses on a Unix socket: give them a header")


def origin_of(url: str) -> Origin:
    """Return the server of a URL. Raises ValueError if it is no http or https URL, or has a user and password."""
    try:
        parts: SplitResult = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("cannot read the URL: expected for example 'http://127.0.0.1:8000/path'") from None
    if "@" in parts.netloc:
        raise ValueError("the URL contains a user or password: send them in a header instead")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError(
            f"cannot read the URL {url.partition('?')[0][:80]!r}: expected for example 'http://127.0.0.1:8000/path'"
        )
    if not re.fullmatch(r"[!-~]*", f"{host}{parts.path}{parts.query}"):
        raise ValueError("the URL has spaces or characters outside of ASCII: encode them with %")
    is_tls = parts.scheme == "https"
    return Origin(is_tls, host, (443 if is_tls else 80) if port is None else port)
