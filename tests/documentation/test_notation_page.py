"""The page of the notation: its examples parse, its mistakes do not, and it has every word that the parser knows."""

import re

import pytest

from ratebound import InvalidLimit, parse_limits
from ratebound import limit as bounds
from ratebound.calendar_period import WEEKDAYS
from ratebound.limit import ALGORITHMS, limit_set
from ratebound.notation import (
    ALIASES,
    CALENDAR_NAMES,
    CALENDAR_OPTIONS,
    DISTINCT_OPTIONS,
    MAX_TEXT,
    OPTIONS,
    PENALTY_OPTIONS,
    SLOT_OPTIONS,
    STRIKES,
    UNIT_NAMES,
)
from tests.documentation.pages import FENCE, read

PAGE = "docs/reference/notation.md"


def first_cells(heading: str) -> list[str]:
    """Return the code in the first cells of all tables whose first column has this heading."""
    tables = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)", read(PAGE), re.MULTILINE)
    return [code.replace("\\|", "|") for table in tables for code in re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)]


@pytest.mark.parametrize("text", first_cells("Example"))
def test_an_example_parses_and_what_it_says_parses_back(text: str) -> None:
    limits = limit_set(parse_limits(text))
    assert tuple(parse_limits("; ".join(map(str, limits)))) == limits


@pytest.mark.parametrize("text", first_cells("Wrong"))
def test_a_mistake_raises(text: str) -> None:
    with pytest.raises(InvalidLimit):
        parse_limits(text)


def test_every_word_of_the_notation_is_on_the_page() -> None:
    assert len(first_cells("Example")) > 30
    words = {*UNIT_NAMES, *CALENDAR_NAMES, *ALGORITHMS, *ALIASES, *WEEKDAYS, *STRIKES, "then", "per", "concurrent"}
    words |= {*OPTIONS, *CALENDAR_OPTIONS, *SLOT_OPTIONS, *DISTINCT_OPTIONS, *PENALTY_OPTIONS, "allow", "deny"}
    code = " ".join(re.findall(r"`([^`]+)`", FENCE.sub("", read(PAGE))))
    found = set(re.findall(r"[a-z]+(?:-[a-z]+)*", code))
    assert words - found == set()


def test_the_units_of_the_page_are_those_of_the_parser() -> None:
    table = re.search(r"^\| Unit \|.*\n\|[-|]+\n((?:\|.*\n)+)", read(PAGE), re.MULTILINE)
    assert table is not None
    assert set(re.findall(r"`(\w+)`", table[1])) == set(UNIT_NAMES)


def test_the_bounds_of_the_page_are_those_of_the_parser() -> None:
    year, day, second = bounds.UNITS["year"], bounds.UNITS["day"], bounds.UNITS["second"]
    expected = {
        "count, burst": ("1", str(bounds.MAX_COUNT)),
        "period": ("1 microsecond", f"{bounds.MAX_PERIOD // year} years"),
        "time to refill a burst": ("", f"{bounds.MAX_SPAN // year} years"),
        "count of a sliding log without `large`": ("1", str(bounds.LOG_COUNT)),
        "slots": ("1", str(bounds.MAX_SLOTS)),
        "lease of a slot": ("1 second", f"{bounds.MAX_LEASE // day} day"),
        "distinct values": ("1", f"{bounds.MAX_VALUES}, or {bounds.MAX_LARGE_VALUES} with `large`"),
        "strikes": ("1", str(bounds.MAX_STRIKES)),
        "times of a block": ("1", str(bounds.MAX_BLOCKS)),
        "length of a block, `forget`": (f"{bounds.ONE_STRIKE // second} second", f"{bounds.MAX_BLOCK // year} year"),
        "name": ("1", "64 characters"),
        "text": ("1", f"{MAX_TEXT} characters"),
    }
    table = re.search(r"^\| What \| From \| To \|\n\|[-|]+\n((?:\|.*\n)+)", read(PAGE), re.MULTILINE)
    assert table is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    assert {what: (least, most) for what, least, most in rows} == expected
