"""`make run`: the lines that it prints work as printed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def printed() -> Iterator[str]:
    """What `make run` prints when it has begun. Ctrl-C must end it without a word."""
    command = [sys.executable, str(ROOT / "examples" / "service" / "run.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Ctrl-C"):
                    break
            assert process.stderr is not None
            assert lines, process.stderr.read()
            yield "".join(lines)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=20)
            unexpected = [line for line in error.splitlines() if " admin: block " not in line]  # changes are logged
            assert (process.returncode, unexpected) == (0, [])
        finally:
            process.kill()


def test_the_link_to_the_dashboard_comes_first(printed: str) -> None:
    first = printed.strip().splitlines()[0]
    assert re.fullmatch(r"The dashboard, with made-up traffic: http://127\.0\.0\.1:\d+/#token=[\w-]{32}", first)


def commands(printed: str, title: str) -> list[str]:
    """The commands below a comment, as a user would paste them."""
    section = printed.split(f"  # {title}")[1].split("\n", 1)[1].split("\n\n")[0]
    return [line.strip() for line in section.replace("\\\n", " ").splitlines()]


def run(command: str, status: int = 0) -> str:
    if command.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("curl is not on the PATH")
    here = command.replace(".venv/bin/ratebound", f"{sys.executable} -m ratebound.cli")
    done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (status, ""), command
    return done.stdout


def test_the_ledger_reports_what_the_traffic_has_used(printed: str) -> None:
    (command,) = commands(
        printed, "what clients have used this month; with --output report.html as a page with pictures"
    )
    file = Path(command.rpartition("sqlite:///")[2])
    wait_until(file.exists, 20, "the ledger is written")
    assert "Usage in " in run(command)


def test_the_policy_decides(printed: str) -> None:
    curl, ask = commands(printed, "the policy decides")
    assert json.loads(run(curl))["allowed"] is True
    assert run(ask).startswith("allowed, status 200\n")


def test_limits_of_your_own_are_shared_by_all_wire_formats(printed: str) -> None:
    curl, http, resp = commands(printed, "limits of your own")
    curl, http, resp = (command.replace("user:42", "user:44") for command in (curl, http, resp))
    assert json.loads(run(curl))["remaining"] == 1
    assert "remaining: 0" in run(http)
    assert run(resp, status=3).startswith("denied\n")


def test_the_others_are_answered(printed: str) -> None:
    (throttle,) = commands(printed, "as redis-cell")
    assert "limit: 16" in run(throttle)
    (envoy,) = commands(printed, "as Envoy asks")
    assert run(envoy).startswith("allowed\n  OK, 99 of 100 remain")
    (check,) = commands(printed, "as a proxy asks")
    assert run(check.replace("curl", "curl -s")).startswith("HTTP/1.1 200 OK")


def test_the_control_plane_answers(printed: str) -> None:
    ready, metrics = commands(printed, "is it ready?")
    assert json.loads(run(ready))["ready"] is True
    run(commands(printed, "limits of your own")[0])  # without a decision there is nothing to count
    assert "ratebound_decisions_total{" in run(metrics)


def test_operators_look_and_act(printed: str) -> None:
    figures, top = commands(printed, "what the dashboard shows")
    assert json.loads(run(figures))["problem"] == ""
    assert run(top).startswith("ratebound top, ")
    block, changes = commands(printed, "what operators do")
    assert json.loads(run(block))["client"] == "192.0.2.66"
    assert json.loads(run(changes))["changes"][0]["action"] == "block"


def test_every_printed_command_was_tried_here(printed: str) -> None:
    assert len(re.findall(r"(?m)^  (?:curl|\.venv|RATEBOUND)", printed)) == 15


@pytest.mark.parametrize(
    ("example", "port", "told"),
    [
        ("service/run.py", "65533", "PORT=65533: expected a port up to 65532, and the three after it are taken, too"),
        ("service/run.py", "abc", "PORT=abc: expected a port up to 65532, and the three after it are taken, too"),
        ("service/run.py", "", "PORT=: expected a port up to 65532, and the three after it are taken, too"),
        ("api/serve.py", "65536", "PORT=65536: expected a port up to 65535"),
        ("api/serve.py", "-1", "PORT=-1: expected a port up to 65535"),
    ],
)
def test_a_port_that_is_none_is_named_as_it_was_given(example: str, port: str, told: str) -> None:
    command, environ = [sys.executable, str(ROOT / "examples" / example)], {**os.environ, "PORT": port}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (1, told)
