"""`ratebound serve` in processes of its own, for tests: on free ports, gone when its context ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tests.servers import dying_with_us

# One for all tests: a client takes long to make. Each request has a connection of its own, so any worker may take it.
CLIENT = httpx.Client(timeout=10, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
COMMAND = [sys.executable, "-m", "ratebound.cli"]
POLICY = """
rules:
  - {name: login, match: {paths: /login, methods: POST}, by: address, limits: 2/hour}
  - {name: rest, default: true, by: address, limits: 1000/hour}
"""


class RunningService:
    """A service that runs. `log` is what it has written so far."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, folder: Path) -> None:
        self.process = process
        self._log = log
        self.folder = folder  # in which it keeps its run folder

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def url(self, name: str) -> str:
        """The address of a listener: http://127.0.0.1:1234."""
        found = re.search(rf"\b{name} is served on (\S+?)[\"\s]", self.log)
        assert found, self.log
        return found[1].replace("grpc", "http").replace("rediss", "https").replace("redis", "http")

    def address(self, name: str) -> str:
        """The address of a listener for --to: 127.0.0.1:1234."""
        return self.url(name).rpartition("/")[2]

    def ask(self, path: str, body: Any, **options: Any) -> Any:
        answer = CLIENT.post(self.url("http") + path, json=body, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metrics(self) -> dict[str, float]:
        text = CLIENT.get(self.url("admin") + "/metrics").text
        lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def workers(self) -> list[int]:
        """The processes of the workers that answer, in the order of their places."""
        found = CLIENT.get(self.url("admin") + "/readyz").json()["workers"]
        return [worker["process"] for worker in found if "process" in worker]

    def children(self) -> list[int]:
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in found]

    def wait_for(self, text: str, times: int = 1, seconds: float = 20.0) -> None:
        """Wait until the log has a text."""
        ends = time.monotonic() + seconds
        while self.log.count(text) < times:
            assert time.monotonic() < ends, f"no {text!r} in:\n{self.log}"
            assert self.process.poll() is None or self.log.count(text) >= times, self.log
            time.sleep(0.02)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Stop it, and return its exit status."""
        self.send(number)
        return self.process.wait(20)


@contextmanager
def running_service(
    *options: str,
    policy: str = POLICY,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    waits: bool = True,
) -> Iterator[RunningService]:
    """Start a service with these options, HTTP and the control plane on free ports, and wait until it is ready."""
    with tempfile.TemporaryDirectory(prefix="rb-", ignore_cleanup_errors=True) as made:
        home = Path(made) if folder is None else folder
        written = Path(made) / "policy.yaml"
        written.write_text(policy)
        log = Path(made) / "log"
        given = {"--http": "0", "--admin": "0", "--grpc": "off", "--resp": "off", "--policy": str(written)}
        given |= dict(zip(options[::2], options[1::2], strict=True))
        command = [*COMMAND, "serve", *(word for pair in given.items() for word in pair if pair[1] != "")]
        outer = {name: value for name, value in os.environ.items() if not name.startswith("RATEBOUND_")}
        variables = {**outer, "XDG_RUNTIME_DIR": str(home), "RUNTIME_DIRECTORY": "", **(environ or {})}
        with log.open("wb") as file:
            process = subprocess.Popen(
                dying_with_us(command), stdout=file, stderr=file, env=variables, start_new_session=True
            )
        service = RunningService(process, log, home)
        try:
            if waits:
                service.wait_for("ready, with")
            yield service
        finally:
            children = []
            with suppress(OSError):
                children = service.children()
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()
                process.wait()
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
