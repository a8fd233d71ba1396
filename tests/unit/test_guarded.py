"""The guard around a storage that fails on demand: what is answered, what is charged where, and what is told.

Each claim holds for calls made directly, in threads and in tasks.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from ratekeeper import (
    AsyncLimiter,
    AsyncMemoryStorage,
    Check,
    Decision,
    InvalidKey,
    InvalidLimit,
    Limit,
    Limiter,
    MemoryStorage,
    RateLimited,
    StorageError,
    parse_limit,
)
from ratekeeper.clock import SECOND
from ratekeeper.decision import Row
from ratekeeper.events import Called, Decided, Degraded, Event, Recovered
from ratekeeper.limit import ALGORITHMS, Ask, Group, Mode
from ratekeeper.settling import settlement
from ratekeeper.storage.fallback import LEDGER, Fallback, share_of
from ratekeeper.storage.guard import Guard
from ratekeeper.storage.guarded import AsyncGuardedStorage, GuardedStorage
from ratekeeper.storage.threads import Threads
from ratekeeper.testing import Blocking, FakeClock

DOWN = StorageError("down", undone=True)
UNKNOWN = StorageError("silent")
FOREIGN = StorageError("a foreign value", outage=False, undone=True)


class Faulty:
    """A memory that raises `error` while there is one. Nodes, if there are any, are named by how a key begins."""

    def __init__(self, clock: FakeClock) -> None:
        self.memory = MemoryStorage(clock=clock)
        self.error: BaseException | None = None
        self.broken = ""  # only this node
        self.calls: list[tuple[Sequence[Group], Mode]] = []
        self.resets = 0
        self.closed = 0

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        self.calls.append((groups, mode))
        if self.error is not None and any(self.broken in nodes_of(group) or not self.broken for group in groups):
            raise self.error
        return self.memory.evaluate(groups, mode)

    def reset(self, group: Group) -> None:
        self.resets += 1
        if self.error is not None:
            raise self.error
        self.memory.reset(group)

    def close(self) -> None:
        self.closed += 1


class Prompt(Faulty):
    deadline = 5.0


class AsyncFaulty:
    def __init__(self, faulty: Faulty) -> None:
        self.faulty = faulty

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        await asyncio.sleep(0)
        return self.faulty.evaluate(groups, mode)

    async def reset(self, group: Group) -> None:
        self.faulty.reset(group)

    async def close(self) -> None:
        self.faulty.close()


def nodes_of(group: Group) -> tuple[str, ...]:
    return tuple(sorted({key.partition(":")[0] for key, *_ in group}))


class Subject:
    """A guarded storage of one of the three kinds, as a sync one, with the storage in it."""

    def __init__(self, kind: str, clock: FakeClock, nodes: bool = False, **given: Any) -> None:
        self.clock = clock
        self.faulty = (Prompt if kind == "inline" else Faulty)(clock)
        options: Any = {"deadline": 5.0, "clock": clock, **given}
        self.storage: Any
        if kind == "tasks":
            inner: Any = AsyncFaulty(self.faulty)
            if nodes:
                inner.nodes_of = nodes_of
            self.inside: Any = AsyncGuardedStorage(inner, **options)
            self.storage = Blocking(self.inside)
        else:
            if nodes:
                self.faulty.nodes_of = nodes_of  # type: ignore[attr-defined]
            self.storage = self.inside = GuardedStorage(self.faulty, **options)
        self.guard: Guard = self.inside.guard

    def hit(self, key: str, *limits: Limit | str, cost: int = 1, mode: Mode = "spend") -> Decision:
        return self.decide([(key, tuple(map(limit_of, limits)), cost, None, None)], mode)

    def decide(self, group: Group, mode: Mode = "spend") -> Decision:
        return Decision(group, self.storage.evaluate((group,), mode)[0])

    def settle(self, decision: Decision, cost: int) -> Decision:
        forced = settlement(decision.asks, decision.rows, [cost] * len(decision.asks))
        return Decision(forced, self.storage.evaluate((forced,), "force")[0])

    def open_breaker(self, error: StorageError = UNKNOWN) -> None:
        self.faulty.error = error
        for _ in range(3):
            self.hit("opener", "100/day as opener")
        assert not self.guard.breaker("").closed

    def come_back(self) -> None:
        """The storage is well again and the next call finds out. Returns when all is written back."""
        self.faulty.error = None
        self.clock.advance(1)
        assert self.hit("prober", "100/day as prober").degraded is None
        self.finish_writing()

    def finish_writing(self) -> None:
        if isinstance(self.inside, GuardedStorage):
            if self.inside._writer is not None:
                self.inside._writer.join(10)
            return

        async def rest() -> None:
            await asyncio.gather(*self.inside._writers)

        self.storage._runner.run(rest())

    def left(self, key: str, limit: Limit | str) -> int:
        """What the storage itself says is left."""
        ask: Ask = (key, (limit_of(limit),), 1, None, None)
        return self.faulty.memory.evaluate(((ask,),), "peek")[0][0][1]


def limit_of(limit: Limit | str) -> Limit:
    return parse_limit(limit) if isinstance(limit, str) else limit


def falling_to(failure: str, text: str) -> Limit:
    limit = parse_limit(text)
    return Limit(limit.count, limit.period, limit.burst, limit.algorithm, f"{failure}-limit", failure=failure)


Make = Callable[..., Subject]


@pytest.fixture(params=["inline", "threads", "tasks"])
def make(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Make]:
    made: list[Subject] = []

    def subject(**options: Any) -> Subject:
        made.append(Subject(request.param, clock, **options))
        return made[-1]

    yield subject
    for each in made:
        each.storage.close()


def test_while_all_is_well_the_storage_decides(make: Make) -> None:
    subject = make()
    answers = [subject.hit("a", "2/minute") for _ in range(3)]
    assert [answer.allowed for answer in answers] == [True, True, False]
    assert [answer.degraded for answer in answers] == [None] * 3
    assert subject.left("a", "2/minute") == 0


def test_local_grants_this_process_its_share_and_says_why(make: Make) -> None:
    subject = make(workers=4)
    subject.faulty.error = UNKNOWN
    answers = [subject.hit("a", "10/minute") for _ in range(5)]
    assert [answer.allowed for answer in answers] == [True, True, True, False, False]
    assert {answer.degraded for answer in answers} == {"silent"}
    assert not answers[-1].unavailable
    assert answers[0].remaining == 2


def test_open_allows_all_and_closed_refuses_until_the_next_probe(make: Make) -> None:
    opened, closed = make(failure="open"), make(failure="closed")
    for subject in (opened, closed):
        subject.open_breaker()
    allowed = opened.hit("a", "1/hour")
    assert all(opened.hit("a", "1/hour") for _ in range(5))
    assert (allowed.remaining, allowed.retry_after, allowed.degraded) == (1, 0.0, "silent")
    refused = closed.hit("a", "1/hour")
    assert not refused
    assert refused.unavailable
    assert refused.retry_after is not None
    assert 0.5 <= refused.retry_after <= 1.001
    assert refused.at == closed.clock.now
    closed.clock.advance(refused.retry_after)
    closed.faulty.error = None
    assert closed.hit("a", "1/hour").degraded is None


def test_a_refusal_before_the_breaker_opens_asks_for_a_moment_only(make: Make) -> None:
    subject = make(failure="closed")
    subject.faulty.error = UNKNOWN
    assert subject.hit("a", "1/hour").retry_after == 0.001


def test_raise_lets_the_reason_out_and_the_cause_with_it(make: Make) -> None:
    subject = make(failure="raise")
    subject.faulty.error = OSError("no route")
    for _ in range(5):
        with pytest.raises(StorageError, match="OSError: no route"):
            subject.hit("a", "1/hour")
    subject.come_back()
    assert subject.hit("a", "1/hour")


def test_in_a_group_each_limit_falls_to_its_own(make: Make) -> None:
    subject = make(failure="open", workers=2)
    local, opened = falling_to("local", "4/minute"), falling_to("open", "1/minute")
    closed, raising = falling_to("closed", "9/minute"), falling_to("raise", "9/minute")
    subject.faulty.error = UNKNOWN
    refused = subject.hit("a", local, closed, opened)
    assert [outcome.allowed for outcome in refused.outcomes] == [True, False, True]
    assert refused.unavailable
    with pytest.raises(StorageError, match="silent"):
        subject.hit("a", local, closed, raising)
    answers = [subject.hit("a", opened, local) for _ in range(3)]
    assert [answer.allowed for answer in answers] == [True, True, False], "refused groups charged nothing"
    assert [outcome.allowed for outcome in answers[2].outcomes] == [True, False]
    assert not answers[2].unavailable
    both = subject.hit("a", local, closed)
    assert not both.unavailable, "the client's own share is used up as well"


def test_local_limits_of_a_group_are_charged_together_or_not_at_all(make: Make) -> None:
    subject = make()
    subject.faulty.error = UNKNOWN
    group: Group = [
        ("ip", (parse_limit("9/minute"),), 1, None, None),
        ("user", (parse_limit("1/minute"),), 1, None, None),
    ]
    assert [subject.decide(group).allowed for _ in range(3)] == [True, False, False]
    assert subject.hit("ip", "9/minute", mode="peek").remaining == 8


def test_a_peek_in_an_outage_changes_nothing(make: Make) -> None:
    subject = make()
    subject.open_breaker(DOWN)
    owed = len(subject.guard.fallback.ledger)
    assert [subject.hit("a", "1/minute", mode="peek").allowed for _ in range(3)] == [True] * 3
    assert len(subject.guard.fallback.ledger) == owed
    assert subject.hit("a", "1/minute")
    assert not subject.hit("a", "1/minute", mode="peek")


def test_a_storage_that_comes_and_goes_hands_out_no_fresh_shares(make: Make) -> None:
    subject = make(write_back=False)
    for expected in (True, False, False):
        subject.open_breaker()
        assert subject.hit("a", "1/hour").allowed is expected
        subject.come_back()


def test_after_three_outages_the_storage_is_left_alone_but_for_one_probe_at_a_time(make: Make) -> None:
    subject = make()
    subject.faulty.error = UNKNOWN
    for _ in range(20):
        subject.hit("a", "100/minute")
    assert len(subject.faulty.calls) == 3
    for probes in (4, 5):
        subject.clock.advance(1)
        for _ in range(5):
            subject.hit("a", "100/minute")
        assert len(subject.faulty.calls) == probes
    subject.faulty.error = None
    subject.clock.advance(1)
    assert subject.hit("a", "100/minute").degraded is None


def test_a_foreign_value_degrades_that_decision_and_nothing_else(make: Make) -> None:
    subject = make()
    subject.faulty.error = FOREIGN
    assert [subject.hit("a", "100/minute").degraded for _ in range(10)] == ["a foreign value"] * 10
    assert len(subject.faulty.calls) == 10
    assert subject.guard.breaker("").calm
    assert not len(subject.guard.fallback.ledger), "it would be refused again"


def test_a_bug_in_a_storage_is_an_outage_and_logged_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    subject = make()
    subject.faulty.error = ZeroDivisionError("oops")
    with caplog.at_level(logging.ERROR, "ratekeeper"):
        answers = [subject.hit("a", "100/minute") for _ in range(5)]
    assert all(answers)
    assert answers[0].degraded == "the storage failed (ZeroDivisionError: oops)"
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info
    assert not subject.guard.breaker("").closed


def test_a_mistake_of_the_caller_is_told_and_not_counted(make: Make) -> None:
    subject = make()
    subject.faulty.error = InvalidKey("too long")
    for _ in range(5):
        with pytest.raises(InvalidKey):
            subject.hit("a", "1/minute")
    assert subject.guard.breaker("").calm


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stop_from_outside_passes(clock: FakeClock, stop: type[BaseException]) -> None:
    subject = Subject("inline", clock)
    subject.faulty.error = stop()
    with pytest.raises(stop):
        subject.hit("a", "1/minute")
    assert subject.guard.breaker("").calm


def test_a_cost_above_the_share_but_not_the_limit_may_come_again(make: Make) -> None:
    subject = make(workers=4)
    subject.open_breaker()
    assert subject.hit("a", "10/minute", cost=5).retry_after is not None
    assert subject.hit("a", "10/minute", cost=11).retry_after is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_share_is_rounded_up_and_keeps_the_scope(algorithm: str) -> None:
    limit = Limit(10, SECOND, algorithm=algorithm)
    assert [(share.count, share.burst) for share in (share_of(limit, n) for n in (1, 3, 4, 100))] == [
        (10, 10),
        (4, 4),
        (3, 3),
        (1, 1),
    ]
    named = Limit(10, SECOND, algorithm=algorithm, name="login")
    assert {share_of(limit, n).scope for n in (1, 3)} == {limit.scope}
    assert share_of(named, 3).scope == named.scope


def test_the_share_of_the_deepest_bucket_there_is_can_be_kept_exactly() -> None:
    year = 365 * 86_400 * SECOND
    assert share_of(Limit(11, 10 * year, 110, "gcra"), 10).burst == 11
    assert share_of(Limit(20, 10 * year, 191, "gcra"), 19).burst == 11
    assert share_of(Limit(50_000, SECOND, algorithm="sliding-log", large=True), 2).count == 25_000


# Recovery


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_granted_while_the_storage_was_not_asked_is_charged_there(make: Make, algorithm: str) -> None:
    subject = make()
    limit = f"10/hour {algorithm}"
    subject.hit("a", limit, cost=2)
    subject.open_breaker()
    for _ in range(3):
        assert subject.hit("a", limit)
    assert subject.left("a", limit) == 8
    subject.come_back()
    assert subject.left("a", limit) == 5
    subject.open_breaker()
    subject.come_back()
    assert subject.left("a", limit) == 5, "once"


def test_a_spend_of_unknown_outcome_is_never_written_back(make: Make) -> None:
    subject = make()
    subject.faulty.error = UNKNOWN
    for _ in range(3):
        assert subject.hit("a", "10/hour")
    assert subject.hit("a", "10/hour", cost=2)  # the breaker is open now, so that this one is known
    subject.come_back()
    assert subject.left("a", "10/hour") == 8


def test_a_blip_that_left_nothing_undone_is_made_up_for_by_the_next_success(make: Make) -> None:
    subject = make()
    subject.faulty.error = DOWN
    subject.hit("a", "10/hour", cost=4)
    subject.faulty.error = None
    assert subject.hit("b", "10/hour").degraded is None
    subject.finish_writing()
    assert subject.left("a", "10/hour") == 6


def test_what_is_over_is_not_written_back(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    subject.hit("a", "10/second", cost=9)
    subject.hit("a", "10/second burst 10", cost=9)
    subject.clock.advance(0.5)
    subject.come_back()
    assert "force" not in [mode for _, mode in subject.faulty.calls]
    assert subject.left("a", "10/second") == 10
    assert subject.left("a", "10/second burst 10") == 10


def test_a_long_outage_owes_no_more_than_the_last_period_holds(make: Make) -> None:
    subject = make(workers=2)
    subject.open_breaker()
    for _ in range(10):
        assert [subject.hit("a", "10/minute").allowed for _ in range(6)] == [True] * 5 + [False]
        subject.clock.advance(60)
    for _ in range(4):
        assert subject.hit("a", "10/minute")
    subject.come_back()
    assert subject.left("a", "10/minute") == 6


def test_what_open_let_pass_is_not_written_back(make: Make) -> None:
    subject = make(failure="open")
    local = falling_to("local", "10/hour")
    subject.open_breaker()
    subject.hit("a", "5/hour", local, cost=3)
    subject.come_back()
    assert subject.left("a", "5/hour") == 5
    assert subject.left("a", local) == 7


def test_write_back_can_be_turned_off(make: Make) -> None:
    subject = make(write_back=False)
    subject.open_breaker()
    subject.hit("a", "10/hour")
    subject.come_back()
    assert subject.left("a", "10/hour") == 10


def many(count: int) -> list[Group]:
    return [((f"k{i}", (parse_limit("5/hour"),), 2, None, None),) for i in range(count)]


def test_the_ledger_is_written_in_batches_of_a_hundred(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    subject.storage.evaluate(many(250))
    subject.faulty.calls.clear()
    subject.come_back()
    sizes = [len(groups) for groups, mode in subject.faulty.calls if mode == "force"]
    assert sizes == [100, 100, 50]
    assert [subject.left(f"k{i}", "5/hour") for i in (0, 99, 100, 249)] == [3] * 4


def test_a_storage_of_several_nodes_is_written_to_in_batches_of_ten(make: Make) -> None:
    """It asks for one group after the other, and all of a batch have one deadline."""
    subject = make(nodes=True, failures=1)
    subject.faulty.error = UNKNOWN
    subject.hit("k:0", "5/hour")
    subject.storage.evaluate([((f"k:{i}", (parse_limit("5/hour"),), 2, None, None),) for i in range(1, 26)])
    subject.faulty.error = None
    subject.clock.advance(1)
    subject.faulty.calls.clear()
    assert subject.hit("k:0", "5/hour").degraded is None
    subject.finish_writing()
    assert [len(groups) for groups, mode in subject.faulty.calls if mode == "force"] == [10, 10, 5]


def test_a_write_back_that_was_cut_short_is_gone_on_with(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    subject.storage.evaluate(many(150))
    guard = subject.guard
    subject.faulty.error = None
    subject.clock.advance(1)
    call = guard.call_for(many(1)[0], None)
    guard.heard(call, None)
    writing = guard.begin_write_back(None)
    assert writing is not None
    assert len(writing.send(None)) == 100
    writing.close()
    assert len(guard.fallback.ledger) == 50, "what became of the others is not known"
    assert subject.hit("a", "5/hour").degraded is None
    subject.finish_writing()
    assert not len(guard.fallback.ledger)
    assert subject.left("k0", "5/hour") == 3


def test_each_event_loop_writes_back_what_it_can(clock: FakeClock) -> None:
    """One loop for each hit: none lives long enough for all of it."""
    faulty = Faulty(clock)
    storage = AsyncGuardedStorage(AsyncFaulty(faulty), deadline=5.0, clock=clock)
    faulty.error = DOWN
    for i in range(250):
        asyncio.run(storage.evaluate((((f"k{i}", (parse_limit("5/hour"),), 1, None, None),),)))
    faulty.error = None
    clock.advance(1)
    for _ in range(10):
        asyncio.run(storage.evaluate(((("a", (parse_limit("5/hour"),), 1, None, None),),)))
    assert not len(storage.guard.fallback.ledger)
    assert not storage.guard._due


def test_what_a_late_failure_has_granted_is_written_back_too(clock: FakeClock) -> None:
    """It comes from before an outage that is over, and is told of when all is well again."""
    subject = Subject("inline", clock)
    asking = subject.faulty.evaluate

    def late(groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        subject.faulty.evaluate = asking  # type: ignore[method-assign]
        subject.open_breaker(DOWN)
        subject.come_back()
        raise DOWN

    subject.faulty.evaluate = late  # type: ignore[method-assign]
    assert subject.hit("late", "5/hour").degraded == "down"
    assert subject.guard.breaker("").calm
    subject.hit("b", "5/hour")
    subject.finish_writing()
    assert subject.left("late", "5/hour") == 4


def test_without_a_thread_for_the_write_back_it_is_put_off(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("inline", clock)
    subject.open_breaker()
    subject.hit("a", "5/hour")
    with monkeypatch.context() as patch:

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", start)
        subject.come_back()
        subject.storage.close()
    assert subject.left("a", "5/hour") == 5
    assert subject.hit("b", "5/hour").degraded is None
    subject.finish_writing()
    assert subject.left("a", "5/hour") == 4
    subject.storage.close()


def test_without_any_thread_decisions_are_made_here(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    subject = Subject("threads", clock)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert subject.hit("a", "5/hour").degraded == "the system gives no thread to ask the storage in"
    assert subject.hit("a", "5/hour").degraded is None
    subject.finish_writing()
    assert subject.left("a", "5/hour") == 3
    subject.storage.close()


@pytest.mark.parametrize(("error", "left"), [(DOWN, 4), (UNKNOWN, 5)])
def test_a_write_back_that_fails_is_tried_again_only_if_nothing_was_charged(
    make: Make, error: StorageError, left: int
) -> None:
    subject = make()
    subject.open_breaker()
    subject.hit("a", "5/hour")
    writing = subject.faulty.evaluate

    def failing(groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        if mode == "force":
            raise error
        return writing(groups, mode)

    subject.faulty.evaluate = failing  # type: ignore[method-assign]
    subject.come_back()
    assert subject.left("a", "5/hour") == 5
    subject.faulty.evaluate = writing  # type: ignore[method-assign]
    subject.hit("b", "5/hour")
    subject.finish_writing()
    assert subject.left("a", "5/hour") == left


def test_the_ledger_is_bounded_and_counts_what_it_forgets() -> None:
    fallback = Fallback("local", 1)
    limit = (parse_limit("5/hour"),)
    for i in range(LEDGER + 10):
        fallback.ledger.add(((f"k{i}", limit), 1))
    fallback.ledger.add((("x" * 1_000_000, limit), 1))
    assert (len(fallback.ledger), fallback.ledger.dropped) == (LEDGER, 11)
    assert fallback.ledger.take()[0][0][0] == "k10"


def test_a_grant_can_be_corrected_as_long_as_it_is_in_the_ledger() -> None:
    ledger = Fallback("local", 1).ledger
    entry, other = ("a", (parse_limit("9/hour"),)), ("b", (parse_limit("9/hour"),))

    def owed() -> dict[str, int]:
        taken = ledger.take()
        for each in taken:
            ledger.put_back(*each)
        return {key: debt.units for (key, _), debt in taken}

    first = ledger.add((entry, 4), (other, 2))
    ledger.correct(entry, -1, first)
    ledger.correct(other, 1, first)
    assert owed() == {"a": 3, "b": 3}
    taken = dict(ledger.take())
    second = ledger.add((entry, 5))
    ledger.correct(entry, -3, first)
    assert owed() == {"a": 5}, "the first is on its way to the storage"
    ledger.put_back(entry, taken[entry])
    assert owed() == {"a": 8}
    ledger.correct(entry, -3, first)
    assert owed() == {"a": 5}, "it came back"
    ledger.correct(entry, -5, second)
    assert owed() == {}
    third = ledger.add((entry, 1))
    ledger.correct(entry, -1, second)
    assert owed() == {"a": 1}
    ledger.correct(entry, -1, third)
    assert owed() == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("unknown", [True, False])
def test_in_one_period_a_key_gets_at_most_what_was_spent_and_a_share_for_each_worker(
    clock: FakeClock, algorithm: str, unknown: bool
) -> None:
    """Four processes on one storage that comes and goes, every hit that anybody would grant within one period."""
    limit, workers = f"20/hour {algorithm}", 4
    subjects = [Subject("inline", clock, workers=workers, failures=1) for _ in range(workers)]
    for subject in subjects:
        subject.faulty.memory = subjects[0].faulty.memory
    granted = sum(subjects[0].hit("a", limit).allowed for _ in range(8))
    for _ in range(3):
        for subject in subjects:
            subject.faulty.error = UNKNOWN if unknown else DOWN
            granted += sum(subject.hit("a", limit).allowed for _ in range(30))
        for subject in subjects:
            subject.come_back()
    at_the_storage = subjects[0].left("a", limit)
    granted_there = sum(subject.hit("a", limit).allowed for subject in subjects for _ in range(30))
    share = share_of(parse_limit(limit), workers).count
    assert granted <= 8 + workers * share
    assert granted_there <= at_the_storage + 1  # a bucket regains a little while the clock moves on
    assert granted + granted_there <= 20 + workers * share + 1
    if not unknown:
        assert granted + granted_there <= max(20, 8 + workers * share) + 1, "what was written back was not free"


def test_a_write_back_that_the_storage_will_never_take_is_dropped(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    subject.hit("a", "5/hour")
    writing = subject.faulty.evaluate

    def refusing(groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        if mode == "force":
            raise InvalidKey("never")
        return writing(groups, mode)

    subject.faulty.evaluate = refusing  # type: ignore[method-assign]
    subject.come_back()
    assert not len(subject.guard.fallback.ledger)
    assert subject.guard.breaker("").calm


def test_what_is_owed_to_a_node_that_is_still_away_is_kept_for_it(make: Make) -> None:
    subject = make(nodes=True)
    subject.faulty.error = UNKNOWN
    for _ in range(5):
        subject.hit("east:1", "100/hour")
        subject.hit("west:1", "100/hour")
    subject.faulty.broken = "east"
    subject.clock.advance(1)
    assert subject.hit("west:2", "100/hour").degraded is None
    subject.finish_writing()
    assert (subject.left("west:1", "100/hour"), len(subject.guard.fallback.ledger)) == (98, 1)
    subject.faulty.error = None
    subject.clock.advance(1)
    assert subject.hit("east:2", "100/hour").degraded is None
    subject.finish_writing()
    assert (subject.left("east:1", "100/hour"), len(subject.guard.fallback.ledger)) == (98, 0)


# Settling


def test_a_degraded_decision_is_settled_here_and_in_what_is_owed(make: Make) -> None:
    subject = make()
    subject.open_breaker()
    decision = subject.hit("a", "10/hour", cost=6)
    settled = subject.settle(decision, 2)
    assert settled.degraded
    assert settled.remaining == 8
    more = subject.hit("b", "10/hour", cost=1)
    assert subject.settle(more, 5).remaining == 5
    subject.come_back()
    assert subject.left("a", "10/hour") == 8
    assert subject.left("b", "10/hour") == 5


def test_a_degraded_decision_never_refunds_in_the_storage(make: Make) -> None:
    subject = make()
    subject.hit("a", "10/hour", cost=5)
    subject.open_breaker()
    decision = subject.hit("a", "10/hour", cost=5)
    subject.come_back()
    assert subject.left("a", "10/hour") == 0
    subject.faulty.calls.clear()
    assert subject.settle(decision, 0).remaining == 10, "as this process sees it"
    assert subject.left("a", "10/hour") == 0
    assert subject.faulty.calls == []


def test_a_refund_of_what_was_written_back_takes_nothing_off_what_is_owed_since(make: Make) -> None:
    subject = make()
    limit = "10/minute fixed-window"
    subject.open_breaker()
    written = subject.hit("a", limit, cost=4)
    subject.come_back()
    subject.clock.advance(120)
    subject.open_breaker()
    subject.hit("a", limit, cost=4)
    subject.settle(written, 0)
    subject.come_back()
    assert subject.left("a", limit) == 6


def test_a_refund_of_an_unknown_spend_takes_nothing_off_what_is_owed(make: Make) -> None:
    subject = make()
    subject.faulty.error = UNKNOWN
    unknown = subject.hit("a", "10/hour", cost=3)
    subject.open_breaker()
    subject.hit("a", "10/hour", cost=3)
    subject.settle(unknown, 0)
    subject.come_back()
    assert subject.left("a", "10/hour") == 7


def test_a_real_decision_is_settled_in_an_outage_by_what_is_charged_on_top_only(make: Make) -> None:
    subject = make()
    less, more = subject.hit("a", "10/hour", cost=5), subject.hit("b", "10/hour", cost=1)
    subject.open_breaker()
    assert subject.hit("a", "10/hour", cost=4)
    assert subject.settle(less, 0).remaining == 6, "what was spent here is not what is given back"
    assert subject.settle(more, 4).remaining == 7
    subject.come_back()
    assert subject.left("a", "10/hour") == 1
    assert subject.left("b", "10/hour") == 6


def test_a_real_decision_is_settled_in_the_storage_while_it_is_there(make: Make) -> None:
    subject = make()
    decision = subject.hit("a", "10/hour", cost=5)
    assert subject.settle(decision, 1).remaining == 9


# Nodes


def test_each_node_has_a_breaker_and_the_others_go_on(make: Make) -> None:
    subject = make(nodes=True)
    subject.faulty.error, subject.faulty.broken = UNKNOWN, "east"
    for _ in range(5):
        assert subject.hit("east:1", "100/hour").degraded
        assert subject.hit("west:1", "100/hour").degraded is None
    assert not subject.guard.breaker("east").closed
    assert subject.guard.breaker("west").calm
    limit = (parse_limit("100/hour"),)
    groups: list[Group] = [((key, limit, 1, None, None),) for key in ("west:2", "east:2", "west:2", "east:1")]
    answers = [
        Decision(group, rows) for group, rows in zip(groups, subject.storage.evaluate(groups, "spend"), strict=True)
    ]
    assert [bool(answer.degraded) for answer in answers] == [False, True, False, True]
    assert [answer.remaining for answer in answers] == [99, 99, 98, 94]
    both: Group = [("east:1", limit, 1, None, None), ("west:1", limit, 1, None, None)]
    assert subject.decide(both).degraded
    subject.clock.advance(1)
    subject.faulty.error = None
    assert subject.decide(both).degraded is None
    subject.finish_writing()
    assert subject.left("east:2", "100/hour") == 99


def test_two_nodes_that_fail_in_one_call_count_each_for_itself(make: Make) -> None:
    subject = make(nodes=True)
    subject.faulty.error, subject.faulty.broken = UNKNOWN, "east"
    limit = (parse_limit("100/hour"),)
    groups: list[Group] = [((key, limit, 1, None, None),) for key in ("west:2", "east:2", "north:1")]
    for _ in range(3):
        rows = subject.storage.evaluate(groups, "spend")
        answers = [Decision(group, each) for group, each in zip(groups, rows, strict=True)]
        assert [bool(answer.degraded) for answer in answers] == [False, True, False]
    assert [subject.guard.breaker(node).closed for node in ("west", "east", "north")] == [True, False, True]


def test_groups_that_share_a_node_are_answered_in_order(make: Make) -> None:
    subject = make(nodes=True)
    limit = (parse_limit("3/hour"),)

    def ask(key: str) -> Ask:
        return key, limit, 1, None, None

    groups: list[Group] = [[ask("a:1")], [ask("a:1"), ask("b:1")], [ask("a:1")], [ask("c:1")]]
    rows = subject.storage.evaluate(groups, "spend")
    assert [each[0][1] for each in rows] == [2, 1, 0, 2]


# Threads


def test_what_finds_all_threads_busy_waits_for_the_first_that_is_free() -> None:
    threads, go = Threads(most=2), threading.Event()
    done: list[int] = []
    jobs = [threads.queue(lambda: go.wait(30)) for _ in range(2)]
    assert threads.start(list) is None
    jobs += [threads.queue(partial(done.append, i)) for i in range(5)]
    assert (threads.alive, done) == (2, [])
    go.set()
    for job in jobs:
        assert job is not None
        assert job.replies.get(timeout=30).error is None
    assert sorted(done) == [0, 1, 2, 3, 4]
    threads.close()


def test_a_call_that_is_withdrawn_before_it_begins_is_never_made() -> None:
    threads, go, begun = Threads(most=1), threading.Event(), threading.Event()
    done: list[int] = []

    def first() -> None:
        begun.set()
        go.wait(30)

    jobs = [threads.queue(first), *(threads.queue(partial(done.append, i)) for i in range(3))]
    begun.wait(30)
    for job in jobs[:2]:
        assert job is not None
        threads.withdraw(job)
    stuck = [(job.began is not None, job.stuck) for job in jobs[:2] if job]
    assert stuck == [(True, False), (False, True)], "the first cannot be called back; nothing moved since the second"
    go.set()
    last = jobs[-1]
    assert last is not None
    last.replies.get(timeout=30)
    assert done == [1, 2]
    threads.close()


# Reset, close, events


def test_a_reset_in_an_outage_is_done_here_and_says_that_the_storage_was_not_told(make: Make) -> None:
    subject = make(failure="open")
    local = falling_to("local", "1/hour")
    subject.open_breaker()
    group: Group = (("a", (local,), 1, None, None),)
    assert subject.decide(group)
    assert not subject.decide(group)
    with pytest.raises(StorageError):
        subject.storage.reset(group)
    assert subject.faulty.resets == 0
    assert subject.decide(group)
    subject.come_back()
    subject.storage.reset(group)
    assert subject.faulty.resets == 1
    assert subject.left("a", local) == 1


def test_a_reset_that_fails_counts_as_an_outage(make: Make) -> None:
    subject = make()
    subject.faulty.error = UNKNOWN
    group: Group = (("a", (parse_limit("1/hour"),), 1, None, None),)
    for _ in range(3):
        with pytest.raises(StorageError, match="silent"):
            subject.storage.reset(group)
    assert not subject.guard.breaker("").closed


def test_closing_closes_the_storage(clock: FakeClock) -> None:
    subject = Subject("threads", clock)
    subject.hit("a", "1/hour")
    subject.storage.close()
    subject.storage.close()
    assert subject.faulty.closed == 2


class Held:
    """For tasks: what it holds open in each event loop, until that loop closes it."""

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        self.loops.append(asyncio.get_running_loop())
        return [()]

    async def reset(self, group: Group) -> None: ...

    async def close(self) -> None:
        self.loops.remove(asyncio.get_running_loop())


def test_closing_has_the_twin_for_tasks_closed_by_each_loop_that_still_runs(clock: FakeClock) -> None:
    held, open_here, closed = Held(), threading.Event(), threading.Event()
    storage = GuardedStorage(Prompt(clock))
    twin = storage.for_tasks(held)

    async def elsewhere() -> None:
        await twin.evaluate(((),))
        open_here.set()
        while asyncio.get_running_loop() in held.loops:
            await asyncio.sleep(0)
        closed.set()

    async def main() -> None:
        await twin.evaluate(((),))
        thread.start()
        await asyncio.to_thread(open_here.wait, 30)
        storage.close()

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    asyncio.run(twin.evaluate(((),)))
    (ended,) = held.loops
    asyncio.run(main())
    assert closed.wait(30)
    thread.join()
    assert held.loops == [ended]
    storage.close()


def test_those_who_listen_hear_of_calls_outages_and_recoveries_in_order(make: Make) -> None:
    heard: list[Event] = []
    subject = make(listeners=[heard.append])
    subject.hit("a", "9/hour")
    subject.open_breaker()
    subject.hit("a", "9/hour", cost=3)
    subject.clock.advance(4)
    subject.come_back()
    kinds = [type(event) for event in heard if not isinstance(event, Called)]
    assert kinds == [Degraded, Recovered]
    calls = [event for event in heard if isinstance(event, Called)]
    assert [call.error for call in calls] == [None, UNKNOWN, UNKNOWN, UNKNOWN, None]
    degraded = next(event for event in heard if isinstance(event, Degraded))
    recovered = next(event for event in heard if isinstance(event, Recovered))
    assert degraded == Degraded("", "silent")
    assert recovered == Recovered("", 5.0, 3)


def test_a_recovery_is_told_before_the_next_outage_even_if_it_is_still_written_back(clock: FakeClock) -> None:
    heard: list[Event] = []
    guard = GuardedStorage(Prompt(clock), clock=clock, listeners=[heard.append]).guard
    group: Group = (("a", (parse_limit("5/hour"),), 1, None, None),)

    def call(error: StorageError | None) -> None:
        guard.heard(guard.call_for(group, None), error)

    for _ in range(3):
        call(UNKNOWN)
    guard.fallback.decide((group,), "spend", DOWN, 1.0)
    clock.advance(2)
    call(None)
    writing = guard.begin_write_back(None)
    assert writing is not None
    for _ in range(3):
        call(UNKNOWN)
    writing.close()
    kinds = [type(event) for event in heard if not isinstance(event, Called)]
    assert kinds == [Degraded, Recovered, Degraded]


def test_a_limiter_tells_of_each_decision_but_not_of_peeks_settlements_and_resets(clock: FakeClock) -> None:
    heard: list[Any] = []
    limiter = Limiter("3/minute", storage=MemoryStorage(clock=clock), sleep=clock.sleep, listeners=[heard.append])
    decisions = [limiter.hit("a"), *limiter.hit_many(["b", "c"]), limiter.check(Check("d", parse_limit("1/minute")))]
    decisions.append(limiter.wait("a"))
    limiter.peek("a")
    limiter.settle(decisions[0], cost=2)
    with pytest.raises(RateLimited) as refused:
        limiter.wait("a", cost=3)
    limiter.reset("a")
    assert [event.decision for event in heard] == [*decisions, refused.value.decision]
    assert all(isinstance(event, Decided) and 0 <= event.seconds < 5 for event in heard)
    later: list[Any] = []
    limiter.listen(later.append)
    limiter.hit("z")
    assert len(later) == 1


def test_an_async_limiter_tells_of_each_decision(clock: FakeClock) -> None:
    heard: list[Any] = []

    async def main() -> list[Decision]:
        limiter = AsyncLimiter("3/minute", storage=AsyncMemoryStorage(clock=clock), sleep=clock.async_sleep)
        limiter.listen(heard.append)
        decisions = [await limiter.hit("a"), *await limiter.hit_many(["b", "c"])]
        decisions += [await limiter.check(Check("d", parse_limit("1/minute"))), await limiter.wait("a")]
        await limiter.peek("a")
        with pytest.raises(RateLimited) as refused:
            await limiter.wait("a", cost=3)
        return [*decisions, refused.value.decision]

    assert asyncio.run(main()) == [event.decision for event in heard]


def test_who_listens_later_hears_of_decorated_async_functions_too(clock: FakeClock) -> None:
    heard: list[Any] = []
    limiter = Limiter("3/minute", storage=MemoryStorage(clock=clock))

    @limiter.limit(key="a")
    async def work() -> None: ...

    limiter.listen(heard.append)
    asyncio.run(work())
    assert [event.decision.remaining for event in heard] == [2]


def test_a_listener_that_fails_changes_no_decision(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("deaf")

    limiter = Limiter("3/minute", storage=Prompt(clock), listeners=[broken])
    assert limiter.hit("a")
    assert "a listener failed" in caplog.text


# The limiter's wiring


def test_memory_has_no_guard_and_everything_else_has_one(clock: FakeClock) -> None:
    assert isinstance(Limiter("1/minute").storage, MemoryStorage)
    assert isinstance(AsyncLimiter("1/minute").storage, AsyncMemoryStorage)
    limiter = Limiter("1/minute", storage=Prompt(clock), failure="closed", deadline=0.5, workers=3)
    assert isinstance(limiter.storage, GuardedStorage)
    assert isinstance(limiter.storage.inner, Prompt)
    fallback = limiter.storage.guard.fallback
    assert (fallback.failure, fallback.workers, limiter.storage.guard.deadline) == ("closed", 3, 0.5)
    again = Limiter("1/minute", storage=limiter.storage)
    assert again.storage is limiter.storage
    with pytest.raises(ValueError, match="has a guard already"):
        Limiter("1/minute", storage=limiter.storage, failure="open")


def test_a_deadline_of_the_storages_own_is_the_default(clock: FakeClock) -> None:
    assert GuardedStorage(Prompt(clock)).guard.deadline == 5.0
    assert GuardedStorage(Faulty(clock)).guard.deadline == 0.25


def test_a_deadline_that_the_storage_does_not_promise_is_kept_by_threads(clock: FakeClock) -> None:
    with Limiter("5/minute", storage=Prompt(clock), deadline=1) as limiter:
        assert limiter.hit("a").degraded is None
        assert isinstance(limiter.storage, GuardedStorage)
        assert limiter.storage._threads.alive == 1


@pytest.mark.parametrize(
    "options",
    [
        {"failure": "never"},
        {"failure": ""},
        {"deadline": 0},
        {"deadline": -1.0},
        {"deadline": float("nan")},
        {"deadline": True},
        {"workers": 0},
        {"workers": 1.5},
    ],
)
def test_options_that_cannot_be_meant_are_refused_with_any_storage(clock: FakeClock, options: dict[str, Any]) -> None:
    for storage in (MemoryStorage(), Prompt(clock)):
        with pytest.raises(ValueError, match="must be"):
            Limiter("1/minute", storage=storage, **options)


def test_a_limit_with_an_unknown_failure_mode_is_refused() -> None:
    with pytest.raises(InvalidLimit, match="local, open, closed, raise"):
        Limit(1, SECOND, failure="never")
    assert Limit(1, SECOND, failure="open") == Limit(1, SECOND)


def test_a_decorated_async_function_shares_the_guard_of_its_limiter(clock: FakeClock) -> None:
    """The twin for tasks has the same breaker and the same local share."""
    memory = MemoryStorage(clock=clock)
    storage = GuardedStorage(memory, clock=clock)
    limiter = Limiter("2/hour", storage=storage)
    storage.guard.breaker("").failed(1)
    for _ in range(2):
        storage.guard.breaker("").failed(storage.guard.breaker("").admit())

    @limiter.limit(key="a", timeout=0, fallback="refused")
    async def work() -> str:
        return "done"

    async def main() -> list[str]:
        return [await work() for _ in range(3)]

    assert limiter.hit("a").degraded
    assert asyncio.run(main()) == ["done", "refused", "refused"]
    assert memory.keys == 0


def test_waiting_works_over_the_guard_in_an_outage(clock: FakeClock) -> None:
    faulty = Prompt(clock)
    faulty.error = UNKNOWN
    storage = GuardedStorage(faulty, clock=clock)
    for text in ("1/second burst 1", "1/second", "10/second burst 4 leaky-bucket"):
        limiter = Limiter(text, storage=storage, sleep=clock.sleep)
        decisions = [limiter.wait("a", timeout=5) for _ in range(3)]
        assert all(decision.degraded for decision in decisions)
    with pytest.raises(RateLimited):
        Limiter("1/hour", storage=storage).wait("b", cost=2, timeout=5)


def test_a_reserved_place_that_is_cancelled_in_an_outage_is_given_back_here(clock: FakeClock) -> None:
    faulty = Prompt(clock)
    faulty.error = UNKNOWN
    storage = GuardedStorage(faulty, clock=clock)

    def interrupted(seconds: float) -> None:
        faulty.error = None  # the storage is back, and must not be asked to refund what it has not seen
        faulty.calls.clear()
        raise KeyboardInterrupt

    limiter = Limiter("1/minute burst 1", storage=storage, sleep=interrupted)
    limiter.hit("a")
    with pytest.raises(KeyboardInterrupt):
        limiter.wait("a", timeout=100)
    assert faulty.calls == []
    assert storage.guard.fallback.memory.evaluate(((("a", limiter.limits, 1, None, None),),), "peek")[0][0][2] == (
        60 * SECOND
    )
