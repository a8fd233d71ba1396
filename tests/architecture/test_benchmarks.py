"""Benchmarks: their arithmetic, the processes of both builds, and what they take apart. Nothing here needs a peer."""

import os
from pathlib import Path

import pytest
from benchmarks import builds, guard, hit_parts, slices, storages
from benchmarks.builds import COMPILED, FOLDERS, PURE, Worker, chosen, on_all_cores
from benchmarks.decision_table import decision_sheet, lines_of
from benchmarks.measure import Case, Contender, Spread, added, measure, ratios, spread, steps_of
from benchmarks.processes import Load, decisions_per_second
from benchmarks.prometheus_calls import calls_of_a_decision
from benchmarks.unasked_hit import unasked_hit
from benchmarks.verdict import at_least, at_most
from benchmarks.zones import evicted, own_zone, used, zone_for_processes
from prometheus_client import CollectorRegistry

import ratebound
from ratebound import Limiter, parse_limit, parse_limits
from ratebound.observe.prometheus import PrometheusListener
from tests.architecture import measured_in_tests
from tests.architecture.measured_in_tests import where

SMALL, WRONG = measured_in_tests.CASES
SMALL_SETTINGS = [
    hit_parts.Setting("gcra", hit_parts.HOT, denied=False),
    hit_parts.Setting("sliding-log, 10 entries", hit_parts.HOT, denied=True),
    hit_parts.Setting("four limits", hit_parts.HOT, denied=False),
]
needs_source = pytest.mark.skipif(getattr(ratebound, "compiled", False), reason="compiled code has no source to change")


@needs_source
def test_a_hit_without_its_check_for_listeners_decides_as_before() -> None:
    limiter = Limiter("1/day")
    storage = limiter.storage
    hit, asking = unasked_hit(limiter), Limiter("1/day", storage=storage).hit
    assert hit("a")
    assert not asking("a")
    assert asking("b")
    assert not hit("b")


@needs_source
def test_a_hit_without_its_check_for_listeners_tells_nobody() -> None:
    told: list[object] = []
    hit = unasked_hit(Limiter("1/day", listeners=[told.append]))
    assert hit("a")
    assert told == []


@pytest.mark.parametrize("allowed", [True, False])
def test_the_floor_of_the_prometheus_listener_counts_what_the_listener_counts(allowed: bool) -> None:
    text = "1/day"
    heard, floor = CollectorRegistry(), CollectorRegistry()
    listener = PrometheusListener(heard)
    limiter = Limiter(text, listeners=[] if not allowed else [listener])
    limiter.hit("a")
    if not allowed:
        denied = Limiter(text, storage=limiter.storage, listeners=[listener])
        assert not denied.hit("a")
    time, decision, share = calls_of_a_decision(parse_limit(text), allowed, floor)
    time(1e-6)
    decision()
    if share is not None:
        share(1.0)
    assert counted(floor) == counted(heard)


def counted(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the counts of a registry that are not zero."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name.endswith(("_total", "_count")) and sample.value
    }


def test_a_worker_imports_its_build_and_waits_after_every_step() -> None:
    steps: list[str] = []
    with Worker(PURE) as worker:
        greeting, file, process = worker.run(where, "hello", done=lambda: steps.append("done"))
        again = worker.run(where, "again")
    assert (greeting, Path(str(file))) == ("hello", FOLDERS[PURE] / "ratebound" / "__init__.py")
    assert process != os.getpid()
    assert (again[0], again[2]) == ("again", process)
    assert steps == ["done", "done"]


def test_a_worker_refuses_a_folder_with_the_other_build(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(FOLDERS, COMPILED, FOLDERS[PURE])
    with Worker(COMPILED) as worker, pytest.raises(SystemExit, match="worker of the compiled build failed"):
        worker.run(where, "hello")
    assert "is not a compiled build" in capfd.readouterr().err


def test_every_contender_runs_once_in_each_round_in_the_builds_that_can_run_it() -> None:
    steps: list[str] = []
    with Worker(PURE) as worker:
        times = measure(measured_in_tests.__name__, SMALL, [worker], 3, 1, lambda: steps.append("done"))
    assert {name: len(found) for name, found in times[PURE].items()} == {"ratebound a": 3, "peer b": 3}
    assert len(steps) == steps_of(SMALL, [PURE], 3) == 6
    assert steps_of(SMALL, [PURE, COMPILED], 3) == 15


def test_a_contender_that_decides_otherwise_than_the_case_says_stops_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    with Worker(PURE) as worker, pytest.raises(SystemExit):
        measure(measured_in_tests.__name__, WRONG, [worker], 1, 1, lambda: None)
    assert "wrong: peer that denies denied 100 of 100, expected 0" in capfd.readouterr().err


def test_without_a_compiled_build_the_pure_one_is_measured_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(FOLDERS, COMPILED, tmp_path)
    assert chosen("both") == (PURE,)
    assert "make compiled" in capsys.readouterr().err
    assert chosen(PURE) == (PURE,)
    with pytest.raises(SystemExit, match="make compiled"):
        chosen(COMPILED)
    (tmp_path / "ratebound").mkdir()
    assert chosen("both") == builds.BUILDS
    assert chosen(COMPILED) == (COMPILED,)


def test_a_ratio_and_a_difference_are_medians_of_pairs_of_one_round() -> None:
    ours, theirs = [1e-6, 2e-6, 4e-6], [3e-6, 4e-6, 20e-6]
    assert spread(ratios(ours, theirs)) == Spread(3.0, 2.5, 4.0)
    found = added({"ours": ours, "theirs": theirs}, "theirs", "ours")
    assert [round(each, 6) for each in found] == [2.0, 2.0, 9.0]
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_a_verdict_looks_at_the_median() -> None:
    found = Spread(10.0, 9.0, 11.0)
    assert at_least(PURE, "x", 10, found) == (PURE, "x", "at least 10", found, True)
    assert not at_least(PURE, "x", 10.01, found).passed
    assert at_most(COMPILED, "x", 10, found).passed
    assert not at_most(COMPILED, "x", 9.99, found).passed


def test_a_compiled_listener_is_judged_by_what_it_adds_to_a_hit_and_to_the_calls_that_it_makes() -> None:
    def hits(how: str, heard: float) -> dict[str, list[float]]:
        return {
            f"{how}: {guard.UNHEARD}": [0.2e-6],
            f"{how}: {guard.HEARD}": [heard],
            f"{how}: {guard.CALLS}": [3.2e-6],
            f"{how}: {guard.PROMETHEUS}": [4.1e-6],
        }

    found = guard.Guarding(
        {
            "calls": {COMPILED: {}},
            "allowed": {COMPILED: hits("hit", 0.45e-6)},
            "denied": {COMPILED: hits("hit", 0.55e-6)},
            "async allowed": {COMPILED: hits("await hit", 0.45e-6)},
            "async denied": {COMPILED: hits("await hit", 0.55e-6)},
        }
    ).verdicts()
    assert [round(verdict.found.median, 6) for verdict in found] == [0.25, 0.35, 0.25, 0.35, 0.9, 0.9]
    assert [verdict.passed for verdict in found] == [True, False, True, False, True, True]


def test_the_table_compares_a_peer_with_each_build_within_one_worker() -> None:
    case = Case("gcra", [contender("ratebound", "gcra"), contender("ratebound", "gcra, read"), contender("peer", "x")])
    times = {
        PURE: {"ratebound gcra": [2e-6], "ratebound gcra, read": [3e-6], "peer x": [4e-6]},
        COMPILED: {"ratebound gcra": [0.2e-6], "ratebound gcra, read": [0.5e-6], "peer x": [6e-6]},
    }
    sheet = decision_sheet([(case, times)])
    assert sheet.head[-4:] == ("times pure", "quartiles", "times compiled", "quartiles")
    assert [(row[0], row[1], row[3], row[5], row[7]) for row in sheet.rows] == [
        ("gcra", "ratebound gcra, pure", "2.00", "", "10.00"),
        ("", "ratebound gcra, compiled", "0.20", "0.10", ""),
        ("", "ratebound gcra, read, pure", "3.00", "1.50", "15.00"),
        ("", "ratebound gcra, read, compiled", "0.50", "0.25", "2.50"),
        ("", "peer x", "5.00", "2.00", "30.00"),
    ]
    of_peer = [line for line in lines_of([(case, times)]) if line.contender == "peer x"]
    assert [(line.build, round(line.times.median, 6)) for line in of_peer] == [(PURE, 2.0), (COMPILED, 30.0)]


def test_the_table_of_one_build_has_no_column_for_the_other() -> None:
    case = Case("gcra", [contender("ratebound", "gcra"), contender("peer", "x")])
    sheet = decision_sheet([(case, {PURE: {"ratebound gcra": [2e-6], "peer x": [4e-6]}})])
    assert sheet.head[-2:] == ("times pure", "quartiles")
    assert [len(row) for row in sheet.rows] == [len(sheet.head)] * 2


def test_a_hit_on_shared_memory_is_compared_with_the_sum_of_the_faster_lock_and_the_other_parts() -> None:
    seconds = {
        hit_parts.MEMORY: 1.0e-6,
        hit_parts.MUTEX: 0.25e-6,
        hit_parts.FILE_LOCK: 2.0e-6,
        hit_parts.DIGEST: 0.25e-6,
        hit_parts.UNPACK: 0.25e-6,
        hit_parts.PACK: 0.25e-6,
        hit_parts.ZONE: 3.0e-6,
    }
    setting = hit_parts.Setting("gcra", hit_parts.HOT, denied=False)
    found = hit_parts.Parts(PURE, setting, 1, seconds)
    assert (round(found.sum * 1e6, 6), round(found.times, 6)) == (2.0, 1.5)
    slow = found._replace(seconds=seconds | {hit_parts.ZONE: 4.1e-6})
    verdicts = [found.verdict(), slow.verdict()]
    assert [(verdict.what, verdict.passed) for verdict in verdicts] == [
        ("shm, gcra, one key: times the sum of its parts", True),
        ("shm, gcra, one key: times the sum of its parts", False),
    ]


@pytest.mark.parametrize("setting", SMALL_SETTINGS, ids=lambda setting: setting.name)
def test_a_worker_takes_a_hit_on_shared_memory_apart(setting: hit_parts.Setting) -> None:
    steps: list[str] = []
    with Worker(PURE) as worker:
        (found,) = hit_parts.measure_parts([worker], setting, 2, lambda: steps.append("done"))
    assert steps == ["done", "done"]
    assert set(found.seconds) == set(hit_parts.TIMED) - {hit_parts.EMPTY}
    assert found.states == (4 if "four" in setting.kind else 1)


def test_a_log_on_shared_memory_has_as_many_entries_as_its_setting_says() -> None:
    setting = hit_parts.Setting("sliding-log, 10 entries", hit_parts.HOT, denied=False)
    zone = own_zone(1 << 20)
    _, blocks = hit_parts.blocks_of(setting, zone)
    blocks[hit_parts.ZONE](hit_parts.visits(setting.keys, 0))
    cells, (limit,) = zone.states.zone.cells, parse_limits(setting.text)
    place = cells.place(cells.digest(hit_parts.visits(setting.keys, 0)[0]), cells.scope(limit.scope))
    assert cells.find(place)
    assert place.numbers is not None
    assert len(place.numbers) == 2 + 2 * 10


@pytest.mark.parametrize("own_keys", [False, True])
def test_processes_hit_at_the_same_time_and_are_counted_together(own_keys: bool) -> None:
    with zone_for_processes(1 << 20) as url, Worker(PURE) as one, Worker(PURE) as other:
        load = Load(url, "1000000000/hour fixed-window", {}, own_keys=own_keys, warm_up=0.0, seconds=0.05)
        both = decisions_per_second([one, other], load)
        left = [Limiter(load.limit, storage=url).peek(key).remaining for key in ("user:hot", "user:0", "user:1")]
    spent = [1_000_000_000 - each for each in left]
    assert both.all == sum(spent)
    assert [bool(each) for each in spent] == ([False, True, True] if own_keys else [True, False, False])
    assert both.per_second > 0


def test_processes_that_are_denied_stop_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    load = Load("memory://", "5/day", {}, warm_up=0.0, seconds=0.01)
    with Worker(PURE) as worker, pytest.raises(SystemExit):
        decisions_per_second([worker], load)
    assert "were denied, expected none" in capfd.readouterr().err


def test_a_zone_of_a_benchmark_has_no_file_and_counts_its_cells_and_blocks() -> None:
    storage = own_zone(1 << 20)
    limiter = Limiter("100/day sliding-log", storage=storage)
    limiter.hit("a")
    assert used(storage) == (1, 0)
    for _ in range(9):
        limiter.hit("a")
    cells, blocks = used(storage)
    assert cells == 1
    assert 1 <= blocks <= 2
    assert evicted(storage) == 0
    assert not Path(storage.zone_name.path).exists()


def test_slices_are_judged_by_decisions_per_second_of_as_many_processes() -> None:
    def rates(processes: int, trips: float, sliced: float) -> dict[slices.Turn, list[float]]:
        return {
            slices.Turn(PURE, slices.TRIPS, processes): [trips],
            slices.Turn(PURE, slices.SLICED, processes): [sliced],
        }

    found = slices.Slicing(rates(1, 5_000.0, 200_000.0) | rates(4, 20_000.0, 190_000.0)).verdicts()
    assert [(verdict.found.median, verdict.passed) for verdict in found] == [(40.0, True), (9.5, False)]


def test_a_storage_is_judged_by_its_ratio_to_the_bare_transaction_and_the_ledger_by_what_it_adds() -> None:
    found = storages.Lasting(
        COMPILED,
        times={"sqlite": ([3e-4, 3e-4, 6e-4], [2e-4, 2e-4, 2e-4]), "memcached": ([3e-4], [2e-4])},
        about={"sqlite": ("bare", 1.5), "memcached": ("limits", 1.0)},
        ledger={"hit": {COMPILED: {storages.UNHEARD: [1e-6, 1e-6], storages.LEDGER: [1.9e-6, 1.9e-6]}}},
    )
    judged = [(verdict.what, round(verdict.found.median, 6), verdict.passed) for verdict in found.verdicts()]
    assert judged == [
        ("sqlite: times bare", 1.5, True),
        ("memcached: times limits", 1.5, False),
        ("hit: µs added by the ledger", 0.9, True),
    ]
    assert [len(sheet.rows) for sheet in found.sheets()] == [4, 2]
    assert all(len(row) == len(sheet.head) for sheet in found.sheets() for row in sheet.rows)


def test_all_cores_are_given_back_after_a_part_that_needs_them() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    os.sched_setaffinity(0, one)
    try:
        with on_all_cores():
            assert os.sched_getaffinity(0) >= one
        assert os.sched_getaffinity(0) == one
    finally:
        os.sched_setaffinity(0, before)


def contender(library: str, how: str) -> Contender:
    """Return a contender that is not run."""
    return Contender(library, how, "bool", lambda: len)
