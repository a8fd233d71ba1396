"""A client that resets its connection at once: uvicorn does not know its address any more, and serves it all the same.

Such a request must not pass for one of a proxy on a Unix socket: whoever sends it would choose the address that is
counted, and could get it blocked.
"""

import json
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from ratebound.policy import Policy, Rule
from ratebound.web.asgi import RateLimitMiddleware
from ratebound.web.fastapi import RateLimits
from tests.servers import HOST, free_port
from tests.web.drivers import answer_of, exchange, http_scope

VICTIM = "203.0.113.9"
BEHIND_NGINX = Policy(rules=[Rule("login", "1/hour; 1 strike/hour block 5 minutes", by="address")], trusted=["unix"])
RESET = struct.pack("ii", 1, 0)
SITE = f"""
from fastapi import FastAPI
from ratebound.web.fastapi import RateLimits
from tests.web.test_peers_that_reset import BEHIND_NGINX
app = FastAPI()
limits = RateLimits(BEHIND_NGINX, app=app)
served = []

@app.get("/login")
async def login():
    served.append(1)

@app.get("/blocked")
@limits.exempt
async def blocked():
    return [len(served), any(usage.blocked for usage in await limits.usage_of("{VICTIM}"))]
"""


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def middleware() -> Any:
    app = RateLimitMiddleware(hello, BEHIND_NGINX)
    return app, app


def fastapi() -> Any:
    app = FastAPI()
    return app, RateLimits(BEHIND_NGINX, app=app)


@pytest.mark.anyio
@pytest.mark.parametrize("make", [middleware, fastapi])
@pytest.mark.parametrize(
    ("server", "is_believed"),
    [(("127.0.0.1", 8000), False), (["127.0.0.1", 8000], False), (("/run/app.sock", None), True), (None, True)],
)
async def test_only_a_unix_socket_is_a_peer_without_an_address(make: Any, server: Any, is_believed: bool) -> None:
    app, limits = make()

    async def status(client: str) -> int:
        scope = http_scope("GET", "/", {"x-forwarded-for": client}, client=None, server=server)
        return answer_of(await exchange(app, scope)).status

    assert [await status(VICTIM) == 429 for _ in range(2)] == [False, True]
    assert any(usage.blocked for usage in await limits.usage_of(VICTIM)) is is_believed
    assert (await status("198.51.100.1") == 429) is not is_believed  # those that are not believed are one client


def test_nobody_gets_another_address_blocked_by_resetting_connections(tmp_path: Path) -> None:
    (tmp_path / "resets_site.py").write_text(SITE)
    port, root = free_port(), Path(__file__).parents[2]
    options = ["--host", HOST, "--port", str(port), "--no-proxy-headers", "--app-dir", str(tmp_path)]
    command = [sys.executable, "-m", "uvicorn", *options, "resets_site:app"]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL) as process:
        try:
            assert _asked(port, process)[1] is False
            for _ in range(40):
                with socket.create_connection((HOST, port), 10) as raw:
                    raw.sendall(f"GET /login HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {VICTIM}\r\n\r\n".encode())
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            time.sleep(0.3)
            served, is_blocked = _asked(port, process)
            assert not is_blocked, served
        finally:
            process.kill()


def _asked(port: int, process: "subprocess.Popen[bytes]") -> list[Any]:
    """What the site says, once it has come up."""
    deadline = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection((HOST, port), 10) as raw:
                raw.sendall(b"GET /blocked HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                received = b""
                while part := raw.recv(4096):
                    received += part
            return json.loads(received.partition(b"\r\n\r\n")[2])  # type: ignore[no-any-return]
        except ConnectionRefusedError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
