"""The functions that a policy names: handed over by name, Ratekeeper's own, or imported."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ratekeeper.policy.cost import graphql_cost, json_batch_cost
from ratekeeper.policy.problem import nearest, shown

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


def find_nothing(*arguments: Any) -> None:
    """Find nothing: stands in for a function that is not there."""
