"""Processes that share a limit. Of a learned one nothing is refused after the first answers, and a configured one is
kept exactly, counted by the server."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.client.paced_server import serving_limit
from tests.client.paced_worker import run_processes
from tests.servers import Server
from tests.zones import fresh_zone_url

LONG = os.environ.get("RATEBOUND_LONG") == "1"
LIMITS = ("50/second burst 50", "50/second fixed-window")


@pytest.mark.parametrize("limit", LIMITS)
def test_processes_share_a_limit_over_shared_memory(limit: str) -> None:
    with serving_limit(limit) as url, fresh_zone_url() as zone:
        ran = run_processes(url, zone, 4.0)
    assert ran.refused_after(2.5) == 0
    assert len(ran.answers) > 50  # more than one burst: they went on


@pytest.mark.skipif(not LONG, reason="takes a minute: set RATEBOUND_LONG=1")
@pytest.mark.parametrize("limit", [*LIMITS, "100/5 seconds burst 100", "100/5 seconds fixed-window"])
def test_processes_share_a_limit_over_redis(limit: str, fresh_redis: Server) -> None:
    with serving_limit(limit) as url:
        ran = run_processes(url, fresh_redis.url, 20.0)
    assert ran.refused_after(5.0) == 0
    assert len(ran.answers) > 300


class CountedHandler(BaseHTTPRequestHandler):
    """Answers every request, and notes when it came."""

    protocol_version = "HTTP/1.1"
    arrivals: list[float]

    def do_GET(self) -> None:
        self.arrivals.append(time.time())
        self.send_response_only(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def counting_server() -> Iterator[tuple[str, list[float]]]:
    """The URL of a server without limits, and the times at which requests came."""
    arrivals: list[float] = []
    handler = type("Handler", (CountedHandler,), {"arrivals": arrivals})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", arrivals
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("kind", ["shared memory", "redis"])
def test_a_configured_limit_is_kept_exactly_by_several_processes(kind: str, request: pytest.FixtureRequest) -> None:
    with fresh_zone_url() as zone, counting_server() as (url, arrivals):
        storage = zone if kind == "shared memory" else request.getfixturevalue("fresh_redis").url
        run_processes(url, storage, 7.0, 4, limit="40/2 seconds fixed-window")
    windows = Counter(int(when // 2) for when in arrivals)
    whole = sorted(windows)[1:-1]  # the first one and the last one are cut off
    assert len(whole) >= 2
    assert [windows[number] for number in whole] == [40] * len(whole)
