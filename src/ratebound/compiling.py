"""Notes to the compiler about classes and numbers. Without mypy_extensions they mean nothing.

`COMPILED` is True if the modules that can be compiled are: all of them, or none.
"""

from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final, TypeVar

Decorated = TypeVar("Decorated")

COMPILED: Final = __file__.endswith(tuple(EXTENSION_SUFFIXES))

try:
    from mypy_extensions import i64 as i64
    from mypy_extensions import mypyc_attr as mypyc_attr
except ImportError:
    i64 = int  # type: ignore[misc]

    def mypyc_attr(*attrs: str, **kwattrs: object) -> Callable[[Decorated], Decorated]:
        """Return a decorator that returns its class as it is."""
        return lambda decorated: decorated
