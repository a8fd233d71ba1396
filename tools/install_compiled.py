"""Install the compiled wheel into build/compiled, for tests, unless it is there already and the sources are unchanged.

The folder is for PYTHONPATH: it comes before the editable install of .venv, which stays uncompiled.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "build" / "compiled"
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def digest() -> str:
    """Return a digest of everything that the wheel is made from."""
    around = ["pyproject.toml", "requirements/test.txt", "tools/build_hook.py", "tools/compile_modules.py"]
    sources = [*(ROOT / name for name in around), *(ROOT / "src").rglob("*")]
    total = hashlib.sha256(sys.version.encode())
    for path in sorted(sources):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(str(path.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def main() -> None:
    """Build the wheel with RATEBOUND_COMPILE=yes and install it. Exits if it cannot be built."""
    made_from = digest()
    stamp = TARGET / "made_from"
    if stamp.exists() and stamp.read_text() == made_from:
        print("the compiled wheel is up to date")
        return
    print("building the compiled wheel", flush=True)
    shutil.rmtree(TARGET, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="ratebound-build-") as folder:
        build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, str(ROOT)]
        done = subprocess.run(build, env={**os.environ, "RATEBOUND_COMPILE": "yes"})
        if done.returncode:
            raise SystemExit("the compiled wheel cannot be built: see above")
        subprocess.run([*PIP, "install", "--no-deps", "--target", str(TARGET), *Path(folder).glob("*.whl")], check=True)
    stamp.write_text(made_from)  # last: a folder without it is built again
    print("installed the compiled wheel in build/compiled")


if __name__ == "__main__":
    main()
