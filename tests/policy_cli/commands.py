"""Runs `ratebound policy` in this process, on files of its own."""

from pathlib import Path

from click.testing import CliRunner, Result

from ratebound.cli.policy import policy
from tests.policy.gates import EXAMPLES

LOGIN = str(EXAMPLES / "endpoints.yaml")


def run(*arguments: str, width: int = 100, stdin: str | None = None, **environ: str) -> Result:
    return CliRunner().invoke(policy, arguments, input=stdin, env={"COLUMNS": str(width), **environ})


def written(folder: Path, text: str, name: str = "policy.yaml") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)
