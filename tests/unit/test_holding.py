"""Held slots: when they are renewed, in which calls, and what is told of a slot that was lost."""

import asyncio
import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter, MemoryStorage, StorageError
from ratebound.decider import Decider
from ratebound.events import Decided, SlotLost
from ratebound.holding import Held, Renewals, _renew, loop_renewers, thread_renewer
from ratebound.limit import Group, Mode
from ratebound.observe.logging import LogListener
from ratebound.outcome import DegradedRows, Row
from ratebound.slots import slots_of
from ratebound.testing import FakeClock
from tests.limiters import limiter_of
from tests.servers import wait_until
from tests.waiting import virtual
from tests.waiting.virtual import run, seconds

LEASE = 30


class Recorded(MemoryStorage):
    """A memory that notes what it was asked, and can fail."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.calls: list[tuple[Mode, int]] = []
        self.error: Exception | None = None
        self.degraded = False

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        self.calls.append((mode, len(groups)))
        if self.error is not None:
            raise self.error
        rows = super().evaluate(groups, mode)
        return [DegradedRows(each, "down") for each in rows] if self.degraded else rows


class Bench:
    """A limiter whose renewals happen when the test says so."""

    def __init__(self, text: str, clock: FakeClock) -> None:
        self.clock = clock
        self.events: list[Any] = []
        self.storage = Recorded(clock)
        self.decider = Decider(self.storage, listeners=[self.events.append])
        self.limiter = Limiter(text, storage=self.storage)
        self.renewals = Renewals()

    def hold(self, key: str = "k") -> Held:
        decision = self.limiter.hit(key)
        assert decision
        held = Held(self.decider, decision, slots_of(decision.asks, 1))
        self.renewals.add(held, self.clock.now / 1_000_000)
        self.storage.calls.clear()
        return held

    def renew(self) -> None:
        for batch in self.renewals.take_due(self.clock.now / 1_000_000):
            _renew(batch)

    def lost(self) -> list[SlotLost]:
        return [event for event in self.events if isinstance(event, SlotLost)]


def bench(clock: FakeClock, text: str = f"2 concurrent for {LEASE} seconds") -> Bench:
    return Bench(text, clock)


def test_a_slot_is_renewed_every_third_of_its_lease(clock: FakeClock) -> None:
    it = bench(clock)
    held = it.hold()
    assert it.renewals.next_due() == clock.now / 1_000_000 + LEASE / 3
    for _ in range(20):
        clock.advance(LEASE / 3)
        it.renew()
        assert len(it.limiter.holders("k")) == 1
    assert it.storage.calls == [("force", 1)] * 20
    assert not it.lost()
    assert not held.released


def test_the_shortest_lease_of_a_decision_counts(clock: FakeClock) -> None:
    assert bench(clock, "2 concurrent for 30 seconds as a; 2 concurrent for 9 seconds as b").hold().interval == 3


def test_slots_that_are_due_soon_are_renewed_with_those_that_are_due_in_calls_of_a_hundred(clock: FakeClock) -> None:
    it = bench(clock)
    held = []
    for number in range(250):
        held.append(it.hold(f"user:{number}"))
        clock.advance(0.01)
    clock.advance(9)
    it.storage.calls.clear()
    it.renew()
    assert it.storage.calls == [("force", 100), ("force", 100), ("force", 50)]
    assert it.renewals.next_due() == clock.now / 1_000_000 + LEASE / 3
    assert len(held) == 250


def test_each_decider_is_asked_by_itself(clock: FakeClock) -> None:
    one, other = bench(clock), bench(clock)
    other.renewals = one.renewals
    held = [one.hold("a"), other.hold("b"), one.hold("c")]
    clock.advance(10)
    one.renew()
    assert one.storage.calls == [("force", 2)]
    assert other.storage.calls == [("force", 1)]
    assert len(held) == 3


def test_a_lost_slot_is_held_again_even_above_the_count_and_told_once(clock: FakeClock) -> None:
    it = bench(clock, "1 concurrent for 30 seconds")
    held = it.hold()
    it.limiter.reset("k")
    other = it.limiter.hit("k")
    assert other
    clock.advance(10)
    it.renew()
    assert len(it.limiter.holders("k")) == 2
    assert it.lost() == [SlotLost(held.decision)]
    clock.advance(10)
    it.renew()
    assert len(it.lost()) == 1
    assert not it.limiter.hit("k")


def test_a_renewal_after_the_lease_tells_that_the_slot_was_lost(clock: FakeClock) -> None:
    it = bench(clock)
    held = it.hold()
    clock.advance(LEASE)
    it.renew()
    assert it.lost() == [SlotLost(held.decision)]


def test_a_failed_renewal_is_tried_again_and_raises_nothing(clock: FakeClock) -> None:
    it = bench(clock)
    held = it.hold()
    for error in (StorageError("down"), RuntimeError("closed")):
        it.storage.error = error
        clock.advance(9)
        it.renew()
    it.storage.error = None
    clock.advance(9)
    it.renew()
    assert not it.lost()
    assert len(it.limiter.holders("k")) == 1
    assert not held.released


def test_a_degraded_renewal_tells_nothing_of_the_storage(clock: FakeClock) -> None:
    it = bench(clock)
    held = it.hold()
    it.limiter.reset("k")
    it.storage.degraded = True
    clock.advance(10)
    it.renew()
    assert not it.lost()
    it.storage.degraded = False
    it.limiter.reset("k")
    clock.advance(10)
    it.renew()
    assert it.lost() == [SlotLost(held.decision)]


def test_a_slot_that_was_granted_without_the_storage_is_not_lost_when_the_storage_first_sees_it(
    clock: FakeClock,
) -> None:
    it = bench(clock)
    decision = it.limiter.hit("k")
    degraded = type(decision)(decision.asks, DegradedRows(decision.rows, "down"))
    held = Held(it.decider, degraded, slots_of(decision.asks, 1))
    it.renewals.add(held, clock.now / 1_000_000)
    it.limiter.reset("k")
    for _ in range(2):
        clock.advance(10)
        it.renew()
    assert not it.lost()
    it.limiter.reset("k")
    clock.advance(10)
    it.renew()
    assert it.lost()


def test_a_slot_that_is_released_during_its_renewal_does_not_stay(clock: FakeClock) -> None:
    it = bench(clock)
    held = it.hold()

    class Crossing(Recorded):
        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            if not held.released:
                it.renewals.remove(held.slots)
                it.limiter.release(held.decision)
            return it.storage.evaluate(groups, mode)

    it.decider.storage = Crossing(clock)
    clock.advance(10)
    it.renew()
    assert it.limiter.holders("k") == []
    assert not it.lost()


def test_a_slot_that_is_released_before_its_turn_in_a_round_is_left_alone(clock: FakeClock) -> None:
    it = bench(clock)
    held = [it.hold("a"), it.hold("b")]
    clock.advance(10)
    (batch,) = it.renewals.take_due(clock.now / 1_000_000)
    for each in held:
        it.renewals.remove(each.slots)
    _renew(batch)
    assert it.storage.calls == []


def test_a_holder_that_is_gone_is_not_renewed(clock: FakeClock) -> None:
    it = bench(clock)
    held = it.hold()
    del held
    gc.collect()
    assert it.renewals.next_due() is None
    clock.advance(10)
    it.renew()
    assert it.storage.calls == []


def test_a_lost_slot_is_logged_without_its_key(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    limiter = limiter_of("2 concurrent as exports; 5/minute", clock)
    with caplog.at_level(logging.WARNING):
        LogListener()(SlotLost(limiter.hit("secret")))
    assert "a slot of exports was lost and is held again" in caplog.text
    assert "secret" not in caplog.text


def test_the_thread_runs_while_slots_are_held_and_ends_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratebound.holding.IDLE", 0.01)
    events: list[Any] = []
    limiter = Limiter("2 concurrent for 1 second", listeners=[events.append])
    other = Limiter("5 concurrent for 1 second", storage=limiter.storage)
    with limiter.acquire("k"):
        (first,) = limiter.holders("k")
        wait_until(lambda: limiter.holders("k")[0].expires_at > first.expires_at, 10, "a renewal")
        assert [thread.name for thread in threading.enumerate()].count("ratebound-renew") == 1
        limiter.reset("k")
        wait_until(lambda: bool(other.holders("k")), 10, "another renewal")
    assert [type(event) for event in events] == [Decided, SlotLost]
    wait_until(lambda: not thread_renewer.is_running, 10, "the end of the thread")
    with limiter.acquire("k"):
        assert thread_renewer.is_running
    wait_until(lambda: not thread_renewer.is_running, 10, "the end of the second thread")


def test_a_shorter_lease_wakes_the_thread() -> None:
    limiter = Limiter("2 concurrent for 1 hour")
    short = Limiter("2 concurrent for 1 second")
    with limiter.acquire("k"), short.acquire("k"):
        (first,) = short.holders("k")
        wait_until(lambda: short.holders("k")[0].expires_at > first.expires_at, 10, "a renewal")


def test_tasks_are_renewed_in_their_event_loop() -> None:
    async def main() -> None:
        limiter = virtual.limiter_of("1 concurrent for 30 seconds")
        async with limiter.acquire("k"):
            for _ in range(10):
                await asyncio.sleep(25)
                assert not await limiter.hit("k")
            assert len(loop_renewers.of_loops) == 1
        assert not loop_renewers.of_loops
        assert await limiter.hit("k")
        assert seconds() == 250

    run(main())


def test_a_release_of_a_task_looks_at_no_slots_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else thousands of tasks that hold slots would make each release slow."""

    def looks(renewals: Renewals) -> list[Held]:
        pytest.fail("it looked")

    async def main() -> None:
        limiter = virtual.limiter_of("1 concurrent for 30 seconds")
        async with limiter.acquire("a"):
            async with limiter.acquire("b"):
                monkeypatch.setattr(Renewals, "_alive", looks)
            monkeypatch.undo()
            assert await limiter.hit("b")
            assert len(loop_renewers.of_loops) == 1
        assert not loop_renewers.of_loops

    run(main())


def test_slots_are_renewed_in_an_event_loop_whose_tasks_begin_at_once() -> None:
    """As with `asyncio.eager_task_factory`: a task may have ended before the call that creates it returns."""

    class Ended(asyncio.Future[None]):
        def set_name(self, name: object) -> None:
            pass

    def eager(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        if coroutine.__qualname__ != "LoopRenewer._renew":
            return asyncio.Task(coroutine, loop=loop, **options)
        ended = Ended(loop=loop)
        with pytest.raises(StopIteration):
            coroutine.send(None)
        ended.set_result(None)
        return ended

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(eager)
        slow, fast = virtual.limiter_of("1 concurrent for 1 hour"), virtual.limiter_of("1 concurrent for 3 seconds")
        async with slow.acquire("slow"):
            await asyncio.sleep(1_300)  # it was renewed once
            async with fast.acquire("fast"):
                await asyncio.sleep(10)
                assert not await fast.hit("fast")
            assert not await slow.hit("slow")

    run(main())


def test_a_task_is_told_of_a_lost_slot() -> None:
    async def main() -> list[type]:
        events: list[Any] = []
        limiter = virtual.limiter_of("1 concurrent for 30 seconds", listeners=[events.append])
        async with limiter.acquire("k"):
            await limiter.reset("k")
            await asyncio.sleep(11)
            assert len(await limiter.holders("k")) == 1
        return [type(event) for event in events]

    assert run(main()) == [Decided, SlotLost]


@pytest.mark.parametrize("way", ["run", "stopped"])
def test_event_loops_that_end_while_slots_are_held_do_not_complain(
    way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    limiter = AsyncLimiter("3 concurrent")
    held = []

    async def main() -> None:
        decision = await limiter.hit("k")
        held.append(limiter._decider.hold(decision))

    with caplog.at_level(logging.DEBUG, "asyncio"):
        for _ in range(3):
            if way == "run":
                asyncio.run(main())
            else:
                loop = asyncio.new_event_loop()
                loop.run_until_complete(main())
                loop.close()
        gc.collect()
    assert not noise
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert len(loop_renewers.of_loops) <= 1, "those of closed loops are dropped"
    loop_renewers.renew()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_owns_no_slots_of_its_parent() -> None:
    limiter = Limiter("1 concurrent for 1 second")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)

        def child() -> None:
            released = held is not None and held.released
            sender.send((thread_renewer.is_running, thread_renewer.renewals.next_due(), released))

        decision = limiter.hit("k")
        held = limiter._decider.hold(decision)
        process = context.Process(target=child)
        process.start()
        assert receiver.recv() == (False, None, True)
        process.join()
    assert held is not None
    assert not held.released
    limiter.release(decision)


def test_the_interpreter_exits_while_slots_are_held() -> None:
    program = """
from ratebound import Limiter
context = Limiter("1 concurrent").acquire("k")
context.__enter__()
import threading
assert [thread.name for thread in threading.enumerate()] == ["MainThread", "ratebound-renew"]
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
