"""Flask and Django in real servers, over a socket."""

import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.servers import HOST, Server
from tests.web.serving import COMMANDS, Connection, Web, serving

GUNICORN = ["gunicorn", "--bind", "{host}:{port}", "--no-control-socket", "--threads", "8"]
COMMANDS["flask in gunicorn"] = [*GUNICORN, "tests.web.served_flask:application"]
COMMANDS["django in gunicorn"] = [*GUNICORN, "tests.web.served_django:application"]
COMMANDS["django in uvicorn"] = [
    *["uvicorn", "--host", "{host}", "--port", "{port}", "--no-proxy-headers", "--lifespan", "off"],
    "tests.web.served_django:asgi_application",
]
SERVED = ["flask in gunicorn", "django in gunicorn", "django in uvicorn"]


@pytest.fixture(scope="module", params=SERVED)
def web(request: pytest.FixtureRequest) -> Iterator[Web]:
    with serving(request.param) as running:
        yield running


def told_once(web: Web, client: str) -> Connection:
    """Every response has the headers: there is no path here without a limit."""
    return Connection(web, client, least=1)


def status(web: Web, path: str, client: str) -> int:
    with told_once(web, client) as connection:
        return connection.get(path)[0]


def test_a_connection_is_kept_open_through_answers_and_refusals(web: Web) -> None:
    with told_once(web, "198.51.100.1") as connection:
        answers = [connection.get(f"/users/{number}") for number in range(5)]
        assert [answer[0] for answer in answers] == [200, 200, 200, 429, 429]
        assert json.loads(answers[4][2])["title"] == "Quota Exceeded"
        assert 0 < int(answers[4][1]["retry-after"]) <= 3600
        assert connection.get("/nowhere")[0] == 404


def test_a_head_has_headers_and_no_body_even_when_refused(web: Web) -> None:
    with told_once(web, "198.51.100.2") as connection:
        answers = [connection.get("/", "HEAD") for _ in range(21)]
        assert [answer[0] for answer in answers] == [200] * 20 + [429]
        assert {answer[2] for answer in answers} == {b""}
        assert connection.get("/")[0] == 429  # and the connection is still in order


def test_a_stream_has_its_headers_once(web: Web) -> None:  # peers: section 3, item 9
    with told_once(web, "198.51.100.3") as connection:
        answer = connection.get("/stream")
        assert (answer[0], answer[2]) == (200, b"onetwothree")
        assert ";r=19;" in answer[1]["ratelimit"]


def test_who_disconnects_has_paid(web: Web) -> None:
    for _ in range(3):
        with socket.create_connection((HOST, web.port), 10) as raw:
            raw.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 198.51.100.4\r\n\r\n")
            received = b""
            while b"part" not in received:
                received += raw.recv(4096)
            assert b" 200 " in received.split(b"\r\n")[0]
    assert status(web, "/endless", "198.51.100.4") == 429


def test_forty_failed_logins_at_once_pass_five(web: Web) -> None:
    with ThreadPoolExecutor(40) as pool:
        statuses = list(pool.map(lambda _: status(web, "/login", "198.51.100.5"), range(40)))
    assert Counter(statuses) == {401: 5, 429: 35}


@pytest.mark.parametrize("server", SERVED)
def test_workers_count_together_and_outlive_their_redis(server: str, fresh_redis: Server) -> None:
    with serving(server, "--workers", "2", storage=fresh_redis.url) as web:  # peers: section 3, items 2 and 4
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: status(web, "/", "198.51.100.6"), range(40)))
        assert Counter(statuses) == {200: 20, 429: 20}
        fresh_redis.kill()
        during = [status(web, f"/users/{number}", "198.51.100.7") for number in range(12)]
        assert set(during) == {200, 429}  # each worker goes on with its share, and still limits
        assert during.count(200) <= 6
        fresh_redis.restart()
        deadline = time.monotonic() + 30
        look = fresh_redis.client()
        number = 0
        while not look.dbsize():  # until what is counted is on Redis again
            assert time.monotonic() < deadline
            number += 1
            assert status(web, "/", f"203.0.113.{number % 250}") == 200
            time.sleep(0.05)
        look.close()
