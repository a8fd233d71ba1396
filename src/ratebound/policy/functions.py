"""Functions of the application that a policy calls: finding them by name, checking their signatures, and unwrapping
the values that they return.

A function may return a lazy proxy, such as Flask-Login's `current_user` or Django's `request.user`. A proxy reports the
class of the value behind it without being of that type, and werkzeug's proxies have `__await__` whatever is behind
them. So their values must be unwrapped before they are looked at.
"""

import difflib
import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeGuard

from ratebound.policy.cost import graphql_cost, json_batch_cost
from ratebound.policy.problem import shown

Functions = Mapping[str, Callable[..., Any]]

MAX_PROXIES = 8  # proxies around one value; a proxy that wraps itself would never end

BUILT_IN: dict[str, Callable[..., Any]] = {"graphql": graphql_cost, "json-batch": json_batch_cost}


def find_function(given: Any, functions: Functions) -> Callable[..., Any]:
    """Return the function that `given` is or names.

    Names are looked up in `functions`, then in Ratebound's own, then imported as `package.module:function`. Raises
    ValueError if there is no such function.
    """
    if not isinstance(given, str):
        if not callable(given):
            raise ValueError(f"expected a function or its name, not {shown(given)}")
        return given  # type: ignore[no-any-return]
    if given in functions:
        return functions[given]
    if given in BUILT_IN:
        return BUILT_IN[given]
    module, colon, attribute = given.partition(":")
    if not colon:
        near = difflib.get_close_matches(given[:80], [*functions, *BUILT_IN], 1)
        hint = f"did you mean '{near[0]}'?" if near else f"load the policy with functions={{{given!r}: …}}"
        raise ValueError(
            f"unknown function {given!r}: {hint}, name its module with --functions, or write module:function"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # an import runs the user's code: it may fail in any way
        raise ValueError(f"cannot import {given!r}: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise ValueError(f"{given!r} is not a function: expected the name of a callable")
    return found  # type: ignore[no-any-return]


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return True if a function can be called with `count` positional arguments.

    A decorator may add arguments or take some away, so it is enough if either the decorated function or the function
    that it wraps accepts them. A function without a signature is assumed to accept any number but none.
    """
    return binds(function, count) or binds(function, count, follow_wrapped=False)


def binds(function: Callable[..., Any], count: int, *, follow_wrapped: bool = True) -> bool:
    """Return True if the signature accepts `count` positional arguments."""
    try:
        inspect.signature(function, follow_wrapped=follow_wrapped).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # some built-in functions have no signature
        return count > 0
    return True


def check_takes(function: Callable[..., Any], *arguments: str, option: str = "") -> None:
    """Raise TypeError if a function cannot be called with one positional argument for each of `arguments`, which are
    their descriptions for the message. `option` names the option that the function was given for."""
    if not takes(function, len(arguments)):
        name = getattr(function, "__name__", type(function).__name__)
        count = "one argument" if len(arguments) == 1 else f"{len(arguments)} arguments"
        raise TypeError(
            f"{option}{': ' if option else ''}{name}{inspect.signature(function)} is called with {count},"
            f" {' and '.join(arguments)}: change it to accept exactly {'that' if len(arguments) == 1 else 'these'}"
        )


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if a function, or an object that can be called, is declared with `async def`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def find_nothing(*arguments: Any) -> None:
    """Return None. Used in place of a function that could not be found."""


def unwrapped(value: Any) -> Any:
    """Return the value behind a lazy proxy of werkzeug, Django or wrapt, and any other value unchanged. It may block,
    and raises what the proxy raises."""
    for _ in range(MAX_PROXIES):
        kind = type(value)
        if hasattr(kind, "_get_current_object"):  # werkzeug
            value = value._get_current_object()
        elif value.__class__ is kind:
            break
        elif hasattr(kind, "_wrapped"):  # Django: reading `__class__` has set it
            value = value._wrapped
        elif hasattr(kind, "__wrapped__"):  # wrapt
            value = value.__wrapped__
        else:
            break
    return value


def is_awaitable(value: Any) -> TypeGuard[Awaitable[Any]]:
    """Return True if the value must be awaited. A proxy is awaitable only if the value behind it is."""
    return inspect.isawaitable(unwrapped(value))
