"""Failpoints at every store to a zone. The pure build is needed: compiled code cannot be watched.

A store of more than eight bytes is made in pieces of eight, with a failpoint before each. `Struct.pack_into` first
fills its bytes with zeros, then stores number after number, so it is made in twice as many pieces.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from mmap import mmap
from struct import Struct
from typing import Any
from unittest.mock import patch

from ratebound.storage.shared_memory import cells, zone_file, zone_states
from ratebound.storage.shared_memory.layout import CHAIN_WRITTEN, ONE, WRITTEN

PIECE = 8


class Failpoints:
    """The failpoints that a process has passed. `kill_at` is the number of the one at which it kills itself."""

    def __init__(self) -> None:
        self.passed = 0
        self.kill_at = -1
        self._at_each: Callable[[], object] | None = None

    def start(self, kill_at: int = -1, at_each: Callable[[], object] | None = None) -> None:
        """Count from 0 again, and call `at_each` at every failpoint."""
        self.passed, self.kill_at, self._at_each = 0, kill_at, at_each

    def point(self) -> None:
        """Pass a failpoint, or end here."""
        if self.passed == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._at_each is not None:
            self._at_each()
        self.passed += 1


failpoints = Failpoints()


class WatchedMemory(mmap):
    """Memory with a failpoint before every store."""

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, int):
            failpoints.point()
            super().__setitem__(index, value)
            return
        for begin in range(0, len(value), PIECE):
            part = value[begin : begin + PIECE]
            failpoints.point()
            at = (index.start or 0) + begin
            super().__setitem__(slice(at, at + len(part)), part)


class WatchedStruct:
    """A Struct whose stores have failpoints."""

    def __init__(self, found: Struct | str) -> None:
        self._struct = found if isinstance(found, Struct) else Struct(found)
        self.pack = self._struct.pack
        self.unpack_from = self._struct.unpack_from

    def pack_into(self, memory: WatchedMemory, at: int, *values: int) -> None:
        """Store the values, in pieces."""
        data = self._struct.pack(*values)
        memory[at : at + len(data)] = bytes(len(data))
        memory[at : at + len(data)] = data


@contextmanager
def watched_stores() -> Iterator[Failpoints]:
    """Watch the stores to zones that are opened meanwhile."""
    written = [WatchedStruct(found) for found in WRITTEN]
    with (
        patch.object(zone_file, "mmap", WatchedMemory),
        patch.object(cells, "ONE", WatchedStruct(ONE)),
        patch.object(cells, "CHAIN_WRITTEN", WatchedStruct(CHAIN_WRITTEN)),
        patch.object(cells, "WRITTEN", written),
        patch.object(cells, "Struct", WatchedStruct),
        patch.object(cells, "_structs", {}),
        patch.object(zone_states, "WRITTEN", written),
    ):
        yield failpoints
