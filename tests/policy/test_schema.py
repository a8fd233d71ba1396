"""The JSON schema of policies: editors and the loader accept the same keys and the same shapes."""

import copy
import inspect
import json
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ratebound.adaptive.in_flight import InFlight
from ratebound.policy import ANY_FUNCTION, SCHEMA_PATH, PolicyError, read_policy
from ratebound.policy.model.descriptor_rule import ENTRY_KEYS, DescriptorRule
from ratebound.policy.model.penalty import Penalty
from ratebound.policy.model.pressure import SIGNALS
from ratebound.policy.schema import KEYS
from tests.property.test_policy_mistakes import MISTAKES, valid

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads(SCHEMA_PATH.read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
Tree = dict[str, Any]
REFERENCE = runpy.run_path(str(ROOT / "tools" / "write_reference.py"))

# A policy with every kind of mapping in it, and where each of them stands.
WHOLE: Tree = {
    "identities": {"api-key": {"header": "x-api-key", "verify": {"call": "find"}}},
    "penalties": {"guessing": {"after": "3 strikes/hour", "block": "5 minutes"}},
    "overrides": [{"client": "user:7", "limits": "5/minute"}],
    "headers": {"styles": "draft-11"},
    "rejection": {"format": "json"},
    "trusted": {"proxies": ["10.0.0.0/8"]},
    "adaptive": {"cpu": "85%"},
    "concurrent": {"most": 50},
    "rules": [
        {
            "name": "one",
            "limits": {"call": "limits_of", "otherwise": "10/minute"},
            "match": {"paths": "/a"},
            "cost": {"call": "cost_of"},
            "charge": {"status": 401},
        },
        {"name": "two", "limits": "10/minute", "slice": {"share": "5%"}},
        {"name": "three", "limits": "10/minute", "charge": {"bytes": "1 KB"}},
        {"name": "four", "limits": "10/minute", "charge": {"header": "x-cost"}},
    ],
    "descriptors": [
        {
            "name": "five",
            "domain": "d",
            "entries": [{"key": "path", "value": "/*", "shared": True}],
            "limits": "5/minute",
        }
    ],
}
PLACES: dict[str, tuple[Any, ...]] = {
    "policy": (),
    "identity": ("identities", "api-key"),
    "verify": ("identities", "api-key", "verify"),
    "penalty": ("penalties", "guessing"),
    "override": ("overrides", 0),
    "headers": ("headers",),
    "rejection": ("rejection",),
    "trusted": ("trusted",),
    "adaptive": ("adaptive",),
    "concurrent": ("concurrent",),
    "rule": ("rules", 0),
    "computed": ("rules", 0, "limits"),
    "match": ("rules", 0, "match"),
    "call": ("rules", 0, "cost"),
    "statuses": ("rules", 0, "charge"),
    "slice": ("rules", 1, "slice"),
    "charged_bytes": ("rules", 2, "charge"),
    "charged_header": ("rules", 3, "charge"),
    "descriptor": ("descriptors", 0),
    "long_entry": ("descriptors", 0, "entries", 0),
}
# Mistakes that no schema can tell: of meaning, not of shape.
OF_SHAPE = re.compile(r"unknown key|expected a mapping|expected a list\b")


def problems(tree: Any, environ: dict[str, str] | None = None) -> list[str]:
    try:
        read_policy(tree, functions=ANY_FUNCTION, environ=environ or {})
    except PolicyError as error:
        return [f"{problem.where}: {problem.message}" for problem in error.problems]
    return []


def planted(place: tuple[Any, ...], key: str, value: Any) -> Tree:
    tree = copy.deepcopy(WHOLE)
    here: Any = tree
    for step in place:
        here = here[step]
    here[key] = value
    return tree


def test_the_schema_is_a_schema_and_takes_a_policy_with_everything_in_it() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert problems(WHOLE) == []
    VALIDATOR.validate(WHOLE)


def test_every_kind_of_mapping_is_known_to_these_tests_and_to_the_page() -> None:
    assert PLACES.keys() == KEYS.keys() == REFERENCE["OBJECTS"].keys()


@pytest.mark.parametrize("kind", PLACES)
def test_a_key_that_nobody_knows_is_an_error_in_editors_and_in_the_loader(kind: str) -> None:
    tree = planted(PLACES[kind], "no-such-key", "x")
    assert not VALIDATOR.is_valid(tree)
    assert any("no-such-key" in problem for problem in problems(tree))


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind in PLACES for key in sorted(KEYS[kind])])
def test_every_key_of_the_schema_is_known_to_the_loader(kind: str, key: str) -> None:
    found = problems(planted(PLACES[kind], key, "x"))
    assert not [problem for problem in found if f"unknown key '{key}'" in problem]


def test_keys_that_the_loader_reads_without_the_schema_are_those_of_the_schema() -> None:
    assert KEYS["concurrent"] == inspect.signature(InFlight).parameters.keys() - {"now"}
    assert KEYS["adaptive"] == {*SIGNALS, "floor"}
    assert KEYS["long_entry"] == {*ENTRY_KEYS}
    assert KEYS["penalty"] == inspect.signature(Penalty).parameters.keys()
    assert KEYS["descriptor"] == inspect.signature(DescriptorRule).parameters.keys()
    assert KEYS["statuses"] | KEYS["charged_bytes"] | KEYS["charged_header"] == {"status", "bytes", "header"}


def objects(schema: Any) -> Iterator[Tree]:
    """Yield every mapping with fixed keys, wherever it stands in the schema."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for one in schema.values():
            yield from objects(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from objects(one)


def test_every_mapping_is_closed_and_has_a_name_of_its_own() -> None:
    found = list(objects(SCHEMA))
    assert all(one["additionalProperties"] is False for one in found)
    assert len(found) == len(KEYS)


def test_every_key_has_a_description_that_is_a_sentence() -> None:
    for one in objects(SCHEMA):
        for key, described in one["properties"].items():
            assert described.get("description", "").endswith("."), key


@pytest.mark.parametrize("kind", PLACES)
def test_examples_and_defaults_are_what_their_key_takes(kind: str) -> None:
    for key, described in SCHEMA["$defs"][kind]["properties"].items():
        for example in [*described.get("examples", ()), *([described["default"]] if "default" in described else [])]:
            inner = {**SCHEMA, "$ref": "#/$defs/wanted", "$defs": {**SCHEMA["$defs"], "wanted": described}}
            assert jsonschema.Draft202012Validator(inner).is_valid(example), (key, example)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"ipv6": "${N}", "switch": "${S:-on}", "rules": [{"name": "${A}", "limits": "${L}"}]}, True),
        ({"failure": "${F}", "rules": [{"name": "a", "limits": "5/minute", "default": "${B}"}]}, True),
        ({"ipv6": "N", "rules": [{"name": "a", "limits": "5/minute"}]}, False),
    ],
)
def test_a_reference_to_the_environment_stands_for_any_value(given: Tree, read: bool) -> None:
    environ = {"N": "48", "A": "api", "L": "100/minute", "F": "open", "B": "true"}
    assert VALIDATOR.is_valid(given) is read
    assert (problems(given, environ) == []) is read


def without_functions(tree: Any) -> Any:
    """Return the tree as a file would have it: with names in place of functions."""
    if isinstance(tree, dict):
        return {name: without_functions(one) for name, one in tree.items()}
    if isinstance(tree, list):
        return [without_functions(one) for one in tree]
    return "find" if callable(tree) else tree


@pytest.mark.parametrize(("where", "plant"), MISTAKES)
def test_a_mistake_of_shape_is_one_in_editors_too(where: str, plant: Callable[[Tree], None]) -> None:
    tree = valid()
    VALIDATOR.validate(without_functions(tree))
    plant(tree)
    if any(OF_SHAPE.search(problem) for problem in problems(tree)):
        assert not VALIDATOR.is_valid(without_functions(tree)), where


def accepted(schema: Tree) -> st.SearchStrategy[Any]:
    """Return what a schema accepts, as far as it uses the words that ours uses."""
    if "$ref" in schema:
        return st.deferred(lambda: accepted(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]))
    if "anyOf" in schema:
        return st.one_of([accepted(one) for one in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema["type"]
    if isinstance(kind, list):
        return st.one_of([accepted({**schema, "type": one}) for one in kind])
    least, most = schema.get("minimum", 0), schema.get("maximum", 1000)
    if kind == "object" and "properties" in schema:
        keys = {name: accepted(one) for name, one in schema["properties"].items() if "$" not in name}
        needed = {name: keys.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(needed, optional=keys).filter(
            lambda one: len(one) >= schema.get("minProperties", 0)
        )
    if kind == "object":
        names, values = st.sampled_from(["free", "pro", "x-api-key"]), accepted(schema["additionalProperties"])
        return st.dictionaries(names, values, min_size=schema.get("minProperties", 0), max_size=1)
    if kind == "array":
        return st.lists(accepted(schema["items"]), min_size=schema.get("minItems", 0), max_size=2)
    return {
        "string": st.from_regex(schema["pattern"])
        if "pattern" in schema
        else st.sampled_from(["a", "5/minute", "${N}"]),
        "integer": st.integers(least, most),
        "number": st.floats(least, most, exclude_min="exclusiveMinimum" in schema),
        "boolean": st.booleans(),
        "null": st.none(),
    }[kind]


@settings(max_examples=200, deadline=None)
@given(accepted(SCHEMA))
def test_what_an_editor_accepts_has_no_mistake_of_shape(tree: Tree) -> None:
    VALIDATOR.validate(tree)
    assert not [problem for problem in problems(tree, dict.fromkeys("NABCDEFGHIJ", "x")) if OF_SHAPE.search(problem)]


def documented() -> Iterator[Any]:
    """Yield each policy in YAML that stands in the documentation."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)):
            try:
                tree = yaml.safe_load(text)
            except yaml.YAMLError:
                continue
            if isinstance(tree, dict) and "rules" in tree and tree.keys() <= KEYS["policy"]:
                yield pytest.param(tree, id=f"{page.name}-{number}")


@pytest.mark.parametrize("tree", [*documented()])
def test_a_policy_of_the_documentation_is_one_in_editors_too(tree: Tree) -> None:
    VALIDATOR.validate(tree)


EXAMPLES = [*sorted((ROOT / "examples" / "policies").iterdir()), *sorted((ROOT / "examples").rglob("policy.yaml"))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example_names_the_schema(path: Path) -> None:
    first = path.read_text("utf-8")
    found = re.match(r'# yaml-language-server: \$schema=(\S+)\n|#:schema (\S+)\n|\{\s*"\$schema": "([^"]+)",', first)
    assert found is not None, "the first line names the schema"
    named = next(one for one in found.groups() if one)
    assert (path.parent / named).resolve() == SCHEMA_PATH.resolve()
