"""Distinct values and penalties while the storage is out of reach: what is allowed, who stays blocked, and what the
storage learns of it afterwards: nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ratebound import AsyncLimiter, Decision, Limit, Limiter, MemoryStorage, RateLimited, StorageError, parse_limit
from ratebound.extras import extras_of
from ratebound.kernels.penalty import BLOCKED, STRUCK
from ratebound.limit import NOT_GIVEN, STRIKE, Failure, Group, Mode
from ratebound.outcome import Row
from ratebound.settling import settlement, undoing
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.storage.guard.remembered_blocks import MOST
from ratebound.testing import FakeClock, slot
from tests.unit.faulty import DOWN, FOREIGN, UNKNOWN, Make, Prompt, Subject

TWO = parse_limit("2 distinct account/hour")
RATE = parse_limit("1/minute")
GUESSING = parse_limit("2 strikes/hour block 5 minutes then 1 hour as guessing")
SLOTS = parse_limit("3 concurrent")
MINUTE, HOUR = 60, 3_600
MODES = ["local", "open", "closed"]


def falling(failure: Failure, *limits: Limit) -> tuple[Limit, ...]:
    return tuple(replace(limit, failure=failure, name=limit.name if limit.named else "") for limit in limits)


def group_of(key: str, limits: Sequence[Limit], account: str = "alice") -> Group:
    values = {limit.values: account for limit in limits if limit.is_distinct} or None
    return ((key, tuple(limits), 1, None, extras_of(key, tuple(limits), values)),)


def see(subject: Subject, account: str, *limits: Limit, key: str = "a", mode: Mode = "spend") -> Decision:
    return subject.decide(group_of(key, limits or (TWO,), account), mode)


def ask(subject: Subject, *limits: Limit, key: str = "a", mode: Mode = "spend") -> Decision:
    return subject.decide(group_of(key, limits or (RATE, GUESSING)), mode)


def block(subject: Subject, *limits: Limit, key: str = "a") -> None:
    """Let a client be struck until it is blocked, by the storage."""
    while not (decision := ask(subject, *limits, key=key)).blocked:
        assert decision.degraded is None
        subject.clock.advance(2)


def left(subject: Subject, limit: Limit, key: str = "a") -> Row:
    """The row of a peek, of the storage itself."""
    group: Group = ((key, (limit,), 1, None, [NOT_GIVEN]),)
    return subject.faulty.memory.evaluate((group,), "peek")[0][0]


def strike(subject: Subject, decision: Decision, cost: int = 1) -> Decision:
    forced = settlement(decision.asks, decision.rows, [cost], [True])
    return Decision(forced, subject.storage.evaluate((forced,), "force")[0])


# Distinct values


def test_distinct_values_are_counted_here_and_not_divided_among_workers(make: Make) -> None:
    subject = make(workers=8)
    subject.open_breaker()
    found = [see(subject, account) for account in ("alice", "bob", "carol", "alice")]
    assert [decision.allowed for decision in found] == [True, True, False, True]
    assert found[2].degraded
    assert not found[2].unavailable
    assert found[2].retry_after == HOUR
    assert not len(subject.guard.fallback.debts), "nothing is owed"
    subject.clock.advance(HOUR)
    assert see(subject, "carol")


@pytest.mark.parametrize("error", [DOWN, UNKNOWN])
def test_values_are_not_written_back_but_the_rate_beside_them_is(make: Make, error: StorageError) -> None:
    subject = make()
    rate = parse_limit("9/hour")
    subject.open_breaker(error)
    for account in ("alice", "bob"):
        assert see(subject, account, rate, TWO)
    assert not see(subject, "carol", rate, TWO)
    subject.come_back()
    assert left(subject, TWO)[1] == 2
    assert subject.left("a", rate) == 7
    assert not len(subject.guard.fallback.debts)


def test_a_degraded_sight_is_taken_back_where_it_was_counted(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    first, second = see(subject, "alice"), see(subject, "bob")
    subject.settle(first, 0)
    assert see(subject, "carol"), "alice counts no more"
    subject.settle(second, 3)
    assert not see(subject, "dave"), "what costs something stays"
    subject.come_back()
    see(subject, "alice")
    see(subject, "bob")
    subject.faulty.calls.clear()
    subject.decide(undoing(second.asks, second.rows), "force")
    assert subject.faulty.calls == []
    assert left(subject, TWO)[1] == 0, "what the storage counts is another sight"


def test_a_sight_of_the_storage_that_is_taken_back_in_an_outage_stays_counted_there(make: Make) -> None:
    subject = make()
    decision = see(subject, "alice")
    subject.open_breaker()
    see(subject, "alice")
    see(subject, "bob")
    assert subject.settle(decision, 0).degraded
    assert not see(subject, "carol"), "its instants are of another clock, so nothing is taken back here"
    subject.come_back()
    assert left(subject, TWO)[1] == 1


def test_a_value_that_is_counted_in_any_case_counts_here_in_an_outage(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    for account in ("alice", "bob", "carol"):
        ((key, limits, _, _, extras),) = group_of("a", (TWO,), account)
        assert subject.decide(((key, limits, 1, None, extras),), "force")
    assert not see(subject, "dave")
    assert see(subject, "carol")
    subject.come_back()
    assert left(subject, TWO)[1] == 2


def test_a_value_whose_answer_nobody_waits_for_is_taken_back(make: Make) -> None:
    """In the storage while it is there, else in this process."""
    subject = make()
    for is_out in (False, True):
        if is_out:
            subject.open_breaker()
        decision = see(subject, "alice")
        subject.decide(undoing(decision.asks, decision.rows), "force")
        assert [see(subject, account).allowed for account in ("bob", "carol", "dave")] == [True, True, False], is_out


def test_a_value_that_the_storage_counted_in_a_lost_answer_stays_counted_there(make: Make) -> None:
    subject = make()
    asking = subject.faulty.evaluate

    def silent(groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        asking(groups, mode)
        raise UNKNOWN

    subject.faulty.evaluate = silent  # type: ignore[method-assign]
    decision = see(subject, "alice")
    assert decision.degraded
    subject.decide(undoing(decision.asks, decision.rows), "force")
    assert [see(subject, account).allowed for account in ("bob", "carol", "dave")] == [True, True, False]
    subject.faulty.evaluate = asking  # type: ignore[method-assign]
    subject.come_back()
    assert left(subject, TWO)[1] == 0, "alice and bob: the storage has made these spends"


# Penalties


@pytest.mark.parametrize("workers", [1, 4])
def test_denials_in_an_outage_are_no_strikes(make: Make, workers: int) -> None:
    subject = make(workers=workers)
    subject.open_breaker(DOWN)
    for _ in range(10):
        decision = ask(subject)
        assert not decision.blocked
        assert decision.outcomes[1].given == 0
        subject.clock.advance(2)
    subject.come_back()
    row = left(subject, GUESSING)
    assert (row[0], row[1], row[3]) == (True, 2, 0)
    assert subject.guard.fallback.memory.states.keys <= 2, "of the rates only"


@pytest.mark.parametrize("failure", MODES)
@pytest.mark.parametrize("error", [DOWN, UNKNOWN, FOREIGN])
def test_a_blocked_client_stays_blocked_through_an_outage(make: Make, failure: Failure, error: StorageError) -> None:
    subject = make(workers=4)
    limits = falling(failure, RATE, GUESSING)
    block(subject, *limits)
    subject.clock.advance(MINUTE)
    subject.faulty.error = error
    for _ in range(5):
        denied = ask(subject, *limits)
        assert denied.degraded
        assert denied.blocked
        assert not denied.unavailable
        assert denied.retry_after == 4 * MINUTE
        assert denied.limit == GUESSING
    assert ask(subject, *limits, mode="peek").blocked
    assert not ask(subject, *limits, key="b").blocked
    subject.clock.advance(4 * MINUTE - 0.000_001)
    assert ask(subject, *limits).blocked
    subject.clock.advance(0.000_001)
    after = ask(subject, *limits)
    assert not after.blocked
    assert after.allowed is (failure != "closed")
    assert after.unavailable is (failure == "closed")


def test_a_blocked_client_is_charged_nothing_in_an_outage(make: Make) -> None:
    subject = make()
    rate, guarded = parse_limit("3/hour"), parse_limit("1 distinct account/minute")
    limits = (rate, guarded, SLOTS, GUESSING)
    see(subject, "alice", *limits)
    for _ in range(2):
        assert not see(subject, "bob", *limits)
        subject.clock.advance(2)
    assert see(subject, "alice", *limits).blocked
    subject.open_breaker(DOWN)
    assert see(subject, "bob", *limits).blocked
    spent = see(subject, "bob", rate, guarded)
    assert spent.outcomes[0].remaining == 2, "the first that was charged here"
    subject.clock.advance(5 * MINUTE)
    assert [see(subject, "bob", *limits).allowed for _ in range(3)] == [True, True, False]


def test_the_block_that_a_strike_of_this_process_began_is_remembered(make: Make) -> None:
    subject = make()
    ask(subject)
    found = []
    for _ in range(2):
        found.append(ask(subject).outcomes[1].given)
        subject.clock.advance(2)
    assert found == [STRUCK, BLOCKED]
    subject.open_breaker()
    assert ask(subject).retry_after == 5 * MINUTE - 2


@pytest.mark.parametrize("raising", [False, True])
def test_the_block_that_a_result_began_is_remembered(make: Make, raising: bool) -> None:
    subject = make()
    limits = (parse_limit("9/minute"), GUESSING)
    for _ in range(2):
        decision = ask(subject, *limits)
        if raising:
            forced: Group = [("a", (GUESSING,), 0, None, [STRIKE])]
            force_or_raise(subject, forced)
        else:
            strike(subject, decision)
        subject.clock.advance(2)
    subject.open_breaker()
    assert ask(subject, *limits).retry_after == 5 * MINUTE - 2


def test_a_peek_that_saw_a_block_remembers_it(make: Make) -> None:
    subject, other = make(), make()
    block(other)
    subject.faulty.memory = other.faulty.memory
    assert ask(subject, mode="peek").blocked
    subject.open_breaker()
    assert ask(subject).blocked


def test_blocks_of_two_penalties_and_two_keys_are_remembered_apart(make: Make) -> None:
    subject = make()
    other = parse_limit("2 strikes/hour block 1 day as other")
    block(subject)
    block(subject, RATE, other, key="b")
    subject.open_breaker()
    assert ask(subject).blocked
    assert not ask(subject, RATE, other).blocked
    assert ask(subject, RATE, other, key="b").blocked
    assert not ask(subject, key="b").blocked
    changed = parse_limit("7 strikes/day block 2 hours as guessing")
    assert ask(subject, RATE, changed).blocked, "a reload frees nobody"


def test_a_group_is_denied_if_the_penalty_of_one_ask_blocks(make: Make) -> None:
    subject = make()
    rate = parse_limit("5/hour")
    block(subject)
    subject.open_breaker(DOWN)
    asks = [*group_of("b", (rate,)), *group_of("a", (RATE, GUESSING))]
    assert subject.decide(asks).blocked
    assert ask(subject, rate, key="b").remaining == 4


def test_the_storage_decides_again_when_it_is_back(make: Make) -> None:
    """Another process has lifted the block meanwhile, or the storage has come back empty."""
    subject = make()
    block(subject)
    subject.open_breaker()
    subject.faulty.memory.states.clear()
    assert ask(subject).blocked
    subject.come_back()
    assert ask(subject)
    subject.open_breaker()
    assert not ask(subject).blocked, "what the storage said last"


def test_a_late_answer_from_before_the_block_does_not_lift_it(make: Make) -> None:
    subject = make()
    group = group_of("a", (RATE, GUESSING))
    late = subject.faulty.memory.evaluate((group,), "peek")[0]
    block(subject)
    subject.guard.fallback.saw(group, "peek", late, set())
    subject.open_breaker()
    assert ask(subject).blocked


@pytest.mark.parametrize("is_out", [False, True])
def test_a_reset_lifts_the_block_here(make: Make, is_out: bool) -> None:
    subject = make()
    block(subject)
    reset = group_of("a", (RATE, GUESSING))
    if is_out:
        subject.open_breaker()
        with pytest.raises(StorageError):
            subject.storage.reset(reset)
        assert ask(subject), "in this process"
        subject.come_back()
        assert ask(subject).blocked, "not in the storage"
    else:
        subject.storage.reset(reset)
        subject.open_breaker()
        assert ask(subject)


def test_a_block_that_was_seen_while_it_was_lifted_is_forgotten(make: Make) -> None:
    subject = make()
    block(subject)
    resetting = subject.faulty.reset

    def reset(group: Group) -> None:
        rows = subject.faulty.memory.evaluate((group,), "peek")[0]
        subject.guard.fallback.saw(group, "peek", rows, set())
        resetting(group)

    subject.faulty.reset = reset  # type: ignore[method-assign]
    subject.storage.reset(group_of("a", (RATE, GUESSING)))
    subject.open_breaker()
    assert ask(subject)


def test_a_limit_that_falls_to_raise_raises_for_blocked_clients_too(make: Make) -> None:
    subject = make()
    block(subject)
    for limits in ((RATE, *falling("raise", GUESSING)), (*falling("raise", RATE), GUESSING), falling("raise", TWO)):
        subject.faulty.error = None
        subject.clock.advance(1)
        see(subject, "alice", *limits)
        subject.faulty.error = UNKNOWN
        for _ in range(4):
            with pytest.raises(StorageError, match="silent"):
                see(subject, "alice", *limits)


@pytest.mark.parametrize("limit", [TWO, GUESSING])
def test_each_limit_falls_to_its_own_mode(make: Make, limit: Limit) -> None:
    subject = make()
    subject.open_breaker()
    rate = parse_limit("100/hour")
    for account in ("alice", "bob", "carol"):
        (opened,) = falling("open", limit)
        assert see(subject, account, rate, opened).degraded
        (closed,) = falling("closed", limit)
        denied = see(subject, account, rate, closed)
        assert not denied
        assert denied.unavailable
        assert not denied.blocked
    subject.come_back()
    assert left(subject, limit)[1] == limit.count
    assert subject.left("a", rate) == 97


def test_a_strike_that_the_storage_cannot_be_told_is_dropped(make: Make) -> None:
    subject = make()
    limits = (parse_limit("9/hour"), GUESSING)
    before = ask(subject, *limits)
    subject.open_breaker(DOWN)
    during = [ask(subject, *limits) for _ in range(2)]
    assert not strike(subject, before, cost=2).blocked
    subject.clock.advance(2)
    assert not strike(subject, during[0]).blocked
    subject.clock.advance(2)
    with pytest.raises(StorageError):
        force_or_raise(subject, [("a", (GUESSING,), 0, None, [STRIKE])])
    subject.come_back()
    assert not strike(subject, during[1]).blocked, "a decision of the outage is settled here"
    assert left(subject, GUESSING)[1] == 2
    assert subject.left("a", limits[0]) == 5, "the costs are told"


def test_no_settlement_of_an_outage_is_forced_in_the_storage(make: Make) -> None:
    subject = make()
    limits = (parse_limit("9/hour"), TWO, GUESSING)
    subject.open_breaker()
    decision = see(subject, "alice", *limits)
    subject.come_back()
    subject.faulty.calls.clear()
    with pytest.raises(StorageError, match="silent"):
        force_or_raise(subject, settlement(decision.asks, decision.rows, [0], [True]))
    assert subject.faulty.calls == []


def test_a_penalty_that_is_closed_blocks_nobody(make: Make) -> None:
    """Its row denies, beside a rate that denies by itself: that is neither a block nor only the outage."""
    subject = make()
    limits = (RATE, *falling("closed", GUESSING))
    subject.open_breaker()
    assert ask(subject, RATE)
    denied = ask(subject, *limits)
    assert not denied
    assert not denied.blocked
    assert not denied.unavailable


def test_a_settlement_that_meets_a_block_changes_slots_all_the_same(make: Make) -> None:
    """A blocked key is denied by a row of the settlement, which is no denial of the settlement."""
    subject = make()
    limits = (parse_limit("9/hour"), SLOTS, GUESSING)
    found = [subject.decide([("a", limits, 1, None, [NOT_GIVEN, slot(number), NOT_GIVEN])]) for number in (1, 2, 3)]
    for decision in found[:2]:
        strike(subject, decision)
        subject.clock.advance(2)
    subject.decide(undoing(found[2].asks, found[2].rows), "force")
    assert {holder[0] for holder in subject.guard.fallback.memory.holders("a", SLOTS)} == {1, 2}
    subject.open_breaker()
    subject.decide(undoing(found[0].asks, found[0].rows), "force")
    assert {holder[0] for holder in subject.guard.fallback.memory.holders("a", SLOTS)} == {2}
    subject.come_back()
    assert {holder[0] for holder in subject.faulty.memory.holders("a", SLOTS)} == {2}


def test_a_waiter_of_a_blocked_key_is_told_when_the_block_ends(make: Make) -> None:
    subject = make()
    block(subject)
    subject.open_breaker()
    modes: list[Mode] = ["peek", "spend", "force"]
    for patience in (None, 0, 10**9):
        group: Group = [("a", (GUESSING,), 1, patience, None)]
        for mode in modes:
            (row,) = subject.decide(group, mode).rows
            assert row == subject.faulty.memory.evaluate((group,), mode)[0][0], (patience, mode)


def test_a_block_is_kept_for_the_node_that_is_lost_and_decided_by_the_others(make: Make) -> None:
    subject = make(nodes=True, failures=1)
    block(subject, key="east:1")
    subject.faulty.error, subject.faulty.broken = DOWN, "east"
    assert ask(subject, key="east:1").blocked
    assert ask(subject, key="west:1").degraded is None
    found = subject.storage.evaluate([group_of(key, (RATE, GUESSING)) for key in ("west:2", "east:1")])
    assert [all(row[0] for row in rows) for rows in found] == [True, False]


def test_only_so_many_blocks_are_remembered_and_the_soonest_to_end_go(make: Make) -> None:
    subject = make()
    fallback = subject.guard.fallback
    now = fallback.now()
    for number in range(MOST + 10):
        wait = MINUTE * 1_000_000 + (number * 7_919) % (MOST + 10)  # a prime: each wait once, out of order
        row: Row = (False, 0, wait, 2 * wait, 0, now, 0, 0, None)
        for _ in range(3 if number % 100 == 0 else 1):
            fallback.saw(group_of(f"k{number}", (GUESSING,)), "spend", [row], set())
    assert len(fallback.blocks) == MOST
    subject.open_breaker()
    free = [n for n in range(MOST + 10) if ask(subject, GUESSING, key=f"k{n}")]
    assert sorted((n * 7_919) % (MOST + 10) for n in free) == list(range(10))


def test_a_forked_child_remembers_the_blocks_of_its_parent(make: Make) -> None:
    subject = make()
    block(subject)
    block(subject, key="b" * 1_000)
    subject.guard.fallback.blocks._lock.acquire()  # by a thread that the child does not have
    subject.guard.renew()
    block(subject, key="c")
    subject.open_breaker()
    assert ask(subject).blocked
    assert ask(subject, key="b" * 1_000).blocked
    assert not ask(subject, key="b" * 1_001).blocked


# Limiters


def test_a_limiter_keeps_a_block_through_an_outage_until_it_is_lifted(clock: FakeClock) -> None:
    faulty = Prompt(clock)
    text = "1/minute; 1 strike/hour block 5 minutes"
    limiter = Limiter(text, storage=GuardedStorage(faulty, clock=clock), sleep=clock.sleep)
    limiter.hit("a")
    assert limiter.hit("a").blocked
    faulty.error = UNKNOWN
    assert limiter.hit("a").retry_after == 5 * MINUTE
    assert limiter.peek("a").blocked
    with pytest.raises(RateLimited) as caught:
        limiter.wait("a", timeout=MINUTE)
    assert caught.value.decision.blocked
    assert limiter.wait("a", timeout=10 * MINUTE).degraded
    faulty.error = None
    clock.advance(1)
    assert limiter.hit("b").degraded is None
    clock.advance(MINUTE)
    limiter.hit("a")
    assert limiter.hit("a").blocked
    limiter.reset("a")
    faulty.error = UNKNOWN
    assert not limiter.hit("a").blocked


def test_tasks_know_of_the_blocks_that_threads_have_seen(clock: FakeClock) -> None:
    storage = GuardedStorage(MemoryStorage(clock=clock), failures=1, clock=clock)
    limiter = Limiter("1/minute; 1 strike/hour block 5 minutes", storage=storage)

    @limiter.limit(key="a", timeout=0, fallback="denied")
    async def work() -> str:
        return "done"

    limiter.hit("a")
    assert limiter.hit("a").blocked
    clock.advance(2 * MINUTE)
    storage.guard.breaker("").failed(storage.guard.breaker("").admit())
    assert limiter.hit("b").degraded
    assert asyncio.run(work()) == "denied"
    clock.advance(3 * MINUTE)
    storage.guard.breaker("").failed(storage.guard.breaker("").admit())
    assert asyncio.run(work()) == "done"


class Late:
    """A storage for tasks that decides at once, and whose answers come when `answers` is set, or an error instead."""

    deadline = 60.0

    def __init__(self, clock: FakeClock) -> None:
        self.memory = MemoryStorage(clock=clock)
        self.answers = asyncio.Event()
        self.error: StorageError | None = None

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        rows = self.memory.evaluate(groups, mode)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return rows

    async def reset(self, group: Group) -> None:
        self.memory.reset(group)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("turns", range(5))
def test_a_task_that_is_cancelled_before_its_answer_leaves_no_value_counted(clock: FakeClock, turns: int) -> None:
    async def main() -> None:
        storage = Late(clock)
        async with AsyncLimiter("1 distinct account/hour; 9/hour", storage=storage) as limiter:
            task = asyncio.ensure_future(limiter.hit("a", values={"account": "alice"}))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            storage.answers.set()
        sync = Limiter("1 distinct account/hour; 9/hour", storage=storage.memory)
        assert sync.hit("a", values={"account": "bob"}).remaining == 8

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(5))
def test_a_task_that_is_cancelled_in_an_outage_leaves_no_value_counted_here(clock: FakeClock, turns: int) -> None:
    async def main() -> None:
        storage = Late(clock)
        storage.error = DOWN
        async with AsyncLimiter("1 distinct account/hour", storage=storage) as limiter:
            task = asyncio.ensure_future(limiter.hit("a", values={"account": "alice"}))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            storage.answers.set()
            for _ in range(5):
                await asyncio.sleep(0)
            assert await limiter.hit("a", values={"account": "bob"})

    asyncio.run(main())


def force_or_raise(subject: Subject, group: Group) -> None:
    found: Any = subject.inside.force_or_raise(group)
    if found is not None:
        subject.storage._runner.run(found)
