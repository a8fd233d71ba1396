"""What is not the storage's fault is not blamed on it: the program's own exceptions, and a blocked event loop."""

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from ratebound import AsyncLimiter, Limiter, MemoryStorage
from ratebound.errors import StorageError
from ratebound.limit import Group, Mode
from ratebound.outcome import Row
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage
from ratebound.storage.redis.storage import RedisStorage
from tests.servers import Cluster, Server, wait_until

SLOW = "timeout=5&connect_timeout=5"


class SoftTimeLimitExceeded(Exception):
    pass


class Stop(BaseException):
    pass


class Alarm:
    """A handler that is an object, and raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *_: object) -> None:
        raise self.error


@contextmanager
def handled(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def method_of(error: BaseException) -> Callable[..., None]:
    return Alarm(error).__call__


def function_of(error: BaseException) -> Callable[..., None]:
    def handler(*_: object) -> None:
        raise error

    return handler


class Interrupted:
    """A storage of somebody's: a signal comes while it decides."""

    deadline = 5.0

    def __init__(self) -> None:
        self.memory = MemoryStorage()

    def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
        os.kill(os.getpid(), signal.SIGUSR1)
        return self.memory.evaluate(groups, mode)

    def reset(self, group: Group) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    def close(self) -> None: ...


class AsyncInterrupted(Interrupted):
    async def evaluate(  # type: ignore[override]
        self, groups: Sequence[Group], mode: Mode = "spend"
    ) -> list[Sequence[Row]]:
        return super().evaluate(groups, mode)


ERRORS = [SoftTimeLimitExceeded("over"), TimeoutError("timed out"), ConnectionResetError("mine"), Stop("over")]


@pytest.mark.parametrize("handler", [function_of, method_of, Alarm])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_out_of_a_signal_handler_reaches_the_program_and_is_no_outage(
    error: BaseException, handler: Callable[[BaseException], Any]
) -> None:
    storage = GuardedStorage(Interrupted(), failures=1)
    tasks = AsyncGuardedStorage(AsyncInterrupted(), failures=1)  # type: ignore[arg-type]
    with handled(handler(error)), Limiter("5/hour", storage=storage) as limiter:
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                limiter.hit("k")
            assert caught.value is error
        with pytest.raises(type(error)):
            limiter.reset("k")
        with pytest.raises(type(error)):
            asyncio.run(AsyncLimiter("5/hour", storage=tasks).hit("k"))
    assert storage.guard.breaker("").calm
    assert tasks.guard.breaker("").calm


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_out_of_a_signal_handler_while_redis_is_waited_for_reaches_the_program(
    error: BaseException, fresh_redis: Server
) -> None:
    storage = GuardedStorage(RedisStorage(f"{fresh_redis.url}?{SLOW}"), failures=1)
    with handled(function_of(error)), Limiter("5/hour", storage=storage) as limiter:
        limiter.hit("k")
        fresh_redis.pause()
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        try:
            with pytest.raises(type(error)):
                limiter.hit("k")
        finally:
            fresh_redis.resume()
            timer.join()
        assert storage.guard.breaker("").calm
        decision = limiter.hit("k")
        assert decision.degraded is None


def test_what_a_server_does_is_still_an_outage_while_the_program_has_signal_handlers(fresh_redis: Server) -> None:
    with (
        handled(function_of(SoftTimeLimitExceeded())),
        Limiter("5/hour", storage=f"{fresh_redis.url}?timeout=0.1") as limiter,
    ):
        fresh_redis.pause()
        assert limiter.hit("k").degraded
        fresh_redis.resume()


# Python itself swallows those that come in a callback of its own.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_exceptions_at_any_moment_of_a_call_cost_the_pool_no_connection(redis_url_server: Server) -> None:
    """Each comes out of a signal handler, at a random place: also between taking a connection and giving it back."""
    storage = RedisStorage(f"{redis_url_server.url}?{SLOW}&pool=3")
    limiter = Limiter("1000000000/minute burst 1000000000", storage=GuardedStorage(storage, failure="raise"))
    armed = False

    def handler(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Stop

    before = signal.signal(signal.SIGALRM, handler)
    late = 0
    try:
        limiter.hit("k")
        end = time.monotonic() + 30
        while late < 300 and time.monotonic() < end:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, 300e-6))
                limiter.hit("k")
            except Stop:
                late += 1
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert late > 20
    gc.collect()
    pool = storage._connections
    wait_until(lambda: len(pool._places) == len(pool._idle), 10, "connections that are being made")
    assert len(pool._places) <= 3
    assert limiter.hit("k")
    limiter.close()


def block(seconds: float) -> None:
    """What a program must not do in an event loop, and does."""
    time.sleep(seconds)


async def under_way(limiter: AsyncLimiter, turns: int) -> list[Any]:
    tasks = [asyncio.create_task(limiter.hit("k")) for _ in range(4)]
    for _ in range(turns):
        await asyncio.sleep(0)
    block(0.4)
    return await asyncio.gather(*tasks)


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
Loop = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("cold", [False, True], ids=["connected", "not connected yet"])
def test_a_loop_that_the_program_blocks_is_no_outage(
    cold: bool, turns: int, loop: Loop, redis_url_server: Server
) -> None:
    async def main() -> None:
        async with AsyncLimiter("1000/minute", storage=f"{redis_url_server.url}?timeout=0.2") as limiter:
            if not cold:
                await limiter.hit("k")
            answers = await under_way(limiter, turns)
            assert cold or not any(answer.degraded for answer in answers), "Redis has answered all of them"
            assert limiter.storage.guard.breaker("").calm  # type: ignore[attr-defined]
            assert (await limiter.hit("k")).degraded is None

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
def test_calls_that_are_due_already_are_no_error_of_the_program(loop: Loop, redis_url_server: Server) -> None:
    async def main() -> None:
        async with AsyncLimiter("1000/minute", storage=redis_url_server.url) as limiter:
            await limiter.hit("k")
            connections = limiter.storage.inner._loop().connections  # type: ignore[attr-defined]
            now = asyncio.get_running_loop().time()
            calls = [connections.call(b"*1\r\n$4\r\nPING\r\n", now - late) for late in (0.1, 0.2, 0.0)]
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                assert answer == b"PONG" or isinstance(answer, StorageError)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def test_a_loop_that_the_program_blocks_is_no_outage_of_a_cluster(redis_cluster: Cluster) -> None:
    async def main() -> None:
        async with AsyncLimiter("1000/minute", storage=f"{redis_cluster.url}?timeout=0.2") as limiter:
            guard = limiter.storage.guard  # type: ignore[attr-defined]
            while (await limiter.hit("k")).degraded:
                await asyncio.sleep(0.05)
            for turns in range(4):
                await under_way(limiter, turns)
            assert all(breaker.closed for breaker in guard.breakers.values())
            assert (await limiter.hit("k")).degraded is None

    asyncio.run(main())


def test_a_loop_that_the_program_blocks_is_no_outage_of_anybodys_storage() -> None:
    class Pausing:
        """Answers in three turns of the loop."""

        def __init__(self) -> None:
            self.memory = MemoryStorage()

        async def evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> list[Sequence[Row]]:
            for _ in range(3):
                await asyncio.sleep(0.001)
            return self.memory.evaluate(groups, mode)

        async def reset(self, group: Group) -> None: ...

        async def close(self) -> None: ...

    async def main() -> None:
        storage = AsyncGuardedStorage(Pausing(), deadline=0.2, failures=1)
        limiter = AsyncLimiter("1000/minute", storage=storage)
        await under_way(limiter, 2)
        assert storage.guard.breaker("").calm
        assert (await limiter.hit("k")).degraded is None

    asyncio.run(main())


@LOOPS
def test_a_server_that_hangs_is_an_outage_although_the_loop_was_blocked(loop: Loop, fresh_redis: Server) -> None:
    async def main() -> None:
        async with AsyncLimiter("1000/minute", storage=f"{fresh_redis.url}?timeout=0.2") as limiter:
            await limiter.hit("k")
            fresh_redis.pause()
            answers = await under_way(limiter, 3)
            assert all(answer.degraded for answer in answers)
            assert not limiter.storage.guard.breaker("").calm  # type: ignore[attr-defined]
            fresh_redis.resume()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def test_a_cancelled_task_is_no_outage(fresh_redis: Server) -> None:
    async def cancelled(work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> None:
        async with AsyncLimiter("1000/minute", storage=f"{fresh_redis.url}?{SLOW}") as limiter:
            await limiter.hit("k")
            fresh_redis.pause()
            for _ in range(4):
                await cancelled(limiter.hit("k"))
            fresh_redis.resume()
            assert limiter.storage.guard.breaker("").calm  # type: ignore[attr-defined]
            assert (await limiter.hit("k")).degraded is None

    asyncio.run(main())
