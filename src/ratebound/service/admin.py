"""The control plane: health, readiness, metrics and the description of the API, on a port of its own.

It is a process of its own, with Starlette on uvicorn, so that a scrape never delays a decision. It asks the workers
over their sockets (worker_channel.py).
"""

import asyncio
import logging
import os
import platform
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ratebound import __version__, compiled
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.connections import Bounds
from ratebound.service.listening import BACKLOG
from ratebound.service.merged_metrics import CONTENT_TYPE, MergedMetrics
from ratebound.service.metrics import family
from ratebound.service.openapi import openapi
from ratebound.service.run_folder import RunFolder
from ratebound.service.settings import ServiceSettings
from ratebound.service.worker_channel import WorkerSilent, ask_worker

log = logging.getLogger("ratebound.service")

OLD_POLICY = "the file cannot be used, see the log; the policy before it is in force"
POLL = 1.0  # seconds between two looks at the metrics of the workers
MOST_CONNECTIONS = 100  # open ones: then the one is closed that has been without a request for longest
INDEX = {
    "/healthz": "the control plane runs",
    "/readyz": "all workers decide: the storage answers, and a policy is loaded",
    "/metrics": "metrics of all workers, for Prometheus",
    "/openapi.json": "the description of the HTTP API",
}
Endpoint = Callable[[Request], Awaitable[Response]]


class ControlPlane:
    """The routes of the control plane, and the metrics that it keeps."""

    def __init__(self, settings: ServiceSettings, folder: RunFolder) -> None:
        self._settings = settings
        self._folder = folder
        self._paths = [folder.worker_socket(slot) for slot in range(settings.workers)]
        self._tokens = BearerTokens(one.token for one in settings.admin_tokens)
        self._metrics = MergedMetrics(folder.retired)
        self._polling = asyncio.Lock()
        self.app = Starlette(
            routes=[
                Route("/", self._with_token(self.index)),
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/metrics", self._with_token(self.metrics)),
                Route("/openapi.json", self._with_token(self.openapi)),
            ]
        )

    async def index(self, request: Request) -> Response:
        """Answer with the paths that there are."""
        return JSONResponse({"service": "ratebound", "version": __version__, "paths": INDEX})

    async def healthz(self, request: Request) -> Response:
        """Answer that this process runs. It needs no token, as `readyz`: the programs that ask have none."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Ask every worker if it can decide. The answer is 503 if one cannot, with the reasons."""
        found = await asyncio.gather(*(self._ready(slot) for slot in range(len(self._paths))))
        is_ready = all(worker["ready"] for worker in found)
        policy = OLD_POLICY if self._folder.has_old_policy else "loaded"
        return JSONResponse({"ready": is_ready, "policy": policy, "workers": found}, 200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics of all workers, as they are now."""
        await self.poll()
        build = {"version": __version__, "python": platform.python_version(), "compiled": str(compiled).lower()}
        own = [
            _own("build_info", "gauge", "The version of the service", build, 1),
            _own("policy_is_old", "gauge", "1 while the policy file cannot be used", {}, self._folder.has_old_policy),
            _own("workers", "gauge", "Processes that decide, as configured", {}, len(self._paths)),
            _own("worker_restarts_total", "counter", "Workers that were started again", {}, self._metrics.restarts),
        ]
        return Response(self._metrics.text(own), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        """Answer with the OpenAPI document of the HTTP API."""
        return JSONResponse(openapi(self._settings.bounds))

    async def poll(self) -> None:
        """Take the metrics of all workers that answer."""
        async with self._polling:
            await asyncio.gather(*(self._poll(slot, path) for slot, path in enumerate(self._paths)))

    async def keep_polling(self) -> None:
        """Look at the metrics again and again, so that little is lost when a worker is killed."""
        while True:
            await self.poll()
            await asyncio.sleep(POLL)

    async def _poll(self, slot: int, path: str) -> None:
        try:
            found = await ask_worker(path, "metrics")
        except WorkerSilent:
            return
        self._metrics.take(slot, found["generation"], found["families"])

    async def _ready(self, slot: int) -> dict[str, Any]:
        try:
            found = await ask_worker(self._paths[slot], "ready")
        except WorkerSilent as error:
            return {"worker": slot, "ready": False, "reason": str(error)}
        return {"worker": slot, **found}

    def _with_token(self, endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            given = request.headers.get("authorization", "")
            if self._tokens.accepts_header(given.encode("latin-1")):
                return await endpoint(request)
            detail = "This request needs a token of the control plane: Authorization: Bearer TOKEN."
            return JSONResponse(
                {"type": "about:blank", "title": "Unauthorized", "status": 401, "detail": detail},
                401,
                {"www-authenticate": "Bearer"},
                "application/problem+json",
            )

        return checked


def _own(name: str, kind: str, text: str, labels: dict[str, str], value: int) -> dict[str, Any]:
    full = f"ratebound_service_{name}"
    return family(full, kind, text, [(full, labels, value)])


class _BoundedConnection(HttpToolsProtocol):
    """A connection of the control plane with the bounds of the data plane, which uvicorn does not have: peers without a
    token cannot keep others from `/healthz`, or make this process hold what they send."""

    def __init__(self, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any], bounds: Bounds) -> None:
        super().__init__(config, state, app_state, asyncio.get_running_loop())
        self._bounds = bounds
        self._since = self.loop.time()  # when it was opened, or its last request was answered
        self._timer: asyncio.TimerHandle | None = None
        self._head = 0  # bytes that were received for headers that are not complete
        self._is_in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection. If there are too many, close one that does nothing."""
        super().connection_made(transport)
        self._give_time()
        if len(self.connections) > MOST_CONNECTIONS:
            idle = [one for one in self.connections if isinstance(one, _BoundedConnection) and not one._is_answering]
            min(idle, key=lambda one: one._since).transport.abort()  # there is one: this one

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._take_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what has come, unless the headers are too long."""
        self._head += len(data)
        super().data_received(data)
        if self._is_in_head and self._head > self._bounds.head and not self.transport.is_closing():
            self.send_400_response(f"The headers are longer than {self._bounds.head} bytes.")

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._give_time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._is_in_head = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Make ready for the next request."""
        self._take_time()
        self._since = self.loop.time()
        self._is_in_head = True
        self._head = 0
        super().on_response_complete()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _give_time(self) -> None:
        """Close the connection if its request is not sent and answered in time."""
        if self._timer is None:
            self._timer = self.loop.call_later(self._bounds.request, self.transport.abort)

    def _take_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _AdminServer(uvicorn.Server):
    """A server that leaves signals to its caller, and gives peers no longer for TLS than for a request."""

    def __init__(self, config: uvicorn.Config, bounds: Bounds) -> None:
        super().__init__(config)
        self._bounds = bounds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the sockets."""

        def connect() -> asyncio.Protocol:
            return _BoundedConnection(self.config, self.server_state, {}, self._bounds)

        loop, tls = asyncio.get_running_loop(), self.config.ssl
        within = self._bounds.request if tls else None
        self.servers = [
            await loop.create_server(connect, sock=bound, ssl=tls, ssl_handshake_timeout=within, backlog=BACKLOG)
            for bound in sockets or ()
        ]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def run_admin(
    settings: ServiceSettings, folder: RunFolder, bound: socket.socket, started: int, supervisor: int
) -> None:
    """Serve the control plane until SIGTERM, or until the supervisor has gone; see `run_worker` for the pipes."""
    # Not the loop of asyncio: without free file descriptors, that one writes thousands of lines a second
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, folder, bound, started, supervisor))


async def _serve(
    settings: ServiceSettings, folder: RunFolder, bound: socket.socket, started: int, supervisor: int
) -> None:
    loop = asyncio.get_running_loop()
    plane = ControlPlane(settings, folder)
    config = uvicorn.Config(
        plane.app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=max(1, int(settings.grace)),
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
    )
    server = _AdminServer(config, settings.bounds)

    def stop() -> None:
        server.should_exit = True

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_reader(supervisor, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
    polling = loop.create_task(plane.keep_polling())
    os.write(started, b"1")
    os.close(started)
    await server.serve(sockets=[bound])
    polling.cancel()
