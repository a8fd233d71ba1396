"""The control plane: dashboard, admin API, health, readiness and metrics, on a port of its own.

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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from ratebound import __version__, compiled
from ratebound.admin.asgi import AdminAsgi
from ratebound.admin.messages import PROBLEM, CallError, problem_document
from ratebound.admin.sign_in import TokenSignIn
from ratebound.admin.site import AdminSite
from ratebound.observe.gate_figures import PUBLISH_EVERY, READ_EVERY
from ratebound.policy.runtime.fetched_policy import age_of
from ratebound.service.admin_server import MOST_STREAMS, AdminServer, EventStreams, Receive, Scope, Send
from ratebound.service.merged_metrics import CONTENT_TYPE, MergedMetrics
from ratebound.service.metrics import family
from ratebound.service.openapi import service_openapi
from ratebound.service.operator_tokens import UNNAMED, WRITE, OperatorToken
from ratebound.service.run_folder import RunFolder
from ratebound.service.service_calls import ServiceCalls
from ratebound.service.settings import Listen, ServiceSettings
from ratebound.service.worker_channel import WorkerSilent, ask_any_worker, ask_worker

log = logging.getLogger("ratebound.service")

OLD_POLICY = "the file cannot be used, see the log; the policy before it is in force"
NOT_FETCHED = "it cannot be fetched from its URL, see the log; the last good one is in force"
POLL = 1.0  # seconds between two looks at the metrics of the workers
OPEN = ("/healthz", "/readyz")  # to anybody: the programs that ask have no token
NO_TOKEN = "This request needs a token of the control plane: Authorization: Bearer TOKEN."
WRONG_HOST = (
    "The control plane has no tokens, so it answers only to names of loopback, such as localhost or 127.0.0.1, in the"
    " header Host. To use another name, set RATEBOUND_ADMIN_TOKENS or --admin-token-file."
)
SILENT = 3  # looks without an answer that are told: a worker that is started again misses one or two
CALL_SHARE = 0.8  # of the time that a request may take: for the worker that carries it out
LIVE = "/api/live"
TOO_MANY = f"{MOST_STREAMS} dashboards are open. Close some, or ask /api/figures once a second."
INDEX = {
    "/": "the dashboard, for browsers",
    "/api/…": "the admin API, for programs with a token: figures, rules, blocks, overrides, switches, …",
    "/healthz": "the control plane runs",
    "/readyz": "all workers decide: the storage answers, and a policy is loaded",
    "/metrics": "metrics of all workers, for Prometheus",
    "/openapi.json": "the description of the HTTP API and the admin API",
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
    """The control plane as an ASGI application, and the metrics and figures that it keeps."""

    def __init__(self, task: AdminTask) -> None:
        settings = self._settings = task.settings
        self._folder = task.folder
        self._paths = [task.folder.worker_socket(slot) for slot in range(settings.workers)]
        # Without tokens a page of another site must not read from here: its name may lead to loopback (DNS rebinding)
        self._only_loopback = not settings.admin_tokens and task.bound.family != socket.AF_UNIX
        self._metrics = MergedMetrics(task.folder.retired)
        self._figures: list[Any] = [None] * settings.workers  # of each worker, None if it is silent
        self._others: list[Any] = []  # the figures of processes that are not of this run
        self._others_read: float | None = None  # when
        self._problem = ""  # what keeps them from being read
        self._silent = [0] * settings.workers  # looks in a row that each worker has not answered
        self._polling = asyncio.Lock()
        ledger = None if settings.ledger is None else settings.ledger.open(writes=False)
        self._calls = ServiceCalls(self._paths, task.folder, CALL_SHARE * settings.bounds.request, ledger)
        operators = settings.admin_tokens or (OperatorToken(UNNAMED[WRITE], WRITE, task.run_token),)
        self._sign_in = TokenSignIn(operators, task.secret)
        self._site = AdminAsgi(AdminSite(self._calls, self._sign_in))
        self._routes = Starlette(
            routes=[
                Route("/", self._with_token(self.index)),
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/metrics", self._with_token(self.metrics)),
                Route("/openapi.json", self._with_token(self.openapi)),
                Mount("/", self._site),
            ]
        )
        refuse = problem(503, TOO_MANY, {"retry-after": "10"})
        self._app = EventStreams(self._route, lambda path: path == LIVE, refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._only_loopback and scope["path"] not in OPEN:
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if not all(is_loopback(host) for host in hosts):
                return await problem(421, WRONG_HOST)(scope, receive, send)
        return await self._app(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Browsers get the dashboard at `/`, and programs a list of paths."""
        accepted = b"".join(value for name, value in scope["headers"] if name == b"accept")
        is_page = scope["path"] == "/" and b"text/html" in accepted
        await (self._site if is_page else self._routes)(scope, receive, send)

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
        """Answer with the OpenAPI document of the HTTP API and of the admin API."""
        return JSONResponse(service_openapi(self._settings.bounds))

    async def poll(self) -> list[str | None]:
        """Take the metrics and figures of all workers that answer. Return why each of the others does not."""
        async with self._polling:
            return await asyncio.gather(*(self._poll(slot, path) for slot, path in enumerate(self._paths)))

    async def keep_polling(self) -> None:
        """Look at all workers again and again: for the history, and so that little is lost when a worker is killed."""
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            try:
                silent, _ = await asyncio.gather(self.poll(), self._read_others())
                self._silent = [count + 1 if why else 0 for count, why in zip(self._silent, silent, strict=True)]
                told = [
                    f"Worker {slot} does not answer: {why}."
                    for slot, (count, why) in enumerate(zip(self._silent, silent, strict=True))
                    if count >= SILENT
                ]
                self._calls.take(
                    self._figures, self._others, " ".join([*told, *([self._problem] if self._problem else [])])
                )
            except Exception:  # else nothing would be counted any more, and nobody would notice
                log.exception("looking at the workers failed; the next look is in %g s", POLL)
            at = max(at + POLL, loop.time())
            await asyncio.sleep(at - loop.time())

    async def _poll(self, slot: int, path: str) -> str | None:
        try:
            found = await ask_worker(path, "report")
        except WorkerSilent as error:
            self._figures[slot] = None
            return str(error)
        self._metrics.take(slot, found["generation"], found["families"])
        self._figures[slot] = found["figures"]
        return None

    async def _read_others(self) -> None:
        """Read the figures of processes that are not of this run, as often as they are published if somebody looks."""
        loop = asyncio.get_running_loop()
        every = PUBLISH_EVERY if self._calls.is_watched else max(READ_EVERY, len(self._others) / 2)
        if self._others_read is not None and loop.time() - self._others_read < every - POLL / 4:
            return
        self._others_read = loop.time()
        self._others, self._problem = [], ""
        with suppress(WorkerSilent):  # which is told of the worker itself
            found = await ask_any_worker(self._paths, "others", can_repeat=True)
            self._others, self._problem = found["others"], found["problem"]

    async def _ready(self, slot: int) -> dict[str, Any]:
        try:
            found = await ask_worker(self._paths[slot], "ready")
        except WorkerSilent as error:
            return {"worker": slot, "ready": False, "reason": str(error)}
        return {"worker": slot, **found}

    def _with_token(self, endpoint: Endpoint) -> Endpoint:
        async def checked(request: Request) -> Response:
            given = request.headers.get("authorization", "")
            peer = request.client.host if request.client else ""
            try:
                is_known = not self._settings.admin_tokens or self._sign_in.bearer(given, peer) is not None
            except CallError as error:
                return problem(error.status, error.detail, error.headers)
            return await endpoint(request) if is_known else problem(401, NO_TOKEN, {"www-authenticate": "Bearer"})

        return checked


def is_loopback(host: str) -> bool:
    """Return True if the value of a Host header is a name or an address of loopback, with or without a port."""
    name = re.sub(r":[0-9]*\Z", "", host).lower().removesuffix(".")
    return name.endswith(".localhost") or Listen(name.removeprefix("[").removesuffix("]")).is_local


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error as RFC 9457 has it."""
    return JSONResponse(problem_document(status, detail), status, headers, PROBLEM)


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
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are lines that any peer could write
    polling = loop.create_task(plane.keep_polling())
    os.write(started, b"1")
    os.close(started)
    await server.serve(sockets=[task.bound])
    polling.cancel()
