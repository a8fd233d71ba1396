"""deploy/Containerfile, without an engine: its install commands run in an empty folder, then its entry point and check.

The short run builds pure Python, as `--build-arg RATEBOUND_COMPILE=no` does; RATEBOUND_LONG=1 compiles. Both fetch what
the file names; the short run is skipped if there is no package index.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ratebound.service.settings import BY_NAME, PREFIX, SETTINGS
from tests.compiled.test_which_build_runs import ROOT
from tests.packaging.test_installs import outside
from tests.packaging.test_wheel import IS_LONG
from tests.servers import free_port, wait_until

VARIABLES = {setting.variable for setting in SETTINGS}
LISTENERS = ("http", "grpc", "resp", "admin")
TOKENS = {"RATEBOUND_TOKENS": "t" * 32, "RATEBOUND_ADMIN_TOKENS": "a" * 32}


class Instruction(NamedTuple):
    """One instruction of the file, and the number of its stage."""

    stage: int
    name: str
    text: str


def instructions() -> list[Instruction]:
    """Return the instructions of the file, without comments, each on one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy" / "Containerfile").read_text("utf-8"), flags=re.MULTILINE)
    found: list[Instruction] = []
    stage = -1
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            stage += name == "FROM"
            found.append(Instruction(stage, name, rest.strip()))
    return found


def only(name: str, stage: int = 1) -> str:
    """Return the text of an instruction that the stage has once."""
    (found,) = [each.text for each in instructions() if (each.stage, each.name) == (stage, name)]
    return found


def environment() -> dict[str, str]:
    """Return the variables of the image."""
    return dict(word.split("=", 1) for word in shlex.split(only("ENV")))


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """A folder in which the install commands of the build have run, with the files that they copy."""
    with tempfile.TemporaryDirectory(prefix="ratebound-image-") as name:
        root = Path(name)
        (root / "bin").mkdir()
        (root / "bin" / "python").symlink_to(sys.executable)
        arguments = {"RATEBOUND_COMPILE": "yes" if IS_LONG else "no"}
        environ = outside(PATH=f"{root / 'bin'}:/usr/bin:/bin", HOME=name, PIP_RETRIES="1")
        folder = root
        for each in instructions():
            if each.stage == 0 and each.name == "WORKDIR":
                folder = root / each.text.lstrip("/")
                folder.mkdir()
            elif each.stage == 0 and each.name == "COPY":
                copy(folder, *each.text.split())
            elif each.stage == 0 and each.name == "RUN" and not each.text.startswith("apt-get"):
                command = each.text.replace("/opt/ratebound", f"{root}/opt/ratebound")
                done = subprocess.run(
                    command, shell=True, cwd=folder, env=environ | arguments, capture_output=True, text=True
                )
                if not IS_LONG and "No matching distribution found" in done.stderr:
                    pytest.skip(f"no package index has what the service needs: {done.stderr.splitlines()[-1]}")
                assert done.returncode == 0, done.stderr
        yield root


def copy(folder: Path, *words: str) -> None:
    """Copy files and folders of this project, as COPY does."""
    *sources, target = words
    for source in sources:
        assert (ROOT / source).exists(), source
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, folder / target)


def test_the_installed_service_starts_as_the_entry_point_says_and_passes_its_check(image: Path, tmp_path: Path) -> None:
    (copied,) = [each.text for each in instructions() if (each.stage, each.name) == (1, "COPY")]
    assert copied == "--from=build /opt/ratebound /opt/ratebound"
    assert only("EXPOSE").split() == [port_of(name) for name in LISTENERS]
    ports = {port_of(name): str(free_port()) for name in LISTENERS}

    def with_free_ports(text: str) -> str:
        return re.sub("|".join(ports), lambda found: ports[found[0]], text)

    programs = image / "opt" / "ratebound" / "bin"
    given = {name: with_free_ports(value) for name, value in environment().items() if name != "PATH"}
    environ = {**given, **TOKENS, "PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    check = json.loads(with_free_ports(only("HEALTHCHECK").partition(" CMD ")[2]))

    def is_healthy() -> bool:
        return subprocess.run(check, env=environ, capture_output=True).returncode == 0

    assert not is_healthy()
    said = tmp_path / "said"
    with said.open("w") as output:
        entry = json.loads(only("ENTRYPOINT"))
        serving = subprocess.Popen(entry, cwd=tmp_path, env=environ, stdout=output, stderr=output)
    try:
        wait_until(lambda: is_healthy() or serving.poll() is not None, 60, "the service answers")
        assert serving.poll() is None, said.read_text()
        ask = ["ratebound", "ask", "http", "hit", "--to", f"127.0.0.1:{ports['4290']}", "user:42", "1/hour"]
        statuses = [
            subprocess.run(ask, env=environ | {"RATEBOUND_TOKEN": TOKENS["RATEBOUND_TOKENS"]}).returncode for _ in "12"
        ]
        assert statuses == [0, 3]
    finally:
        serving.terminate()
        serving.wait(30)
    assert serving.returncode == 0
    shown = subprocess.run(["ratebound", "--version"], env=environ, capture_output=True, text=True).stdout
    assert ("compiled" in shown) == IS_LONG


def port_of(name: str) -> str:
    """Return the default port of a listener."""
    return BY_NAME[name].default.rpartition(":")[2]


def test_the_image_runs_as_an_ordinary_user_on_all_addresses() -> None:
    assert only("USER").isdecimal()
    assert int(only("USER")) > 0
    environ = environment()
    assert {name for name in environ if name.startswith(PREFIX)} <= VARIABLES
    assert [environ[BY_NAME[name].variable] for name in LISTENERS] == [f":{port_of(name)}" for name in LISTENERS]


def test_the_build_gets_every_file_that_it_copies() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    copied = [
        word for each in instructions() if (each.stage, each.name) == (0, "COPY") for word in each.text.split()[:-1]
    ]
    assert sorted(kept) == sorted(copied)


def test_the_pins_of_smaller_sets_are_those_of_the_tests() -> None:
    def pins(name: str) -> set[str]:
        return {*re.findall(r"^[\w.\[\]-]+==[\w.]+", (ROOT / "requirements" / name).read_text("utf-8"), re.MULTILINE)}

    for name in ("run.txt", "api.txt", "container.txt"):
        assert len(pins(name)) > 15
        assert pins(name) <= pins("test.txt"), name
