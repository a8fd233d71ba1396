"""The part of the wheel's build that compiles, called by hatchling. RATEBOUND_COMPILE chooses: no, auto or yes.

A wheel has all compiled modules or none. The sources are in it either way, for tracebacks and type checkers. An
editable install is never compiled.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))  # hatchling loads this file alone
from compile_modules import GROUP, compiled_modules, refuse_stale_extensions, source_path

REQUIREMENTS = ["mypy>=2.4", "setuptools>=77"]
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


def choice() -> str:
    """Return RATEBOUND_COMPILE, 'auto' by default. Exits if it is none of the three."""
    chosen = os.environ.get("RATEBOUND_COMPILE") or "auto"
    if chosen not in ("no", "auto", "yes"):
        raise SystemExit(f"RATEBOUND_COMPILE is {chosen!r}: expected 'no', 'auto' or 'yes'")
    return chosen


def obstacle() -> str | None:
    """Return why this machine cannot compile whatever is installed for the build, or None."""
    if platform.python_implementation() != "CPython":
        return f"mypyc compiles for CPython only, and this is {platform.python_implementation()}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "compiled code relies on the GIL, and this Python has none"
    if os.name == "nt":
        return None  # setuptools finds the compiler, which is not on the PATH
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    return None if shutil.which(compiler) else f"there is no C compiler: {compiler} was not found"


def missing() -> str | None:
    """Return which packages have to be installed to compile, or None."""
    lacking = [name for name in ("mypy", "setuptools") if find_spec(name) is None]
    return f"{' and '.join(lacking)} not found. Run: pip install {' '.join(lacking)}" if lacking else None


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    def dependencies(self) -> list[str]:
        """Return what has to be installed to compile: nothing if nothing will be compiled."""
        chosen = choice()
        return REQUIREMENTS if chosen == "yes" or (chosen == "auto" and obstacle() is None) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, if chosen and possible, and add the extensions to the wheel. Exits if 'yes' cannot be fulfilled."""
        chosen = choice()
        refuse_stale_extensions()
        if version == "editable":
            if chosen == "yes":
                raise SystemExit("RATEBOUND_COMPILE=yes: an editable install is never compiled. Run: make wheel")
            return
        if chosen == "no":
            return
        self.folder = tempfile.TemporaryDirectory(prefix="ratebound-build-")
        reason = obstacle() or missing() or self.compile(build_data)
        if reason and chosen == "yes":
            raise SystemExit(f"RATEBOUND_COMPILE=yes, but Ratebound cannot be compiled: {reason}")
        if reason:
            self.app.display_warning(f"Ratebound is built as pure Python, which is slower: {reason}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: it is in the wheel."""
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def compile(self, build_data: dict[str, Any]) -> str | None:
        """Compile and add every extension to the wheel, or add none and return why."""
        folder = Path(self.folder.name)
        program = [sys.executable, str(Path(__file__).with_name("compile_modules.py")), str(folder)]
        done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            self.app.display_info(done.stdout)
            lines = done.stdout.strip().splitlines() or ["the compilation ended without a message"]
            return next((f"{lines[-1]}: {line.strip()}" for line in lines[:-1] if " error: " in line), lines[-1])
        names = [GROUP + SUFFIX, *(source_path(module).removesuffix(".py") + SUFFIX for module in compiled_modules())]
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            return f"the compilation did not make {', '.join(absent)}"
        build_data["force_include"] |= {str(folder / name): name for name in names}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        return None
