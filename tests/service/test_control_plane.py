"""The control plane in real processes: who may ask it what, the link to the dashboard, and calls that workers carry
out."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from click.testing import CliRunner

from ratebound.admin.messages import CallError
from ratebound.admin.operators import Operator
from ratebound.cli.ask import ask
from ratebound.flow import run_async
from ratebound.service.admin import is_loopback, problem
from ratebound.service.admin_server import (
    MOST_CONNECTIONS,
    MOST_PIPELINED,
    MOST_STREAMS,
    AdminServer,
    EventStreams,
    Receive,
    Scope,
    Send,
)
from ratebound.service.run_folder import RunFolder
from ratebound.service.service_calls import ServiceCalls
from ratebound.service.settings import read_settings
from ratebound.service.worker_channel import answer_questions
from tests.policy.policy_server import respond, serving
from tests.servers import wait_until
from tests.service.running_service import CLIENT, COMMAND, RunningService, running_service

WRITE, READ = "a-token-that-may-write", "a-token-that-may-read"
TOKENS = {"RATEBOUND_ADMIN_TOKENS": f"ann={WRITE}", "RATEBOUND_ADMIN_READ_TOKENS": f"grafana={READ}"}
ADDRESSES = (f"127.0.0.{number}" for number in count(2))  # of peers whose wrong tokens are counted


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def with_tokens() -> Iterator[RunningService]:
    """A service for tests that change nothing in it, and that send few wrong tokens."""
    with running_service(environ=TOKENS) as service:
        yield service


def get(service: RunningService, path: str, **headers: str) -> httpx.Response:
    return CLIENT.get(service.url("admin") + path, headers=headers)


# Who may ask


def test_without_tokens_foreign_names_are_refused() -> None:
    with running_service() as service:
        for host in ("localhost", "127.0.0.1:4293", "[::1]:1", "dashboard.localhost"):
            assert get(service, "/metrics", host=host).status_code == 200
        for path in ("/metrics", "/", "/openapi.json"):
            answer = get(service, path, host="rebound.example:4293")
            assert answer.status_code == 421
            assert "RATEBOUND_ADMIN_TOKENS" in answer.json()["detail"]
        assert get(service, "/healthz", host="probe.example").status_code == 200
        assert get(service, "/readyz", host="probe.example").status_code == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("localhost.", True),
        ("127.8.9.1", True),
        ("[::1]", True),
        ("[::1]:443", True),
        ("a.localhost:1", True),
        ("example.org", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("10.0.0.1", False),
        ("[::2]:80", False),
        ("", False),
        ("notlocalhost", False),
        ("127.0.0.1:80:80", False),
    ],
)
def test_a_host_is_on_loopback_or_not(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_with_tokens_both_roles_may_read_under_any_name(with_tokens: RunningService) -> None:
    for path in ("/metrics", "/openapi.json", "/"):
        assert get(with_tokens, path).status_code == 401
        assert get(with_tokens, path, **bearer("another-token-of-nobody")).status_code == 401
        for token in (READ, WRITE):
            assert get(with_tokens, path, host="dashboard.example", **bearer(token)).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/openapi.json", "/"])
def test_wrong_tokens_are_limited_at_every_path(path: str, with_tokens: RunningService) -> None:
    transport = httpx.HTTPTransport(local_address=next(ADDRESSES))
    with httpx.Client(transport=transport, trust_env=False) as peer:

        def status(token: str) -> int:
            return peer.get(with_tokens.url("admin") + path, headers=bearer(token)).status_code

        assert status(READ) == 200
        assert [status(f"{WRITE}-{number}") for number in range(11)] == [401] * 10 + [429]
        assert status(WRITE) == 429
        assert status(READ) == 200  # it is in use here


def test_peers_without_a_token_cannot_fill_the_log() -> None:
    with running_service(environ=TOKENS) as service:
        before = service.log
        host, _, port = service.address("admin").rpartition(":")
        upgrade = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        for sent in (b"nonsense\r\n\r\n", upgrade):
            with socket.create_connection((host, int(port)), 10) as peer:
                peer.sendall(sent)
                assert peer.recv(4)
        first = b"GET /readyz HTTP/1.1\r\nhost: a\r\n\r\n"
        for then in (b"nonsense\r\n\r\n", b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n", first * 20):
            for _ in range(10):  # they go before they are answered
                with socket.create_connection((host, int(port)), 10) as peer:
                    peer.sendall(first + then)
        assert get(service, "/api/rules", **bearer("wrong-token-0123456789")).status_code == 401
        assert service.end() == 0
        assert service.log.startswith(before)
        assert "ERROR" not in service.log
        assert "Traceback" not in service.log
        assert "WARNING" not in service.log


def test_a_browser_gets_the_page_and_a_program_the_paths(with_tokens: RunningService) -> None:
    page = get(with_tokens, "/", accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert get(with_tokens, "/", accept="text/html", host="another.example").status_code == 200
    assert get(with_tokens, "/", accept="*/*", **bearer(READ)).json()["service"] == "ratebound"


def test_a_read_token_cannot_write_and_without_one_nothing_is_shown(with_tokens: RunningService) -> None:
    for path in ("/api/figures", "/api/history", "/api/rules", "/api/live", "/api/changes", "/api/policy"):
        assert get(with_tokens, path).status_code == 401
    for path, body in (("policy/reload", {}), ("blocks", {"client": "192.0.2.1"}), ("resets", {"client": "a"})):
        answer = CLIENT.post(f"{with_tokens.url('admin')}/api/{path}", json=body, headers=bearer(READ))
        assert answer.status_code == 403
    assert get(with_tokens, "/api/figures", **bearer(READ)).status_code == 200


def test_the_secret_keeps_operators_signed_in_when_the_control_plane_dies() -> None:
    with running_service(environ=TOKENS) as service:
        url = service.url("admin")
        with httpx.Client(trust_env=False, headers={"origin": url}) as browser:
            session = browser.post(f"{url}/api/session", json={"token": WRITE}).json()
            assert (session["name"], session["role"]) == ("ann", "write")
            (admin,) = set(service.children()) - set(service.workers())
            os.kill(admin, signal.SIGKILL)
            service.wait_for("admin was ended by SIGKILL; it is started again")
            eventually(lambda: browser.get(f"{url}/api/session").status_code == 200, "the session")


def eventually(condition: Any, what: str) -> None:
    def held() -> bool:
        try:
            return bool(condition())
        except httpx.HTTPError:
            return False

    wait_until(held, 20, what)


# The link


@contextmanager
def on_terminal(home: Path, **environ: str) -> Iterator[str]:
    """Run a service on a terminal, and give what it shows there until it has shown the link."""
    master, slave = os.openpty()
    given = {**os.environ, **environ, "XDG_RUNTIME_DIR": str(home), "RUNTIME_DIRECTORY": ""}
    command = [*COMMAND, "serve", "--http", "0", "--grpc", "off", "--resp", "off", "--admin", "0"]
    with subprocess.Popen(command, env=given, preexec_fn=partial(os.login_tty, slave)) as process:
        os.close(slave)
        shown = b""
        while b"The dashboard: " not in shown or not shown.endswith(b"\n"):
            shown += os.read(master, 4096)
        yield shown.decode()
        os.close(master)
        assert process.wait(20) == 0


def test_the_link_with_the_token_of_the_run_is_shown_on_a_terminal_only(
    tmp_path: Path, with_tokens: RunningService
) -> None:
    with on_terminal(tmp_path) as shown:
        found = re.search(r"The dashboard: (http://127\.0\.0\.1:\d+/)#token=([\w-]{32})\r\n", shown)
        assert found
        assert shown.count("token=") == 1
        assert CLIENT.get(f"{found[1]}metrics").status_code == 200
        assert CLIENT.get(f"{found[1]}api/figures").status_code == 401
        assert CLIENT.get(f"{found[1]}api/figures", headers=bearer(found[2])).status_code == 200
        session = CLIENT.get(f"{found[1]}api/session", headers=bearer(found[2])).json()
        assert (session["name"], session["role"]) == ("admin", "write")
        given = {**bearer(found[2]), "host": "rebound.example"}
        assert CLIENT.get(f"{found[1]}api/figures", headers=given).status_code == 421
    with running_service() as service:
        assert "token=" not in service.log
        assert "set RATEBOUND_ADMIN_TOKENS" in service.log
    assert "dashboard" not in with_tokens.log


def test_the_link_has_no_token_that_was_configured(tmp_path: Path) -> None:
    with on_terminal(tmp_path, **TOKENS) as shown:
        assert re.search(r"The dashboard: http://127\.0\.0\.1:\d+/\r\n", shown)
        assert WRITE not in shown


# Figures


def hit(service: RunningService, key: str = "a") -> None:
    service.ask("/v1/hit", {"key": key, "limits": "1/hour"})


def figures(service: RunningService) -> dict[str, Any]:
    found: dict[str, Any] = get(service, "/api/figures", **bearer(READ)).json()
    return found


def test_the_figures_are_those_of_all_workers() -> None:
    with running_service("--workers", "2", environ=TOKENS) as service:

        def both_have_denied() -> bool:
            hit(service, "somebody")
            view = figures(service)
            return [one["is_local"] for one in view["processes"]] == [True, True] and view["total"]["denied"] > 0

        eventually(both_have_denied, "denials of two workers")
        (top,) = figures(service)["top"]
        assert "somebody" not in json.dumps(figures(service))
        named = get(service, "/api/top?names=yes", **bearer(WRITE)).json()["top"]
        assert [(one["client"], one["name"]) for one in named] == [(top["client"], "somebody")]
        assert get(service, "/api/top?names=yes", **bearer(READ)).status_code == 403
        points = get(service, "/api/history", **bearer(READ)).json()["recent"]["points"]
        assert [point for point in points if point]


def test_figures_name_a_worker_that_hangs() -> None:
    with running_service("--workers", "2", environ=TOKENS) as service:
        stopped = service.workers()[1]
        os.kill(stopped, signal.SIGSTOP)
        eventually(lambda: "Worker 1 does not answer" in figures(service)["problem"], "a word on the worker")
        assert not get(service, "/api/health", **bearer(READ)).json()["healthy"]
        os.kill(stopped, signal.SIGCONT)
        eventually(lambda: figures(service)["problem"] == "", "a worker that answers")


# Streams


def test_a_stream_lasts_longer_than_a_request_and_ends_with_the_service() -> None:
    with running_service("--request-timeout", "0.5", environ=TOKENS) as service:
        url = service.url("admin") + "/api/live"
        with CLIENT.stream("GET", url, headers=bearer(READ)) as stream:
            lines = stream.iter_lines()
            events: list[str] = []
            while events.count("event: figures") < 3:
                events.append(next(lines))
            assert "event: history" in events
            service.send(signal.SIGTERM)
            with suppress(httpx.HTTPError):
                assert len(list(lines)) < 100
        assert service.process.wait(20) == 0
        assert "ERROR" not in service.log
        assert "Traceback" not in service.log


class Endless:
    """An ASGI application whose streams have no end. `size` is that of one part, and `pause` the time to the next."""

    def __init__(self, size: int, pause: float) -> None:
        self._size = size
        self._pause = pause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = scope["path"] == "/live"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while is_stream:
            await send({"type": "http.response.body", "body": b"x" * self._size, "more_body": True})
            await asyncio.sleep(self._pause)
            if scope["state"]["connection"].transport.is_closing():
                return
        await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def admin_server(app: Endless, within: str = "0.2") -> Iterator[tuple[AdminServer, socket.socket]]:
    bound = socket.create_server(("127.0.0.1", 0))
    settings = read_settings({"request_timeout": within}, environ={})
    yield AdminServer(EventStreams(app, lambda path: path == "/live", problem(503, "too many")), settings), bound
    bound.close()


async def opened(bound: socket.socket, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*bound.getsockname(), limit=1024)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    return reader, writer


def test_a_peer_that_does_not_read_its_stream_is_closed() -> None:
    async def main() -> None:
        with admin_server(Endless(1 << 20, 0.001)) as (server, bound):
            serving = asyncio.create_task(server.serve([bound]))
            _, writer = await opened(bound, "/live")  # its buffer is small, and nobody reads
            while not server.server_state.connections:
                await asyncio.sleep(0.01)
            while server.server_state.connections:
                await asyncio.sleep(0.01)
            writer.transport.abort()
            server.should_exit = True
            await serving

    asyncio.run(asyncio.wait_for(main(), 20))


def test_streams_leave_connections_to_others() -> None:
    async def main() -> None:
        with admin_server(Endless(1, 0.1)) as (server, bound), ExitStack() as stack:
            serving = asyncio.create_task(server.serve([bound]))
            for _ in range(MOST_STREAMS):
                reader, writer = await opened(bound, "/live")
                stack.callback(writer.close)
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            for path, status in (("/live", b"503"), ("/healthz", b"200")):
                reader, writer = await opened(bound, path)
                stack.callback(writer.close)
                assert (await reader.readline()).split()[1] == status
            server.should_exit = True
            await serving

    asyncio.run(asyncio.wait_for(main(), 20))


def test_dashboards_that_use_all_connections_of_a_browser_leave_some_to_others() -> None:
    class Busy(Endless):
        def __init__(self) -> None:
            super().__init__(1, 0.1)
            self.waiting = 0
            self.may_answer = asyncio.Event()

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/busy":
                self.waiting += 1
                await self.may_answer.wait()
            await super().__call__(scope, receive, send)

    async def main() -> None:
        app = Busy()
        with admin_server(app, "20") as (server, bound), ExitStack() as stack:
            serving = asyncio.create_task(server.serve([bound]))
            for path in ["/live"] * 40 + ["/busy"] * 200:
                stack.callback((await opened(bound, path))[1].close)
            async with asyncio.timeout(10):
                while app.waiting < 200:
                    await asyncio.sleep(0.01)
            reader, writer = await opened(bound, "/healthz")
            stack.callback(writer.close)
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            app.may_answer.set()
            server.should_exit = True
            await serving

    asyncio.run(asyncio.wait_for(main(), 20))


def test_peers_that_do_not_send_their_bodies_keep_nobody_out() -> None:
    with running_service(environ=TOKENS) as service, ExitStack() as stack:
        host, _, port = service.address("admin").rpartition(":")
        for _ in range(MOST_CONNECTIONS + 20):
            held = stack.enter_context(socket.create_connection((host, int(port)), 20))
            held.sendall(b"GET /api/live HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n")
        assert get(service, "/healthz").status_code == 200
        with CLIENT.stream("GET", service.url("admin") + "/api/live", headers=bearer(READ)) as stream:
            assert stream.status_code == 200


def test_bodies_of_peers_without_a_token_are_not_kept(with_tokens: RunningService) -> None:
    with ExitStack() as stack:
        url = with_tokens.url("admin")
        port = int(url.rpartition(":")[2])
        peers = []
        for path in ("session", "policy/check"):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            head = f"POST /api/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900000"
            head += "\r\nsec-fetch-site: same-origin\r\ncontent-type: application/json"
            peer.sendall(f"{head}\r\n\r\n".encode() + b"x" * 20_000)
            peers.append(peer)
        # Neither of them waits for the rest
        assert [peer.recv(12) for peer in peers] == [b"HTTP/1.1 413", b"HTTP/1.1 401"]


def test_a_peer_that_sends_many_requests_without_reading_answers_is_closed() -> None:
    async def main() -> None:
        with admin_server(Endless(1, 0.1)) as (server, bound):
            serving = asyncio.create_task(server.serve([bound]))
            reader, writer = await opened(bound, "/healthz")
            for _ in range(MOST_PIPELINED - 1):  # together with the one before, as many as may be
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            for _ in range(MOST_PIPELINED):
                assert (await reader.readuntil(b"0\r\n\r\n"))[:12] == b"HTTP/1.1 200"
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 5_000)
            with suppress(ConnectionError):  # what it has not read makes the server's end a reset
                assert (await reader.read(-1)).count(b"HTTP/1.1 200") <= MOST_PIPELINED
            assert not server.server_state.connections
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(asyncio.wait_for(main(), 20))


def test_headers_that_come_during_a_stream_are_bounded_as_others() -> None:
    async def main() -> None:
        with admin_server(Endless(1, 0.01)) as (server, bound):
            serving = asyncio.create_task(server.serve([bound]))
            reader, writer = await opened(bound, "/live")
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            writer.write(b"GET /healthz HTTP/1.1\r\n" + b"a: %s\r\n" % (b"x" * 1000) * 1000)
            with suppress(ConnectionError):  # the stream has no other end
                await reader.read(-1)
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_long_body_may_wait_for_the_answer_before_it() -> None:
    with running_service(environ=TOKENS) as service, ExitStack() as stack:
        host, _, port = service.address("admin").rpartition(":")
        peer = stack.enter_context(socket.create_connection((host, int(port)), 20))
        body = json.dumps({"text": "rules: []", "format": "yaml", "x": "x" * 300_000}).encode()
        head = f"POST /api/policy/check HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {WRITE}\r\n"
        head += f"content-type: application/json\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        peer.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n" + head.encode() + body)
        received = b""
        while part := peer.recv(65536):
            received += part
        assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"422"]


def test_requests_that_wait_for_the_one_before_have_no_more_time_than_others() -> None:
    class Slow(Endless):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/slow":
                await asyncio.sleep(60)
            await super().__call__(scope, receive, send)

    async def main() -> None:
        with admin_server(Slow(1, 0.1)) as (server, bound):
            serving = asyncio.create_task(server.serve([bound]))
            reader, writer = await opened(bound, "/healthz")
            writer.write(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await reader.read(-1)).count(b"HTTP/1.1") == 1
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(asyncio.wait_for(main(), 20))


# Calls


def post(service: RunningService, path: str, body: Any = None) -> httpx.Response:
    return CLIENT.post(f"{service.url('admin')}/api/{path}", json=body or {}, headers=bearer(WRITE))


def test_a_change_is_made_by_a_worker_and_logged_with_the_name_of_the_operator() -> None:
    with running_service("--log-format", "json", environ=TOKENS) as service:
        hostile = "a\nb\u2028<script>"
        answer = post(service, "blocks", {"client": f"user:{hostile}", "for": 60, "reason": "no"})
        assert answer.status_code == 200, answer.text
        lines = [json.loads(line) for line in service.log.splitlines()]
        (line,) = [one for one in lines if one["logger"] == "ratebound.audit"]
        assert (line["by"], line["action"], line["arguments"]["client"]) == ("ann", "block", f"user:{hostile}")
        assert post(service, "blocks", {"client": ""}).status_code == 422
        assert service.log.count("ratebound.audit") == 1
        (found,) = get(service, "/api/blocks", **bearer(READ)).json()["blocks"]
        assert (found["by"], found["reason"]) == ("ann", "no")


def test_a_client_is_blocked_by_its_digest_whichever_worker_has_denied_it() -> None:
    with running_service("--workers", "3", environ=TOKENS) as service:
        described = {"method": "POST", "path": "/login", "address": "203.0.113.7"}

        def is_seen() -> bool:
            service.ask("/v1/decide", described)
            return bool(figures(service)["top"])

        eventually(is_seen, "a denied client")
        digest = figures(service)["top"][0]["client"]
        assert post(service, "blocks", {"digest": digest}).json()["client"] == "203.0.113.7"
        assert post(service, "blocks", {"digest": "0123456789"}).status_code == 404


def test_a_call_that_was_sent_is_not_sent_again() -> None:
    with running_service("--workers", "2", "--request-timeout", "2", environ=TOKENS) as service:
        workers = service.workers()
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        answer = post(service, "blocks", {"client": "192.0.2.1"})
        assert answer.status_code == 503
        assert "may have been carried out" in answer.json()["detail"]
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: get(service, "/api/blocks", **bearer(READ)).json().get("blocks"), "the change after all")
        changes = get(service, "/api/changes", **bearer(READ)).json()["changes"]
        assert [(one["action"], one["target"]) for one in changes] == [("block", "192.0.2.1")]


def test_a_worker_that_hangs_is_asked_last() -> None:
    with running_service("--workers", "2", environ=TOKENS) as service:
        first = service.workers()[0]
        os.kill(first, signal.SIGSTOP)
        eventually(lambda: "Worker 0 does not answer" in figures(service)["problem"], "a word on the worker")
        assert get(service, "/api/rules", **bearer(READ)).status_code == 200
        assert post(service, "blocks", {"client": "192.0.2.1"}).status_code == 200
        os.kill(first, signal.SIGCONT)


def test_the_next_worker_is_asked_if_one_does_not_accept_the_call() -> None:
    with running_service("--workers", "2", environ=TOKENS) as service:
        for path in service.folder.glob("ratebound-*/run-*/worker-0"):
            path.unlink()
        assert post(service, "blocks", {"client": "192.0.2.2"}).status_code == 200


def test_without_a_worker_nothing_is_changed_and_the_answer_says_so() -> None:
    with running_service("--request-timeout", "2", environ=TOKENS) as service:
        for path in service.folder.glob("ratebound-*/run-*/worker-0"):
            path.unlink()
        answer = post(service, "blocks", {"client": "192.0.2.2"})
        assert answer.status_code == 503
        assert "Nothing was changed." in answer.json()["detail"]
        assert get(service, "/api/health", **bearer(READ)).json()["healthy"] is False


def test_changes_of_documents_are_made_one_after_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        under_way: list[str] = []
        most = 0
        may_answer = asyncio.Event()

        async def carry_out(asked: Any) -> Any:
            nonlocal most
            under_way.append(asked["name"])
            most = max(most, under_way.count("block"))
            await may_answer.wait()
            under_way.remove(asked["name"])
            return {"value": asked["arguments"]}

        def call(name: str, seconds: float = 20.0, **arguments: Any) -> Any:
            calls._seconds = seconds
            return run_async(calls.call(name, arguments, Operator("ann", "write")))

        path = str(tmp_path / "worker")
        server = await answer_questions(path, {"call": carry_out})
        calls = ServiceCalls([path], cast(RunFolder, None), 20.0)
        changes = [asyncio.create_task(call("block", client=f"192.0.2.{number}")) for number in range(10)]
        while "block" not in under_way:
            await asyncio.sleep(0.01)
        with pytest.raises(CallError, match="Nothing was changed"):
            await call("block", 0.1, client="192.0.2.99")
        reading = asyncio.create_task(call("usage", client="192.0.2.1"))
        while "usage" not in under_way:  # reads do not wait
            await asyncio.sleep(0.01)
        may_answer.set()
        assert await asyncio.gather(*changes) == [{"client": f"192.0.2.{number}"} for number in range(10)]
        await reading
        assert most == 1
        server.close()

    asyncio.run(asyncio.wait_for(main(), 30))


EVERY_WIRE = """
rules:
  - {name: all, default: true, by: address, limits: 2/hour}
descriptors:
  - {name: edge, domain: edge, entries: [remote_address], limits: 2/hour}
"""


def test_blocks_and_switches_hold_for_every_wire_format() -> None:
    with running_service("--grpc", "0", "--resp", "0", policy=EVERY_WIRE, environ=TOKENS) as service:

        def answers(address: str) -> dict[str, bool]:
            checked = CLIENT.get(service.url("http") + "/v1/check/", headers={"x-forwarded-for": address})
            described = {"path": "/", "address": address}
            resp = ["resp", "--to", service.address("resp"), "decide", "GET", "/", "PEER", address]
            grpc = ["grpc", "--to", service.address("grpc"), "edge", f"remote_address={address}"]
            return {
                "decide": service.ask("/v1/decide", described)["allowed"],
                "check": checked.status_code == 200,
                "resp": CliRunner().invoke(ask, resp).exit_code == 0,
                "grpc": CliRunner().invoke(ask, grpc).exit_code == 0,
            }

        assert post(service, "blocks", {"client": "192.0.2.1"}).status_code == 200
        # Descriptors do not say which entry is a client
        assert answers("192.0.2.1") == {"decide": False, "check": False, "resp": False, "grpc": True}
        for rule in ("all", "edge"):
            switch = {"rule": rule, "state": "off"}
            put = CLIENT.put(f"{service.url('admin')}/api/switches", json=switch, headers=bearer(WRITE))
            assert put.status_code == 200, put.text
        for _ in range(4):
            assert answers("192.0.2.2") == dict.fromkeys(("decide", "check", "resp", "grpc"), True)


# The policy


OLD = "rules: [{name: a, default: true, limits: 1/hour}]"
NEW = "rules: [{name: a, default: true, limits: 7/hour}]"


def limits_of(service: RunningService) -> set[str]:
    path = service.url("http") + "/v1/decide"
    found = (CLIENT.post(path, json={"path": "/", "address": "192.0.2.1"}).json() for _ in range(8))
    return {one["decision"]["limit"]["text"] for one in found}


def test_a_reload_answers_when_all_workers_use_the_new_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(OLD)
    options = ("--policy", str(file), "--workers", "2", "--reload", "off")
    with running_service(*options, environ=TOKENS) as service:
        assert post(service, "policy/check").json() == {"valid": True, "problems": [], "changes": []}
        file.write_text(NEW)
        checked = post(service, "policy/check").json()
        assert "7/hour" in json.dumps(checked["changes"])
        assert limits_of(service) == {"1/hour"}
        reloaded = post(service, "policy/reload").json()
        assert reloaded == checked
        assert limits_of(service) == {"7/hour"}
        assert post(service, "policy/reload").json()["changes"] == []
        text = post(service, "policy/check", {"text": OLD, "format": "yaml"}).json()
        assert "1/hour" in json.dumps(text["changes"])
        assert limits_of(service) == {"7/hour"}
        changes = get(service, "/api/changes", **bearer(READ)).json()["changes"]
        assert [(one["by"], one["action"]) for one in changes] == [("ann", "reload")] * 2


def test_a_policy_that_is_refused_is_told_with_everything_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(OLD)
    with running_service("--policy", str(file), "--workers", "2", "--reload", "off", environ=TOKENS) as service:
        file.write_text("rules:\n- {name: a, limits: 1/houx}\n- {name: b, limit: 1/hour}\n")
        for path in ("policy/check", "policy/reload"):
            found = post(service, path).json()
            assert found["valid"] is False
            assert {one["line"] for one in found["problems"]} == {2, 3}
        assert limits_of(service) == {"1/hour"}
        health = get(service, "/api/health", **bearer(READ)).json()
        assert "1/houx" in health["problems"][0]
        assert "1/houx" in get(service, "/api/policy", **bearer(READ)).json()["error"]
        file.write_text(NEW)
        assert post(service, "policy/reload").json()["valid"] is True
        assert get(service, "/api/health", **bearer(READ)).json()["healthy"] is True


def test_without_a_policy_file_there_is_nothing_to_reload() -> None:
    with running_service("--policy", "", environ=TOKENS) as service:
        for path in ("policy/check", "policy/reload"):
            assert post(service, path).status_code == 409


def test_a_policy_from_a_url_is_checked_and_fetched_at_once(tmp_path: Path) -> None:
    with serving(OLD) as server:
        options = ("--policy", server.url, "--policy-keep", str(tmp_path / "policy.yaml"), "--policy-every", "3600")
        with running_service(*options, "--workers", "2", environ=TOKENS) as service:
            assert get(service, "/api/policy", **bearer(READ)).json()["source"] == server.url
            server.text = NEW
            checked = post(service, "policy/check").json()
            assert "7/hour" in json.dumps(checked["changes"])
            assert limits_of(service) == {"1/hour"}
            assert post(service, "policy/reload").json() == checked
            assert limits_of(service) == {"7/hour"}
            server.answer = lambda handler: respond(handler, 404)
            assert post(service, "policy/check").status_code == 502
            found = post(service, "policy/reload")
            assert found.status_code == 502
            assert "404" in found.json()["detail"]
            assert "404" in get(service, "/api/health", **bearer(READ)).json()["problems"][0]
            assert limits_of(service) == {"7/hour"}
