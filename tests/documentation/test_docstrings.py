"""What an editor shows of a public name says all of its arguments, and every example in it runs.

Docstrings are read from the source, as editors do. Sections are those of Google's style: Args, Attributes, Returns,
Yields, Raises and Examples.
"""

import ast
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import griffe
import pytest

import ratebound
from ratebound import testing
from tests.web import django_site

PACKAGE = Path(ratebound.__file__).parent

# The names that users import, by module. None stands for `__all__`.
MODULES: dict[str, tuple[str, ...] | None] = {
    "ratebound": None,
    "ratebound.adaptive": None,
    "ratebound.client": None,
    "ratebound.client.aiohttp": ("AiohttpCircuitOpen", "PoliteMiddleware", "polite"),
    "ratebound.client.call_log": ("CallLogListener",),
    "ratebound.client.httpx": ("AsyncPoliteTransport", "HttpxCircuitOpen", "PoliteTransport"),
    "ratebound.client.otel": ("OpenTelemetryCallListener",),
    "ratebound.client.prometheus": ("PrometheusCallListener",),
    "ratebound.client.requests": ("PoliteAdapter", "RequestsCircuitOpen"),
    "ratebound.client.urllib3": ("PolitePoolManager", "PoliteProxyManager", "Urllib3CircuitOpen"),
    "ratebound.events": (
        "BlockBegan", "Called", "ChangeMade", "Decided", "Degraded", "PressureChanged", "Recovered", "RequestShed",
        "Settled", "Shadowed", "SlotLost", "Struck", "Warned",
    ),
    "ratebound.http": None,
    "ratebound.ledger": None,
    "ratebound.observe": None,
    "ratebound.observe.otel": ("OpenTelemetryListener",),
    "ratebound.observe.prometheus": ("PrometheusListener",),
    "ratebound.policy": None,
    "ratebound.policy.imports": None,
    "ratebound.storage": ("AsyncStorage", "Storage"),
    "ratebound.storage.memcached.storage": ("AsyncMemcachedStorage", "MemcachedStorage"),
    "ratebound.storage.postgres.storage": ("AsyncPostgresStorage", "PostgresStorage"),
    "ratebound.storage.redis.storage": ("AsyncRedisStorage", "RedisStorage"),
    "ratebound.storage.shared_memory.storage": ("AsyncSharedMemoryStorage", "SharedMemoryStorage"),
    "ratebound.storage.sqlite.storage": ("AsyncSqliteStorage", "SqliteStorage"),
    "ratebound.storage.urls": ("open_async_storage", "open_storage"),
    "ratebound.testing": ("Blocking", "FakeClock", "limiting_off", "nothing_sleeps"),
    "ratebound.web": None,
    "ratebound.web.asgi": ("RateLimitMiddleware",),
    "ratebound.web.django": None,
    "ratebound.web.drf": ("Throttle", "throttle"),
    "ratebound.web.fastapi": None,
    "ratebound.web.flask": None,
    "ratebound.web.wsgi": ("RateLimitMiddleware",),
}  # fmt: skip

SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Examples):")
ENTRY = re.compile(r"    (\*{0,2}\w+): \S")

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Documented(NamedTuple):
    """A public class, function or method: its definition, its docstring by sections, and its parameters."""

    value: Any
    node: ast.ClassDef | Definition
    text: str
    sections: dict[str, list[str]]
    parameters: list[str]

    def described(self, section: str) -> dict[str, str]:
        """Return the text of each entry of a section, by name."""
        found: dict[str, str] = {}
        name = ""
        for line in self.sections.get(section, []):
            entry = ENTRY.match(line)
            if entry:
                name = entry[1]
                found[name] = line.partition(": ")[2]
            elif line.strip():
                assert line.startswith("        "), line
                found[name] += f" {line.strip()}"
        return found


def sections_of(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        head = SECTION.fullmatch(line)
        if head:
            lines = found.setdefault(head[1], [])
        else:
            assert not found or not line or line.startswith("    "), f"text after a section: {line!r}"
            lines.append(line)
    return found


@cache
def source(module: str) -> ast.Module:
    path = PACKAGE.parent / module.replace(".", "/")
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))


def ends_of(node: ast.ClassDef | Definition) -> set[str]:
    return {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}


def parameters_of(node: Definition) -> list[str]:
    """Return the names of the parameters, without `self` and `cls`, in order."""
    given = node.args
    names = [each.arg for each in [*given.posonlyargs, *given.args]]
    if names[:1] in (["self"], ["cls"]):
        names = names[1:]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [each.arg for each in given.kwonlyargs]
    names += [f"**{given.kwarg.arg}"] if given.kwarg else []
    return [name for name in names if not name.lstrip("*").startswith("_")]


def fields_of(node: ast.ClassDef) -> list[str]:
    """Return the fields of a dataclass or a named tuple that its constructor takes, in order."""
    return [
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and not each.target.id.startswith("_")
        and "init=False" not in ast.unparse(each)
        and "ClassVar" not in ast.unparse(each)
    ]


def documented(value: Any, node: ast.ClassDef | Definition, parameters: list[str]) -> Documented:
    text = ast.get_docstring(node) or ""
    return Documented(value, node, text, sections_of(text), parameters)


def found_in(name: str, value: Any) -> Iterator[tuple[str, Documented]]:
    """Yield a class and its public methods, or a function."""
    node = [each for each in source(value.__module__).body if getattr(each, "name", "") == value.__name__][-1]
    if isinstance(node, Definition):
        yield name, documented(value, node, parameters_of(node))
        return
    assert isinstance(node, ast.ClassDef)
    methods = [each for each in node.body if isinstance(each, Definition)]
    makers = [each for each in methods if each.name == "__init__"]
    is_value = hasattr(value, "__dataclass_fields__") or hasattr(value, "_fields")
    parameters = parameters_of(makers[-1]) if makers else fields_of(node) if is_value else []
    yield name, documented(value, node, parameters)
    for each in methods:
        if not each.name.startswith("_") and ends_of(each).isdisjoint({"overload", "setter", "property"}):
            yield f"{name}.{each.name}", documented(getattr(value, each.name), each, parameters_of(each))


def every() -> Iterator[tuple[str, Documented]]:
    assert django_site  # whose settings the adapter for Django reads when it is imported
    seen: set[int] = set()
    for module, names in MODULES.items():
        loaded = importlib.import_module(module)
        for name in loaded.__all__ if names is None else names:
            value = getattr(loaded, name)
            is_ours = str(getattr(value, "__module__", "")).startswith("ratebound")
            value = inspect.unwrap(value)  # of a cache
            if is_ours and (inspect.isclass(value) or inspect.isfunction(value)) and id(value) not in seen:
                seen.add(id(value))
                yield from found_in(f"{module}.{name}", value)


DOCUMENTED = dict(every())
TWINS = [
    (name, name.replace(".Async", ".", 1))
    for name in DOCUMENTED
    if ".Async" in name and name.replace(".Async", ".", 1) in DOCUMENTED
]
# Where the two kinds of a class take arguments of different types, or mean something else.
NOT_TWINS = {"sleep", "inner", "memory", "shared", "make", "limit", "auth"}


def is_value(found: Documented) -> bool:
    """Return True for a class that users read and do not make: it describes its attributes."""
    return isinstance(found.node, ast.ClassDef) and "Attributes" in found.sections


def test_the_public_names_are_looked_at() -> None:
    assert {"ratebound.Limiter.hit", "ratebound.policy.Gate.decide", "ratebound.web.flask.RateLimits"} <= set(
        DOCUMENTED
    )
    assert "a_limit_admits_its_count_and_no_more" in dir(testing)  # the claims of the contract take no users' arguments
    assert len(TWINS) > 40


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_docstring_describes_each_argument_and_no_other(name: str) -> None:
    found = DOCUMENTED[name]
    assert found.text
    if isinstance(found.value, type) and hasattr(found.value, "_fields"):
        assert is_value(found)  # the site knows no arguments of a named tuple
    if is_value(found):
        assert [each for each in found.described("Attributes") if each in found.parameters] == found.parameters
    else:
        assert list(found.described("Args")) == found.parameters
    assert all(
        text.endswith((".", "…"))
        for part in ("Args", "Attributes", "Raises")
        for text in found.described(part).values()
    )


@pytest.mark.parametrize(("name", "other"), TWINS)
def test_both_kinds_of_a_method_describe_an_argument_in_the_same_words(name: str, other: str) -> None:
    mine, others = DOCUMENTED[name].described("Args"), DOCUMENTED[other].described("Args")
    shared = [each for each in mine if each in others and each not in NOT_TWINS]
    assert {each: mine[each] for each in shared} == {each: others[each] for each in shared}


def needs_example(name: str, found: Documented) -> bool:
    """Return True for classes and functions that users call, and for the methods with arguments of the main classes."""
    if isinstance(found.node, ast.ClassDef):
        return not is_value(found) and not issubclass(found.value, BaseException)
    of_class = name.rpartition(".")[0] in DOCUMENTED
    return not of_class or (bool(found.parameters) and name.split(".")[-2] in MAIN)


MAIN = ("Limiter", "AsyncLimiter", "Gate", "Ledger", "Pacer", "Proxies", "Headers", "RejectionFormat")


@pytest.mark.parametrize("name", [name for name, found in DOCUMENTED.items() if needs_example(name, found)])
def test_what_users_call_has_an_example(name: str) -> None:
    assert "Examples" in DOCUMENTED[name].sections


@pytest.mark.parametrize("name", [name for name, found in DOCUMENTED.items() if "Examples" in found.sections])
def test_an_example_runs_and_prints_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(DOCUMENTED[name].text, {"__name__": "example"}, name, None, None)
    assert test.examples
    told: list[str] = []
    done = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    assert done.failed == 0, "".join(told)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_site_reads_the_same_arguments(name: str) -> None:
    found = DOCUMENTED[name]
    read = {section.kind.value: section for section in griffe.Docstring(found.text).parse("google", warnings=False)}
    assert "admonition" not in read  # a section that it does not know
    section = "attributes" if is_value(found) else "parameters"
    told = [each.name for each in read[section].value] if section in read else []
    assert told == list(found.described("Attributes" if is_value(found) else "Args"))
    assert ("examples" in read) == ("Examples" in found.sections)
