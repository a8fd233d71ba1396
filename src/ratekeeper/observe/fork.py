"""Listeners that were made before a fork work in the children: a lock that some thread held is made anew there."""

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    def renew(self) -> None: ...


_all: "WeakSet[Renewable]" = WeakSet()


def renew_in_children(listener: Renewable) -> None:
    """Have `listener.renew()` called in each child process, before anything else runs there."""
    _all.add(listener)


def _renew_all() -> None:
    for listener in list(_all):
        listener.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
