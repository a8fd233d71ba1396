"""The glossary has every word that names a concept, once."""

import re

from tests.documentation.pages import read

WORDS = [
    "limit",
    "count",
    "period",
    "burst",
    "cost",
    "key",
    "value",
    "state",
    "outcome",
    "decision",
    "verdict",
    "rule",
    "policy",
    "identity",
    "tier",
    "storage",
    "slot",
    "lease",
    "slice",
    "penalty",
    "strike",
    "block",
    "rejection",
    "grant",
    "settle",
    "reserve",
    "shadow",
]


def test_every_concept_has_its_word_in_the_glossary_once() -> None:
    found = [
        word
        for cell in re.findall(r"^\| (\*\*.*?) \|", read("docs/glossary.md"), re.M)
        for word in re.findall(r"\*\*(.+?)\*\*", cell)
    ]
    assert len(found) == len(set(found))
    assert set(WORDS) - set(found) == set()
