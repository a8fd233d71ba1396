"""Pacers: they make a program wait until it may send its next request. Sync and async stand side by side."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

from ratebound.arguments import Limits
from ratebound.client.answer_advice import AnswerAdvice as Advice
from ratebound.client.answer_advice import read_advice
from ratebound.client.origin import origin_of
from ratebound.duration import Duration, as_seconds
from ratebound.events import Listener
from ratebound.http.received import Lines
from ratebound.limit import Limit
from ratebound.limiter import AsyncLimiter, Limiter
from ratebound.notation import parse_limits
from ratebound.storage import AsyncStorage, RedisClient, Storage

PacedLimits = str | Limit | Iterable[str | Limit] | None


class Pacer:
    """A pacer for threads: `with pacer.turn(url): send()` waits until a request may be sent."""

    def __init__(
        self,
        limits: PacedLimits = None,
        *,
        storage: str | Storage | RedisClient | None = None,
        name: str = "",
        learn: bool = True,
        max_wait: Duration = 600.0,
        listeners: Iterable[Listener] = (),
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        found = as_paced_limits(limits)
        self.name = name
        self._max_wait = as_seconds("max_wait", max_wait, positive=True)
        self._limiter = None
        if found is not None:
            self._limiter = Limiter(
                found, storage=storage or "memory://", max_delay=math.inf, listeners=listeners, sleep=sleep
            )

    def turn(self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: Duration | None = None) -> "Turn":
        """Return the turn of one request as a context: entering it waits until the request may be sent."""
        return Turn(self, url, cost, tokens, timeout)

    def wait(self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: Duration | None = None) -> "Turn":
        """Wait until a request may be sent, and return its turn.

        Raises RateLimited, with nothing charged, as soon as it is known that the turn cannot come within `timeout`.
        """
        return self.turn(url, cost=cost, tokens=tokens, timeout=timeout).__enter__()

    def _enter(self, turn: "Turn") -> float:
        begin = time.monotonic()
        if self._limiter is not None:
            self._limiter.wait(self.name or origin_of(turn.url), cost=turn.cost, timeout=turn.timeout)
        return time.monotonic() - begin

    def close(self) -> None:
        """Close the storage."""
        if self._limiter is not None:
            self._limiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Turn:
    """The turn of one request. `waited` is the time that it took to come, in seconds."""

    __slots__ = ("_pacer", "cost", "timeout", "tokens", "url", "waited")

    def __init__(self, pacer: Pacer, url: str, cost: int, tokens: int, timeout: Duration | None) -> None:
        self._pacer = pacer
        self.url = url
        self.cost = cost
        self.tokens = tokens
        self.timeout = timeout
        self.waited = 0.0

    def __enter__(self) -> Self:
        self.waited = self._pacer._enter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def answered(self, status: int, headers: Lines, body: bytes | None = None, *, now: float | None = None) -> Advice:
        """Learn from the answer, and return what it says about limits. `now` is the Unix time of its arrival."""
        return read_advice(status, headers, body=body, now=now)

    def failed(self) -> None:
        """Say that no answer came. The request may have reached the server, so it stays counted."""


class AsyncPacer:
    """A pacer for tasks: the names of `Pacer`, with await."""

    def __init__(
        self,
        limits: PacedLimits = None,
        *,
        storage: str | AsyncStorage | Storage | RedisClient | None = None,
        name: str = "",
        learn: bool = True,
        max_wait: Duration = 600.0,
        listeners: Iterable[Listener] = (),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        found = as_paced_limits(limits)
        self.name = name
        self._max_wait = as_seconds("max_wait", max_wait, positive=True)
        self._limiter = None
        if found is not None:
            self._limiter = AsyncLimiter(
                found, storage=storage or "memory://", max_delay=math.inf, listeners=listeners, sleep=sleep
            )

    def turn(self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: Duration | None = None) -> "AsyncTurn":
        """Return the turn of one request as an async context; see `Pacer.turn`."""
        return AsyncTurn(self, url, cost, tokens, timeout)

    async def wait(
        self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: Duration | None = None
    ) -> "AsyncTurn":
        """Wait until a request may be sent, and return its turn; see `Pacer.wait`."""
        return await self.turn(url, cost=cost, tokens=tokens, timeout=timeout).__aenter__()

    async def _enter(self, turn: "AsyncTurn") -> float:
        begin = time.monotonic()
        if self._limiter is not None:
            await self._limiter.wait(self.name or origin_of(turn.url), cost=turn.cost, timeout=turn.timeout)
        return time.monotonic() - begin

    async def close(self) -> None:
        """Close what this event loop has open in the storage."""
        if self._limiter is not None:
            await self._limiter.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncTurn:
    """The turn of one request of a task; see `Turn`."""

    __slots__ = ("_pacer", "cost", "timeout", "tokens", "url", "waited")

    def __init__(self, pacer: AsyncPacer, url: str, cost: int, tokens: int, timeout: Duration | None) -> None:
        self._pacer = pacer
        self.url = url
        self.cost = cost
        self.tokens = tokens
        self.timeout = timeout
        self.waited = 0.0

    async def __aenter__(self) -> Self:
        self.waited = await self._pacer._enter(self)
        return self

    async def __aexit__(self, *exception: object) -> None:
        pass

    async def answered(
        self, status: int, headers: Lines, body: bytes | None = None, *, now: float | None = None
    ) -> Advice:
        """Learn from the answer, and return what it says about limits; see `Turn.answered`."""
        return read_advice(status, headers, body=body, now=now)

    async def failed(self) -> None:
        """Say that no answer came; see `Turn.failed`."""


def as_paced_limits(limits: Any) -> Limits | None:
    """Return the limits that a pacer is given: a text, a Limit, several of them, or None. Raises InvalidLimit."""
    if limits is None or isinstance(limits, str | Limit):
        return limits
    found: list[Limit] = []
    for limit in limits:
        found += parse_limits(limit) if isinstance(limit, str) else [limit]
    return found
