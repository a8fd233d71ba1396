"""Waiters that go while the storage is being asked: the call goes on without them, and its place is given back."""

import asyncio
import gc
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import pytest

from ratebound import AsyncLimiter, Limiter, MemoryStorage, StorageError
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.testing import FakeClock
from tests.proxy import proxy
from tests.servers import Server, wait_until

KINDS = ["1/second burst 1", "1/second burst 1; 2/second burst 1 gcra", "1/second", "1/second fixed-window"]
WAYS: dict[str, Callable[[AsyncLimiter], Awaitable[object]]] = {}
runs = itertools.count()


def way(function: Callable[[AsyncLimiter], Awaitable[object]]) -> Callable[[AsyncLimiter], Awaitable[object]]:
    WAYS[function.__name__] = function
    return function


@way
async def wait(limiter: AsyncLimiter) -> object:
    return await limiter.wait("k", timeout=10_000)


@way
async def acquire(limiter: AsyncLimiter) -> object:
    async with limiter.acquire("k", timeout=10_000) as decision:
        return decision


@way
async def decorated(limiter: AsyncLimiter) -> object:
    @limiter.limit(key="k", timeout=10_000)
    async def call() -> str:
        return "called"

    return await call()


class Slow:
    """A storage that has decided, and whose answers come when `answers` is set."""

    deadline = 60.0

    def __init__(self) -> None:
        self.memory = MemoryStorage(clock=FakeClock())
        self.asked: list[Mode] = []
        self.answers = asyncio.Event()
        self.error: Exception | None = None
        self.closed = 0

    async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        rows = self.memory.evaluate(groups, mode)
        self.asked.append(mode)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return rows

    async def reset(self, group: Group) -> None:
        self.memory.reset(group)

    async def close(self) -> None:
        self.closed += 1


async def cancel(tasks: Sequence["asyncio.Task[object]"]) -> None:
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in found)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("text", KINDS)
def test_a_waiter_cancelled_during_its_call_goes_at_once_and_its_place_is_given_back(text: str, name: str) -> None:
    async def main() -> None:
        storage = Slow()
        async with AsyncLimiter(text, storage=storage) as limiter:
            tasks = [asyncio.ensure_future(WAYS[name](limiter)) for _ in range(5)]
            while "spend" not in storage.asked:
                await asyncio.sleep(0)
            await cancel(tasks)
            assert "force" not in storage.asked, "it did not wait for the answer"
            storage.answers.set()
        assert storage.closed == 1
        assert storage.asked.count("force") == storage.asked.count("spend")
        assert Limiter(text, storage=storage.memory).hit("k")

    asyncio.run(main())


def test_a_call_that_has_not_begun_is_not_made() -> None:
    async def main() -> None:
        storage = Slow()
        limiter = AsyncLimiter("1/second burst 1", storage=storage)
        tasks = [asyncio.ensure_future(wait(limiter)) for _ in range(5)]
        await asyncio.sleep(0)
        await cancel(tasks)
        await limiter.close()
        assert not storage.asked

    asyncio.run(main())


@pytest.mark.parametrize("text", KINDS)
def test_a_cancellation_that_comes_with_the_answer_gives_the_place_back(text: str) -> None:
    async def main() -> None:
        storage = Slow()
        limiter = AsyncLimiter(text, storage=storage)
        storage.answers.set()
        for turns in range(6):
            task = asyncio.ensure_future(wait(limiter))
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.cancel():
                await asyncio.gather(task, return_exceptions=True)
                await asyncio.gather(*limiter.storage._calls)  # type: ignore[attr-defined]
                assert await limiter.peek("k")
            await limiter.reset("k")
        await limiter.close()

    asyncio.run(main())


def test_what_fails_when_the_waiter_has_gone_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        storage = Slow()
        limiter = AsyncLimiter("1/second burst 1", storage=storage, failure="raise")
        task = asyncio.ensure_future(wait(limiter))
        while not storage.asked:
            await asyncio.sleep(0)
        await cancel([task])
        storage.error = StorageError("broken off")
        storage.answers.set()
        await limiter.close()

    with caplog.at_level(logging.WARNING, "ratebound"):
        asyncio.run(main())
    assert "broken off" in caplog.text


@pytest.mark.parametrize("goes", [False, True], ids=["waiting", "cancelled before"])
def test_an_event_loop_that_ends_during_a_call_neither_hangs_nor_warns(
    goes: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)

    async def main() -> None:
        storage = Slow()
        limiter = AsyncLimiter("1/second burst 1", storage=storage)
        tasks = [asyncio.ensure_future(wait(limiter)) for _ in range(5)]
        while len(storage.asked) < 5:
            await asyncio.sleep(0)
        if goes:
            await cancel(tasks)

    with caplog.at_level(logging.DEBUG, "asyncio"):
        asyncio.run(main())
        gc.collect()
    assert not noise
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_a_limiter_is_closed_although_the_storage_hangs() -> None:
    async def main() -> None:
        storage = Slow()
        limiter = AsyncLimiter("1/second burst 1", storage=storage, deadline=0.01)
        task = asyncio.ensure_future(wait(limiter))
        while not storage.asked:
            await asyncio.sleep(0)
        await cancel([task])
        await limiter.close()
        assert storage.closed == 1
        assert all(call.done() for call in limiter.storage._calls)  # type: ignore[attr-defined]

    asyncio.run(main())


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 6, 10])
@pytest.mark.parametrize("text", ["1/minute burst 1", "20/minute"])
def test_waiters_cancelled_while_redis_is_asked_leave_nothing_behind(
    text: str, turns: int, redis_url_server: Server
) -> None:
    async def main() -> None:
        url = f"{redis_url_server.url}?prefix=gone{next(runs)}-&timeout=5&connect_timeout=5"
        storage = Limiter(text, storage=url)
        async with AsyncLimiter(text, storage=url) as limiter:
            await limiter.hit("warm")
            tasks = [asyncio.ensure_future(wait(limiter)) for _ in range(20)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await cancel([task for task in tasks if not task.done()])
            passed = sum(not task.cancelled() for task in tasks)
        assert storage.peek("k").remaining == storage.limits[0].burst - passed
        storage.close()

    asyncio.run(main())


def test_waiters_cancelled_before_a_slow_answer_of_redis_leave_nothing_behind(fresh_redis: Server) -> None:
    async def main(url: str) -> None:
        async with AsyncLimiter("1/minute burst 1", storage=f"{url}?timeout=5&connect_timeout=5") as limiter:
            await limiter.hit("warm")
            between.delay = 0.2
            task = asyncio.ensure_future(wait(limiter))
            while not await asyncio.to_thread(spent):
                await asyncio.sleep(0.005)
            await cancel([task])
            assert spent()
        assert not spent()

    def spent() -> bool:
        return not direct.peek("k")

    with proxy(fresh_redis) as between, Limiter("1/minute burst 1", storage=fresh_redis.url) as direct:
        asyncio.run(main(between.url))


class Interruption(Exception):
    pass


@pytest.fixture
def interruption() -> Iterator[threading.Event]:
    """SIGUSR1 raises in the main thread, once. Set when it has."""
    raised = threading.Event()

    def handler(number: int, frame: FrameType | None) -> None:
        if not raised.is_set():
            raised.set()
            raise Interruption

    before = signal.signal(signal.SIGUSR1, handler)
    yield raised
    signal.signal(signal.SIGUSR1, before)


def interrupt_until(raised: threading.Event) -> None:
    """A signal that comes just before the main thread blocks does not wake it."""
    while not raised.wait(0.01):
        os.kill(os.getpid(), signal.SIGUSR1)


class Blocked:
    """A storage that has decided, interrupts the main thread, and answers when `answers` is set."""

    deadline: float = 60.0

    def __init__(self, interruption: threading.Event) -> None:
        self.memory = MemoryStorage(clock=FakeClock())
        self.interruption = interruption
        self.answers = threading.Event()
        self.asked: list[Mode] = []

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        rows = self.memory.evaluate(groups, mode)
        self.asked.append(mode)
        if not self.answers.is_set():
            interrupt_until(self.interruption)
            self.answers.wait(60)
        return rows

    def reset(self, group: Group) -> None:
        self.memory.reset(group)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("text", KINDS)
def test_a_thread_interrupted_during_its_call_gives_its_place_back(text: str, interruption: threading.Event) -> None:
    storage = Blocked(interruption)
    with Limiter(text, storage=storage) as limiter:
        with pytest.raises(Interruption):
            limiter.wait("k", timeout=10_000)
        assert "force" not in storage.asked, "it did not wait for the answer"
        storage.answers.set()
    assert storage.asked == ["spend", "force"]
    assert Limiter(text, storage=storage.memory).hit("k")


def test_a_thread_interrupted_before_a_slow_answer_of_redis_leaves_nothing_behind(
    fresh_redis: Server, interruption: threading.Event
) -> None:
    with (
        proxy(fresh_redis) as between,
        Limiter("1/minute burst 1", storage=fresh_redis.url) as direct,
        Limiter("1/minute burst 1", storage=f"{between.url}?timeout=5&connect_timeout=5") as limiter,
    ):
        limiter.hit("warm")
        between.delay = 0.2

        def interrupt_when_spent() -> None:
            wait_until(lambda: not direct.peek("k"), 10, "a spend")
            interrupt_until(interruption)

        helper = threading.Thread(target=interrupt_when_spent)
        helper.start()
        with pytest.raises(Interruption):
            limiter.wait("k", timeout=10_000)
        helper.join()
        wait_until(lambda: direct.peek("k").allowed, 10, "a place given back")


def test_what_a_storage_raises_reaches_the_waiter() -> None:
    class Broken(Blocked):
        def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            raise StorageError("down")

    class Gone(Slow):
        async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            raise StorageError("down")

    async def main() -> None:
        limiter: Any = AsyncLimiter("1/second burst 1", storage=Gone(), failure="raise")
        with pytest.raises(StorageError, match="down"):
            await limiter.wait("k")

    asyncio.run(main())
    with pytest.raises(StorageError, match="down"):
        Limiter("1/second burst 1", storage=Broken(threading.Event()), failure="raise").wait("k")
