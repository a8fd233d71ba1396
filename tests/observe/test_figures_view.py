"""The view of the figures of all processes: rates, history, and what is added up how."""

import json
import math
import random
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratebound.observe.figures_snapshot import BUCKETS, Snapshot
from ratebound.observe.figures_view import HOUR, RECENT, FiguresView
from ratebound.observe.label import SECONDS


class Time:
    """A clock in seconds that only tests move."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """A process with counts that tests set."""

    def __init__(self, run: str, **more: Any) -> None:
        self.ticks = 500.0
        self.counts: dict[str, Any] = {
            "allowed": 0,
            "denied": 0,
            "degraded": 0,
            "shed": 0,
            "seconds": [0] * BUCKETS,
            "rules": {},
            "used": {},
            "shadows": {},
            "candidates": {},
            "nodes": {},
            "keys": None,
            "factors": {},
            "slots": {},
            "top": [],
            "penalized": [],
            **more,
        }
        self.run = run

    def decide(self, allowed: int = 0, denied: int = 0, rule: str = "login") -> None:
        self.counts["allowed"] += allowed
        self.counts["denied"] += denied
        row = self.counts["rules"].setdefault(rule, [0, 0])
        row[0] += allowed
        row[1] += denied
        self.counts["seconds"][2] += allowed + denied

    def snapshot(self, **more: Any) -> Snapshot:
        whole = {"run": self.run, "name": f"host:{self.run}", "ticks": self.ticks, **self.counts, **more}
        found: Snapshot = json.loads(json.dumps(whole))
        return found


def made() -> tuple[FiguresView, Time]:
    clock = Time()
    return FiguresView(clock=clock, wall_clock=lambda: clock.now + 1e9), clock


def second(clock: Time, *processes: Fake) -> None:
    clock.now += 1
    for process in processes:
        process.ticks += 1


def recent(view: FiguresView) -> list[Any]:
    points: list[Any] = view.history()["recent"]["points"]
    assert len(points) == RECENT
    return points


counts = st.tuples(st.integers(0, 10_000), st.integers(0, 10_000))


@given(seconds=st.lists(st.tuples(counts, counts), min_size=1, max_size=RECENT))
def test_the_history_has_what_was_decided_in_each_second(
    seconds: list[tuple[tuple[int, int], tuple[int, int]]],
) -> None:
    view, clock = made()
    processes = [Fake("a"), Fake("b")]
    view.take([process.snapshot() for process in processes])
    for each in seconds:
        for process, (allowed, denied) in zip(processes, each, strict=True):
            process.decide(allowed, denied)
        second(clock, *processes)
        view.take([process.snapshot() for process in processes])
    expected = [[a[0] + b[0], a[1] + b[1]] for a, b in seconds]
    assert [point[:2] for point in recent(view)[-len(seconds) :]] == expected
    assert recent(view)[: -len(seconds)] == [None] * (RECENT - len(seconds))
    last = expected[-5:]
    total = view.view()["total"]
    assert total["allowed"] == pytest.approx(sum(point[0] for point in last) / len(last), abs=1e-3)
    assert total["denied"] == pytest.approx(sum(point[1] for point in last) / len(last), abs=1e-3)


# What happens to a process in one second: it decides, and is seen or not; or it has been started again.
steps = st.tuples(st.integers(0, 1_000), st.sampled_from(["seen", "unseen", "restarted", "reset"]))


@given(histories=st.lists(st.lists(steps, min_size=5, max_size=40), min_size=1, max_size=4))
def test_processes_that_come_go_restart_and_reset_make_neither_spikes_nor_negative_rates(
    histories: list[list[tuple[int, str]]],
) -> None:
    view, clock = made()
    processes = [Fake(f"{number}-0") for number in range(len(histories))]
    bounds = [0.0] * len(histories)  # the highest rate between two snapshots of a process that were seen
    seen: dict[str, tuple[float, int]] = {}
    view.take([], [process.snapshot() for process in processes])
    seen.update((process.run, (process.ticks, 0)) for process in processes)
    for at in range(max(len(history) for history in histories)):
        clock.now += 1
        shown = []
        for number, history in enumerate(histories):
            if at >= len(history):
                continue
            many, what = history[at]
            process = processes[number]
            if what == "restarted":
                process = processes[number] = Fake(f"{number}-{at + 1}")
            elif what == "reset":
                process.counts.update(allowed=0, rules={}, seconds=[0] * BUCKETS)
            process.ticks += 1
            process.decide(allowed=many)
            if what == "unseen":
                continue
            shown.append(process.snapshot(age=0.0))
            before = seen.get(process.run)
            if before is not None:
                rate = (process.counts["allowed"] - before[1]) / (process.ticks - before[0])
                bounds[number] = max(bounds[number], rate)
            seen[process.run] = (process.ticks, process.counts["allowed"])
        view.take([], shown)
        for point in (point for point in recent(view) if point is not None):
            assert 0 <= point[0] <= sum(bounds) * (1 + 1e-9) + 0.001
        assert all(0 <= rule["allowed"] <= sum(bounds) + 0.001 for rule in view.view()["rules"])


@pytest.mark.parametrize("every", [1, 2, 3, 10])
def test_steady_traffic_is_shown_as_it_is_however_seldom_a_process_publishes(every: int) -> None:
    view, clock = made()
    process = Fake("a")
    published = process.snapshot()
    for at in range(60):
        view.take([], [{**published, "age": float(at % every)}])
        process.decide(30, 10)
        second(clock, process)
        if (at + 1) % every == 0:
            published = process.snapshot()
    view.take([], [published])
    points = [point for point in recent(view) if point is not None and point[0]]
    assert {tuple(point[:2]) for point in points} == {(30, 10)}
    assert len(points) >= 60 - 2 * every
    assert view.view()["total"] == {"allowed": 30, "denied": 10, "degraded": 0, "shed": 0}


def test_a_process_that_dies_counts_no_longer_than_a_little() -> None:
    view, clock = made()
    process = Fake("a")
    view.take([], [process.snapshot()])
    process.decide(100)
    process.ticks += 2
    clock.now += 2
    dead = process.snapshot()
    for _ in range(10):
        view.take([], [dead])
        clock.now += 1
    points = [point[0] for point in recent(view) if point is not None]
    assert points == [50, 50, 50, 50, 50, 50, 0, 0, 0, 0, 0]
    view.take([])
    assert view.view()["processes"] == []


def test_a_worker_that_dies_counts_no_more_although_what_it_has_published_is_still_there() -> None:
    view, clock = made()
    one, two = Fake("one"), Fake("two")
    for _ in range(5):
        second(clock, one, two)
        one.decide(100)
        two.decide(100)
        view.take([one.snapshot(), two.snapshot()], [one.snapshot(age=1.0)])
    published = one.snapshot(age=1.0)
    for _ in range(3):  # its clients come to the other one
        second(clock, two)
        two.decide(200)
        view.take([two.snapshot()], [published])
    assert [point[0] for point in recent(view)[-6:]] == [200] * 6
    assert [process["name"] for process in view.view()["processes"]] == ["host:two"]


def test_a_process_that_was_out_of_sight_gives_the_mean_of_that_time() -> None:
    view, clock = made()
    local, other = Fake("a"), Fake("b")
    view.take([local.snapshot()], [other.snapshot()])
    for _ in range(30):
        other.decide(20)
        second(clock, local, other)
        view.take([local.snapshot()], problem="The storage does not answer: gone")
    assert view.view()["problem"] == "The storage does not answer: gone"
    other.decide(20)
    second(clock, local, other)
    view.take([local.snapshot()], [other.snapshot()])
    assert recent(view)[-1][0] == 20
    assert view.view()["problem"] == ""


def test_a_look_that_comes_late_fills_the_seconds_between_and_a_long_pause_is_a_gap() -> None:
    view, clock = made()
    process = Fake("a")
    view.take([process.snapshot()])
    process.decide(30)
    for _ in range(3):
        second(clock, process)
    view.take([process.snapshot()])
    assert [point[0] for point in recent(view)[-3:]] == [10, 10, 10]
    for _ in range(30):
        second(clock, process)
    view.take([process.snapshot()])
    assert recent(view)[-30:] == [None] * 30
    assert recent(view)[-31][0] == 10
    view.take([process.snapshot()])  # twice in one second
    assert recent(view)[-31][0] == 10


def test_the_hour_has_means_of_ten_seconds_by_rule_too() -> None:
    view, clock = made()
    process = Fake("a")
    view.take([process.snapshot()])
    for at in range(3_700):
        process.decide(at % 10, 1 if at % 2 else 0, f"rule-{at // 10 % 60}")
        second(clock, process)
        view.take([process.snapshot()])
    history = view.history()
    assert history["hour"]["step"] == 10
    assert history["hour"]["end"] == clock.now + 1e9
    assert len(history["hour"]["points"]) == HOUR
    assert {tuple(point[:2]) for point in history["hour"]["points"]} == {(4.5, 0.5)}
    assert len(history["rules"]) == 50
    assert all(len(points) == HOUR for points in history["rules"].values())
    shown = [points for points in history["rules"].values() if [4.5, 0.5] in points]
    assert len(shown) == 50
    assert len(json.dumps(history)) < 400_000


@given(times=st.lists(st.floats(1e-7, 3.0), min_size=1, max_size=200))
def test_times_are_within_the_bucket_of_the_true_ones(times: list[float]) -> None:
    view, clock = made()
    process = Fake("a")
    view.take([process.snapshot()])
    for taken in times:
        process.counts["seconds"][bisect_left(SECONDS, taken)] += 1
    second(clock, process)
    view.take([process.snapshot()])
    latency = view.view()["latency"]
    for share, shown in ((0.5, latency["p50"]), (0.99, latency["p99"])):
        true = sorted(times)[math.ceil(share * len(times)) - 1]
        place = bisect_left(SECONDS, true)
        bounds = [0.0, *SECONDS, SECONDS[-1]]
        assert bounds[place] * 0.999 <= shown <= bounds[place + 1] * 1.001


def test_without_decisions_there_is_no_latency() -> None:
    view, clock = made()
    process = Fake("a")
    for _ in range(3):
        view.take([process.snapshot()])
        second(clock, process)
    assert view.view()["latency"] is None
    assert recent(view)[-1] == [0, 0, 0, 0, None]


def test_figures_of_now_are_added_up() -> None:
    view, clock = made()
    one = Fake(
        "a",
        factors={"low": 0.5, "high": 1.0},
        slots={"export": 2},
        keys=[5, 100, False],
        top=[["c1", 5, 1], ["c2", 1, 0]],
        penalized=[["c1", "guessing", 240.0], ["c2", "guessing", 1.0]],
        nodes={"storage": [False, 0, 0, [0] * BUCKETS]},
    )
    two = Fake(
        "b",
        factors={"low": 0.25},
        slots={"export": 1, "import": 9},
        keys=[7, 100, False],
        top=[["c2", 7, 0]],
        penalized=[["c1", "guessing", 250.0]],
        nodes={"storage": [True, 0, 0, [0] * BUCKETS]},
    )
    view.take([one.snapshot()], [two.snapshot(age=2.0), one.snapshot(age=1.0)])
    one.counts["nodes"] = {"storage": [False, 10, 2, [0] * 8 + [10] + [0] * (BUCKETS - 9)]}
    second(clock, one, two)
    view.take([one.snapshot()], [two.snapshot(age=2.0), one.snapshot(age=1.0)])
    found = view.view()
    assert found["processes"] == [
        {"name": "host:a", "age": 0, "is_local": True},
        {"name": "host:b", "age": 2, "is_local": False},
    ]
    assert found["factors"] == {"low": 0.25, "high": 1}
    assert found["slots"] == [{"limit": "import", "held": 9}, {"limit": "export", "held": 3}]
    assert found["top"] == [
        {"client": "c2", "denials": 8, "error": 0, "blocked": False},
        {"client": "c1", "denials": 5, "error": 1, "blocked": False},
    ]
    assert found["penalized"] == [
        {"client": "c1", "limit": "guessing", "seconds": 248},
        {"client": "c2", "limit": "guessing", "seconds": 1},
    ]
    (node,) = found["storage"]["nodes"]
    assert (node["node"], node["is_open"], node["calls"], node["errors"]) == ("storage", True, 10, 2)
    assert 2.5e-3 < node["p99"] <= 5e-3
    assert (found["storage"]["keys"], found["storage"]["max_keys"]) == (12, 200)


def test_a_zone_that_all_share_is_told_once() -> None:
    view, _ = made()
    view.take([Fake("a", keys=[5, 100, True]).snapshot(), Fake("b", keys=[5, 100, True]).snapshot()])
    storage = view.view()["storage"]
    assert (storage["keys"], storage["max_keys"]) == (5, 100)


def test_rules_are_in_order_of_denials_with_the_used_share_of_their_fullest_limit() -> None:
    view, clock = made()
    process = Fake("a")
    view.take([process.snapshot()])
    process.decide(10, 1, "login")
    process.decide(5, 9, "search")
    process.decide(50, 0, "api")
    process.counts["used"] = {"login/hour": ["login", 5.0, 10], "login/day": ["login", 9.0, 10]}
    process.counts["shadows"] = {"new": [3, 2, 0, 0, 1e9]}
    process.counts["candidates"] = {"api": [40, 10, 50, 0, 1e9]}
    second(clock, process)
    view.take([process.snapshot()])
    rules = view.view()["rules"]
    assert [rule["rule"] for rule in rules] == ["search", "login", "api", "new"]
    assert [rule["used"] for rule in rules] == [None, 0.9, None, None]
    assert rules[3]["shadow"] == {"allowed": 3, "denied": 2}
    assert rules[2]["candidate"] == {"allowed": 40, "denied": 10}
    assert rules[0]["shadow"] is rules[0]["candidate"] is None


def test_the_shadow_report_keeps_processes_that_ended_while_others_go_on() -> None:
    view, clock = made()
    since = clock.now + 1e9
    one = Fake("a", candidates={"api": [10, 5, 12, 3, since]})
    two = Fake("b", candidates={"api": [1, 1, 1, 1, since + 1]})
    view.take([one.snapshot(), two.snapshot()])
    for _ in range(100):
        second(clock, one)
        view.take([one.snapshot()])
    expected = {
        "rule": "api",
        "candidate": True,
        "allowed": 11,
        "denied": 6,
        "live_allowed": 13,
        "live_denied": 4,
        "since": since,
    }
    assert view.view()["shadow_report"] == [expected]
    view.take([Fake("c", candidates={"api": [7, 0, 7, 0, clock.now + 1e9]}).snapshot()])
    for _ in range(100):
        second(clock)
        view.take([Fake("c", candidates={"api": [7, 0, 7, 0, clock.now - 1 + 1e9]}).snapshot()])
    assert view.view()["shadow_report"][0]["allowed"] == 7  # the others ended before this one began to count
    view.take([Fake("d").snapshot()])
    assert view.view()["shadow_report"] == []


def test_what_a_view_keeps_is_bounded_whatever_comes_and_goes() -> None:
    view, clock = made()
    chosen = random.Random(3)
    for number in range(2_000):
        process = Fake(f"run-{number}", candidates={f"rule-{chosen.randrange(500)}": [1, 1, 1, 1, 1e9]})
        process.decide(1, 1, f"rule-{number}")
        clock.now += 1
        view.take([process.snapshot()])
    assert len(view._processes) < 100
    assert len(view._ended) <= 256
    assert len(view.view()["rules"]) <= 100
    assert len(view.history()["rules"]) <= 50
