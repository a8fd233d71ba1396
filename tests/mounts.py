"""Programs that have a file system of their own: a small one, or one that is read-only."""

import os
import shutil
import subprocess
import sys

import pytest


def in_own_mounts(directory: str, options: str, code: str) -> str:
    """Run Python code with a file system of its own in `directory`. Nothing of that is left when it ends."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    script = f'mount -t tmpfs -o {options} none "$1" && shift && exec "$@"'
    command = [unshare, "--mount", "--map-root-user", "sh", "-c", script, "sh", directory, sys.executable, "-c", code]
    if os.geteuid() == 0:
        command.remove("--map-root-user")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode and "Traceback" not in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    return done.stdout + done.stderr
