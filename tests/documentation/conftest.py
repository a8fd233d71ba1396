"""The site, built once for all workers, and the browser of the dashboard's tests."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.dashboard.conftest import open_page as open_page
from tests.dashboard.conftest import running_browser
from tests.dashboard.conftest import servers as servers
from tests.documentation.pages import ROOT


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for each file, because other files of this folder run event loops."""
    with running_browser() as running:
        yield running


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site strictly, and return its folder. A warning of mkdocs fails the tests that need the site."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    built, done = shared / "site", shared / "site.done"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first worker builds, the others wait for it
        if not done.exists():
            # not --quiet: it hides warnings from the strict build, too
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
            env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
            done.write_text(run.stdout + run.stderr if run.returncode else "")
    assert done.read_text() == ""
    return built
