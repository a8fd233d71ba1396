"""The law of a pressure: its bounds, its order, its steps, and the way back; and limits that are lowered by it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ratebound import Limit
from ratebound.adaptive import PRIORITIES, Pressure
from ratebound.adaptive.pressure import SHEDDABLE
from ratebound.kernels import group_law
from ratebound.kernels.packing import unpacked
from ratebound.limit import MAX_SPAN
from ratebound.lowered import STEPS, LoweredLimits, lowered, lowered_limit
from tests.adaptive.gauges import Gauge, pressure_of
from tests.property.strategies import KINDS, START, limits

LOADS = st.lists(st.one_of(st.floats(0, 20), st.sampled_from([0.0, 0.9, 1.0, 1.01, 2.0])), max_size=60)
IN_USE = st.sets(st.sampled_from(SHEDDABLE), min_size=1)
FLOORS = st.floats(0.01, 1)


def run(loads: list[float], in_use: set[str], floor: float) -> tuple[Pressure, list[dict[str, int]]]:
    gauge = Gauge()
    pressure = pressure_of(gauge, floor=floor)
    pressure.include(in_use)
    seen = []
    for load in loads:
        gauge.value = load
        pressure.sample()
        seen.append({priority: pressure.step(priority) for priority in PRIORITIES})
    return pressure, seen


@given(LOADS, IN_USE, FLOORS)
def test_factors_stay_between_floor_and_one_in_twentieths(loads: list[float], in_use: set[str], floor: float) -> None:
    pressure, seen = run(loads, in_use, floor)
    assert pressure.floor >= floor - 1e-9
    assert pressure.floor * STEPS == round(pressure.floor * STEPS)
    for steps in seen:
        assert all(type(step) is int and pressure.floor * STEPS <= step <= STEPS for step in steps.values())
        assert all(steps[priority] == STEPS for priority in PRIORITIES if priority not in in_use)
    assert all(0 < factor <= 1 for factor in pressure.factors.values())


@given(LOADS, IN_USE, FLOORS)
def test_the_next_priority_falls_only_when_the_one_below_is_at_its_floor(
    loads: list[float], in_use: set[str], floor: float
) -> None:
    pressure, seen = run(loads, in_use, floor)
    order = [priority for priority in PRIORITIES if priority in in_use]
    for steps in seen:
        for below, above in pairwise(order):
            assert steps[above] == STEPS or steps[below] == round(pressure.floor * STEPS)


@given(LOADS, st.floats(0, 20), st.floats(0, 5), IN_USE, FLOORS)
def test_from_one_state_more_load_never_gives_a_higher_factor(
    loads: list[float], load: float, more: float, in_use: set[str], floor: float
) -> None:
    calmer, busier = (run([*loads, last], in_use, floor)[1][-1] for last in (load, load + more))
    assert all(busier[priority] <= calmer[priority] for priority in PRIORITIES)


@given(LOADS, IN_USE, FLOORS)
def test_without_load_every_factor_comes_back_to_exactly_one(
    loads: list[float], in_use: set[str], floor: float
) -> None:
    pressure, _ = run([*loads, *([0.0] * 80 * len(in_use))], in_use, floor)
    assert set(pressure.factors.values()) == {1.0}
    assert pressure.is_calm


@given(LOADS, IN_USE, FLOORS, st.floats(0.9, 1.0))
def test_between_calm_and_threshold_nothing_changes(
    loads: list[float], in_use: set[str], floor: float, between: float
) -> None:
    _, seen = run([*loads, between, between, between], in_use, floor)
    before = seen[len(loads) - 1] if loads else dict.fromkeys(PRIORITIES, STEPS)
    assert seen[-3:] == [before] * 3


@given(limits(KINDS), st.integers(1, STEPS), st.data())
def test_a_lowered_limit_is_a_part_of_itself_with_the_same_state(limit: Limit, step: int, data: st.DataObject) -> None:
    cost = data.draw(st.integers(1, min(limit.burst, 50)))
    low = lowered_limit(limit, step, cost)
    assert low.scope == limit.scope
    assert 1 <= low.count <= limit.count
    assert min(cost, limit.burst) <= low.burst <= limit.burst or low.has_slots
    assert low.period_us == limit.period_us
    assert low.burst * low.period_us <= MAX_SPAN * low.count
    if limit.is_quota or limit.is_distinct or limit.is_penalty or step == STEPS:
        assert low is limit
    for less in range(1, step):
        lower = lowered_limit(limit, less, cost)
        assert lower.burst <= low.burst
        assert lower.count <= low.count


@given(limits(KINDS), st.integers(1, STEPS - 1))
def test_an_untouched_lowered_limit_lets_a_request_pass(limit: Limit, step: int) -> None:
    plan = lowered((limit,), step)
    assert plan[0] is limit or isinstance(plan, LoweredLimits)
    if limit.takes_cost:
        states = [unpacked(plan[0].numbers, None)]
        (row,) = group_law.evaluate((("k", plan, 1, None, None),), "spend", [0], states, START)
        assert row[0]
