"""An index of texts with wildcards, so that a search among a thousand costs about as much as among ten.

`v*-7` has the pieces `v` and `-7`. A text that matches begins with the first piece, ends with the last and contains
those between. Each wildcard is indexed by one fragment of its pieces, the rarest. A search finds the wildcards whose
fragment occurs in the text; only these few are then compared as a whole.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")

GRAM = 8  # characters of a fragment within a text; bounds the depth of the regular expression that finds them


class Fragment(NamedTuple):
    """A part of every text that matches a wildcard: its beginning, its end, or a text within it."""

    side: Literal["first", "last", "within"]
    text: str


def fragments_of(pieces: Sequence[str]) -> list[Fragment]:
    """Return the fragments by which a wildcard can be indexed, the fastest to look up first. There is always one: every
    text begins with the empty text."""
    first, *middle, last = pieces
    found = [Fragment("first", first), *([Fragment("last", last)] if last else ())]
    for piece in filter(None, middle):
        found += [Fragment("within", piece[at : at + GRAM]) for at in range(max(len(piece) - GRAM, 0) + 1)]
    return found


class WildcardIndex(Generic[T]):
    """An index of values by fragment. `find` returns the values of all fragments that occur in a text."""

    __slots__ = ("_first", "_grams", "_last", "_within")

    def __init__(self, values: Mapping[Fragment, T]) -> None:
        self._first = _by_length(values, "first")
        self._last = _by_length(values, "last")
        grams = {fragment.text: value for fragment, value in values.items() if fragment.side == "within"}
        # The expression finds the longest gram at each position, so each gram has the values of its beginnings too.
        self._within = {gram: [grams[g] for g in grams if gram.startswith(g)] for gram in grams} if grams else {}
        self._grams = re.compile(_any_of(grams)) if grams else None

    def find(self, text: str) -> list[T]:
        """Return the values of every fragment that occurs in the text on its side, each once."""
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


def _by_length(values: Mapping[Fragment, T], side: str) -> list[tuple[int, dict[str, T]]]:
    tables: dict[int, dict[str, T]] = {}
    for fragment, value in values.items():
        if fragment.side == side:
            tables.setdefault(len(fragment.text), {})[fragment.text] = value
    return sorted(tables.items(), key=lambda table: table[0])


def _any_of(texts: Collection[str]) -> str:
    """Return a regular expression that matches the longest of these texts and reads each character once."""
    heads: dict[str, list[str]] = {}
    for text in filter(None, texts):
        heads.setdefault(text[0], []).append(text[1:])
    if not heads:
        return ""
    branches = "|".join(re.escape(head) + _any_of(rests) for head, rests in sorted(heads.items()))
    return f"(?:{branches})?" if "" in texts else f"(?:{branches})"
