"""Storages that hang, in real time: the caller goes on at the deadline, and what hangs holds up nobody else."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from ratebound import AsyncLimiter, Decision, Limiter, MemoryStorage, StorageError
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.storage import AsyncStorage
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage

DEADLINE = 0.1
SPARE = 1.0  # seconds, for a busy machine


class Hanging:
    """Sync: every call waits until `go` is set."""

    def __init__(self) -> None:
        self.memory = MemoryStorage()
        self.go = threading.Event()
        self.calls = 0

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        self.calls += 1
        self.go.wait(30)
        return self.memory.evaluate(groups, mode)

    def reset(self, group: Group) -> None:
        self.go.wait(30)

    def close(self) -> None:
        self.go.set()


class AsyncHanging:
    def __init__(self) -> None:
        self.memory = MemoryStorage()
        self.hang = True
        self.calls = 0
        self.cancelled = 0

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        self.calls += 1
        try:
            await asyncio.sleep(30 if self.hang else 0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.memory.evaluate(groups, mode)

    async def reset(self, group: Group) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    storage = Hanging()
    yield storage
    storage.close()


@pytest.fixture
def no_thread_stays() -> Iterator[None]:
    """Of those that the test has started, no later than some seconds after it."""
    before = set(threading.enumerate())
    yield
    ends = time.monotonic() + 5
    while (more := set(threading.enumerate()) - before) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not more


@pytest.mark.usefixtures("no_thread_stays")
def test_a_thread_is_answered_by_the_deadline_and_the_storage_decides_again_when_it_can(hanging: Hanging) -> None:
    with Limiter("100/hour", storage=hanging, deadline=DEADLINE) as limiter:
        begin = time.monotonic()
        decision = limiter.hit("a")
        assert time.monotonic() - begin < DEADLINE + SPARE
        assert decision
        assert decision.degraded == "the storage did not answer within 0.1 s; it is unknown whether it decided"
        for _ in range(20):
            limiter.hit("a")
        assert hanging.calls == 3
        hanging.go.set()
        ends = time.monotonic() + 5
        while limiter.hit("b").degraded and time.monotonic() < ends:
            time.sleep(0.01)
        assert limiter.hit("b").degraded is None


@pytest.mark.usefixtures("no_thread_stays")
def test_many_threads_are_all_answered_by_the_deadline_and_few_calls_hang(hanging: Hanging) -> None:
    storage = GuardedStorage(hanging, deadline=DEADLINE, failures=1_000)
    limiter = Limiter("1000/hour", storage=storage)
    seconds: list[float] = []
    reasons: set[str | None] = set()

    def work() -> None:
        begin = time.monotonic()
        reasons.add(limiter.hit("a").degraded)
        seconds.append(time.monotonic() - begin)

    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seconds) < DEADLINE + SPARE
    assert hanging.calls == 64
    reasons.add(limiter.hit("a").degraded)  # however slowly the threads came: now all of the calls hang
    assert "64 calls to the storage are already hanging" in reasons
    assert not storage.guard.breaker("").calm
    hanging.go.set()
    limiter.close()


class Slow:
    """Answers one call at a time, each after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.memory = MemoryStorage()
        self.seconds = seconds
        self.lock = threading.Lock()

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        with self.lock:
            time.sleep(self.seconds)
            return self.memory.evaluate(groups, mode)

    def reset(self, group: Group) -> None: ...

    def close(self) -> None: ...


def hit_at_once(limiter: Limiter, threads: int, times: int) -> list[Decision]:
    found: list[Decision] = []
    begin = threading.Barrier(threads)

    def work() -> None:
        begin.wait()
        found.extend(limiter.hit("a") for _ in range(times))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return found


@pytest.mark.usefixtures("no_thread_stays")
def test_more_callers_than_threads_are_no_outage() -> None:
    with Limiter("10000/hour", storage=Slow(0.0005), deadline=10) as limiter:
        decisions = hit_at_once(limiter, 150, 4)
        assert {decision.degraded for decision in decisions} == {None}
        assert sorted(decision.remaining for decision in decisions) == list(range(9_400, 10_000))


@pytest.mark.usefixtures("no_thread_stays")
def test_who_waits_in_vain_for_a_thread_is_answered_here_and_no_breaker_opens() -> None:
    storage = GuardedStorage(Slow(0.7), deadline=2.0, failures=1)
    storage._threads.most = 1
    with Limiter("1000/hour", storage=storage) as limiter:
        limiter.hit("warm")
        decisions = hit_at_once(limiter, 20, 1)
        degraded = [decision.degraded for decision in decisions if decision.degraded]
        assert all("there are more calls than it answers within 2 s" in reason for reason in degraded)
        assert sum("was not called" in reason for reason in degraded) >= 15
        assert len(degraded) < 20
        assert storage.guard.breaker("").calm
        ends = time.monotonic() + 10
        while (len(storage.guard.fallback.debts) or storage.guard._writing) and time.monotonic() < ends:
            time.sleep(0.01)
        assert limiter.peek("a").remaining == 980, "what the storage was not asked for is charged there afterwards"


@pytest.mark.usefixtures("no_thread_stays")
def test_a_write_back_that_outlives_its_storage_writes_no_more() -> None:
    entered, go, sizes = threading.Event(), threading.Event(), []

    class Held(Hanging):
        deadline = 0.05
        error: StorageError | None = StorageError("down", undone=True)

        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            if self.error is not None:
                raise self.error
            if mode == "force":
                sizes.append(len(groups))
                entered.set()
                go.wait(30)
            return self.memory.evaluate(groups, mode)

    inner = Held()
    storage = GuardedStorage(inner, failures=10)
    limiter = Limiter("100/hour", storage=storage)
    limiter.hit_many(f"k{i}" for i in range(250))
    inner.error = None
    limiter.hit("b")
    entered.wait(30)
    writer = storage._writer
    assert writer is not None
    limiter.close()
    go.set()
    writer.join(30)
    assert sizes == [100]
    assert len(storage.guard.fallback.debts) == 150
    limiter = Limiter("100/hour", storage=storage)
    limiter.hit("b")  # who goes on after all finds everything in order
    assert storage._writer is not None
    storage._writer.join(30)
    assert sizes == [100, 100, 50]
    limiter.close()


def test_a_call_that_hangs_does_not_keep_the_interpreter_from_ending() -> None:
    program = """
import time
from ratebound import Limiter
class Hanging:
    def evaluate(self, groups, mode="spend"): time.sleep(60)
    def reset(self, group): pass
    def close(self): pass
print(bool(Limiter("1/hour", storage=Hanging(), deadline=0.05).hit("a")))
"""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
    assert time.monotonic() - begin < 20


@pytest.mark.usefixtures("no_thread_stays")
def test_a_guard_that_nobody_closes_leaves_no_threads_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratebound.storage.threads.IDLE", 0.05)
    storage = Hanging()
    storage.go.set()
    limiter = Limiter("5/hour", storage=storage, deadline=5)
    assert limiter.hit("a").degraded is None
    del limiter
    gc.collect()


@pytest.mark.usefixtures("no_thread_stays")
def test_a_thread_that_left_when_idle_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratebound.storage.threads.IDLE", 0.001)
    storage = Hanging()
    storage.go.set()
    limiter = Limiter("1000/hour", storage=storage, deadline=5)
    for i in range(300):
        assert limiter.hit("a").degraded is None
        time.sleep(0.0005 * (i % 5))  # around the moment at which it leaves
    limiter.close()


def test_a_task_is_answered_by_the_deadline_and_the_storage_decides_again_when_it_can() -> None:
    storage = AsyncHanging()

    async def main() -> None:
        async with AsyncLimiter("100/hour", storage=storage, deadline=DEADLINE) as limiter:
            begin = time.monotonic()
            decisions = await asyncio.gather(*(limiter.hit("a") for _ in range(50)))
            assert time.monotonic() - begin < DEADLINE + SPARE
            assert all(decisions)
            assert {decision.degraded for decision in decisions} == {
                "the storage did not answer within 0.1 s; it is unknown whether it decided"
            }
            assert storage.cancelled == storage.calls == 50
            assert (await limiter.hit("a")).degraded
            assert storage.calls == 50
            storage.hang = False
            await asyncio.sleep(1.01)
            assert (await limiter.hit("b")).degraded is None
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_twin_for_tasks_has_the_deadline_of_its_limiter() -> None:
    class Patient(AsyncHanging):
        deadline = 20.0

    class WithPatientTwin(MemoryStorage):
        def async_twin(self) -> AsyncStorage:  # type: ignore[override]
            return Patient()

    storage = GuardedStorage(WithPatientTwin(), deadline=DEADLINE)
    limiter = AsyncLimiter("100/hour", storage=storage)
    begin = time.monotonic()
    assert asyncio.run(limiter.hit("a")).degraded
    assert time.monotonic() - begin < DEADLINE + SPARE


def test_a_caller_that_is_cancelled_is_not_answered_and_counts_for_nothing() -> None:
    storage = AsyncHanging()

    async def main() -> None:
        limiter = AsyncLimiter("100/hour", storage=storage, deadline=5)
        tasks = [asyncio.create_task(limiter.hit("a")) for _ in range(5)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert isinstance(limiter.storage, AsyncGuardedStorage)
        assert limiter.storage.guard.breaker("").calm
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await limiter.hit("a")

    asyncio.run(main())


def test_closing_ends_a_write_back_that_hangs() -> None:
    storage = AsyncHanging()

    async def main() -> None:
        limiter = AsyncLimiter("100/hour", storage=storage, deadline=5)
        assert isinstance(limiter.storage, AsyncGuardedStorage)
        guard = limiter.storage.guard
        guard.fallback.memory.evaluate(((("a", limiter.limits, 1, None, None),),))
        guard.fallback.debts.add((("a", limiter.limits), 1))
        breaker = guard.breaker("")
        breaker.failed(breaker.admit())
        storage.hang = False
        await limiter.hit("b")
        storage.hang = True
        await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) == 2
        begin = time.monotonic()
        await limiter.close()
        assert time.monotonic() - begin < 2, "it has not been waited for"
        assert len(asyncio.all_tasks()) == 1
        assert not guard._writing

    asyncio.run(main())
