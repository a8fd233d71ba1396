"""Pacers: they make a program wait until it may send its next request. Sync and async stand side by side.

What both share is in pacing.py, which does no I/O. What is left in each class is what differs by an `await`.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Self

from ratebound.arguments import as_limits, as_patience, as_sleep
from ratebound.client.learned_origins import KnownLimit
from ratebound.client.origin import origin_of
from ratebound.client.pacing import Granted, PacerCore, Wanted
from ratebound.decider import AsyncDecider, Decider
from ratebound.duration import Duration, as_seconds
from ratebound.errors import InvalidLimit
from ratebound.events import Listener
from ratebound.flow import run, run_async
from ratebound.http.advice import read_advice
from ratebound.http.client_ip import Lines
from ratebound.http.quota import Advice
from ratebound.http.received import Lines as ReceivedLines
from ratebound.limit import Group, Limit, Mode, checked_cost
from ratebound.notation import parse_limits
from ratebound.outcome import Row
from ratebound.storage import (
    AsyncStorage,
    Document,
    RedisClient,
    Storage,
    documents_of,
    keeps_documents,
    refuse_unkept,
)
from ratebound.switch import switch
from ratebound.telling import tell_decided

PacedLimits = str | Limit | Iterable[str | Limit] | None
MAX_NAME = 200


class Pacer:
    """A pacer for threads: it makes a program wait until it may send its next request.

    As a context manager it closes its storage at the end.

    Args:
        limits: Limits that are kept exactly: `"50/second"`, a `Limit`, or several. None means to keep to what servers
            tell.
        storage: What several processes share, with what they learn: a URL, a storage, or a client of redis-py. None
            means that each pacer is on its own, in memory.
        name: The name under which all URLs are counted together, at most 200 characters. Empty means that each origin
            (scheme, host and port) is counted by itself.
        learn: True keeps to the limits that servers tell in their answers, too, if each answer is given to
            `turn.answered`.
        max_wait: The longest time for which a server is believed, in seconds or as a timedelta: if it closes for
            longer, one request is sent each time that this has passed.
        listeners: Functions of one event that receive every decision; see `ratebound.events`.
        sleep: The function that waits for a number of seconds. Tests give `FakeClock().sleep`.
        clock: A function that returns seconds and never steps back, for tests.

    Raises:
        InvalidLimit: A limit cannot be read, or the storage does not keep it.
        ValueError: The URL of the storage cannot be read, the name is too long, or a duration is out of bounds.
        TypeError: `storage`, `listeners` or `sleep` is something else than expected.

    Examples:
        >>> from ratebound.client import Pacer
        >>> pacer = Pacer("50/second")
        >>> with pacer.turn("https://api.example.com/orders") as turn:
        ...     advice = turn.answered(200, {"RateLimit": '"day";r=12;t=60'})
        >>> [(limit.limit, limit.kind) for limit in pacer.limits()]
        [(50, 'configured'), (12, 'window')]
    """

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        found = as_paced_limits(limits)
        self._decider = Decider("memory://" if storage is None else storage, listeners=listeners)
        self._calls = ThreadCalls(self._decider, as_sleep(sleep, awaited=False))
        refuse_unkept(self._decider.storage, found)
        self._core = PacerCore(
            found,
            name=checked_name(name),
            learn=learn,
            shares=storage is not None and keeps_documents(self._decider.storage),
            max_wait=as_seconds("max_wait", max_wait, positive=True),
            clock=clock,
        )

    @property
    def name(self) -> str:
        """The name under which all URLs are counted together; "" if origins are counted by themselves."""
        return self._core.name

    def turn(self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: Duration | None = None) -> "Turn":
        """Return the turn of one request as a context: entering it waits until the request may be sent.

        Args:
            url: The URL of the request. Its scheme, host and port are counted.
            cost: The units that limits of requests count.
            tokens: The units that limits of tokens count.
            timeout: The longest wait: seconds or a timedelta. None means no bound.

        Raises:
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            ValueError: The timeout is negative, or no duration.
            TurnNotInTime: Raised on entering: the turn cannot come within `timeout`. Nothing is charged.

        Examples:
            >>> from ratebound.client import Pacer
            >>> pacer = Pacer("50/second")
            >>> with pacer.turn("https://api.example.com/orders", timeout=10) as turn:
            ...     advice = turn.answered(429, {"Retry-After": "2"})
            >>> advice.retry_after
            2.0
        """
        return Turn(self, as_wanted(url, cost, tokens, timeout))

    def wait(self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: Duration | None = None) -> "Turn":
        """Wait until a request may be sent, and return its turn. A waiter that is interrupted gives its turn back.

        Args:
            url: The URL of the request. Its scheme, host and port are counted.
            cost: The units that limits of requests count.
            tokens: The units that limits of tokens count.
            timeout: The longest wait: seconds or a timedelta. None means no bound.

        Raises:
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            ValueError: The timeout is negative, or no duration.
            TurnNotInTime: The turn cannot come within `timeout`. Nothing is charged.

        Examples:
            >>> from ratebound.client import Pacer
            >>> turn = Pacer("50/second").wait("https://api.example.com/orders")
            >>> turn.failed()
        """
        return self.turn(url, cost=cost, tokens=tokens, timeout=timeout).__enter__()

    def limits(self) -> list[KnownLimit]:
        """Return the limits that the pacer keeps to now: those that it was given, and those that it has learned."""
        return self._core.known_limits()

    def close(self) -> None:
        """Close the storage. From now on the pacer raises RuntimeError."""
        self._decider.shut()
        self._decider.close()

    def __enter__(self) -> Self:
        self._decider.enter()
        return self

    def __exit__(self, *exception: object) -> None:
        self._decider.leave()
        self._decider.close()


class Turn:
    """The turn of one request; made by `Pacer.turn` and `Pacer.wait`.

    Args:
        pacer: The pacer whose turn it is.
        wanted: What the request is counted for.

    Examples:
        >>> from ratebound.client import Pacer
        >>> with Pacer("50/second").turn("https://api.example.com/orders") as turn:
        ...     advice = turn.answered(200, {})
        >>> advice.refused
        False
    """

    __slots__ = ("_granted", "_pacer", "_wanted")

    def __init__(self, pacer: Pacer, wanted: Wanted) -> None:
        self._pacer = pacer
        self._wanted = wanted
        self._granted: Granted | None = None

    @property
    def waited(self) -> float:
        """The time that the turn took to come, in seconds."""
        return 0.0 if self._granted is None else self._granted.waited

    def __enter__(self) -> Self:
        pacer = self._pacer
        pacer._decider.check_open()
        granted = self._granted = run(pacer._core.coming(self._wanted, pacer._calls, threading.Event(), None))
        if granted.decision is not None:
            pacer._decider.hold(granted.decision)
            if pacer._decider.listeners:
                tell_decided(pacer._decider.listeners, granted.decision, granted.waited)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._end(told=kind is not None)

    def answered(
        self, status: int, headers: ReceivedLines, body: bytes | None = None, *, now: float | None = None
    ) -> Advice:
        """Learn from the answer, and return what it says about limits. Call it once.

        Args:
            status: The status of the response.
            headers: The headers of the response: a mapping, or pairs of names and values.
            body: The beginning of the body of a refusal, if it was read.
            now: The Unix time in seconds at which the response was received. None means the time of this machine.
        """
        advice = read_advice(status, as_lines(headers), body=body, now=now)
        granted = self._granted
        if granted is not None:
            run(self._pacer._core.answered(granted, advice, self._pacer._calls))
            self._end(told=True)
        return advice

    def failed(self) -> None:
        """Say that no answer came. The request may have reached the server, so it stays counted."""
        self._end(told=True)

    def _end(self, *, told: bool) -> None:
        granted, self._granted = self._granted, None
        if granted is not None:
            self._pacer._core.ended(granted, told=told)
            if granted.decision is not None:
                self._pacer._decider.release(granted.decision)


class AsyncPacer:
    """A pacer for tasks: the names of `Pacer`, with await. Nothing here blocks the event loop.

    Args:
        limits: Limits that are kept exactly: `"50/second"`, a `Limit`, or several. None means to keep to what servers
            tell.
        storage: What several processes share, with what they learn: a URL, a storage, or a client of redis-py. None
            means that each pacer is on its own, in memory.
        name: The name under which all URLs are counted together, at most 200 characters. Empty means that each origin
            (scheme, host and port) is counted by itself.
        learn: True keeps to the limits that servers tell in their answers, too, if each answer is given to
            `turn.answered`.
        max_wait: The longest time for which a server is believed, in seconds or as a timedelta: if it closes for
            longer, one request is sent each time that this has passed.
        listeners: Functions of one event that receive every decision; see `ratebound.events`.
        sleep: The async def that waits for a number of seconds. Tests give `FakeClock().async_sleep`.
        clock: A function that returns seconds and never steps back, for tests.

    Raises:
        InvalidLimit: A limit cannot be read, or the storage does not keep it.
        ValueError: The URL of the storage cannot be read, the name is too long, or a duration is out of bounds.
        TypeError: `storage`, `listeners` or `sleep` is something else than expected.

    Examples:
        >>> import asyncio
        >>> from ratebound.client import AsyncPacer
        >>> async def main():
        ...     async with AsyncPacer("50/second") as pacer:
        ...         async with pacer.turn("https://api.example.com/orders") as turn:
        ...             return await turn.answered(429, {"Retry-After": "2"})
        >>> asyncio.run(main()).retry_after
        2.0
    """

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        found = as_paced_limits(limits)
        self._decider = AsyncDecider("memory://" if storage is None else storage, listeners=listeners)
        self._calls = TaskCalls(self._decider, as_sleep(sleep, awaited=True))
        refuse_unkept(self._decider.storage, found)
        self._core = PacerCore(
            found,
            name=checked_name(name),
            learn=learn,
            shares=storage is not None and keeps_documents(self._decider.storage),
            max_wait=as_seconds("max_wait", max_wait, positive=True),
            clock=clock,
        )

    @property
    def name(self) -> str:
        """The name under which all URLs are counted together; "" if origins are counted by themselves."""
        return self._core.name

    def turn(self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: Duration | None = None) -> "AsyncTurn":
        """Return the turn of one request as an async context; see `Pacer.turn`.

        Args:
            url: The URL of the request. Its scheme, host and port are counted.
            cost: The units that limits of requests count.
            tokens: The units that limits of tokens count.
            timeout: The longest wait: seconds or a timedelta. None means no bound.

        Raises:
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            ValueError: The timeout is negative, or no duration.
            TurnNotInTime: Raised on entering: the turn cannot come within `timeout`. Nothing is charged.
        """
        return AsyncTurn(self, as_wanted(url, cost, tokens, timeout))

    async def wait(
        self, url: str = "", *, cost: int = 1, tokens: int = 0, timeout: Duration | None = None
    ) -> "AsyncTurn":
        """Wait until a request may be sent, and return its turn; see `Pacer.wait`. A cancelled task gives it back.

        Args:
            url: The URL of the request. Its scheme, host and port are counted.
            cost: The units that limits of requests count.
            tokens: The units that limits of tokens count.
            timeout: The longest wait: seconds or a timedelta. None means no bound.

        Raises:
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            ValueError: The timeout is negative, or no duration.
            TurnNotInTime: The turn cannot come within `timeout`. Nothing is charged.
        """
        return await self.turn(url, cost=cost, tokens=tokens, timeout=timeout).__aenter__()

    def limits(self) -> list[KnownLimit]:
        """Return the limits that the pacer keeps to now; see `Pacer.limits`. It is not awaited."""
        return self._core.known_limits()

    async def close(self) -> None:
        """Close what this event loop has open in the storage. From now on the pacer raises RuntimeError."""
        self._decider.shut()
        await self._decider.close()

    async def __aenter__(self) -> Self:
        self._decider.enter()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._decider.leave()
        await self._decider.close()


class AsyncTurn:
    """The turn of one request of a task; see `Turn`.

    Args:
        pacer: The pacer whose turn it is.
        wanted: What the request is counted for.

    Examples:
        >>> import asyncio
        >>> from ratebound.client import AsyncPacer
        >>> async def main():
        ...     async with AsyncPacer("50/second").turn("https://api.example.com/orders") as turn:
        ...         return await turn.answered(200, {})
        >>> asyncio.run(main()).refused
        False
    """

    __slots__ = ("_granted", "_pacer", "_wanted")

    def __init__(self, pacer: AsyncPacer, wanted: Wanted) -> None:
        self._pacer = pacer
        self._wanted = wanted
        self._granted: Granted | None = None

    @property
    def waited(self) -> float:
        """The time that the turn took to come, in seconds."""
        return 0.0 if self._granted is None else self._granted.waited

    async def __aenter__(self) -> Self:
        pacer = self._pacer
        pacer._decider.check_open()
        loop = asyncio.get_running_loop()
        granted = await run_async(pacer._core.coming(self._wanted, pacer._calls, asyncio.Event(), loop))
        self._granted = granted
        if granted.decision is not None:
            pacer._decider.hold(granted.decision)
            if pacer._decider.listeners:
                tell_decided(pacer._decider.listeners, granted.decision, granted.waited)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        await self._end(told=kind is not None)

    async def answered(
        self, status: int, headers: ReceivedLines, body: bytes | None = None, *, now: float | None = None
    ) -> Advice:
        """Learn from the answer, and return what it says about limits; see `Turn.answered`.

        Args:
            status: The status of the response.
            headers: The headers of the response: a mapping, or pairs of names and values.
            body: The beginning of the body of a refusal, if it was read.
            now: The Unix time in seconds at which the response was received. None means the time of this machine.
        """
        advice = read_advice(status, as_lines(headers), body=body, now=now)
        granted = self._granted
        if granted is not None:
            await run_async(self._pacer._core.answered(granted, advice, self._pacer._calls))
            await self._end(told=True)
        return advice

    async def failed(self) -> None:
        """Say that no answer came; see `Turn.failed`."""
        await self._end(told=True)

    async def _end(self, *, told: bool) -> None:
        granted, self._granted = self._granted, None
        if granted is not None:
            self._pacer._core.ended(granted, told=told)
            if granted.decision is not None:
                await self._pacer._decider.release(granted.decision)


class ThreadCalls:
    """The calls of a pacer for threads; see `PacerCalls`."""

    def __init__(self, decider: Decider, sleep: Callable[[float], object]) -> None:
        self._decider = decider
        self._sleep = sleep

    def evaluate(self, groups: Sequence[Group], mode: Mode) -> Sequence[Sequence[Row]]:
        """Ask the storage. A caller that is interrupted has spent nothing."""
        return self._decider.evaluate_or_undo(groups, mode)

    def sleep(self, seconds: float) -> None:
        """Sleep, unless a test has turned that off."""
        if switch.sleeping:
            self._sleep(seconds)

    def in_time(self, ticket: threading.Event, seconds: float | None) -> bool:
        """Wait until the ticket is set. Return False if it was not set in time."""
        return ticket.wait(seconds)

    def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document."""
        found: Document = documents_of(self._decider.storage).read_document(name)
        return found

    def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document if the version is still the stored one."""
        written: bool = documents_of(self._decider.storage).write_document(name, content, version)
        return written


class TaskCalls:
    """The calls of a pacer for tasks; see `PacerCalls`."""

    def __init__(self, decider: AsyncDecider, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._decider = decider
        self._sleep = sleep

    async def evaluate(self, groups: Sequence[Group], mode: Mode) -> Sequence[Sequence[Row]]:
        """Ask the storage. A caller that is cancelled has spent nothing."""
        return await self._decider.evaluate_or_undo(groups, mode)

    async def sleep(self, seconds: float) -> None:
        """Sleep, unless a test has turned that off."""
        if switch.sleeping:
            await self._sleep(seconds)

    async def in_time(self, ticket: asyncio.Event, seconds: float | None) -> bool:
        """Wait until the ticket is set. Return False if it was not set in time."""
        try:
            async with asyncio.timeout(seconds):
                await ticket.wait()
        except TimeoutError:
            return False
        return True

    async def read_document(self, name: str) -> Document:
        """Return the version and the content of a shared document."""
        found: Document = await documents_of(self._decider.storage).read_document(name)
        return found

    async def write_document(self, name: str, content: bytes, version: int) -> bool:
        """Store a shared document if the version is still the stored one."""
        written: bool = await documents_of(self._decider.storage).write_document(name, content, version)
        return written


def as_wanted(url: object, cost: object, tokens: object, timeout: Duration | None) -> Wanted:
    """Return the turn that the arguments of `turn` ask for. Raises InvalidCost, TypeError or ValueError."""
    if not isinstance(url, str):
        url = str(url)  # URL objects of httpx and yarl
    patience = None if timeout is None else as_patience(timeout, 0.0)
    return Wanted(origin_of(url), checked_cost(cost), checked_cost(tokens, least=0), patience)


def as_lines(headers: Any) -> Lines:
    """Return headers as a list of names and values: they are a mapping, or such a list already."""
    for method in ("multi_items", "items"):
        if hasattr(headers, method):
            return [(str(name), str(value)) for name, value in getattr(headers, method)()]
    return [(name, value) for name, value in headers]


def checked_name(name: object) -> str:
    """Return the name of a pacer. Raises ValueError if it is no short text."""
    if isinstance(name, str) and len(name) <= MAX_NAME:
        return name
    raise ValueError(f"name must be text of at most {MAX_NAME} characters, for example 'billing-api'")


def as_paced_limits(limits: Any) -> tuple[Limit, ...]:
    """Return the limits that a pacer is given: a text, a Limit, several of them, or None. Raises InvalidLimit."""
    if limits is None:
        return ()
    if isinstance(limits, str | Limit):
        found = as_limits(limits, None)
    else:
        each: list[Limit] = []
        for limit in limits:
            each += parse_limits(limit) if isinstance(limit, str) else [limit]
        found = as_limits(each, None)
    for limit in found:
        if limit.is_distinct or limit.is_penalty:
            raise InvalidLimit(f"a pacer cannot keep '{limit}': expected a rate, a quota or slots, like '50/second'")
    return found
