"""The decorator: each call of a function waits for its turn first, and has its slots until it returns."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from ratebound.decision import Decision
from ratebound.duration import Duration
from ratebound.limit import checked_cost, checked_key
from ratebound.rate_limited import RateLimited

P = ParamSpec("P")
R = TypeVar("R")
RAISE: Any = object()


def limited(
    wait: Callable[..., Decision],
    holding: Callable[[Decision], AbstractContextManager[None]],
    function: Callable[P, R],
    key: Any,
    cost: Any,
    values: Any,
    timeout: Duration | None,
    fallback: Any,
) -> Callable[P, R]:
    """Return the function with a wait in front of it, holding its slots while it runs; see `Limiter.limit`."""
    ask_of = _ask_function(function, key, cost, values)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            decision = wait(**ask_of(*args, **kwargs), timeout=timeout)
        except RateLimited:
            if fallback is RAISE:
                raise
        else:
            with holding(decision):
                return function(*args, **kwargs)
        return fallback(*args, **kwargs) if callable(fallback) else fallback  # type: ignore[no-any-return]

    return call


def limited_async(
    wait: Callable[..., Awaitable[Decision]],
    holding: Callable[[Decision], AbstractAsyncContextManager[None]],
    function: Callable[P, Awaitable[R]],
    key: Any,
    cost: Any,
    values: Any,
    timeout: Duration | None,
    fallback: Any,
) -> Callable[P, Awaitable[R]]:
    """Return the async function with an awaited wait in front of it; see `limited`."""
    ask_of = _ask_function(function, key, cost, values)

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            decision = await wait(**ask_of(*args, **kwargs), timeout=timeout)
        except RateLimited:
            if fallback is RAISE:
                raise
        else:
            async with holding(decision):
                return await function(*args, **kwargs)
        value: Any = fallback(*args, **kwargs) if callable(fallback) else fallback
        return await value if inspect.isawaitable(value) else value  # type: ignore[no-any-return]

    return call


def is_async(function: Callable[..., object]) -> bool:
    """Return True if a call must be awaited. Raises TypeError for what cannot be decorated."""
    if not callable(function):
        raise TypeError(f"expected a function to decorate, not {function!r}; put @classmethod and its like above")
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"{name_of(function)} is an async generator: call wait inside it instead")
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def refuse_generator(function: Callable[..., object]) -> None:
    """Raise TypeError for a generator: it would return, and release its slots, before its body runs."""
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"{name_of(function)} is a generator and cannot hold slots: use acquire inside it instead")


def name_of(function: Callable[..., object]) -> str:
    """Return the module and the name of a function, also of one inside a partial."""
    named = getattr(function, "func", function)
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def _ask_function(function: Callable[..., object], key: Any, cost: Any, values: Any) -> Callable[..., dict[str, Any]]:
    """Return a function from the call's arguments to those of `wait`. Raises TypeError if `values` is no function."""
    key_of, cost_of = _key_function(key, function), _cost_function(cost)
    if values is None:
        return lambda *args, **kwargs: {"key": key_of(*args, **kwargs), "cost": cost_of(*args, **kwargs)}
    if not callable(values):
        raise TypeError(f"values must be a function of the call's arguments that returns a mapping, not {values!r}")
    return lambda *args, **kwargs: {
        "key": key_of(*args, **kwargs),
        "cost": cost_of(*args, **kwargs),
        "values": values(*args, **kwargs),
    }


def _key_function(key: Any, function: Callable[..., object]) -> Callable[..., str]:
    """Return a function of the call's arguments. Without a key, all calls of `function` share one."""
    if callable(key):
        return key  # type: ignore[no-any-return]
    fixed = name_of(function) if key is None else checked_key(key)
    return lambda *args, **kwargs: fixed


def _cost_function(cost: Any) -> Callable[..., int]:
    """Return a function of the call's arguments."""
    if callable(cost):
        return cost  # type: ignore[no-any-return]
    fixed = checked_cost(cost)
    return lambda *args, **kwargs: fixed
