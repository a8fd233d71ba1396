"""Compile the modules that pyproject.toml lists, as one group, so that calls between them are native.

`compile_modules.py check` only translates them to C, which needs mypy but no C compiler. `compile_modules.py FOLDER`
compiles them and puts the extensions into FOLDER. Both work on a copy of the source: nothing is left beside it, because
an extension there would be imported instead of the source that somebody edits. The last line of the output says what
was done, or why not.
"""

import contextlib
import io
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
GROUP = "ratebound__mypyc"  # the library that holds the code of all modules; mypyc adds the ending
EXTENSIONS = ("*.so", "*.pyd")

# The C code must not depend on what is installed beside mypy: packages that only some modules of Ratebound use are not
# looked at, and `make check` is the place for strict checks of everything.
MYPY_OPTIONS = ["--config-file=", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent"]


def compiled_modules() -> list[str]:
    """Return the names of the modules that are compiled, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    names: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return names


def source_path(module: str) -> str:
    """Return the path of a module's source, relative to src. Exits if there is none."""
    path = module.replace(".", "/")
    for candidate in (f"{path}.py", f"{path}/__init__.py"):
        if (SOURCE / candidate).is_file():
            return candidate
    raise SystemExit(f"pyproject.toml lists the module {module} to be compiled, but there is no src/{path}.py")


def refuse_stale_extensions() -> None:
    """Exit if there are extensions in src: Python would import them instead of the source."""
    stale = [str(path.relative_to(ROOT)) for pattern in EXTENSIONS for path in sorted(SOURCE.rglob(pattern))]
    if stale:
        raise SystemExit(f"compiled files in src are imported instead of the source. Remove them: rm {' '.join(stale)}")


def translate(paths: list[str], folder: Path) -> list[Any]:
    """Write the modules as C into the folder and return the extensions to build. Exits if mypyc rejects a module."""
    try:
        import setuptools  # noqa: F401  # before mypyc, which otherwise looks for distutils
        from mypyc.build import mypycify
    except ImportError as error:
        raise SystemExit(f"{error.name} is not installed. Run: pip install mypy setuptools") from None
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            options = [*MYPY_OPTIONS, f"--cache-dir={folder / 'cache'}"]
            extensions: list[Any] = mypycify(
                [*options, *paths],
                opt_level="3",
                debug_level="0",
                group_name=GROUP.removesuffix("__mypyc"),
                target_dir=str(folder),
            )
    except SystemExit:
        print(said.getvalue())
        raise SystemExit("mypyc rejects the modules") from None
    return extensions


def mark_methods(folder: Path) -> None:
    """Mark, in the C code, callable objects that may be called as methods without being bound to an object first.

    mypyc has no note for that. Without the mark, every call of `hit` makes a bound method.
    """
    for path in folder.glob("*.c"):
        method = r"(\.tp_descr_get = [^}]*_Py_TPFLAGS_HAVE_VECTORCALL)\b"  # its objects are descriptors, and called
        path.write_text(re.sub(method, r"\1 | Py_TPFLAGS_METHOD_DESCRIPTOR", path.read_text("utf-8")), "utf-8")


def build(extensions: list[Any], scratch: Path, target: Path) -> None:
    """Compile and link the extensions into the target folder. Exits if that fails, whatever setuptools raises."""
    from setuptools import Distribution

    for extension in extensions:
        # A compiler that warns of more than ours is no reason to fail.
        extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
    distribution = Distribution({"name": "ratebound", "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(target), str(scratch)
    try:
        command.ensure_finalized()
        command.run()
    except Exception as error:
        print(error)
        raise SystemExit("the C compiler failed") from None


def main(target: str) -> None:
    """Check that the modules can be translated, or compile them into the target folder."""
    refuse_stale_extensions()
    paths = [source_path(module) for module in compiled_modules()]
    destination = None if target == "check" else Path(target).absolute()
    with tempfile.TemporaryDirectory(prefix="ratebound-build-") as name:
        copy, scratch = Path(name) / "src", Path(name) / "scratch"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        with contextlib.chdir(copy):  # tracebacks show the paths: ratebound/clock.py
            extensions = translate(paths, scratch)
            mark_methods(scratch)
            if destination is not None:
                build(extensions, scratch, destination)
    print(f"{'mypyc accepts' if destination is None else 'compiled'} {len(paths)} modules")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: compile_modules.py check|FOLDER")
    main(sys.argv[1])
