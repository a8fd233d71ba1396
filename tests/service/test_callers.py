"""The callers in other languages. The one for Node runs, with Express, in front of a real service."""

import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers import HOST, free_port
from tests.service.decide_server import DecideServer, decide_server
from tests.service.node_programs import node_home, node_modules
from tests.service.resp_server import TOKEN

CALLERS = Path(__file__).parents[2] / "examples" / "callers"
POLICY: dict[str, Any] = {
    "identities": {"api-key": {"header": "x-api-key", "verify": str}},
    "rules": [
        {"name": "orders", "match": {"paths": ["/orders"]}, "by": ["api-key", "address"], "limits": "2/minute"},
        {
            "name": "slow",
            "match": {"paths": ["/search"]},
            "by": "address",
            "limits": "50/second leaky-bucket burst 5",
        },
    ],
}
# As app.js, with the options of a test. A file beside it would need Express there.
PROGRAM = """
import express from "express";
import { ratebound } from "./ratebound.js";
const options = JSON.parse(process.argv[2]);
const app = express();
app.use(ratebound({ ...options, user: () => options.user, log: (message) => console.log(message) }));
app.get("/orders", (req, res) => res.json({ orders: [] }));
app.get("/search", (req, res) => res.json({ found: [] }));
const server = app.listen(0, "127.0.0.1", () => console.log(server.address().port));
"""


class Application:
    """An Express application that runs."""

    def __init__(self, port: int, process: "subprocess.Popen[str]") -> None:
        self.port = port
        self.process = process

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of a GET."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=20)
        try:
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@contextmanager
def application(service: DecideServer | int, tmp_path: Path, **options: Any) -> Iterator[Application]:
    """Run an Express application that asks a service, or a port where none is."""
    home = node_modules()
    port = service if isinstance(service, int) else service.port
    for name in ("ratebound.js", "package.json"):
        shutil.copy(CALLERS / "node" / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(home / "node_modules")
    (tmp_path / "program.js").write_text(PROGRAM)
    given = {"url": f"http://{HOST}:{port}", "token": TOKEN, "timeout": 5000, **options}
    command = [str(node_home() / "bin/node"), "program.js", json.dumps(given)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Application(int(process.stdout.readline()), process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def service() -> Iterator[DecideServer]:
    with decide_server(POLICY) as running:
        yield running


def test_express_passes_on_headers_and_rejections(service: DecideServer, tmp_path: Path) -> None:
    with application(service, tmp_path, headers=["x-api-key"], user=7) as app:
        status, headers, body = app.get("/orders?page=2", x_api_key="first", cookie="secret=1")
        assert (status, json.loads(body)) == (200, {"orders": []})
        assert headers["ratelimit"].startswith('"orders/minute"') or "r=1" in headers["ratelimit"]
        assert app.get("/orders", x_api_key="first")[0] == 200
        status, headers, body = app.get("/orders", x_api_key="first")
        assert (status, headers["content-type"]) == (429, "application/problem+json")
        assert int(headers["retry-after"]) in (59, 60)
        assert json.loads(body)["status"] == 429
        assert app.get("/orders", x_api_key="second")[0] == 200
    asked = service.asked[0]
    assert asked | {"host": ""} == {
        "method": "GET",
        "path": "/orders",
        "query": "page=2",
        "host": "",
        "scheme": "http",
        "address": HOST,
        "user": "7",
        "headers": {"x-api-key": "first"},
    }


def test_express_waits_for_the_turn_of_a_request(service: DecideServer, tmp_path: Path) -> None:
    with application(service, tmp_path) as app:
        assert [app.get("/search")[0] for _ in range(5)] == [200] * 5
        assert app.get("/unlimited")[0] == 404


@pytest.mark.parametrize(
    ("when_away", "statuses"),
    [
        ("open", [200, 200, 200, 200]),
        ("closed", [503, 503, 503, 503]),
        ({"limit": 2, "window": 600_000}, [200, 200, 503, 503]),
    ],
    ids=["open", "closed", "share"],
)
def test_express_does_as_it_is_told_when_the_service_is_away(
    tmp_path: Path, when_away: Any, statuses: list[int]
) -> None:
    with application(free_port(), tmp_path, whenAway=when_away) as app:
        assert [app.get("/orders")[0] for _ in statuses] == statuses
        assert app.process.stdout is not None
        assert app.process.stdout.readline().startswith("Ratebound gave no decision: ")


def test_express_does_not_wait_for_a_service_that_hangs(tmp_path: Path) -> None:
    with decide_server(POLICY) as service, application(service, tmp_path, timeout=50, pause=0) as app:
        service.hangs = True
        assert [app.get("/orders")[0] for _ in range(3)] == [200, 200, 200]
        service.hangs = False


def test_express_asks_again_when_the_service_is_back(tmp_path: Path) -> None:
    port = free_port()
    with application(port, tmp_path, whenAway="closed", pause=0) as app:
        assert app.get("/orders")[0] == 503
        with decide_server(POLICY, port):
            assert [app.get("/orders")[0] for _ in range(3)] == [200, 200, 429]
        assert app.get("/orders")[0] == 503


def test_express_takes_a_refused_token_for_a_service_that_is_away(service: DecideServer, tmp_path: Path) -> None:
    with application(service, tmp_path, token="not-the-token-of-it", whenAway="closed") as app:
        assert app.get("/orders")[0] == 503
        assert app.process.stdout is not None
        assert "401" in app.process.stdout.readline()


def test_the_example_application_starts(tmp_path: Path, service: DecideServer) -> None:
    home = node_modules()
    for file in (CALLERS / "node").iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "node_modules").symlink_to(home / "node_modules")
    environment = {"PORT": "0", "RATEBOUND_URL": f"http://{HOST}:{service.port}", "RATEBOUND_TOKEN": TOKEN}
    command = [str(node_home() / "bin/node"), "app.js"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        port = re.fullmatch(r"listening on port (\d+)\n", said)
        assert port, said
        assert Application(int(port[1]), process).get("/search")[0] == 200
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(
    "target", ["/orders?" + "a" * 20, "http://other.example/orders", "HTTP://other.example/orders?a=b"]
)
def test_express_counts_a_request_by_its_path_however_the_target_is_written(
    service: DecideServer, tmp_path: Path, target: str
) -> None:
    with application(service, tmp_path, headers=["x-api-key"]) as app:
        assert [app.get(target, x_api_key=target)[0] for _ in range(3)] == [200, 200, 429]
    assert service.asked[-1]["path"] == "/orders"


@pytest.mark.parametrize("target", ["/" + "a" * 9000, "/orders#/"])
def test_a_request_that_the_service_refuses_is_no_outage(service: DecideServer, tmp_path: Path, target: str) -> None:
    """One client must not be able to switch off the limits of all."""
    with application(service, tmp_path, headers=["x-api-key"], whenAway="open", pause=600_000) as app:
        assert app.get(target)[0] == 400
        assert [app.get("/orders", x_api_key=f"after {target[:9]}")[0] for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("name", ["node/ratebound.js", "go/ratebound.go", "java/RateboundFilter.java"])
def test_every_caller_asks_decide_with_all_fields_of_a_request(name: str) -> None:
    """Only the caller for Node is run. The others must at least name what the contract names."""
    text = (CALLERS / name).read_text()
    fields = ["method", "path", "query", "host", "scheme", "address", "user", "headers"]
    answers = ["allowed", "status", "headers", "body", "decision", "delay"]
    assert not [word for word in [*fields, *answers, "/v1/decide"] if word not in text]
