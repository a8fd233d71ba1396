"""The functions that a policy names: handed over by name, Ratebound's own, or imported."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ratebound.policy.cost import graphql_cost, json_batch_cost
from ratebound.policy.problem import nearest, shown

Functions = Mapping[str, Callable[..., Any]]

BUILT_IN: dict[str, Callable[..., Any]] = {"graphql": graphql_cost, "json-batch": json_batch_cost}


def find_function(given: Any, functions: Functions) -> Callable[..., Any]:
    """Return a function as it is, or the one that a text names. Raises ValueError if there is none."""
    if not isinstance(given, str):
        if not callable(given):
            raise ValueError(f"expected a function, or the name of one, not {shown(given)}")
        return given  # type: ignore[no-any-return]
    if given in functions:
        return functions[given]
    if given in BUILT_IN:
        return BUILT_IN[given]
    module, colon, attribute = given.partition(":")
    if not colon:
        hint = nearest(given, [*functions, *BUILT_IN])
        raise ValueError(f"unknown function {given!r}: {hint}; or write it as package.module:function")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # an import runs the user's code: it may fail in any way
        raise ValueError(f"cannot import {given!r}: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise ValueError(f"{given!r} is not a function")
    return found  # type: ignore[no-any-return]


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return True if a function can be called with so many arguments. A decorator may add some, or take some away: the
    function as it is called and the one that it wraps may both say so. One without a signature is taken at its word."""
    return binds(function, count) or binds(function, count, follow_wrapped=False)


def binds(function: Callable[..., Any], count: int, *, follow_wrapped: bool = True) -> bool:
    """Return True if a signature has room for so many arguments."""
    try:
        inspect.signature(function, follow_wrapped=follow_wrapped).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # one of those that have no signature
        return count > 0
    return True


def check_takes(function: Callable[..., Any], *arguments: str, option: str = "") -> None:
    """Raise TypeError if a function cannot be called with these arguments, which are told as they are written here."""
    if not takes(function, len(arguments)):
        name = getattr(function, "__name__", type(function).__name__)
        count = "one argument" if len(arguments) == 1 else f"{len(arguments)} arguments"
        raise TypeError(
            f"{option}{': ' if option else ''}{name}{inspect.signature(function)} is called with {count},"
            f" {' and '.join(arguments)}: let it take {'that' if len(arguments) == 1 else 'these'} and no more"
        )


def find_nothing(*arguments: Any) -> None:
    """Find nothing: stands in for a function that is not there."""
