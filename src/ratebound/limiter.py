"""The limiter: a text of limits, a storage, and the answers. Sync and async stand side by side.

Requests are checked in arguments.py, decided in decider.py, and waited for in waiting.py. The fast path of `hit` is in
hit_method.py. What is left in each class is the one line that differs by an `await`.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar, overload

from ratebound.arguments import (
    Limits,
    SliceOption,
    as_deny_cache,
    as_limits,
    as_patience,
    as_sleep,
    as_slice,
    group_of,
    group_of_checks,
    groups_of,
    in_parts,
)
from ratebound.decider import AsyncDecider, Decider
from ratebound.decision import Decision, Plan
from ratebound.decorator import RAISE, is_async, limited, limited_async, name_of, refuse_generator
from ratebound.drivers import drive, drive_async
from ratebound.duration import Duration, as_seconds
from ratebound.errors import StorageError
from ratebound.events import Listener
from ratebound.hit_method import LimiterFields, hit_async, hit_method
from ratebound.limit import Check, Limit, checked_key, checked_warn, decided_locally, limit_set, warning_at
from ratebound.rate_limited import RateLimited
from ratebound.reservation import AsyncReservation, Reservation
from ratebound.slots import Holder
from ratebound.storage import AsyncStorage, RedisClient, Storage, refuse_unkept
from ratebound.usage import Usage, granting, usage_ask, usages_of
from ratebound.values import Values
from ratebound.waiting import Lines, reserves, wait_by_place, wait_for_slots, wait_in_line

F = TypeVar("F", bound=Callable[..., Any])
ONE = 1


class Limiter(LimiterFields):
    """A rate limiter for threads: `Limiter("100/minute").hit("user:42")`.

    `storage` is a URL, a storage, or a client of redis-py. Unless it is memory it gets a guard, see `GuardedStorage`:
    every decision returns within `deadline`, and `failure` says what is decided without the storage. `listeners`
    receive every decision, see `events`. `max_delay` is the longest sleep of `wait`, `acquire` and decorators that are
    given no timeout. `warn` is the share of a limit, like '80%', at which listeners receive `Warned`. Durations are
    seconds or timedeltas.

    `slice` lets this process take parts of the limits from a shared storage, and decide from them without asking: True,
    a share of what remains like '5%', a `Slice`, or {"share": "5%", "for": 1.0}. `deny_cache` lets it repeat a denial
    for up to a second. Memory answers at once, so it ignores both. See docs/slices.md.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | Storage | RedisClient = "memory://",
        default_algorithm: str | None = None,
        max_delay: Duration = 1.0,
        failure: str = "local",
        deadline: Duration | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        warn: float | str | None = None,
        slice: SliceOption | None = None,
        deny_cache: bool = False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._twin: AsyncLimiter | None = None
        self._warn = None if warn is None else checked_warn(warn)
        self._slice = as_slice(slice)
        self._deny_cache = as_deny_cache(deny_cache)
        self._use(as_limits(limits, default_algorithm))
        self.max_delay = as_seconds("max_delay", max_delay)
        self._sleep = as_sleep(sleep, awaited=False)
        self._decider = Decider(storage, failure=failure, deadline=deadline, workers=workers, listeners=listeners)
        refuse_unkept(self._decider.storage, self.limits)
        self._fast_path = self._decider.fast_path
        self._lines = Lines()

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that every key is checked against. Others can be set."""
        return self._plan.limits

    @limits.setter
    def limits(self, limits: Limit | Iterable[Limit]) -> None:
        found = limit_set(limits)
        refuse_unkept(self._decider.storage, found)
        self._use(found)
        self._decider.forget_local()

    def _use(self, limits: Limit | Iterable[Limit]) -> None:
        found = decided_locally(limit_set(limits), self._slice, self._deny_cache)
        self._plan = Plan(found if self._warn is None else warning_at(found, self._warn))
        self._reserves = reserves(self._plan.limits)
        self._wait_in_line = wait_for_slots if any(limit.has_slots for limit in self._plan.limits) else wait_in_line
        if self._twin is not None:
            self._twin.limits = self._plan.limits

    @property
    def storage(self) -> Storage:
        """The storage, in its guard if it has one."""
        return self._decider.storage

    @storage.setter
    def storage(self, storage: Storage) -> None:
        refuse_unkept(storage, self.limits)
        self._decider.storage = storage

    @hit_method
    def hit(self, key: str, *, cost: int = ONE, values: Values | None = None) -> Decision:
        """Spend `cost` if every limit allows it. Never sleeps, never raises for a denial.

        `values` has the value for each limit of distinct values: {"account": "alice"}.
        """
        return self._hit_in_general(key, cost, values)

    def _hit_in_general(self, key: str, cost: int, values: Values | None) -> Decision:
        return self._decider.decide(group_of(key, self.limits, cost, values))

    def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        """Return independent answers, in order, from one trip to the storage for every 100 keys.

        Each key is decided atomically, the whole is not: others may spend between two trips, and each trip has a
        deadline of its own. If the storage fails, the keys of that trip fall to the failure mode and the trips before
        it stay decided. With `failure="raise"` StorageError is raised and the trips before it stay charged.
        """
        decisions: list[Decision] = []
        for part in in_parts(groups_of(keys, self.limits, cost)):
            try:
                decisions += self._decider.decide_each(part)
            except StorageError as error:
                error.undone = error.undone and not decisions
                raise
        return decisions

    def peek(self, key: str, *, cost: int = ONE, values: Values | None = None) -> Decision:
        """Return what `hit` would say, with what is left now. Changes nothing."""
        group = group_of(key, self.limits, cost, values)
        return self._decider.peek(group)

    def check(self, checks: Check | Iterable[Check]) -> Decision:
        """Decide several keys and limits atomically: all are charged, or none."""
        return self._decider.decide(group_of_checks(checks))

    def settle(
        self, decision: Decision, *, cost: int | Sequence[int], strike: bool | Sequence[bool] = False
    ) -> Decision:
        """Make an allowed decision have cost `cost` (one, or one for each check) instead of what it was charged.

        A refund gives back only what the spend still occupies. A denied decision was charged nothing, and
        stays so. Returns the decision as it stands then; it cannot be settled again. A cost of 0 also takes back the
        values of limits of distinct values, unless they were seen again since. With `strike` (one, or one for each
        check) the penalties among the limits count a strike.

        A degraded decision is settled where it was made, in this process, and in what will be written back to the
        storage if that has not happened yet. While the storage is out of reach, a refund of what it has decided is
        dropped, and what is to be charged on top is charged here.
        """
        return self._decider.settle(decision, cost, strike)

    def wait(
        self, key: str, *, cost: int = ONE, values: Values | None = None, timeout: Duration | None = None
    ) -> Decision:
        """Spend `cost`, sleeping for it if need be, up to `timeout`: seconds or a timedelta, `max_delay` by default.

        Raises RateLimited, with nothing charged, as soon as it is known that the time will not do; its
        `decision.retry_after` is when the same wait, with the same timeout, would do, not when a hit would pass.
        Behind others both are exact for buckets, and for one window if all costs are 1. Otherwise they are estimates
        that are never too long: `retry_after` may be too short, and a late waiter may be refused only at its timeout.

        A waiter that is interrupted or cancelled gives its place back, also while the storage is being asked.

        A slot can be released at any time, so a waiter for one is refused only at its timeout. The slot is then held
        for one lease, or until `release`; `acquire` holds it for as long as its body runs.
        """
        ((key, limits, cost, _, extras),) = group_of(key, self.limits, cost, values, strikes=False)
        patience = as_patience(timeout, self.max_delay)
        if self._reserves:
            flow = wait_by_place(key, limits, cost, patience)
        else:
            flow = self._wait_in_line(key, limits, cost, extras, patience, self._lines, (None, key), threading.Event())
        return drive(flow, self._decider.evaluate_or_undo, self._sleep, self._decider.listeners)

    @contextmanager
    def acquire(
        self, key: str, *, cost: int = ONE, values: Values | None = None, timeout: Duration | None = None
    ) -> Iterator[Decision]:
        """Wait as a context: the body runs once its turn has come.

        Slots are renewed while the body runs, and released at its end, however it ends.
        """
        decision = self.wait(key, cost=cost, values=values, timeout=timeout)
        with self._decider.holding(decision):
            yield decision

    def release(self, decision: Decision) -> None:
        """Release the slots of an allowed decision, for work that does not end where it began. Can be repeated.

        Rates and quotas stay charged, see `settle`. Does nothing for a decision without slots.
        """
        self._decider.release(decision)

    def holders(self, key: str) -> list[Holder]:
        """Return the slots of `key` that are held now, in all processes; of each limit, the first to expire first.

        While the storage is out of reach, return the slots that this process granted alone, or raise StorageError if
        `failure` is "raise".
        """
        return self._decider.holders(checked_key(key), self.limits)

    @contextmanager
    def reserve(
        self, key: str, cost: int, *, values: Values | None = None, timeout: Duration | None = None
    ) -> Iterator[Reservation]:
        """Spend an estimate as a context; in its body, `commit` what was used in fact.

        If the body ends without a commit, the estimate stays charged. Slots are held as by `acquire`. Raises
        RateLimited, with nothing charged, if it is denied: at once, or after having waited for up to `timeout`. With a
        timeout, the delay of a leaky bucket has passed when the body runs; else it is in `decision.delay`.
        """
        if timeout is None:
            decision = self._decider.decide_or_undo(group_of(key, self.limits, cost, values))
        else:
            decision = self.wait(key, cost=cost, values=values, timeout=timeout)
        if not decision.allowed:
            raise RateLimited(decision)
        with self._decider.holding(decision):
            yield Reservation(self._decider, decision)

    def usage(self, key: str) -> list[Usage]:
        """Return what `key` has used of each limit, in order. Charges nothing, and takes one trip to the storage."""
        group = (usage_ask(checked_key(key), self.limits),)
        return usages_of(group, self._decider.evaluate((group,), "peek")[0])

    def grant(self, key: str, units: int, *, name: str | None = None) -> list[Usage]:
        """Add units to what `key` may use of the limiter's quotas in their present windows, or only of the quota with
        this `name`. Return the usage of all limits after that.

        Quotas are limits by the calendar and metered limits. Raises InvalidLimit if there is none, and StorageError,
        in every failure mode, when the storage could not be told.
        """
        self._decider.force_or_raise(granting(key, self.limits, units, name))
        return self.usage(key)

    def reset(self, key: str, *, limits: Limit | Iterable[Limit] | None = None) -> None:
        """Forget what `key` has spent of the limiter's own limits, or of `limits` if it was checked against others.

        Raises StorageError, in every failure mode, when the storage could not be told.
        """
        self._decider.reset((usage_ask(checked_key(key), self.limits if limits is None else limit_set(limits)),))

    @overload
    def limit(self, function: F, /) -> F: ...

    @overload
    def limit(
        self,
        /,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        values: Callable[..., Values] | None = None,
        timeout: Duration | None = None,
        fallback: Any = RAISE,
    ) -> Callable[[F], F]: ...

    def limit(
        self,
        function: Any = None,
        /,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        values: Callable[..., Values] | None = None,
        timeout: Duration | None = None,
        fallback: Any = RAISE,
    ) -> Any:
        """Decorate a function, def or async def: each call waits for its turn, up to `timeout`.

        `key` and `cost` may be functions of the call's arguments, and `values` is one; without a key, all calls of the
        function share one. Past the timeout RateLimited is raised, or `fallback` is returned, called first with the
        same arguments if it can be called. A call holds its slots until it returns.
        """

        as_patience(timeout, self.max_delay)

        def decorate(function: F) -> F:
            decorated: Any
            if self._wait_in_line is wait_for_slots:
                refuse_generator(function)
            if is_async(function):
                decorated = self._for_tasks()._limited(function, key, cost, values, timeout, fallback)
            else:
                decorated = limited(self.wait, self._decider.holding, function, key, cost, values, timeout, fallback)
            return decorated  # type: ignore[no-any-return]

        return decorate if function is None else decorate(function)

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of everything from now on, as if it had been among `listeners`."""
        self._decider.listen(listener)

    def close(self) -> None:
        """Close the storage. From now on the limiter raises RuntimeError, until a `with` statement opens it again.

        What decorated async functions have opened in event loops is closed by each of them that still runs, as soon as
        it gets to it.
        """
        self._decider.shut()
        self._decider.close()

    def __enter__(self) -> Self:
        self._decider.enter()
        return self

    def __exit__(self, *exception: object) -> None:
        self._decider.leave()
        self._decider.close()

    def _for_tasks(self) -> "AsyncLimiter":
        """Return the limiter of all async functions that are decorated: one, so that they stand in one line."""
        with self._decider.lock:
            if self._twin is None:
                self._twin = AsyncLimiter(
                    self.limits,
                    storage=self._decider.twin_storage(),
                    max_delay=self.max_delay,
                    listeners=self._decider.listeners,
                    sleep=asyncio.sleep if self._sleep is time.sleep else self._async_sleep,
                )
                self._decider.adopt(self._twin._decider)
            return self._twin

    async def _async_sleep(self, seconds: float) -> None:
        self._sleep(seconds)


class AsyncLimiter(LimiterFields):
    """A rate limiter for tasks: the names of `Limiter`, with await. Nothing here blocks the event loop."""

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | AsyncStorage | Storage | RedisClient = "memory://",
        default_algorithm: str | None = None,
        max_delay: Duration = 1.0,
        failure: str = "local",
        deadline: Duration | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        warn: float | str | None = None,
        slice: SliceOption | None = None,
        deny_cache: bool = False,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._warn = None if warn is None else checked_warn(warn)
        self._slice = as_slice(slice)
        self._deny_cache = as_deny_cache(deny_cache)
        self._use(as_limits(limits, default_algorithm))
        self.max_delay = as_seconds("max_delay", max_delay)
        self._sleep = as_sleep(sleep, awaited=True)
        self._decider = AsyncDecider(storage, failure=failure, deadline=deadline, workers=workers, listeners=listeners)
        refuse_unkept(self._decider.storage, self.limits)
        self._fast_path = self._decider.fast_path
        self._lines = Lines()

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that every key is checked against. Others can be set."""
        return self._plan.limits

    @limits.setter
    def limits(self, limits: Limit | Iterable[Limit]) -> None:
        found = limit_set(limits)
        refuse_unkept(self._decider.storage, found)
        self._use(found)
        self._decider.forget_local()

    def _use(self, limits: Limit | Iterable[Limit]) -> None:
        found = decided_locally(limit_set(limits), self._slice, self._deny_cache)
        self._plan = Plan(found if self._warn is None else warning_at(found, self._warn))
        self._reserves = reserves(self._plan.limits)
        self._wait_in_line = wait_for_slots if any(limit.has_slots for limit in self._plan.limits) else wait_in_line

    @property
    def storage(self) -> AsyncStorage:
        """The storage, in its guard if it has one."""
        return self._decider.storage

    @storage.setter
    def storage(self, storage: AsyncStorage) -> None:
        refuse_unkept(storage, self.limits)
        self._decider.storage = storage

    @hit_method
    async def hit(self, key: str, *, cost: int = ONE, values: Values | None = None) -> Decision:
        """Spend `cost` if every limit allows it; see `Limiter.hit`."""
        decision: Decision = await hit_async(self, key, cost=cost, values=values)
        return decision

    async def _hit_in_general(self, key: str, cost: int, values: Values | None) -> Decision:
        return await self._decider.decide(group_of(key, self.limits, cost, values))

    async def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        """Return independent answers, in order; see `Limiter.hit_many`. Other tasks run between two trips."""
        decisions: list[Decision] = []
        for part in in_parts(groups_of(keys, self.limits, cost)):
            if decisions:
                await asyncio.sleep(0)  # memory answers without a pause
            try:
                decisions += await self._decider.decide_each(part)
            except StorageError as error:
                error.undone = error.undone and not decisions
                raise
        return decisions

    async def peek(self, key: str, *, cost: int = ONE, values: Values | None = None) -> Decision:
        """Return what `hit` would say, changing nothing; see `Limiter.peek`."""
        group = group_of(key, self.limits, cost, values)
        return await self._decider.peek(group)

    async def check(self, checks: Check | Iterable[Check]) -> Decision:
        """Decide several keys and limits atomically; see `Limiter.check`."""
        return await self._decider.decide(group_of_checks(checks))

    async def settle(
        self, decision: Decision, *, cost: int | Sequence[int], strike: bool | Sequence[bool] = False
    ) -> Decision:
        """Change what an allowed decision has cost; see `Limiter.settle`."""
        return await self._decider.settle(decision, cost, strike)

    async def wait(
        self, key: str, *, cost: int = ONE, values: Values | None = None, timeout: Duration | None = None
    ) -> Decision:
        """Spend `cost`, sleeping for it if need be, up to `timeout` seconds; see `Limiter.wait`."""
        ((key, limits, cost, _, extras),) = group_of(key, self.limits, cost, values, strikes=False)
        patience = as_patience(timeout, self.max_delay)
        if self._reserves:
            flow = wait_by_place(key, limits, cost, patience)
        else:
            place = (asyncio.get_running_loop(), key)
            flow = self._wait_in_line(key, limits, cost, extras, patience, self._lines, place, asyncio.Event())
        return await drive_async(flow, self._decider.evaluate_or_undo, self._sleep, self._decider.listeners)

    @asynccontextmanager
    async def acquire(
        self, key: str, *, cost: int = ONE, values: Values | None = None, timeout: Duration | None = None
    ) -> AsyncIterator[Decision]:
        """Wait as a context; see `Limiter.acquire`."""
        decision = await self.wait(key, cost=cost, values=values, timeout=timeout)
        async with self._decider.holding(decision):
            yield decision

    async def release(self, decision: Decision) -> None:
        """Release the slots of an allowed decision; see `Limiter.release`. A cancelled caller does not stop it."""
        await self._decider.release(decision)

    async def holders(self, key: str) -> list[Holder]:
        """Return the slots of `key` that are held now; see `Limiter.holders`."""
        return await self._decider.holders(checked_key(key), self.limits)

    @asynccontextmanager
    async def reserve(
        self, key: str, cost: int, *, values: Values | None = None, timeout: Duration | None = None
    ) -> AsyncIterator[AsyncReservation]:
        """Spend an estimate as a context; see `Limiter.reserve`."""
        if timeout is None:
            decision = await self._decider.decide_or_undo(group_of(key, self.limits, cost, values))
        else:
            decision = await self.wait(key, cost=cost, values=values, timeout=timeout)
        if not decision.allowed:
            raise RateLimited(decision)
        async with self._decider.holding(decision):
            yield AsyncReservation(self._decider, decision)

    async def usage(self, key: str) -> list[Usage]:
        """Return what `key` has used of each limit; see `Limiter.usage`."""
        group = (usage_ask(checked_key(key), self.limits),)
        return usages_of(group, (await self._decider.evaluate((group,), "peek"))[0])

    async def grant(self, key: str, units: int, *, name: str | None = None) -> list[Usage]:
        """Add units to what `key` may use of quotas in their present windows; see `Limiter.grant`."""
        await self._decider.force_or_raise(granting(key, self.limits, units, name))
        return await self.usage(key)

    async def reset(self, key: str, *, limits: Limit | Iterable[Limit] | None = None) -> None:
        """Forget what `key` has spent; see `Limiter.reset`."""
        await self._decider.reset((usage_ask(checked_key(key), self.limits if limits is None else limit_set(limits)),))

    @overload
    def limit(self, function: F, /) -> F: ...

    @overload
    def limit(
        self,
        /,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        values: Callable[..., Values] | None = None,
        timeout: Duration | None = None,
        fallback: Any = RAISE,
    ) -> Callable[[F], F]: ...

    def limit(
        self,
        function: Any = None,
        /,
        *,
        key: str | Callable[..., str] | None = None,
        cost: int | Callable[..., int] = ONE,
        values: Callable[..., Values] | None = None,
        timeout: Duration | None = None,
        fallback: Any = RAISE,
    ) -> Any:
        """Decorate an async def; see `Limiter.limit`."""

        as_patience(timeout, self.max_delay)

        def decorate(function: F) -> F:
            if not is_async(function):
                raise TypeError(f"{name_of(function)} is not an async def: decorate it with Limiter.limit")
            decorated: Any = self._limited(function, key, cost, values, timeout, fallback)
            return decorated  # type: ignore[no-any-return]

        return decorate if function is None else decorate(function)

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of everything from now on; see `Limiter.listen`."""
        self._decider.listen(listener)

    async def close(self) -> None:
        """Close what this event loop has open. From now on the limiter raises RuntimeError; see `Limiter.close`."""
        self._decider.shut()
        await self._decider.close()

    def _limited(self, function: Any, *options: Any) -> Any:
        return limited_async(self.wait, self._decider.holding, function, *options)

    async def __aenter__(self) -> Self:
        self._decider.enter()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._decider.leave()
        await self._decider.close()
