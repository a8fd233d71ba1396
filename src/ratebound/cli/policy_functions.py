"""The functions that a policy names. Commands that only look at a policy need none of them: stubs will do."""

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from ratebound.errors import RateboundError
from ratebound.policy.functions import BUILT_IN

Function = Callable[..., Any]


def functions_from(module: str | None) -> Mapping[str, Function]:
    """Return the public functions of a module in the current folder; without a module, stubs that find nothing.

    Raises RateboundError if the import fails.
    """
    if module is None:
        return _Stubs()
    return {name: _now(function) for name, function in public_functions(module).items()}


def public_functions(module: str) -> dict[str, Function]:
    """Return the public functions of a module in the current folder, or on the path.

    Raises RateboundError if the import fails.
    """
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except Exception as error:  # an import runs the user's code, which may fail in any way
        raise RateboundError(f"cannot import {module}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove(here)
    return {name: value for name, value in vars(found).items() if callable(value) and not name.startswith("_")}


def is_stub(function: object) -> bool:
    """Return True if a function is a stub."""
    return getattr(function, "is_stub", False) is True


class _Stubs(dict[str, Function]):
    """A mapping with a stub for every name, except those built into Ratebound."""

    def __contains__(self, name: object) -> bool:
        return name not in BUILT_IN

    def __missing__(self, name: str) -> Function:
        def stub(*arguments: Any) -> None:
            return None

        stub.__name__ = name.rpartition(":")[2]
        stub.is_stub = True  # type: ignore[attr-defined]
        self[name] = stub
        return stub


def _now(function: Function) -> Function:
    """Return a sync version of an async function; others as they are."""
    if not inspect.iscoroutinefunction(function):
        return function

    @wraps(function)
    def run(*arguments: Any) -> Any:
        return asyncio.run(function(*arguments))

    del run.__wrapped__
    return run
