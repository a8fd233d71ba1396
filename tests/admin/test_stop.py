"""A server that is told to stop does not wait for those who look at live figures."""

import subprocess
import sys
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.admin.sites import READ_TOKEN
from tests.servers import HOST, free_port, wait_until

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", ["uvicorn", "hypercorn"])
def test_open_streams_end_with_the_server(command: str) -> None:
    port = free_port()
    bind = ["--host", HOST, "--port", str(port)] if command == "uvicorn" else ["--bind", f"{HOST}:{port}"]
    words = [sys.executable, "-m", command, *bind, "tests.admin.served:app"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ExitStack() as opened:
        opened.callback(process.wait)
        opened.callback(process.kill)
        for _ in range(3):
            connection = opened.enter_context(closing(HTTPConnection(HOST, port, timeout=30)))
            wait_until(lambda one=connection: connects(one), 30, f"{command} has started")  # type: ignore[misc]
            connection.request("GET", "/api/live", headers={"Authorization": f"Bearer {READ_TOKEN}"})
            stream = opened.enter_context(closing(connection.getresponse()))
            assert stream.status == 200
            while not stream.readline().startswith(b"event: figures"):
                pass
        process.terminate()
        process.wait(20)


def connects(connection: HTTPConnection) -> bool:
    try:
        connection.connect()
    except OSError:
        return False
    return True
