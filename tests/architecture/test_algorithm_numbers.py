"""Python and Lua call a kernel by the same number, and by a name wherever it is compared."""

import re

from ratebound.limit import ALGORITHMS
from ratebound.storage.redis.script import NUMBERS, SOURCE


def test_every_algorithm_has_a_number_of_its_own() -> None:
    assert NUMBERS.keys() == {*ALGORITHMS, "quota", "concurrent", "distinct", "penalty"}
    assert len(set(NUMBERS.values())) == len(NUMBERS)


def test_lua_has_the_same_numbers() -> None:
    named = {name.upper().replace("-", "_"): number for name, number in NUMBERS.items()}
    written = dict(re.findall(r"^local ([A-Z_]+) = (\d+)", SOURCE, re.M))
    assert {name: int(written[name]) for name in named} == named


def test_lua_compares_an_algorithm_with_names_only() -> None:
    compared = re.findall(r"\balgorithm\s*[<>=~]=?\s*(\w+)", SOURCE)
    assert set(compared) == {name.upper().replace("-", "_") for name in NUMBERS}


def test_the_numbers_do_not_change() -> None:
    """Programs of two versions may share one Redis: a number stays what it is."""
    assert NUMBERS == {
        "token-bucket": 0,
        "gcra": 1,
        "leaky-bucket": 2,
        "fixed-window": 3,
        "sliding-log": 4,
        "sliding-counter": 5,
        "quota": 6,
        "concurrent": 7,
        "distinct": 8,
        "penalty": 9,
    }
