"""A storage's clock that steps: learned limits are kept to and stay shared, and nobody waits for the old time."""

import pytest

from ratebound.client.learned_limits import WINDOW, Shape, at
from ratebound.client.learned_origins import SharedShape, read_shapes, write_shapes
from ratebound.clock import SECOND
from ratebound.http.quota import Quota
from ratebound.storage.memory import MemoryStorage
from tests.client.pacing_simulation import Simulation, limited_server

HOUR = 3600 * SECOND


class SteppingSimulation(Simulation):
    """A simulation in which the storage's clock can step, and that of the server cannot."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ahead = 0
        self.storage = MemoryStorage(clock=lambda: self.clock() + self.ahead)


@pytest.mark.parametrize("step", [-HOUR, HOUR])
@pytest.mark.parametrize(("limit", "period"), [("30/minute fixed-window", 60), ("20/second fixed-window", 1)])
def test_a_window_goes_on_after_the_clock_has_stepped(limit: str, period: int, step: int) -> None:
    simulation = SteppingSimulation(3)
    serve = limited_server(simulation, limit)
    cores = [simulation.core() for _ in range(2)]
    for core in cores:
        simulation.worker(core, serve)
    simulation.run(30)
    simulation.ahead = step
    before = len(simulation.arrivals)
    simulation.run(30 + 4 * period + 2)
    assert len(simulation.arrivals) > before + int(limit.partition("/")[0])
    assert simulation.problems == []
    assert len(read_shapes(simulation.storage.read_document(cores[0]._document)[1])) == 1


@pytest.mark.parametrize("turns", [-3, 0, 5])
def test_the_present_window_is_found_from_any_time(turns: int) -> None:
    shape = Shape(WINDOW, 10, 60 * SECOND, early=2 * HOUR - SECOND, end=2 * HOUR, epoch=1)
    now = 2 * HOUR - 30 * SECOND + turns * 60 * SECOND
    found = at(shape, now)
    assert found.epoch == 1 + turns
    assert now < found.end <= now + 31 * SECOND


def test_a_window_with_a_negative_number_is_shared() -> None:
    shape = Shape(WINDOW, 10, SECOND, early=HOUR - SECOND, end=HOUR, epoch=-3452)
    entries = {"key": SharedShape("https://api.example.com", Quota("", 10), shape)}
    assert read_shapes(write_shapes(entries))["key"].shape == shape


def test_a_refusal_before_the_clock_stepped_back_holds_nobody_up_for_longer() -> None:
    simulation = SteppingSimulation(5)
    refusals = iter([(429, [("Retry-After", "2")])] * 3)

    def serve() -> tuple[int, list[tuple[str, str]]]:
        return next(refusals, (200, []))

    core = simulation.core()
    for _ in range(3):
        simulation.worker(core, serve, think=lambda: 1.0)
    simulation.run(1)
    simulation.ahead = -HOUR
    simulation.run(30)
    assert len(simulation.arrivals) > 30
