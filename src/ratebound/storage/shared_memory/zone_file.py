"""The files of zones: making, opening and dropping them.

A zone is made under another name, and gets its own when it is complete. So processes that start at the same time all
open the same one, and never half of it. They take turns: a directory may have room for one zone only. All of its memory
is reserved when it is made: a directory that is too small is an error then, and not a crash later.
"""

import errno
import fcntl
import os
import re
import shlex
import shutil
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from mmap import mmap
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from ratebound.clock import Clock, ticking
from ratebound.errors import StorageError
from ratebound.fork import close_locked_file, renew_in_children
from ratebound.storage.shared_memory import locks as zone_locks
from ratebound.storage.shared_memory.cells import DROPPED, Cells
from ratebound.storage.shared_memory.layout import (
    HEAD,
    HEADER,
    HEADER_FIELDS,
    LEAST_SIZE,
    MAGIC,
    MARK,
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
PATIENCE = 1.0  # seconds for each lock while a zone is dropped, and for a zone of another container to be free
TURN = 5.0  # seconds for which a process waits for others that make a zone, and 4 for each GB
PAUSE = 0.002
POINTER = struct.calcsize("P")


class ZoneName(NamedTuple):
    """The name of a zone and the directory of its file."""

    name: str
    directory: str

    @property
    def path(self) -> str:
        """The path of the zone's file."""
        return str(Path(self.directory, f"ratebound-{self.name}"))

    @property
    def drop_command(self) -> str:
        """The command that drops the zone."""
        where = "" if self.directory == default_directory() else f" --directory {shlex.quote(self.directory)}"
        return f"ratebound zone drop {self.name}{where}"

    def url_with(self, option: str) -> str:
        """Return the URL of the zone with another option, for advice."""
        return f"shm://{self.name}?{option}"

    def documents(self) -> list[Path]:
        """Return the files beside the zone: its documents, and the lock of their writers."""
        return sorted(Path(self.directory).glob(f"ratebound-{self.name}+*"))  # no name of a zone has a '+'


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
    namespace: int  # of process ids

    def packed(self) -> bytes:
        """Return the header as bytes."""
        return HEADER_FIELDS.pack(MAGIC, *self)


class MappedZone:
    """A zone that this process has mapped, and its file."""

    def __init__(self, memory: mmap, file: int, header: Header) -> None:
        self.memory = memory
        self.file = file
        self.other_files: list[int] = []  # opened by threads at the same time: to close one releases the file locks
        self.header = header
        self.geometry = Geometry(header.size, header.buckets, header.blocks)
        self.cells = Cells(memory, self.geometry, header.salt)
        self.locks: Locks = FileLocks(file) if header.lock_kind == FILE_LOCKS else Mutexes(memory)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the end of a process `os` may be gone
        for file in (self.file, *self.other_files):
            close(file)


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
    check_name(name)
    directory = default_directory() if directory is None else directory
    if not Path(directory).is_dir():
        raise ValueError(f"there can be no zone in {directory!r}, which is not a directory: make it first")
    return ZoneName(name, directory)


def check_name(name: str) -> None:
    """Raise ValueError for a name that no zone may have."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"the name of a zone is 1 to 64 of A-Z a-z 0-9 _ . -, and a letter or digit first, not {name!r}:"
            " for example shm://api"
        )


def default_directory() -> str:
    """Return the directory for shared memory, or that for temporary files if the system has none."""
    return DIRECTORY if Path(DIRECTORY).is_dir() else tempfile.gettempdir()


def checked_size(size: object, text: str = "") -> int:
    """Return the size of a zone in bytes. Raises ValueError, which quotes `text` if given, if it is out of range."""
    if type(size) is not int or not LEAST_SIZE <= size <= MOST_SIZE:
        if text:
            raise ValueError(f"the size of a zone is from 1mb to 64gb, not {text!r}")
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
    """Return a zone that this process has mapped. Raises StorageError if that cannot be done.

    Unless it `makes` zones, it changes no file: a zone from before the last start of the system is an error then.
    """
    for _ in range(100):  # another process may make or drop it meanwhile
        known = known_zone(name)
        if known is not None:
            _check_size(name, known.header.size, size)
            return known
        try:
            file = open_file(name, os.O_RDWR)
        except FileNotFoundError:
            if not makes:
                raise StorageError(f"there is no zone {name.name!r} in {name.directory}", undone=True) from None
            _make(name, SIZE if size is None else size, FILE_LOCKS if locks == "file" else zone_locks.best_kind())
            continue
        found = _mapped(name, file, size, makes)
        if found is not None:
            return found
    raise StorageError(f"zone {name.name!r} is dropped again and again", undone=True)


def open_file(name: ZoneName, mode: int) -> int:
    """Return the open file of a zone. Raises FileNotFoundError if there is none, and StorageError if it is no file."""
    try:
        file = os.open(name.path, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would wait for others
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _not_opened(name, error) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _not_a_zone(name)
    return file


def known_zone(name: ZoneName) -> MappedZone | None:
    """Return the zone if this process has mapped it. To open and close its file again would release its file locks."""
    try:
        status = os.stat(name.path, follow_symlinks=False)
    except OSError:
        return None
    return _opened.zones.get((status.st_dev, status.st_ino))


def _mapped(name: ZoneName, file: int, size: int | None, forgets: bool) -> MappedZone | None:
    """Return the zone in a file, or None if it has to be looked for again. It keeps the file, or closes it."""
    kept = False
    try:
        status = os.fstat(file)
        if status.st_uid != os.geteuid():
            raise _of_another_user(name, status.st_uid)
        with _opened.lock:
            known = _opened.zones.get((status.st_dev, status.st_ino))
            if known is not None:  # another thread was faster
                known.other_files.append(file)
                kept = True
                return None
            header = read_header(name, file, status.st_size)
            if header.boot != boot_id():
                if not forgets:
                    raise StorageError(f"zone {name.name!r} is from before the last start of the system", undone=True)
                _forget_old(name, file)
                return None
            _check_locks(name, header.lock_kind)
            _check_size(name, header.size, size)
            if header.lock_kind != FILE_LOCKS:
                _claim(name, file, header, forgets)
            try:
                memory = mmap(file, header.size)
            except (OSError, ValueError) as error:
                raise StorageError(f"cannot map zone {name.name!r} at {name.path}: {error}", undone=True) from None
            found = MappedZone(memory, file, header)
            kept = True
            _opened.zones[(status.st_dev, status.st_ino)] = found
            return found
    finally:
        if not kept:
            os.close(file)


def read_header(name: ZoneName, file: int, length: int) -> Header:
    """Return the header of a zone. Raises StorageError for a file that is no zone, or none that can be read."""
    data = os.pread(file, HEADER_FIELDS.size, 0)
    remedy = _remedy(name)
    if not data.startswith(MAGIC):
        raise _not_a_zone(name)
    if len(data) < HEADER_FIELDS.size:
        raise StorageError(f"zone {name.name!r} is damaged: it has {length} bytes: {remedy}", undone=True)
    header = Header(*HEADER_FIELDS.unpack(data)[1:])
    if header.version != VERSION:
        raise StorageError(
            f"zone {name.name!r} has version {header.version}, and this Ratebound writes version {VERSION}: {remedy}",
            undone=True,
        )
    if header.pointer != POINTER:
        raise StorageError(
            f"zone {name.name!r} was made by a {header.pointer * 8}-bit program, and this one has {POINTER * 8} bits:"
            f" {remedy}",
            undone=True,
        )
    if header.size != length or (header.buckets, header.blocks) != divided(length)[1:]:
        raise StorageError(
            f"zone {name.name!r} is damaged: it has {length} bytes, and its header says {header.size}: {remedy}",
            undone=True,
        )
    return header


def _claim(name: ZoneName, file: int, header: Header, may_change: bool) -> None:
    """Take the shared lock on a zone's file that every process has which uses its mutexes.

    A mutex knows its owner by the id of a thread, and two containers have threads of the same id. So a zone of another
    container gets new mutexes if nobody has the lock, which means that the other container has ended. If that is not
    so, raises StorageError.
    """
    own = namespace()
    ends = time.monotonic() + (PATIENCE if may_change else 0)
    while True:
        if header.namespace != own and may_change and _is_locked(file):
            header = read_header(name, file, header.size)
            if header.namespace != own:  # no other process was faster
                memory = mmap(file, header.size)
                Mutexes(memory).initialise()
                memory[: HEADER_FIELDS.size] = header._replace(namespace=own).packed()
        with suppress(OSError):  # some file systems have no such locks
            fcntl.flock(file, fcntl.LOCK_SH)
        header = read_header(name, file, header.size)
        if header.namespace == own:
            return
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        if time.monotonic() >= ends:
            raise StorageError(
                f"zone {name.name!r} is in use in another container, whose processes have other ids, and its locks go"
                " by ids. Give each container a zone of its own, for example by another name; or add locks=file to the"
                f" URL everywhere, stop all programs that use it and run: {name.drop_command}",
                undone=True,
            )
        time.sleep(PAUSE)


def _remedy(name: ZoneName) -> str:
    return f"stop the programs that use it and run: {name.drop_command}; or give yours another name"


def _check_locks(name: ZoneName, lock_kind: int) -> None:
    if lock_kind not in (FILE_LOCKS, zone_locks.best_kind()):
        raise StorageError(
            f"zone {name.name!r} has {KINDS.get(lock_kind, 'unknown locks')}, which this program cannot use:"
            f" {_remedy(name)}",
            undone=True,
        )


def _check_size(name: ZoneName, found: int, asked: int | None) -> None:
    if asked is not None and asked != found:
        raise StorageError(
            f"zone {name.name!r} has {shown_size(found)}, and {shown_size(asked)} were asked for: use the same size"
            f" everywhere, or stop the programs that use it and run: {name.drop_command}",
            undone=True,
        )


def shown_size(size: int) -> str:
    """Return a size for people: in MB if it is a whole number of them, else in bytes."""
    return f"{size} bytes" if size % (1 << 20) else f"{size >> 20} MB"


def _make(name: ZoneName, size: int, lock_kind: int) -> None:
    """Make a zone, unless another process makes it first."""
    with _turn(name, TURN + size / (1 << 28)) as is_alone:
        if os.path.lexists(name.path):
            return
        beginning = f".ratebound-{name.name}+"
        if is_alone:  # these are of processes that were killed
            for left in Path(name.directory).glob(f"{beginning}*"):
                _removed(left)
        try:
            file, path = tempfile.mkstemp(prefix=beginning, dir=name.directory)
        except OSError as error:
            raise _not_made(name, error) from None
        try:
            try:
                _reserve(name, file, size)
                _fill(file, size, lock_kind)
            finally:
                os.close(file)  # before others can open it: to close a file releases all locks of its process on it
            os.link(path, name.path)
        except (FileExistsError, FileNotFoundError):
            pass  # another process made it, or was alone and removed this one
        except OSError as error:
            raise _not_made(name, error) from None
        finally:
            _removed(Path(path))


def _fill(file: int, size: int, lock_kind: int) -> None:
    """Write an empty zone into a file."""
    geometry = divided(size)
    anchor = (time.time_ns() - time.monotonic_ns()) // 1000
    header = Header(
        version=VERSION,
        size=size,
        buckets=geometry.buckets,
        blocks=geometry.blocks,
        lock_kind=lock_kind,
        pointer=POINTER,
        anchor=anchor,
        salt=os.urandom(16),
        boot=boot_id(),
        namespace=namespace(),
    )
    memory = mmap(file, size)
    memory[: HEADER_FIELDS.size] = header.packed()
    cells = Cells(memory, geometry, header.salt)
    for shard in range(SHARDS):
        cells.free_all(shard)
    if lock_kind != FILE_LOCKS:
        Mutexes(memory).initialise()


@contextmanager
def _turn(name: ZoneName, seconds: float, *, ends_when_made: bool = True) -> Iterator[bool]:
    """Wait until no other process makes or drops a zone in the directory, until the zone is there, or for some seconds.

    The value is True if this process is alone. The lock is one on the directory itself, which leaves no file behind.
    """
    try:
        directory = os.open(name.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # it may be written to, but not read
        yield False
        return
    try:
        ends = time.monotonic() + seconds
        is_alone = _is_locked(directory)
        while is_alone is False and time.monotonic() < ends:
            if ends_when_made and os.path.lexists(name.path):
                break
            time.sleep(PAUSE)
            is_alone = _is_locked(directory)
        yield bool(is_alone)
    finally:
        close_locked_file(directory)


def _is_locked(file: int) -> bool | None:
    """Try to lock a file or a directory. Return True if that was done, and None if its file system cannot do it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _removed(path: Path) -> None:
    """Remove a file if it is there, and if this user may."""
    with suppress(OSError):
        path.unlink()


def _reserve(name: ZoneName, file: int, size: int) -> None:
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            for begin in range(0, size, 1 << 20):
                os.pwrite(file, bytes(min(1 << 20, size - begin)), begin)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        why, larger = f"{name.directory} has {shutil.disk_usage(name.directory).free >> 20} MB left", ""
        if error.errno == errno.ENOSPC:
            larger = ", or make the directory larger (docker run --shm-size=256m)"
        elif error.errno == errno.EDQUOT:
            why = f"the quota of user {os.geteuid()} in {name.directory} is used up"
        else:
            why = "the system allows this process no file of that size (ulimit -f)"
        raise StorageError(
            f"cannot make zone {name.name!r} of {shown_size(size)}: {why}. Ask for less ({name.url_with('size=8mb')}),"
            f" use another directory ({name.url_with('directory=/run/app')}){larger}",
            undone=True,
        ) from None


def _forget_old(name: ZoneName, file: int) -> None:
    """Remove a zone from before the last start of the system: its locks and its clock mean nothing now."""
    fcntl.flock(file, fcntl.LOCK_EX)
    _unlink(name, file)


def drop_zone(name: ZoneName) -> bool:
    """Drop a zone with all of its states and documents. Programs that use it go on with a new one.

    Return False if they cannot be told that, because it is a zone of another version, or damaged: they go on with the
    old one until they end. Raises StorageError if there is none, or if this user may not drop it.
    """
    mapped, file = None, -1
    try:
        with _turn(
            name, PATIENCE, ends_when_made=False
        ):  # or a second drop could remove the zone that follows this one
            try:
                mapped = mapped_zone(name, None, makes=False)
            except StorageError:
                try:
                    file = open_file(name, os.O_RDWR)
                except FileNotFoundError:
                    raise StorageError(f"there is no zone {name.name!r} in {name.directory}", undone=True) from None
            if file >= 0 and os.pread(file, len(MAGIC), 0) != MAGIC:
                raise _not_a_zone(name)
            try:
                _unlink(name, file if mapped is None else mapped.file)
            except OSError as error:
                raise _not_opened(name, error) from None
            for document in name.documents():
                _removed(document)
        return _tell_programs(mapped) if mapped is not None else _tell_programs_of_others(name, file)
    finally:
        if file >= 0:
            os.close(file)


def _unlink(name: ZoneName, file: int) -> None:
    """Remove the name of an open zone, unless it is gone, or that of another zone by now."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.stat(name.path, follow_symlinks=False), os.fstat(file)):
            os.unlink(name.path)


def _tell_programs(mapped: MappedZone) -> bool:
    zone = Zone(mapped.cells, mapped.locks, time.monotonic_ns, 0, mapped)
    for shard in range(SHARDS):
        is_taken = zone.enter(shard, PATIENCE)  # a process that is stopped in there must not keep the zone alive
        mapped.memory[mapped.cells.mark_at(shard)] = DROPPED
        if is_taken:
            zone.leave(shard)
    return True


def _tell_programs_of_others(name: ZoneName, file: int) -> bool:
    """Mark the shards of another user's zone, for root. Its locks are not taken: what is in a mutex cannot be trusted.

    A process that was writing in a shard may clear the mark, so all are looked at again until they stay.
    """
    try:
        read_header(name, file, os.fstat(file).st_size)
    except StorageError:
        return False
    ends, stayed = time.monotonic() + PATIENCE, 0
    while stayed < 3 and time.monotonic() < ends:
        cleared = [shard for shard in range(SHARDS) if os.pread(file, 1, _mark_at(shard)) != bytes([DROPPED])]
        for shard in cleared:
            os.pwrite(file, bytes([DROPPED]), _mark_at(shard))
        stayed = 0 if cleared else stayed + 1
        time.sleep(PAUSE)
    return True


def _mark_at(shard: int) -> int:
    return HEADER + shard * HEAD + MARK


def boot_id() -> bytes:
    """Return the system's id of its last start; empty if it gives none."""
    try:
        return Path(BOOT_ID).read_bytes().strip()[:36].ljust(36, b"\0")
    except OSError:
        return bytes(36)


def namespace() -> int:
    """Return the number of the PID namespace of this process; 0 if the system has none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _not_a_zone(name: ZoneName) -> StorageError:
    return StorageError(f"{name.path} is not a zone: remove it, or give the zone another name", undone=True)


def _of_another_user(name: ZoneName, owner: int) -> StorageError:
    return StorageError(
        f"zone {name.name!r} belongs to user {owner}, and this program runs as user {os.geteuid()}: run both as one"
        " user, or give the zone another name",
        undone=True,
    )


def _not_opened(name: ZoneName, error: OSError) -> StorageError:
    if error.errno == errno.ELOOP:
        return StorageError(
            f"{name.path} is a symbolic link, and zones are not looked for behind links: remove it, or give the zone"
            " another name",
            undone=True,
        )
    if error.errno == errno.EISDIR:
        return _not_a_zone(name)
    if isinstance(error, PermissionError):
        try:
            owner = os.stat(name.path, follow_symlinks=False).st_uid
        except OSError:
            owner = os.geteuid()
        if owner != os.geteuid():
            return _of_another_user(name, owner)
    return StorageError(f"cannot open zone {name.name!r} at {name.path}: {error.strerror or error}", undone=True)


def _not_made(name: ZoneName, error: OSError) -> StorageError:
    return StorageError(
        f"cannot make zone {name.name!r} in {name.directory}: {error.strerror or error}. Use a directory that user"
        f" {os.geteuid()} may write to, for example {name.url_with('directory=/run/app')}",
        undone=True,
    )
