"""Pages with a terminal do what they show: the tutorial and the recipes."""

from pathlib import Path

import pytest

from tests.documentation.terminal import BLOCK, ROOT, same, steps, terminal
from tests.servers import needs
from tests.service.node_programs import node_modules

PROGRAMS = ("curl", "nginx", "node", "redis-server")
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in ROOT.glob("docs/**/*.md")
    if any(block["title"] for block in BLOCK.finditer(page.read_text()))
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_its_commands_print(page: str, tmp_path: Path) -> None:
    played = list(steps(page))
    needs(*(program for program in PROGRAMS if any(step.text.startswith(program) for step in played)))
    if any(step.text.startswith("node") for step in played):
        (tmp_path / "node_modules").symlink_to(node_modules() / "node_modules")
    with terminal(tmp_path) as here:
        for step in played:
            printed = here.play(step)
            assert step.title or same(step.shown, printed), (
                f"$ {step.text}\n{printed}\n— and {page} shows\n{step.shown}"
            )


@pytest.mark.parametrize("page", PAGES)
def test_python_can_read_the_files_of_a_page(page: str) -> None:
    for step in steps(page):
        if step.title and step.title.endswith(".py"):
            compile(step.text, step.title, "exec", dont_inherit=True)


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("200\n", "200\n", True),
        ("200\n", "429\n", False),
        ("retry-after: 60\n", "retry-after: 58\r\n", True),
        ("retry-after: 60\n", "retry-after: 30\n", False),
        ('"a";r=4;t=60\n', '"a";r=3;t=60\n', False),
        ("date: Wed, 18 Nov 2026 13:06:27 GMT\nok\n", "date: Thu, 19 Nov 2026 00:00:00 GMT\nok\n", True),
        ("again in 900000 seconds\n", "again in 7 seconds\n", True),
        ("", "error\n", False),
        ("id …, 3 left\n", "id 71, 3 left\n", True),
        ("id …, 3 left\n", "id 71\n2, 3 left\n", False),
        ("one\n…\nwait 60 s\n", "one\ntwo\nthree\nwait 59 s\n", True),
        ("one\n…\nwait 60 s\n", "one\ntwo\nwait 30 s\n", False),
        ("one\n…\n", "one\n", True),
    ],
)
def test_what_a_command_prints_is_compared_with_what_the_page_shows(shown: str, printed: str, is_same: bool) -> None:
    assert same(shown, printed) is is_same
