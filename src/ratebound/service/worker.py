"""A worker: a process that decides. It serves every wire format on the sockets that the supervisor has bound.

This is where the data plane is put together: an engine, and a protocol for each wire format.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvloop

from ratebound.errors import StorageError
from ratebound.flow import run_async
from ratebound.observe.gate_figures import GateFigures, problem_of
from ratebound.observe.logging import LogListener
from ratebound.policy import Policy, PolicyFile
from ratebound.policy.runtime.fetched_policy import FetchedPolicy
from ratebound.service.bearer_tokens import BearerTokens
from ratebound.service.check import ProxyCheck
from ratebound.service.connections import Connections
from ratebound.service.engine import Engine
from ratebound.service.envoy import EnvoyRateLimits
from ratebound.service.grpc import GrpcServer, health_methods
from ratebound.service.http1 import Http1Connection
from ratebound.service.http2 import Http2Connection
from ratebound.service.http_api import HttpApi
from ratebound.service.listening import BACKLOG, tls_context
from ratebound.service.metrics import WorkerMetrics, ledger_families
from ratebound.service.resp import RespConnection
from ratebound.service.resp_commands import RespCommands
from ratebound.service.routes import ServiceRoutes
from ratebound.service.run_folder import RunFolder, digest_of
from ratebound.service.settings import ServiceSettings
from ratebound.service.worker_channel import answer_questions
from ratebound.service.worker_operations import ServicePolicy, WorkerOperations

log = logging.getLogger("ratebound.service")

SWEEP = 1.0  # seconds between two looks at idle connections and at the storage
READY_WITHIN = 2.0  # seconds
LAST_ACCEPT = 0.05  # seconds, in which connections are accepted that had arrived before a stop
LAST_REQUESTS = 0.5  # seconds, in which connections may end with one more answer
LEDGER_WITHIN = 5.0  # seconds, in which what was used is written at a stop
NOT_ASKED = "the storage was not asked yet"


@dataclass(frozen=True, slots=True, repr=False)
class WorkerTask:
    """Everything that a worker is given by the supervisor."""

    settings: ServiceSettings
    policy: Policy | PolicyFile
    storage: str  # its URL
    secrets: tuple[bytes, ...]  # that sign reservations; the first one signs
    sockets: Mapping[str, socket.socket]
    folder: RunFolder
    slot: int  # 0, 1, … : the place of this worker
    generation: int  # how often this place was filled before
    supervisor: int  # its process
    fetched: FetchedPolicy | None = None  # if the policy comes from a URL


class Worker:
    """The parts of a worker. It must be made while its event loop runs."""

    def __init__(self, task: WorkerTask) -> None:
        self.task = task
        settings = task.settings
        if isinstance(task.policy, PolicyFile):
            task.policy.source = task.folder.policy(task.policy.path.suffix)
        self.tokens = BearerTokens(settings.tokens)
        self.metrics = WorkerMetrics(LogListener(level=logging.DEBUG), logs_denials=settings.log_level == "debug")
        self.ledger = None if settings.ledger is None else settings.ledger.open(writes=True)
        self.engine = Engine(
            task.policy,
            storage=task.storage,
            deadline=settings.deadline,
            workers=settings.workers,
            listeners=[*self.metrics.listeners, *([] if self.ledger is None else [self.ledger])],
        )
        if self.ledger is not None and task.slot == 0:  # one of the workers is enough
            self.ledger.follow(self.engine.gate)
        self.figures = GateFigures(self.engine.gate, counts=self.metrics.decisions, keeps_view=False)
        policy = ServicePolicy(self.engine.gate, task.policy, task.folder, task.supervisor, task.fetched)
        self.operations = WorkerOperations(self.engine.gate, policy)
        with suppress(ValueError):  # Redis knows its own size
            self.metrics.prometheus.watch(self.engine.gate, name="service")
        self.connections = {name: Connections(settings.bounds) for name in task.sockets if name != "admin"}
        self.servers: list[asyncio.AbstractServer] = []
        self.is_ready = False
        self.not_ready = NOT_ASKED
        self._tasks: list[asyncio.Task[None]] = []

    def protocols(self) -> dict[str, Callable[[], Any]]:
        """Return the wire formats, by the names of their settings: what makes the protocol of a new connection."""
        settings, engine, metrics = self.task.settings, self.engine, self.metrics
        made: dict[str, Callable[[], Any]] = {}
        http = self.connections.get("http")
        if http is not None:
            api = HttpApi(engine, self.task.secrets, settings.bounds)
            self.figures.live.slot_counts.append(api.leased.count)
            check = ProxyCheck(
                engine,
                proxies=settings.trusted_proxies,
                headers=settings.check_headers,
                denied_status=settings.check_denied_status,
                tokens=self.tokens,
            )
            routes = ServiceRoutes(api.routes, check, self.tokens, lambda: self.is_ready)
            handle = metrics.counted(routes)
            made["http"] = lambda: Http1Connection(handle, http, routes.has_token)
        grpc = self.connections.get("grpc")
        if grpc is not None:
            methods = EnvoyRateLimits(engine, negative_hits=settings.negative_hits).methods
            counted = {path: metrics.counted_method(method) for path, method in methods.items()}
            services = [path.decode().split("/")[1] for path in methods]
            methods = {**counted, **health_methods(lambda: self.is_ready, services)}
            server = GrpcServer(methods, self.tokens, metrics.counts_of("grpc"))
            made["grpc"] = lambda: Http2Connection(server.handle, grpc, server.has_token)
        resp = self.connections.get("resp")
        if resp is not None:
            commands = metrics.counted_commands(RespCommands(engine, self.tokens))
            made["resp"] = lambda: RespConnection(commands, resp)
        return made

    async def start(self) -> None:
        """Serve all listeners, and begin to look after connections and the storage."""
        loop = asyncio.get_running_loop()
        protocols = self.protocols()
        await self._look_at_storage()
        questions = {
            "call": self.operations.call,
            "names": self._names,
            "others": self._others,
            "policy": self._policy,
            "ready": self._ready,
            "record": self.operations.record,
            "report": self._report,
        }
        path = self.task.folder.worker_socket(self.task.slot)
        if os.path.exists(path):
            os.unlink(path)  # of the worker that was here before
        self.servers.append(await answer_questions(path, questions))
        for name, protocol in protocols.items():
            tls = tls_context(self.task.settings, name)
            within = self.task.settings.bounds.request if tls else None
            self.servers.append(
                await loop.create_server(
                    protocol, sock=self.task.sockets[name], ssl=tls, ssl_handshake_timeout=within, backlog=BACKLOG
                )
            )
        self._tasks.append(loop.create_task(self._sweep()))
        self.figures.begin()

    async def stop(self) -> None:
        """Accept nothing more, answer what was received, write what was used, and close the storage."""
        grace = self.task.settings.grace
        every = self.connections.values()
        for connections in every:
            connections.is_ending = True
        await asyncio.sleep(LAST_ACCEPT)
        for server in self.servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(connections.wind_down(min(grace, LAST_REQUESTS)) for connections in every))
        await asyncio.gather(*(connections.stop(grace) for connections in every))
        with suppress(StorageError, TimeoutError):  # else others stop to show this worker after 10 s
            await asyncio.wait_for(run_async(self.figures.leaving()), READY_WITHIN)
        if self.ledger is not None:
            await asyncio.to_thread(self.ledger.close, LEDGER_WITHIN)
        await self.engine.close()

    def reload(self) -> None:
        """Read the policy file again, in a thread: requests go on meanwhile."""
        if isinstance(self.task.policy, PolicyFile):
            asyncio.get_running_loop().run_in_executor(None, self.task.policy.reload)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP)
            try:
                for connections in self.connections.values():
                    connections.expire(loop.time())
                policy = self.task.policy
                if isinstance(policy, PolicyFile) and policy.error is not None and policy.is_changed():
                    self.reload()  # it could not be read when the supervisor said so
                await self._look_at_storage()
            except Exception:  # else nothing would expire any more, and nobody would notice
                log.exception("looking after connections and the storage failed; the next look is in %g s", SWEEP)

    async def _look_at_storage(self) -> None:
        try:
            is_ready = await asyncio.wait_for(self.engine.is_ready(), READY_WITHIN)
        except TimeoutError:
            is_ready = False
        if self.is_ready and not is_ready:
            log.warning("not ready: the storage does not answer")
        elif is_ready and not self.is_ready and self.not_ready != NOT_ASKED:
            log.warning("ready again: the storage answers")
        self.is_ready = is_ready
        self.not_ready = "" if is_ready else "the storage does not answer"

    async def _report(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the control plane looks at every second: metrics and figures."""
        opened = {wire: len(connections) for wire, connections in self.connections.items()}
        return {
            "generation": self.task.generation,
            "families": [
                *self.metrics.snapshot(opened),
                *([] if self.ledger is None else ledger_families(self.ledger)),
            ],
            "figures": self.figures.own(),
        }

    async def _others(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the figures of all other processes that use the storage, or why they cannot be read."""
        try:
            return {"others": await run_async(self.figures.others()), "problem": ""}
        except StorageError as error:
            return {"others": [], "problem": problem_of(error)}

    async def _names(self, asked: Mapping[str, Any]) -> dict[str, str]:
        """Return the keys of clients that this worker knows, by their digests."""
        return self.figures.names(asked["digests"])

    async def _ready(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {"process": os.getpid(), "ready": self.is_ready, "reason": self.not_ready}

    async def _policy(self, asked: Mapping[str, Any]) -> str:
        """Return the digest of the policy in force."""
        policy = self.task.policy
        return digest_of(policy.text) if isinstance(policy, PolicyFile) else ""


def run_worker(task: WorkerTask, started: int, supervisor: int) -> None:
    """Serve until SIGTERM, or until the supervisor has gone.

    A byte is written to the pipe `started` when the worker serves. `supervisor` is the end of a pipe that is closed
    when the supervisor ends. Signals are blocked by the caller; they are unblocked when their handlers are in place.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(task, started, supervisor))


async def _serve(task: WorkerTask, started: int, supervisor: int) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    worker = Worker(task)
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, worker.reload)
    loop.add_reader(supervisor, stopping.set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which stops its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
    await worker.start()
    os.write(started, b"1")
    os.close(started)
    await stopping.wait()
    loop.remove_reader(supervisor)
    loop.remove_signal_handler(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # no policy is read any more
    await worker.stop()
