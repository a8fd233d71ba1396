"""Slots in real servers, over a socket: clients that leave, files that the server sends by itself, WebSocket."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.servers import HOST, Server
from tests.web.serving import COMMANDS, Connection, Web, serving
from tests.web.test_flask_and_django_served import SERVED

COMMANDS["flask in waitress"] = ["waitress", "--listen={host}:{port}", "tests.web.served_flask:application"]
SECONDS = 20


@pytest.fixture(scope="module", params=["uvicorn", "hypercorn", *SERVED, "flask in waitress"])
def web(request: pytest.FixtureRequest) -> Iterator[Web]:
    with serving(request.param) as running:
        yield running


class Export:
    """A response without an end, of which a client has received the beginning."""

    def __init__(self, web: Web) -> None:
        self._socket = socket.create_connection((HOST, web.port), SECONDS)
        self._socket.sendall(b"GET /exports HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while b"part" not in received and b" 429 " not in received:
            part = self._socket.recv(4096)
            assert part, received
            received += part
        self.passed = b" 200 " in received.split(b"\r\n")[0]

    def leave(self) -> None:
        self._socket.close()


def next_export(web: Web) -> Export:
    """The first export that passes: a server notices only when it writes that a client has left."""
    deadline = time.monotonic() + SECONDS
    while not (export := Export(web)).passed:
        export.leave()
        assert time.monotonic() < deadline, web.log
        time.sleep(0.05)
    return export


def test_a_client_that_leaves_in_mid_stream_makes_room(web: Web) -> None:
    exports = [Export(web), Export(web)]
    assert [export.passed for export in exports] == [True, True]
    refused = Export(web)
    assert not refused.passed
    refused.leave()
    for _ in range(3):
        exports.pop(0).leave()
        exports.append(next_export(web))
        refused = Export(web)
        assert not refused.passed
        refused.leave()
    for export in exports:
        export.leave()
    next_export(web).leave()
    next_export(web).leave()


def test_files_are_sent_whole_and_make_room(web: Web) -> None:
    files = [
        (Path(__file__).parent / name).read_bytes() for name in ("served.py", "served_flask.py", "served_django.py")
    ]
    for _ in range(6):
        deadline = time.monotonic() + SECONDS
        status = 429
        while status == 429 and time.monotonic() < deadline:
            with Connection(web, "198.51.100.1") as connection:
                status, _, body = connection.get("/download")
        assert status == 200
        assert body in files


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_a_connection_that_is_killed_makes_room(server: str) -> None:
    with serving(server) as web, ExitStack() as opened:
        url = f"ws://{HOST}:{web.port}/exports/ws"
        first, _ = [opened.enter_context(connect(url)) for _ in range(2)]
        with pytest.raises(InvalidStatus) as refused, connect(url):
            pass
        assert refused.value.response.status_code == 429
        first.socket.shutdown(socket.SHUT_RDWR)  # no close frame
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                third = opened.enter_context(connect(url))
                break
            except InvalidStatus:
                assert time.monotonic() < deadline, web.log
                time.sleep(0.05)
        third.send("a")
        assert third.recv(5) == "a"
        with pytest.raises(InvalidStatus), connect(url):
            pass


def test_workers_share_slots_on_redis(redis_url_server: Server) -> None:
    url = f"{redis_url_server.url}?prefix=slots-of-workers"
    with serving("flask in gunicorn", "--workers", "2", storage=url) as web:
        exports = [Export(web), Export(web)]
        assert [export.passed for export in exports] == [True, True]
        for _ in range(4):
            refused = Export(web)
            assert not refused.passed
            refused.leave()
        for export in exports:
            export.leave()
        next_export(web).leave()
