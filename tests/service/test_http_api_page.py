"""Every example of docs/reference/http-api.md is answered as it is printed."""

import asyncio
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from ratebound.policy import load_policy
from tests.service.http_calls import HOST, an_api, an_engine, listening, run

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "http-api.md"
EXAMPLE = re.compile(r"^```sh\n(curl [^\n]*)\n```\n```json\n(.*?)^```", re.DOTALL | re.MULTILINE)
TOKENS = ("settle", "reservation", "release")
ELIDED = "…"


def is_as_printed(printed: Any, found: Any) -> bool:
    """True if an answer has all that is printed. Three dots stand for any text."""
    if isinstance(printed, dict):
        return isinstance(found, dict) and all(
            name in found and is_as_printed(value, found[name]) for name, value in printed.items()
        )
    if isinstance(printed, list):
        return len(printed) == len(found) and all(map(is_as_printed, printed, found))
    if isinstance(printed, str) and ELIDED in printed:
        return re.fullmatch(".*".join(map(re.escape, printed.split(ELIDED))), found, re.DOTALL) is not None
    return bool(printed == found)


def asked(command: str, port: int, tokens: dict[str, str]) -> Any:
    """What curl prints, at this port, with the tokens of earlier answers."""
    for name, token in tokens.items():
        command = command.replace(f'"{name}": "rb1.{ELIDED}"', f'"{name}": "{token}"')
    words = shlex.split(command.replace("http://127.0.0.1:4290", f"http://{HOST}:{port}"))
    done = subprocess.run(words, capture_output=True, timeout=30, check=True)
    return json.loads(done.stdout)


def test_every_example_is_answered_as_it_is_printed(tmp_path: Path) -> None:
    text = PAGE.read_text()
    file = tmp_path / "policy.yaml"
    (policy,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```sh") == text.count("curl -s")

    file.write_text(policy)

    async def main() -> None:
        routes = an_api(an_engine(policy=load_policy(file))).routes
        tokens: dict[str, str] = {}
        async with listening(lambda request: routes[request.target](request)) as running:
            for command, printed in examples:
                found = await asyncio.to_thread(asked, command, running.port, tokens)
                assert is_as_printed(json.loads(printed), found), (command, found)
                if isinstance(found, dict):
                    tokens.update({name: found[name] for name in TOKENS if name in found})

    run(main)
