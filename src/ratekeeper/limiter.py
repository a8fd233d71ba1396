"""The limiter: a text of limits, a storage, and the answers. Sync and async stand side by side.

Everything that does no I/O is shared: what is asked comes from here, what is answered from Decision, how a
turn is waited for from waiting.py. What is left in each class is the one line that differs by an `await`.
"""

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ParamSpec, Self, TypeVar

from ratekeeper import switch
from ratekeeper.clock import microseconds
from ratekeeper.decision import Decision, RateLimited, Row
from ratekeeper.kernels import peek as fresh_peek
from ratekeeper.limit import MAX_PERIOD, Check, Group, Limit, Mode, checked_cost, checked_key, limit_set
from ratekeeper.notation import parse_limits
from ratekeeper.storage import AsyncStorage, Storage
from ratekeeper.storage.urls import async_twin, open_async_storage, open_storage
from ratekeeper.waiting import Evaluate, Flow, Lines, Turn, reserves, settlement, wait_by_place, wait_in_line

P = ParamSpec("P")
R = TypeVar("R")
Limits = str | Limit | Iterable[Limit]
ONE = 1
RAISE: Any = object()


def _as_limits(limits: Limits, default_algorithm: str | None) -> tuple[Limit, ...]:
    return limit_set(parse_limits(limits, default=default_algorithm) if isinstance(limits, str) else limits)


def _as_seconds(label: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{label} must be seconds, 0 or more, not {value!r}")
    return value


def _patience(timeout: float | None, max_delay: float) -> int:
    return microseconds(max_delay if timeout is None else _as_seconds("timeout", timeout), MAX_PERIOD)


def _group(key: object, limits: tuple[Limit, ...], cost: object) -> Group:
    return ((checked_key(key), limits, checked_cost(cost), None, None),)


def _unlimited(groups: Sequence[Group]) -> list[Sequence[Row]]:
    """What untouched limits would say: the answer while `ratekeeper.testing` has turned limiting off."""
    now = time.time_ns() // 1000
    return [
        [(True, *fresh_peek(limit, None, now, cost)[1][1:]) for _, limits, cost, *_ in group for limit in limits]
        for group in groups
    ]


def _settled(decision: Decision, cost: int | Sequence[int]) -> list[int]:
    if getattr(decision, "settled", False):
        raise ValueError("this decision is settled already: settling it twice would refund twice")
    costs = [cost] * len(decision.asks) if isinstance(cost, int) else list(cost)
    if len(costs) != len(decision.asks):
        raise ValueError(f"expected one cost, or one for each of {len(decision.asks)} checks, not {cost!r}")
    costs = [checked_cost(each, least=0) for each in costs]
    decision.settled = True
    return costs


def _restated(decision: Decision, costs: Sequence[int], rows: Sequence[Row]) -> Decision:
    """The decision as it stands after settling."""
    asks = tuple((key, limits, cost, None, None) for (key, limits, *_), cost in zip(decision.asks, costs, strict=True))
    restated = Decision(asks, rows, decision.degraded)
    restated.settled = True
    return restated


class Limiter:
    """Decides for each key whether it may go ahead: `Limiter("100/minute").hit("user:42")`."""

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | Storage = "memory://",
        default_algorithm: str | None = None,
        max_delay: float = 1.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.limits = _as_limits(limits, default_algorithm)
        self.max_delay = _as_seconds("max_delay", max_delay)
        self._storage = open_storage(storage) if isinstance(storage, str) else storage
        if inspect.iscoroutinefunction(self._storage.evaluate):
            raise TypeError(f"{type(storage).__name__} is for AsyncLimiter: its evaluate must be awaited")
        self._reserves = reserves(self.limits)
        self._lines = Lines()
        self._sleep = sleep

    def hit(self, key: str, *, cost: int = ONE) -> Decision:
        """Spend `cost` if every limit allows it. Never sleeps, never raises for a denial."""
        if type(key) is str and cost is ONE:
            group: Group = ((key, self.limits, ONE, None, None),)
        else:
            group = _group(key, self.limits, cost)
        answers = self._storage.evaluate((group,)) if switch.limiting else _unlimited((group,))
        return Decision(group, answers[0])

    def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        """Independent answers, in order, from one trip to the storage."""
        groups = [_group(key, self.limits, cost) for key in keys]
        return list(map(Decision, groups, self._evaluate(groups)))

    def peek(self, key: str, *, cost: int = ONE) -> Decision:
        """What `hit` would say, with what is left now. Changes nothing."""
        group = _group(key, self.limits, cost)
        return Decision(group, self._evaluate((group,), "peek")[0])

    def check(self, checks: Iterable[Check]) -> Decision:
        """Several keys and limits in one atomic decision: all are charged, or none."""
        group = _checked(checks)
        return Decision(group, self._evaluate((group,))[0])

    def settle(self, decision: Decision, *, cost: int | Sequence[int]) -> Decision:
        """Make an allowed decision have cost `cost` (one, or one for each check) instead of what it was charged.

        A refund gives back only what the spend still occupies. A denied decision was charged nothing, and
        stays so. Returns the decision as it stands then; it cannot be settled again.
        """
        costs = _settled(decision, cost)
        if not decision.allowed:
            return decision
        return _restated(decision, costs, self._evaluate((settlement(decision, costs),), "force")[0])

    def wait(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> Decision:
        """Spend `cost`, sleeping for it if need be, up to `timeout` seconds (default `max_delay`).

        Raises RateLimited, with nothing charged, as soon as it is known that the time will not do.
        """
        ((key, limits, cost, _, _),) = _group(key, self.limits, cost)
        patience = _patience(timeout, self.max_delay)
        if self._reserves:
            return self._drive(wait_by_place(key, limits, cost, patience))
        return self._drive(wait_in_line(key, limits, cost, patience, self._lines, key, threading.Event()))

    @contextmanager
    def acquire(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> Iterator[Decision]:
        """`wait` as a context: the body runs once its turn has come."""
        yield self.wait(key, cost=cost, timeout=timeout)

    def reset(self, key: str) -> None:
        """Forget what `key` has spent."""
        self._storage.reset(_group(key, self.limits, ONE))

    def limit(
        self,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        timeout: float | None = None,
        fallback: Any = RAISE,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function, def or async def: each call waits for its turn, up to `timeout` seconds.

        `key` and `cost` may be functions of the call's arguments; without a key, all calls of the function
        share one. Past the timeout RateLimited is raised, or `fallback` is returned, called first with the
        same arguments if it can be called.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):
                for_tasks: Any = self._for_tasks().limit(key=key, cost=cost, timeout=timeout, fallback=fallback)
                return for_tasks(function)  # type: ignore[no-any-return]
            _refuse_async_generator(function)
            key_of, cost_of = _function(key, function), _function(cost, function)

            @functools.wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                try:
                    self.wait(key_of(*args, **kwargs), cost=cost_of(*args, **kwargs), timeout=timeout)
                except RateLimited:
                    if fallback is RAISE:
                        raise
                else:
                    return function(*args, **kwargs)
                return fallback(*args, **kwargs) if callable(fallback) else fallback  # type: ignore[no-any-return]

            return limited

        return decorate

    def close(self) -> None:
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> Sequence[Sequence[Row]]:
        return self._storage.evaluate(groups, mode) if switch.limiting else _unlimited(groups)

    def _drive(self, flow: Flow) -> Decision:
        try:
            step = next(flow)
            while True:
                try:
                    result: object = None
                    if isinstance(step, Evaluate):
                        result = self._evaluate(step.groups, step.mode)
                    elif isinstance(step, Turn):
                        result = step.ticket.wait(step.seconds)  # type: ignore[attr-defined]
                    elif switch.sleeping:
                        self._sleep(step.seconds)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def _for_tasks(self) -> "AsyncLimiter":
        twin = async_twin(self._storage)
        if twin is None:
            raise TypeError("this storage would block the event loop: decorate an async def with AsyncLimiter.limit")
        return AsyncLimiter(self.limits, storage=twin, max_delay=self.max_delay)


class AsyncLimiter:
    """`Limiter` for tasks: the same names, with await. Nothing here blocks the event loop."""

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | AsyncStorage = "memory://",
        default_algorithm: str | None = None,
        max_delay: float = 1.0,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.limits = _as_limits(limits, default_algorithm)
        self.max_delay = _as_seconds("max_delay", max_delay)
        self._storage = open_async_storage(storage) if isinstance(storage, str) else storage
        if not inspect.iscoroutinefunction(self._storage.evaluate):
            raise TypeError(f"{type(storage).__name__} is for Limiter: its evaluate cannot be awaited")
        self._reserves = reserves(self.limits)
        self._lines = Lines()
        self._sleep = sleep

    async def hit(self, key: str, *, cost: int = ONE) -> Decision:
        if type(key) is str and cost is ONE:
            group: Group = ((key, self.limits, ONE, None, None),)
        else:
            group = _group(key, self.limits, cost)
        answers = await self._storage.evaluate((group,)) if switch.limiting else _unlimited((group,))
        return Decision(group, answers[0])

    async def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        groups = [_group(key, self.limits, cost) for key in keys]
        return list(map(Decision, groups, await self._evaluate(groups)))

    async def peek(self, key: str, *, cost: int = ONE) -> Decision:
        group = _group(key, self.limits, cost)
        return Decision(group, (await self._evaluate((group,), "peek"))[0])

    async def check(self, checks: Iterable[Check]) -> Decision:
        group = _checked(checks)
        return Decision(group, (await self._evaluate((group,)))[0])

    async def settle(self, decision: Decision, *, cost: int | Sequence[int]) -> Decision:
        costs = _settled(decision, cost)
        if not decision.allowed:
            return decision
        return _restated(decision, costs, (await self._evaluate((settlement(decision, costs),), "force"))[0])

    async def wait(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> Decision:
        ((key, limits, cost, _, _),) = _group(key, self.limits, cost)
        patience = _patience(timeout, self.max_delay)
        if self._reserves:
            return await self._drive(wait_by_place(key, limits, cost, patience))
        place = (asyncio.get_running_loop(), key)  # one line for each loop: a ticket is set in its own
        return await self._drive(wait_in_line(key, limits, cost, patience, self._lines, place, asyncio.Event()))

    @asynccontextmanager
    async def acquire(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> AsyncIterator[Decision]:
        yield await self.wait(key, cost=cost, timeout=timeout)

    async def reset(self, key: str) -> None:
        await self._storage.reset(_group(key, self.limits, ONE))

    def limit(
        self,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        timeout: float | None = None,
        fallback: Any = RAISE,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate an async def; see `Limiter.limit`."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            _refuse_async_generator(function)
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"{function.__qualname__} is not an async def: decorate it with Limiter.limit")
            key_of, cost_of = _function(key, function), _function(cost, function)

            @functools.wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
                try:
                    await self.wait(key_of(*args, **kwargs), cost=cost_of(*args, **kwargs), timeout=timeout)
                except RateLimited:
                    if fallback is RAISE:
                        raise
                else:
                    return await function(*args, **kwargs)
                value = fallback(*args, **kwargs) if callable(fallback) else fallback
                return await value if inspect.isawaitable(value) else value

            return limited  # type: ignore[return-value]

        return decorate

    async def close(self) -> None:
        await self._storage.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> Sequence[Sequence[Row]]:
        return await self._storage.evaluate(groups, mode) if switch.limiting else _unlimited(groups)

    async def _drive(self, flow: Flow) -> Decision:
        try:
            step = next(flow)
            while True:
                try:
                    result: object = None
                    if isinstance(step, Evaluate):
                        result = await self._evaluate(step.groups, step.mode)
                    elif isinstance(step, Turn):
                        result = await _in_time(step)
                    elif switch.sleeping:
                        await self._sleep(step.seconds)
                except BaseException as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


async def _in_time(turn: Turn) -> bool:
    try:
        return await asyncio.wait_for(turn.ticket.wait(), turn.seconds)  # type: ignore[attr-defined]
    except TimeoutError:
        return False


def _checked(checks: Iterable[Check]) -> Group:
    group = tuple(check.ask() for check in checks)
    if not group:
        raise ValueError("check needs at least one Check")
    return group


def _function(value: Any, function: Callable[..., object]) -> Callable[..., Any]:
    if value is None:
        value = f"{function.__module__}.{function.__qualname__}"
    return value if callable(value) else lambda *args, **kwargs: value


def _refuse_async_generator(function: Callable[..., object]) -> None:
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is an async generator: call wait inside it instead")
