"""Messages that pages quote, and the messages in the source. `…` stands for a part that varies."""

import ast
import re
from functools import cache
from itertools import chain
from pathlib import Path

from tests.documentation.pages import ROOT, read

CONVERSION = re.compile(r"%%|%(?:\(\w+\))?[-+ #0-9.]*[a-zA-Z]|\{[a-z_]*(?::\w+)?\}")  # of % and str.format
TABLE = re.compile(r"^\| (?:Log message|Message) \|.*\n\|[-|: ]+\n(?P<rows>(?:\|.*\n)+)", re.MULTILINE)
ROW = re.compile(r"^\| (?P<marks>`+) ?(?P<message>.+?) ?(?P=marks) \|", re.MULTILINE)
SOURCE = ROOT / "src" / "ratebound"


def quoted_messages(page: str) -> list[str]:
    """Return the messages of a page: the first cells of tables whose first column is Message or Log message."""
    tables = [found["rows"] for found in TABLE.finditer(read(page))]
    rows = list(chain.from_iterable(table.splitlines() for table in tables))
    found = [match["message"] for match in map(ROW.match, rows) if match]
    assert len(found) == len(rows), [row for row in rows if not ROW.match(row)]
    return found


def text_of(node: ast.AST | None) -> str | None:
    """Return the text of a literal, with `…` for what is put in; None for another expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "…" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        return CONVERSION.sub("…", text)
    return None


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def source_texts() -> frozenset[str]:
    """Return the texts of all literals of the source."""
    return frozenset(filter(None, (text_of(node) for tree in trees().values() for node in ast.walk(tree))))


def pattern_of(message: str) -> re.Pattern[str]:
    """Return a pattern that finds a quoted message in a text of the source."""
    fixed = [re.escape(part) for part in CONVERSION.sub("…", message).split("…")]
    return re.compile(".*".join(fixed), re.DOTALL)


def is_in_source(message: str) -> bool:
    longest = max(CONVERSION.sub("…", message).split("…"), key=len)  # most texts have not even this
    pattern = pattern_of(message)
    return any(pattern.search(text) for text in source_texts() if longest in text)


def is_quoted(text: str, messages: list[str]) -> bool:
    """Return True if one of these messages is a text of the source, or its beginning."""
    return any(len(message) > 3 and pattern_of(message).match(text) for message in messages)


@cache
def first_texts() -> dict[str, set[str]]:
    """Return the first text among the arguments of every call, by the name of the function or class."""
    constants = {
        (path, ast.unparse(target)): text
        for path, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.Assign) and (text := text_of(node.value))
        for target in node.targets
    }
    found: dict[str, set[str]] = {}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                texts = [text_of(one) or constants.get((path, ast.unparse(one))) for one in node.args[:2]]
                found.setdefault(name, set()).update([text for text in texts if text and text.strip("…: ")][:1])
    return found
