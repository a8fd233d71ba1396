"""Zones of shared memory for tests: each has a name of its own and is dropped at the end, whatever happens."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from ratebound.errors import StorageError
from ratebound.storage.shared_memory.storage import SharedMemoryStorage
from ratebound.storage.shared_memory.zone_file import DIRECTORY, drop_zone

SMALL = 1 << 20  # the smallest zone
LOCKS = {"mutexes": None, "file locks": "file"}  # the first are those of this system
PATIENT = 30.0  # seconds: a busy machine must not look like a process that is stopped


def a_zone_name() -> str:
    return f"test-{os.getpid()}-{uuid4().hex[:12]}"


def zone_directory() -> str:
    return DIRECTORY if Path(DIRECTORY).is_dir() else tempfile.gettempdir()


@contextmanager
def fresh_zone(**options: Any) -> Iterator[SharedMemoryStorage]:
    """A storage in a new zone, which is small and whose callers are patient unless the options say otherwise."""
    given = {"size": SMALL, "deadline": PATIENT, "directory": zone_directory(), **options}
    storage = SharedMemoryStorage(a_zone_name(), **given)
    try:
        yield storage
    finally:
        with suppress(StorageError):  # the test has dropped it
            drop_zone(storage.zone_name)


@contextmanager
def fresh_zone_url(**options: Any) -> Iterator[str]:
    """The URL of a new zone."""
    with fresh_zone(**options) as storage:
        size = storage.states.zone.cells.memory.size()
        name = storage.zone_name
        yield f"shm://{name.name}?directory={name.directory}&size={size}&timeout={PATIENT:g}"
