"""The simulation of fleets: its arithmetic, its promise, and that docs/guides/fleet.md has what it says now."""

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import fleet
from benchmarks.fleet import CHOICE, SCALE, SCENARIOS, TRAFFIC, USER, WORST, Fleets, Pair, denial_row, draw, play, row
from benchmarks.slices_simulation import PATTERNS, Scenario, busiest, gives, simulate

from ratebound import parse_limit
from ratebound.clock import SECOND
from ratebound.storage.shared_memory.layout import CELL, SHARDS, divided

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "guides" / "fleet.md").read_text(encoding="utf-8")
LONG = bool(os.environ.get("RATEBOUND_LONG"))
SHORT = (USER[0], USER[2], USER[4], SCALE[1])  # they take about a second
SMALL = Scenario("small", processes=4, limit="1000/10 seconds burst 100", seconds=8)


def line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def table(head: tuple[str, ...]) -> list[list[str]]:
    """Return the rows of all tables of the page with this head."""
    rows = []
    for part in PAGE.split(line(head) + "\n")[1:]:
        lines = part.split("\n\n", 1)[0].splitlines()[1:]
        rows += [[cell.strip() for cell in text.strip("|").split("|")] for text in lines]
    return rows


@pytest.mark.parametrize(
    ("text", "seconds", "units"),
    [
        ("600/minute burst 30", 1, 40),
        ("600/minute burst 30", 60, 630),
        ("600/minute sliding-log", 60, 600),
        ("600/minute sliding-log", 61, 1200),
        ("600/minute sliding-counter", 60, 1200),
        ("600/minute sliding-counter", 6, 660),
        ("600/minute fixed-window", 60, 1200),
        ("600/minute fixed-window", 1, 1200),
    ],
)
def test_a_limit_gives_so_much_in_the_worst_time(text: str, seconds: int, units: float) -> None:
    assert gives(parse_limit(text), seconds * SECOND) == pytest.approx(units)


def test_the_busiest_time_is_half_open() -> None:
    assert busiest([], 10) == 0
    assert busiest([0, 9, 10, 11, 30], 10) == 3
    assert busiest([0, 10, 20], 10) == 1


def test_a_scenario_always_gives_the_same_run() -> None:
    scenario = SMALL._replace(outage="local", seconds=30)
    assert simulate(scenario) == simulate(scenario)


def test_without_slices_each_decision_is_a_trip_and_nothing_is_lost() -> None:
    run = simulate(SMALL.without_slices()._replace(load=2.0))
    assert run.trips == run.asked
    assert run.charged == run.passes < run.asked


def test_slices_save_trips_of_a_hot_key_and_deny_nothing_below_the_limit() -> None:
    run = simulate(SMALL)
    assert run.passes == run.asked
    assert run.trips < run.asked / 2


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("algorithm", ["burst 100", "gcra", "sliding-counter", "sliding-log", "fixed-window"])
def test_no_more_passes_than_slices_promise(algorithm: str, pattern: str) -> None:
    scenario = SMALL._replace(limit=f"1000/10 seconds {algorithm}", pattern=pattern, load=2.0, seconds=24, deaths=0.5)
    run = simulate(scenario)
    for length in (SECOND // 10, SECOND, 5 * SECOND, 10 * SECOND):
        assert run.most_in(length) <= run.promised_in(length)


def test_in_an_outage_slices_are_used_up_and_the_rest_is_denied() -> None:
    scenario = SMALL._replace(outage="closed", seconds=30, limit="20000/10 seconds burst 2000", load=0.5)
    sliced, plain = play(scenario)
    assert plain.passes < sliced.passes < sliced.asked


def test_every_scenario_is_in_the_page() -> None:
    assert len(table(fleet.HEAD)) == len(SCALE) + len(CHOICE) + len(TRAFFIC)
    assert len(table(fleet.DENIAL_HEAD)) == len(USER)
    assert len(table(fleet.WORST_HEAD)) == len(WORST)


@pytest.mark.parametrize("scenario", SCENARIOS if LONG else SHORT)
def test_the_page_has_the_figures_of_the_simulation(scenario: Scenario) -> None:
    pair = play(scenario)
    rows = [denial_row(pair)] if scenario in USER else []
    rows += [row(pair)] if scenario in [*SCALE, *CHOICE, *TRAFFIC] else []
    rows += [fleet.worst_row(pair)] if scenario in WORST else []
    assert rows
    for cells in rows:
        assert line(cells) in PAGE, "play it again: python -m benchmarks fleet --only simulation"


def test_the_formula_of_the_page_for_trips_holds_in_its_table() -> None:
    """It holds where the demand decides the size of a slice. Above that, the share does."""
    assert "1.25 / x" in PAGE
    checked = 0
    for cells in table(fleet.HEAD)[: len(SCALE)]:
        asked, trips = float(cells[3]), float(cells[4])
        if 2 <= asked <= 60:
            assert trips * asked == pytest.approx(1.25, rel=0.2)
            checked += 1
    assert checked >= 4


def test_the_page_says_how_many_states_a_zone_holds() -> None:
    cells = SHARDS * divided(64 << 20).cells
    told = re.search(r"64 MB holds ([\d ]+) cells of (\d+) bytes", PAGE)
    assert told is not None
    assert (int(told[1].replace(" ", "")), int(told[2])) == (cells, CELL)


def test_the_picture_is_well_formed() -> None:
    pair = play(SMALL)
    drawn = draw(Fleets({scenario: Pair(pair.sliced, pair.plain) for scenario in SCALE}))
    assert len(ElementTree.fromstring(drawn).findall("{*}circle")) == 2 * len(SCALE)


@pytest.mark.skipif(not LONG, reason="plays all fleets of the picture: set RATEBOUND_LONG=1")
def test_the_committed_picture_is_what_the_simulation_draws_now() -> None:
    committed = (ROOT / "docs" / "pictures" / "fleet.svg").read_text(encoding="utf-8")
    assert committed == draw(fleet.measure_fleets(SCALE, lambda: None))
