"""The guide to the algorithms: its pictures are what the kernels draw now, and its examples run."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ratebound.limit import ALGORITHMS
from ratebound.testing import nothing_sleeps

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    pictures: dict[str, str] = runpy.run_path(str(ROOT / "tools" / "draw_algorithms.py"))["draw_pictures"]()
    return pictures


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_committed_picture_is_what_the_kernels_draw_now(drawn: dict[str, str], algorithm: str) -> None:
    committed = (ROOT / "docs" / "pictures" / f"{algorithm}.svg").read_text(encoding="utf-8")
    assert committed == drawn[f"{algorithm}.svg"], "draw anew: python tools/draw_algorithms.py"


def test_there_is_one_picture_for_each_algorithm_and_no_other(drawn: dict[str, str]) -> None:
    expected = {f"{algorithm}.svg" for algorithm in ALGORITHMS}
    assert set(drawn) == expected
    assert {path.name for path in (ROOT / "docs" / "pictures").iterdir()} == expected


def test_a_picture_shows_every_request_with_its_verdict(drawn: dict[str, str]) -> None:
    tree = ElementTree.fromstring(drawn["fixed-window.svg"])
    told = re.search(r"(\d+) of (\d+) admitted, at most (\d+) in any second", tree.attrib["aria-label"])
    assert told is not None
    admitted, asked, most = map(int, told.groups())
    dots = len(tree.findall("{*}circle"))
    crosses = sum(element.attrib["stroke"] == "#cf222e" for element in tree.findall("{*}path"))
    assert dots == 2 * admitted + 1  # asked, goes ahead, legend
    assert crosses == asked - admitted + 1
    assert most == 20


def test_token_bucket_and_gcra_differ_in_the_view_alone(drawn: dict[str, str]) -> None:
    def dots(name: str) -> list[str]:
        return [line for line in drawn[name].splitlines() if line.startswith("<circle")]

    assert dots("token-bucket.svg") == dots("gcra.svg")
    assert dots("token-bucket.svg") != dots("leaky-bucket.svg")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_guide_has_a_section_and_the_picture_of_each_algorithm(algorithm: str) -> None:
    section = GUIDE.split(f"\n## {algorithm}\n", 1)[1].split("\n## ", 1)[0]
    assert section.count(f"](pictures/{algorithm}.svg)") == 1
    assert "**Costs:**" in section or "**Promises and costs:**" in section


def test_the_examples_of_the_guide_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", float)
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(examples) == 2
    with nothing_sleeps():
        for example in examples:
            exec(compile(example, "algorithms.md", "exec"), {})
