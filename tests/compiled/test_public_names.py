"""What `help`, `inspect` and `typing` say of public names is what the source says, in both builds.

The source is read with `ast`, because a compiled function knows less of itself. A compiled class has no annotations and
its properties have no docstrings: its own docstring has to name them.
"""

import ast
import dataclasses
import importlib
import inspect
import pydoc
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ratebound
from ratebound import AsyncLimiter, Decision, Limiter
from ratebound.policy import AsyncGate, Gate

PACKAGE = Path(ratebound.__file__).parent
MODULES = (
    "ratebound",
    "ratebound.policy",
    "ratebound.testing",
    "ratebound.events",
    "ratebound.http",
    "ratebound.observe",
    "ratebound.web",
    "ratebound.web.asgi",
    "ratebound.web.wsgi",
    "ratebound.web.fastapi",
    "ratebound.web.flask",
    "ratebound.web.django",
)
Definition = ast.FunctionDef | ast.AsyncFunctionDef
Kind = inspect.Parameter
Names = list[tuple[str, Any, bool]]


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions of a module."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", own):
        value = getattr(module, name)
        is_ours = str(getattr(value, "__module__", "")).startswith("ratebound")
        if not name.startswith("_") and is_ours and (inspect.isclass(value) or inspect.isfunction(value)):
            yield name, value


PUBLIC = {f"{module}.{name}": value for module in MODULES for name, value in public(importlib.import_module(module))}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}


def help_on(value: Any) -> str:
    """Return what `help` shows."""
    return pydoc.plain(pydoc.render_doc(value))


@cache
def source(module: str) -> ast.Module:
    path = PACKAGE.parent / module.replace(".", "/")
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))


def definition(value: Any) -> Any:
    """Return the last definition of a class or function in its source: before it may stand overloads."""
    return [node for node in source(value.__module__).body if getattr(node, "name", "") == value.__name__][-1]


def methods(node: ast.ClassDef) -> dict[str, Definition]:
    """Return the public methods and properties of a class, and `__init__`."""
    found = {each.name: each for each in node.body if isinstance(each, Definition)}
    for each in node.body:  # not the setter: the property has the docstring
        if isinstance(each, Definition) and "property" in map(ast.unparse, each.decorator_list):
            found[each.name] = each
    return {name: each for name, each in found.items() if name == "__init__" or not name.startswith("_")}


def is_property(node: Definition) -> bool:
    return "property" in map(ast.unparse, node.decorator_list)


def is_native(value: Any) -> bool:
    """Return True for a compiled class."""
    return "__mypyc_attrs__" in vars(value)


def parameters_in_source(node: Definition) -> Names:
    """Return name, kind, and True if there is a default, of every parameter."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    without = len(plain) - len(arguments.defaults)
    found: Names = []
    for i, each in enumerate(plain):
        kind = Kind.POSITIONAL_ONLY if i < len(arguments.posonlyargs) else Kind.POSITIONAL_OR_KEYWORD
        found.append((each.arg, kind, i >= without))
    if arguments.vararg:
        found.append((arguments.vararg.arg, Kind.VAR_POSITIONAL, False))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append((each.arg, Kind.KEYWORD_ONLY, default is not None))
    if arguments.kwarg:
        found.append((arguments.kwarg.arg, Kind.VAR_KEYWORD, False))
    return found


def parameters_at_run_time(value: Any) -> Names:
    found = inspect.signature(value).parameters.values()
    return [(each.name, each.kind, each.default is not Kind.empty) for each in found]


def annotated(node: Definition) -> set[str]:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {each.arg for each in every if each is not None and each.annotation is not None}
    return names | {"return"} if node.returns is not None else names


def callables() -> Iterator[tuple[str, Any, Definition]]:
    """Yield the public functions, and the public methods and constructors of public classes."""
    for name, value in PUBLIC.items():
        node = definition(value)
        if not inspect.isclass(value):
            yield name, value, node
        elif not is_native(value):
            for method, each in methods(node).items():
                if not is_property(each):
                    yield f"{name}.{method}", inspect.getattr_static(value, method), each


CALLABLES = {
    name: (value.__func__ if isinstance(value, staticmethod | classmethod) else value, node)
    for name, value, node in callables()
}


def test_every_public_name_is_looked_at() -> None:
    assert {
        "ratebound.Decision",
        "ratebound.Limiter",
        "ratebound.policy.Gate",
        "ratebound.parse_limit",
    } <= PUBLIC.keys()
    assert {"ratebound.Limiter.hit", "ratebound.web.asgi.RateLimitMiddleware.__init__"} <= CALLABLES.keys()


@pytest.mark.parametrize("name", CALLABLES)
def test_a_callable_has_the_signature_of_its_source(name: str) -> None:
    value, node = CALLABLES[name]
    assert parameters_at_run_time(value) == parameters_in_source(node)
    if not node.decorator_list:
        assert inspect.iscoroutinefunction(value) == isinstance(node, ast.AsyncFunctionDef)


@pytest.mark.parametrize("name", CALLABLES)
def test_a_callable_has_the_type_hints_of_its_source(name: str) -> None:
    value, node = CALLABLES[name]
    assert typing.get_type_hints(value).keys() == annotated(node)
    for parameter in inspect.signature(value).parameters.values():
        assert (parameter.annotation is not Kind.empty) == (parameter.name in annotated(node))


@pytest.mark.parametrize("name", CALLABLES)
def test_a_callable_has_the_docstring_of_its_source(name: str) -> None:
    value, node = CALLABLES[name]
    assert inspect.cleandoc(value.__doc__ or "") == (ast.get_docstring(node) or "")
    shown = help_on(value)
    assert all(line.strip() in shown for line in (ast.get_docstring(node) or "").splitlines())


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if "__init__" in methods(definition(kind))])
def test_a_class_takes_the_arguments_of_its_source(name: str) -> None:
    value = CLASSES[name]
    assert parameters_at_run_time(value) == parameters_in_source(methods(definition(value))["__init__"])[1:]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_docstring_of_its_source(name: str) -> None:
    value = CLASSES[name]
    node = definition(value)
    written = ast.get_docstring(node) or ""
    shown = inspect.cleandoc(value.__doc__ or "")
    assert shown.startswith(written)
    assert shown.splitlines()[0] in help_on(value)
    for method, each in methods(node).items():
        if not is_property(each):
            continue
        found = inspect.getattr_static(value, method)
        if is_native(value):
            assert found.__doc__ is None
        else:
            assert inspect.cleandoc(found.__doc__ or "") == (ast.get_docstring(each) or "")


def test_the_docstring_of_a_decision_names_everything_that_can_be_read() -> None:
    names = [name for name in dir(Decision) if not name.startswith("_")]
    assert len(names) > 10
    assert [name for name in names if f"`{name}`" not in (Decision.__doc__ or "")] == []


def test_help_shows_the_class_and_its_methods() -> None:
    for kind in (Limiter, AsyncLimiter, Gate, AsyncGate, Decision):
        shown = help_on(kind)
        assert (kind.__doc__ or "").splitlines()[0] in shown
    assert "hit(self, key: str, *, cost: int = 1, values: " in help_on(Limiter.hit)


def test_what_is_awaited_is_seen_to_be_a_coroutine_function() -> None:
    for name in ("hit", "hit_many", "peek", "check", "settle", "wait", "reset", "close"):
        assert inspect.iscoroutinefunction(getattr(AsyncLimiter, name))
        assert not inspect.iscoroutinefunction(getattr(Limiter, name))
        assert inspect.iscoroutinefunction(getattr(AsyncLimiter("5/minute"), name))


def test_the_fields_of_dataclasses_and_tuples_keep_their_types() -> None:
    for name, value in CLASSES.items():
        if dataclasses.is_dataclass(value):
            hints = typing.get_type_hints(value)
            assert {field.name for field in dataclasses.fields(value)} <= hints.keys(), name
        elif hasattr(value, "_fields"):
            assert typing.get_type_hints(value).keys() == set(value._fields), name
