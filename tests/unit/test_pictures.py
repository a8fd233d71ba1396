"""The guide to the algorithms: its pictures are what the kernels draw now, and its examples run."""

import re
import runpy
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ratebound.limit import ALGORITHMS, CALENDAR, CONCURRENT
from ratebound.testing import nothing_sleeps

ROOT = Path(__file__).parent.parent.parent
# Every picture, and the section of the guide that shows it.
SECTIONS = {**dict(zip(ALGORITHMS, ALGORITHMS, strict=True)), CALENDAR: "Calendar quotas", CONCURRENT: "Concurrency"}
SCREENSHOTS = {"dashboard.png", "dashboard-dark.png", "dashboard-phone.png"}  # by tools/picture_dashboard.py
SCREENSHOTS |= {"history.png", "ledger-report.png"}  # by tools/picture_ledger.py
MEASURED = {"overload.svg", "fleet.svg"}  # drawn by `python -m benchmarks overload --picture`, and fleet
GUIDE = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    pictures: dict[str, str] = runpy.run_path(str(ROOT / "tools" / "draw_algorithms.py"))["draw_pictures"]()
    return pictures


@pytest.mark.parametrize("algorithm", SECTIONS)
def test_the_committed_picture_is_what_the_kernels_draw_now(drawn: dict[str, str], algorithm: str) -> None:
    committed = (ROOT / "docs" / "pictures" / f"{algorithm}.svg").read_text(encoding="utf-8")
    assert committed == drawn[f"{algorithm}.svg"], "draw anew: python tools/draw_algorithms.py"


def test_there_is_one_picture_for_each_algorithm_and_no_other(drawn: dict[str, str]) -> None:
    expected = {f"{algorithm}.svg" for algorithm in SECTIONS}
    assert set(drawn) == expected
    assert {path.name for path in (ROOT / "docs" / "pictures").iterdir()} - MEASURED - SCREENSHOTS == expected


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


def test_the_calendar_quota_shows_the_same_requests_in_months_of_different_lengths(drawn: dict[str, str]) -> None:
    def lines(name: str) -> list[float]:
        found = re.findall(r'<path d="M([0-9.]+) 44V', drawn[name])
        return [float(after) - float(before) for before, after in pairwise(found)]

    assert "37 of 51 admitted, at most 20 in any month" in drawn["calendar.svg"]
    assert "37 of 51 admitted, at most 20 in any second" in drawn["fixed-window.svg"]
    assert len({round(width) for width in lines("fixed-window.svg")}) == 1
    january, february, march, april = lines("calendar.svg")
    assert february < april < january
    assert march == pytest.approx(january, abs=1), "an hour shorter, which can hardly be seen"


def test_the_picture_of_slots_shows_one_bar_for_each_that_was_held(drawn: dict[str, str]) -> None:
    tree = ElementTree.fromstring(drawn["concurrent.svg"])
    told = re.search(r"(\d+) of (\d+) admitted, never more than 3 at once", tree.attrib["aria-label"])
    assert told is not None
    admitted, asked = map(int, told.groups())
    dots = len(tree.findall("{*}circle"))
    assert dots == admitted + 1  # and one in the legend
    crosses = sum(element.attrib["stroke"] == "#cf222e" for element in tree.findall("{*}path"))
    assert crosses == asked - admitted + 1
    bars = [element for element in tree.findall("{*}rect") if element.attrib.get("height") == "10"]
    assert len(bars) == admitted + 1, "and the rest of the lease of the one whose process died"
    assert len({bar.attrib["y"] for bar in bars}) == 3


@pytest.mark.parametrize("algorithm", SECTIONS)
def test_the_guide_has_a_section_and_the_picture_of_each_algorithm(algorithm: str) -> None:
    section = GUIDE.split(f"\n## {SECTIONS[algorithm]}\n", 1)[1].split("\n## ", 1)[0]
    assert section.count(f"](pictures/{algorithm}.svg)") == 1
    assert "**Costs:**" in section or "**Promises and costs:**" in section


def test_the_examples_of_the_guide_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", float)
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(examples) == 6
    with nothing_sleeps():
        for example in examples:
            exec(compile(example, "algorithms.md", "exec"), {})
