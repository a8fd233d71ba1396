"""Spelling, and our own word list: one spelling for each term, and no phrase that readers stumble over."""

import re
import subprocess
import sys

import pytest

from tests.documentation.pages import PAGES, ROOT, prose

SPELLINGS = {
    r"behavior": "behaviour",
    r"canceled": "cancelled",
    r"e\.g\.": "for example",
    r"i\.e\.": "that is",
    r"in order to": "to",
    r"Memcache": "Memcached",
    r"Nginx|NGINX": "nginx",
    r"Postgres": "PostgreSQL",
    r"rate-limiting|ratelimiting": "rate limiting",
    r"startup": "start-up",
    r"time-outs?": "timeout",
    r"to (?:setup|login|logout|rollback|backup)": "to set up, to log in, to log out, to roll back, to back up",
    r"utili[sz]e[sd]?": "use",
    r"whitelists?|blacklists?": "allow list, block list",
}
PHRASES = {
    r'"""Whether': "Return True if …",
    r"[Ww]ho asks": "name the caller",
    r"that of an?": "name the thing again",
    r"[Tt]o be seen": "name what is seen",
    r"[Ww]hat was made of": "name the result",
    r"of whom it": "name the client",
    r"[Ww]hat to know": "Limitations",
    r"on its way out": "when the response is sent",
    r"what nobody has": "exceeds every limit",
    r"how much too much": "how far the limit can be exceeded",
    r"(?:begins?|began) anew": "starts from zero, starts again, resets",
    r"all the same": "anyway, still",
    r"for want of": "because no … is free",
    r"nobody knows": "it is unknown",
    r"stands? in for": "replaces",
    r"(?:server|service|storage|Redis|Ratebound) is away": "is down",
}
SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.py"))


def found_in(text: str, wrong: dict[str, str]) -> list[str]:
    """Return `line: word → what to write` for everything in a text that the list has."""
    return [
        f"{text.count(chr(10), 0, found.start()) + 1}: {found[0]} → {right}"
        for pattern, right in wrong.items()
        for found in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", text)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_word_of_our_list(page: str) -> None:
    assert found_in(prose(page), SPELLINGS | PHRASES) == []


def test_the_code_has_no_phrase_of_our_list() -> None:
    found = {path: found_in((ROOT / path).read_text(encoding="utf-8"), PHRASES) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("one\nThe Nginx proxy", ["2: Nginx → nginx"]),
        ('    """Whether it is so."""', ['1: """Whether → Return True if …']),
        ("nginx, X-Postgres-Name", []),
    ],
)
def test_words_of_the_list_are_found_as_words(text: str, right: list[str]) -> None:
    assert found_in(text, SPELLINGS | PHRASES) == right


def test_codespell_finds_no_mistake() -> None:
    """Words that are meant are in [tool.codespell] of pyproject.toml."""
    command = [sys.executable, "-m", "codespell_lib", *PAGES, "docs", "src", "examples"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
