"""What was granted in an outage is charged to the storage after it: once, in batches, and only what is still owed."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from ratebound import InvalidKey, StorageError, parse_limit
from ratebound.limit import ALGORITHMS, Group, Mode
from ratebound.outcome import Row
from ratebound.storage.guard.fallback import LEDGER, Fallback, share_of
from ratebound.storage.guard.guarded import AsyncGuardedStorage
from ratebound.testing import FakeClock
from tests.unit.faulty import DOWN, FOREIGN, UNKNOWN, AsyncFaulty, Faulty, Make, Subject, falling_to


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
    assert len(guard.fallback.debts) == 50, "what became of the others is not known"
    assert subject.hit("a", "5/hour").degraded is None
    subject.finish_writing()
    assert not len(guard.fallback.debts)
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
    assert not len(storage.guard.fallback.debts)
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


def refusing_of(subject: Subject, *keys: str, together: bool) -> None:
    """Make the storage refuse to force these keys: all groups of a call if `together`, else these groups alone."""
    deciding = subject.faulty.evaluate

    def evaluate(groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        refused = [mode == "force" and any(key in keys for key, *_ in group) for group in groups]
        if together and any(refused):
            raise FOREIGN
        answers = [FOREIGN if no else deciding([group], mode)[0] for no, group in zip(refused, groups, strict=True)]
        if any(refused):
            error = StorageError(str(FOREIGN), outage=False)
            error.answers = answers
            raise error
        return answers  # type: ignore[return-value]

    subject.faulty.evaluate = evaluate  # type: ignore[method-assign]


@pytest.mark.parametrize("together", [True, False], ids=["the whole call", "its group"])
def test_an_entry_that_the_storage_refuses_keeps_no_other_from_being_written(make: Make, together: bool) -> None:
    """A row of PostgreSQL that somebody has locked, or an item of Memcached that others swap all the time."""
    subject = make()
    subject.open_breaker()
    subject.storage.evaluate(many(20))
    deciding = subject.faulty.evaluate
    refusing_of(subject, "k7", "k9", together=together)
    subject.come_back()
    subject.faulty.evaluate = deciding  # type: ignore[method-assign]
    written = [5 - subject.left(f"k{i}", "5/hour") for i in range(20)]
    assert written == [0 if i in (7, 9) else 2 for i in range(20)]
    assert subject.guard.breaker("").calm
    subject.open_breaker()
    subject.come_back()
    assert [5 - subject.left(f"k{i}", "5/hour") for i in range(20)] == [2] * 20, "it was kept for the next time"
    assert not len(subject.guard.fallback.debts)


def test_the_ledger_is_bounded_and_counts_what_it_forgets() -> None:
    fallback = Fallback("local", 1)
    limit = (parse_limit("5/hour"),)
    for i in range(LEDGER + 10):
        fallback.debts.add(((f"k{i}", limit), 1))
    fallback.debts.add((("x" * 1_000_000, limit), 1))
    assert (len(fallback.debts), fallback.debts.dropped) == (LEDGER, 11)
    assert fallback.debts.take()[0][0][0] == "k10"


def test_a_grant_can_be_corrected_as_long_as_it_is_in_the_ledger() -> None:
    debts = Fallback("local", 1).debts
    entry, other = ("a", (parse_limit("9/hour"),)), ("b", (parse_limit("9/hour"),))

    def owed() -> dict[str, int]:
        taken = debts.take()
        for each in taken:
            debts.put_back(*each)
        return {entry[0]: debt.units for entry, debt in taken}

    first = debts.add((entry, 4), (other, 2))
    debts.correct(entry, -1, first)
    debts.correct(other, 1, first)
    assert owed() == {"a": 3, "b": 3}
    taken = dict(debts.take())
    second = debts.add((entry, 5))
    debts.correct(entry, -3, first)
    assert owed() == {"a": 5}, "the first is on its way to the storage"
    debts.put_back(entry, taken[entry])
    assert owed() == {"a": 8}
    debts.correct(entry, -3, first)
    assert owed() == {"a": 5}, "it came back"
    debts.correct(entry, -5, second)
    assert owed() == {}
    third = debts.add((entry, 1))
    debts.correct(entry, -1, second)
    assert owed() == {"a": 1}
    debts.correct(entry, -1, third)
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
    assert not len(subject.guard.fallback.debts)
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
    assert (subject.left("west:1", "100/hour"), len(subject.guard.fallback.debts)) == (98, 1)
    subject.faulty.error = None
    subject.clock.advance(1)
    assert subject.hit("east:2", "100/hour").degraded is None
    subject.finish_writing()
    assert (subject.left("east:1", "100/hour"), len(subject.guard.fallback.debts)) == (98, 0)
