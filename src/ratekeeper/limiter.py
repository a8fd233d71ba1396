"""The limiter: a text of limits, a storage, and the answers. Sync and async stand side by side.

Everything that does no I/O is shared: what is asked comes from asking.py, what is answered from Decision, how a
turn is waited for from waiting.py. What is left in each class is the one line that differs by an `await`.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar, overload

from ratekeeper import switch
from ratekeeper.asking import (
    Limits,
    as_limits,
    as_patience,
    as_seconds,
    as_storage,
    group_of,
    group_of_checks,
    groups_of,
    unlimited,
)
from ratekeeper.decision import Decision, Row
from ratekeeper.decorator import RAISE, is_async, limited, limited_async, name_of
from ratekeeper.limit import Check, Group, Limit, Mode, limit_set
from ratekeeper.settling import peeked, restated, settled_costs, settlement
from ratekeeper.storage import AsyncStorage, Storage
from ratekeeper.storage.urls import async_twin, open_async_storage, open_storage
from ratekeeper.waiting import Evaluate, Flow, Lines, Turn, reserves, wait_by_place, wait_in_line

F = TypeVar("F", bound=Callable[..., Any])
ONE = 1


class Limiter:
    """Decides for each key whether it may go ahead: `Limiter("100/minute").hit("user:42")`.

    `max_delay` is how long `wait`, `acquire` and decorators sleep at most, in seconds, unless told otherwise.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | Storage = "memory://",
        default_algorithm: str | None = None,
        max_delay: float = 1.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.limits = as_limits(limits, default_algorithm)
        self.max_delay = as_seconds("max_delay", max_delay)
        self.storage: Storage = as_storage(storage, open_storage)
        if inspect.iscoroutinefunction(self.storage.evaluate):
            raise TypeError(f"{type(storage).__name__} is for AsyncLimiter: its evaluate must be awaited")
        self._reserves = reserves(self.limits)
        self._lines = Lines()
        self._sleep = sleep
        self._twin: AsyncLimiter | None = None

    def hit(self, key: str, *, cost: int = ONE) -> Decision:
        """Spend `cost` if every limit allows it. Never sleeps, never raises for a denial."""
        if type(key) is str and cost is ONE:
            group: Group = ((key, self.limits, ONE, None, None),)
        else:
            group = group_of(key, self.limits, cost)
        answers = self.storage.evaluate((group,)) if switch.limiting else unlimited((group,))
        return Decision(group, answers[0])

    def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        """Independent answers, in order, from one trip to the storage."""
        groups = groups_of(keys, self.limits, cost)
        return list(map(Decision, groups, self._evaluate(groups)))

    def peek(self, key: str, *, cost: int = ONE) -> Decision:
        """What `hit` would say, with what is left now. Changes nothing."""
        group = group_of(key, self.limits, cost)
        return peeked(Decision(group, self._evaluate((group,), "peek")[0]))

    def check(self, checks: Check | Iterable[Check]) -> Decision:
        """Several keys and limits in one atomic decision: all are charged, or none."""
        group = group_of_checks(checks)
        return Decision(group, self._evaluate((group,))[0])

    def settle(self, decision: Decision, *, cost: int | Sequence[int]) -> Decision:
        """Make an allowed decision have cost `cost` (one, or one for each check) instead of what it was charged.

        A refund gives back only what the spend still occupies. A denied decision was charged nothing, and
        stays so. Returns the decision as it stands then; it cannot be settled again.
        """
        costs = settled_costs(decision, cost)
        if not decision.allowed:
            return decision
        forced = settlement(decision.asks, decision.rows, costs)
        return restated(decision, costs, self._evaluate((forced,), "force")[0])

    def wait(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> Decision:
        """Spend `cost`, sleeping for it if need be, up to `timeout` seconds (default `max_delay`; math.inf is fine).

        Raises RateLimited, with nothing charged, as soon as it is known that the time will not do; its
        `decision.retry_after` is when the same wait, with the same timeout, would do.
        """
        ((key, limits, cost, _, _),) = group_of(key, self.limits, cost)
        patience = as_patience(timeout, self.max_delay)
        if self._reserves:
            return self._drive(wait_by_place(key, limits, cost, patience))
        return self._drive(wait_in_line(key, limits, cost, patience, self._lines, key, threading.Event()))

    @contextmanager
    def acquire(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> Iterator[Decision]:
        """`wait` as a context: the body runs once its turn has come."""
        yield self.wait(key, cost=cost, timeout=timeout)

    def reset(self, key: str, *, limits: Limit | Iterable[Limit] | None = None) -> None:
        """Forget what `key` has spent of the limiter's own limits, or of `limits` if it was checked against others."""
        self.storage.reset(group_of(key, self.limits if limits is None else limit_set(limits), ONE))

    @overload
    def limit(self, function: F, /) -> F: ...

    @overload
    def limit(
        self,
        /,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        timeout: float | None = None,
        fallback: Any = RAISE,
    ) -> Callable[[F], F]: ...

    def limit(
        self,
        function: Any = None,
        /,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        timeout: float | None = None,
        fallback: Any = RAISE,
    ) -> Any:
        """Decorate a function, def or async def: each call waits for its turn, up to `timeout` seconds.

        `key` and `cost` may be functions of the call's arguments; without a key, all calls of the function
        share one. Past the timeout RateLimited is raised, or `fallback` is returned, called first with the
        same arguments if it can be called.
        """

        as_patience(timeout, self.max_delay)

        def decorate(function: F) -> F:
            decorated: Any
            if is_async(function):
                decorated = limited_async(self._for_tasks().wait, function, key, cost, timeout, fallback)
            else:
                decorated = limited(self.wait, function, key, cost, timeout, fallback)
            return decorated  # type: ignore[no-any-return]

        return decorate if function is None else decorate(function)

    def close(self) -> None:
        """Close the storage."""
        self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> Sequence[Sequence[Row]]:
        return self.storage.evaluate(groups, mode) if switch.limiting else unlimited(groups)

    def _drive(self, flow: Flow) -> Decision:
        try:
            step = next(flow)
            while True:
                try:
                    result: object = None
                    if isinstance(step, Evaluate):
                        result = self._evaluate(step.groups, step.mode)
                    elif isinstance(step, Turn):
                        result = _in_time(step)
                    elif switch.sleeping:
                        self._sleep(step.seconds)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def _for_tasks(self) -> "AsyncLimiter":
        """One twin for all async functions that are decorated, so that they stand in one line."""
        if self._twin is None:
            twin = async_twin(self.storage)
            if twin is None:
                raise TypeError(
                    "this storage would block the event loop: decorate an async def with AsyncLimiter.limit"
                )
            self._twin = AsyncLimiter(self.limits, storage=twin, max_delay=self.max_delay, sleep=self._async_sleep)
        return self._twin

    async def _async_sleep(self, seconds: float) -> None:
        if self._sleep is time.sleep:
            await asyncio.sleep(seconds)
        else:
            self._sleep(seconds)


class AsyncLimiter:
    """`Limiter` for tasks: the same names, with await. Nothing here blocks the event loop."""

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | AsyncStorage | Storage = "memory://",
        default_algorithm: str | None = None,
        max_delay: float = 1.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.limits = as_limits(limits, default_algorithm)
        self.max_delay = as_seconds("max_delay", max_delay)
        found = as_storage(storage, open_async_storage)
        if not inspect.iscoroutinefunction(found.evaluate):
            found = async_twin(found)
        if found is None:
            raise TypeError(f"{type(storage).__name__} would block the event loop: it is for Limiter")
        if not inspect.iscoroutinefunction(sleep):
            raise TypeError("the sleep of an AsyncLimiter must be an async def, like FakeClock().async_sleep")
        self.storage: AsyncStorage = found
        self._reserves = reserves(self.limits)
        self._lines = Lines()
        self._sleep = sleep

    async def hit(self, key: str, *, cost: int = ONE) -> Decision:
        """Spend `cost` if every limit allows it; see `Limiter.hit`."""
        if type(key) is str and cost is ONE:
            group: Group = ((key, self.limits, ONE, None, None),)
        else:
            group = group_of(key, self.limits, cost)
        answers = await self.storage.evaluate((group,)) if switch.limiting else unlimited((group,))
        return Decision(group, answers[0])

    async def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        """Independent answers, in order; see `Limiter.hit_many`."""
        groups = groups_of(keys, self.limits, cost)
        return list(map(Decision, groups, await self._evaluate(groups)))

    async def peek(self, key: str, *, cost: int = ONE) -> Decision:
        """What `hit` would say, changing nothing; see `Limiter.peek`."""
        group = group_of(key, self.limits, cost)
        return peeked(Decision(group, (await self._evaluate((group,), "peek"))[0]))

    async def check(self, checks: Check | Iterable[Check]) -> Decision:
        """Several keys and limits in one atomic decision; see `Limiter.check`."""
        group = group_of_checks(checks)
        return Decision(group, (await self._evaluate((group,)))[0])

    async def settle(self, decision: Decision, *, cost: int | Sequence[int]) -> Decision:
        """Change what an allowed decision has cost; see `Limiter.settle`."""
        costs = settled_costs(decision, cost)
        if not decision.allowed:
            return decision
        forced = settlement(decision.asks, decision.rows, costs)
        return restated(decision, costs, (await self._evaluate((forced,), "force"))[0])

    async def wait(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> Decision:
        """Spend `cost`, sleeping for it if need be, up to `timeout` seconds; see `Limiter.wait`."""
        ((key, limits, cost, _, _),) = group_of(key, self.limits, cost)
        patience = as_patience(timeout, self.max_delay)
        if self._reserves:
            return await self._drive(wait_by_place(key, limits, cost, patience))
        place = (asyncio.get_running_loop(), key)  # one line for each loop: a ticket is set in its own
        return await self._drive(wait_in_line(key, limits, cost, patience, self._lines, place, asyncio.Event()))

    @asynccontextmanager
    async def acquire(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> AsyncIterator[Decision]:
        """`wait` as a context; see `Limiter.acquire`."""
        yield await self.wait(key, cost=cost, timeout=timeout)

    async def reset(self, key: str, *, limits: Limit | Iterable[Limit] | None = None) -> None:
        """Forget what `key` has spent; see `Limiter.reset`."""
        await self.storage.reset(group_of(key, self.limits if limits is None else limit_set(limits), ONE))

    @overload
    def limit(self, function: F, /) -> F: ...

    @overload
    def limit(
        self,
        /,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        timeout: float | None = None,
        fallback: Any = RAISE,
    ) -> Callable[[F], F]: ...

    def limit(
        self,
        function: Any = None,
        /,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        timeout: float | None = None,
        fallback: Any = RAISE,
    ) -> Any:
        """Decorate an async def; see `Limiter.limit`."""

        as_patience(timeout, self.max_delay)

        def decorate(function: F) -> F:
            if not is_async(function):
                raise TypeError(f"{name_of(function)} is not an async def: decorate it with Limiter.limit")
            decorated: Any = limited_async(self.wait, function, key, cost, timeout, fallback)
            return decorated  # type: ignore[no-any-return]

        return decorate if function is None else decorate(function)

    async def close(self) -> None:
        """Close the storage."""
        await self.storage.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> Sequence[Sequence[Row]]:
        return await self.storage.evaluate(groups, mode) if switch.limiting else unlimited(groups)

    async def _drive(self, flow: Flow) -> Decision:
        try:
            step = next(flow)
            while True:
                try:
                    result: object = None
                    if isinstance(step, Evaluate):
                        result = await self._evaluate(step.groups, step.mode)
                    elif isinstance(step, Turn):
                        result = await _in_time_async(step)
                    elif switch.sleeping:
                        await self._sleep(step.seconds)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def _in_time(turn: Turn) -> float | None:
    begin = time.monotonic()
    in_time: bool = turn.ticket.wait(turn.seconds)  # type: ignore[attr-defined]
    return time.monotonic() - begin if in_time else None


async def _in_time_async(turn: Turn) -> float | None:
    begin = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(turn.seconds):
            await turn.ticket.wait()  # type: ignore[attr-defined]
    except TimeoutError:
        return None
    return asyncio.get_running_loop().time() - begin
