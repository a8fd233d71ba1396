"""The control plane: health, readiness, metrics and the description of the API, on a port of its own.

It is a process of its own, with Starlette on uvicorn, so that a scrape never delays a decision. It asks the workers
over their sockets (worker_channel.py).
"""

import asyncio
import logging
import os
import platform
import re
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ratebound import __version__, compiled
from ratebound.policy.runtime.fetched_policy import age_of
from ratebound.service.admin_server import AdminServer, Receive, Send
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.merged_metrics import CONTENT_TYPE, MergedMetrics
from ratebound.service.metrics import family
from ratebound.service.openapi import openapi
from ratebound.service.run_folder import RunFolder
from ratebound.service.settings import Listen, ServiceSettings
from ratebound.service.worker_channel import WorkerSilent, ask_worker

log = logging.getLogger("ratebound.service")

OLD_POLICY = "the file cannot be used, see the log; the policy before it is in force"
NOT_FETCHED = "it cannot be fetched from its URL, see the log; the last good one is in force"
POLL = 1.0  # seconds between two looks at the metrics of the workers
RELOAD = signal.SIGUSR1  # to the supervisor. SIGHUP may also mean that its terminal was closed
OPEN = ("/healthz", "/readyz")  # to anybody: the programs that ask have no token
NO_TOKEN = "This request needs a token of the control plane: Authorization: Bearer TOKEN."
WRONG_HOST = (
    "The control plane has no tokens, so it answers only to names of loopback, such as localhost or 127.0.0.1, in the"
    " header Host. To use another name, set RATEBOUND_ADMIN_TOKENS or --admin-token-file."
)
INDEX = {
    "/healthz": "the control plane runs",
    "/readyz": "all workers decide: the storage answers, and a policy is loaded",
    "/metrics": "metrics of all workers, for Prometheus",
    "/openapi.json": "the description of the HTTP API",
}
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, repr=False)
class AdminTask:
    """Everything that the control plane is given by the supervisor."""

    settings: ServiceSettings
    folder: RunFolder
    bound: socket.socket
    secret: bytes  # of this service
    run_token: str  # empty if tokens are configured


class ControlPlane:
    """The routes of the control plane, and the metrics that it keeps."""

    def __init__(self, task: AdminTask) -> None:
        settings = self._settings = task.settings
        self._folder = task.folder
        self._paths = [task.folder.worker_socket(slot) for slot in range(settings.workers)]
        self._tokens = BearerTokens(one.token for one in settings.admin_tokens)
        # Without tokens a page of another site must not read from here: its name may lead to loopback (DNS rebinding)
        self._only_loopback = not settings.admin_tokens and task.bound.family != socket.AF_UNIX
        self._metrics = MergedMetrics(task.folder.retired)
        self._polling = asyncio.Lock()
        self._app = Starlette(
            routes=[
                Route("/", self._with_token(self.index)),
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/metrics", self._with_token(self.metrics)),
                Route("/openapi.json", self._with_token(self.openapi)),
            ]
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if self._only_loopback and scope["path"] not in OPEN:
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if not all(is_loopback(host) for host in hosts):
                return await problem(421, WRONG_HOST)(scope, receive, send)
        return await self._app(scope, receive, send)

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
        policy = NOT_FETCHED if self._folder.has_fetch_failed else policy
        return JSONResponse({"ready": is_ready, "policy": policy, "workers": found}, 200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics of all workers, as they are now."""
        await self.poll()
        build = {"version": __version__, "python": platform.python_version(), "compiled": str(compiled).lower()}
        own = [
            _own("build_info", "gauge", "The version of the service", build, 1),
            _own("policy_is_old", "gauge", "1 while the policy cannot be used", {}, self._folder.has_old_policy),
            _own("workers", "gauge", "Processes that decide, as configured", {}, len(self._paths)),
            _own("worker_restarts_total", "counter", "Workers that were started again", {}, self._metrics.restarts),
        ]
        age = age_of(self._settings.policy) if self._settings.policy_url and self._settings.policy else None
        if age is not None:
            told = "Seconds since the server of the policy last confirmed it"
            own.append(_own("policy_age_seconds", "gauge", told, {}, age))
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
            return problem(401, NO_TOKEN, {"www-authenticate": "Bearer"})

        return checked


def is_loopback(host: str) -> bool:
    """Return True if the value of a Host header is a name or an address of loopback, with or without a port."""
    name = re.sub(r":[0-9]*\Z", "", host).lower().removesuffix(".")
    return name.endswith(".localhost") or Listen(name.removeprefix("[").removesuffix("]")).is_local


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error as RFC 9457 has it."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(body, status, headers, "application/problem+json")


def _own(name: str, kind: str, text: str, labels: dict[str, str], value: float) -> dict[str, Any]:
    full = f"ratebound_service_{name}"
    return family(full, kind, text, [(full, labels, value)])


def run_admin(task: AdminTask, started: int, supervisor: int) -> None:
    """Serve the control plane until SIGTERM, or until the supervisor has gone; see `run_worker` for the pipes."""
    # Not the loop of asyncio: without free file descriptors, that one writes thousands of lines a second
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(task, started, supervisor))


async def _serve(task: AdminTask, started: int, supervisor: int) -> None:
    loop = asyncio.get_running_loop()
    plane = ControlPlane(task)
    server = AdminServer(plane, task.settings)

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
    await server.serve(sockets=[task.bound])
    polling.cancel()
