"""A lock for states in memory.

Compiled code keeps the GIL from one line to the next, unless it calls code that is not compiled. So a flag is enough
of a lock, and costs next to nothing. Another thread finds the flag set only if the garbage collector, or a clock
written in Python, let it run in the middle of a decision; then it waits a moment. Uncompiled, it is a lock of the
standard library. A Python without a GIL gets no compiled build.
"""

import threading
from typing import cast

from ratebound.clock import pause
from ratebound.compiling import COMPILED, mypyc_attr


@mypyc_attr(acyclic=True)
class Mutex:
    """A flag that one thread has. Do not use it uncompiled: another thread may run between the test and the setting."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = False

    def __enter__(self) -> None:
        while self._taken:
            pause()
        self._taken = True

    def locked(self) -> bool:
        """Return True if a thread has it."""
        return self._taken

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._taken = False


def new_mutex() -> Mutex:
    """Return a lock that is not held."""
    return Mutex() if COMPILED else cast(Mutex, threading.Lock())
