"""Sites on real servers of this process: uvicorn and waitress, each in a thread, on a free port of the loopback."""

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import uvicorn
import waitress.server

from ratebound.admin.asgi import AdminAsgi
from ratebound.admin.site import AdminSite
from ratebound.admin.wsgi import AdminWsgi
from ratebound.ledger import Ledger
from ratebound.policy import AsyncGate, Gate
from tests.admin.sites import WRITE_TOKEN, Answered, a_policy, a_site
from tests.ledger_report.filled import filled_ledger
from tests.servers import HOST, wait_until


class LiveSite:
    """A site that is served, and one connection to it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.origin = f"http://{HOST}:{port}"
        self._connection = HTTPConnection(HOST, port, timeout=30)

    def close(self) -> None:
        self._connection.close()

    def ask(
        self, method: str, path: str, body: bytes | None = None, token: str = WRITE_TOKEN, **headers: str
    ) -> Answered:
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        if body:
            sent["Content-Type"] = "application/json"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            self._connection.request(method, path, body, sent)
            found = self._connection.getresponse()
            content = found.read()
        except Exception:
            self._connection.close()  # the next one begins anew
            raise
        if found.will_close:
            self._connection.close()
        return Answered(found.status, {name.lower(): value for name, value in found.getheaders()}, content)


@contextmanager
def site_with_ledger(gate: Any) -> Iterator[AdminSite]:
    """A site on a gate, with a ledger that knows a November."""
    with tempfile.TemporaryDirectory() as folder:
        yield a_site(gate, ledger=Ledger(filled_ledger(Path(folder)), clients="name", writes=False))


@contextmanager
def under_uvicorn(app: Any = None) -> Iterator[LiveSite]:
    if app is None:
        with site_with_ledger(AsyncGate(a_policy())) as made, under_uvicorn(AdminAsgi(made)) as live:
            yield live
        return
    bound = socket.socket()
    bound.bind((HOST, 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_keep_alive=120)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[bound]), daemon=True)
    thread.start()
    wait_until(lambda: server.started, 30, "uvicorn has started")
    site = LiveSite(bound.getsockname()[1])
    try:
        yield site
    finally:
        site.close()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@contextmanager
def under_waitress(app: Any = None) -> Iterator[LiveSite]:
    if app is None:
        with site_with_ledger(Gate(a_policy())) as made, under_waitress(AdminWsgi(made)) as live:
            yield live
        return
    bound = socket.socket()
    bound.bind((HOST, 0))
    server = waitress.server.create_server(app, sockets=[bound], threads=2)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    site = LiveSite(bound.getsockname()[1])
    try:
        yield site
    finally:
        site.close()
        server.trigger.pull_trigger(server.close)
        server.task_dispatcher.shutdown()
        thread.join(30)


SERVERS = {"uvicorn": under_uvicorn, "waitress": under_waitress}
