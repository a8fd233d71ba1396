"""Applications under mypy and pyright, both strict: what is right passes, and each mistake is found on its line.

pyright is run as basedpyright, which brings its own Node.js. Each checker runs once, over all files.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.web import django_site

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RIGHT = sorted(HERE.glob("right_*.py"))
WRONG = sorted(HERE.glob("wrong_*.py"))
MARK = "  # error"

Found = set[tuple[str, int]]  # names of files and numbers of lines


def mypy() -> Found:
    config = str(HERE / "mypy.ini")
    told = run([sys.executable, "-m", "mypy", "--config-file", config, "--no-error-summary", "--no-pretty"])
    found = re.findall(r"^(\S+?):(\d+): error: ", told, re.MULTILINE)
    assert len(found) == told.count(": error: "), told
    return {(Path(file).name, int(line)) for file, line in found}


def pyright() -> Found:
    config = str(HERE / "pyrightconfig.json")
    module = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "-p", config, "--outputjson"]
    report = json.loads(run(module))
    assert report["summary"]["filesAnalyzed"] == len(RIGHT) + len(WRONG), report
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in report["generalDiagnostics"]}


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.stdout


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_type_checker_finds_the_mistakes_and_nothing_else(checker: Callable[[], Found]) -> None:
    marked = {
        (file.name, number)
        for file in WRONG
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if line.endswith(MARK)
    }
    found = checker()
    assert sorted(found - marked) == []
    assert sorted(marked - found) == []


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_the_applications_can_be_made(file: Path) -> None:
    assert django_site  # which makes the settings that Django's application looks at
    importlib.import_module(f"tests.typing.{file.stem}")
