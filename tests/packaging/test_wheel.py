"""The build of the wheel: RATEBOUND_COMPILE, all compiled modules or none, and nothing left beside the source.

RATEBOUND_LONG=1 also installs into new environments as users do: those builds fetch what they need.
"""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tests.compiled.test_which_build_runs import MODULES, ROOT

IS_LONG = os.environ.get("RATEBOUND_LONG") == "1"
LONG = pytest.mark.skipif(not IS_LONG, reason="set RATEBOUND_LONG=1: takes a minute")
SHOW = "import ratebound; print(ratebound.compiled, ratebound.Limiter('1/hour').hit('a').allowed)"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the wheel is built from, to be broken."""
    copy = tmp_path / "project"
    for folder in ("src", "tools"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def backend(project: Path, call: str, before: str = "", **environ: str) -> "subprocess.CompletedProcess[str]":
    """Call hatchling as pip does without isolation, and print what it returns."""
    code = f"import sys; {before}\nfrom hatchling import build; print(build.{call})"
    kept = {name: value for name, value in os.environ.items() if name != "RATEBOUND_COMPILE"}
    return subprocess.run([sys.executable, "-c", code], cwd=project, env=kept | environ, capture_output=True, text=True)


def names_in(folder: Path) -> list[str]:
    """Return the names of the files in the one wheel of the folder."""
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def is_pure(folder: Path) -> bool:
    """Return True if the one wheel of the folder is for every platform. Fails if it is only half compiled."""
    (wheel,) = folder.glob("*.whl")
    extensions = [name for name in names_in(folder) if name.endswith((".so", ".pyd"))]
    assert len(extensions) in (0, len(MODULES) + 1)
    assert wheel.name.endswith("-py3-none-any.whl") == (not extensions)
    return not extensions


def test_mypy_is_required_only_to_compile() -> None:
    def required(**environ: str) -> str:
        return backend(ROOT, "get_requires_for_build_wheel()", **environ).stdout

    assert required(RATEBOUND_COMPILE="no") == "[]\n"
    assert required(RATEBOUND_COMPILE="auto", CC="/nonexistent") == "[]\n"
    assert "mypy" in required(RATEBOUND_COMPILE="yes", CC="/nonexistent")
    assert "mypy" in required(CC="sh")


@pytest.mark.parametrize("call", ["get_requires_for_build_wheel()", "build_wheel('.')", "build_editable('.')"])
def test_any_other_value_is_an_error_that_names_the_three(call: str, project: Path) -> None:
    done = backend(project, call, RATEBOUND_COMPILE="maybe")
    assert done.returncode != 0
    assert done.stderr.endswith("RATEBOUND_COMPILE is 'maybe': expected 'no', 'auto' or 'yes'\n")


def test_a_pure_wheel_needs_no_mypy_and_has_everything_else(tmp_path: Path) -> None:
    done = backend(ROOT, f"build_wheel({str(tmp_path)!r})", "sys.modules['mypy'] = None", RATEBOUND_COMPILE="no")
    assert (done.returncode, done.stderr) == (0, "")
    assert is_pure(tmp_path)
    assert {"ratebound/py.typed", "ratebound/clock.py", "ratebound/storage/redis/lua/group.lua"} <= {
        *names_in(tmp_path)
    }
    page = {path.name for path in (ROOT / "src" / "ratebound" / "admin" / "page").iterdir()}
    assert {f"ratebound/admin/page/{name}" for name in {*page, "index.html"}} <= {*names_in(tmp_path)}


@pytest.mark.parametrize(
    ("before", "compiler", "reason"),
    [
        ("sys.modules['mypy'] = None", "sh", "mypy not found. Run: pip install mypy"),
        ("", "/nonexistent", "there is no C compiler: /nonexistent was not found"),
    ],
    ids=["no mypy", "no compiler"],
)
def test_what_is_missing_makes_auto_pure_with_one_warning_and_yes_fail(
    before: str, compiler: str, reason: str, tmp_path: Path
) -> None:
    call = f"build_wheel({str(tmp_path)!r})"
    done = backend(ROOT, call, before, CC=compiler)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [f"Ratebound is built as pure Python, which is slower: {reason}"]
    assert is_pure(tmp_path)
    done = backend(ROOT, call, before, CC=compiler, RATEBOUND_COMPILE="yes")
    assert done.returncode != 0
    assert done.stderr.splitlines() == [f"RATEBOUND_COMPILE=yes, but Ratebound cannot be compiled: {reason}"]


def test_a_type_error_makes_yes_fail(project: Path, tmp_path: Path) -> None:
    if not IS_LONG:  # one module without the rest of the package: mypy reads all that is imported
        settings = (project / "pyproject.toml").read_text()
        first, rest = settings.split("\nmodules = [\n")
        (project / "pyproject.toml").write_text(f'{first}\nmodules = ["ratebound.numbers"]{rest.partition("]")[2]}')
        (project / "src" / "ratebound" / "__init__.py").write_text('__version__ = "0"\n')
    with (project / "src" / "ratebound" / "numbers.py").open("a") as file:
        file.write('\nWRONG: int = "text"\n')
    done = backend(project, f"build_wheel({str(tmp_path)!r})", RATEBOUND_COMPILE="yes")
    assert done.returncode != 0
    assert "cannot be compiled: mypyc rejects the modules: ratebound/numbers.py:" in done.stderr
    assert not [*tmp_path.glob("*.whl")]


def test_a_wheel_is_never_half_compiled(project: Path, tmp_path: Path) -> None:
    program = project / "tools" / "compile_modules.py"
    made = f"(Path(target) / 'ratebound').mkdir(); (Path(target) / 'ratebound/clock{EXTENSION_SUFFIXES[0]}').touch()"
    program.write_text(program.read_text().replace("if __name__", f"def main(target): {made}\nif __name__"))
    call = f"build_wheel({str(tmp_path)!r})"
    done = backend(project, call, RATEBOUND_COMPILE="yes")
    assert done.returncode != 0
    assert "the compilation did not make ratebound__mypyc" in done.stderr
    backend(project, call)
    assert is_pure(tmp_path)


def test_an_editable_install_is_never_compiled(project: Path, tmp_path: Path) -> None:
    call = f"build_editable({str(tmp_path)!r})"
    assert backend(project, call).returncode == 0
    assert not [name for name in names_in(tmp_path) if name.endswith((".so", ".pyd"))]
    done = backend(project, call, RATEBOUND_COMPILE="yes")
    assert done.stderr == "RATEBOUND_COMPILE=yes: an editable install is never compiled. Run: make wheel\n"


@pytest.mark.parametrize("call", ["build_wheel('.')", "build_editable('.')"])
def test_compiled_files_beside_the_source_are_refused(call: str, project: Path) -> None:
    (project / "src" / "ratebound" / "clock.so").touch()
    expected = "compiled files in src are imported instead of the source. Remove them: rm src/ratebound/clock.so\n"
    assert backend(project, call, RATEBOUND_COMPILE="no").stderr == expected
    check = [sys.executable, "tools/compile_modules.py", "check"]
    assert subprocess.run(check, cwd=project, capture_output=True, text=True).stderr == expected


@LONG
@pytest.mark.parametrize(
    ("environ", "compiled"),
    [
        ({"RATEBOUND_COMPILE": "no"}, False),
        ({"CC": "/nonexistent"}, False),
        ({}, True),
        ({"RATEBOUND_COMPILE": "yes"}, True),
    ],
    ids=["no", "auto without a compiler", "auto", "yes"],
)
def test_pip_installs_an_sdist_into_a_new_environment(
    environ: dict[str, str], compiled: bool, project: Path, tmp_path: Path
) -> None:
    before = sorted(project.rglob("*"))
    assert backend(project, f"build_sdist({str(tmp_path)!r})").returncode == 0
    (sdist,) = tmp_path.glob("*.tar.gz")
    for source in (sdist, project):
        venv.create(tmp_path / "env", clear=True, with_pip=True)
        python = str(tmp_path / "env" / "bin" / "python")
        outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RATEBOUND_COMPILE")}
        command = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", str(source)]
        subprocess.run(command, env=outside | environ, cwd=tmp_path, check=True)
        said = subprocess.run([python, "-c", SHOW], env=outside, cwd=tmp_path, capture_output=True, text=True).stdout
        assert said == f"{compiled} True\n"
    assert sorted(project.rglob("*")) == before
