"""What was made before a fork works in the children: locks that some thread held, and threads, are made anew there."""

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    def renew(self) -> None: ...


_all: "WeakSet[Renewable]" = WeakSet()


def renew_in_children(renewable: Renewable) -> None:
    """Have `renewable.renew()` called in each child process, before anything else runs there."""
    _all.add(renewable)


def _renew_all() -> None:
    for renewable in list(_all):
        renewable.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
