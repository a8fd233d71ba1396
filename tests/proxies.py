"""Real proxies in front of a small application, with the configuration of examples/proxies: only ports are changed.

The service and the application run in threads of the test, so that a test can see what reached them. Each proxy is a
process that ends with its context, and with the run.
"""

import asyncio
import http.client
import itertools
import os
import re
import shutil
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ratebound.policy import RequestView, Verdict, read_policy
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.check import ProxyCheck
from ratebound.service.connections import Bounds, Connections
from ratebound.service.engine import Engine
from ratebound.service.http1 import Answer, Handle, Http1Connection, HttpRequest, response
from ratebound.service.routes import ServiceRoutes
from tests.servers import HOST, dying_with_us, free_port, wait_until

EXAMPLES = Path(__file__).parents[1] / "examples" / "proxies"
PACKAGES = {"nginx": "nginx-light", "haproxy": "haproxy"}
_numbers = itertools.count(1)


def client_address() -> str:
    """An address of this machine that no other test has used as a client."""
    number = next(_numbers)
    return f"127.{10 + os.getpid() % 100}.{number // 250}.{1 + number % 250}"


def program(name: str) -> str:
    """The path of a proxy's program. Skips the test if it is missing; in CI that is an error."""
    own = [sysconfig.get_path("scripts"), os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]
    found = shutil.which(name, path=os.pathsep.join(own))
    if found is None:
        reason = f"{name} is not on the PATH. Run tools/get_servers, or install {PACKAGES.get(name, name)}"
        if os.environ.get("CI"):
            raise RuntimeError(reason)
        pytest.skip(reason)
    return found


class HttpServer:
    """A server of our own HTTP protocol in a thread. It can be stopped, and started again on the same port."""

    def __init__(self, handle: Handle, port: int | None = None) -> None:
        self.port = port or free_port()
        self._handle = handle
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self._connections: Connections | None = None
        self.start()

    def start(self) -> None:
        self._run(self._start())

    def kill(self) -> None:
        """Close the port and all connections at once."""
        self._run(self._kill())

    def close(self) -> None:
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _start(self) -> None:
        connections = self._connections = Connections(Bounds())
        self._server = await self._loop.create_server(
            lambda: Http1Connection(self._handle, connections), HOST, self.port
        )

    async def _kill(self) -> None:
        if self._server is not None and self._connections is not None:
            self._server.close()
            await self._connections.stop(0)
            await asyncio.sleep(0)
            self._server = None


class Seen(NamedTuple):
    """A request as the policy saw it."""

    method: str
    path: str
    query: str
    host: str
    scheme: str
    peer: str | None
    headers: list[tuple[str, str]]


class WatchedEngine(Engine):
    """An engine that keeps the requests that it was asked about."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen: list[Seen] = []

    def check_now(self, request: RequestView) -> Verdict | None:
        self.seen.append(
            Seen(
                request.method,
                request.path,
                request.query,
                request.host,
                request.scheme,
                request.peer,
                list(request.headers),
            )
        )
        return super().check_now(request)


async def _nothing() -> bytes:
    await asyncio.Event().wait()
    return b""


class CheckService:
    """The check endpoint with a policy, on a port."""

    def __init__(self, policy: str, **options: Any) -> None:
        self.engine = WatchedEngine(read_policy(policy, functions={"find_api_key": str}))
        self.use(**options)
        self.server = HttpServer(ServiceRoutes({}, lambda request: self._check(request), BearerTokens(), lambda: True))

    def use(self, **options: Any) -> None:
        """Use other options from now on."""
        self._check: Handle = ProxyCheck(self.engine, **options)

    def hang(self) -> None:
        """Accept checks from now on, and never answer."""
        self._check = lambda _: _nothing()

    def seen_from(self, address: str) -> list[Seen]:
        """The requests of one peer."""
        return [one for one in self.engine.seen if one.peer == address]


class Application:
    """The application behind the proxies. It answers every request with 200, and keeps it."""

    def __init__(self) -> None:
        self.requests: list[HttpRequest] = []
        self.server = HttpServer(self._answer)

    def _answer(self, request: HttpRequest) -> Answer:
        self.requests.append(request)
        return response(200, [("content-type", "text/plain"), ("x-application", "yes")], b"hello")

    def targets(self) -> list[bytes]:
        return [request.target for request in self.requests]


class Reply(NamedTuple):
    """A response as a client sees it. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(
    port: int,
    target: str = "/",
    *,
    method: str = "GET",
    source: str = HOST,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    host: str = "api.example",
) -> Reply:
    """Send one request, exactly as given, from an address."""
    connection = http.client.HTTPConnection(HOST, port, timeout=20, source_address=(source, 0))
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host)
        for name, value in headers:
            connection.putheader(name, value)
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        found = connection.getresponse()
        return Reply(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
    finally:
        connection.close()


class Edge(NamedTuple):
    """A proxy at work: its port, the service that it asks, and the application behind it."""

    name: str
    port: int
    service: CheckService
    application: Application

    def ask(self, target: str = "/", **options: Any) -> Reply:
        return ask(self.port, target, **options)


class Ports(NamedTuple):
    """The ports that take the place of those in the examples."""

    listen: int
    service: int
    application: int
    changes: tuple[tuple[str, str], ...] = ()  # of the text of every file

    def written(self, name: str, folder: Path) -> Path:
        """Write a file of the examples with these ports into a folder."""
        text = (EXAMPLES / name).read_text()
        for old, new in self.changes:
            text = text.replace(old, new)
        own = {"8080": self.listen, "4290": self.service, "3000": self.application}
        path = folder / Path(name).name
        # In one pass: a port that was put in may begin like one that is to be replaced.
        path.write_text(
            re.sub(r"(:|port_value: )(8080|4290|3000)(?!\d)", lambda found: f"{found[1]}{own[found[2]]}", text)
        )
        return path


def _nginx(ports: Ports, folder: Path) -> list[str]:
    example = ports.written("nginx/ratebound.conf", folder)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/log; events {{ }}\n"
        f"http {{ access_log off; {temporary} include {example}; }}"
    )
    return [program("nginx"), "-p", str(folder), "-c", str(main), "-e", str(folder / "log")]


def _envoy(ports: Ports, folder: Path) -> list[str]:
    example = ports.written("envoy/envoy.yaml", folder)
    options = ["--concurrency", "1", "--disable-hot-restart", "-l", "warning", "-c", str(example)]
    return [program("envoy"), *options]


def _traefik(ports: Ports, folder: Path) -> list[str]:
    example = ports.written("traefik/traefik.yaml", folder)
    ports.written("traefik/routes.yaml", folder)
    return [program("traefik"), f"--configFile={example}"]


def _caddy(ports: Ports, folder: Path) -> list[str]:
    example = ports.written("caddy/Caddyfile", folder)
    return [program("caddy"), "run", "--adapter", "caddyfile", "--config", str(example)]


def _haproxy(ports: Ports, folder: Path) -> list[str]:
    example = ports.written("haproxy/haproxy.cfg", folder)
    ports.written("haproxy/ratebound.lua", folder)
    return [program("haproxy"), "-db", "-f", str(example)]


COMMANDS: dict[str, Callable[[Ports, Path], list[str]]] = {
    "nginx": _nginx,
    "envoy": _envoy,
    "traefik": _traefik,
    "caddy": _caddy,
    "haproxy": _haproxy,
}


@contextmanager
def running_edge(
    name: str, folder: Path, policy: str, changes: Iterable[tuple[str, str]] = (), **options: Any
) -> Iterator[Edge]:
    """Start a proxy with a service that has `options`, and with an application."""
    with ExitStack() as ending:
        service = CheckService(policy, **options)
        ending.callback(service.server.close)
        application = Application()
        ending.callback(application.server.close)
        ports = service.server.port, application.server.port
        yield Edge(name, ending.enter_context(running_proxy(name, folder, *ports, changes)), service, application)


@contextmanager
def running_proxy(
    name: str, folder: Path, service: int, application: int, changes: Iterable[tuple[str, str]] = ()
) -> Iterator[int]:
    """Start a proxy, and stop it whatever happens. Its port is given. `changes` are made in its configuration."""
    ports = Ports(free_port(), service, application, tuple(changes))
    command = COMMANDS[name](ports, folder)
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            dying_with_us(command),
            cwd=folder,
            env={**os.environ, **home},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: _is_up(process, ports.listen, folder), 60, f"{name} is up")
        yield ports.listen
    finally:
        process.kill()
        process.wait()


def _is_up(process: "subprocess.Popen[bytes]", port: int, folder: Path) -> bool:
    if process.poll() is not None:
        texts = [path.read_text(errors="replace") for path in (folder / "output", folder / "log") if path.exists()]
        raise RuntimeError(f"it ended with {process.returncode}:\n{''.join(texts)}")
    try:
        return ask(port, "/proxy-is-up").status == 200
    except (TimeoutError, OSError, http.client.HTTPException):
        return False
