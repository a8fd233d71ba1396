"""A web server that is told to stop writes the ledger of its application, however it ends its process."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ratebound.ledger import Ledger
from tests.servers import HOST, free_port, wait_until

APPLICATION = """
from fastapi import FastAPI
from ratebound.ledger import Ledger
from ratebound.web.fastapi import RateLimits

app = FastAPI()
ledger = Ledger("sqlite:///usage.db", clients="name", every=3600)
limits = RateLimits("100/minute", app=app, listeners=[ledger])


@app.get("/")
async def page():
    return "fine"
"""


@pytest.mark.parametrize("command", ["uvicorn", "hypercorn"])
def test_sigterm_loses_nothing_of_the_ledger(command: str, tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(APPLICATION)
    port = free_port()
    bind = ["--host", HOST, "--port", str(port)] if command == "uvicorn" else ["--bind", f"{HOST}:{port}"]
    words = [sys.executable, "-m", command, *bind, "served:app"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: answers(port), 30, f"{command} has started")
            for _ in range(6):
                assert answers(port)
            process.terminate()
            process.wait(20)
        finally:
            process.kill()
    with Ledger(f"sqlite:///{tmp_path}/usage.db", clients="name", writes=False) as ledger:
        assert [(row.units, row.allowed) for row in ledger.top()] == [(7, 7)]


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False
