"""`hit` of both limiters: at once if memory decides, otherwise on the general path. Compiled where that can be done.

Pure, `Limiter.hit` is the function `hit` of this module, and `AsyncLimiter.hit` is `hit_async`. Compiled, both are a
HitMethod, which calls compiled code and passes for a function: a compiled function has no annotations and no docstring,
and a Python function that calls it takes a third of the time of a decision.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from inspect import iscoroutinefunction
from time import perf_counter
from types import CoroutineType, FunctionType, MethodType
from typing import Any, Final, TypeVar, cast

from ratebound.compiling import COMPILED, mypyc_attr
from ratebound.decision import Decision, OneLimitDecision, Plan
from ratebound.memory_fast_path import MemoryFastPath
from ratebound.never_awaited import NeverAwaited
from ratebound.numbers import MAX_COUNT
from ratebound.switch import switch
from ratebound.telling import decided, tell, tell_consequences

F = TypeVar("F", bound=Callable[..., Any])

# Finals, because compiled code reads them without looking up a name.
_now: Final = perf_counter
_method: Final = MethodType


@mypyc_attr(allow_interpreted_subclasses=True)
class LimiterFields:
    """The fields of a limiter that `hit` reads: its limits, and the states and listeners of its decider."""

    _plan: Plan
    _fast_path: MemoryFastPath

    def __getstate__(self) -> Any:
        raise TypeError(f"cannot pickle a {type(self).__name__}, which has locks: make one in each process")

    def __copy__(self) -> Any:
        """Return a limiter with the same fields: those of a compiled class are not in `__dict__`."""
        kind: Any = type(self)
        copied = kind.__new__(kind)
        copied._plan = self._plan
        copied._fast_path = self._fast_path
        copied.__dict__.update(self.__dict__)
        return copied

    def _hit_in_general(self, key: Any, cost: Any, values: Any) -> Any:
        """Check the arguments and decide on the general path. A limiter for tasks returns a coroutine."""
        raise NotImplementedError


def hit(self: LimiterFields, key: object, *, cost: object = 1, values: object = None) -> Any:
    """Decide from memory and tell the listeners, or return what the general path returns."""
    path = self._fast_path
    quick = path.quick
    if quick is None or type(key) is not str or type(cost) is not int or not switch.limiting:
        return self._hit_in_general(key, cost, values)
    plan = self._plan
    if not 1 <= cost <= MAX_COUNT or not plan.plain or values is not None:
        return self._hit_in_general(key, cost, values)
    listeners = path.listeners
    if not listeners:
        answer = quick.hit(plan, key, cost)
        return self._hit_in_general(key, cost, values) if answer is None else answer
    begin = _now()
    decision = quick.hit(plan, key, cost)
    if decision is None:
        return self._hit_in_general(key, cost, values)
    tell(listeners, decided(decision, _now() - begin))
    if plan.is_watched:
        tell_consequences(listeners, decision)
    return decision


class HitMethod:
    """A method that calls compiled code, and answers for everything else as the function that it stands for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.is_async = iscoroutinefunction(function)

    def __call__(self, limiter: LimiterFields, key: object, *, cost: object = 1, values: object = None) -> Any:
        """Decide, or return a coroutine that does."""
        if self.is_async:
            if limiter._fast_path.may_pause or values is not None:
                return self.function(limiter, key, cost=cost, values=values)
            return HitCoroutine(self.function, limiter, key, cost)
        return hit(limiter, key, cost=cost, values=values)

    def __get__(self, limiter: object, owner: object) -> Any:
        return self if limiter is None else _method(self, limiter)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def __repr__(self) -> str:
        return repr(self.function)

    def __reduce__(self) -> str:
        """Pickle and copy it as functions are: by name."""
        return self.function.__qualname__

    # These two are found in the class before `__getattr__` is asked. What has this class is a function to `inspect`,
    # `help` and `mock`.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return FunctionType

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self.function.__doc__


setattr(HitMethod, "__module__", "ratebound.limiter")  # noqa: B010  # the module of what it stands for, also for pickle


@mypyc_attr(acyclic=True, free_list_len=1)
class HitCoroutine:
    """A coroutine that asks memory when it is awaited, and so never pauses. If nobody awaits it, it warns as others do.

    It has no part in garbage collection, which would cost more: an object that pauses would need that.
    """

    __slots__ = ("_cost", "_function", "_is_awaited", "_key", "_limiter", "_steps")

    def __init__(self, function: Callable[..., Any], limiter: LimiterFields, key: object, cost: object) -> None:
        self._function = function
        self._key = key
        self._cost = cost
        self._is_awaited = False
        self._steps: Any = None
        self._limiter = limiter  # cleared last: what goes away with it may make a coroutine, in the memory of this one

    def __await__(self) -> Any:
        if self._is_awaited:
            raise RuntimeError("cannot reuse already awaited coroutine")
        self._is_awaited = True
        answer = hit(self._limiter, self._key, cost=self._cost)
        # OneLimitDecision is nearly every answer, and a class without subclasses is recognised in no time. The
        # coroutine of `_answer` is not kept: a second `send` raises RuntimeError.
        if isinstance(answer, OneLimitDecision):
            return _answer(answer)
        if isinstance(answer, Decision):  # in one condition, the class would be checked again
            return _answer(answer)
        self._steps = answer.__await__()
        return self._steps

    def send(self, value: Any) -> Any:
        """Run until the next pause: tasks call this instead of `__await__`."""
        steps = self._steps
        return (self.__await__() if steps is None else steps).send(value)

    def throw(self, *exception: Any) -> Any:
        """Raise an exception where the coroutine has paused."""
        return self._begun().throw(*exception)

    def close(self) -> None:
        """End the coroutine where it has paused."""
        self._begun().close()

    def _begun(self) -> Any:
        """Return the steps. If there are none, a coroutine of the function is ended in their place."""
        self._is_awaited = True
        if self._steps is None:
            self._steps = self._function(self._limiter, self._key, cost=self._cost)
        return self._steps

    def __del__(self) -> None:
        if not self._is_awaited:
            with suppress(BaseException):  # an exception that leaves a compiled `__del__` crashes the process
                NeverAwaited(self._function.__qualname__)

    def __getattr__(self, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            return getattr(self._function, name)
        raise AttributeError(f"a coroutine of {self._function.__qualname__} has no attribute {name!r}")

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return CoroutineType


async def _answer(decision: Decision) -> Decision:
    return decision


async def hit_async(self: LimiterFields, key: object, *, cost: object = 1, values: object = None) -> Any:
    """Decide as `hit` does, and await the general path. The first lines of `hit` are here again to save a call."""
    path = self._fast_path
    quick = path.quick
    if quick is None or path.listeners or type(key) is not str or type(cost) is not int or not switch.limiting:
        answer = hit(self, key, cost=cost, values=values)
        return answer if isinstance(answer, Decision) else await answer
    plan = self._plan
    if not 1 <= cost <= MAX_COUNT or not plan.plain or values is not None:
        return await self._hit_in_general(key, cost, values)
    decision = quick.hit(plan, key, cost)
    return await self._hit_in_general(key, cost, values) if decision is None else decision


def hit_method(function: F) -> F:
    """Return the method `hit` of a limiter, described like this function of it."""
    if COMPILED:
        return cast(F, HitMethod(function))
    return cast(F, update_wrapper(hit_async if iscoroutinefunction(function) else hit, function))
