"""The limiter: a text of limits, a storage, and the answers. Sync and async stand side by side.

Requests are checked in arguments.py, decided in decider.py, and waited for in waiting.py. The fast path of `hit` is in
hit_method.py. What is left in each class is the one line that differs by an `await`.
"""

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar, overload

from ratebound import late_asyncio
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
from ratebound.late_asyncio import asyncio
from ratebound.limit import (
    Algorithm,
    Check,
    Failure,
    Limit,
    checked_key,
    checked_warn,
    decided_locally,
    limit_set,
    warning_at,
)
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
    """A rate limiter for threads.

    It decides by key, all limits at once, and never raises for a denial: `hit` returns a `Decision`, which is true if
    it is allowed. A storage that is not memory gets a guard, see `GuardedStorage`: every decision returns within
    `deadline`, and `failure` says what is decided without the storage. Durations are seconds or timedeltas. As a
    context manager it closes its storage at the end. See docs/guides/slices.md for `slice` and `deny_cache`.

    Args:
        limits: Text like `"100/minute; 5 concurrent"`, a `Limit`, or several. Every key is checked against all of them.
        storage: A URL like `"redis://localhost"`, a storage, or a client of redis-py. Memory of this process by
            default.
        default_algorithm: The algorithm of limits that name none and have no burst. None means sliding-log up to a
            count of 100, and sliding-counter above.
        max_delay: The longest sleep of `wait`, `acquire` and decorators that are given no timeout.
        failure: What is decided while the storage is out of reach: `"local"` counts in this process, `"open"` allows,
            `"closed"` denies, `"raise"` raises StorageError.
        deadline: The longest time that a decision may take with the storage: seconds or a timedelta. None means the
            storage's own timeout, or 0.25 seconds.
        workers: The number of processes that share the limits, for the share of each while the storage is out of reach.
            None means the server's number, or 1.
        listeners: Functions of one event that receive every decision; see `ratebound.events`.
        warn: The share of a limit, like 0.8 or `"80%"`, at which listeners receive `Warned`. None means never.
        slice: Lets this process take parts of the limits from a shared storage and decide from them without asking:
            True, a share of what remains like `"5%"`, a `Slice`, or `{"share": "5%", "for": 1.0}`. Memory ignores it.
        deny_cache: True lets this process repeat a denial for up to a second without asking the storage. Memory ignores
            it.
        sleep: The function that waits for a number of seconds. Tests give `FakeClock().sleep`.

    Raises:
        InvalidLimit: A limit cannot be read, or the storage does not keep it.
        ValueError: A URL, a duration or a failure mode cannot be read.
        TypeError: `storage`, `listeners` or `sleep` is something else than expected.
        ModuleNotFoundError: The storage needs a package that is not installed. The message says what to run.

    Examples:
        >>> from ratebound import Limiter
        >>> limiter = Limiter("2/minute")
        >>> [bool(limiter.hit("user:42")) for _ in range(3)]
        [True, True, False]
        >>> bool(limiter.hit("user:43"))
        True
    """

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | Storage | RedisClient = "memory://",
        default_algorithm: Algorithm | None = None,
        max_delay: Duration = 1.0,
        failure: Failure = "local",
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

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The units to spend: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.

        Returns:
            The decision. It is true if the request is allowed; a denied one was charged nothing.

        Raises:
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            RuntimeError: The limiter is closed.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("10/minute")
            >>> decision = limiter.hit("user:42", cost=4)
            >>> decision.allowed, decision.remaining
            (True, 6)
            >>> if not limiter.hit("user:42", cost=7):
            ...     print("denied")
            denied
        """
        return self._hit_in_general(key, cost, values)

    def _hit_in_general(self, key: str, cost: int, values: Values | None) -> Decision:
        return self._decider.decide(group_of(key, self.limits, cost, values))

    def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        """Return independent answers, in order, from one trip to the storage for every 100 keys.

        Each key is decided atomically, the whole is not: others may spend between two trips, and each trip has a
        deadline of its own. If the storage fails, the keys of that trip fall to the failure mode and the trips before
        it stay decided. With `failure="raise"` StorageError is raised and the trips before it stay charged.

        Args:
            keys: The keys to decide, each by itself. A key may occur several times.
            cost: The units to spend for each key.

        Raises:
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            InvalidKey: A key is not a str, or one text was given instead of several keys.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("1/minute")
            >>> [decision.allowed for decision in limiter.hit_many(["a", "b", "a"])]
            [True, True, False]
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
        """Return what `hit` would say, with what is left now. Changes nothing.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The units that would be spent: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.

        Raises:
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("5/minute")
            >>> limiter.peek("user:42").remaining
            5
        """
        group = group_of(key, self.limits, cost, values)
        return self._decider.peek(group)

    def check(self, checks: Check | Iterable[Check]) -> Decision:
        """Decide several keys and limits atomically: all are charged, or none. The limiter's own limits are not asked.

        Args:
            checks: One `Check`, or several that are decided together.

        Raises:
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            InvalidKey: There is no check.
            InvalidLimit: Two different limits would share one count, or the storage does not keep one.
            InvalidValue: A value is missing, or no limit of its check counts it.
            TypeError: Something is not a `Check`.

        Examples:
            >>> from ratebound import Check, Limiter, parse_limit
            >>> limiter = Limiter("100/minute")
            >>> decision = limiter.check([
            ...     Check("user:42", parse_limit("10/minute")),
            ...     Check("company:7", parse_limit("1000/minute"), cost=5),
            ... ])
            >>> [outcome.remaining for outcome in decision.outcomes]
            [9, 995]
        """
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

        Args:
            decision: The decision of `hit`, `check` or `wait` to correct.
            cost: What it has cost in fact, 0 or more: one number for all checks, or one for each.
            strike: True counts a strike for the penalties among the limits: one for all checks, or one for each.

        Raises:
            ValueError: The decision is a peek, or was settled already.
            InvalidCost: A cost is not a whole number from 0 to 10**12.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("100/minute")
            >>> decision = limiter.hit("user:42", cost=30)
            >>> limiter.settle(decision, cost=10).remaining
            90
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

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The units to spend: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.
            timeout: The longest wait: seconds or a timedelta, `math.inf` for no bound. None means `max_delay`.

        Raises:
            RateLimited: The time will not do. Nothing is charged.
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            ValueError: The timeout is negative, or no duration.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> from ratebound import Limiter, RateLimited
            >>> limiter = Limiter("1/hour")
            >>> limiter.wait("user:42").allowed
            True
            >>> try:
            ...     limiter.wait("user:42", timeout=5)
            ... except RateLimited as error:
            ...     print(error.decision.limit)
            1/hour
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

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The units to spend: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.
            timeout: The longest wait: seconds or a timedelta, `math.inf` for no bound. None means `max_delay`.

        Yields:
            The decision, which is allowed.

        Raises:
            RateLimited: The time will not do. Nothing is charged.
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            ValueError: The timeout is negative, or no duration.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("3 concurrent")
            >>> with limiter.acquire("reports", timeout=10):
            ...     len(limiter.holders("reports"))
            1
            >>> limiter.holders("reports")
            []
        """
        decision = self.wait(key, cost=cost, values=values, timeout=timeout)
        with self._decider.holding(decision):
            yield decision

    def release(self, decision: Decision) -> None:
        """Release the slots of an allowed decision, for work that does not end where it began. Can be repeated.

        Rates and quotas stay charged, see `settle`. Does nothing for a decision without slots.

        Args:
            decision: A decision of this limiter.

        Raises:
            TypeError: It is not a decision.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("1 concurrent")
            >>> decision = limiter.hit("reports")
            >>> limiter.release(decision)
            >>> limiter.hit("reports").allowed
            True
        """
        self._decider.release(decision)

    def holders(self, key: str) -> list[Holder]:
        """Return the slots of `key` that are held now, in all processes; of each limit, the first to expire first.

        While the storage is out of reach, return the slots that this process granted alone, or raise StorageError if
        `failure` is "raise".

        Args:
            key: The key whose slots are listed.

        Raises:
            InvalidKey: The key is not a str.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            TypeError: The storage cannot list who holds slots.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("3 concurrent")
            >>> decision = limiter.hit("reports")
            >>> [str(holder.limit) for holder in limiter.holders("reports")]
            ['3 concurrent']
        """
        return self._decider.holders(checked_key(key), self.limits)

    @contextmanager
    def reserve(
        self, key: str, cost: int, *, values: Values | None = None, timeout: Duration | None = None
    ) -> Iterator[Reservation]:
        """Spend an estimate as a context; in its body, `commit` what was used in fact.

        If the body ends without a commit, the estimate stays charged. Slots are held as by `acquire`. With a timeout,
        the delay of a leaky bucket has passed when the body runs; else it is in `decision.delay`.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The estimate to charge now: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.
            timeout: The longest wait: seconds or a timedelta. None means not to wait at all.

        Yields:
            The reservation.

        Raises:
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            RateLimited: It is denied: at once, or after having waited for up to `timeout`. Nothing is charged.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("1000/minute")
            >>> with limiter.reserve("user:42", 500) as reservation:
            ...     decision = reservation.commit(120)
            >>> limiter.peek("user:42").remaining
            880
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
        """Return what `key` has used of each limit, in order. Charges nothing, and takes one trip to the storage.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.

        Raises:
            InvalidKey: The key is not a str.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("100/calendar-month")
            >>> decision = limiter.hit("user:42", cost=30)
            >>> [(usage.used, usage.quota) for usage in limiter.usage("user:42")]
            [(30, 100)]
        """
        group = (usage_ask(checked_key(key), self.limits),)
        return usages_of(group, self._decider.evaluate((group,), "peek")[0])

    def grant(self, key: str, units: int, *, name: str | None = None) -> list[Usage]:
        """Add units to what `key` may use of the limiter's quotas in their current windows, or only of the quota with
        this `name`. Return the usage of all limits after that.

        Quotas are limits by the calendar and metered limits.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            units: The units to add: a whole number from 1 to 10**12.
            name: The name of the one quota to add to. None means all quotas of the limiter.

        Raises:
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            StorageError: The storage could not be told, in every failure mode.
            InvalidLimit: The limiter has no quota, or none with this name.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("100/calendar-month")
            >>> limiter.grant("user:42", 50)[0].quota
            150
        """
        self._decider.force_or_raise(granting(key, self.limits, units, name))
        return self.usage(key)

    def reset(self, key: str, *, limits: Limit | Iterable[Limit] | None = None) -> None:
        """Forget what `key` has spent of the limiter's own limits, or of `limits` if it was checked against others.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            limits: The limits to forget, if the key was checked against others. None means the limiter's own.

        Raises:
            InvalidKey: The key is not a str.
            StorageError: The storage could not be told, in every failure mode.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("1/hour")
            >>> decision = limiter.hit("user:42")
            >>> limiter.reset("user:42")
            >>> limiter.hit("user:42").allowed
            True
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

        A call holds its slots until it returns.

        Args:
            function: The function to decorate; left out in `@limiter.limit(key=…)`.
            key: The key, or a function of the call's arguments that returns it. None means one key for all calls of the
                function.
            cost: The units to spend, or a function of the call's arguments that returns them.
            values: A function of the call's arguments that returns the value for each limit of distinct values.
            timeout: The longest wait: seconds or a timedelta, `math.inf` for no bound. None means `max_delay`.
            fallback: What is returned instead of raising RateLimited. If it can be called, it is called with the call's
                arguments.

        Raises:
            TypeError: A generator function is decorated, and the limits have slots.
            RateLimited: Raised by calls whose time will not do, unless there is a `fallback`.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("1/hour")
            >>> @limiter.limit(key=lambda user: user, fallback="later")
            ... def report(user):
            ...     return f"report for {user}"
            >>> report("alice"), report("alice"), report("bob")
            ('report for alice', 'later', 'report for bob')
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
        """Tell `listener` of everything from now on, as if it had been among `listeners`.

        Args:
            listener: A function of one event; see `ratebound.events`.

        Raises:
            TypeError: It cannot be called.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter, events = Limiter("1/hour"), []
            >>> limiter.listen(events.append)
            >>> limiter.hit("user:42").allowed, type(events[0]).__name__
            (True, 'Decided')
        """
        self._decider.listen(listener)

    def close(self) -> None:
        """Close the storage. From now on the limiter raises RuntimeError, until a `with` statement opens it again.

        What decorated async functions have opened in event loops is closed by each of them that still runs, as soon as
        it gets to it.

        Examples:
            >>> from ratebound import Limiter
            >>> limiter = Limiter("100/minute")
            >>> limiter.close()
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
    """A rate limiter for tasks: the names of `Limiter`, with await. Nothing here blocks the event loop.

    As an async context manager it closes its storage at the end.

    Args:
        limits: Text like `"100/minute; 5 concurrent"`, a `Limit`, or several. Every key is checked against all of them.
        storage: A URL like `"redis://localhost"`, a storage, or a client of redis-py. Memory of this process by
            default.
        default_algorithm: The algorithm of limits that name none and have no burst. None means sliding-log up to a
            count of 100, and sliding-counter above.
        max_delay: The longest sleep of `wait`, `acquire` and decorators that are given no timeout.
        failure: What is decided while the storage is out of reach: `"local"` counts in this process, `"open"` allows,
            `"closed"` denies, `"raise"` raises StorageError.
        deadline: The longest time that a decision may take with the storage: seconds or a timedelta. None means the
            storage's own timeout, or 0.25 seconds.
        workers: The number of processes that share the limits, for the share of each while the storage is out of reach.
            None means the server's number, or 1.
        listeners: Functions of one event that receive every decision; see `ratebound.events`.
        warn: The share of a limit, like 0.8 or `"80%"`, at which listeners receive `Warned`. None means never.
        slice: Lets this process take parts of the limits from a shared storage and decide from them without asking:
            True, a share of what remains like `"5%"`, a `Slice`, or `{"share": "5%", "for": 1.0}`. Memory ignores it.
        deny_cache: True lets this process repeat a denial for up to a second without asking the storage. Memory ignores
            it.
        sleep: The async def that waits for a number of seconds. Tests give `FakeClock().async_sleep`.

    Raises:
        InvalidLimit: A limit cannot be read, or the storage does not keep it.
        ValueError: A URL, a duration or a failure mode cannot be read.
        TypeError: `storage`, `listeners` or `sleep` is something else than expected.
        ModuleNotFoundError: The storage needs a package that is not installed. The message says what to run.

    Examples:
        >>> import asyncio
        >>> from ratebound import AsyncLimiter
        >>> async def main():
        ...     async with AsyncLimiter("2/minute") as limiter:
        ...         return [bool(await limiter.hit("user:42")) for _ in range(3)]
        >>> asyncio.run(main())
        [True, True, False]
    """

    def __init__(
        self,
        limits: Limits,
        *,
        storage: str | AsyncStorage | Storage | RedisClient = "memory://",
        default_algorithm: Algorithm | None = None,
        max_delay: Duration = 1.0,
        failure: Failure = "local",
        deadline: Duration | None = None,
        workers: int | None = None,
        listeners: Iterable[Listener] = (),
        warn: float | str | None = None,
        slice: SliceOption | None = None,
        deny_cache: bool = False,
        sleep: Callable[[float], Awaitable[object]] = late_asyncio.sleep,
    ) -> None:
        self._warn = None if warn is None else checked_warn(warn)
        self._slice = as_slice(slice)
        self._deny_cache = as_deny_cache(deny_cache)
        self._use(as_limits(limits, default_algorithm))
        self.max_delay = as_seconds("max_delay", max_delay)
        self._sleep = asyncio.sleep if sleep is late_asyncio.sleep else as_sleep(sleep, awaited=True)
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
        """Spend `cost` if every limit allows it; see `Limiter.hit`. Without `await` nothing is decided.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The units to spend: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.

        Returns:
            The decision. It is true if the request is allowed; a denied one was charged nothing.

        Raises:
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            RuntimeError: The limiter is closed.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> async def main():
            ...     limiter = AsyncLimiter("10/minute")
            ...     decision = await limiter.hit("user:42", cost=4)
            ...     return decision.allowed, decision.remaining
            >>> asyncio.run(main())
            (True, 6)
        """
        decision: Decision = await hit_async(self, key, cost=cost, values=values)
        return decision

    async def _hit_in_general(self, key: str, cost: int, values: Values | None) -> Decision:
        return await self._decider.decide(group_of(key, self.limits, cost, values))

    async def hit_many(self, keys: Iterable[str], *, cost: int = ONE) -> list[Decision]:
        """Return independent answers, in order; see `Limiter.hit_many`. Other tasks run between two trips.

        Args:
            keys: The keys to decide, each by itself. A key may occur several times.
            cost: The units to spend for each key.

        Raises:
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            InvalidKey: A key is not a str, or one text was given instead of several keys.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> decisions = asyncio.run(AsyncLimiter("1/minute").hit_many(["a", "b", "a"]))
            >>> [decision.allowed for decision in decisions]
            [True, True, False]
        """
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
        """Return what `hit` would say, changing nothing; see `Limiter.peek`.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The units that would be spent: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.

        Raises:
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> asyncio.run(AsyncLimiter("5/minute").peek("user:42")).remaining
            5
        """
        group = group_of(key, self.limits, cost, values)
        return await self._decider.peek(group)

    async def check(self, checks: Check | Iterable[Check]) -> Decision:
        """Decide several keys and limits atomically: all are charged, or none; see `Limiter.check`.

        Args:
            checks: One `Check`, or several that are decided together.

        Raises:
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            InvalidKey: There is no check.
            InvalidLimit: Two different limits would share one count, or the storage does not keep one.
            InvalidValue: A value is missing, or no limit of its check counts it.
            TypeError: Something is not a `Check`.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter, Check, parse_limit
            >>> checks = [Check("user:42", parse_limit("10/minute")), Check("company:7", parse_limit("1000/minute"))]
            >>> asyncio.run(AsyncLimiter("100/minute").check(checks)).allowed
            True
        """
        return await self._decider.decide(group_of_checks(checks))

    async def settle(
        self, decision: Decision, *, cost: int | Sequence[int], strike: bool | Sequence[bool] = False
    ) -> Decision:
        """Change what an allowed decision has cost; see `Limiter.settle`.

        Args:
            decision: The decision of `hit`, `check` or `wait` to correct.
            cost: What it has cost in fact, 0 or more: one number for all checks, or one for each.
            strike: True counts a strike for the penalties among the limits: one for all checks, or one for each.

        Raises:
            ValueError: The decision is a peek, or was settled already.
            InvalidCost: A cost is not a whole number from 0 to 10**12.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> async def main():
            ...     limiter = AsyncLimiter("100/minute")
            ...     decision = await limiter.hit("user:42", cost=30)
            ...     return await limiter.settle(decision, cost=10)
            >>> asyncio.run(main()).remaining
            90
        """
        return await self._decider.settle(decision, cost, strike)

    async def wait(
        self, key: str, *, cost: int = ONE, values: Values | None = None, timeout: Duration | None = None
    ) -> Decision:
        """Spend `cost`, sleeping for it if need be, up to `timeout`; see `Limiter.wait`.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The units to spend: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.
            timeout: The longest wait: seconds or a timedelta, `math.inf` for no bound. None means `max_delay`.

        Raises:
            RateLimited: The time will not do. Nothing is charged.
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            ValueError: The timeout is negative, or no duration.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> asyncio.run(AsyncLimiter("1/hour").wait("user:42", timeout=5)).allowed
            True
        """
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
        """Wait as a context: the body runs once its turn has come; see `Limiter.acquire`.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The units to spend: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.
            timeout: The longest wait: seconds or a timedelta, `math.inf` for no bound. None means `max_delay`.

        Yields:
            The decision, which is allowed.

        Raises:
            RateLimited: The time will not do. Nothing is charged.
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            ValueError: The timeout is negative, or no duration.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> async def main():
            ...     limiter = AsyncLimiter("3 concurrent")
            ...     async with limiter.acquire("reports", timeout=10):
            ...         return len(await limiter.holders("reports"))
            >>> asyncio.run(main())
            1
        """
        decision = await self.wait(key, cost=cost, values=values, timeout=timeout)
        async with self._decider.holding(decision):
            yield decision

    async def release(self, decision: Decision) -> None:
        """Release the slots of an allowed decision; see `Limiter.release`. A cancelled caller does not stop it.

        Args:
            decision: A decision of this limiter.

        Raises:
            TypeError: It is not a decision.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> async def main():
            ...     limiter = AsyncLimiter("1 concurrent")
            ...     await limiter.release(await limiter.hit("reports"))
            ...     return await limiter.hit("reports")
            >>> asyncio.run(main()).allowed
            True
        """
        await self._decider.release(decision)

    async def holders(self, key: str) -> list[Holder]:
        """Return the slots of `key` that are held now; see `Limiter.holders`.

        Args:
            key: The key whose slots are listed.

        Raises:
            InvalidKey: The key is not a str.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            TypeError: The storage cannot list who holds slots.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> async def main():
            ...     limiter = AsyncLimiter("3 concurrent")
            ...     await limiter.hit("reports")
            ...     return await limiter.holders("reports")
            >>> [str(holder.limit) for holder in asyncio.run(main())]
            ['3 concurrent']
        """
        return await self._decider.holders(checked_key(key), self.limits)

    @asynccontextmanager
    async def reserve(
        self, key: str, cost: int, *, values: Values | None = None, timeout: Duration | None = None
    ) -> AsyncIterator[AsyncReservation]:
        """Spend an estimate as a context; in its body, `commit` what was used in fact; see `Limiter.reserve`.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            cost: The estimate to charge now: a whole number from 1 to 10**12.
            values: The value for each limit of distinct values: `{"account": "alice"}`. Other limits take none.
            timeout: The longest wait: seconds or a timedelta. None means not to wait at all.

        Yields:
            The reservation.

        Raises:
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            InvalidValue: A value is missing, or no limit counts it.
            StorageError: The storage could not answer and the failure mode is `"raise"`.
            RateLimited: It is denied: at once, or after having waited for up to `timeout`. Nothing is charged.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> async def main():
            ...     limiter = AsyncLimiter("1000/minute")
            ...     async with limiter.reserve("user:42", 500) as reservation:
            ...         await reservation.commit(120)
            ...     return await limiter.peek("user:42")
            >>> asyncio.run(main()).remaining
            880
        """
        if timeout is None:
            decision = await self._decider.decide_or_undo(group_of(key, self.limits, cost, values))
        else:
            decision = await self.wait(key, cost=cost, values=values, timeout=timeout)
        if not decision.allowed:
            raise RateLimited(decision)
        async with self._decider.holding(decision):
            yield AsyncReservation(self._decider, decision)

    async def usage(self, key: str) -> list[Usage]:
        """Return what `key` has used of each limit; see `Limiter.usage`.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.

        Raises:
            InvalidKey: The key is not a str.
            StorageError: The storage could not answer and the failure mode is `"raise"`.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> asyncio.run(AsyncLimiter("100/calendar-month").usage("user:42"))[0].remaining
            100
        """
        group = (usage_ask(checked_key(key), self.limits),)
        return usages_of(group, (await self._decider.evaluate((group,), "peek"))[0])

    async def grant(self, key: str, units: int, *, name: str | None = None) -> list[Usage]:
        """Add units to what `key` may use of quotas in their current windows; see `Limiter.grant`.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            units: The units to add: a whole number from 1 to 10**12.
            name: The name of the one quota to add to. None means all quotas of the limiter.

        Raises:
            InvalidKey: The key is not a str.
            InvalidCost: The cost is not a whole number from 1 to 10**12.
            StorageError: The storage could not be told, in every failure mode.
            InvalidLimit: The limiter has no quota, or none with this name.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> asyncio.run(AsyncLimiter("100/calendar-month").grant("user:42", 50))[0].quota
            150
        """
        await self._decider.force_or_raise(granting(key, self.limits, units, name))
        return await self.usage(key)

    async def reset(self, key: str, *, limits: Limit | Iterable[Limit] | None = None) -> None:
        """Forget what `key` has spent; see `Limiter.reset`.

        Args:
            key: The client that is counted, as text, like `"user:42"`. Every key has its own count.
            limits: The limits to forget, if the key was checked against others. None means the limiter's own.

        Raises:
            InvalidKey: The key is not a str.
            StorageError: The storage could not be told, in every failure mode.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> asyncio.run(AsyncLimiter("1/hour").reset("user:42"))
        """
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
        """Decorate an async def: each call waits for its turn, up to `timeout`; see `Limiter.limit`.

        Args:
            function: The function to decorate; left out in `@limiter.limit(key=…)`.
            key: The key, or a function of the call's arguments that returns it. None means one key for all calls of the
                function.
            cost: The units to spend, or a function of the call's arguments that returns them.
            values: A function of the call's arguments that returns the value for each limit of distinct values.
            timeout: The longest wait: seconds or a timedelta, `math.inf` for no bound. None means `max_delay`.
            fallback: What is returned instead of raising RateLimited. If it can be called, it is called with the call's
                arguments.

        Raises:
            TypeError: The function is not an async def.
            RateLimited: Raised by calls whose time will not do, unless there is a `fallback`.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> limiter = AsyncLimiter("1/hour")
            >>> @limiter.limit(key=lambda user: user, fallback="later")
            ... async def report(user):
            ...     return f"report for {user}"
            >>> async def main():
            ...     return await report("alice"), await report("alice")
            >>> asyncio.run(main())
            ('report for alice', 'later')
        """

        as_patience(timeout, self.max_delay)

        def decorate(function: F) -> F:
            if not is_async(function):
                raise TypeError(f"{name_of(function)} is not an async def: decorate it with Limiter.limit")
            decorated: Any = self._limited(function, key, cost, values, timeout, fallback)
            return decorated  # type: ignore[no-any-return]

        return decorate if function is None else decorate(function)

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of everything from now on; see `Limiter.listen`.

        Args:
            listener: A function of one event; see `ratebound.events`.

        Raises:
            TypeError: It cannot be called.

        Examples:
            >>> import asyncio
            >>> from ratebound import AsyncLimiter
            >>> limiter, events = AsyncLimiter("1/hour"), []
            >>> limiter.listen(events.append)
            >>> asyncio.run(limiter.hit("user:42")).allowed, type(events[0]).__name__
            (True, 'Decided')
        """
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
