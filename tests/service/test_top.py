"""The command `ratebound top`: as text, as JSON, live in a terminal, from the control plane and from a storage."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from ratebound.cli.figures_page import figures_page
from ratebound.cli.top import top
from ratebound.observe.figures_view import FiguresView
from tests.servers import HOST, Server, free_port
from tests.service.running_service import running_service
from tests.zones import fresh_zone_url

TOP = [sys.executable, "-m", "ratebound.cli", "top"]
ESCAPE = "\x1b"


def a_view(**changes: Any) -> dict[str, Any]:
    """The figures of a busy afternoon."""
    return {
        **FiguresView().view(),
        "at": 1_763_300_000.0,
        "processes": [{"name": f"host:{number}", "age": 0.4, "is_local": True} for number in range(5)],
        "total": {"allowed": 120.0, "denied": 30.0, "degraded": 0.5, "shed": 2.0},
        "latency": {"p50": 0.00002, "p99": 0.0009},
        "rules": [
            {"rule": "login", "allowed": 1.0, "denied": 30.0, "used": 0.42, "shadow": None, "candidate": None},
            {
                "rule": "search",
                "allowed": 119.0,
                "denied": 0.0,
                "used": None,
                "shadow": None,
                "candidate": {"allowed": 100.0, "denied": 19.0},
            },
        ],
        "storage": {
            "nodes": [
                {"node": "10.0.0.1:6379", "is_open": False, "calls": 150.0, "errors": 0.0, "p99": 0.002},
                {"node": "10.0.0.2:6379", "is_open": True, "calls": 0.5, "errors": 0.5, "p99": None},
            ],
            "keys": 12,
            "max_keys": 100_000,
        },
        "factors": {"low": 0.5, "high": 1.0},
        "slots": [{"limit": "export", "held": 3}],
        "top": [{"client": "9f12", "denials": 1234, "error": 0}, {"client": "9f13", "denials": 5, "error": 2}],
        "penalized": [{"client": "9f12", "limit": "guessing", "seconds": 240.0}],
        **changes,
    }


def page(view: dict[str, Any], width: int = 100) -> str:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(figures_page(view, width))
    return captured.get()


class ControlPlane(BaseHTTPRequestHandler):
    """Answers as the control plane does: figures for a token."""

    token = "read-me"
    answers: tuple[tuple[int, bytes], ...] = ()

    def do_GET(self) -> None:
        status, body = 200, json.dumps(a_view()).encode()
        if self.headers["authorization"] != f"Bearer {self.token}":
            status, body = 401, b"{}"
        elif self.path != "/limits/api/figures":
            status, body = 404, b"not here"
        elif self.answers:
            status, body = self.answers[0]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@contextmanager
def control_plane(*answers: tuple[int, bytes]) -> Iterator[str]:
    kind = type("Answering", (ControlPlane,), {"answers": answers})
    server = ThreadingHTTPServer((HOST, 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/limits/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def called(*arguments: str, token: str | None = "read-me") -> Result:
    """Call the command in this process."""
    before = signal.getsignal(signal.SIGTERM)  # the command has a way of its own to end
    try:
        return CliRunner().invoke(top, arguments, env={"RATEBOUND_ADMIN_TOKEN": token})
    finally:
        signal.signal(signal.SIGTERM, before)


def test_figures_are_printed_as_plain_text_over_a_pipe() -> None:
    environ = {**os.environ, "RATEBOUND_ADMIN_TOKEN": "read-me"}
    with control_plane() as url:
        command = [*TOP, "--admin", url, "--once"]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ESCAPE not in done.stdout
    assert "allowed 120/s   denied 30/s (20.0%)" in done.stdout
    assert "login" in done.stdout


def test_a_running_service_is_shown_to_operators_of_both_roles() -> None:
    tokens = {"RATEBOUND_ADMIN_TOKENS": "change-me-now-please", "RATEBOUND_ADMIN_READ_TOKENS": "read-me-only-please"}
    with running_service(environ=tokens) as service:
        url = service.url("admin")
        for token in ("change-me-now-please", "read-me-only-please"):
            done = called("--admin", url, "--once", "--json", token=token)
            assert done.exit_code == 0, done.stderr
            assert len(json.loads(done.stdout)["processes"]) <= 1
        assert "does not accept the token" in called("--admin", url, "--once", token="another").stderr
        assert "wants a token" in called("--admin", url, "--once", token=None).stderr


def test_figures_are_printed_as_json() -> None:
    with control_plane() as url:
        done = called("--admin", url, "--once", "--json")
    assert json.loads(done.stdout) == a_view() | {"at": 1_763_300_000.0}


def test_a_page_has_everything_that_an_operator_needs() -> None:
    shown = page(a_view(problem="The storage does not answer: gone"))
    for text in (
        "2025-11-16 13:33:20 UTC, 5 processes: host:0, host:1, host:2, …",
        "The storage does not answer: gone",
        "allowed 120/s   denied 30/s (20.0%)   without the storage 0.5/s   shed 2/s   p50 20 µs, p99 900 µs",
        "out of reach",
        "states: 12 of 100,000",
        "slots held: export 3",
        "limits lowered because of overload: low 50%",
    ):
        assert text in shown
    assert re.search(r"login +1 +30 +█{15}░ +97% +42%", shown)
    assert re.search(r"search +119 +0 +░{16} +19", shown)
    assert re.search(r"10.0.0.1:6379 +answers +150 +0 +2 ms", shown)
    assert re.search(r"9f12 +1,234", shown)
    assert re.search(r"9f13 +≤ 5", shown)
    assert re.search(r"9f12 +guessing +4 min", shown)


def test_a_page_without_figures_says_so() -> None:
    shown = page(FiguresView().view())
    assert "no rule has decided yet" in shown
    assert "0 processes" in shown


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = page(a_view(), width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert ("█" in "".join(lines)) == (width >= 70)


@pytest.mark.parametrize("name", ["[red]x[/red]", "a\x1b[31mb", "a\nb\rc", "\u202eabc", "[link=x]y[/link]"])
def test_hostile_names_are_shown_as_text(name: str) -> None:
    rule = {"rule": name, "allowed": 1.0, "denied": 1.0, "used": None, "shadow": None, "candidate": None}
    node = {"node": name, "is_open": False, "calls": 1.0, "errors": 0.0, "p99": None}
    shown = page(
        a_view(
            processes=[{"name": name, "age": 0, "is_local": False}],
            problem=name,
            rules=[rule],
            storage={"nodes": [node], "keys": None, "max_keys": None},
            slots=[{"limit": name, "held": 1}],
            factors={name: 0.5},
            top=[{"client": name, "denials": 1, "error": 0}],
            penalized=[{"client": name, "limit": name, "seconds": 1.0}],
        ),
        200,
    )
    assert shown.count(name if name.isprintable() else ascii(name)[1:-1]) == 9
    assert all(character == "\n" or character.isprintable() for character in shown)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (None, "wants a token: set RATEBOUND_ADMIN_TOKEN to one of its admin_tokens or admin_read_tokens"),
        ("wrong", "does not accept the token in RATEBOUND_ADMIN_TOKEN: use one of its admin_tokens"),
        ("a\nb: c", "RATEBOUND_ADMIN_TOKEN has characters that no token has"),
    ],
)
def test_a_token_that_is_missing_or_wrong_is_named_and_never_shown(token: str | None, expected: str) -> None:
    with control_plane() as url:
        done = called("--admin", url, "--once", token=token)
    assert (done.exit_code, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert token is None or f"{token!r}" not in done.stderr


@pytest.mark.parametrize("answer", [(200, b"<html>"), (200, b"[]"), (200, b"{}"), (404, b"{}"), (500, b""), (302, b"")])
def test_an_answer_without_figures_is_explained(answer: tuple[int, bytes]) -> None:
    with control_plane(answer) as url:
        done = called("--admin", url, "--once")
    assert done.exit_code == 2
    assert f"has no figures: it answers {answer[0]}. Give the address of the control plane" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--admin", f"http://{HOST}:1"], "Start one with `ratebound serve`, give its address with --admin"),
        (["--admin", "localhost:4293"], "expected a URL like http://127.0.0.1:4293 or https://example.com/limits"),
        (["--admin", "http://user:secret@localhost"], "without a user, a query or a fragment"),
        (["--admin", "http://localhost/?token=secret"], "The token is read from the environment variable"),
        (["--admin", "http://localhost:99999"], "option --admin: Port out of range"),
        (["--admin", "http://localhost", "--ca", "x.pem"], "option --ca is for an https URL"),
        (["--admin", "https://localhost", "--ca", "nowhere.pem"], "option --ca: nowhere.pem: No such file"),
        (["--admin", "http://localhost", "--storage", "shm://a"], "expected either --admin or --storage, not both"),
        (["--storage", "memory://"], "memory:// is inside the application's process"),
        (["--storage", "nonsense://"], "nonsense"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], expected: str) -> None:
    done = called(*arguments, "--once")
    assert (done.exit_code, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_storage_that_does_not_answer_is_no_mistake_of_the_user() -> None:
    done = called("--storage", f"redis://{HOST}:{free_port()}", "--once")
    assert done.exit_code == 1
    assert "the storage could not be reached" in done.stderr


@contextmanager
def deciding(kind: str, redis_url_server: Server, many: int = 2) -> Iterator[str]:
    """The URL of a storage, in which processes publish their figures."""
    with ExitStack() as stack:
        if kind == "redis":
            url = f"{redis_url_server.url}?timeout=10&connect_timeout=10&prefix=top{os.getpid()}-{time.time_ns()}-"
        else:
            url = stack.enter_context(fresh_zone_url())
        command = [sys.executable, "-m", "tests.observe.deciding_process", url]
        for _ in range(many):
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        yield url


@pytest.mark.parametrize("kind", ["redis", "shared memory"])
def test_figures_that_processes_publish_are_read_from_their_storage(kind: str, redis_url_server: Server) -> None:
    with deciding(kind, redis_url_server) as url:
        done = called("--storage", url, "--once", "--json")
        assert done.exit_code == 0, done.stderr
        view = json.loads(done.stdout)
        assert len(view["processes"]) == 2
        assert view["total"]["allowed"] > 0
        assert [rule["rule"] for rule in view["rules"]] == ["login", "search"]
        assert len(view["top"]) == 1  # one client, with one digest in both processes
    done = called("--storage", url, "--once")  # they were killed
    status, expected = (2, "no process publishes figures in this storage")
    if kind != "redis":  # the zone has gone with them: as with every other command, a storage out of reach
        status, expected = (1, "start the application first")
    assert done.exit_code == status
    assert expected in done.stderr


@contextmanager
def terminal(*arguments: str, rows: int = 40, columns: int = 100) -> Iterator[tuple[int, int]]:
    """Run the command in a pseudo-terminal. Yields its process and the other end of the terminal."""
    process, end = pty.fork()
    if not process:
        os.environ |= {"TERM": "xterm-256color", "RATEBOUND_ADMIN_TOKEN": "read-me"}
        os.execv(sys.executable, [*TOP, *arguments])
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    try:
        yield process, end
    finally:
        try:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(end)


def read_until(end: int, wanted: str, timeout: float = 60.0) -> str:
    """Return what the command has written when it has written `wanted`, or at its end."""
    text, until = "", time.monotonic() + timeout
    while wanted not in text:
        assert time.monotonic() < until, f"not shown: {wanted!r} in {text!r}"
        if select.select([end], [], [], 0.1)[0]:
            try:
                text += os.read(end, 65536).decode(errors="replace")
            except OSError:  # the command has ended
                break
    return text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_live_in_a_terminal_and_leaves_it_in_order(number: signal.Signals) -> None:
    with control_plane() as url, terminal("--admin", url, "--interval", "0.2") as (process, end):
        shown = read_until(end, "states: 12")
        assert f"{ESCAPE}[?1049h" in shown  # another screen
        assert f"{ESCAPE}[" in shown
        assert "login" in read_until(end, "login")  # it is drawn again
        os.kill(process, number)
        rest = read_until(end, "\0")
        assert f"{ESCAPE}[?1049l" in rest  # back to the first screen, with its cursor
        assert f"{ESCAPE}[?25h" in rest
        assert "Traceback" not in rest
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_service_that_goes_away_is_a_problem_and_the_page_stays() -> None:
    with ExitStack() as planes:
        url = planes.enter_context(control_plane())
        with terminal("--admin", url, "--interval", "0.2") as (process, end):
            read_until(end, "login")
            planes.close()
            read_until(end, "These figures are old: no service answers")
            os.kill(process, signal.SIGINT)
            assert "Traceback" not in read_until(end, "\0")
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_page_in_a_small_terminal_is_cut_and_not_broken() -> None:
    with control_plane() as url, terminal("--admin", url, "--interval", "0.2", rows=8, columns=30) as (process, end):
        read_until(end, "allowed")
        os.kill(process, signal.SIGINT)
        assert "Traceback" not in read_until(end, "\0")
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
