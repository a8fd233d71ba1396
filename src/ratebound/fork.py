"""Repair of locks and threads in forked child processes.

A lock that another thread held at the fork stays locked in the child, and threads do not exist there. A lock on a file
belongs to parent and child together.
"""

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """An object that must be repaired in a forked child."""

    def renew(self) -> None:
        """Replace locks and forget threads. Runs in the child before any other code."""


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_all: "WeakSet[Renewable]" = WeakSet()


def renew_in_children(renewable: Renewable) -> None:
    """Call `renewable.renew()` in each forked child before any other code runs there. Keeps only a weak reference."""
    _all.add(renewable)


def close_locked_file(file: int) -> None:
    """Release the lock on a file and close it.

    Closing alone does not release it: a child that was forked in between has a copy of the file, and with it the lock.
    """
    try:
        with suppress(OSError):  # a file system without locks
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _renew_all() -> None:
    for renewable in list(_all):
        renewable.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
