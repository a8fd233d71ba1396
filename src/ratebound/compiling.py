"""The decorator that tells mypyc about a class. Without mypy_extensions it does nothing: the core needs no package."""

from collections.abc import Callable
from typing import TypeVar

Decorated = TypeVar("Decorated")

try:
    from mypy_extensions import mypyc_attr as mypyc_attr
except ImportError:

    def mypyc_attr(*attrs: str, **kwattrs: object) -> Callable[[Decorated], Decorated]:
        """Return a decorator that returns its class as it is."""
        return lambda decorated: decorated
