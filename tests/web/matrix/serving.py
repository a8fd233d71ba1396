"""Every server with every option for a path prefix, each forked from one process that has imported everything.

`python -m tests.web.matrix.serving` reads lines of `server`, `port` from its input, and forks a child for each.
"""

import atexit
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.servers import HOST, free_port

ROOT = Path(__file__).parents[3]
ASGI, WSGI = "tests.web.matrix.sites:asgi_application", "tests.web.matrix.sites:wsgi_application"
PREFIX = "/api"
UVICORN = ["uvicorn", "--host", HOST, "--port", "{port}", "--log-level", "critical", "--http"]
HYPERCORN = ["hypercorn", "--bind", f"{HOST}:{{port}}", "--log-level", "critical"]
GRANIAN = ["granian", "--host", HOST, "--port", "{port}", "--no-log", "--interface"]
GUNICORN = ["gunicorn", "--bind", f"{HOST}:{{port}}", "--no-control-socket", "--log-level", "critical"]
WAITRESS = ["waitress", f"--listen={HOST}:{{port}}"]


@dataclass(frozen=True)
class Option:
    """A server, as an operator starts it. `prefix` is the path that it is told to serve the application below."""

    interface: str
    command: list[str]
    prefix: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    at_once: int = 1  # requests


SERVERS: dict[str, Option] = {
    "uvicorn h11": Option("asgi", [*UVICORN, "h11", ASGI]),
    "uvicorn httptools": Option("asgi", [*UVICORN, "httptools", ASGI]),
    "uvicorn h11 --root-path": Option("asgi", [*UVICORN, "h11", "--root-path", PREFIX, ASGI], PREFIX),
    "uvicorn httptools --root-path": Option("asgi", [*UVICORN, "httptools", "--root-path", PREFIX, ASGI], PREFIX),
    "hypercorn": Option("asgi", [*HYPERCORN, ASGI]),
    "hypercorn --root-path": Option("asgi", [*HYPERCORN, "--root-path", PREFIX, ASGI], PREFIX),
    "granian asgi": Option("asgi", [*GRANIAN, "asgi", ASGI]),
    "granian asgi --url-path-prefix": Option("asgi", [*GRANIAN, "asgi", "--url-path-prefix", PREFIX, ASGI], PREFIX),
    "gunicorn asgi": Option("asgi", [*GUNICORN, "--worker-class", "asgi", ASGI]),
    "gunicorn asgi --root-path": Option(
        "asgi", [*GUNICORN, "--worker-class", "asgi", "--root-path", PREFIX, ASGI], PREFIX
    ),
    "granian wsgi": Option("wsgi", [*GRANIAN, "wsgi", WSGI]),
    "granian wsgi --url-path-prefix": Option("wsgi", [*GRANIAN, "wsgi", "--url-path-prefix", PREFIX, WSGI], PREFIX),
    "gunicorn": Option("wsgi", [*GUNICORN, WSGI]),
    "gunicorn threads": Option("wsgi", [*GUNICORN, "--threads", "2", WSGI]),
    "gunicorn SCRIPT_NAME": Option("wsgi", [*GUNICORN, WSGI], PREFIX, {"SCRIPT_NAME": PREFIX}),
    "waitress": Option("wsgi", [*WAITRESS, WSGI]),
    "waitress --url-prefix": Option("wsgi", [*WAITRESS, f"--url-prefix={PREFIX}", WSGI], PREFIX),
    # It waits ten milliseconds before it closes a connection.
    "werkzeug": Option("wsgi", ["werkzeug"], at_once=8),
    "django": Option("wsgi", ["django"]),
    "wsgiref": Option("wsgi", ["wsgiref"]),
}


def run_werkzeug(port: int) -> None:
    from werkzeug.serving import run_simple

    from tests.web.matrix.sites import wsgi_application

    run_simple(HOST, port, wsgi_application, threaded=True)


def run_django(port: int) -> None:
    from django.core.servers import basehttp

    from tests.web.matrix import django_views  # noqa: F401 - the server looks at the settings
    from tests.web.matrix.sites import wsgi_application

    basehttp.run(HOST, port, wsgi_application, threading=True)


def run_wsgiref(port: int) -> None:
    from wsgiref.simple_server import make_server

    from tests.web.matrix.sites import wsgi_application

    make_server(HOST, port, wsgi_application).serve_forever()


FUNCTIONS: dict[str, Callable[[int], None]] = {
    "werkzeug": run_werkzeug,
    "django": run_django,
    "wsgiref": run_wsgiref,
}


def serve(option: Option, port: int) -> None:
    """Become this server. Does not return."""
    os.environ.update(option.environ)
    name, *arguments = (word.format(port=port) for word in option.command)
    if name in FUNCTIONS:
        FUNCTIONS[name](port)
    elif name == "granian":  # it has threads of its own, and starts its workers anew
        os.execv(sys.executable, [sys.executable, "-m", name, *arguments])
    else:
        sys.argv = [name, *arguments]
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def main() -> None:
    from tests.web.matrix import django_views, sites

    for adapter in ("fastapi", "starlette", "litestar", "quart behind asgi"):
        sites.ASGI[adapter].make("bound")  # imports what is imported late
    sites.WSGI["flask, mounted"].make("bound")
    django_views.handler.cache_clear()
    for line in sys.stdin:
        name, port = line.rsplit(maxsplit=1)
        if os.fork() == 0:
            sys.stdin.close()
            serve(SERVERS[name], int(port))
            os._exit(0)


class Nursery:
    """The process that forks servers."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    def start(self, server: str) -> int:
        """Start a server; return its port when it accepts connections."""
        port = free_port()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{server} {port}\n".encode())
        self._process.stdin.flush()
        deadline = time.monotonic() + 60
        while True:
            with suppress(OSError), socket.create_connection((HOST, port), 1):
                return port
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{server} did not come up:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.02)


@contextmanager
def nursery() -> Iterator[Nursery]:
    """All servers end with the context, whatever happens: they are one process group."""
    with tempfile.TemporaryDirectory(prefix="ratebound-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.web.matrix.serving"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        end = partial(_end, process)
        atexit.register(end)
        try:
            yield Nursery(process, log)
        finally:
            end()
            atexit.unregister(end)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


if __name__ == "__main__":
    main()
