"""Wheel and sdist, installed into new environments: each extra alone works, on every Python that is found.

The short run takes what an extra needs from the packages that are installed here, and needs no package index.
RATEBOUND_LONG=1 lets pip resolve and fetch what each extra names, for every Python.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ratebound.cli.storage import storage as storage_command
from tests.compiled.test_which_build_runs import ROOT
from tests.packaging.test_wheel import IS_LONG, LONG, backend
from tests.packaging.use_of_extras import USES

USE = str(Path(__file__).with_name("use_of_extras.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
STORAGES = {"memcached", "postgres", "redis"}
OLDEST, NEWEST = 11, 15  # minor versions to look for


@cache
def pythons() -> dict[str, str]:
    """Return the Pythons of this machine that Ratebound supports, each version with its program."""
    found = {}
    roots = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"]
    for minor in range(OLDEST, NEWEST):
        name = f"python3.{minor}"
        for program in [shutil.which(name), *(str(path) for root in roots for path in root.glob(f"*/bin/{name}"))]:
            shown = f"import sys; print(sys.version_info[:2] == (3, {minor}))"
            if program and subprocess.run([program, "-c", shown], capture_output=True, text=True).stdout == "True\n":
                found[f"3.{minor}"] = program
    return found


FOUND = [*pythons()] if IS_LONG else []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pure wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    done = backend(ROOT, f"build_wheel({str(folder)!r})", RATEBOUND_COMPILE="no")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    done = backend(ROOT, f"build_sdist({str(folder)!r})")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.tar.gz")
    return path


def new_environment(program: str, folder: Path) -> str:
    """Make an empty virtual environment, and return its Python."""
    subprocess.run([program, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    return str(folder / "bin" / "python")


def outside(**environ: str) -> dict[str, str]:
    """Return the environment of a user: nothing of this checkout is in it."""
    ours = ("PYTHONPATH", "RATEBOUND_COMPILE", "RATEBOUND_EXPECT_COMPILED", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in ours} | environ


def install(python: str, *arguments: str, **environ: str) -> None:
    """Install with pip into the environment of another Python."""
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "install", *arguments], env=outside(**environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment that has the wheel and nothing else."""
    python = new_environment(sys.executable, tmp_path_factory.mktemp("installed") / "env")
    install(python, "--no-index", str(wheel))
    return python


def use(python: str, extra: str, *arguments: str, **environ: str) -> None:
    """Use an extra in an environment, as far from this checkout as can be."""
    name = "storage" if extra in STORAGES else extra
    command = [python, "-P", USE, name, *arguments]
    done = subprocess.run(command, cwd="/", env=outside(**environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def url_for(extra: str, request: pytest.FixtureRequest) -> list[str]:
    """Start the server that a storage needs, and return its URL; nothing for other extras."""
    if extra == "redis":
        return [request.getfixturevalue("redis_url_server").url]
    if extra == "memcached":
        return [request.getfixturevalue("memcached").url]
    if extra == "postgres":
        url: str = request.getfixturevalue("postgres").new_database()
        assert CliRunner().invoke(storage_command, ["init", url]).exit_code == 0
        return [url]
    return []


def needed(requirements: list[str]) -> set[str]:
    """Return the distributions that requirements need, with all that those need, as they are installed here."""
    found: set[str] = set()
    todo = [(Requirement(text), "") for text in requirements]
    seen = set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for chosen in ("", *requirement.extras):
            if (name, chosen) not in seen:
                seen.add((name, chosen))
                found.add(name)
                todo += [(Requirement(text), chosen) for text in distribution(name).requires or []]
    return found


def link(names: set[str], site: Path) -> None:
    """Put distributions that are installed here into a folder: their own packages whole, shared ones file by file."""
    shared = {top for top, owners in packages_distributions().items() if len({*owners}) > 1}
    for name in names:
        for file in distribution(name).files or []:
            if file.parts[0] == ".." or "__pycache__" in file.parts:
                continue
            part = file if file.parts[0] in shared else Path(file.parts[0])
            target = site / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(Path(str(distribution(name).locate_file(part))))


@pytest.mark.parametrize("extra", ["nothing", *(extra for extra in EXTRAS if extra != "all")])
def test_each_extra_works_alone(extra: str, installed: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    link(needed(EXTRAS.get(extra, [])), tmp_path / "extra")
    use(installed, extra, *url_for(extra, request), PYTHONPATH=str(tmp_path / "extra"))


@LONG
@pytest.mark.parametrize(
    ("version", "extra"), [(version, extra) for version in FOUND for extra in ["nothing", *EXTRAS]]
)
def test_pip_installs_each_extra_alone(
    version: str, extra: str, wheel: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python = new_environment(pythons()[version], tmp_path / "env")
    install(python, f"ratebound[{extra}] @ {wheel.as_uri()}" if extra in EXTRAS else str(wheel))
    use(python, extra, *url_for(extra, request))


@LONG
@pytest.mark.parametrize(("version", "choice"), [(version, choice) for version in FOUND for choice in ["no", "yes"]])
def test_pip_installs_the_sdist_on_every_python(version: str, choice: str, sdist: Path, tmp_path: Path) -> None:
    python = new_environment(pythons()[version], tmp_path / "env")
    # pip would take the wheel of the other choice from its cache.
    install(python, "--no-cache-dir", f"ratebound[cli] @ {sdist.as_uri()}", RATEBOUND_COMPILE=choice)
    use(python, "nothing")
    use(python, "cli")
    shown = subprocess.run([tmp_path / "env" / "bin" / "ratebound", "--version"], env=outside(), capture_output=True)
    assert (b"compiled" in shown.stdout) == (choice == "yes")


def test_every_extra_has_a_use_and_is_in_all() -> None:
    assert {*EXTRAS} - STORAGES == {*USES} - {"nothing", "storage"}
    (listed,) = ({extra for text in EXTRAS["all"] for extra in Requirement(text).extras},)
    assert listed == {*EXTRAS} - {"all"}


def test_the_classifiers_name_only_versions_that_the_tests_run_on() -> None:
    names = [text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if text.startswith("Framework :: Django ::")]
    assert names == [".".join(distribution("django").version.split(".")[:2])]
    minors = [text for text in PROJECT["classifiers"] if text.startswith("Programming Language :: Python :: 3.")]
    assert minors == [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]


def described(metadata: bytes) -> str:
    message = message_from_bytes(metadata)
    assert message["Description-Content-Type"] == "text/markdown"
    text = message.get_payload(decode=True)
    assert isinstance(text, bytes)
    return text.decode()


def test_the_description_of_the_package_needs_no_file_beside_it(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        text = described(files.read(name))
    with tarfile.open(sdist) as archive:
        (member,) = [member for member in archive if member.name.count("/") == 1 and member.name.endswith("/PKG-INFO")]
        file = archive.extractfile(member)
        assert file
        assert described(file.read()) == text
    parsed = [each for token in MarkdownIt().enable("table").parse(text) for each in [token, *(token.children or [])]]
    links = [str(token.attrs["href"]) for token in parsed if token.type == "link_open"]
    assert [to for to in links if not to.startswith("https://")] == []
    assert [token.type for token in parsed if token.type in ("image", "html_block", "html_inline")] == []
    assert "(docs/" in text
    assert "## Install" in text
