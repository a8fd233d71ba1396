"""A real server for load tests, for all tests of a worker."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers import HOST, dying_with_us, free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def limited_app() -> Iterator[str]:
    """The URL of `limited_app.py`, served by uvicorn in a process of its own."""
    port = free_port()
    options = ["--host", HOST, "--port", str(port), "--no-access-log", "--log-level", "error", "--no-server-header"]
    command = [sys.executable, "-m", "uvicorn", *options, "tests.loadtest.limited_app:app"]
    process = subprocess.Popen(dying_with_us(command), cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            with suppress(OSError), socket.create_connection((HOST, port), 1):
                break
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.02)
        yield f"http://{HOST}:{port}"
    finally:
        process.kill()
        process.wait()
