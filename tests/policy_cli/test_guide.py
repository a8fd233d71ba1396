"""docs/guides/policy-commands.md: its commands run, and it names every warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratebound.policy.lint.known_mistakes import MISTAKES
from tests.policy_cli.commands import run

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "policy-commands.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_commands_of_the_guide_run(block: str) -> None:
    script = f'set -e\nratebound() {{ "{sys.executable}" -m ratebound "$@"; }}\n{block}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_guide_names_every_warning() -> None:
    assert re.findall(r"^\| `([a-z0-9-]+)` \| (?!.*/)", GUIDE, re.MULTILINE)
    assert set(re.findall(r"^\| `([a-z0-9]+(?:-[a-z0-9]+)+)` \|", GUIDE, re.MULTILINE)) == set(MISTAKES)


def test_what_the_guide_shows_is_what_is_printed() -> None:
    shown = re.findall(r"^```text\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    file = "examples/policies/endpoints.yaml"
    check = run("check", str(ROOT / file), width=100).stdout.replace(str(ROOT / file), file)
    first = "examples/policies/per_address.yaml"
    diff = run("diff", str(ROOT / first), str(ROOT / file)).stdout.replace(f"{ROOT}/", "")
    explain = run(
        "explain", str(ROOT / file), "--method", "POST", "--path", "/auth/login", "--peer", "203.0.113.7"
    ).stdout
    for text, printed in zip(shown, (check, diff, explain), strict=True):
        for line in text.splitlines():
            assert line.rstrip("… ") in printed, line
