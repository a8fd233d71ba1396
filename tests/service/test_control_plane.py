"""The control plane in real processes: who may ask it what, and the link to the dashboard."""

import os
import re
import subprocess
from functools import partial
from pathlib import Path

import httpx
import pytest

from ratebound.service.admin import is_loopback
from tests.service.running_service import CLIENT, COMMAND, RunningService, running_service

WRITE, READ = "a-token-that-may-write", "a-token-that-may-read"
TOKENS = {"RATEBOUND_ADMIN_TOKENS": f"ann={WRITE}", "RATEBOUND_ADMIN_READ_TOKENS": f"grafana={READ}"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


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


def test_with_tokens_both_roles_may_read_under_any_name() -> None:
    with running_service(environ=TOKENS) as service:
        for path in ("/metrics", "/openapi.json", "/"):
            assert get(service, path).status_code == 401
            assert get(service, path, **bearer("another-token-of-nobody")).status_code == 401
            for token in (READ, WRITE):
                assert get(service, path, host="dashboard.example", **bearer(token)).status_code == 200


# The link


def test_the_link_with_the_token_of_the_run_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    master, slave = os.openpty()
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "RUNTIME_DIRECTORY": ""}
    command = [*COMMAND, "serve", "--http", "0", "--grpc", "off", "--resp", "off", "--admin", "0"]
    with subprocess.Popen(command, env=environ, preexec_fn=partial(os.login_tty, slave)) as process:
        os.close(slave)
        shown = b""
        while b"The dashboard: " not in shown or not shown.endswith(b"\n"):
            shown += os.read(master, 4096)
        os.close(master)
        assert process.wait(20) == 0
    assert re.search(rb"The dashboard: http://127\.0\.0\.1:\d+/#token=[\w-]{32}\r\n", shown)
    assert shown.count(b"token=") == 1
    with running_service() as service:
        assert "token=" not in service.log
        assert "dashboard" not in service.log


def test_the_link_has_no_token_that_was_configured(tmp_path: Path) -> None:
    master, slave = os.openpty()
    environ = {**os.environ, **TOKENS, "XDG_RUNTIME_DIR": str(tmp_path), "RUNTIME_DIRECTORY": ""}
    command = [*COMMAND, "serve", "--http", "0", "--grpc", "off", "--resp", "off", "--admin", "0"]
    with subprocess.Popen(command, env=environ, preexec_fn=partial(os.login_tty, slave)) as process:
        os.close(slave)
        shown = b""
        while b"The dashboard: " not in shown or not shown.endswith(b"\n"):
            shown += os.read(master, 4096)
        os.close(master)
        assert process.wait(20) == 0
    assert re.search(rb"The dashboard: http://127\.0\.0\.1:\d+/\r\n", shown)
    assert WRITE.encode() not in shown
