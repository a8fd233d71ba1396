"""Learned limits of all algorithms: nothing is refused after the first answers, and hardly any rate is lost.

These are simulations: they take no time, and a failure can be repeated.
"""

import os

import pytest

from ratebound.client.learned_limits import BUCKET, Shape, mirrored
from ratebound.limit import ALGORITHMS, MAX_COUNT
from ratebound.notation import parse_limit
from tests.client.pacing_simulation import Simulation, limited_server

FIRST_ANSWERS = 0.5  # seconds
SEEDS = 2 if os.environ.get("RATEBOUND_LONG") == "1" else 1


def paced(limit: str, seed: int, processes: int, workers: int = 1) -> tuple[Simulation, float]:
    """The simulation after a while, and the part of the allowed rate that was used after the first two periods."""
    parsed = parse_limit(limit)
    period = parsed.period_us / 1_000_000
    begin = max(3.0, 2 * period)
    length = max(15.0, 6 * period)
    simulation = Simulation(seed, begin=1_700_000_000_000_000 + seed * 370_000)
    serve = limited_server(simulation, limit)
    for core in [simulation.core() for _ in range(processes)]:
        for _ in range(workers):
            simulation.worker(core, serve)
    simulation.run(begin + length)
    assert simulation.problems == []
    return simulation, simulation.accepted_within(begin, begin + length) / (parsed.count * length / period)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(("processes", "workers"), [(1, 1), (8, 1), (1, 50)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("rate", ["20/second", "100/5 seconds", "30/minute"])
def test_a_learned_limit_refuses_nothing_after_the_first_answers(
    rate: str, algorithm: str, processes: int, workers: int, seed: int
) -> None:
    simulation, used = paced(f"{rate} {algorithm}", seed, processes, workers)
    assert simulation.refused_after(FIRST_ANSWERS) == 0
    is_short_log = algorithm == "sliding-log" and rate == "20/second"  # 50 ms of each second are for late requests
    assert used >= (0.92 if algorithm == "sliding-counter" else 0.94 if is_short_log else 0.97)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("processes", [1, 8])
@pytest.mark.parametrize("rate", ["10/second", "20/second", "50/second"])
def test_a_short_log_forgives_requests_that_are_late(rate: str, processes: int, seed: int) -> None:
    simulation = Simulation(seed, network=(0.001, 0.03))
    serve = limited_server(simulation, f"{rate} sliding-log")
    for core in [simulation.core() for _ in range(processes)]:
        for _ in range(10):
            simulation.worker(core, serve)
    simulation.run(8)
    assert simulation.refused_after(0) == 0


def test_processes_that_start_at_once_do_not_exceed_a_window_by_their_first_requests() -> None:
    simulation, _ = paced("100/5 seconds fixed-window", 1, 8)
    assert simulation.refused_after(0) == 0


@pytest.mark.parametrize(("processes", "workers"), [(1, 1), (8, 1), (1, 50)])
@pytest.mark.parametrize("limit", ["20/second burst 5", "50/second burst 10", "20/second burst 50"])
def test_a_bucket_whose_window_was_rounded_up_is_used_at_its_true_rate(
    limit: str, processes: int, workers: int
) -> None:
    """Headers tell '20/second burst 5' as 5 units in a second: it fills up four times as fast."""
    parsed = parse_limit(limit)
    simulation = Simulation(2)
    serve = limited_server(simulation, limit)
    for core in [simulation.core() for _ in range(processes)]:
        for _ in range(workers):
            simulation.worker(core, serve)
    simulation.run(45)
    assert simulation.accepted_within(15, 45) >= 0.97 * parsed.count * 30
    assert simulation.refused_after(15) == 0
    assert simulation.refused_after(0.1) <= 1


@pytest.mark.parametrize("more", [[], [("Retry-After", "0")]], ids=["no time", "at once"])
@pytest.mark.parametrize("algorithm", ["gcra", "fixed-window", "sliding-log"])
def test_a_server_that_always_tells_of_units_left_is_not_asked_faster_and_faster(
    algorithm: str, more: list[tuple[str, str]]
) -> None:
    """It refuses what it told was left, so its remaining units say nothing about its rate."""
    simulation = Simulation(1, network=(0.02, 0.05))
    decide = limited_server(simulation, f"10/second {algorithm}")
    told = [("RateLimit-Policy", '"api";q=10;w=1'), ("RateLimit", '"api";r=10;t=1')]

    def serve() -> tuple[int, list[tuple[str, str]]]:
        status, _ = decide()
        return status, [*told, *(more if status == 429 else ())]

    core = simulation.core()
    for _ in range(50):
        simulation.worker(core, serve)
    simulation.run(60)
    assert len(simulation.arrivals) <= 70 * 10
    assert sum(at >= 50 for at, _ in simulation.arrivals) <= 11 * 10


def test_the_largest_quota_that_comes_back_faster_is_no_error() -> None:
    shape = Shape(BUCKET, MAX_COUNT, 5_000_000, fill=4_000_000)
    assert [mirror.limit.count for mirror in mirrored(shape, 0, "api")] == [MAX_COUNT]
