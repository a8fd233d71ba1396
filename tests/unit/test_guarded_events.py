"""What those who listen hear of calls, outages, recoveries and decisions."""

import asyncio
import logging
from typing import Any

import pytest

from ratebound import (
    AsyncLimiter,
    AsyncMemoryStorage,
    Check,
    Decision,
    Limiter,
    MemoryStorage,
    RateLimited,
    StorageError,
    parse_limit,
)
from ratebound.events import Called, Decided, Degraded, Event, Recovered, Settled
from ratebound.limit import Group
from ratebound.observe import LogListener
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.testing import FakeClock
from tests.unit.faulty import DOWN, UNKNOWN, Make, Prompt


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


@pytest.mark.parametrize("listeners", [[], [LogListener()], [lambda event: None]])
def test_an_outage_is_in_the_log_once_whoever_listens(
    make: Make, listeners: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    subject = make(listeners=listeners)
    with caplog.at_level(logging.WARNING, "ratebound"):
        subject.open_breaker()
        for _ in range(5):
            subject.hit("a", "9/hour")
        subject.clock.advance(4)
        subject.come_back()
    said = [record.getMessage().partition(":")[0].partition(" after")[0] for record in caplog.records]
    assert said == ["decisions are made without the storage", "the storage decides again"]


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


def test_a_limiter_tells_of_each_decision_and_settlement_but_not_of_peeks_and_resets(clock: FakeClock) -> None:
    heard: list[Any] = []
    limiter = Limiter("3/minute", storage=MemoryStorage(clock=clock), sleep=clock.sleep, listeners=[heard.append])
    decisions = [limiter.hit("a"), *limiter.hit_many(["b", "c"]), limiter.check(Check("d", parse_limit("1/minute")))]
    decisions.append(limiter.wait("a"))
    limiter.peek("a")
    settled = limiter.settle(decisions[0], cost=2)
    with pytest.raises(RateLimited) as refused:
        limiter.wait("a", cost=3)
    limiter.reset("a")
    assert heard.pop(len(decisions)) == Settled(decisions[0], settled)
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
