"""Figures that processes share through the documents of their storage. Flows without I/O.

The document `figures` is a directory: a random key for digests, so that all processes name a client alike, and a list
of slots. A slot has the run of a process, or nothing if it is free. The snapshot of slot 3 is the document `figures:3`,
which its process writes again and again. Every write is a compare-and-set, so two processes that take one slot, or a
process that was asleep while its slot was given away, notice it at their next write and look for another slot.

No clocks are compared. A reader notes when it has last seen the version of a slot change. After 10 seconds the process
counts as dead, and is not shown. Each process that publishes looks at one other slot in each round, and frees those of
the dead.
"""

import json
import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from ratebound.errors import StorageError
from ratebound.flow import Flow
from ratebound.observe.figures_snapshot import Snapshot, read_snapshot, written_snapshot
from ratebound.observe.live_figures import LiveFigures
from ratebound.storage import documents_of

DIRECTORY: Final = "figures"
MOST_SLOTS: Final = 500
DEAD_AFTER: Final = 10.0  # seconds without a new snapshot
LOOK_EVERY: Final = 5  # rounds: how often a process looks whether its slot is still its own
TRIES: Final = 50  # to change the directory: each one that fails means that somebody else has changed it
KEY_BYTES: Final = 32
FOREIGN: Final = "the shared document 'figures' in the storage is not ours: delete it, or use another prefix"


class Directory(NamedTuple):
    """The key for digests, and the run of the process in each slot; "" for a free one."""

    key: bytes
    slots: tuple[str, ...]

    def with_slot(self, slot: int, run: str) -> "Directory":
        """Return a directory with another run in a slot. Free slots at the end are left out."""
        slots = [*self.slots, *[""] * (slot + 1 - len(self.slots))]
        slots[slot] = run
        while slots and not slots[-1]:
            slots.pop()
        return Directory(self.key, tuple(slots))


class Version(NamedTuple):
    """A version of a slot, and when this process has seen it first."""

    run: str
    version: int
    since: float


class SharedFigures:
    """The figures of all processes that use one storage. Only one flow may run at a time.

    With `figures` this process publishes its own. `clock` never goes back, in seconds.
    """

    def __init__(
        self, storage: Any, figures: LiveFigures | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage = documents_of(storage)
        self._figures = figures
        self._clock = clock
        self._slots: tuple[str, ...] = ()  # as the directory was read last
        self._versions: dict[int, Version] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._slot: int | None = None
        self._run = ""  # the run that has the slot: another one after a fork
        self._version: int | None = None  # of the slot's document; None if it must be read
        self._rounds = 0
        self._looked_at = random.randrange(MOST_SLOTS)

    def publishing(self) -> Flow[None]:
        """Publish the figures of this process once, and look after one slot. Raises StorageError."""
        assert self._figures is not None
        if self._slot is None or self._run != self._figures.run:
            yield from self._take_slot()
        elif self._version is None or self._rounds % LOOK_EVERY == 0:
            yield from self._check_slot()
        self._rounds += 1
        if self._slot is None:
            return
        name = _document(self._slot)
        if self._version is None:
            self._version = (yield partial(self._storage.read_document, name))[0]
        version, self._version = self._version, None  # unknown if the write fails
        content = written_snapshot(self._figures.own())
        if (yield partial(self._storage.write_document, name, content, version)):
            self._version = version + 1
        else:
            self._slot = None  # another process has it, or an answer to an earlier write was lost
        yield from self._look_after_slot()

    def reading(self) -> Flow[list[Snapshot]]:
        """Return the snapshots of all other processes that are alive, with their ages. Raises StorageError."""
        _, directory = yield from self._read_directory()
        found: list[Snapshot] = []
        for slot, run in enumerate(directory.slots if directory is not None else ()):
            if not run or (self._figures is not None and run == self._figures.run):
                continue
            age = yield from self._look_at(slot, run)
            snapshot = self._snapshots.get(slot)
            if snapshot is not None and age <= DEAD_AFTER:
                found.append({**snapshot, "age": round(age, 3)})
        return found

    def leaving(self) -> Flow[None]:
        """Free the slot of this process. Raises StorageError."""
        if self._slot is not None:
            slot, self._slot = self._slot, None
            yield from self._free(slot, self._run)

    def _take_slot(self) -> Flow[None]:
        """Take a free slot, or a new one. There is none if too many processes publish: then this one does not."""
        assert self._figures is not None
        run = self._figures.run
        self._slot = self._version = None
        for _ in range(TRIES):
            version, directory = yield from self._read_directory()
            if directory is None:
                directory = Directory(os.urandom(KEY_BYTES), ())
            taken = directory.slots.index(run) if run in directory.slots else -1
            free = [slot for slot, other in enumerate(directory.slots) if not other]
            slot = taken if taken >= 0 else min(free, default=len(directory.slots))
            if slot >= MOST_SLOTS:
                return
            if taken < 0:
                content = _written(directory.with_slot(slot, run))
                if not (yield partial(self._storage.write_document, DIRECTORY, content, version)):
                    continue
            self._figures.use_key(directory.key)
            self._slot, self._run = slot, run
            return

    def _check_slot(self) -> Flow[None]:
        """Look whether the slot of this process is still its own: others may have taken it for dead."""
        _, directory = yield from self._read_directory()
        slot = self._slot
        if directory is None or slot is None or slot >= len(directory.slots) or directory.slots[slot] != self._run:
            yield from self._take_slot()

    def _look_after_slot(self) -> Flow[None]:
        """Look at one slot of another process, and free it if that process is dead."""
        slots = self._slots
        if not slots:
            return
        self._looked_at = (self._looked_at + 1) % len(slots)
        slot, run = self._looked_at, slots[self._looked_at]
        if run and slot != self._slot:
            age = yield from self._look_at(slot, run)
            if age > DEAD_AFTER:
                yield from self._free(slot, run)

    def _look_at(self, slot: int, run: str) -> Flow[float]:
        """Read the snapshot in a slot, if it has changed. Return for how long it has not."""
        version, content = yield partial(self._storage.read_document, _document(slot))
        now, known = self._clock(), self._versions.get(slot)
        if known is not None and known.run == run and known.version == version:
            return now - known.since
        self._versions[slot] = Version(run, version, now)
        snapshot = read_snapshot(content) if content else None
        if snapshot is not None and snapshot["run"] == run:
            self._snapshots[slot] = snapshot
        else:  # not written yet, or by another version
            self._snapshots.pop(slot, None)
        return 0.0

    def _free(self, slot: int, run: str) -> Flow[None]:
        """Free the slot of a process, unless it has another one by now, and empty its document."""
        for _ in range(TRIES):
            version, directory = yield from self._read_directory()
            if directory is None or slot >= len(directory.slots) or directory.slots[slot] != run:
                return
            content = _written(directory.with_slot(slot, ""))
            if (yield partial(self._storage.write_document, DIRECTORY, content, version)):
                break
        name = _document(slot)
        version, content = yield partial(self._storage.read_document, name)
        found = read_snapshot(content) if content else None
        if found is not None and found["run"] == run:
            yield partial(self._storage.write_document, name, b"", version)

    def _read_directory(self) -> Flow[tuple[int, Directory | None]]:
        version, content = yield partial(self._storage.read_document, DIRECTORY)
        directory = _read(content) if content else None
        self._slots = directory.slots if directory is not None else ()
        if directory is not None and self._figures is not None:
            self._figures.use_key(directory.key)
        for slot in [slot for slot in self._versions if slot >= len(self._slots)]:
            del self._versions[slot]
            self._snapshots.pop(slot, None)
        return version, directory


def _document(slot: int) -> str:
    return f"{DIRECTORY}:{slot}"


def _written(directory: Directory) -> bytes:
    return json.dumps({"key": directory.key.hex(), "slots": directory.slots}, separators=(",", ":")).encode()


def _read(content: bytes) -> Directory:
    """Return the directory in a document. Raises StorageError if it is something else."""
    try:
        found = json.loads(content)
        key, slots = bytes.fromhex(found["key"]), found["slots"]
        if len(key) != KEY_BYTES or len(slots) > MOST_SLOTS or not all(type(run) is str for run in slots):
            raise ValueError(slots)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise StorageError(FOREIGN, undone=True, outage=False) from None
    return Directory(key, tuple(slots))
