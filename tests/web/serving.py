"""Real web servers, on free ports of the loopback, gone when their context ends whatever happens."""

import atexit
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.servers import HOST, free_port

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "uvicorn": ["uvicorn", "--host", HOST, "--port", "{port}", "--no-proxy-headers", "tests.web.served:app"],
    "hypercorn": ["hypercorn", "--bind", "{host}:{port}", "tests.web.served:app"],
    "gunicorn": ["gunicorn", "--bind", "{host}:{port}", "--no-control-socket", "tests.web.served:application"],
}


class Web:
    """A server that runs."""

    def __init__(self, port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """As an operator would; the server's exit code."""
        self.process.terminate()
        return self.process.wait(20)

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return True
        return False


@contextmanager
def serving(server: str, *options: str, **environ: str) -> Iterator[Web]:
    """`environ` is RATEBOUND_TEST_STORAGE and its like, without the beginning."""
    port = free_port()
    command = [word.format(host=HOST, port=port) for word in COMMANDS[server]]
    env = {**os.environ, **{f"RATEBOUND_TEST_{name.upper()}": value for name, value in environ.items()}}
    with tempfile.TemporaryDirectory(prefix="ratebound-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *command, *options],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        end = partial(_end, process)
        atexit.register(end)
        try:
            web = Web(port, process, log)
            deadline = time.monotonic() + 30
            while not web.answers():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{server} did not come up:\n{web.log}")
                time.sleep(0.02)
            yield web
        finally:
            end()
            atexit.unregister(end)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The server and its workers: they are a session of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Connection:
    """One that is kept open, for one client. A response has the headers once; or not at all, if `least` is 0."""

    def __init__(self, web: Web, client: str, *, least: int = 0) -> None:
        self.http = http.client.HTTPConnection(HOST, web.port, timeout=20)
        self.headers = {"X-Forwarded-For": client}
        self.least = least

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        self.http.request(method, path, headers={**self.headers, **headers})
        response = self.http.getresponse()
        body = response.read()
        pairs = [(name.lower(), value) for name, value in response.getheaders()]
        assert self.least <= [name for name, _ in pairs].count("ratelimit") <= 1, pairs
        return response.status, dict(pairs), body
