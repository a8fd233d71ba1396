"""Counting grants exactly, with many hands on one key. Real threads and tasks, real time."""

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import pytest

from ratebound import AsyncLimiter, AsyncMemoryStorage, Check, Limiter, MemoryStorage, parse_limit
from ratebound.kernels.sliding_log import Log
from ratebound.limit import ALGORITHMS, BUCKETS
from tests.builds import needs_pure_build

THREADS = 8
GRANTS = 1_000


@pytest.fixture(autouse=True)
def _switch_as_often_as_can_be() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], int]) -> list[int]:
    """Run `work` in all threads at once; an exception in one of them is raised here."""
    results: list[Any] = [None] * THREADS
    gate = threading.Barrier(THREADS)

    def one(i: int) -> None:
        gate.wait()
        try:
            results[i] = work(i)
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def limit_text(algorithm: str) -> str:
    return f"{GRANTS}/day {f'burst {GRANTS} ' if algorithm in BUCKETS else ''}{algorithm}"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_eight_threads_on_one_key_are_granted_exactly_the_count(algorithm: str) -> None:
    limiter = Limiter(limit_text(algorithm))
    tries = GRANTS // THREADS + 25

    def work(_: int) -> int:
        return sum(limiter.hit("k").allowed for _ in range(tries))

    assert sum(together(work)) == GRANTS


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_thread_is_denied_while_there_is_room(algorithm: str) -> None:
    limiter = Limiter(limit_text(algorithm))
    assert (
        together(lambda _: sum(limiter.hit("k").allowed for _ in range(GRANTS // THREADS))) == [GRANTS // THREADS] * 8
    )


def test_eight_threads_on_groups_of_several_keys_are_granted_exactly_the_count() -> None:
    """Checks in opposite orders, so that a storage with a lock for each key would have to mind the order."""
    limiter = Limiter("1/second")
    checks = [Check(key, parse_limit(f"{count}/day"), cost=2) for key, count in (("a", 801), ("b", 900), ("c", 1_000))]

    def work(i: int) -> int:
        mine = checks if i % 2 else checks[::-1]
        return sum(limiter.check(mine).allowed for _ in range(100))

    assert sum(together(work)) == 400
    assert [limiter.check([check]).allowed for check in checks] == [False, True, True]


def test_threads_that_come_with_new_keys_lose_nothing() -> None:
    storage = MemoryStorage()
    limiter = Limiter("3/day; 9/day burst 3", storage=storage)

    def work(i: int) -> int:
        return sum(limiter.hit(f"key:{n}").allowed for n in range(400))

    assert sum(together(work)) == 400 * 3
    assert storage.keys == 2 * 400 == sum(len(table.states) for table in storage.states._tables.values())


@needs_pure_build
def test_without_the_lock_the_count_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: two threads that are made to meet inside the kernel are both granted the last unit."""

    def granted(lock: AbstractContextManager[Any]) -> int:
        storage = MemoryStorage()
        storage.states._lock = lock  # type: ignore[assignment]
        limiter, meet, fits = Limiter("2/day; 90/day as other", storage=storage), threading.Barrier(2), Log.fits
        limiter.hit("k")

        def slow(*args: Any) -> Any:
            result = fits(*args)
            with suppress(threading.BrokenBarrierError):
                meet.wait(0.2)
            return result

        monkeypatch.setattr(Log, "fits", slow)
        results: list[bool] = []
        threads = [threading.Thread(target=lambda: results.append(limiter.hit("k").allowed)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        monkeypatch.setattr(Log, "fits", fits)
        return sum(results)

    assert granted(threading.Lock()) == 1
    assert granted(nullcontext()) == 2


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("1000000/second", 1),
        ("1000000000000/day burst 1000000000000", 10**6),  # numbers during whose multiplication Python runs handlers
        ("1000000000000/day sliding-counter; 1000000000000/day fixed-window; 9000/day sliding-log", 2),
    ],
)
def test_an_exception_out_of_a_signal_handler_never_leaves_the_lock_behind(text: str, cost: int) -> None:
    class Late(Exception):
        pass

    armed: list[bool] = []  # once for each try, so that nothing is raised outside of it

    def raise_late(*_: object) -> None:
        if armed:
            armed.clear()
            raise Late

    limiter = Limiter(text)
    before = signal.signal(signal.SIGALRM, raise_late)
    interrupted = 0
    gc.disable()  # Python swallows an exception that comes in a callback of the garbage collector
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        while interrupted < 500:
            try:
                armed.append(True)
                while armed:
                    limiter.settle(limiter.hit("k", cost=cost), cost=0)
                    assert limiter.storage.states._lock.locked() is False  # type: ignore[attr-defined]
            except Late:
                interrupted += 1
    finally:
        armed.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert limiter.hit("k")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_hundred_tasks_on_one_key_are_granted_exactly_the_count(algorithm: str) -> None:
    async def main() -> int:
        limiter = AsyncLimiter(limit_text(algorithm))

        async def work() -> int:
            granted = 0
            for _ in range(8):
                granted += (await limiter.hit("k")).allowed
                await asyncio.sleep(0)
            return granted

        return sum(await asyncio.gather(*(work() for _ in range(200))))

    assert asyncio.run(main()) == GRANTS


def test_threads_and_event_loops_may_share_one_memory() -> None:
    memory = MemoryStorage()
    sync = Limiter("1000/day", storage=memory)
    tasks = AsyncLimiter("1000/day", storage=AsyncMemoryStorage(memory))

    async def in_tasks() -> int:
        return sum([(await tasks.hit("k")).allowed for _ in range(150)])

    def work(i: int) -> int:
        return asyncio.run(in_tasks()) if i % 2 else sum(sync.hit("k").allowed for _ in range(150))

    assert sum(together(work)) == 1_000


@pytest.mark.parametrize("text", ["1000/second burst 1", "1/ms"])
def test_threads_that_wait_all_get_through_and_leave_nothing_behind(text: str) -> None:
    before = set(threading.enumerate())  # other tests may have left threads that end by themselves
    limiter = Limiter(text, max_delay=30)

    def work(i: int) -> int:
        return sum(limiter.wait("k").allowed for _ in range(25))

    assert together(work) == [25] * THREADS
    assert not limiter._lines._lines
    assert set(threading.enumerate()) <= before
