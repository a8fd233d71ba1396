"""The files of zones: making, opening and dropping them.

A zone is made under another name, and gets its own when it is complete. So processes that start at the same time all
open the same one, and never half of it. All of its memory is reserved when it is made: a directory that is too small is
an error then, and not a crash later.
"""

import errno
import fcntl
import os
import re
import shutil
import struct
import tempfile
import threading
import time
from mmap import mmap
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from ratebound.clock import Clock, ticking
from ratebound.errors import StorageError
from ratebound.fork import renew_in_children
from ratebound.storage.shared_memory import locks as zone_locks
from ratebound.storage.shared_memory.cells import DROPPED, Cells
from ratebound.storage.shared_memory.layout import (
    HEADER_FIELDS,
    LEAST_SIZE,
    MAGIC,
    MOST_SIZE,
    SHARDS,
    VERSION,
    Geometry,
    divided,
)
from ratebound.storage.shared_memory.locks import FILE_LOCKS, KINDS, FileLocks, Locks, Mutexes
from ratebound.storage.shared_memory.zone_states import Zone

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
DIRECTORY = "/dev/shm"
SIZE = 32 << 20
BOOT_ID = "/proc/sys/kernel/random/boot_id"
PATIENCE = 1.0  # seconds for each lock while a zone is dropped
POINTER = struct.calcsize("P")


class ZoneName(NamedTuple):
    """The name of a zone and the directory of its file."""

    name: str
    directory: str

    @property
    def path(self) -> str:
        """The path of the zone's file."""
        return str(Path(self.directory, f"ratebound-{self.name}"))


class Header(NamedTuple):
    """The header of a zone."""

    version: int
    size: int
    buckets: int
    blocks: int
    lock_kind: int
    pointer: int
    anchor: int
    salt: bytes
    boot: bytes
    namespace: int

    def packed(self) -> bytes:
        """Return the header as bytes."""
        return HEADER_FIELDS.pack(MAGIC, *self)


class MappedZone:
    """A zone that this process has mapped, and its file."""

    def __init__(self, memory: mmap, file: int, header: Header) -> None:
        self.memory = memory
        self.file = file
        self.header = header
        self.geometry = Geometry(header.size, header.buckets, header.blocks)
        self.cells = Cells(memory, self.geometry, header.salt)
        self.locks: Locks = FileLocks(file) if header.lock_kind == FILE_LOCKS else Mutexes(memory)

    def __del__(self) -> None:
        os.close(self.file)


class _Opened:
    """The zones that this process has mapped, by the identity of their files. File locks need one owner for each."""

    def __init__(self) -> None:
        self.zones: WeakValueDictionary[tuple[int, int], MappedZone] = WeakValueDictionary()
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Replace the lock in a forked child. A child goes on with the zones of its parent."""
        self.lock = threading.Lock()


_opened = _Opened()


def zone_name(name: str, directory: str | None = None) -> ZoneName:
    """Return the name of a zone, in the directory for shared memory unless another is given. Raises ValueError."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"the name of a zone is 1 to 64 of A-Z a-z 0-9 _ . -, and a letter or digit first, not {name!r}:"
            " for example shm://api"
        )
    if directory is None:
        directory = DIRECTORY if Path(DIRECTORY).is_dir() else tempfile.gettempdir()
    if not Path(directory).is_dir():
        raise ValueError(f"cannot make a zone in {directory!r}, which is not a directory")
    return ZoneName(name, directory)


def checked_size(size: object) -> int:
    """Return the size of a zone in bytes. Raises ValueError if it is out of range."""
    if type(size) is not int or not LEAST_SIZE <= size <= MOST_SIZE:
        raise ValueError(f"the size of a zone is from 1 MB to 64 GB, in bytes, not {size!r}")
    return size


def open_zone(name: ZoneName, size: int | None, clock: Clock | None = None, locks: str | None = None) -> Zone:
    """Open a zone, or make it. Raises StorageError if that cannot be done.

    A `size` of None opens a zone of any size. `locks` is "mutex", "file", or None for the better one.
    """
    mapped = mapped_zone(name, size, locks)
    ticks, anchor = ticking(clock)
    return Zone(mapped.cells, mapped.locks, ticks, mapped.header.anchor if clock is None else anchor, mapped)


def mapped_zone(name: ZoneName, size: int | None, locks: str | None = None, *, makes: bool = True) -> MappedZone:
    """Return a zone that this process has mapped. Raises StorageError if that cannot be done."""
    for _ in range(100):  # another process may make or drop it meanwhile
        known = _known(name)
        if known is not None:
            _check_size(name, known.header.size, size)
            return known
        try:
            file = os.open(name.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            if not makes:
                raise StorageError(f"there is no zone {name.name!r} in {name.directory}", undone=True) from None
            _make(name, SIZE if size is None else size, FILE_LOCKS if locks == "file" else zone_locks.best_kind())
            continue
        except OSError as error:
            raise _not_opened(name, error) from None
        found = _mapped(name, file, size)
        if found is not None:
            return found
    raise StorageError(f"zone {name.name!r} is dropped again and again", undone=True)


def _known(name: ZoneName) -> MappedZone | None:
    """Return the zone if this process has mapped it. To open and close its file again would release its file locks."""
    try:
        status = os.stat(name.path, follow_symlinks=False)
    except OSError:
        return None
    return _opened.zones.get((status.st_dev, status.st_ino))


def _mapped(name: ZoneName, file: int, size: int | None) -> MappedZone | None:
    """Return the zone in a file, or None if it has to be looked for again. The file is closed unless it is returned."""
    kept = False
    try:
        status = os.fstat(file)
        if status.st_uid != os.geteuid():
            raise _not_opened(name, PermissionError(errno.EPERM, "it belongs to another user"), status.st_uid)
        with _opened.lock:
            known = _opened.zones.get((status.st_dev, status.st_ino))
            if known is not None:  # another thread was faster
                return None
            header = _read_header(name, file, status.st_size)
            if header.boot != boot_id():
                _forget_old(name, file)
                return None
            _check_size(name, header.size, size)
            found = MappedZone(mmap(file, header.size), file, header)
            kept = True
            _opened.zones[(status.st_dev, status.st_ino)] = found
            return found
    finally:
        if not kept:
            os.close(file)


def _read_header(name: ZoneName, file: int, length: int) -> Header:
    data = os.pread(file, HEADER_FIELDS.size, 0)
    remedy = f"stop the programs that use it and run: ratebound zone drop {name.name}; or give yours another name"
    if len(data) < HEADER_FIELDS.size or not data.startswith(MAGIC):
        raise StorageError(f"{name.path} is not a zone: remove it, or give the zone another name", undone=True)
    header = Header(*HEADER_FIELDS.unpack(data)[1:])
    if header.version != VERSION:
        raise StorageError(
            f"zone {name.name!r} has version {header.version}, and this Ratebound writes version {VERSION}: {remedy}",
            undone=True,
        )
    if header.size != length or header.pointer != POINTER:
        raise StorageError(f"zone {name.name!r} is damaged, or of another kind of system: {remedy}", undone=True)
    if header.lock_kind != FILE_LOCKS and header.namespace != namespace():
        raise StorageError(
            f"zone {name.name!r} was made by another container, whose processes have other ids, and its locks go by"
            f" ids. Add locks=file to the URL everywhere, or give each container a zone of its own. Then {remedy}",
            undone=True,
        )
    if header.lock_kind not in (FILE_LOCKS, zone_locks.best_kind()):
        raise StorageError(
            f"zone {name.name!r} has {KINDS.get(header.lock_kind, 'unknown locks')}, which this program cannot use:"
            f" {remedy}",
            undone=True,
        )
    return header


def _check_size(name: ZoneName, found: int, asked: int | None) -> None:
    if asked is not None and asked != found:
        raise StorageError(
            f"zone {name.name!r} has {found} bytes, and {asked} were asked for: use the same size everywhere, or"
            f" stop the programs that use it and run: ratebound zone drop {name.name}",
            undone=True,
        )


def _make(name: ZoneName, size: int, lock_kind: int) -> None:
    """Make a zone, unless another process makes it first."""
    try:
        file, path = tempfile.mkstemp(prefix=".ratebound-", dir=name.directory)
    except OSError as error:
        raise _not_opened(name, error) from None
    try:
        _reserve(name, file, size)
        geometry = divided(size)
        anchor = (time.time_ns() - time.monotonic_ns()) // 1000
        parts = (VERSION, size, geometry.buckets, geometry.blocks, lock_kind, POINTER, anchor)
        header = Header(*parts, os.urandom(16), boot_id(), namespace())
        memory = mmap(file, size)
        memory[: HEADER_FIELDS.size] = header.packed()
        cells = Cells(memory, geometry, header.salt)
        for shard in range(SHARDS):
            cells.free_all(shard)
        if lock_kind != FILE_LOCKS:
            Mutexes(memory).initialise()
        try:
            os.link(path, name.path)
        except FileExistsError:
            pass
        except OSError as error:
            raise _not_opened(name, error) from None
    finally:
        os.close(file)
        os.unlink(path)


def _reserve(name: ZoneName, file: int, size: int) -> None:
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            for begin in range(0, size, 1 << 20):
                os.pwrite(file, bytes(min(1 << 20, size - begin)), begin)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _not_opened(name, error) from None
        left = shutil.disk_usage(name.directory).free
        raise StorageError(
            f"cannot make zone {name.name!r} of {size >> 20} MB: {name.directory} has {left >> 20} MB left. Ask for"
            f" less (shm://{name.name}?size=8mb), use another directory (shm://{name.name}?directory=/run/app), or make"
            " it larger (docker run --shm-size=256m)",
            undone=True,
        ) from None


def _forget_old(name: ZoneName, file: int) -> None:
    """Remove a zone from before the last start of the system: its locks and its clock mean nothing now."""
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        if os.stat(name.path).st_ino == os.fstat(file).st_ino:
            os.unlink(name.path)
    except FileNotFoundError:
        pass


def drop_zone(name: ZoneName) -> None:
    """Drop a zone with all of its states and documents. Programs that use it go on with a new one.

    Raises StorageError if there is none, or if it cannot be opened.
    """
    try:
        mapped = mapped_zone(name, None, makes=False)
    except StorageError:
        if not Path(name.path).is_file():
            raise
        mapped = None  # one of another version: its programs cannot be told
    os.unlink(name.path)
    for document in Path(name.directory).glob(f"{Path(name.path).name}+*"):
        document.unlink(missing_ok=True)
    if mapped is not None:
        zone = Zone(mapped.cells, mapped.locks, time.monotonic_ns, 0, mapped)
        for shard in range(SHARDS):
            is_taken = zone.enter(shard, PATIENCE)  # a process that is stopped in there must not keep the zone alive
            mapped.memory[mapped.cells.mark_at(shard)] = DROPPED
            if is_taken:
                zone.leave(shard)


def boot_id() -> bytes:
    """Return the system's id of its last start; empty if it gives none."""
    try:
        return Path(BOOT_ID).read_bytes().strip()[:36].ljust(36, b"\0")
    except OSError:
        return bytes(36)


def namespace() -> int:
    """Return the id of the namespace in which process ids mean something; 0 if the system has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _not_opened(name: ZoneName, error: OSError, owner: int | None = None) -> StorageError:
    if isinstance(error, PermissionError):
        try:
            owner = os.stat(name.path).st_uid if owner is None else owner
        except OSError:
            owner = None
    if owner is not None and owner != os.geteuid():
        return StorageError(
            f"zone {name.name!r} belongs to user {owner}, and this program runs as user {os.geteuid()}: run both as one"
            " user, or give the zone another name",
            undone=True,
        )
    return StorageError(f"cannot open zone {name.name!r} at {name.path}: {error.strerror or error}", undone=True)
