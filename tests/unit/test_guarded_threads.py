"""The threads that calls are made in, and closing what threads and tasks hold open."""

import asyncio
import threading
from collections.abc import Sequence
from functools import partial

import pytest

from ratebound import MemoryStorage, StorageError
from ratebound.breaker import Breaker
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.storage.guard.guarded import GuardedStorage
from ratebound.storage.threads import Threads
from ratebound.testing import FakeClock
from tests.unit.faulty import Prompt, Subject


def test_without_any_thread_decisions_are_made_here(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    subject = Subject("threads", clock)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert subject.hit("a", "5/hour").degraded == "the operating system allows no more threads to call the storage"
    assert subject.hit("a", "5/hour").degraded is None
    subject.finish_writing()
    assert subject.left("a", "5/hour") == 3
    subject.storage.close()


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

    class WithTwin(Prompt):
        def async_twin(self) -> Held:
            return held

    storage = GuardedStorage(WithTwin(clock))
    twin = storage.async_twin()
    assert twin is not None

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


@pytest.mark.parametrize("found", ["a debt", "a failure", "a node"])
def test_trouble_that_another_thread_finds_meanwhile_is_not_forgotten(found: str) -> None:
    """The fast path would go on otherwise: nothing would be written back, and no breaker would be asked."""
    guard = GuardedStorage(MemoryStorage()).guard

    class Looked(Breaker):
        """A breaker that another thread overtakes while this one looks at it."""

        @property
        def calm(self) -> int:
            if found == "a debt":
                guard._due = True
            elif found == "a failure":
                guard._failed("other", other, other.admit(), StorageError("down"))
            else:
                guard.breaker("another node")
            return 1

        @calm.setter
        def calm(self, value: int) -> None: ...

    other = guard.breaker("other")
    guard.breakers = {"other": other, "looked": Looked(), "last": Breaker()}
    guard.trouble.is_there = True
    guard._look_for_trouble()
    assert guard.trouble.is_there == (found != "a node")
