"""Settling: what is given back, what is charged on top, and that nothing is minted by it."""

import sys
import threading
from types import FrameType

import pytest

from ratebound import (
    Check,
    InvalidCost,
    Limit,
    Limiter,
    MemoryStorage,
    parse_limit,
    parse_limits,
)
from ratebound.arguments import group_of
from ratebound.decider import Decider
from ratebound.kernels.gcra import Bucket
from ratebound.kernels.group_law import MAX_ROUNDS
from ratebound.limit import ALGORITHMS
from ratebound.testing import FakeClock, ask
from tests.builds import needs_pure_build
from tests.limiters import limiter_of


def test_settle_forces_the_difference_to_what_was_charged(clock: FakeClock) -> None:
    limiter = limiter_of("10/minute; 100/hour burst 10", clock)
    decision = limiter.hit("a", cost=6)
    settled = limiter.settle(decision, cost=2)
    assert [outcome.remaining for outcome in settled.outcomes] == [8, 8]
    more = limiter.settle(limiter.hit("a", cost=1), cost=5)
    assert [outcome.remaining for outcome in more.outcomes] == [3, 3]


def test_settle_can_give_each_check_its_own_cost(clock: FakeClock) -> None:
    limiter = limiter_of("1/second", clock)
    requests, tokens = parse_limit("5/minute as rpm"), parse_limit("1000/minute as tpm")
    decision = limiter.check([Check("u", requests), Check("u", tokens, cost=500)])
    settled = limiter.settle(decision, cost=[1, 123])
    assert [outcome.remaining for outcome in settled.outcomes] == [4, 877]
    with pytest.raises(ValueError, match="one for each of 2 checks"):
        limiter.settle(limiter.check([Check("u", requests), Check("u", tokens)]), cost=[1, 2, 3])


def test_settling_twice_is_refused_since_it_would_refund_twice(clock: FakeClock) -> None:
    limiter = limiter_of("10/minute", clock)
    decision = limiter.hit("a", cost=5)
    settled = limiter.settle(decision, cost=0)
    for again in (decision, settled):
        with pytest.raises(ValueError, match="cannot be settled: it has been already"):
            limiter.settle(again, cost=0)
    assert limiter.peek("a").remaining == 10


def test_of_two_threads_that_settle_one_decision_only_one_does(clock: FakeClock) -> None:
    """The other comes in where a thread can be interrupted: between the look at the decision and its mark."""
    limiter = limiter_of("10/minute", clock)
    decision = limiter.hit("a", cost=5)
    limiter.hit("a", cost=5)

    class Interrupted:
        def __index__(self) -> int:
            other = threading.Thread(target=limiter.settle, args=(decision,), kwargs={"cost": 0})
            other.start()
            other.join()
            return 0

    with pytest.raises(ValueError, match="it has been already"):
        limiter.settle(decision, cost=Interrupted())  # type: ignore[arg-type]
    assert limiter.peek("a").remaining == 5


def test_a_wait_over_several_buckets_that_is_settled_to_its_charge_gives_nothing_back(clock: FakeClock) -> None:
    queue, shared = parse_limit("100/2 seconds burst 100 as queue"), parse_limit("100/second burst 100 as shared")
    limiter = Limiter([queue, shared], storage=MemoryStorage(clock=clock), sleep=clock.sleep, max_delay=100)
    for charge in (100, 99):
        limiter.wait("k", cost=100)
        limiter.settle(limiter.wait("k", cost=100), cost=charge)
        more = 0
        while limiter.check(Check("k", shared)):
            more += 1
        assert charge + more == 100
        limiter.reset("k")
        clock.advance(1)


def test_a_peek_cannot_be_settled_since_it_was_charged_nothing(clock: FakeClock) -> None:
    limiter = limiter_of("10/minute burst 10", clock)
    limiter.hit("a", cost=5)
    with pytest.raises(ValueError, match="it is a peek"):
        limiter.settle(limiter.peek("a", cost=5), cost=0)
    assert limiter.peek("a").remaining == 5


def test_two_refunds_out_of_order_give_back_no_more_than_was_spent(clock: FakeClock) -> None:
    limiter = limiter_of("10/second burst 10", clock)
    first, second = limiter.hit("k", cost=5), limiter.hit("k", cost=5)
    limiter.settle(first, cost=0)
    clock.advance(0.5)
    limiter.hit("k", cost=10)
    limiter.settle(second, cost=0)
    assert limiter.peek("k").remaining == 0


def test_a_refund_after_the_clock_stepped_back_mints_nothing(clock: FakeClock) -> None:
    limiter = limiter_of("10/second burst 10", clock)
    first = limiter.hit("k", cost=10)
    clock.advance(-100)
    limiter.peek("k")
    clock.advance(50)
    limiter.hit("k", cost=10)
    limiter.settle(first, cost=0)
    assert limiter.peek("k").remaining == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_force_after_the_count_was_lowered_does_not_forgive_what_was_spent(algorithm: str, clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    before = Limiter(f"100/minute {algorithm}", storage=storage)
    after = Limiter(f"10/minute {algorithm}", storage=storage)
    again = Limiter(f"100/minute {algorithm}", storage=storage)
    before.hit("k", cost=90)
    decision = before.hit("k", cost=10)
    ask(storage, "k", after.limits[0], 1, "force")
    ask(storage, "k", after.limits[0], -1, "force", spent=decision.outcomes[0])
    assert again.peek("k").remaining <= 10


def test_the_fraction_of_a_larger_count_is_rounded_up_by_every_call(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    old, new = Limit(999_999, 1_000, 999_999, "gcra"), Limit(7, 1_000, 7, "gcra")
    for cost in (999, 1_000, 1_001):
        spent = ask(storage, f"k{cost}", old, cost)
        peek = ask(storage, f"k{cost}", new, mode="peek")
        assert ask(storage, f"k{cost}", new, 1).remaining == peek.remaining - 1
        assert ask(storage, f"k{cost}", new, -1, "force", spent=spent).reset_after_us <= peek.reset_after_us + 143


def test_settling_a_denied_decision_changes_nothing(clock: FakeClock) -> None:
    limiter = limiter_of("2/minute", clock)
    limiter.hit("a", cost=2)
    denied = limiter.hit("a")
    assert limiter.settle(denied, cost=0) is denied
    assert limiter.peek("a").remaining == 0


def test_a_late_settlement_gives_back_only_what_is_still_occupied(clock: FakeClock) -> None:
    limiter = limiter_of("10/minute; 10/minute fixed-window; 10/minute sliding-counter; 10/minute gcra", clock)
    decision = limiter.hit("a", cost=10)
    clock.advance(180)
    limiter.hit("a", cost=10)
    limiter.settle(decision, cost=0)
    assert [outcome.remaining for outcome in limiter.peek("a").outcomes] == [0, 0, 0, 0]


def test_a_bad_settlement_is_refused_and_can_be_tried_again(clock: FakeClock) -> None:
    limiter = limiter_of("10/minute", clock)
    decision = limiter.hit("a", cost=5)
    for cost in (-1, 1.5, True, None, "1", [1.5]):
        with pytest.raises(InvalidCost, match="whole number from 0"):
            limiter.settle(decision, cost=cost)  # type: ignore[arg-type]
    assert limiter.settle(decision, cost=1).remaining == 9


def test_a_spend_from_before_a_step_back_is_not_refunded_once_its_bucket_was_forgotten(clock: FakeClock) -> None:
    limiter = Limiter("10/minute burst 10", storage=MemoryStorage(clock=clock))
    before = limiter.hit("k", cost=10)
    clock.advance(-3600)
    limiter.peek("k")
    clock.advance(61)
    limiter.hit("other")  # sweeps
    assert limiter.hit("k", cost=10)
    limiter.settle(before, cost=0)
    assert not limiter.hit("k")


@needs_pure_build
def test_the_search_for_an_instant_that_suits_several_buckets_is_bounded(clock: FakeClock) -> None:
    pair = tuple(Limit(1, 1_000_000, 1, "token-bucket", name) for name in ("one", "other"))
    storage = MemoryStorage(clock=clock)
    for odd, limit in enumerate(pair):  # holes of the one where places of the other are
        places = [ask(storage, "k", limit, patience=10**8) for _ in range(62)]
        for place in places[odd:60:2]:
            ask(storage, "k", limit, -1, "force", spent=place)
    spends = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal spends
        spends += event == "call" and frame.f_code is Bucket.spend.__code__

    sys.setprofile(profile)
    storage.evaluate(((("k", pair, 1, 10**8, None),),))
    sys.setprofile(None)
    assert spends <= 2 * (MAX_ROUNDS + 4)


def held(storage: MemoryStorage, key: str = "a") -> int:
    return len(storage.holders(key, parse_limit("2 concurrent")))


def test_settling_corrects_rates_and_quotas_and_leaves_slots_alone(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    limiter = Limiter("10/minute; 100/calendar-month; 2 concurrent", storage=storage)
    settled = limiter.settle(limiter.hit("a", cost=6), cost=2)
    assert [outcome.remaining for outcome in settled.outcomes] == [8, 98, 1]
    assert held(storage) == 1
    assert [outcome.remaining for outcome in limiter.settle(limiter.hit("a"), cost=0).outcomes] == [8, 98, 0]
    assert held(storage) == 2, "a slot is held until it is released"


def test_releasing_a_decision_frees_its_slots_and_nothing_else(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    decider = Decider(storage)
    limits = tuple(parse_limits("10/minute; 2 concurrent"))
    first, second, denied = [decider.decide(group_of("a", limits, 3)) for _ in range(3)]
    assert [decision.allowed for decision in (first, second, denied)] == [True, True, False]
    for _ in range(2):
        decider.release(first)
        assert held(storage) == 1
    decider.release(denied)
    decider.release(decider.decide(group_of("a", limits[:1], 1)))
    assert held(storage) == 1
    assert Limiter("10/minute", storage=storage).peek("a").remaining == 3


def test_undoing_a_decision_refunds_and_releases_once(clock: FakeClock) -> None:
    storage = MemoryStorage(clock=clock)
    decider = Decider(storage)
    limits = tuple(parse_limits("10/minute; 100/calendar-month; 2 concurrent"))
    decision, other = [decider.decide(group_of("a", limits, 3)) for _ in range(2)]
    denied = decider.decide(group_of("a", limits, 3))
    decider.undo(denied)
    decider.undo(decision)
    rows = decider.evaluate((group_of("a", limits, 1),), "peek")[0]
    assert [row[1] for row in rows] == [7, 97, 1]
    with pytest.raises(ValueError, match="cannot be settled: it has been already"):
        decider.undo(decision)
    decider.undo(other)
    rows = decider.evaluate((group_of("a", limits, 1),), "peek")[0]
    assert [row[1] for row in rows] == [10, 100, 2]


def test_the_overage_of_a_metered_quota_follows_what_is_settled(clock: FakeClock) -> None:
    limiter = limiter_of("10/calendar-month over allow", clock)
    first, second = limiter.hit("a", cost=8), limiter.hit("a", cost=8)
    assert (first.overage, second.overage) == (0, 6)
    assert limiter.settle(second, cost=4).overage == -4
    assert limiter.settle(first, cost=20).overage == 12
    assert limiter.peek("a").overage == 0


STRIKES = "10/hour; 1 concurrent as slots; 1 strike/hour block 5 minutes as guessing"


def test_a_request_that_has_gone_ahead_stays_allowed_when_its_settlement_finds_the_key_blocked(
    clock: FakeClock,
) -> None:
    limiter = limiter_of(STRIKES, clock)
    settled = limiter.settle(limiter.hit("a"), cost=1, strike=True)
    assert (settled.allowed, settled.blocked, settled.limit.name) == (True, True, "guessing")
    assert not limiter.hit("a")


def test_the_slot_of_a_settled_decision_is_released_also_if_the_key_is_blocked(clock: FakeClock) -> None:
    limiter = limiter_of(STRIKES, clock)
    settled = limiter.settle(limiter.hit("a"), cost=1, strike=True)
    limiter.release(settled)
    assert limiter.holders("a") == []


@pytest.mark.parametrize("strike", [[True, False], [], "y", ["no"], 1, None], ids=repr)
def test_a_strike_that_cannot_be_read_leaves_the_decision_to_be_settled(strike: object, clock: FakeClock) -> None:
    limiter = limiter_of(STRIKES, clock)
    decision = limiter.hit("a", cost=7)
    with pytest.raises(ValueError, match="expected one strike, True or False, or one for each of 1 checks, not"):
        limiter.settle(decision, cost=0, strike=strike)  # type: ignore[arg-type]
    assert limiter.settle(decision, cost=0).remaining == 10
