"""One small use of each extra: `python use_of_extras.py fastapi`. Runs where nothing but this extra is installed.

Each function imports what belongs to its extra, and raises if it does not work. `storage` is the use of the extras of
storages; `all` calls the others.
"""

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from zoneinfo import ZoneInfo

from ratebound import Limiter

PROGRAM = str(Path(sys.executable).with_name("ratebound"))
POLICY = "rules:\n  - name: all\n    default: true\n    limits: 2/hour\n"


class Handler(BaseHTTPRequestHandler):
    """Answers every request, and tells a limit."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("RateLimit", '"default";r=9;t=1')
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def server() -> Iterator[str]:
    """Serve on loopback, and yield the URL."""
    with HTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}/"
        serving.shutdown()
        thread.join()


async def asgi_statuses(app: Any, count: int) -> list[int]:
    """Return the statuses of this many requests."""
    statuses = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    for _ in range(count):
        scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET"}
        scope |= {"path": "/", "raw_path": b"/", "query_string": b"", "root_path": "", "scheme": "http", "headers": []}
        await app({**scope, "client": ("192.0.2.1", 1), "server": ("127.0.0.1", 80)}, receive, send)
    return statuses


def wsgi_statuses(app: Any, count: int) -> list[int]:
    """Return the statuses of this many requests."""
    statuses = []

    def start_response(status: str, headers: list[tuple[str, str]], error: object = None) -> Callable[[bytes], object]:
        statuses.append(int(status.split()[0]))
        return lambda data: None

    for _ in range(count):
        environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.1"}
        setup_testing_defaults(environ)
        response = app(environ, start_response)
        b"".join(response)
        getattr(response, "close", lambda: None)()
    return statuses


def use_nothing() -> None:
    limiter = Limiter("2/hour")
    assert [bool(limiter.hit("a")) for _ in range(3)] == [True, True, False]


def use_adaptive() -> None:
    from ratebound.adaptive.machine import processor_time

    busy, cores = processor_time()
    assert busy > 0
    assert cores >= 1


def use_aiohttp() -> None:
    import aiohttp

    from ratebound.client.aiohttp import polite

    async def ask(url: str) -> str:
        async with aiohttp.ClientSession(middlewares=(polite(),)) as session, session.get(url) as response:
            return await response.text()

    with server() as url:
        assert asyncio.run(ask(url)) == "ok"


def use_cli() -> None:
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    assert version("ratebound") in said
    explained = subprocess.run([PROGRAM, "explain", "10/second burst 20"], capture_output=True, text=True, check=True)
    assert "20" in explained.stdout


def use_django() -> None:
    import django
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse
    from django.urls import path

    from ratebound.web.django import RateLimitMiddleware

    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=(path("", lambda request: HttpResponse("ok")),),
        MIDDLEWARE=[f"ratebound.web.django.{RateLimitMiddleware.__name__}"],
        LOGGING_CONFIG=None,
        RATEBOUND={"policy": "2/hour"},
    )
    django.setup()
    assert wsgi_statuses(get_wsgi_application(), 3) == [200, 200, 429]


def use_fastapi() -> None:
    from fastapi import FastAPI

    from ratebound.web.fastapi import RateLimits

    app = FastAPI()
    RateLimits("2/hour", app=app)
    app.get("/")(lambda: "ok")
    assert asyncio.run(asgi_statuses(app, 3)) == [200, 200, 429]


def use_flask() -> None:
    from flask import Flask

    from ratebound.web.flask import RateLimits

    app = Flask(__name__)
    RateLimits(app, "2/hour")
    app.get("/")(lambda: "ok")
    assert wsgi_statuses(app, 3) == [200, 200, 429]


def use_httpx() -> None:
    import httpx

    from ratebound.client.httpx import PoliteTransport

    with server() as url, httpx.Client(transport=PoliteTransport()) as client:
        assert client.get(url).text == "ok"


def use_loadtest() -> None:
    with server() as url:
        command = [PROGRAM, "loadtest", url, "--rate", "20/s", "--for", "1s", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True)
    assert "granted" in done.stdout, done.stderr


def use_storage(url: str) -> None:
    with Limiter("2/hour", storage=url, failure="raise") as limiter:
        limiter.reset("extra")
        assert [bool(limiter.hit("extra")) for _ in range(3)] == [True, True, False]


def use_otel() -> None:
    from ratebound.observe.otel import OpenTelemetryListener

    assert Limiter("2/hour", listeners=[OpenTelemetryListener()]).hit("a")


def use_policy() -> None:
    from ratebound.policy import Gate, RequestView, load_policy

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "policy.yaml").write_text(POLICY)
        gate = Gate(load_policy(f"{folder}/policy.yaml"))
    request = RequestView("GET", "/", peer="192.0.2.1")
    assert [bool(gate.decide(request)) for _ in range(3)] == [True, True, False]


def use_prometheus() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from ratebound.observe.prometheus import PrometheusListener

    registry = CollectorRegistry()
    Limiter("2/hour", listeners=[PrometheusListener(registry)]).hit("a")
    assert b"ratebound_decisions_total" in generate_latest(registry)


def use_requests() -> None:
    import requests

    from ratebound.client.requests import PoliteAdapter

    with server() as url, requests.Session() as session:
        session.mount("http://", PoliteAdapter())
        assert session.get(url).text == "ok"


def use_service() -> None:
    with tempfile.TemporaryDirectory() as folder:
        policy, socket = f"{folder}/policy.yaml", f"{folder}/http.sock"
        Path(policy).write_text(POLICY)
        listens = ["--http", f"unix:{socket}", "--grpc", "off", "--resp", "off", "--admin", f"unix:{folder}/admin.sock"]
        serving = subprocess.Popen([PROGRAM, "serve", "--policy", policy, *listens, "--log-level", "error"])
        try:
            deadline = time.monotonic() + 30
            while not Path(socket).exists() and serving.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            ask = [PROGRAM, "ask", "http", "decide", "--to", f"unix:{socket}", "--path", "/", "--address", "192.0.2.1"]
            answers = [subprocess.run(ask, capture_output=True).returncode for _ in range(3)]
        finally:
            serving.terminate()
            serving.wait()
    assert answers == [0, 0, 3], answers


def use_tzdata() -> None:
    import zoneinfo

    zoneinfo.reset_tzpath(to=[])  # as on a system that has no time zones
    assert ZoneInfo("Europe/Berlin").utcoffset(datetime(2026, 7, 1, tzinfo=UTC)) is not None
    assert Limiter("2/calendar-month in Europe/Berlin").hit("a")


def use_urllib3() -> None:
    from ratebound.client.urllib3 import PolitePoolManager

    with server() as url:
        assert PolitePoolManager().request("GET", url).data == b"ok"


def use_all() -> None:
    for name, use in USES.items():
        if name not in ("all", "storage"):
            use()


USES: dict[str, Callable[..., None]] = {
    name.removeprefix("use_"): use for name, use in [*globals().items()] if name.startswith("use_")
}

if __name__ == "__main__":
    USES[sys.argv[1]](*sys.argv[2:])
