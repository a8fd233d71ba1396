"""Drawn pictures are what their tools draw now, and the guide to the algorithms has them, with examples that run."""

import json
import re
import runpy
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ratebound.limit import ALGORITHMS, CALENDAR, CONCURRENT, Algorithm
from ratebound.testing import nothing_sleeps

ROOT = Path(__file__).parent.parent.parent
# Every picture, and the section of the guide that shows it.
SECTIONS: dict[str, str] = {name: name for name in ALGORITHMS}
SECTIONS |= {CALENDAR: "Calendar quotas", CONCURRENT: "Concurrency"}
SCREENSHOTS = {"dashboard.png", "dashboard-dark.png", "dashboard-phone.png"}  # by tools/picture_dashboard.py
SCREENSHOTS |= {"history.png", "ledger-report.png"}  # by tools/picture_ledger.py
MEASURED = {"overload.svg", "fleet.svg"}  # drawn by `python -m benchmarks overload --picture`, and fleet
OTHERS = {"architecture.svg", "hero.svg", "outage.svg"}  # by the other tools/draw_*.py
GUIDE = (ROOT / "docs" / "explanation" / "algorithms.md").read_text(encoding="utf-8")


def drawn_by(tool: str) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        pictures: dict[str, str] = runpy.run_path(str(ROOT / "tools" / f"{tool}.py"))["draw_pictures"]()
    return pictures


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return drawn_by("draw_algorithms")


@pytest.fixture(scope="module")
def hero() -> str:
    return drawn_by("draw_hero")["hero.svg"]


def title(tree: ElementTree.Element) -> str:
    found = tree.findtext("{*}title")
    assert found
    return found


def crosses(tree: ElementTree.Element) -> int:
    return sum(element.attrib["class"] == "red-line" for element in tree.findall("{*}path"))


@pytest.mark.parametrize("algorithm", SECTIONS)
def test_the_committed_picture_is_what_the_kernels_draw_now(drawn: dict[str, str], algorithm: Algorithm) -> None:
    committed = (ROOT / "docs" / "pictures" / f"{algorithm}.svg").read_text(encoding="utf-8")
    assert committed == drawn[f"{algorithm}.svg"], "draw anew: python tools/draw_algorithms.py"


def test_there_is_one_picture_for_each_algorithm_and_no_other(drawn: dict[str, str]) -> None:
    expected = {f"{algorithm}.svg" for algorithm in SECTIONS}
    assert set(drawn) == expected
    assert {path.name for path in (ROOT / "docs" / "pictures").iterdir()} - MEASURED - SCREENSHOTS - OTHERS == expected


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other_drawings_are_what_their_tools_draw_now(name: str) -> None:
    committed = (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8")
    assert committed == drawn_by(f"draw_{name.removesuffix('.svg')}")[name], "draw anew: make pictures"


def test_the_hero_is_small_and_moves_only_for_readers_who_allow_motion(hero: str) -> None:
    assert len(hero.encode()) < 60_000
    assert "<script" not in hero
    still, moving = hero.split("@media(prefers-reduced-motion:no-preference)")
    assert "animation" not in still
    assert moving.split("</style>")[0].count("animation:") > 30
    assert "animat" not in moving.split("</style>")[1]


def test_the_hero_tells_screen_readers_what_the_limits_answered(hero: str) -> None:
    tree = ElementTree.fromstring(hero)
    told = tree.findtext("{*}desc") or ""
    assert title(tree) == "The same requests at a token bucket and at a fixed window"
    dots = sum(element.attrib["class"].startswith("green p") for element in tree.findall(".//{*}circle"))
    passed = [int(many) for many in re.findall(r"(\d+) of \d+ requests pass", told)]
    assert len(passed) == 2
    assert dots == sum(passed)
    assert "Fixed window, 5/second fixed-window" in told
    assert "at most 10 in any second" in told


def test_the_page_about_failures_has_the_figures_of_the_recorded_outage() -> None:
    page = (ROOT / "docs" / "explanation" / "failure.md").read_text(encoding="utf-8")
    section = " ".join(page.split("### A measured outage\n")[1].split("\n#")[0].split())
    recorded = json.loads((ROOT / "benchmarks" / "storage_outage.json").read_text(encoding="utf-8"))
    modes = recorded["modes"]
    opened = [round(1000 * (mode["changes"][0]["at"] - recorded["killed"])) for mode in modes]
    closed = [round(1000 * (mode["changes"][1]["at"] - recorded["started"])) for mode in modes]
    assert f"The limit is `{recorded['limit']}`, with `workers={recorded['workers']}`" in section
    assert f"opened {min(opened)} to {max(opened)} ms after the kill" in section
    assert f"{modes[0]['changes'][1]['written_back']} units were written back" in section
    assert f"decided again {min(closed)} to {max(closed)} ms after its start" in section
    assert f"took {max(mode['slowest_ms'] for mode in modes)} ms" in section


def test_a_picture_shows_every_request_with_its_verdict(drawn: dict[str, str]) -> None:
    tree = ElementTree.fromstring(drawn["fixed-window.svg"])
    told = re.search(r"(\d+) of (\d+) admitted, at most (\d+) in any second", title(tree))
    assert told is not None
    admitted, asked, most = map(int, told.groups())
    dots = len(tree.findall("{*}circle"))
    assert dots == 2 * admitted + 1  # asked, goes ahead, legend
    assert crosses(tree) == asked - admitted + 1
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
    told = re.search(r"(\d+) of (\d+) admitted, never more than 3 at once", title(tree))
    assert told is not None
    admitted, asked = map(int, told.groups())
    dots = len(tree.findall("{*}circle"))
    assert dots == admitted + 1  # and one in the legend
    assert crosses(tree) == asked - admitted + 1
    bars = [element for element in tree.findall("{*}rect") if element.attrib.get("height") == "10"]
    assert len(bars) == admitted + 1, "and the rest of the lease of the one whose process died"
    assert len({bar.attrib["y"] for bar in bars}) == 3


@pytest.mark.parametrize("algorithm", SECTIONS)
def test_the_guide_has_a_section_and_the_picture_of_each_algorithm(algorithm: Algorithm) -> None:
    section = GUIDE.split(f"\n## {SECTIONS[algorithm]}\n", 1)[1].split("\n## ", 1)[0]
    assert section.count(f"](../pictures/{algorithm}.svg)") == 1
    assert "**Costs:**" in section or "**Promises and costs:**" in section


def test_the_examples_of_the_guide_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", float)
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(examples) == 6
    with nothing_sleeps():
        for example in examples:
            exec(compile(example, "algorithms.md", "exec"), {})
