"""Workflows and issue templates: they can be parsed, and agree with the project."""

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.compiled.test_which_build_runs import ROOT

GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CLASSIFIED = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
INPUTS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
FILES = sorted(path.relative_to(ROOT).as_posix() for path in GITHUB.rglob("*.yml"))


def load(name: str) -> Any:
    """Return what a file says. A name may not stand twice in one mapping."""
    text = (ROOT / name).read_text("utf-8")
    for mapping in mappings(yaml.compose(text)):
        keys = [key.value for key, _ in mapping.value]
        assert len(keys) == len({*keys}), (name, keys)
    return yaml.load(text, yaml.BaseLoader)  # 'on' is a name here, not true


def mappings(node: yaml.Node | None) -> list[yaml.MappingNode]:
    """Return all mappings in a document."""
    if isinstance(node, yaml.MappingNode):
        return [node, *(inner for _, value in node.value for inner in mappings(value))]
    if isinstance(node, yaml.SequenceNode):
        return [inner for value in node.value for inner in mappings(value)]
    return []


@pytest.mark.parametrize("name", [name for name in FILES if "/workflows/" in name])
def test_a_workflow_has_jobs_with_steps_and_may_only_read(name: str) -> None:
    workflow = load(name)
    assert {*workflow} <= {"name", "on", "permissions", "concurrency", "jobs"}
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["on"]
    for job in workflow["jobs"].values():
        assert {*job} <= {"name", "runs-on", "strategy", "continue-on-error", "timeout-minutes", "steps"}
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert {*step} <= {"name", "uses", "with", "run", "env"}
        used = {*re.findall(r"matrix\.([\w-]+)", str(job))}
        assert used <= {*job.get("strategy", {}).get("matrix", {})}


def test_the_tests_run_on_every_python_that_the_package_names() -> None:
    (job,) = load(".github/workflows/tests.yml")["jobs"].values()
    matrix = job["strategy"]["matrix"]
    assert matrix["python"] == CLASSIFIED
    assert matrix["include"] == [{"python": "3.14", "may-fail": "true"}]
    commands = [step.get("run", "") for step in job["steps"]]
    assert any(command.startswith("make test ") for command in commands)
    for tool in re.findall(r"tools/\w+", "\n".join(commands)):
        assert (ROOT / tool).is_file()


def test_wheels_are_compiled_for_every_python_that_the_package_names() -> None:
    jobs = load(".github/workflows/wheels.yml")["jobs"]
    (environ,) = [step["env"] for step in jobs["compiled"]["steps"] if "CIBW_BUILD" in step.get("env", {})]
    assert environ["CIBW_BUILD"] == " ".join(f"cp{version.replace('.', '')}-*" for version in CLASSIFIED)


@pytest.mark.parametrize("name", [name for name in FILES if "/ISSUE_TEMPLATE/" in name and "config" not in name])
def test_an_issue_template_asks_with_labels_and_different_ids(name: str) -> None:
    template = load(name)
    assert template["name"]
    assert template["description"]
    assert {part["type"] for part in template["body"]} <= INPUTS
    asked = [part for part in template["body"] if part["type"] != "markdown"]
    assert all(part["attributes"]["label"] for part in asked)
    assert len({part["id"] for part in asked}) == len(asked)


def test_a_bug_comes_with_its_version() -> None:
    (asked,) = [part for part in load(".github/ISSUE_TEMPLATE/bug.yml")["body"] if part.get("id") == "version"]
    assert "ratebound --version" in asked["attributes"]["label"]
    assert asked["validations"]["required"] == "true"
