"""Blocks of code that no other test runs are checked here: their languages, syntax, commands, options and policies.

A block that cannot be checked is marked as text.
"""

import json
import re
import shlex
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml

from ratebound.cli import command
from ratebound.policy import ANY_FUNCTION, PolicyError, read_policy
from tests.documentation.pages import PAGES, ROOT, Block, all_blocks

LANGUAGES = {
    "python",
    "sh",
    "console",
    "yaml",
    "json",
    "toml",
    "text",
    "sql",
    "nginx",
    "js",
    "go",
    "java",
    "ini",
    "dockerfile",
}
WITH_COMMANDS = [page for page in PAGES if any(block.language in ("sh", "console") for block in all_blocks(page))]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def blocks_in(*languages: str) -> list[Any]:
    found = [block for page in PAGES for block in all_blocks(page) if block.language in languages]
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in found]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_names_its_language(page: str) -> None:
    assert [(block.line, block.language) for block in all_blocks(page) if block.language not in LANGUAGES] == []


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.language == "sh" for block in all_blocks(page))])
def test_the_shell_can_read_what_a_page_tells_it(page: str) -> None:
    script = "\n".join(block.text for block in all_blocks(page) if block.language == "sh")
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", blocks_in("yaml"))
def test_yaml_can_be_read_and_policies_are_valid(block: Block) -> None:
    tree = yaml.safe_load(block.text)
    if isinstance(tree, dict) and "rules" in tree:
        try:
            read_policy(tree, functions=ANY_FUNCTION, environ=defaultdict(str))
        except PolicyError as error:
            pytest.fail(str(error))


@pytest.mark.parametrize("block", blocks_in("json"))
def test_json_can_be_read_unless_something_is_left_out(block: Block) -> None:
    if "…" not in block.text:
        json.loads(block.text)


def ratebound_commands(page: str) -> Iterator[list[str]]:
    """Yield the words behind `ratebound` of every command of a page."""
    for block in all_blocks(page):
        if block.language not in ("sh", "console"):
            continue
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.language == "console" and any(line.startswith("$ ") for line in lines):
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]  # the others are output
        for line in lines:
            found = re.match(r"(?:[A-Z_]+=\S+ )*(?:[\w./]*/)?ratebound (.*)", line.strip())
            if found and not line.startswith("ratebound top,"):
                yield words(found[1])


def words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>&;")
    lexer.whitespace_split, lexer.commenters = True, "#"
    found = list(lexer)
    ends = [place for place, word in enumerate(found) if re.fullmatch(r"[|<>&;]+", word)]
    return found[: ends[0]] if ends else found


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_and_options_of_ratebound_exist(page: str) -> None:
    for given in ratebound_commands(page):
        named: click.Command = command()
        rest = list(given)
        while isinstance(named, click.Group) and rest and not rest[0].startswith("-"):
            name = rest.pop(0)
            found = named.get_command(click.Context(named), name)
            assert found is not None, f"{page}: no command {name!r} in: ratebound {shlex.join(given)}"
            named = found
        known = {
            option
            for parameter in named.get_params(click.Context(named))
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        unknown = (
            {word.partition("=")[0] for word in rest if word.startswith("--")} - known - {"--help", "--version", "--"}
        )
        assert not unknown, f"{page}: unknown {unknown} in: ratebound {shlex.join(given)}"


@pytest.mark.parametrize("page", PAGES)
def test_the_extras_that_a_page_installs_exist(page: str) -> None:
    for names in re.findall(r"(?:ratebound|\.)\[([a-z0-9, ]+)\]\"", (ROOT / page).read_text()):
        assert set(re.split(r",\s*", names)) <= EXTRAS, names
