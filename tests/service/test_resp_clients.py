"""RESP with the clients that people have: redis-cli, redis-py, and two clients for Node."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import trustme
import uvloop
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import HOST, needs, wait_until
from tests.service.node_programs import FOLDER, run_node
from tests.service.resp_server import TOKEN, RespServer, resp_server, wire

RESP = pytest.mark.parametrize("protocol", [2, 3])


@pytest.fixture(scope="module")
def server() -> Iterator[RespServer]:
    with resp_server(tokens=[TOKEN]) as running:
        yield running


def cli(server: RespServer, *words: str, sent: bytes | None = None) -> str:
    needs("redis-cli")
    command = ["redis-cli", "-h", HOST, "-p", str(server.port), *words]
    environment = {"REDISCLI_AUTH": TOKEN, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, input=sent, env=environment, capture_output=True, timeout=30)
    return (done.stdout + done.stderr).decode()


def test_redis_cli_reads_answers_and_errors(server: RespServer) -> None:
    assert cli(server, "PING") == "PONG\n"
    assert cli(server, "CL.THROTTLE", "cli", "15", "30", "60") == "0\n16\n15\n-1\n2\n"
    assert cli(server, "-3", "RB.HIT", "cli", "5/minute as short", "COST", "2").startswith(
        "allowed 1\nlimit 5\nremaining 3"
    )
    assert cli(server, "GET", "x").startswith("ERR unknown command 'GET'. This is Ratebound, which knows CL.THROTTLE")
    typed = b'RB.HIT cli2 "5/minute as short" COST 2\nRB.PEEK cli2 "5/minute as short"\n'
    assert cli(server, sent=typed).count("remaining\n3") == 2


def test_redis_cli_pipes_thousands_of_commands(server: RespServer) -> None:
    sent = wire("CL.THROTTLE", "pipe", 9, 1, 60) * 3000 + b"PING\r\n"
    said = cli(server, "--pipe", sent=sent)
    assert "errors: 0, replies: 3001" in said
    assert cli(server, "CL.THROTTLE", "pipe", "9", "1", "60", "0").split()[:3] == ["0", "10", "0"]


def client(server: RespServer, protocol: int, **options: Any) -> Any:
    return redis.Redis(host=HOST, port=server.port, password=TOKEN, protocol=protocol, **options)


@RESP
def test_redis_py_reads_answers_and_errors(server: RespServer, protocol: int) -> None:
    with client(server, protocol, client_name="tests", decode_responses=True) as caller:
        key = f"redis-py-{protocol}"
        assert caller.ping()
        assert caller.client_getname() == "tests"
        assert caller.execute_command("CL.THROTTLE", key, 15, 30, 60) == [0, 16, 15, -1, 2]
        found = caller.execute_command("RB.HIT", key, "5/minute")
        pairs = found if protocol == 3 else dict(zip(found[::2], found[1::2], strict=True))
        assert pairs["remaining"] == 4
        with pytest.raises(redis.ResponseError, match="cannot read limit"):
            caller.execute_command("RB.HIT", key, "5/fortnight")
        assert caller.execute_command("RB.RESET", key, "5/minute") in (True, "OK")
        assert caller.info()["loading"] == 0
        assert caller.command_count() == 15


@RESP
def test_a_pipeline_of_redis_py_is_charged_exactly(server: RespServer, protocol: int) -> None:
    with client(server, protocol) as caller, caller.pipeline(transaction=False) as pipeline:
        for _ in range(100):
            pipeline.execute_command("CL.THROTTLE", f"pipeline-{protocol}", 59, 1, 3600)
        assert sum(answer[0] for answer in pipeline.execute()) == 40


@RESP
def test_tasks_of_redis_py_are_charged_exactly(server: RespServer, protocol: int) -> None:
    async def ask() -> list[Any]:
        async with redis.asyncio.Redis(host=HOST, port=server.port, password=TOKEN, protocol=protocol) as caller:
            calls = [caller.execute_command("CL.THROTTLE", f"asyncio-{protocol}", 9, 1, 3600) for _ in range(30)]
            return list(await asyncio.gather(*calls))

    assert sum(answer[0] for answer in asyncio.run(ask())) == 20


def test_redis_py_says_that_a_token_is_wrong_or_missing(server: RespServer) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"password": "not-the-token-of-it"}, "invalid username-password pair"),
        ({"protocol": 3}, "HELLO must be called"),
        ({"protocol": 2}, "Authentication required"),
    ]
    for options, error in wrong:
        with (
            redis.Redis(host=HOST, port=server.port, retry=Retry(NoBackoff(), 0), **options) as caller,
            pytest.raises(redis.AuthenticationError, match=error),
        ):
            caller.execute_command("CL.THROTTLE", "k", 1, 1, 1)


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("loop", LOOPS)
def test_redis_py_and_errors_over_tls(loop: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    with resp_server(tls=context, loop_factory=LOOPS[loop]) as server:
        options: dict[str, Any] = {"ssl": True, "ssl_ca_certs": str(tmp_path / "authority.pem")}
        with redis.Redis(host=HOST, port=server.port, **options) as caller:
            assert caller.execute_command("CL.THROTTLE", "k", 1, 1, 60) == [0, 2, 1, -1, 60]
            with caller.pipeline(transaction=False) as pipeline:
                assert pipeline.ping().ping().execute() == [True, True]
        trusting = ssl.create_default_context(cafile=options["ssl_ca_certs"])
        with (
            socket.create_connection((HOST, server.port), 10) as plain,
            trusting.wrap_socket(plain, server_hostname=HOST) as peer,
        ):
            peer.sendall(b"PING\r\n*1\r\n:1\r\n")
            found = b"".join(iter(lambda: peer.recv(1000), b""))
        assert found == b"+PONG\r\n-ERR Protocol error: expected '$', got ':'\r\n"
        wait_until(lambda: server.call(lambda: len(server.connections)) == 0, 5, "all connections are closed")
    assert not caplog.records


def test_ioredis_reads_answers_and_errors(server: RespServer) -> None:
    found = run_node(FOLDER / "ioredis.js", server.port, TOKEN)
    assert found["throttled"] == [0, 3, 2, -1, 60]
    assert [answer[0] for answer in found["pipelined"]] == [0, 0, 1]
    assert found["hit"][:6] == ["allowed", 1, "limit", 5, "remaining", 3]
    assert "unknown unit 'fortnight'" in found["wrong"]
    assert found["name"] == "tests"


def test_node_redis_reads_answers_and_errors(server: RespServer) -> None:
    found = run_node(FOLDER / "node_redis.js", server.port, TOKEN)
    for protocol in ("2", "3"):
        assert [answer[0] for answer in found[protocol]["pipelined"]] == [0, 0, 0, 1]
        assert "RB.HIT takes at least 2 arguments" in found[protocol]["wrong"]
    assert found["2"]["hit"][:6] == ["allowed", 1, "limit", 5, "remaining", 4]
    assert found["3"]["hit"]["remaining"] == 4
