"""Spending from held states answers as a hit does, whatever else happens to the same keys."""

from hypothesis import given
from hypothesis import strategies as st

from ratebound.decision import Plan
from ratebound.notation import parse_limits
from ratebound.storage.memory import MemoryStorage
from ratebound.storage.memory_states import HeldStates, States

SECOND = 1_000_000
START = 1_762_300_800 * SECOND
PLANS = [
    Plan(tuple(parse_limits(text)))
    for text in (
        "3/10 seconds sliding-counter",
        "2/5 seconds sliding-log; 5/minute sliding-counter",
        "6/minute burst 2 token-bucket; 4/10 seconds fixed-window",
        "4/10 seconds sliding-counter",  # the states of the first plan by another limit
    )
]
KEYS = ("a", "b")

steps = st.tuples(
    st.sampled_from([0, 1, SECOND, 3 * SECOND, 15 * SECOND, 200 * SECOND]),
    st.sampled_from(["spend", "spend", "general", "reset"]),
    st.sampled_from(KEYS),
    st.integers(0, len(PLANS) - 1),
    st.integers(1, 3),
)


class OneClock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


def hit(states: States, plan: Plan, key: str, cost: int) -> int:
    decision = states.hit(plan, key, cost)
    return 0 if decision.allowed else sum(1 << place for place, row in enumerate(decision.rows) if not row[0])


@given(st.lists(steps, max_size=60))
def test_held_states_answer_as_hits_do(drawn: list[tuple[int, str, str, int, int]]) -> None:
    clock = OneClock()
    plain, held = (MemoryStorage(clock=clock).states for _ in range(2))
    holding = {(key, place): HeldStates(key) for key in KEYS for place in range(len(PLANS))}
    for after, action, key, place, cost in drawn:
        clock.now += after
        plan = PLANS[place]
        group = ((key, plan.limits, cost, None, None),)
        if action == "spend":
            answer = held.spend_held(plan, holding[key, place], cost, clock.now)
            if answer < 0:
                answer = hit(held, plan, key, cost)
            assert answer == hit(plain, plan, key, cost)
            continue
        for states in (plain, held):
            if action == "general":
                states.evaluate([(*group, ("other", plan.limits, cost, None, None))], "spend")
            else:
                states.reset(group)


def test_a_state_that_was_dropped_for_room_is_not_spent_from() -> None:
    clock = OneClock()
    storage = MemoryStorage(max_keys=1, clock=clock)
    plan, held = PLANS[0], HeldStates("a")
    assert storage.states.spend_held(plan, held, 1, clock.now) == -1
    storage.states.hit(plan, "a", 1)
    assert storage.states.spend_held(plan, held, 1, clock.now) == 0
    storage.states.hit(plan, "b", 1)
    assert storage.evicted == 1
    assert storage.states.spend_held(plan, held, 1, clock.now) == -1


def test_held_states_are_found_again_without_a_new_one_each_time() -> None:
    clock = OneClock()
    states = MemoryStorage(clock=clock).states
    plan, held = PLANS[1], HeldStates("a")
    states.hit(plan, "a", 1)
    assert states.spend_held(plan, held, 1, clock.now) == 0
    assert states.spend_held(plan, held, 1, clock.now) == 0b01  # the first limit denies, the second does not
    assert states.keys == 2


def test_a_state_that_a_group_replaced_is_not_spent_from() -> None:
    clock = OneClock()
    states = MemoryStorage(clock=clock).states
    plan, held = PLANS[0], HeldStates("a")
    states.hit(plan, "a", 1)
    assert states.spend_held(plan, held, 1, clock.now) == 0
    states.decide((("a", plan.limits, 1, None, None), ("b", plan.limits, 1, None, None)))
    assert states.spend_held(plan, held, 1, clock.now) == 0b1
