"""The first command of the guide, against the example API."""

import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratebound.cli.loadtest import loadtest
from tests.servers import HOST, dying_with_us, free_port

ROOT = Path(__file__).parents[2]


def guide_commands() -> list[list[str]]:
    text = (ROOT / "docs/guides/proving-limits.md").read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^\$ ratebound loadtest (.*)$", text, re.MULTILINE)]


def test_every_command_of_the_guide_has_known_options() -> None:
    commands = guide_commands()
    assert len(commands) == 2
    for arguments in commands:
        loadtest.make_context("loadtest", arguments)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has source addresses on all of 127.0.0.0/8")
def test_the_first_command_of_the_guide_gives_the_answer_that_it_shows() -> None:
    port = free_port()
    command = [sys.executable, "examples/api/serve.py", "--port", str(port)]
    process = subprocess.Popen(dying_with_us(command), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((HOST, port), 1):
                break
            time.sleep(0.05)
        arguments = [word.replace(":8000", f":{port}") for word in guide_commands()[0]]
        arguments[arguments.index("--rate") + 1] = "120/s"  # the same number of requests in less time
        arguments[arguments.index("--for") + 1] = "2.5s"
        done = CliRunner().invoke(loadtest, arguments)
    finally:
        process.kill()
        process.wait()
    shown = (ROOT / "docs/guides/proving-limits.md").read_text()
    for line in (
        "300 requests: 240 granted, 60 refused, 0 without an answer",
        "PASS     The limit was kept: 60/minute sliding-log for each of 4 clients: granted 240, allowed 240",
        "PASS     Refusals have Retry-After: all 60 refusals",
    ):
        assert line in shown
        assert line in done.stdout, done.output
