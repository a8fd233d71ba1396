"""The limiter: a text of limits, a storage, and the answers. Sync and async stand side by side.

Everything that does no I/O is shared: what is asked comes from arguments.py, what is answered from Decision, how a
turn is waited for from waiting.py. What is left in each class is the one line that differs by an `await`.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar, overload

from ratebound import switch
from ratebound.arguments import (
    Limits,
    as_limits,
    as_listeners,
    as_patience,
    as_seconds,
    as_sleep,
    as_storage,
    group_of,
    group_of_checks,
    groups_of,
    in_parts,
    unlimited,
)
from ratebound.decision import Decision, Row
from ratebound.decorator import RAISE, is_async, limited, limited_async, name_of
from ratebound.drivers import drive, drive_async
from ratebound.errors import StorageError
from ratebound.events import Decided, Listener, tell
from ratebound.limit import Check, Group, Limit, Mode, limit_set
from ratebound.settling import peeked, restated, settled_costs, settlement
from ratebound.storage import AsyncStorage, AtOnce, RedisClient, Storage, StorageAttribute, at_once_of
from ratebound.storage.guard.guarded import AsyncGuardedStorage, GuardedStorage, guarded
from ratebound.storage.urls import async_twin, open_async_storage, open_storage
from ratebound.waiting import Lines, reserves, wait_by_place, wait_in_line

F = TypeVar("F", bound=Callable[..., Any])
ONE = 1


class _Use:
    """Whether a limiter is open. It is closed by `close`, and when the last `with` that entered it has ended."""

    __slots__ = ("_entered", "_lock", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._entered = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self._entered += 1
            self.closed = False

    def leave(self) -> None:
        with self._lock:
            self._entered -= 1
            self.closed = self._entered < 1

    def check(self) -> None:
        if self.closed:
            raise RuntimeError("this limiter is closed: make a new one, or open it again with a `with` statement")


class Limiter:
    """Decides for each key whether it may go ahead: `Limiter("100/minute").hit("user:42")`.

    `storage` is a URL, a storage, or a client of redis-py. Unless it is memory it gets a guard, see `GuardedStorage`:
    every decision is there within `deadline` seconds, and `failure` says what is decided without the storage.
    `listeners` are told of every decision, see `events`. `max_delay` is how long `wait`, `acquire` and decorators sleep
    at most, in seconds, unless told otherwise.
    """

    storage = StorageAttribute[Storage]()
    _at_once: AtOnce | None

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | Storage | RedisClient = "memory://",
        default_algorithm: str | None = None,
        max_delay: float = 1.0,
        failure: str = "local",
        deadline: float | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.limits = as_limits(limits, default_algorithm)
        self.max_delay = as_seconds("max_delay", max_delay)
        self._sleep = as_sleep(sleep, awaited=False)
        found = as_storage(storage, open_storage)
        if inspect.iscoroutinefunction(found.evaluate):
            raise TypeError(f"{type(storage).__name__} is for AsyncLimiter: its evaluate must be awaited")
        self._listeners = as_listeners(listeners)
        self.storage = guarded(found, GuardedStorage, failure, deadline, workers, self._listeners)
        self._reserves = reserves(self.limits)
        self._lines = Lines()
        self._twin: AsyncLimiter | None = None
        self._use = _Use()

    def hit(self, key: str, *, cost: int = ONE) -> Decision:
        """Spend `cost` if every limit allows it. Never sleeps, never raises for a denial."""
        if type(key) is str and cost is ONE:
            group: Group = ((key, self.limits, ONE, None, None),)
        else:
            group = group_of(key, self.limits, cost)
        if self._listeners:
            return self._decide((group,))[0]
        if self._at_once is not None and switch.limiting:
            return Decision(group, self._at_once(group))
        return Decision(group, self._evaluate((group,))[0])

    def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        """Return independent answers, in order, from one trip to the storage for every 100 keys.

        Each key is decided atomically, the whole is not: others may spend between two trips, and each trip has a
        deadline of its own. If the storage fails, the keys of that trip fall to the failure mode and the trips before
        it stay decided. With `failure="raise"` StorageError is raised and the trips before it stay charged.
        """
        decisions: list[Decision] = []
        for part in in_parts(groups_of(keys, self.limits, cost)):
            try:
                decisions += self._decide(part)
            except StorageError as error:
                error.undone = error.undone and not decisions
                raise
        return decisions

    def peek(self, key: str, *, cost: int = ONE) -> Decision:
        """What `hit` would say, with what is left now. Changes nothing."""
        group = group_of(key, self.limits, cost)
        return peeked(Decision(group, self._evaluate((group,), "peek")[0]))

    def check(self, checks: Check | Iterable[Check]) -> Decision:
        """Several keys and limits in one atomic decision: all are charged, or none."""
        return self._decide((group_of_checks(checks),))[0]

    def settle(self, decision: Decision, *, cost: int | Sequence[int]) -> Decision:
        """Make an allowed decision have cost `cost` (one, or one for each check) instead of what it was charged.

        A refund gives back only what the spend still occupies. A denied decision was charged nothing, and
        stays so. Returns the decision as it stands then; it cannot be settled again.

        A degraded decision is settled where it was made, in this process, and in what will be written back to the
        storage if that has not happened yet. While the storage is out of reach, a refund of what it has decided is
        dropped, and what is to be charged on top is charged here.
        """
        costs = settled_costs(decision, cost)
        if not decision.allowed:
            return decision
        forced = settlement(decision.asks, decision.rows, costs)
        return restated(decision, costs, self._evaluate((forced,), "force")[0])

    def wait(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> Decision:
        """Spend `cost`, sleeping for it if need be, up to `timeout` seconds (default `max_delay`; math.inf is fine).

        Raises RateLimited, with nothing charged, as soon as it is known that the time will not do; its
        `decision.retry_after` is when the same wait, with the same timeout, would do, not when a hit would pass.
        Behind others both are exact for buckets, and for one window if all costs are 1. Otherwise they are estimates
        that are never too long: `retry_after` may be too short, and a late waiter may be refused only at its timeout.

        A waiter that is interrupted or cancelled gives its place back, also while the storage is being asked.
        """
        ((key, limits, cost, _, _),) = group_of(key, self.limits, cost)
        patience = as_patience(timeout, self.max_delay)
        if self._reserves:
            flow = wait_by_place(key, limits, cost, patience)
        else:
            flow = wait_in_line(key, limits, cost, patience, self._lines, (None, key), threading.Event())
        return drive(flow, self._evaluate_or_undo, self._sleep, self._listeners)

    @contextmanager
    def acquire(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> Iterator[Decision]:
        """`wait` as a context: the body runs once its turn has come."""
        yield self.wait(key, cost=cost, timeout=timeout)

    def reset(self, key: str, *, limits: Limit | Iterable[Limit] | None = None) -> None:
        """Forget what `key` has spent of the limiter's own limits, or of `limits` if it was checked against others.

        Raises StorageError, in every failure mode, when the storage could not be told.
        """
        self._use.check()
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

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of everything from now on, as if it had been among `listeners`."""
        self._listeners = (*self._listeners, *as_listeners([listener]))
        if isinstance(self.storage, GuardedStorage):
            self.storage.listen(listener)
        if self._twin is not None:
            self._twin.listen(listener)

    def close(self) -> None:
        """Close the storage. From now on the limiter raises RuntimeError, until a `with` statement opens it again.

        What decorated async functions have opened in event loops is closed by each of them that still runs, as soon as
        it gets to it.
        """
        self._use.closed = True
        self._close()

    def __enter__(self) -> Self:
        self._use.enter()
        self._answer_at_once()
        return self

    def __exit__(self, *exception: object) -> None:
        self._use.leave()
        self._close()

    def _close(self) -> None:
        self._answer_at_once()
        self.storage.close()

    def _answer_at_once(self) -> None:
        """Have the storage answer at once if it can and the limiter is open: nothing else is looked at then."""
        for limiter in (self, self._twin):
            if limiter is not None:
                limiter._at_once = None if self._use.closed else at_once_of(limiter.storage)

    def _decide(self, groups: Sequence[Group]) -> list[Decision]:
        begin = time.perf_counter()
        decisions = list(map(Decision, groups, self._evaluate(groups)))
        seconds = time.perf_counter() - begin
        for decision in decisions if self._listeners else ():
            tell(self._listeners, Decided(decision, seconds))
        return decisions

    def _evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> Sequence[Sequence[Row]]:
        if self._use.closed:
            self._use.check()
        return self.storage.evaluate(groups, mode) if switch.limiting else unlimited(groups)

    def _evaluate_or_undo(self, groups: Sequence[Group], mode: Mode) -> Sequence[Sequence[Row]]:
        """Evaluate for a waiter, which may be interrupted; memory answers without a pause."""
        if mode == "peek" or not switch.limiting or not isinstance(self.storage, GuardedStorage):
            return self._evaluate(groups, mode)
        self._use.check()
        return self.storage.evaluate_or_undo(groups, mode)

    def _for_tasks(self) -> "AsyncLimiter":
        """One twin for all async functions that are decorated, so that they stand in one line."""
        if self._twin is None:
            twin = async_twin(self.storage)
            if twin is None:
                raise TypeError(
                    "this storage would block the event loop: decorate an async def with AsyncLimiter.limit"
                )
            self._twin = AsyncLimiter(
                self.limits,
                storage=twin,
                max_delay=self.max_delay,
                listeners=self._listeners,
                sleep=self._async_sleep,
            )
            self._twin._use = self._use
            self._answer_at_once()
        return self._twin

    async def _async_sleep(self, seconds: float) -> None:
        if self._sleep is time.sleep:
            await asyncio.sleep(seconds)
        else:
            self._sleep(seconds)


class AsyncLimiter:
    """`Limiter` for tasks: the same names, with await. Nothing here blocks the event loop."""

    storage = StorageAttribute[AsyncStorage]()
    _at_once: AtOnce | None

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | AsyncStorage | Storage | RedisClient = "memory://",
        default_algorithm: str | None = None,
        max_delay: float = 1.0,
        failure: str = "local",
        deadline: float | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.limits = as_limits(limits, default_algorithm)
        self.max_delay = as_seconds("max_delay", max_delay)
        self._sleep = as_sleep(sleep, awaited=True)
        found = as_storage(storage, open_async_storage)
        if not inspect.iscoroutinefunction(found.evaluate):
            found = async_twin(found)
        if found is None:
            raise TypeError(f"{type(storage).__name__} would block the event loop: it is for Limiter")
        self._listeners = as_listeners(listeners)
        self.storage = guarded(found, AsyncGuardedStorage, failure, deadline, workers, self._listeners)
        self._reserves = reserves(self.limits)
        self._lines = Lines()
        self._use = _Use()

    async def hit(self, key: str, *, cost: int = ONE) -> Decision:
        """Spend `cost` if every limit allows it; see `Limiter.hit`."""
        if type(key) is str and cost is ONE:
            group: Group = ((key, self.limits, ONE, None, None),)
        else:
            group = group_of(key, self.limits, cost)
        if self._listeners:
            return (await self._decide((group,)))[0]
        if self._at_once is not None and switch.limiting:
            return Decision(group, self._at_once(group))
        return Decision(group, (await self._evaluate((group,)))[0])

    async def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        """Return independent answers, in order; see `Limiter.hit_many`. Other tasks run between two trips."""
        decisions: list[Decision] = []
        for part in in_parts(groups_of(keys, self.limits, cost)):
            if decisions:
                await asyncio.sleep(0)  # memory answers without a pause
            try:
                decisions += await self._decide(part)
            except StorageError as error:
                error.undone = error.undone and not decisions
                raise
        return decisions

    async def peek(self, key: str, *, cost: int = ONE) -> Decision:
        """What `hit` would say, changing nothing; see `Limiter.peek`."""
        group = group_of(key, self.limits, cost)
        return peeked(Decision(group, (await self._evaluate((group,), "peek"))[0]))

    async def check(self, checks: Check | Iterable[Check]) -> Decision:
        """Several keys and limits in one atomic decision; see `Limiter.check`."""
        return (await self._decide((group_of_checks(checks),)))[0]

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
            flow = wait_by_place(key, limits, cost, patience)
        else:
            place = (asyncio.get_running_loop(), key)
            flow = wait_in_line(key, limits, cost, patience, self._lines, place, asyncio.Event())
        return await drive_async(flow, self._evaluate_or_undo, self._sleep, self._listeners)

    @asynccontextmanager
    async def acquire(self, key: str, *, cost: int = ONE, timeout: float | None = None) -> AsyncIterator[Decision]:
        """`wait` as a context; see `Limiter.acquire`."""
        yield await self.wait(key, cost=cost, timeout=timeout)

    async def reset(self, key: str, *, limits: Limit | Iterable[Limit] | None = None) -> None:
        """Forget what `key` has spent; see `Limiter.reset`."""
        self._use.check()
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

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of everything from now on; see `Limiter.listen`."""
        self._listeners = (*self._listeners, *as_listeners([listener]))
        if isinstance(self.storage, AsyncGuardedStorage):
            self.storage.listen(listener)

    async def close(self) -> None:
        """Close what this event loop has open. From now on the limiter raises RuntimeError; see `Limiter.close`."""
        self._use.closed = True
        await self._close()

    async def __aenter__(self) -> Self:
        self._use.enter()
        self._at_once = at_once_of(self.storage)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._use.leave()
        await self._close()

    async def _close(self) -> None:
        if self._use.closed:
            self._at_once = None
        await self.storage.close()

    async def _decide(self, groups: Sequence[Group]) -> list[Decision]:
        begin = time.perf_counter()
        decisions = list(map(Decision, groups, await self._evaluate(groups)))
        seconds = time.perf_counter() - begin
        for decision in decisions if self._listeners else ():
            tell(self._listeners, Decided(decision, seconds))
        return decisions

    async def _evaluate(self, groups: Sequence[Group], mode: Mode = "spend") -> Sequence[Sequence[Row]]:
        if self._use.closed:
            self._use.check()
        return await self.storage.evaluate(groups, mode) if switch.limiting else unlimited(groups)

    async def _evaluate_or_undo(self, groups: Sequence[Group], mode: Mode) -> Sequence[Sequence[Row]]:
        """Evaluate for a waiter, which may be cancelled; memory answers without a pause."""
        if mode == "peek" or not switch.limiting or not isinstance(self.storage, AsyncGuardedStorage):
            return await self._evaluate(groups, mode)
        self._use.check()
        return await self.storage.evaluate_or_undo(groups, mode)
