"""A duration is seconds or a timedelta, wherever one is given."""

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from ratebound import (
    AsyncGuardedStorage,
    AsyncLimiter,
    AsyncMemoryStorage,
    GuardedStorage,
    Limiter,
    MemoryStorage,
    RateLimited,
)
from ratebound.duration import as_seconds
from ratebound.observe.alert import AlertListener
from ratebound.observe.top import TopListener
from ratebound.policy import AsyncGate, Gate, PolicyFile, RequestView, Source, read_policy
from ratebound.storage.redis.storage import AsyncRedisStorage, RedisStorage
from ratebound.testing import FakeClock
from ratebound.web.gate import AsyncWebGate, WebGate

POLICY = {"rules": [{"name": "all", "limits": "1/minute burst 3 leaky-bucket"}]}
NO_DURATION = [-1, -0.5, math.nan, True, "1", None, timedelta(seconds=-1), [1]]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(0, 0), (2, 2), (0.25, 0.25), (math.inf, math.inf), (timedelta(0), 0), (timedelta(minutes=1.5), 90)],
)
def test_a_duration_is_read_as_seconds(given: Any, seconds: float) -> None:
    assert as_seconds("timeout", given) == seconds


@pytest.mark.parametrize("given", NO_DURATION, ids=repr)
def test_what_is_no_duration_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ValueError, match="^timeout must be seconds or a timedelta, 0 or more, or math.inf"):
        as_seconds("timeout", given)


@pytest.mark.parametrize("given", [*NO_DURATION, 0, timedelta(0), 3601, timedelta(hours=2), math.inf], ids=repr)
def test_what_is_out_of_bounds_is_refused_with_the_bounds(given: Any) -> None:
    with pytest.raises(ValueError, match="^deadline must be .*, more than 0 and at most 3600, not "):
        as_seconds("deadline", given, positive=True, most=3600)
    assert as_seconds("deadline", timedelta(hours=1), positive=True, most=3600) == 3600


def test_a_wait_takes_a_timedelta() -> None:
    clock = FakeClock()
    limiter = Limiter("1/minute burst 1", storage=MemoryStorage(clock=clock), sleep=clock.sleep)
    assert limiter.wait("a")
    with pytest.raises(RateLimited, match="timeout=59.0 s"):
        limiter.wait("a", timeout=timedelta(seconds=59))
    assert limiter.wait("a", timeout=timedelta(minutes=1)).delay == 60
    with limiter.acquire("a", timeout=timedelta(minutes=2)) as decision:
        assert decision.delay == 60

    @limiter.limit(key="a", timeout=timedelta(minutes=2))
    def work() -> str:
        return "done"

    assert work() == "done"
    with pytest.raises(ValueError, match="timeout must be"):
        limiter.limit(timeout=timedelta(seconds=-1))


def test_an_async_wait_takes_a_timedelta() -> None:
    clock = FakeClock()
    limiter = AsyncLimiter("1/minute burst 1", storage=AsyncMemoryStorage(clock=clock), sleep=clock.async_sleep)

    async def main() -> None:
        await limiter.wait("a")
        with pytest.raises(RateLimited):
            await limiter.wait("a", timeout=timedelta(seconds=59))
        assert (await limiter.wait("a", timeout=timedelta(minutes=1))).delay == 60
        async with limiter.acquire("a", timeout=timedelta(minutes=2)) as decision:
            assert decision.delay == 60

    asyncio.run(main())


def test_max_delay_takes_a_timedelta() -> None:
    assert Limiter("1/minute", max_delay=timedelta(minutes=2)).max_delay == 120
    assert AsyncLimiter("1/minute", max_delay=timedelta(minutes=2)).max_delay == 120


@pytest.mark.parametrize("kind", [Gate, WebGate])
def test_the_max_delay_of_a_gate_takes_a_timedelta(kind: Any) -> None:
    request = RequestView("GET", "/", peer="192.0.2.1")
    made = kind(read_policy(POLICY), max_delay=timedelta(minutes=1))
    gate: Gate = getattr(made, "gate", made)
    assert [gate.decide(request).allowed for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    "made",
    [
        lambda deadline: Limiter("1/day", storage=GuardedStorage(MemoryStorage(), deadline=deadline)),
        lambda deadline: AsyncLimiter("1/day", storage=AsyncGuardedStorage(AsyncMemoryStorage(), deadline=deadline)),
        lambda deadline: Limiter("1/day", storage=Bare(), deadline=deadline),
        lambda deadline: Gate(read_policy(POLICY), storage=Bare(), deadline=deadline),
        lambda deadline: AsyncGate(read_policy(POLICY), storage=AsyncBare(), deadline=deadline),
        lambda deadline: WebGate(read_policy(POLICY), storage=Bare(), deadline=deadline).gate,
        lambda deadline: AsyncWebGate(read_policy(POLICY), storage=AsyncBare(), deadline=deadline).gate,
    ],
)
def test_a_deadline_is_a_timedelta_or_seconds(made: Callable[[Any], Any]) -> None:
    assert made(timedelta(milliseconds=500)).storage.guard.deadline == 0.5
    for wrong in (timedelta(0), timedelta(hours=2), True, math.nan, "1"):
        with pytest.raises(ValueError, match="deadline must be"):
            made(wrong)


class Bare:
    """A storage that is not ours, so that it gets a guard."""

    def __init__(self) -> None:
        memory = MemoryStorage()
        self.evaluate, self.reset, self.close = memory.evaluate, memory.reset, memory.close


class AsyncBare:
    def __init__(self) -> None:
        self._memory = AsyncMemoryStorage()
        self.evaluate, self.reset, self.close = self._memory.evaluate, self._memory.reset, self._memory.close


def test_a_probe_interval_takes_a_timedelta() -> None:
    for kind, inner in ((GuardedStorage, MemoryStorage()), (AsyncGuardedStorage, AsyncMemoryStorage())):
        guarded: Any = kind(inner, probe_interval=timedelta(seconds=2))  # type: ignore[arg-type]
        assert guarded.guard._probe_interval == 2
        with pytest.raises(ValueError, match="probe_interval must be"):
            kind(inner, probe_interval=timedelta(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [RedisStorage, AsyncRedisStorage])
@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
def test_the_timeouts_of_redis_take_a_timedelta(kind: Any, name: str) -> None:
    client = Redis()  # connects to nothing
    assert getattr(kind(client, **{name: timedelta(seconds=2)}).address, name) == 2
    for wrong in (timedelta(0), timedelta(hours=2), 0, True, math.nan, "1"):
        with pytest.raises(ValueError, match=f"{name} must be seconds or a timedelta"):
            kind(client, **{name: wrong})


def test_the_time_between_two_looks_at_a_policy_file_takes_a_timedelta(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text('{"rules": [{"name": "all", "limits": "1/day"}]}')
    assert PolicyFile(path, every=timedelta(minutes=1)).every == 60
    for wrong in (timedelta(seconds=-1), -1, True, math.nan, "1"):
        with pytest.raises(ValueError, match="every must be"):
            PolicyFile(path, every=wrong)  # type: ignore[arg-type]


def test_the_cache_of_a_verifier_takes_a_timedelta() -> None:
    assert Source(header="x", verify=str, cache=timedelta(minutes=1)).cache == 60
    for wrong in (timedelta(seconds=-1), timedelta(days=2), True, math.nan):
        with pytest.raises(ValueError, match="cache"):
            Source(header="x", verify=str, cache=wrong)


@pytest.mark.parametrize("made", [lambda window: AlertListener(print, window=window), lambda w: TopListener(window=w)])
def test_the_window_of_a_listener_takes_a_timedelta(made: Callable[[Any], Any]) -> None:
    made(timedelta(minutes=1))
    for wrong in (timedelta(0), timedelta(seconds=-1), 0, math.inf, math.nan, True, "1"):
        with pytest.raises(ValueError, match="window must be"):
            made(wrong)


def test_waiting_for_alerts_takes_a_timedelta() -> None:
    assert AlertListener(print).flush(timeout=timedelta(seconds=1))


def test_a_fake_clock_moves_by_a_timedelta() -> None:
    clock = FakeClock(now=0)
    clock.advance(timedelta(minutes=1))
    assert clock.now == 60_000_000
