"""What the tests of pacing serve: an application with our middleware. RATEBOUND_TEST_LIMIT is its limit for everybody
from one address. `serving` starts it."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratebound.web.asgi import RateLimitMiddleware
from tests.servers import HOST, dying_with_us, free_port
from tests.web.serving import ROOT, Web


async def hello(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


app = RateLimitMiddleware(hello, os.environ.get("RATEBOUND_TEST_LIMIT", "100/second burst 100"))


@contextmanager
def serving_limit(limit: str) -> Iterator[str]:
    """The URL of a server with this limit, in a process of its own."""
    port = free_port()
    command = [
        "-m",
        "uvicorn",
        "--host",
        HOST,
        "--port",
        str(port),
        "--log-level",
        "warning",
        "--lifespan",
        "off",
        "--timeout-keep-alive",
        "120",
    ]
    with tempfile.TemporaryDirectory(prefix="ratebound-") as folder, (Path(folder) / "log").open("wb") as log:
        process = subprocess.Popen(
            dying_with_us([sys.executable, *command, "tests.client.paced_server:app"]),
            cwd=ROOT,
            env={**os.environ, "RATEBOUND_TEST_LIMIT": limit},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            web = Web(port, process, Path(folder) / "log")
            deadline = time.monotonic() + 30
            while not web.answers():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not come up:\n{web.log}")
                time.sleep(0.02)
            yield web.url
        finally:
            process.kill()
            process.wait()
