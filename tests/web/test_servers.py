"""In real servers, over a socket."""

import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.servers import HOST, Server
from tests.web.serving import Connection, Web, serving


@pytest.fixture(scope="module", params=["uvicorn", "hypercorn"])
def asgi(request: pytest.FixtureRequest) -> Iterator[Web]:
    with serving(request.param) as web:
        yield web


def get(web: Web, path: str, client: str, **more: str) -> int:
    with Connection(web, client) as connection:
        return connection.get(path, **more)[0]


def test_a_connection_is_kept_open_through_answers_and_refusals(asgi: Web) -> None:
    with Connection(asgi, "198.51.100.1") as connection:
        connection.http.connect()
        before = connection.http.sock
        answers = [connection.get(f"/users/{n}") for n in range(5)]
        assert [status for status, *_ in answers] == [200, 200, 200, 429, 429]
        assert json.loads(answers[4][2])["title"] == "Quota Exceeded"
        assert 0 < int(answers[4][1]["retry-after"]) <= 3600
        assert connection.http.sock is before


def test_a_head_has_headers_and_no_body_even_when_refused(asgi: Web) -> None:
    with Connection(asgi, "198.51.100.2") as connection:
        first = connection.get("/", "HEAD")
        assert (first[0], first[2]) == (200, b"")
        assert "r=19" in first[1]["ratelimit"]
        answers = [connection.get("/", "HEAD") for _ in range(20)]
        assert (answers[-1][0], answers[-1][2]) == (429, b"")
        assert connection.get("/")[0] == 429  # and the connection is still in order


def test_a_stream_comes_in_parts_with_its_headers_first(asgi: Web) -> None:
    with Connection(asgi, "198.51.100.3") as connection:
        connection.http.request("GET", "/stream", headers=connection.headers)
        begin = time.monotonic()
        response = connection.http.getresponse()
        assert response.getheader("ratelimit") is not None
        assert response.read(3) == b"one"
        assert time.monotonic() - begin < 5
        assert response.read() == b"twothree"


def test_who_disconnects_has_paid(asgi: Web) -> None:
    """A complete success would be given back; these are broken off by the client."""
    for _ in range(3):
        with socket.create_connection((HOST, asgi.port), 10) as raw:
            raw.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 198.51.100.4\r\n\r\n")
            received = b""
            while b"part" not in received:
                received += raw.recv(4096)
            assert b" 200 " in received.split(b"\r\n")[0]
    assert get(asgi, "/endless", "198.51.100.4") == 429


def test_forty_failed_logins_at_once_pass_five(asgi: Web) -> None:
    with ThreadPoolExecutor(40) as pool:
        statuses = list(pool.map(lambda _: get(asgi, "/login", "198.51.100.5"), range(40)))
    assert Counter(statuses) == {401: 5, 429: 35}


def test_a_leaky_bucket_spaces_requests_out_and_the_loop_goes_on(asgi: Web) -> None:
    with ThreadPoolExecutor(6) as pool:
        begin = time.monotonic()
        queued = [pool.submit(get, asgi, "/queue", "198.51.100.6") for _ in range(5)]
        assert get(asgi, "/", "198.51.100.7") == 200
        meanwhile = time.monotonic() - begin
        assert [one.result() for one in queued] == [200] * 5
        took = time.monotonic() - begin
    assert took >= 0.75
    assert meanwhile < took


def test_connections_and_messages_of_a_websocket_are_limited(asgi: Web) -> None:
    url, headers = f"ws://{HOST}:{asgi.port}/ws", {"X-Forwarded-For": "198.51.100.8"}
    with connect(url, additional_headers=headers) as ws:
        assert ws.response is not None
        assert "r=1" in ws.response.headers["ratelimit"]
        for text in "abc":
            ws.send(text)
            assert ws.recv(5) == text
        ws.send("d")
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(5)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
    with connect(url, additional_headers=headers):
        pass
    with pytest.raises(InvalidStatus) as refused:
        connect(url, additional_headers=headers).close()
    response = refused.value.response
    assert response.status_code == 429
    assert 0 < int(response.headers["retry-after"]) <= 3600


def test_the_state_of_the_lifespan_is_there_and_the_server_stops_in_order() -> None:
    with serving("uvicorn") as web:
        with Connection(web, "198.51.100.9") as connection:
            assert json.loads(connection.get("/")[2]) == {"opened": "yes"}
        web.stop()
        assert "Application shutdown complete" in web.log
        assert "Traceback" not in web.log


def test_without_a_lifespan_it_serves_all_the_same() -> None:
    with serving("uvicorn", "--lifespan", "off") as web:
        assert get(web, "/users/1", "198.51.100.1") == 200


def test_redis_dies_and_comes_back_and_the_site_goes_on(fresh_redis: Server) -> None:
    with serving("uvicorn", storage=fresh_redis.url) as web, Connection(web, "198.51.100.1") as connection:
        answer = connection.get("/users/1")
        assert (answer[0], "r=2" in answer[1]["ratelimit"]) == (200, True)
        assert fresh_redis.client().dbsize() > 0
        fresh_redis.kill()
        begin = time.monotonic()
        statuses = [connection.get("/users/1")[0] for _ in range(30)]
        assert time.monotonic() - begin < 15
        assert set(statuses) == {200, 429}  # neither an error nor an open door
        assert statuses[-1] == 429
        fresh_redis.spawn()
        fresh_redis.wait_until_up()
        deadline = time.monotonic() + 20
        while not fresh_redis.client().dbsize() and time.monotonic() < deadline:
            get(web, "/pid", f"198.51.100.{int(time.monotonic()) % 200 + 20}")
            time.sleep(0.1)
        assert fresh_redis.client().dbsize() > 0
        assert "Traceback" not in web.log


def test_a_policy_file_that_changes_is_in_force_in_a_running_server(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"

    def write(count: int) -> None:
        policy: dict[str, Any] = {
            "rules": [{"name": "rest", "limits": f"{count}/hour"}],
            "trusted": ["127.0.0.1"],
        }
        file.write_text(json.dumps(policy))

    write(2)
    with serving("uvicorn", policy=str(file)) as web, Connection(web, "198.51.100.1") as connection:
        assert [connection.get("/")[0] for _ in range(3)] == [200, 200, 429]
        write(50)
        deadline = time.monotonic() + 15
        while connection.get("/")[0] == 429 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "q=50" in connection.get("/")[1]["ratelimit-policy"]
        # what the endpoint declares still holds, and is asked with the new rules
        assert [connection.get("/users/1")[0] for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["each loads", "made before the fork"])
def test_workers_of_gunicorn_share_a_limit_to_the_unit(redis_url_server: Server, options: tuple[str, ...]) -> None:
    url = f"{redis_url_server.url}?prefix=gunicorn{len(options)}"
    with serving("gunicorn", "--workers", "2", *options, storage=url, deadline="5") as web:
        pids: set[bytes] = set()
        deadline = time.monotonic() + 20
        while len(pids) < 2 and time.monotonic() < deadline:  # both are up
            with ThreadPoolExecutor(8) as pool:
                pids |= set(pool.map(lambda n: pid_of(web, f"198.51.100.{n}"), range(100, 108)))
        assert len(pids) == 2
        with ThreadPoolExecutor(8) as pool:
            statuses = Counter(pool.map(lambda _: get(web, "/pid", "198.51.100.1"), range(60)))
        assert statuses == {200: 20, 429: 40}


def pid_of(web: Web, client: str) -> bytes:
    with Connection(web, client) as connection:
        return connection.get("/pid")[2]


@pytest.mark.parametrize("options", [("--workers", "1"), ("--worker-class", "gthread", "--threads", "4", "--preload")])
def test_gunicorn_serves_streams_heads_and_refusals(options: tuple[str, ...]) -> None:
    with serving("gunicorn", *options) as web, Connection(web, "198.51.100.1") as connection:
        assert connection.get("/stream")[2] == b"onetwothree"
        status, headers, body = connection.get("/", "HEAD")
        assert (status, body) == (200, b"")
        assert "r=18" in headers["ratelimit"]
        assert [connection.get("/login")[0] for _ in range(6)] == [401] * 5 + [429]
        status, headers, body = connection.get("/login")
        assert headers["content-length"] == str(len(body))


def test_workers_of_uvicorn_share_a_limit_to_the_unit(redis_url_server: Server) -> None:
    url = f"{redis_url_server.url}?prefix=uvicorn-workers"
    with serving("uvicorn", "--workers", "2", storage=url, deadline="5") as web:
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda n: get(web, f"/users/{n}", "198.51.100.1"), range(24)))
        assert Counter(statuses) == {200: 3, 429: 21}


def test_the_loop_is_not_held_up_by_a_redis_that_hangs(fresh_redis: Server) -> None:
    with serving("uvicorn", storage=fresh_redis.url) as web:
        assert get(web, "/pid", "198.51.100.1") == 200
        fresh_redis.pause()
        try:
            begin = time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                statuses = list(pool.map(lambda n: get(web, "/pid", f"198.51.100.{n}"), range(2, 26)))
            assert statuses == [200] * 24
            assert time.monotonic() - begin < 10
        finally:
            fresh_redis.resume()
