"""A table before it is drawn, on a terminal or in Markdown, and the texts of its figures."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.measure import Spread


class Sheet(NamedTuple):
    """A table before it is drawn, on a terminal or in Markdown."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def figures(found: Spread, scale: float = 1) -> tuple[str, str]:
    """Return the text of a median and of its quartiles."""
    return f"{found.median * scale:.2f}", between(found, scale)


def between(found: Spread, scale: float = 1) -> str:
    """Return the text of the quartiles."""
    return f"{found.low * scale:.2f}–{found.high * scale:.2f}"
