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


def give_slots_objects(copy: Path) -> dict[str, list[tuple[str, str]]]:
    """Give fields with the note `# slot NAME` the type Any, in the copy of the source.

    The compiler then stores an object, which `adapt` shows to the interpreter as a slot with that name. A slot that
    programs may set can also be deleted, so the compiler is told to expect that. Return (field, name) of all slots, by
    class as C names it.
    """
    noted = re.compile(r"^(    (\w+)): .*  # slot (\w+)\b.*$", re.MULTILINE)
    slots: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(copy.rglob("*.py")):
        text = path.read_text("utf-8")
        if found := list(noted.finditer(text)):
            for match in found:
                slots.setdefault(f"{path.stem}___{_class_at(text, match.start())}", []).append((match[2], match[3]))
            text = noted.sub(
                lambda one: f"{one[1]}: _Any" + f"; __deletable__ = ['{one[2]}']" * (one[2] == one[3]), text
            )
            imported = r"from typing import Any as _Any; \1"  # on the line of another import: lines keep their numbers
            path.write_text(re.sub(r"^(from|import)\b", imported, text, count=1, flags=re.MULTILINE), "utf-8")
    return slots


def idle_finalizers(copy: Path) -> dict[str, str]:
    """Return the classes whose `__del__` does something only `if not self.FIELD`, as C names them, with the field."""
    begin = re.compile(
        r"^    def __del__\(self\) -> None:\n        if not self\.(\w+):\n(?:            .*\n)+\n", re.MULTILINE
    )
    found: dict[str, str] = {}
    for module in compiled_modules():
        path = copy / source_path(module)
        text = path.read_text("utf-8")
        for match in begin.finditer(text):
            found[f"{path.stem}___{_class_at(text, match.start())}"] = match[1]
    return found


def _class_at(text: str, place: int) -> str:
    """Return the name of the class in whose body the place is."""
    return str(re.findall(r"^class (\w+)", text[:place], re.MULTILINE)[-1])


def adapt(text: str, slots: dict[str, list[tuple[str, str]]], idle: dict[str, str]) -> str:
    """Return the C code with four changes for which mypyc has no notes. They change how fast it is, not what it does.

    - Callable objects that are descriptors may be called as methods without being bound to an object first. Without
      this mark, every call of `hit` makes a bound method.
    - A function with keyword-only options takes a call without keywords as it is, and does not parse it.
    - An object whose finalizer would do nothing is not finalized: see `idle_finalizers`.
    - A field with the note `# slot NAME` is a slot. Other fields are read through a function, which takes ten times as
      long. If the field has another name than its slot, a program can only read it.

    Exits if there is no place for one of the changes, because mypyc writes other code than it did.
    """
    method = r"(\.tp_descr_get = [^}]*_Py_TPFLAGS_HAVE_VECTORCALL)\b"
    text, methods = re.subn(method, r"\1 | Py_TPFLAGS_METHOD_DESCRIPTOR", text)
    parsed = (
        r'(parser = \{"(O+)\|\$O+:\w+", kwlist, 0\};[^{}]*?if \()'
        r"(!CPyArg_ParseStackAndKeywords\(args, ([^,]+), kwnames, &parser((?:, &\w+)+)\)\) \{)"
    )
    text, calls = re.subn(parsed, _unparsed, text)
    finalizers = 0
    for kind, field in idle.items():
        finalized = (
            rf"(\b{kind}_dealloc\(\w+ \*self\)\s*\{{\s*PyObject \*type, \*value, \*traceback;)"
            r"(\s*PyErr_Fetch\([^;]*;\s*)"
            r"int (res = PyObject_CallFinalizerFromDealloc\b[^;]*;.*?PyErr_Restore\([^;]*;)"
        )
        once = rf"\1 int res = 0; if (self->_{field} != 1) {{\2\3 }}"
        text, found = re.subn(finalized, once, text, count=1, flags=re.DOTALL)
        finalizers += found
    if not methods or not calls or finalizers != len(idle) or not idle:
        found_all = f"{methods} callable descriptors, {calls} calls, {finalizers} of {len(idle)} finalizers"
        raise SystemExit(f"mypyc writes other code than expected: {found_all}")
    for kind, fields in slots.items():
        text = _with_slots(text, kind, fields)
    return text


def _unparsed(match: re.Match[str]) -> str:
    """Return the parsing of a call, behind a test whether it has just the required arguments, all by position."""
    begin, required, parse, count, names = match.groups()
    taken = " ".join(f"{name[2:]} = args[{i}];" for i, name in enumerate(names.split(",")[1 : len(required) + 1]))
    return f"{begin}kwnames == NULL && {count} == {len(required)}) {{ {taken} }} else if ({parse}"


def _with_slots(text: str, kind: str, fields: list[tuple[str, str]]) -> str:
    """Return the C code in which a class has slots. A slot comes before the function of the same name."""
    slots = ""
    for field, name in fields:
        place, access = f"offsetof(ratebound___{kind}Object, _{field})", "0" if field == name else "READONLY"
        slots += f'{{"{name}", T_OBJECT_EX, {place}, {access}, NULL}}, '
    template = f"static PyTypeObject CPyType_{kind}_template_ = {{"
    getters = f".tp_getset = {kind}_getseters,"
    if text.count(template) != 1 or text.count(getters) != 1:
        raise SystemExit(f"mypyc writes other code than expected: it has no class {kind}")
    text = text.replace(template, f"static PyMemberDef {kind}_slots[] = {{{slots}{{0}}}};\n{template}")
    return text.replace(getters, f"{getters} .tp_members = {kind}_slots,")


def build(extensions: list[Any], scratch: Path, target: Path) -> None:
    """Compile and link the extensions into the target folder. Exits if that fails, whatever setuptools raises."""
    from setuptools import Distribution

    for extension in extensions:
        # A compiler that warns of more than ours is no reason to fail.
        flags = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
        # Functions that no other library can see are called directly, and may be inlined.
        extension.extra_compile_args = flags if sys.platform == "win32" else [*flags, "-fvisibility=hidden"]
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
            slots, idle = give_slots_objects(copy), idle_finalizers(copy)
            extensions = translate(paths, scratch)
            for path in scratch.glob("*.c"):
                path.write_text(adapt(path.read_text("utf-8"), slots, idle), "utf-8")
            if destination is not None:
                build(extensions, scratch, destination)
    print(f"{'mypyc accepts' if destination is None else 'compiled'} {len(paths)} modules")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: compile_modules.py check|FOLDER")
    main(sys.argv[1])
