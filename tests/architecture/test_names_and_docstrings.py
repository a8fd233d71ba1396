"""Every class has its own name, and every public name has a docstring that says what it is or does."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "ratebound"

# The adapters of different frameworks use the same names on purpose.
SHARED_NAMES = {"RateLimits", "RateLimitMiddleware"}

NO_BEGINNING = {"Whether", "What", "Who", "How", "If", "As", "That"}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


FILES = sorted(SOURCE.rglob("*.py"))


def named(path: Path) -> Iterator[tuple[str, Documented, bool]]:
    """Yield the module, its classes, functions and methods, each with its dotted name and True if it is public.

    Functions and classes inside a function are left out. A definition is public if no part of its name begins with an
    underscore, so `__init__` and other special methods are not. Properties and Protocol methods count like methods.
    Setters and `@overload` declarations do not: the property, or the implementation, has the docstring.
    """
    name = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
    tree = ast.parse(path.read_text("utf-8"))
    yield name, tree, True
    yield from definitions(tree.body, name, public=True)


def definitions(body: list[ast.stmt], outer: str, *, public: bool) -> Iterator[tuple[str, Documented, bool]]:
    """Yield the definitions of a body, those under `if` and `try` included."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            inner = [*node.body, *node.orelse, *(each for part in getattr(node, "handlers", ()) for each in part.body)]
            yield from definitions(inner, outer, public=public)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not is_repeated(node):
            is_public = public and not node.name.startswith("_")
            yield f"{outer}.{node.name}", node, is_public
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, f"{outer}.{node.name}", public=is_public)


def is_repeated(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    ends = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return not ends.isdisjoint({"overload", "setter"})


def test_no_two_classes_share_a_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in SHARED_NAMES:
                found[node.name].append(path.relative_to(SOURCE).as_posix())
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_every_public_name_has_a_docstring(path: Path) -> None:
    assert [name for name, node, public in named(path) if public and not ast.get_docstring(node)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_docstring_begins_with_a_question(path: Path) -> None:
    begun = [(name, (ast.get_docstring(node) or " ").split()[:1]) for name, node, _ in named(path)]
    assert [name for name, words in begun if words and words[0].rstrip(",.:;") in NO_BEGINNING] == []
