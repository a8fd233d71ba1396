"""`ratebound serve` as a user runs it: real processes, real signals."""

import json
import os
import random
import resource
import select
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
import trustme
from click.testing import CliRunner

from ratebound.cli.ask import ask
from ratebound.cli.serve import serve
from ratebound.storage.shared_memory.zone_file import default_directory
from tests.servers import Server, redis_server, wait_until
from tests.service.running_service import CLIENT, COMMAND, RunningService, running_service

TOKEN = "a-token-of-callers-0123"
ADMIN_TOKEN = "a-token-of-admins-4567"
SECRET = "the-secret-that-signs-reservations-89"


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder for runs, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="rb-") as made:
        yield Path(made)


def eventually(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, 20, what)


def login(service: RunningService, address: str = "203.0.113.7") -> bool:
    described = {"method": "POST", "path": "/login", "address": address}
    return bool(service.ask("/v1/decide", described)["allowed"])


# Start and stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_status_0_and_nothing_is_left(number: int) -> None:
    with running_service("--workers", "2") as service:
        assert CLIENT.get(service.url("http") + "/healthz").status_code == 200
        zones = [name for name in os.listdir(default_directory()) if name.startswith("ratebound-serve-")]
        own = [path.name.removeprefix("run-") for path in service.folder.glob("ratebound-*/run-*")]
        assert len(own) == 1
        (run,) = service.folder.glob("ratebound-*/run-*")
        assert [path.stat().st_mode & 0o077 for path in (run, run.parent)] == [0, 0]  # for its user only
        assert [name for name in zones if own[0] in name]
        os.killpg(service.process.pid, number) if number == signal.SIGINT else service.send(number)  # as Ctrl-C does
        assert service.process.wait(20) == 0
        assert "Traceback" not in service.log
        assert service.log.rstrip().endswith("stopped")
        assert list(service.folder.glob("ratebound-*/run-*")) == []
        assert [name for name in os.listdir(default_directory()) if own[0] in name] == []


def test_workers_end_if_the_supervisor_is_killed_and_the_next_start_removes_what_they_left(home: Path) -> None:
    with running_service("--workers", "2", folder=home) as service:
        children = service.children()
        assert len(children) == 3
        (run,) = home.glob("ratebound-*/run-*")
        zone = f"serve-{run.name.removeprefix('run-')}"
        service.process.kill()
        service.process.wait()
        eventually(lambda: not any(is_alive(pid) for pid in children), "the end of the workers")
        assert run.exists()
        assert [name for name in os.listdir(default_directory()) if zone in name]
        with running_service(folder=home):
            assert not run.exists()
            assert [name for name in os.listdir(default_directory()) if zone in name] == []


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_run_does_not_remove_the_folder_of_another_one(home: Path) -> None:
    with running_service("--workers", "2", folder=home) as first, running_service(folder=home):
        assert CLIENT.get(first.url("admin") + "/readyz").status_code == 200


def test_addresses_that_are_taken_are_named_all_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(serve, ["--http", port, "--resp", port, "--grpc", "off", "--admin", "off"])
    assert done.exit_code == 2
    first, second = done.stderr.splitlines()
    assert first.startswith(f"cannot listen on 127.0.0.1:{port} for http: Address already in use")
    assert second.startswith(f"cannot listen on 127.0.0.1:{port} for resp: ")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--http", "0.0.0.0:0"], "option --http: 0.0.0.0:0 can be reached from other hosts, and no tokens are set"),
        (["--policy", "/does/not/exist.yaml"], "cannot read the policy"),
        (["--functions", "no_such_module"], "cannot import no_such_module"),
        (["--tls-cert", "/no/cert", "--tls-key", "/no/key"], "cannot use the certificate /no/cert"),
        (["--workers", "0"], "option --workers: expected a whole number from 1 to 512, not '0'"),
    ],
)
def test_mistakes_end_with_status_2_and_the_message_alone(options: list[str], expected: str) -> None:
    done = CliRunner().invoke(serve, options)
    assert (done.exit_code, type(done.exception)) == (2, SystemExit)
    assert expected in done.stderr


def test_a_storage_whose_package_is_missing_is_one_message() -> None:
    code = "import sys; sys.modules['redis'] = None; from ratebound.cli.serve import serve; serve()"
    options = ["--http", "0", "--admin", "off", "--storage", "redis://127.0.0.1:1"]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, timeout=60)
    expected = 'redis-py is not installed. Run: pip install "ratebound[redis]"\n'
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def test_a_worker_that_cannot_start_ends_the_service() -> None:
    zone = f"memory-{os.getpid()}"
    Path(default_directory(), f"ratebound-{zone}").write_bytes(b"not a zone" * 100)
    try:
        with running_service("--storage", f"shm://{zone}", waits=False) as service:
            assert service.process.wait(20) == 1
            assert "cannot be started: the service stops" in service.log
            assert "Traceback" not in service.log
    finally:
        Path(default_directory(), f"ratebound-{zone}").unlink()


def test_settings_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("workers: 2\nlog_format: json\n")
    with running_service("--settings", str(tmp_path / "s.yaml"), environ={"RATEBOUND_LOG_LEVEL": "info"}) as service:
        lines = [json.loads(line) for line in service.log.splitlines()]
    assert "ready, with 2 workers" in [line["message"] for line in lines]
    assert {line["process"] for line in lines} == {"supervisor"}
    assert {line["level"] for line in lines} == {"info"}


# Graceful stop


def test_a_stop_finishes_what_was_accepted_and_a_second_signal_does_not_wait() -> None:
    with redis_server() as server:
        options = ("--storage", f"{server.url}?timeout=20", "--grace", "20")
        with running_service(*options) as service, closing(asked_while_paused(service, server)) as asked:
            service.send(signal.SIGTERM)
            service.wait_for("stopping")
            for worker in set(service.children()):
                os.kill(worker, signal.SIGHUP)  # as a terminal does: nothing is left to reload
            assert select.select([asked.sock], [], [], 0.1)[0] == []
            server.resume()
            answer = asked.getresponse()
            assert json.load(answer)["allowed"] is True
            assert service.process.wait(20) == 0
            assert "Traceback" not in service.log
        with running_service(*options) as service, closing(asked_while_paused(service, server)) as asked:
            service.send(signal.SIGTERM)
            service.wait_for("stopping")
            assert service.end(signal.SIGTERM) == 128 + signal.SIGTERM
            assert "Traceback" not in service.log
            server.resume()
            with pytest.raises(OSError):
                asked.getresponse()


def test_it_stops_if_its_terminal_is_closed(home: Path) -> None:
    master, slave = os.openpty()
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(home), "RUNTIME_DIRECTORY": ""}
    command = [*COMMAND, "serve", "--http", "0", "--grpc", "off", "--resp", "off", "--admin", "off"]
    with subprocess.Popen(command, env=environ, preexec_fn=partial(os.login_tty, slave)) as process:
        os.close(slave)
        shown = b""
        while b"ready, with" not in shown:
            shown += os.read(master, 4096)
        os.close(master)
        assert process.wait(20) == 0
    assert list(home.glob("ratebound-*/run-*")) == []


def test_a_worker_that_hangs_is_killed_after_the_grace() -> None:
    with running_service("--workers", "2", "--grace", "0") as service:
        os.kill(service.workers()[1], signal.SIGSTOP)
        assert service.end() == 0
        assert service.log.count("worker 1 did not stop in time: killed") == 1


def asked_while_paused(service: RunningService, server: Server) -> HTTPConnection:
    """Return a connection with a request that waits for a server, which is paused."""
    server.pause()
    connection = HTTPConnection(service.address("http"), timeout=20)
    body = json.dumps({"key": "a", "limits": "5/hour"})
    connection.request("POST", "/v1/hit", body, {"content-type": "application/json"})
    metric = 'ratebound_service_connections{wire="http"}'
    eventually(lambda: service.metrics().get(metric) == 1, "an open connection")
    return connection


# Reload


@pytest.mark.parametrize("how", ["change", "signal"])
def test_the_policy_is_reloaded_in_all_workers(how: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: [{name: a, default: true, limits: 1/hour}]")
    seconds = "0.1" if how == "change" else "off"
    with running_service("--policy", str(file), "--workers", "2", "--reload", seconds) as service:

        def change(text: str) -> None:
            file.write_text(text)
            if how == "signal":
                service.send(signal.SIGHUP)

        change("rules: [{name: a, default: true, limits: 1/houx}]")
        service.wait_for("the old policy stays in force")
        assert limits_of(service) == {"1/hour"}
        eventually(lambda: "the policy before it is in force" in told_of_policy(service), "a word on the old policy")
        assert service.metrics()["ratebound_service_policy_is_old"] == 1
        change("rules: [{name: a, default: true, limits: 7/hour}]")
        service.wait_for("a new policy is in force", times=3)
        assert limits_of(service) == {"7/hour"}
        assert CLIENT.get(service.url("admin") + "/readyz").json()["ready"] is True
        eventually(lambda: told_of_policy(service) == "loaded", "a word on the new policy")
        assert service.metrics()["ratebound_service_policy_is_old"] == 0


def test_a_worker_that_was_out_of_descriptors_reads_the_policy_when_it_has_some(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: [{name: a, default: true, limits: 1/hour}]")
    with running_service("--policy", str(file), "--reload", "off") as service:
        (worker,) = service.workers()
        before = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (3, before[1]))
        file.write_text("rules: [{name: a, default: true, limits: 7/hour}]")
        service.send(signal.SIGHUP)
        service.wait_for("Too many open files")
        resource.prlimit(worker, resource.RLIMIT_NOFILE, before)
        service.wait_for("a new policy is in force", times=2)  # by the supervisor, then by the worker
        assert limits_of(service) == {"7/hour"}


def told_of_policy(service: RunningService) -> str:
    return str(CLIENT.get(service.url("admin") + "/readyz").json()["policy"])


def test_workers_put_the_policy_in_force_that_the_supervisor_has_checked(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rules: [{name: a, default: true, limits: 1/hour}]")
    with running_service("--policy", str(file), "--workers", "2", "--reload", "off") as service:
        workers = service.workers()
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        file.write_text("rules: [{name: a, default: true, limits: 7/hour}]")
        service.send(signal.SIGHUP)
        service.wait_for("supervisor: a new policy is in force")
        file.write_text("rules: [{name: a, default: true, limits: 7/houx}]")
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        service.wait_for("a new policy is in force", times=3)
        assert limits_of(service) == {"7/hour"}


def limits_of(service: RunningService) -> set[str]:
    """The limits that new connections find, whichever worker takes them."""
    described = {"method": "GET", "path": "/", "address": "203.0.113.9"}
    answers = [service.ask("/v1/decide", described) for _ in range(12)]
    return {answer["decision"]["limit"]["text"] for answer in answers}


# Workers that die


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("storage", ["shm", "redis"])
def test_limits_are_exact_across_workers_also_while_they_are_killed(storage: str, workers: int) -> None:
    limit = 300
    with ExitStack() as stack:
        url = stack.enter_context(redis_server()).url if storage == "redis" else ""
        options = ("--workers", str(workers), "--storage", url, "--deadline", "20")  # a slow machine is no outage
        granted, unanswered = count_grants(stack.enter_context(running_service(*options)), limit)
    assert granted <= limit
    assert granted + unanswered >= limit


def count_grants(service: RunningService, limit: int) -> tuple[int, int]:
    """Hit one key from several threads until it is denied, and kill workers meanwhile.

    Return the number of grants, and of requests without an answer, which may have been charged.
    """
    granted = unanswered = denied = 0
    lock = threading.Lock()
    url = service.url("http") + "/v1/hit"
    call = {"key": "shared", "limits": f"{limit}/day"}
    killed = threading.Event()

    def hit() -> None:
        nonlocal granted, unanswered, denied
        with httpx.Client(timeout=20, verify=False, trust_env=False) as client:
            while denied < 20 or not killed.is_set():
                try:
                    allowed = client.post(url, json=call).json()["allowed"]
                except httpx.HTTPError:
                    with lock:
                        unanswered += 1
                    continue
                with lock:
                    granted += allowed
                    denied += not allowed

    threads = [threading.Thread(target=hit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for times in range(3):
        eventually(lambda times=times: granted + unanswered > 40 * (times + 1), "grants")  # type: ignore[misc]
        eventually(lambda: bool(service.workers()), "a worker")
        os.kill(random.choice(service.workers()), signal.SIGKILL)
        service.wait_for("was ended by SIGKILL; it is started again", times=times + 1)
    killed.set()
    for thread in threads:
        thread.join()
    return granted, unanswered


def test_metrics_are_right_over_workers_and_never_fall() -> None:
    with running_service("--workers", "2") as service:
        name = 'ratebound_service_requests_total{result="200",wire="http"}'
        decided = 'ratebound_decisions_total{degraded="false",limit="login/hour",result="allowed"}'
        denied = 'ratebound_decisions_total{degraded="false",limit="login/hour",result="denied"}'
        assert [login(service) for _ in range(5)] == [True, True, False, False, False]
        found = service.metrics()
        assert (found[name], found[decided], found[denied]) == (5, 2, 3)
        assert found["ratebound_service_worker_restarts_total"] == 0
        for pid in service.workers():
            os.kill(pid, signal.SIGKILL)
        service.wait_for("was ended by SIGKILL", times=2)
        eventually(lambda: CLIENT.get(service.url("admin") + "/readyz").status_code == 200, "readiness")
        assert login(service) is False
        found = service.metrics()
        assert (found[name], found[decided], found[denied]) == (6, 2, 4)
        assert found["ratebound_service_worker_restarts_total"] == 2
        (admin,) = set(service.children()) - set(service.workers())
        os.kill(admin, signal.SIGKILL)
        service.wait_for("admin was ended by SIGKILL; it is started again")
        eventually(lambda: bool(reached(service)), "the control plane")
        found = service.metrics()
        assert (found[name], found[decided], found[denied]) == (6, 2, 4)


def test_a_reservation_is_committed_once_whichever_worker_is_asked() -> None:
    with running_service("--workers", "2") as service:
        call = {"key": "a", "limits": "100/hour", "cost": 10}
        for _ in range(5):
            commit = {"reservation": service.ask("/v1/reserve", call)["reservation"], "cost": 2}
            service.ask("/v1/commit", commit)
            again = [CLIENT.post(service.url("http") + "/v1/commit", json=commit).status_code for _ in range(3)]
            assert again == [409] * 3
        assert service.ask("/v1/peek", {"key": "a", "limits": "100/hour"})["remaining"] == 90


def reached(service: RunningService) -> bool:
    try:
        return CLIENT.get(service.url("admin") + "/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def test_it_is_not_ready_while_redis_is_away() -> None:
    with redis_server() as server, running_service("--storage", server.url, "--workers", "2") as service:
        ready = service.url("admin") + "/readyz"
        assert CLIENT.get(ready).json()["ready"] is True
        server.kill()
        eventually(lambda: CLIENT.get(ready).status_code == 503, "no readiness")
        eventually(lambda: reasons(ready) == ["the storage does not answer"] * 2, "a reason of each worker")
        eventually(lambda: CLIENT.get(service.url("http") + "/readyz").status_code == 503, "no readiness of a worker")
        assert CLIENT.get(service.url("admin") + "/healthz").status_code == 200
        server.spawn()
        server.wait_until_up()
        eventually(lambda: CLIENT.get(ready).status_code == 200, "readiness")


def test_the_control_plane_describes_the_api() -> None:
    with running_service() as service:
        found = CLIENT.get(service.url("admin") + "/openapi.json").json()
        paths = CLIENT.get(service.url("admin") + "/").json()["paths"]
        assert found["openapi"].startswith("3.1")
        assert "/v1/hit" in found["paths"]
        closed = [path for path in paths if CLIENT.get(service.url("admin") + path).status_code != 200]
        assert closed == ["/api/…"]  # it takes a token


def test_peers_that_hold_connections_do_not_keep_others_from_the_control_plane() -> None:
    with running_service("--max-head", "1024", "--request-timeout", "0.5") as service, ExitStack() as opened:
        host, _, port = service.address("admin").rpartition(":")
        idle = [opened.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(120)]
        assert CLIENT.get(service.url("admin") + "/healthz").status_code == 200
        greedy = opened.enter_context(socket.create_connection((host, int(port)), 20))
        greedy.sendall(b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 2000)
        assert b"The headers are longer than 1024 bytes." in greedy.recv(4096)
        for connection in idle:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def reasons(ready: str) -> list[str]:
    return [worker["reason"] for worker in CLIENT.get(ready).json()["workers"]]


# Security


def test_no_secret_is_in_the_log_or_in_the_list_of_processes() -> None:
    environ = {
        "RATEBOUND_TOKENS": TOKEN,
        "RATEBOUND_ADMIN_TOKENS": ADMIN_TOKEN,
        "RATEBOUND_SECRET": SECRET,
        "RATEBOUND_STORAGE": "redis://:pass-word@127.0.0.1:1",
        "RATEBOUND_LOG_LEVEL": "debug",
    }
    with running_service("--workers", "2", environ=environ) as service:
        assert CLIENT.get(service.url("admin") + "/metrics").status_code == 401
        given = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        assert CLIENT.get(service.url("admin") + "/metrics", headers=given).status_code == 200
        assert CLIENT.get(service.url("admin") + "/metrics", headers={"authorization": TOKEN}).status_code == 401
        assert CLIENT.get(service.url("admin") + "/readyz").status_code == 503
        shown = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (service.process.pid, *service.children())]
        texts = [service.log, *shown, CLIENT.get(service.url("admin") + "/readyz").text]
        for secret in (TOKEN, ADMIN_TOKEN, SECRET, "pass-word"):
            assert not [text for text in texts if secret in text]


def test_callers_need_a_token_if_there_are_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"another-token-012345\n{TOKEN}\n")
    with running_service("--token-file", str(tmp_path / "tokens")) as service:
        url, call = service.url("http") + "/v1/hit", {"key": "a", "limits": "5/hour"}
        assert CLIENT.post(url, json=call).status_code == 401
        assert CLIENT.post(url, json=call, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert CLIENT.post(url, json=call, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_unix_sockets_are_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "http"
    with running_service("--http", f"unix:{path}", "--admin", "off") as service:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://service/healthz").text == "ok\n"
        assert path.stat().st_mode & 0o007 == 0
        assert service.end() == 0
        assert not path.exists()


def test_a_run_that_stops_does_not_remove_the_unix_socket_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "http"
    with redis_server() as server:
        storage = f"{server.url}?timeout=20"
        options = ("--http", f"unix:{path}", "--storage", storage, "--grace", "20")
        with running_service(*options) as first, closing(socket.socket(socket.AF_UNIX)) as asked:
            server.pause()
            asked.connect(str(path))
            body = b'{"key": "a", "limits": "5/hour"}'
            head = f"POST /v1/hit HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            asked.sendall(head.encode() + body)
            metric = 'ratebound_service_connections{wire="http"}'
            eventually(lambda: first.metrics().get(metric) == 1, "an open connection")
            first.send(signal.SIGTERM)
            eventually(lambda: not path.exists(), "the end of the first socket")
            with running_service("--http", f"unix:{path}"):
                server.resume()
                assert asked.recv(100).startswith(b"HTTP/1.1 200")
                assert first.process.wait(20) == 0
                assert path.exists()


def test_all_listeners_use_tls_if_there_is_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(str(ca))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--grpc", "0", "--resp", "0")
    with running_service(*options) as service:
        trusting = ssl.create_default_context(cafile=str(ca))
        assert service.url("http").startswith("https://")
        assert httpx.get(service.url("http") + "/healthz", verify=trusting).status_code == 200
        assert httpx.get(service.url("admin") + "/readyz", verify=trusting).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(service.url("http").replace("https", "http") + "/healthz")
        for wire, words in (
            ("http", ["hit", "a", "9/hour"]),
            ("grpc", ["edge", "a=b"]),
            ("resp", ["hit", "a", "9/hour"]),
        ):
            done = CliRunner().invoke(ask, [wire, *words, "--to", service.address(wire), "--ca", str(ca)])
            assert (done.exit_code, done.stderr) == (0, ""), wire
            done = CliRunner().invoke(ask, [wire, *words, "--to", service.address(wire), "--tls"])
            assert "is not valid here: " in done.stderr
            done = CliRunner().invoke(ask, [wire, *words, "--to", service.address(wire)])
            assert (done.exit_code, "If it uses TLS, add --tls" in done.stderr) == (2, True), done.stderr
        for wire, sent in (("http", b"GET /healthz HTTP/1.1\r\n\r\n"), ("resp", b"PING\r\n")):
            host, _, port = service.address(wire).rpartition(":")
            with socket.create_connection((host, int(port)), 10) as raw:
                secure = trusting.wrap_socket(raw, server_hostname=host)
                secure.sendall(sent)
                assert secure.recv(1000)
                secure.unwrap().close()  # it says goodbye, as most clients do
        assert service.end() == 0
        assert "WARNING" not in service.log
