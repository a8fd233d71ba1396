"""Texts with wildcards, filed by the piece that tells them apart best, so that a thousand cost what ten do.

`v*-7` has the pieces `v` and `-7`. What fits it begins with the first, ends with the last and holds those between: any
one of them finds all that may fit a text, and only these few are then compared as a whole.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")

GRAM = 8  # characters that a piece in the middle is known by: it bounds the depth of the expression that looks for them


class Filing(NamedTuple):
    """A place to file under."""

    side: Literal["first", "last", "within"]
    text: str


def filings(pieces: Sequence[str]) -> list[Filing]:
    """Where a wildcard may be filed, the quickest to look up first. Every text begins with nothing."""
    first, *middle, last = pieces
    found = [Filing("first", first), *([Filing("last", last)] if last else ())]
    for piece in filter(None, middle):
        found += [Filing("within", piece[at : at + GRAM]) for at in range(max(len(piece) - GRAM, 0) + 1)]
    return found


class WildcardIndex(Generic[T]):
    """Values by filing, to be found by text."""

    __slots__ = ("_first", "_grams", "_last", "_within")

    def __init__(self, filed: Mapping[Filing, T]) -> None:
        self._first = _by_length(filed, "first")
        self._last = _by_length(filed, "last")
        grams = {filing.text: value for filing, value in filed.items() if filing.side == "within"}
        # The longest one is found at each place, and stands for those that it begins with.
        self._within = {gram: [grams[g] for g in grams if gram.startswith(g)] for gram in grams} if grams else {}
        self._grams = re.compile(_any_of(grams)) if grams else None

    def find(self, text: str) -> list[T]:
        """The values of every filing that fits the text, each once."""
        found: list[T] = []
        length = len(text)
        for size, table in self._first:
            if size <= length and (prefix := text[:size]) in table:
                found.append(table[prefix])
        for size, table in self._last:
            if size <= length and (suffix := text[length - size :]) in table:
                found.append(table[suffix])
        if self._grams is not None:
            search, place = self._grams.search, 0
            seen: dict[str, None] = {}
            while (gram := search(text, place)) is not None:
                seen[gram.group()] = None
                place = gram.start() + 1
            values = {id(value): value for gram in seen for value in self._within[gram]}
            found += values.values()
        return found


def _by_length(filed: Mapping[Filing, T], side: str) -> list[tuple[int, dict[str, T]]]:
    tables: dict[int, dict[str, T]] = {}
    for filing, value in filed.items():
        if filing.side == side:
            tables.setdefault(len(filing.text), {})[filing.text] = value
    return sorted(tables.items(), key=lambda table: table[0])


def _any_of(texts: Collection[str]) -> str:
    """A regular expression for the longest of these, which looks at each character once."""
    heads: dict[str, list[str]] = {}
    for text in filter(None, texts):
        heads.setdefault(text[0], []).append(text[1:])
    if not heads:
        return ""
    branches = "|".join(re.escape(head) + _any_of(rests) for head, rests in sorted(heads.items()))
    return f"(?:{branches})?" if "" in texts else f"(?:{branches})"
