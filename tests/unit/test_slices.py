"""Slices: what is decided here, what is asked, and what an answer means. With a fake clock and trips that are noted."""

import asyncio
import copy
import os
import pickle
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from ratebound import AsyncLimiter, Check, InvalidLimit, Limit, Limiter, MemoryStorage, Slice, StorageError, parse_limit
from ratebound.events import Decided, Warned
from ratebound.limit import Group, Mode
from ratebound.outcome import SLICED, Row
from ratebound.policy.match.request import RequestView
from ratebound.policy.runtime.gate import Gate
from ratebound.slices import MAX_SLICES, LocalSlice, Slices
from ratebound.storage.guard.guarded import AsyncGuardedStorage
from ratebound.testing import FakeClock
from tests.remote import AsyncRemoteStorage, RemoteStorage, by_clock, sliced

SECOND = 1_000_000
EACH = [
    "1000/minute sliding-log",
    "1000/minute sliding-counter",
    "1000/minute fixed-window",
    "1000/minute burst 1000",
    "1000/minute gcra",
    "1000/calendar-day",
]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_040 * SECOND)  # the beginning of a minute


@pytest.fixture
def remote(clock: FakeClock) -> RemoteStorage:
    return RemoteStorage(MemoryStorage(clock=clock), clock)


def spent(remote: RemoteStorage, key: str = "k") -> int:
    """Return the units of a key that the storage was charged, by its first limit."""
    charges = [charge for charge in remote.charges if charge[1] == key]
    return sum(units for _, _, scope, units in charges if scope == charges[0][2])


def slice_of(limiter: Limiter | AsyncLimiter, key: str = "k") -> LocalSlice:
    """Return the slice of a limiter's first limit."""
    found = limiter._decider.local.slices._find(limiter.limits[0], key)
    assert found is not None
    return found


def use_up(limiter: Limiter, clock: FakeClock) -> None:
    """Use all tokens that are here."""
    while slice_of(limiter).left(clock.now):
        limiter.hit("k")


class SlowStorage(AsyncRemoteStorage):
    """A storage whose answers wait for an event, if there is one."""

    answers: asyncio.Event | None = None

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        answers = self.remote.evaluate(groups, mode)
        if self.answers is not None:
            await self.answers.wait()
        return answers


@pytest.mark.parametrize("text", EACH)
def test_a_hot_key_is_decided_here(remote: RemoteStorage, text: str) -> None:
    limiter = sliced(text, remote)
    for _ in range(40):
        assert limiter.hit("k")
    assert len(remote.trips) < 10
    assert spent(remote) >= 40


def test_the_first_request_of_a_key_takes_no_slice(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    assert limiter.hit("k").remaining == 999
    assert spent(remote) == 1


def test_a_key_that_comes_again_after_the_time_of_a_slice_takes_none(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("1000/minute", remote)
    for hits in range(1, 5):
        assert limiter.hit("k")
        assert spent(remote) == hits
        clock.advance(1.1)


def test_slices_grow_with_demand_up_to_the_share_of_what_remains(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote, slice="10%")
    for _ in range(500):
        limiter.hit("k")
    sizes = [groups[0][0][2] for _, groups in remote.trips]
    assert sizes[:5] == [1, 2, 4, 8, 16]
    assert max(sizes) <= 100
    assert all(size <= max(1, (1000 - sum(sizes[:i])) // 10) for i, size in enumerate(sizes))


def test_exactly_the_limit_passes_in_one_process(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    assert sum(limiter.hit("k").allowed for _ in range(1200)) == 1000


def test_tokens_end_with_the_slice(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(4):  # the fourth takes four units, and uses one of them
        limiter.hit("k")
    trips = len(remote.trips)
    clock.advance(timedelta(microseconds=SECOND - 1))
    assert limiter.hit("k").remaining == 995
    assert len(remote.trips) == trips
    clock.now += 1
    limiter.hit("k")
    assert len(remote.trips) == trips + 1


def test_a_slice_lives_from_before_its_trip(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("1000/minute", remote)
    limiter.hit("k")
    limiter.hit("k")
    limiter.hit("k")  # used up
    remote.delay_us = 300_000
    begin = clock.now
    limiter.hit("k")
    trips = len(remote.trips)
    clock.now = begin + SECOND
    limiter.hit("k")
    assert len(remote.trips) == trips + 1


@pytest.mark.parametrize("text", ["1000/minute fixed-window", "1000/calendar-day"])
def test_a_slice_ends_with_its_window(remote: RemoteStorage, clock: FakeClock, text: str) -> None:
    limiter = sliced(text, remote)
    period = parse_limit(text).period_us
    clock.now += period - clock.now % period - 500_000
    for _ in range(4):
        limiter.hit("k")
    trips = len(remote.trips)
    clock.now += 499_999
    assert limiter.hit("k")
    assert len(remote.trips) == trips
    clock.now += 1
    assert limiter.hit("k").remaining == 999
    assert len(remote.trips) == trips + 1


def test_answers_tell_what_is_left_in_all_and_count_down(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("1000/minute fixed-window", remote)
    for left in range(999, 900, -1):
        decision = limiter.hit("k")
        assert (decision.remaining, decision.at) == (left, clock.now)
        assert decision.reset_after == 60 - clock.now % (60 * SECOND) / SECOND
        clock.now += 1000


def test_a_cost_takes_as_many_tokens(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    assert [limiter.hit("k", cost=10).remaining for _ in range(8)] == list(range(990, 910, -10))
    assert len(remote.trips) < 8


def test_tokens_that_are_left_are_kept_at_a_refill_and_live_no_longer(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(4):
        limiter.hit("k", cost=3)
    clock.advance(0.9)
    before = spent(remote)
    for _ in range(4):
        limiter.hit("k", cost=7)
    limit = limiter.limits[0]
    held = spent(remote) - 12 - 28
    found = limiter._decider.local.slices._find(limit, "k")
    assert found is not None
    assert found.left(clock.now) == held
    assert spent(remote) > before


def test_every_limit_of_a_key_has_its_slice(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("1000/minute; 5000/hour", remote)
    for hits in range(1, 100):
        decision = limiter.hit("k")
        assert [outcome.remaining for outcome in decision.outcomes] == [1000 - hits, 5000 - hits]
    assert len(remote.trips) < 12


def test_a_group_with_a_limit_without_slices_goes_out_at_its_cost(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    other = Check("other", parse_limit("500/minute"))
    own = Check("k", limiter.limits)
    for hits in range(1, 10):
        assert limiter.check([own, other])
        assert spent(remote) == hits


def test_a_group_of_several_keys_is_decided_here_if_all_have_tokens(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    checks = [Check("k", limiter.limits), Check("l", limiter.limits, 2)]
    for hits in range(1, 30):
        assert [outcome.remaining for outcome in limiter.check(checks).outcomes] == [1000 - hits, 1000 - 2 * hits]
    assert len(remote.trips) < 10


def test_a_key_that_is_twice_in_a_group_needs_tokens_for_both(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    check = Check("k", limiter.limits)
    assert sum(limiter.check([check, check]).allowed for _ in range(600)) == 500


def test_no_slice_is_taken_for_a_group_that_could_not_use_it(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    hot = Check("hot", limiter.limits)
    for number in range(20):
        limiter.check([hot, Check(f"cold:{number}", limiter.limits)])
    assert spent(remote, "hot") == 20


def test_tokens_of_one_limit_are_not_for_another_that_counts_in_the_same_state(remote: RemoteStorage) -> None:
    limiter = sliced("10/minute sliding-log", remote, slice="50%")
    generous = Check("k", Limit(100, 60 * SECOND, algorithm="sliding-log", slice=Slice(0.5)))
    for _ in range(20):
        assert limiter.check(generous)
    denied = limiter.hit("k")
    assert not denied
    assert denied.remaining == 0


def test_limits_with_slices_of_different_lengths_keep_them_apart(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("1000/minute", remote, slice={"for": 6})
    short = Check("k", Limit(1000, 60 * SECOND, slice=Slice(0.05, SECOND)))
    for _ in range(20):
        limiter.hit("k")
        limiter.check(short)
    clock.advance(1)
    trips = len(remote.trips)
    limiter.check(short)
    assert len(remote.trips) == trips + 1


def test_a_key_with_several_limits_gets_its_slices_at_its_second_request(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute; 5000/hour; 9000/day", remote)
    for key in ("k", "l", "m"):
        limiter.hit(key)
        limiter.hit(key)
        assert remote.trips[-1][1][0][0][2] == 2


@pytest.mark.parametrize("text", EACH)
def test_what_remains_is_never_more_than_the_limit_gives_at_once(
    remote: RemoteStorage, clock: FakeClock, text: str
) -> None:
    limiter = sliced(text, remote)
    for _ in range(4):  # the fourth takes four units, and uses one of them
        limiter.hit("k")
    clock.advance(0.9)
    assert limiter.peek("k").remaining <= 1000
    assert limiter.hit("k", cost=5).remaining <= 1000


def test_a_limit_that_denies_has_less_left_than_the_cost() -> None:
    slices = Slices(FakeClock())
    limits = (Limit(1000, 60 * SECOND, slice=Slice()),)
    small, large = (("k", limits, 2, None, None),), (("k", limits, 4, None, None),)
    for extra in (0, 2):
        trip = slices.set_out(small)
        assert trip.group[0][2] == 2 + extra
        slices.answered(trip, [(True, 900, 0, 700, 0, 0, 0, 0, None)])
    denial = (False, 3, 100, 700, 0, 0, 0, 0, None)
    assert [row[1] for row in slices.peeked(large, [denial])] == [3]
    assert [row[1] for row in slices.answered(slices.set_out(large), [denial])] == [3]
    denial = (False, 1, 100, 700, 0, 0, 0, 0, None)
    assert [row[1] for row in slices.peeked(large, [denial])] == [3]


def test_a_second_trip_is_the_one_that_is_counted_from(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("100/minute fixed-window", remote, slice="50%", deny_cache=True)
    other = sliced("100/minute fixed-window", remote, slice=None)
    for _ in range(8):
        limiter.hit("k")
    while other.hit("k"):
        pass
    use_up(limiter, clock)
    remote.delay_us = 50_000
    trips = len(remote.trips)
    denied = limiter.hit("k")
    assert len(remote.trips) == trips + 2
    again = limiter.hit("k")
    assert len(remote.trips) == trips + 2
    assert denied.retry_after == again.retry_after == 60 - 0.15
    clock.now += 899_999  # nearly a second after the second trip began
    limiter.hit("k")
    assert len(remote.trips) == trips + 2
    clock.now += 1
    limiter.hit("k")
    assert len(remote.trips) == trips + 3


def test_a_group_that_takes_nothing_in_advance_is_not_asked_twice() -> None:
    slices = Slices(FakeClock())
    limits = (Limit(1000, 60 * SECOND, slice=Slice()),)
    ask = ("k", limits, 1, None, None)
    row = (True, 40, 0, 60 * SECOND, 0, 0, 0, 0, None)
    slices.answered(slices.set_out((ask,)), [row])
    slices.answered(slices.set_out((ask,)), [row])
    assert not slices.set_out((ask, ask)).extras


def test_a_denied_refill_is_asked_again_at_its_cost(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter, other = sliced("100/minute", remote, slice="50%"), sliced("100/minute", remote, slice=None)
    for _ in range(8):
        limiter.hit("k")
    while other.peek("k").remaining > 1:
        other.hit("k")
    while limiter._decider.local.slices._find(limiter.limits[0], "k").left(clock.now):  # type: ignore[union-attr]
        limiter.hit("k")
    trips = len(remote.trips)
    assert limiter.hit("k")
    assert [groups[0][0][2] > 1 for _, groups in remote.trips[trips:]] == [True, False]
    denied = limiter.hit("k")
    assert not denied
    assert denied.retry_after == pytest.approx(60, abs=1)
    assert len(remote.trips) == trips + 3  # nothing remains, so no slice was asked for


def test_one_slice_at_a_time_is_on_its_way(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(4):
        limiter.hit("k")
    while limiter._decider.local.slices._find(limiter.limits[0], "k").tokens:  # type: ignore[union-attr]
        limiter.hit("k")
    costs: list[int] = []

    def hit_meanwhile() -> None:
        remote.on_trip = None
        limiter.hit("k")
        costs.append(remote.trips[-1][1][0][0][2])

    remote.on_trip = hit_meanwhile
    limiter.hit("k")
    assert costs == [1]


def test_hit_many_goes_out_once_for_all_keys_that_have_no_tokens(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(4):
        limiter.hit("k")
    trips = len(remote.trips)
    decisions = limiter.hit_many(["k", "a", "k", "b"])
    assert [decision.remaining for decision in decisions] == [995, 999, 994, 999]
    assert [len(groups) for _, groups in remote.trips[trips:]] == [2]


def test_a_peek_counts_the_tokens_and_changes_nothing(remote: RemoteStorage) -> None:
    limiter, other = sliced("100/minute", remote, slice="50%"), sliced("100/minute", remote, slice=None)
    for _ in range(4):
        limiter.hit("k")
    assert limiter.peek("k").remaining == 96
    while other.hit("k"):
        pass
    assert not other.peek("k")
    assert limiter.peek("k").remaining == 3
    assert limiter.peek("k", cost=3).retry_after == 0.0
    assert not limiter.peek("k", cost=4)
    assert limiter.hit("k", cost=3)
    assert not limiter.peek("k")


def test_usage_says_what_the_storage_was_charged(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(4):
        limiter.hit("k")
    assert limiter.usage("k")[0].used == spent(remote) == 7


def test_a_refund_goes_to_the_slice_that_was_charged(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(5):
        decision = limiter.hit("k", cost=4)
    trips, left = len(remote.trips), decision.remaining
    assert limiter.settle(decision, cost=1).remaining == left + 3
    assert len(remote.trips) == trips
    assert limiter.peek("k").remaining == left + 3


def test_a_refund_to_a_slice_that_has_ended_is_lost(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(5):
        decision = limiter.hit("k", cost=4)
    before = spent(remote)
    clock.advance(1)
    for _ in range(4):
        limiter.hit("k")  # another slice
    assert limiter.settle(decision, cost=0).remaining == 1000 - spent(remote)
    assert spent(remote) >= before


def test_a_charge_on_top_takes_tokens_first(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(9):
        decision = limiter.hit("k")
    held = spent(remote) - 9
    assert held > 2
    trips = len(remote.trips)
    assert limiter.settle(decision, cost=2).remaining == 1000 - 10
    assert len(remote.trips) == trips
    decision = limiter.hit("k")
    held -= 2
    before = spent(remote)
    settled = limiter.settle(decision, cost=1 + held + 10)
    assert spent(remote) == before + 10
    assert settled.remaining == 1000 - before - 10
    assert remote.trips[-1][0] == "force"


def test_what_the_storage_decided_at_its_cost_is_refunded_there(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    decision = limiter.hit("k", cost=5)
    assert limiter.settle(decision, cost=2).remaining == 998
    assert spent(remote) == 2


def test_a_group_of_both_kinds_is_settled_each_where_it_was_charged(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    checks = [Check("k", limiter.limits), Check("l", limiter.limits, 2)]
    for _ in range(6):
        decision = limiter.check(checks)
    settled = limiter.settle(decision, cost=[0, 40])
    assert settled.outcomes[0].remaining == 1000 - 5
    assert spent(remote, "l") >= 50


def test_undoing_a_decision_gives_back_all_of_it(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(4):
        decision = limiter.hit("k")
    limiter._decider.undo(decision)
    assert limiter.peek("k").remaining == 997


def test_a_decision_from_a_slice_is_copied_and_pickled(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(4):
        decision = limiter.hit("k")
    for other in (copy.copy(decision), pickle.loads(pickle.dumps(decision))):
        assert (other.remaining, other.allowed, other.rows[0]) == (996, True, decision.rows[0])


def test_a_reset_drops_the_slices_of_the_key(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for key in "kl":
        for _ in range(4):
            limiter.hit(key)
    limiter.reset("k")
    trips = len(remote.trips)
    assert limiter.hit("l").remaining == 995
    assert len(remote.trips) == trips
    assert limiter.hit("k").remaining == 999
    assert len(remote.trips) == trips + 1


def test_an_answer_that_comes_after_a_reset_fills_no_slice(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    limiter.hit("k")

    def reset_meanwhile() -> None:
        remote.on_trip = None
        limiter.reset("k")

    remote.on_trip = reset_meanwhile
    limiter.hit("k")
    trips = len(remote.trips)
    assert limiter.hit("k").remaining == 999
    assert len(remote.trips) == trips + 1


def test_other_limits_drop_all_slices(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(4):
        limiter.hit("k")
    limiter.limits = parse_limit("500/minute sliding-counter")
    assert limiter.limits[0].slice == Slice()
    trips = len(remote.trips)
    limiter.hit("k")
    assert len(remote.trips) == trips + 1


def test_a_new_policy_drops_all_slices(remote: RemoteStorage, clock: FakeClock) -> None:
    limits = (Limit(1000, 60 * SECOND, slice=Slice()),)
    gate = Gate({"rules": [{"name": "all", "limits": "1000/minute"}]}, storage=remote)
    by_clock(gate._decider, clock)
    decider = gate._decider
    for _ in range(4):
        decider.decide((("k", limits, 1, None, None),))
    gate.use(gate.policy)
    trips = len(remote.trips)
    decider.decide((("k", limits, 1, None, None),))
    assert len(remote.trips) == trips + 1
    assert gate.decide(RequestView("GET", "/"))


def test_a_forked_child_numbers_its_slices_by_itself() -> None:
    slices = Slices(FakeClock())
    before = slices._number
    slices.renew()
    assert slices._number != before


def test_a_forked_child_has_no_slices(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(4):
        limiter.hit("k")
    child = os.fork()
    if not child:
        os._exit(limiter._decider.local.slices.keys)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    trips = len(remote.trips)
    limiter.hit("k")
    assert len(remote.trips) == trips


def test_an_outage_uses_up_what_is_here_and_then_the_failure_mode_decides(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote)
    for _ in range(9):
        limiter.hit("k")
    held = spent(remote) - 9
    remote.is_down = True
    decisions = [limiter.hit("k") for _ in range(held + 5)]
    assert [decision.degraded is None for decision in decisions] == [True] * held + [False] * 5
    # The first went out with a slice, which was taken back: 5 units were granted here, and not more.
    assert decisions[-1].remaining == 995
    remote.is_down = False


def test_a_closed_failure_mode_denies_in_one_trip(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute", remote, failure="closed")
    for _ in range(4):
        limiter.hit("k")
    while limiter._decider.local.slices._find(limiter.limits[0], "k").tokens:  # type: ignore[union-attr]
        limiter.hit("k")
    remote.is_down = True
    trips = len(remote.trips)
    assert limiter.hit("k").unavailable
    assert len(remote.trips) == trips + 1


@pytest.mark.parametrize("failure", ["raise", "local"])
def test_a_process_that_gets_no_answers_loses_no_more_than_a_slice(
    remote: RemoteStorage, clock: FakeClock, failure: str
) -> None:
    limiter = sliced("1000/minute", remote, failure=failure)
    for _ in range(100):
        limiter.hit("k")
    use_up(limiter, clock)
    before = spent(remote)

    def lose_the_answer() -> None:
        remote.on_trip = None
        raise StorageError("the answer is lost")

    for _ in range(10):
        remote.on_trip = lose_the_answer
        with suppress(StorageError):
            limiter.hit("k")
        limiter.hit("k")
        limiter.hit("k")
    assert spent(remote) - before <= 30 + 50
    clock.advance(1)
    limiter.hit("k")
    limiter.hit("k")
    assert remote.trips[-1][1][0][0][2] > 1


def test_cancelled_tasks_lose_no_more_than_a_slice(remote: RemoteStorage, clock: FakeClock) -> None:
    async def cancelled_hits(limiter: AsyncLimiter, count: int) -> None:
        for _ in range(count):
            task = asyncio.ensure_future(limiter.hit("k"))
            trips = len(remote.trips)
            while len(remote.trips) == trips:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def play() -> None:
        storage = SlowStorage(remote)
        guard = AsyncGuardedStorage(storage, failures=10**9, clock=clock)
        async with AsyncLimiter("1000/minute", storage=guard, slice=True) as limiter:
            by_clock(limiter._decider, clock)
            for _ in range(100):
                await limiter.hit("k")
            while slice_of(limiter).left(clock.now):
                await limiter.hit("k")
            before = spent(remote)
            storage.answers = asyncio.Event()
            await cancelled_hits(limiter, 10)
            storage.answers.set()
            assert spent(remote) - before <= 10 + 50

    asyncio.run(play())


def test_listeners_receive_every_decision_and_one_warning(remote: RemoteStorage) -> None:
    heard: list[Any] = []
    limiter = sliced("100/minute", remote, slice="20%", warn="80%", listeners=[heard.append])
    for _ in range(100):
        limiter.hit("k")
    assert len([event for event in heard if isinstance(event, Decided)]) == 100
    assert [event.remaining for event in heard if isinstance(event, Warned)] == [20]


def test_a_wait_uses_the_tokens_that_are_here(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("1000/minute sliding-counter", remote, sleep=clock.sleep)
    for _ in range(20):
        limiter.wait("k")
    assert len(remote.trips) < 10


def test_tasks_use_the_slices_too(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = AsyncLimiter("1000/minute", storage=remote, slice=True)
    by_clock(limiter._decider, clock)

    async def hits() -> list[int]:
        found = [(await limiter.hit("k")).remaining for _ in range(100)]
        assert (await limiter.peek("k")).remaining == 900
        settled = await limiter.settle(await limiter.hit("k"), cost=0)
        assert settled.remaining == 900
        await limiter.reset("k")
        assert (await limiter.hit("k")).remaining == 999
        return found

    assert asyncio.run(hits()) == list(range(999, 899, -1))
    assert len(remote.trips) < 15


def test_decorated_async_functions_share_the_slices_of_their_limiter(remote: RemoteStorage) -> None:
    limiter = sliced("1000/minute sliding-counter", remote)

    @limiter.limit(key="k")
    async def work() -> None:
        pass

    for _ in range(4):
        limiter.hit("k")
    trips = len(remote.trips)
    asyncio.run(work())
    assert len(remote.trips) == trips


def test_memory_ignores_slices() -> None:
    limiter = Limiter("10/minute", slice=True, deny_cache=True)
    assert [limiter.hit("k").remaining for _ in range(10)] == list(range(9, -1, -1))
    assert not limiter.hit("k")
    assert limiter._decider.local.slices.keys == 0


def test_a_row_is_counted_down_by_the_clock_of_the_process() -> None:
    clock = FakeClock(5_000_000)
    slices = Slices(clock)
    limits = (Limit(1000, 60 * SECOND, slice=Slice()),)
    group = (("k", limits, 1, None, None),)
    for extra in (0, 1):
        trip = slices.set_out(group)
        assert trip.group[0][2] == 1 + extra
        rows = slices.answered(trip, [(True, 900, 0, 700, 0, 9_000_000, 0, 0, None)])
    number = rows[0][6]
    assert rows[0] == (True, 901, 0, 700, 0, 9_000_000, number, SLICED, None)
    clock.now += 699
    slices.answered(slices.set_out(group), [(False, 0, 1, 1, 0, 9_000_699, 0, 0, None)])
    clock.now += 1
    assert slices.spend(group) == [(True, 0, 0, 0, 0, 9_000_700, number, SLICED, None)]


def test_the_demand_is_what_was_asked_in_the_stretch_before(remote: RemoteStorage, clock: FakeClock) -> None:
    limiter = sliced("100000/hour", remote)
    for _ in range(32):
        limiter.hit("k")
        clock.advance(1 / 32)
    limiter.hit("k")
    assert remote.trips[-1][1][0][0][2] == 32
    clock.advance(1)
    limiter.hit("k")
    assert remote.trips[-1][1][0][0][2] == 1  # of the last stretch: this one and the one before
    clock.advance(1)
    limiter.hit("k")
    assert remote.trips[-1][1][0][0][2] == 1


def test_keys_that_are_not_met_again_are_forgotten() -> None:
    clock = FakeClock()
    slices = Slices(clock)
    limits = (Limit(1000, 60 * SECOND, slice=Slice()),)
    for number in range(1000):
        slices.set_out(((f"k{number}", limits, 1, None, None),))
        clock.now += 10_000
    assert slices.keys <= 450


def test_there_is_a_most_of_keys_and_beyond_it_keys_have_no_slice() -> None:
    slices = Slices(FakeClock())
    limits = (Limit(1000, 60 * SECOND, slice=Slice()),)
    for number in range(MAX_SLICES + 10):
        trip = slices.set_out(((f"k{number}", limits, 1, None, None),))
    assert slices.keys == MAX_SLICES
    assert not trip.slices


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (True, Slice(0.05, SECOND)),
        ("20%", Slice(0.2, SECOND)),
        (0.2, Slice(0.2, SECOND)),
        (Slice(0.5, 2 * SECOND), Slice(0.5, 2 * SECOND)),
        ({"share": "1%"}, Slice(0.01, SECOND)),
        ({"for": timedelta(seconds=3)}, Slice(0.05, 3 * SECOND)),
        ({"share": 0.1, "for": 0.5}, Slice(0.1, SECOND // 2)),
    ],
)
def test_a_slice_can_be_written_in_several_ways(given: Any, expected: Slice) -> None:
    assert Limiter("1000/minute", slice=given).limits[0].slice == expected
    assert AsyncLimiter("1000/minute", slice=given).limits[0].slice == expected


@pytest.mark.parametrize("given", [False, None])
def test_no_slice_is_the_default(given: Any) -> None:
    assert Limiter("1000/minute", slice=given).limits[0].slice is None
    assert Limiter("1000/minute").limits[0].slice is None


@pytest.mark.parametrize(
    ("limits", "given", "reason"),
    [
        ("3 concurrent", True, "slice is for rates and quotas that deny, and not for '3 concurrent'"),
        ("100/minute; 3 concurrent", True, "not for '3 concurrent': leave out slice, or the limit"),
        ("10/minute burst 5 leaky-bucket", True, "not for '10/minute burst 5 leaky-bucket'"),
        ("20 distinct account/hour", True, "not for '20 distinct account/hour'"),
        ("100/day fixed-window over allow", True, "not for '100/day fixed-window over allow'"),
        ("100/5 seconds", True, "the period of '100/5 seconds' is too short for slices of 1 s"),
        ("100/minute", {"for": 7}, "too short for slices of 7 s: it must be at least 10 times as long as 'for'"),
        ("10/second", True, "which can be 0.1 s here at most"),
        ("100/minute", "0%", "share"),
        ("100/minute", "much", "share"),
        ("100/minute", [1], "share"),
        ("100/minute", {"shares": 0.1}, "'share' and 'for', not 'shares'"),
        ("100/minute", 10**400, "share"),
        ("100/minute", {"for": "soon"}, "seconds or a timedelta, from 1 millisecond to 1 hour, not 'soon'"),
        ("100/minute", {"for": 0}, "a slice lives from 1 millisecond"),
    ],
)
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_what_cannot_have_a_slice_is_refused_at_construction(kind: Any, limits: str, given: Any, reason: str) -> None:
    with pytest.raises(InvalidLimit, match=reason):
        kind(limits, slice=given)


def test_a_limit_keeps_the_slice_that_it_has() -> None:
    own = Limit(1000, 60 * SECOND, slice=Slice(0.3))
    assert Limiter([own], slice=True).limits[0].slice == Slice(0.3)
