"""The pages of the documentation, and the blocks of code in them."""

import re
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(
    r"^(?P<indent> *)(?P<marks>`{3,})(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=marks)$", re.DOTALL | re.M
)


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    title: str = ""

    @property
    def is_file(self) -> bool:
        """True for a file of an example, which has its name as a title. Before and After are titles of code."""
        return self.title not in ("", "Before", "After")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def all_blocks(page: str) -> list[Block]:
    """Return the blocks of a page, those in lists and tabs too."""
    text = read(page)
    return [
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found["info"].partition(" ")[0],
            dedent(found["text"]),
            "".join(re.findall(r'title="([^"]*)"', found["info"])),
        )
        for found in FENCE.finditer(text)
    ]


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a page in a language that run as they stand.

    `terminal.py` plays files. Blocks with the title Before need other packages: `test_migrate.py` runs them.
    """
    ours = [block for block in all_blocks(page) if not block.is_file and block.title != "Before"]
    return [block.text for block in ours if block.language == language]


def prose(page: str) -> str:
    """Return a page without its code, and with its lines where they are."""
    text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), read(page))
    return re.sub(r"`[^`]*`", lambda found: "`…`" + "\n" * found[0].count("\n"), text)
