"""Tests run on the build that `make` means: the compiled one if RATEBOUND_EXPECT_COMPILED is 1, else pure Python."""

import importlib
import os
import subprocess
import sys
import tomllib
import traceback
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import ratebound
from ratebound.switch import switch

ROOT = Path(__file__).parents[2]
EXPECTED = os.environ.get("RATEBOUND_EXPECT_COMPILED") == "1"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MODULES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]


def is_compiled(module: str) -> bool:
    file = importlib.import_module(module).__file__
    assert file is not None
    return file.endswith(tuple(EXTENSION_SUFFIXES))


def test_the_package_says_which_build_runs() -> None:
    assert ratebound.compiled is EXPECTED, f"this is {ratebound.__file__}"


@pytest.mark.parametrize("module", MODULES)
def test_every_listed_module_is_of_the_expected_build(module: str) -> None:
    assert is_compiled(module) is EXPECTED, f"this is {importlib.import_module(module).__file__}"


def test_programs_that_tests_start_run_the_same_build() -> None:
    program = [sys.executable, "-c", "import ratebound; print(ratebound.compiled, ratebound.__file__)"]
    said = subprocess.run(program, capture_output=True, text=True, cwd=ROOT).stdout
    assert said == f"{EXPECTED} {ratebound.__file__}\n"


def test_the_command_says_which_build_runs() -> None:
    said = subprocess.run([sys.executable, "-m", "ratebound", "--version"], capture_output=True, text=True).stdout
    assert said == f"ratebound {ratebound.__version__} ({'compiled' if EXPECTED else 'pure Python'})\n"


def test_a_traceback_names_the_file_and_the_line_in_both_builds() -> None:
    with pytest.raises(ValueError) as caught:
        switch.set_mode("on")
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    source = Path(ratebound.__file__).with_name("switch.py").read_text("utf-8").splitlines()
    assert Path(last.filename).parts[-2:] == ("ratebound", "switch.py")
    assert "raise ValueError" in source[(last.lineno or 0) - 1]


def test_the_sources_are_there_in_both_builds() -> None:
    package = Path(ratebound.__file__).parent
    for module in MODULES:
        path = package.parent / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module
    assert (package / "py.typed").is_file()
    assert [*package.rglob("*.lua")]
