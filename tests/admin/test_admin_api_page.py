"""Every example of docs/reference/admin-api.md is answered as it is printed, and its table is the table of calls."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from ratebound.admin.asgi import AdminAsgi
from ratebound.admin.calls import CALLS
from ratebound.ledger import Ledger
from ratebound.policy import AsyncGate, PolicyFile
from tests.admin.live_sites import under_uvicorn
from tests.admin.sites import WRITE_TOKEN, EmptyFigures, a_site
from tests.ledger_report.filled import filled_ledger
from tests.service.test_http_api_page import EXAMPLE, is_as_printed

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "admin-api.md"
ADDRESS = "http://127.0.0.1:4293"
NOT_SHOWN = {"sign_in", "sign_out", "live", "openapi"}  # for browsers, without an end, or long


def test_the_table_has_every_call() -> None:
    rows = re.findall(r"^\| `(\w+ [\w/.]+)` \| (\w*) \| (.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    expected = []
    for call in CALLS:
        fields = ", ".join(f"`{field.name}`{'' if field.is_required else '?'}" for field in call.fields)
        expected.append((f"{call.method} {call.path}", call.role or "", fields, call.summary))
    assert rows == expected


def asked(command: str, origin: str) -> Any:
    words = shlex.split(command.replace(ADDRESS, origin).replace("$TOKEN", WRITE_TOKEN))
    done = subprocess.run(words, capture_output=True, timeout=30, check=True, env={"PATH": os.environ["PATH"]})
    return json.loads(done.stdout)


def made(command: str) -> str:
    """The name of the call that a command makes."""
    words = shlex.split(command)
    method = words[words.index("-X") + 1] if "-X" in words else "POST" if "-d" in words else "GET"
    path = words[-1].removeprefix(f"{ADDRESS}/").partition("?")[0]
    return next(call.name for call in CALLS if (call.method, call.path) == (method, path))


def test_every_example_is_answered_as_it_is_printed(tmp_path: Path) -> None:
    text = PAGE.read_text()
    (policy,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    file = tmp_path / "policy.yaml"
    file.write_text(policy)
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("curl -s")
    assert {made(command) for command, _ in examples} == {call.name for call in CALLS} - NOT_SHOWN
    ledger = Ledger(filled_ledger(tmp_path), clients="name", writes=False)
    site = a_site(AsyncGate(PolicyFile(file, every=0)), EmptyFigures(), ledger=ledger)
    with under_uvicorn(AdminAsgi(site)) as live:
        for command, printed in examples:
            found = asked(command, live.origin)
            assert is_as_printed(json.loads(printed), found), (command, found)
