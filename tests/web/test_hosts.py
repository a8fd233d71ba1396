"""Rules for hosts in real servers: several Host headers, and hosts that a proxy forwards."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ratebound.policy import Match, Policy, Rule
from ratebound.web.asgi import RateLimitMiddleware
from tests.servers import HOST
from tests.web.serving import COMMANDS, Web, serving

RULES = [Rule("api", "2/hour", match=Match(hosts=["api.example"]), by="global")]


async def site(scope: Any, receive: Any, send: Any) -> None:
    """Tell the host that a dict of the headers has: the last one."""
    if scope["type"] == "http":
        body = dict(scope["headers"])[b"host"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


app = RateLimitMiddleware(site, Policy(rules=RULES))
COMMANDS["hosts in uvicorn"] = ["uvicorn", "--host", "{host}", "--port", "{port}", "tests.web.test_hosts:app"]
COMMANDS["hosts in granian"] = [
    *["granian", "--host", "{host}", "--port", "{port}", "--interface", "asgi"],
    "tests.web.test_hosts:app",
]


@pytest.fixture(params=["hosts in uvicorn", "hosts in granian"])
def web(request: pytest.FixtureRequest) -> Iterator[Web]:
    with serving(request.param) as running:
        yield running


def asked(web: Web, *hosts: str) -> bytes:
    """Return the answer to a request with these Host headers."""
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    with socket.create_connection((HOST, web.port), 20) as connection:
        connection.sendall(f"GET / HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_a_rule_for_a_host_counts_requests_that_name_it_in_any_of_their_host_headers(web: Web) -> None:
    answers = [asked(web, "other.example", "api.example") for _ in range(4)]
    assert [answer.endswith(b"api.example") for answer in answers] == [True, True, False, False]
    assert all(b" 429 " in answer.partition(b"\r\n")[0] for answer in answers[2:])
    assert asked(web, "other.example").endswith(b"other.example")
