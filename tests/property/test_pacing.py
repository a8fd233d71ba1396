"""Pacers against servers of all algorithms, in a simulation with jitter: no refusals, and the whole rate used."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratebound.notation import parse_limit
from tests.client.pacing_simulation import Simulation, limited_server

EXAMPLES = int(os.environ.get("RATEBOUND_EXAMPLES", "0"))
LONG = os.environ.get("RATEBOUND_LONG") == "1"
SERVERS = (
    "100/second burst 100",
    "50/second burst 50 gcra",
    "50/second fixed-window",
    "100/5 seconds burst 100",
    "100/5 seconds fixed-window",
    "60/10 seconds sliding-log",
    f"{600 if LONG else 150}/10 seconds sliding-counter",  # more than pacers take for a log
)


def simulated(server: str, seed: int, processes: int, seconds: float, offset: int = 0) -> Simulation:
    simulation = Simulation(seed, begin=1_700_000_000_000_000 + offset)
    serve = limited_server(simulation, server)
    for _ in range(processes):
        core = simulation.core()
        for _ in range(max(1, 8 // processes)):
            simulation.worker(core, serve)
    simulation.run(seconds)
    return simulation


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("processes", [1, 8])
def test_the_whole_rate_is_used_and_nothing_is_refused(server: str, processes: int) -> None:
    limit = parse_limit(server)
    period = limit.period_us / 1_000_000
    warm_up = max(4.0, 3 * period)
    periods = max(4, round(8 / period))
    simulation = simulated(server, 1, processes, warm_up + periods * period)
    assert simulation.refused_after(warm_up) == 0
    accepted = simulation.accepted_within(warm_up, warm_up + periods * period)
    assert accepted >= (0.97 * periods - 1) * limit.count


@settings(max_examples=max(10, EXAMPLES // 10))
@given(
    server=st.sampled_from(SERVERS[:5]),
    seed=st.integers(0, 10**6),
    processes=st.sampled_from([1, 2, 4]),
    offset=st.integers(0, 5_000_000),
)
def test_nothing_is_refused_after_the_first_answers(server: str, seed: int, processes: int, offset: int) -> None:
    limit = parse_limit(server)
    warm_up = max(3.0, 2 * limit.period_us / 1_000_000)
    simulation = simulated(server, seed, processes, warm_up + limit.period_us / 1_000_000 + 0.5, offset)
    assert simulation.refused_after(warm_up) == 0
    assert simulation.arrivals[-1].at > warm_up
