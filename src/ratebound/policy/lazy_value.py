"""What functions of the application answer: a value, a lazy proxy of one, or something to await.

Flask-Login's `current_user` and Django's `request.user` are proxies. They claim the class of the value behind them
without being of that type, and werkzeug's have `__await__` whatever is behind them.
"""

import inspect
from collections.abc import Awaitable
from typing import Any, TypeGuard

MAX_PROXIES = 8  # of a proxy: one that stands for itself has no end


def unwrapped(value: Any) -> Any:
    """Return the value behind a lazy proxy of werkzeug, Django or wrapt, and any other value as it is. Looking behind
    the proxy may block, and raises what the proxy raises."""
    for _ in range(MAX_PROXIES):
        kind = type(value)
        if hasattr(kind, "_get_current_object"):  # werkzeug
            value = value._get_current_object()
        elif value.__class__ is kind:
            break
        elif hasattr(kind, "_wrapped"):  # Django: `__class__` has just looked it up
            value = value._wrapped
        elif hasattr(kind, "__wrapped__"):  # wrapt
            value = value.__wrapped__
        else:
            break
    return value


def is_awaitable(value: Any) -> TypeGuard[Awaitable[Any]]:
    """Return True if the value has to be awaited. A proxy is awaitable only if the value behind it is."""
    return inspect.isawaitable(unwrapped(value))
