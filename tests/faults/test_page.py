"""The page "Storage outages" promises nothing that no test shows: every row names one, and every one exists."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter
from ratebound.limit import FAILURES
from ratebound.storage.guard.guarded import DEADLINE, AsyncGuardedStorage, GuardedStorage

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/failure.md"


def tables(text: str) -> list[list[list[str]]]:
    """Every table as rows of cells, the head first, without the line below it."""
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    rows = [[re.split(r"(?<!\\)\|", line.strip("|")) for line in table.splitlines()] for table in found]
    return [[[cell.strip() for cell in row] for place, row in enumerate(table) if place != 1] for table in rows]


def promises() -> list[list[str]]:
    """The rows of the tables of what happens."""
    return [row for table in tables(PAGE.read_text()) if table[0][-1] == "shown by" for row in table[1:]]


def numbered() -> dict[str, str]:
    """Tests by their number."""
    (listed,) = [table for table in tables(PAGE.read_text()) if table[0] == ["", "test"]]
    found = {number: re.fullmatch(r"`(.+)`(?: \(long\))?", named) for number, named in listed[1:]}
    assert len(found) == len(listed) - 1, "a number stands for one test"
    return {number: match[1] for number, match in found.items() if match}


def cited(row: list[str]) -> list[tuple[str, str]]:
    """(number, fault) of what a row names; no fault when all of the test is meant."""
    found = [re.fullmatch(r"(\d+)(?: `([^`]+)`)?", each.strip()) for each in row[-1].split(";")]
    assert all(found), f"not a list of tests: {row[-1]!r}"
    return [(match[1], match[2] or "") for match in found if match]


@cache
def names_in(file: str) -> tuple[set[str], set[str]]:
    """Functions of a file, and all that its cases may be called: functions and texts."""
    tree = ast.parse((ROOT / file).read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return functions, functions | texts


@pytest.mark.parametrize("row", promises(), ids=lambda row: row[0])
def test_every_row_names_a_test_and_says_something(row: list[str]) -> None:
    assert len(row) == 4
    assert all(row)
    for number, fault in cited(row):
        file, _, _ = numbered()[number].partition("::")
        assert not fault or fault in names_in(file)[1], f"{file} has no case {fault}"


@pytest.mark.parametrize("test", numbered().values())
def test_every_test_that_is_named_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert name.startswith("test_")
    assert name in names_in(file)[0]


def test_the_numbers_are_in_order_and_each_is_cited() -> None:
    assert list(numbered()) == [str(number) for number in range(1, len(numbered()) + 1)]
    assert {number for row in promises() for number, _ in cited(row)} == set(numbered())


def test_what_only_runs_when_there_is_time_is_marked_so() -> None:
    for line in PAGE.read_text().splitlines():
        if "`tests/" in line:
            assert ("(long)" in line) == ("test_failover.py" in line), line


def test_the_settings_and_the_modes_are_those_of_the_code() -> None:
    settings = {row[0].strip("`"): row[1] for table in tables(PAGE.read_text()) for row in table if "=…" in row[0]}
    for kind in (GuardedStorage, AsyncGuardedStorage):
        options: Any = inspect.signature(kind).parameters
        for name in ("failures", "probe_interval", "write_back"):
            assert settings[f"GuardedStorage({name}=…)"] == str(options[name].default)
    for limiter in (Limiter, AsyncLimiter):
        options = inspect.signature(limiter).parameters
        assert settings["Limiter(failure=…)"] == f"`{options['failure'].default}`"
        assert {f"Limiter({name}=…)" for name in ("failure", "deadline", "workers")} <= set(settings)
    assert f"{DEADLINE:g} s" in settings["Limiter(deadline=…)"]
    (modes,) = [table for table in tables(PAGE.read_text()) if table[0][0] == "mode"]
    assert [row[0].split("`")[1] for row in modes[1:]] == list(FAILURES)
